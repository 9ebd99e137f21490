//! The containers of an overlay as processes of this machine, with the arguments and variables that they
//! would have in a cluster; each has a loopback address for its pod's.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::certificates::Authority;
use crate::clients::tool;
use crate::etcd_server::EtcdServer;
use crate::health::Health;
use crate::models::tiny_model;
use crate::process::{PATIENCE, Process, Turn, baton, listening_ports};

/// Name of the routers' Service for clients of the cluster.
const SERVICE: &str = "baton-router.baton.svc";

/// What a kubelet asks.
enum Probe {
    /// The health service at this port for this name.
    Grpc(u16, String),
    /// The container, by running this in it.
    Exec(Vec<String>),
}

impl Probe {
    fn new(value: &Value) -> Self {
        if let Some(command) = value["command"].as_array() {
            return Self::Exec(command.iter().map(text).collect());
        }
        let port = value["port"].as_u64().expect("a port") as u16;
        Self::Grpc(port, text(&value["service"]))
    }

    async fn is_answered(&self, container: &Container) -> bool {
        match self {
            Self::Grpc(port, service) => {
                let health = Health::connect(&format!("{}:{port}", container.host)).await;
                health.is_serving(service).await
            }
            Self::Exec(command) => {
                assert_eq!(command[0], "baton");
                let asked = Command::new(env!("CARGO_BIN_EXE_baton"))
                    .args(&command[1..])
                    .envs(&container.environment)
                    .output();
                asked.expect("the binary starts").status.success()
            }
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

/// One container.
struct Container {
    role: String,
    arguments: Vec<String>,
    environment: BTreeMap<String, String>,
    ports: BTreeMap<String, u16>,
    /// By kind of probe.
    probes: Vec<(String, Probe)>,
    /// Names that its certificate has.
    names: Vec<String>,
    host: String,
}

impl Container {
    fn new(value: &Value) -> Self {
        let entries = |name: &str| {
            value[name]
                .as_object()
                .expect("a table")
                .clone()
                .into_iter()
        };
        let role = text(&value["role"]);
        let arguments = value["arguments"].as_array().expect("a list");
        // Addresses of their own for every run of every role: ports are those of the manifests.
        let last = match role.as_str() {
            "router" => 1,
            "prefill" => 2,
            _ => 3,
        };
        let own = std::process::id();
        Self {
            host: format!("127.{}.{}.{last}", 1 + own / 256 % 250, own % 256),
            role,
            arguments: arguments.iter().map(text).collect(),
            environment: entries("environment").map(|(k, v)| (k, text(&v))).collect(),
            ports: entries("ports")
                .map(|(name, port)| (name, port.as_u64().expect("a port") as u16))
                .collect(),
            probes: entries("probes")
                .map(|(kind, probe)| (kind, Probe::new(&probe)))
                .collect(),
            names: (value["certificate"].as_array().expect("a list").iter())
                .map(text)
                .collect(),
        }
    }

    /// Puts what this machine has in the place of what a cluster has.
    fn adapt(&mut self, from: &str, to: &str) {
        for value in self.environment.values_mut() {
            *value = value.replace(from, to);
        }
    }

    fn start(&self) -> Process {
        Process::start_with(&self.arguments, &self.environment)
    }
}

/// Router, prefill and decode, in this order, of one overlay.
fn containers(overlay: &str, model: &str) -> [Container; 3] {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/processes.py");
    let output = Command::new(tool("python"))
        .args(["-B", script, overlay])
        .output()
        .expect("Python starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mut all: Vec<Container> = (told.as_array().expect("a list").iter())
        .map(Container::new)
        .collect();
    let router = all.iter().find(|one| one.role == "router");
    let router = router.expect("a router").host.clone();
    for one in &mut all {
        let host = one.host.clone();
        one.adapt("0.0.0.0", &host);
        one.adapt("10.0.0.1", &host);
        one.adapt("127.0.0.1", &host);
        one.adapt("/models/model.gguf", model);
        one.adapt("baton-registrations", &router);
    }
    ["router", "prefill", "decode"].map(|role| {
        let place = all.iter().position(|one| one.role == role);
        all.swap_remove(place.expect("all three roles"))
    })
}

/// Starts all three and asks what kubelets, clients and prefill workers ask; the client's curl takes these flags.
async fn assert_serves([router, prefill, decode]: &[Container; 3], scheme: &str, flags: &[String]) {
    let serving = router.start();
    for (kind, probe) in &router.probes {
        let ready = kind == "readinessProbe";
        assert_ne!(
            probe.is_answered(router).await,
            ready,
            "{kind} without workers"
        );
    }
    let decoding = decode.start();
    let prefilling = prefill.start();
    for one in [router, prefill, decode] {
        for (kind, probe) in &one.probes {
            let what = format!("{kind} of {}", one.role);
            until(&what, async || probe.is_answered(one).await).await;
        }
    }
    for (one, process) in [
        (router, &serving),
        (prefill, &prefilling),
        (decode, &decoding),
    ] {
        let listens = listening_ports(process.pid());
        let told = one.ports.values().copied().collect();
        assert_eq!(listens, told, "ports of {}", one.role);
    }
    // Long enough to be split: its pages cross the port that the policies speak of.
    let words = "one two three four five six seven eight nine ten ".repeat(12);
    let body = json!({"prompt": words, "max_tokens": 4, "temperature": 0, "receipt": true});
    let port = router.ports["http"];
    let answer = Command::new("curl")
        .args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--data",
            &body.to_string(),
        ])
        .args(["--header", "Content-Type: application/json"])
        .args(flags)
        // By the name of its Service, which its certificate has.
        .args(["--resolve", &format!("{SERVICE}:{port}:{}", router.host)])
        .arg(format!("{scheme}://{SERVICE}:{port}/v1/completions"))
        .output()
        .expect("curl starts");
    let errors = String::from_utf8_lossy(&answer.stderr);
    let answer: Value =
        serde_json::from_slice(&answer.stdout).unwrap_or_else(|_| panic!("{errors}"));
    let receipt = &answer["receipts"][0];
    assert_eq!(answer["usage"]["completion_tokens"], 4, "{answer:#}");
    assert!(receipt.to_string().contains("tcp"), "{answer:#}");
    // The notice that it would give is tested elsewhere.
    serving.signal("KILL");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_single_node_overlay_serves() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    assert_serves(&containers("single-node", &model), "http", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cpu_overlay_serves_with_an_etcd() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let etcd = EtcdServer::start(&[]);
    let mut all = containers("cpu", &model);
    for one in &mut all {
        one.adapt("baton-etcd:2379", &etcd.endpoint());
    }
    assert_serves(&all, "http", &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_component_mtls_serves_and_is_probed() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let etcd = EtcdServer::start(&[]);
    let authority = Authority::new(folder.path(), "peers");
    let mut all = containers("cpu+mtls", &model);
    for one in &mut all {
        // Just the names of the manifest: the addresses of pods are in no certificate.
        let names: Vec<&str> = one.names.iter().map(String::as_str).collect();
        let signed = authority.sign_for(&one.role, &names);
        one.adapt("baton-etcd:2379", &etcd.endpoint());
        one.adapt("/etc/baton/tls/tls.crt", &signed.cert);
        one.adapt("/etc/baton/tls/tls.key", &signed.key);
        one.adapt("/etc/baton/tls/ca.crt", &authority.ca);
    }
    let flags = ["--cacert".to_owned(), authority.ca.clone()];
    assert_serves(&all, "https", &flags).await;
}

#[test]
fn k8s_04_health_of_a_process_as_a_probe_asks_it() {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let flags = ["--model", &model, "--listen", "127.0.0.1:0"];
    let with_http = [&["router"][..], &flags, &["--http-listen", "127.0.0.1:0"]].concat();
    let router = Process::start(&owned(&with_http));
    let ask = |name: &str, process: &Process| {
        let ended = baton(&["health", name, "--connect", process.address()]);
        (ended.code, ended.stdout + &ended.stderr)
    };
    assert_eq!(ask("live", &router), (Some(0), "serving\n".to_owned()));
    let (code, told) = ask("ready", &router);
    assert_eq!(code, Some(3), "{told}");
    assert!(told.contains("is not ready"), "{told}");
    // Nobody could answer, and clients are told when to come again.
    let get = |path: &str, more: &[&str]| {
        let answer = Command::new("curl")
            .args(["--silent", "--include", "--max-time", "60"])
            .args(more)
            .arg(format!("http://{}{path}", router.http()))
            .output()
            .expect("curl starts");
        String::from_utf8_lossy(&answer.stdout).to_lowercase()
    };
    let health = get("/health", &[]);
    assert!(health.starts_with("http/1.1 503"), "{health}");
    let models = get("/v1/models", &[]);
    assert!(models.contains("\"data\":[]"), "{models}");
    let refused = get("/v1/completions", &["--json", r#"{"prompt": "a"}"#]);
    assert!(refused.starts_with("http/1.1 503"), "{refused}");
    assert!(refused.contains("retry-after: "), "{refused}");

    let worker = [&["decode"][..], &flags, &["--router", router.address()]].concat();
    let decode = Process::start(&owned(&worker));
    assert_eq!(ask("ready", &decode).0, Some(0));
    assert_eq!(ask("ready", &router).0, Some(0));
    assert!(get("/health", &[]).starts_with("http/1.1 200"));
    assert!(!get("/v1/models", &[]).contains("\"data\":[]"));
    let gone = baton(&["health", "--connect", "127.0.0.1:1"]);
    assert_eq!(gone.code, Some(4), "{gone:?}");
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(ToString::to_string).collect()
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let begin = Instant::now();
    while !holds().await {
        assert!(begin.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
