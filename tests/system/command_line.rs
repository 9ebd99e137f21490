//! What the command line promises of output: text, JSON, where values come from, the load generator.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::models::{default_model, tiny_model};
use crate::process::{Ended, baton, baton_with};
use crate::service::Setup;

/// One JSON object per line.
fn events(ended: &Ended) -> Vec<Value> {
    let lines = ended.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON per line"))
        .collect()
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
        "What is the capital of France? Answer in one sentence.",
        "--max-tokens",
        "32",
    ]);
    assert_eq!(text.code, Some(0), "{text:?}");
    assert_eq!(text.stdout, "The capital of France is Paris.\n");

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
    assert_eq!(json.code, Some(0), "{json:?}");
    let events = events(&json);
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
    let status: Value = serde_json::from_str(&status.stdout).expect("JSON");
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

/// Runs `baton` while nobody reads its standard output any more.
fn unread(arguments: &[&str]) -> Ended {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer)
        .output()
        .expect("baton starts");
    Ended {
        code: ended.status.code(),
        stdout: String::new(),
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_end_quietly_when_nobody_reads_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let connect = ["--connect", service.address.as_str()];
    let prompt = ["--token-ids", "1,2,3", "--max-tokens", "4", "--ignore-eos"];
    let generate = [&["generate"][..], &connect, &prompt].concat();
    let json = ["--format", "json"];
    for arguments in [
        generate.clone(),
        [&generate[..], &["--n", "2"]].concat(),
        [&generate[..], &json].concat(),
        [&["status"][..], &connect].concat(),
        [&["status"][..], &connect, &json].concat(),
        [&["health"][..], &connect].concat(),
        [&["bench", "serve", "--requests", "1"][..], &connect].concat(),
    ] {
        let ended = unread(&arguments);
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        for words in ["panicked", "pipe", "cannot write"] {
            assert!(!ended.stderr.contains(words), "{arguments:?}: {ended:?}");
        }
    }
    service.assert_idle().await;
    assert_eq!(unread(&["keys", "new", "x"]).code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn smp_10_log_probabilities_are_finite_numbers_in_valid_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    // The tiny model answers with lone bytes too, of which many are no UTF-8.
    let ended = baton(&[
        "generate",
        "--connect",
        &service.address,
        "--token-ids",
        "20,30,40",
        "--top-k",
        "1",
        "--temperature",
        "1",
        "--logprobs",
        "5",
        "--max-tokens",
        "40",
        "--n",
        "2",
        "--seed",
        "1",
        "--ignore-eos",
        "--format",
        "json",
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let mut positions = 0;
    for event in events(&ended)
        .iter()
        .filter(|event| event["event"] == "token")
    {
        for logprobs in event["logprobs"].as_array().expect("logprobs") {
            let chosen = logprobs["logprob"].as_f64().expect("a number");
            assert!(chosen.is_finite() && chosen <= 0.0, "{logprobs}");
            let top = logprobs["top"].as_array().expect("alternatives");
            assert_eq!(top.len(), 5);
            let values: Vec<f64> = top
                .iter()
                .map(|one| one["logprob"].as_f64().expect("a number"))
                .collect();
            assert!(
                values
                    .iter()
                    .all(|value| value.is_finite() && *value <= 0.0)
            );
            assert!(values.is_sorted_by(|a, b| a >= b), "{values:?}");
            // The only token that top_k leaves is the most likely one.
            assert!((values[0] - chosen).abs() < 1e-9, "{logprobs}");
            for one in top {
                let bytes = one["bytes"].as_array().expect("bytes");
                let bytes: Vec<u8> = bytes
                    .iter()
                    .map(|byte| u8::try_from(byte.as_u64().expect("a byte")).expect("a byte"))
                    .collect();
                assert_eq!(one["text"], String::from_utf8_lossy(&bytes).as_ref());
            }
            positions += 1;
        }
    }
    assert_eq!(positions, 80);
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_come_from_flags_then_environment_then_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let config = folder.path().join("baton.toml");
    std::fs::write(&config, "[status]\nconnect = \"127.0.0.1:1\"\n").expect("writable");
    let config = config.to_str().expect("a path");
    let status = |extra: &[&str], variable: Option<&str>| {
        let arguments = [&["status", "--config", config], extra].concat();
        let variable = variable.map(|value| ("BATON_CONNECT", value));
        baton_with(&arguments, variable.as_slice()).code
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
    service.assert_idle().await;
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
        assert_eq!(output.code, Some(0), "{output:?}");
        serde_json::from_str::<Value>(&output.stdout).expect("JSON")
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

#[tokio::test(flavor = "multi_thread")]
async fn bench_serve_compares_rounds_and_draws_every_gap() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let file = |name: &str| folder.path().join(name).display().to_string();
    let (gaps, plot) = (file("gaps.csv"), file("gaps.svg"));
    let ended = baton(&[
        "bench",
        "serve",
        "--connect",
        &service.address,
        "--format",
        "json",
        "--steady",
        "2",
        "--inject",
        "5",
        "--rounds",
        "2",
        "--duration",
        "0.8",
        "--seed",
        "7",
        "--inject-prompt-tokens",
        "100-200",
        "--gaps",
        &gaps,
        "--plot",
        &plot,
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let report: Value = serde_json::from_str(&ended.stdout).expect("JSON");
    let halves: Vec<_> = report["runs"]
        .as_array()
        .expect("runs")
        .iter()
        .map(|run| (run["round"].as_u64(), run["disturbed"].as_bool()))
        .collect();
    let half = |round, disturbed| (Some(round), Some(disturbed));
    assert_eq!(
        halves,
        [half(1, false), half(1, true), half(2, false), half(2, true)]
    );
    let summary = &report["summary"];
    for kind in ["alone", "disturbed"] {
        assert!(
            summary["steady_tok_s"][kind].as_f64() > Some(0.0),
            "{summary}"
        );
        assert!(
            summary["itl_ms"][kind]["max"].as_f64() > Some(0.0),
            "{summary}"
        );
    }
    assert!(
        summary["injected_ttft_ms"]["count"].as_u64() >= Some(4),
        "{summary}"
    );

    let gaps = std::fs::read_to_string(gaps).expect("written");
    let steady = |disturbed: bool| {
        let ends = |line: &&str| {
            let fields: Vec<&str> = line.split(',').collect();
            fields[3] == "true" && fields[5] == disturbed.to_string()
        };
        gaps.lines().skip(1).filter(ends).count() as u64
    };
    for (kind, disturbed) in [("alone", false), ("disturbed", true)] {
        assert_eq!(
            summary["itl_ms"][kind]["count"].as_u64(),
            Some(steady(disturbed))
        );
    }
    let drawn = std::fs::read_to_string(plot).expect("drawn");
    for part in [
        ">Alone<",
        ">With injected prompts<",
        "a prompt is injected",
        "</svg>",
    ] {
        assert!(drawn.contains(part), "no {part:?} in the plot");
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_of_a_prompt_are_printed_before_its_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let ids: Vec<u32> = (0..200).map(|at| 10 + at % 190).collect();
    let listed: Vec<String> = ids.iter().map(ToString::to_string).collect();
    let ended = baton(&[
        "generate",
        "--connect",
        &service.address,
        "--token-ids",
        &listed.join(","),
        "--prompt-logprobs",
        "3",
        "--max-tokens",
        "2",
        "--ignore-eos",
        "--format",
        "json",
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let events = events(&ended);
    let is_prompt = |event: &&Value| event["event"] == "prompt";
    let prompt: Vec<_> = events.iter().take_while(is_prompt).collect();
    assert_eq!(events.iter().filter(is_prompt).count(), prompt.len());
    let mut next = 1;
    for event in prompt {
        assert_eq!(event["position"], next);
        let logprobs = event["logprobs"].as_array().expect("logprobs");
        for (entry, id) in logprobs
            .iter()
            .zip(event["token_ids"].as_array().expect("ids"))
        {
            assert_eq!(*id, ids[next]);
            assert!(entry["logprob"].as_f64().expect("a number") <= 0.0);
            assert_eq!(entry["top"].as_array().expect("alternatives").len(), 3);
            next += 1;
        }
    }
    assert_eq!(next, 200, "all but the first");
    service.assert_idle().await;
}
