//! What the command line promises: formats, exit codes, supervision.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::service::{PATIENCE, Service, Setup, default_model, signal, tiny_model};

fn baton(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(arguments)
        .output()
        .expect("the binary starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether a process still runs (a zombie does not).
fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat"));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('Z'))
    })
}

fn wait_until(what: &str, mut reached: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !reached() {
        assert!(begin.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn generate_streams_text_and_json() {
    let service = Setup::new(&default_model()).start().await;
    let connect = service.address.as_str();
    let text = baton(&[
        "generate",
        "--connect",
        connect,
        "--chat",
        "What is the capital of France?",
    ]);
    assert!(text.status.success(), "{}", stderr(&text));
    assert_eq!(stdout(&text), "The capital of France is Paris.\n");

    let json = baton(&[
        "generate",
        "--connect",
        connect,
        "--prompt",
        "Once upon a time",
        "--max-tokens",
        "6",
        "--n",
        "2",
        "--temperature",
        "0.8",
        "--seed",
        "5",
        "--logprobs",
        "2",
        "--format",
        "json",
    ]);
    assert!(json.status.success(), "{}", stderr(&json));
    let events: Vec<Value> = stdout(&json)
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON per line"))
        .collect();
    let of = |name: &str| {
        events
            .iter()
            .filter(|event| event["event"] == name)
            .collect::<Vec<_>>()
    };
    assert_eq!(of("finished").len(), 2);
    assert_eq!(of("done").len(), 1);
    let tokens: usize = of("token")
        .iter()
        .map(|event| event["token_ids"].as_array().expect("ids").len())
        .sum();
    assert_eq!(
        events.last().expect("events")["usage"]["completion_tokens"],
        tokens
    );
    for event in of("token") {
        let count = event["token_ids"].as_array().expect("ids").len();
        assert_eq!(
            event["logprobs"].as_array().expect("logprobs").len(),
            count,
            "{event}"
        );
    }

    let status = baton(&["status", "--connect", connect, "--format", "json"]);
    let status: Value = serde_json::from_str(&stdout(&status)).expect("JSON");
    let workers = status["workers"].as_array().expect("workers");
    assert_eq!(workers.len(), 2);
    for worker in workers {
        let pages = &worker["pages"];
        let part = |name: &str| pages[name].as_u64().expect("a count");
        let sum: u64 = ["free", "cached", "live", "granted", "quarantined"]
            .map(part)
            .iter()
            .sum();
        assert_eq!(sum, part("total"));
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_have_messages_and_exit_codes() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = baton(&["up", "--model", "/no/such/model.gguf"]);
    assert_eq!(missing.status.code(), Some(2), "{}", stderr(&missing));
    assert!(stderr(&missing).contains("/no/such/model.gguf"));
    let nobody = baton(&["status", "--connect", "127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(4), "{}", stderr(&nobody));
    let garbage = folder.path().join("garbage.gguf");
    std::fs::write(&garbage, b"<html>not a model</html>").expect("writable");
    let garbage = baton(&[
        "up",
        "--listen",
        "127.0.0.1:0",
        "--model",
        garbage.to_str().expect("a path"),
    ]);
    assert_eq!(garbage.status.code(), Some(1), "{}", stderr(&garbage));
    assert!(
        stderr(&garbage).contains("garbage.gguf"),
        "{}",
        stderr(&garbage)
    );

    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let connect = service.address.as_str();
    let wrong = baton(&[
        "generate",
        "--connect",
        connect,
        "--prompt",
        "x",
        "--top-p",
        "1.5",
    ]);
    assert_eq!(wrong.status.code(), Some(3));
    assert!(
        stderr(&wrong).contains("INVALID_ARGUMENT") && stderr(&wrong).contains("top_p"),
        "{}",
        stderr(&wrong)
    );
    let wrong = baton(&[
        "generate",
        "--connect",
        connect,
        "--prompt",
        "x",
        "--top-p",
        "1.5",
        "--format",
        "json",
    ]);
    let event: Value = serde_json::from_str(stdout(&wrong).trim()).expect("JSON");
    assert_eq!(
        (&event["event"], &event["code"]),
        (&"error".into(), &"INVALID_ARGUMENT".into())
    );
    assert_eq!(
        baton(&["generate", "--connect", connect]).status.code(),
        Some(2)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_from_flags_then_environment_then_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let config = folder.path().join("baton.toml");
    std::fs::write(&config, "[status]\nconnect = \"127.0.0.1:1\"\n").expect("writable");
    let config = config.to_str().expect("a path");
    let status = |extra: &[&str], variable: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        command.args(["status", "--config", config]).args(extra);
        if let Some(value) = variable {
            command.env("BATON_CONNECT", value);
        }
        command.output().expect("the binary starts").status.code()
    };
    let address = service.address.as_str();
    assert_eq!(status(&[], None), Some(4), "the file's address is used");
    assert_eq!(
        status(&[], Some(address)),
        Some(0),
        "the environment wins over the file"
    );
    assert_eq!(
        status(&["--connect", "127.0.0.1:1"], Some(address)),
        Some(4),
        "the flag wins over both"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn up_restarts_what_dies_and_ends_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = Setup::new(&tiny_model(folder.path())).start().await;
    let before = service.pids().await;
    signal(before["decode-0"], "KILL");
    let begin = Instant::now();
    let after = loop {
        let pids = service.pids().await;
        if pids
            .get("decode-0")
            .is_some_and(|pid| *pid != before["decode-0"])
        {
            break pids;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "decode-0 was not restarted: {}",
            service.log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(
        service.log().contains("decode-0 ended: killed by signal 9"),
        "{}",
        service.log()
    );
    assert_eq!(after["prefill-0"], before["prefill-0"]);
    signal(service.pid(), "TERM");
    assert!(service.wait().success());
    for (name, pid) in after {
        assert!(!runs(pid), "{name} outlived its supervisor");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_supervisor_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let service: Service = Setup::new(&tiny_model(folder.path())).start().await;
    let pids = service.pids().await;
    signal(service.pid(), "KILL");
    for (name, pid) in pids {
        wait_until(&format!("the end of {name}"), || !runs(pid));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bench_serve_reports_every_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let connect = service.address.as_str();
    let bench = |arguments: &[&str]| {
        let mut all = vec!["bench", "serve", "--connect", connect, "--format", "json"];
        all.extend(arguments);
        let output = baton(&all);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_str::<Value>(&stdout(&output)).expect("JSON")
    };
    for arrivals in [["--concurrency", "3"], ["--rate", "200"]] {
        let report = bench(
            &[
                &[
                    "--requests",
                    "12",
                    "--prompt-tokens",
                    "8-40",
                    "--output-tokens",
                    "5",
                ],
                &arrivals[..],
            ]
            .concat(),
        );
        let requests = &report["requests"];
        assert_eq!(
            (&requests["requests"], &requests["failed"]),
            (&12.into(), &0.into()),
            "{report}"
        );
        assert_eq!(requests["output_tokens"], 60);
        assert_eq!(
            requests["itl_ms"]["count"], 48,
            "every gap of every request: {report}"
        );
    }
    let report = bench(&[
        "--steady",
        "2",
        "--inject",
        "10",
        "--duration",
        "1",
        "--inject-prompt-tokens",
        "100-200",
    ]);
    assert!(
        report["steady"]["output_tokens"].as_u64().expect("a count") > 10,
        "{report}"
    );
    assert!(
        report["injected"]["requests"].as_u64().expect("a count") >= 8,
        "{report}"
    );
    service.assert_idle().await;
}
