//! TLS on every plane, with certificates that are made here: who is served, who is refused and in which
//! words, and certificates that change while the service runs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::certificates::{Authority, Signed};
use crate::models::{tiny_model, tiny_prompt};
use crate::process::{Ended, PATIENCE, Process, baton, listening_ports};
use crate::service::Roles;

/// A router, a prefill worker and a decode worker under mutual TLS; pages go over tcp.
struct Secured {
    decode: Process,
    prefill: Process,
    router: Process,
    roles: Roles,
    peers: Authority,
}

const PROMPT: usize = 300;

fn prompt() -> String {
    let ids = tiny_prompt(1, PROMPT);
    let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
    ids.join(",")
}

impl Secured {
    fn start(folder: &Path, more: &[&str]) -> Self {
        let roles = Roles::new(&tiny_model(folder));
        let peers = Authority::new(folder, "peers");
        let own = |name: &str| peers.sign(name);
        let router = own("router");
        let router = roles.router(&[&router.flags(&peers.ca)[..], more].concat());
        let worker = |role: &str| {
            let own = own(role);
            let flags = [&own.flags(&peers.ca)[..], &["--transport", "tcp"]].concat();
            roles.worker(role, &router, &flags)
        };
        let decode = worker("decode");
        let prefill = worker("prefill");
        Self {
            decode,
            prefill,
            router,
            roles,
            peers,
        }
    }

    /// `baton generate` with these flags.
    fn generate(&self, flags: &[&str]) -> Ended {
        generate(self.router.address(), flags)
    }
}

fn generate(address: &str, flags: &[&str]) -> Ended {
    let prompt = prompt();
    let asked = [
        "generate",
        "--connect",
        address,
        "--token-ids",
        &prompt,
        "--max-tokens",
        "12",
        "--ignore-eos",
        "--format",
        "json",
    ];
    baton(&[&asked[..], flags].concat())
}

/// Token ids and receipt of a JSON answer.
fn answer(ended: &Ended) -> (Vec<u64>, Value) {
    assert_eq!(ended.code, Some(0), "{ended:#?}");
    let (mut ids, mut receipt) = (Vec::new(), Value::Null);
    for line in ended.stdout.lines() {
        let event: Value = serde_json::from_str(line).expect("JSON");
        match event["event"].as_str() {
            Some("token") => {
                let tokens = event["token_ids"].as_array().expect("ids");
                ids.extend(tokens.iter().filter_map(Value::as_u64));
            }
            Some("done") => receipt = event["receipt"].clone(),
            _ => {}
        }
    }
    (ids, receipt)
}

/// The failed command told all of this.
fn refused(ended: &Ended, parts: &[&str]) {
    assert!(matches!(ended.code, Some(3 | 4)), "{ended:#?}");
    let told = format!("{}{}", ended.stdout, ended.stderr);
    for part in parts {
        assert!(told.contains(part), "no {part:?} in {ended:#?}");
    }
    assert!(told.len() < 4000, "{told}");
}

/// Waits until a process has logged this.
pub(crate) fn until_logged(process: &Process, part: &str) {
    let begin = Instant::now();
    while !process.log().contains(part) {
        assert!(
            begin.elapsed() < PATIENCE,
            "no {part:?} in {}",
            process.log()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn mutual_tls_on_every_plane_changes_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let expected = {
        let roles = Roles::new(&tiny_model(folder.path()));
        let router = roles.router(&[]);
        let _decode = roles.worker("decode", &router, &["--transport", "tcp"]);
        let _prefill = roles.worker("prefill", &router, &["--transport", "tcp"]);
        // A client that speaks TLS where nobody else does.
        let strange = Authority::new(folder.path(), "strange");
        let ended = generate(router.address(), &["--tls-ca", &strange.ca]);
        refused(&ended, &["may not speak TLS"]);
        answer(&generate(router.address(), &[])).0
    };
    let secured = Secured::start(folder.path(), &[]);
    let ca = secured.peers.ca.clone();
    let (ids, receipt) = answer(&secured.generate(&["--tls-ca", &ca]));
    assert_eq!(ids, expected);
    assert_eq!(receipt["transport"], "tcp", "{receipt}");

    // Operators too.
    let status = baton(&[
        "status",
        "--connect",
        secured.router.address(),
        "--tls-ca",
        &ca,
    ]);
    assert!(status.stdout.contains("prefill-0"), "{status:#?}");
    // Without TLS: told, not left to hang.
    refused(&secured.generate(&[]), &["TLS"]);
    // With another CA: told why.
    let strange = Authority::new(folder.path(), "strange");
    refused(
        &secured.generate(&["--tls-ca", &strange.ca]),
        &["not signed by a CA that is trusted here"],
    );
    // Under another name than the certificate's.
    refused(
        &secured.generate(&["--tls-ca", &ca, "--tls-name", "elsewhere"]),
        &["elsewhere", "localhost"],
    );
    answer(&secured.generate(&["--tls-ca", &ca, "--tls-name", "localhost"]));

    // A worker's port and its port for pages serve no strangers, with or without a certificate.
    let impostor = strange.sign("impostor");
    for worker in [&secured.prefill, &secured.decode] {
        for flags in [&["--tls-ca", &ca][..], &impostor.flags(&ca), &[]] {
            let ended = baton(&[&["status", "--connect", worker.address()], flags].concat());
            refused(&ended, &[]);
            assert!(
                !ended.stderr.contains("UNIMPLEMENTED"),
                "it was served: {ended:#?}"
            );
        }
    }
    for port in listening_ports(secured.decode.pid()) {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .expect("a timeout");
        let _ = stream.write_all(&[0x42; 200]);
        let mut heard = Vec::new();
        // Closed, by its end or by a reset, after a TLS alert at most.
        let _ = stream.read_to_end(&mut heard);
        assert!(heard.len() < 64, "port {port} answered {heard:02x?}");
    }
    answer(&secured.generate(&["--tls-ca", &ca]));
}

#[test]
fn strangers_do_not_register() {
    let folder = tempfile::tempdir().expect("a folder");
    let secured = Secured::start(folder.path(), &[]);
    let strange = Authority::new(folder.path(), "strange");
    let impostor = strange.sign("impostor");
    let model = tiny_model(folder.path()).display().to_string();
    let known = [&impostor.flags(&secured.peers.ca)[..]].concat();
    // One with a certificate of another CA, one with none.
    for flags in [&known[..], &[]] {
        let arguments: Vec<String> = [
            "decode",
            "--model",
            &model,
            "--worker-id",
            "impostor",
            "--router",
            secured.router.address(),
        ]
        .iter()
        .chain(flags)
        .map(ToString::to_string)
        .collect();
        let process = Process::start_unready(&arguments);
        until_logged(&process, "cannot reach router");
    }
    let ca = &secured.peers.ca;
    let status = baton(&[
        "status",
        "--connect",
        secured.router.address(),
        "--tls-ca",
        ca,
    ]);
    assert!(!status.stdout.contains("impostor"), "{status:#?}");
    until_logged(&secured.router, "TLS");
    drop(secured);
}

#[test]
fn clients_may_have_to_show_a_certificate_of_their_own_ca() {
    let folder = tempfile::tempdir().expect("a folder");
    let clients = Authority::new(folder.path(), "clients");
    let secured = Secured::start(folder.path(), &["--client-ca", &clients.ca]);
    let ca = secured.peers.ca.clone();
    let client = clients.sign("client");
    answer(&secured.generate(&client.flags(&ca)));
    refused(&secured.generate(&["--tls-ca", &ca]), &["certificate"]);
    // A worker's certificate makes no client.
    let peer = secured.peers.sign("peer");
    refused(&secured.generate(&peer.flags(&ca)), &["certificate"]);
    let strange = Authority::new(folder.path(), "strange").sign("someone");
    refused(&secured.generate(&strange.flags(&ca)), &["certificate"]);
    // Nor a client's a worker.
    let model = tiny_model(folder.path()).display().to_string();
    let arguments: Vec<String> = [
        "decode",
        "--model",
        &model,
        "--worker-id",
        "impostor",
        "--router",
    ]
    .iter()
    .chain(&[secured.router.address()])
    .chain(&client.flags(&ca))
    .map(ToString::to_string)
    .collect();
    let process = Process::start_unready(&arguments);
    until_logged(&process, "certificate");
    drop(process);
    drop(secured.roles);
}

#[test]
fn certificates_are_used_as_soon_as_their_files_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let secured = Secured::start(folder.path(), &[]);
    let ca = secured.peers.ca.clone();
    answer(&secured.generate(&["--tls-ca", &ca]));
    let Signed { cert, key } = secured
        .peers
        .sign_for("router", &["renewed.example", "127.0.0.1"]);
    let renewed = ["--tls-ca", &ca, "--tls-name", "renewed.example"];
    let begin = Instant::now();
    while secured.generate(&renewed).code != Some(0) {
        assert!(begin.elapsed() < PATIENCE, "{}", secured.router.log());
    }
    // What was open lives on: the workers have not come back.
    assert!(
        !secured.router.log().contains("worker gone"),
        "{}",
        secured.router.log()
    );
    // A broken file changes nothing and is told once.
    std::fs::write(&cert, "no certificate").expect("writable");
    until_logged(&secured.router, "the former ones stay");
    answer(&secured.generate(&renewed));
    // A whole one behind it is used again.
    secured
        .peers
        .sign_for("router", &["again.example", "127.0.0.1"]);
    let begin = Instant::now();
    let again = ["--tls-ca", &ca, "--tls-name", "again.example"];
    while secured.generate(&again).code != Some(0) {
        assert!(begin.elapsed() < PATIENCE, "{}", secured.router.log());
    }
    let told = secured.router.log().matches("the former ones stay").count();
    assert_eq!(told, 1, "{}", secured.router.log());
    assert!(Path::new(&key).exists());
}

#[test]
fn sec_05_silent_connections_to_a_tls_port_shut_nobody_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let secured = Secured::start(folder.path(), &[]);
    let loris: Vec<TcpStream> = (0..400)
        .map(|number| {
            let mut stream = TcpStream::connect(secured.router.address()).expect("it listens");
            // Nothing, or the beginning of a handshake that never goes on.
            if number % 2 == 0 {
                stream.write_all(&[0x16, 0x03, 0x01, 0x02]).expect("said");
            }
            stream
        })
        .collect();
    let ca = secured.peers.ca.clone();
    answer(&secured.generate(&["--tls-ca", &ca]));
    drop(loris);
}
