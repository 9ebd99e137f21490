//! A real Prometheus reads a running service, and its rules are about metrics that are there.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::models::{endless, tiny_model, tiny_prompt};
use crate::process::PATIENCE;
use crate::scrape::{Scrape, get, tool};
use crate::service::Setup;

/// Ports may be taken by others between their choice and their use.
const ATTEMPTS: usize = 5;

fn rules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus")
}

fn promtool(arguments: &[&str]) -> String {
    let ended = Command::new(tool("promtool"))
        .args(arguments)
        .current_dir(rules())
        .output()
        .expect("promtool starts; `scripts/setup.sh test` fetches it");
    let said = String::from_utf8([ended.stdout, ended.stderr].concat()).expect("text");
    assert!(ended.status.success(), "promtool {arguments:?}:\n{said}");
    said
}

/// Values of a key in the rules or their tests, which have one per line or entry.
fn values<'a>(text: &'a str, key: &str) -> Vec<&'a str> {
    let parts = text.split(key).skip(1);
    parts
        .filter_map(|part| part.lines().next())
        .map(|line| line.split([',', '}']).next().unwrap_or(line).trim())
        .collect()
}

#[test]
fn alert_rules_are_valid_and_each_fires_on_what_it_is_for() {
    promtool(&["check", "rules", "alerts.yaml"]);
    promtool(&["test", "rules", "alerts.test.yaml"]);
    let read = |name: &str| std::fs::read_to_string(rules().join(name)).expect("readable");
    let (alerts, tests) = (read("alerts.yaml"), read("alerts.test.yaml"));
    let names = values(&alerts, "- alert:");
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        let fires = format!("- alertname: {name}\n");
        let at = tests
            .find(&fires)
            .unwrap_or_else(|| panic!("{name} is never seen to fire"));
        let rest = &tests[at..];
        assert!(rest[..rest.find("exp_annotations").expect("a test")].contains("severity"));
        assert!(
            tests.contains(&format!(
                "{{alertname: {name}, eval_time: 40m, exp_alerts: []}}"
            )),
            "{name} is not seen to be silent"
        );
        let section = format!("runbook: docs/operations.md#{}\n", name.to_lowercase());
        assert!(alerts.contains(&section), "{name} has no section");
    }
}

/// Names of metrics in the rules' expressions.
fn metrics_of(alerts: &str) -> BTreeSet<String> {
    let expressions = alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "));
    let letters = |letter: char| !(letter.is_ascii_alphanumeric() || "_:".contains(letter));
    expressions
        .flat_map(|expression| {
            expression
                .split(letters)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .filter(|word| {
            ["baton_", "process_", "vllm:"]
                .iter()
                .any(|begin| word.starts_with(begin))
        })
        .map(|word| word.trim_end_matches("_bucket").to_owned())
        .collect()
}

/// One Prometheus; dropping it ends it.
struct Prometheus {
    process: Child,
    address: String,
    _folder: tempfile::TempDir,
}

impl Prometheus {
    /// Starts one that scrapes these addresses several times a second.
    fn start(targets: &[String]) -> Self {
        for _ in 0..ATTEMPTS {
            if let Some(started) = Self::try_start(targets) {
                return started;
            }
        }
        panic!("Prometheus does not start; `scripts/setup.sh test` fetches it");
    }

    fn try_start(targets: &[String]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let targets: Vec<String> = targets.iter().map(|one| format!("'{one}'")).collect();
        let configuration = format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\n\
             rule_files: ['{}']\n\
             scrape_configs: [{{job_name: baton, static_configs: [{{targets: [{}]}}]}}]\n",
            rules().join("alerts.yaml").display(),
            targets.join(", ")
        );
        let file = folder.path().join("prometheus.yaml");
        std::fs::write(&file, configuration).expect("writable");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = free.local_addr().expect("bound").to_string();
        drop(free);
        let process = Command::new(tool("prometheus"))
            .arg(format!("--config.file={}", file.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                folder.path().join("data").display()
            ))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus starts; `scripts/setup.sh test` fetches it");
        let mut started = Self {
            process,
            address,
            _folder: folder,
        };
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if started.process.try_wait().expect("a child").is_some() {
                return None;
            }
            if std::net::TcpStream::connect(&started.address).is_ok()
                && get(&started.address, "/-/ready", "").0 == 200
            {
                return Some(started);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    /// What its API says at a path.
    fn ask(&self, path: &str) -> Value {
        let (status, body) = get(&self.address, path, "");
        assert_eq!(status, 200, "{body}");
        // Short answers come whole, long ones in chunks whose sizes stand between them.
        let from = body.find('{').expect("JSON");
        let to = body.rfind('}').expect("JSON");
        let whole = body[from..=to].replace("\r\n", "\n");
        let value: Value = serde_json::from_str(&whole).expect("JSON");
        assert_eq!(value["status"], "success", "{value}");
        value["data"].clone()
    }

    /// The one value of a query; `None` without one.
    fn query(&self, query: &str) -> Option<f64> {
        let query = query.bytes().fold(String::new(), |mut coded, byte| {
            // Writing to a String cannot fail.
            let _ = write!(coded, "%{byte:02X}");
            coded
        });
        let data = self.ask(&format!("/api/v1/query?query={query}"));
        data["result"][0]["value"][1].as_str()?.parse().ok()
    }

    /// Asks until the value is this.
    fn until(&self, query: &str, value: f64) {
        let begin = Instant::now();
        loop {
            let got = self.query(query);
            if got == Some(value) {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{query} is {got:?}, not {value}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn prometheus_reads_all_of_a_service() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--local-prefill-tokens", 0)
        .start()
        .await;
    let targets: Vec<String> = service
        .process
        .metrics()
        .split(',')
        .map(str::to_owned)
        .collect();
    let prometheus = Prometheus::start(&targets);
    prometheus.until("count(up == 1)", 3.0);
    for seed in 0..7 {
        let answer = service.generate(endless(tiny_prompt(seed, 50), 10)).await;
        assert_eq!(answer.expect("an answer").ids().len(), 10);
    }
    prometheus.until("sum(baton_requests_total{outcome=\"ok\"})", 7.0);
    prometheus.until("sum(baton_ttft_seconds_count)", 7.0);
    prometheus.until("sum(baton_itl_seconds_count)", 63.0);
    prometheus.until("sum(baton_transfers_total{outcome=\"committed\"})", 14.0);
    prometheus.until(
        "count(sum without (state) (baton_pages) == baton_page_pool_pages)",
        2.0,
    );
    prometheus.until("max(vllm:kv_cache_usage_perc)", 0.0);
    prometheus.until("count(vllm:cache_config_info{block_size=\"16\"})", 2.0);
    let alerts = prometheus.ask("/api/v1/rules");
    let rules = alerts["groups"][0]["rules"].as_array().expect("rules");
    assert!(rules.len() > 20, "{alerts}");
    for rule in rules {
        assert_eq!(rule["lastError"].as_str().unwrap_or(""), "", "{rule}");
        assert_eq!(rule["state"], "inactive", "{rule}");
    }
    // Every metric of the rules is one that a process shows.
    let text = std::fs::read_to_string(self::rules().join("alerts.yaml")).expect("readable");
    let mut shown = BTreeSet::new();
    for target in &targets {
        shown.extend(
            Scrape::of(target)
                .metrics()
                .map(str::to_owned)
                .collect::<Vec<_>>(),
        );
    }
    let named = metrics_of(&text);
    assert!(named.len() > 20, "{named:?}");
    let missing: Vec<_> = named.difference(&shown).collect();
    assert!(missing.is_empty(), "no process shows {missing:?}");
}
