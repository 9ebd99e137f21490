//! `baton bench engine`: its figures' names, what it leaves out, what it refuses.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::models::tiny_model;
use crate::process::{Ended, assert_refused, baton, baton_with};

fn json(ended: &Ended) -> Value {
    assert_eq!(ended.code, Some(0), "{ended:?}");
    serde_json::from_str(&ended.stdout).expect("nothing but JSON on standard output")
}

fn positive(value: &Value) -> bool {
    value.as_f64().is_some_and(|value| value > 0.0)
}

#[test]
fn figures_have_the_documented_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let ended = baton(&[
        "bench",
        "engine",
        "--model",
        &model,
        "--threads",
        "2",
        "--rounds",
        "1",
        "--json",
    ]);
    let report = json(&ended);
    let of = |part: &str, key: &str| -> Vec<u64> {
        let entries = report[part].as_array().expect("a list");
        entries
            .iter()
            .map(|entry| entry[key].as_u64().expect("a count"))
            .collect()
    };
    assert_eq!(of("prefill", "tokens"), [128, 512, 2048]);
    assert_eq!(of("decode", "streams"), [1, 2, 4, 8, 16, 32]);
    assert_eq!(of("decode", "context"), [256; 6]);
    let left_out = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with("left out: "))
        .count();
    assert_eq!(
        left_out, 6,
        "2,048 tokens of context cannot grow here: {}",
        ended.stderr
    );
    for part in ["prefill", "decode"] {
        for entry in report[part].as_array().expect("a list") {
            for key in ["tok_s", "share_of_ceiling", "limit_tok_s"] {
                assert!(positive(&entry[key]), "{key}: {entry}");
            }
            assert!(
                entry["vs_same_file"].is_null(),
                "no ratio without a peer: {entry}"
            );
        }
    }
    for entry in report["prefill"].as_array().expect("a list") {
        assert!(positive(&entry["products_share_of_ceiling"]), "{entry}");
    }
    for key in ["f32_gflop_s", "bf16_gflop_s", "int8_gop_s"] {
        assert!(positive(&report["ceilings"][key]), "{key}: {report}");
    }
    for mib in [16, 96, 512] {
        assert!(
            positive(&report["ceilings"][format!("read_{mib}_mib_gb_s")]),
            "{report}"
        );
    }
    for key in [
        "rss_mb",
        "kv_mb",
        "load_ms",
        "weights_file_mb",
        "rss_without_kv_of_file",
    ] {
        assert!(positive(&report[key]), "{key}: {report}");
    }
    assert_eq!(
        (&report["threads"], &report["rounds"]),
        (&2.into(), &1.into())
    );
}

#[test]
fn a_part_alone_is_told_as_text() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let plot = folder.path().join("plot.svg").display().to_string();
    let ended = baton(&[
        "bench",
        "engine",
        "--model",
        &model,
        "--threads",
        "1",
        "--rounds",
        "1",
        "--only",
        "prefill",
        "--plot",
        &plot,
    ]);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let drawn = std::fs::read_to_string(&plot).expect("it was drawn");
    for part in [
        "<svg ",
        ">Prefill<",
        ">2,048<",
        "tiny.gguf, 1 thread,",
        "</svg>",
    ] {
        assert!(drawn.contains(part), "no {part:?} in {drawn}");
    }
    assert!(!drawn.contains("Decode"), "{drawn}");
    for part in [
        "tiny.gguf",
        "1 threads",
        "ceilings: f32",
        "\nprefill",
        "2048 tokens",
        "KV pages",
    ] {
        assert!(
            ended.stdout.contains(part),
            "no {part:?} in {}",
            ended.stdout
        );
    }
    assert!(!ended.stdout.contains("\ndecode"), "{}", ended.stdout);
}

#[test]
fn wrong_arguments_are_refused_by_value_and_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let bench = ["bench", "engine"];
    assert_refused(&bench, 2, &["--model", "GGUF"]);
    for (flags, parts) in [
        (["--rounds", "0"], ["--rounds", "1 to 1000"]),
        (["--rounds", "1001"], ["--rounds", "1001"]),
        (["--threads", "0"], ["--threads", "1..=256"]),
        (["--threads", "257"], ["--threads", "257"]),
        (["--only", "sleep"], ["--only", "prefill"]),
        (["--kv-dtype", "int3"], ["--kv-dtype", "bf16"]),
    ] {
        let arguments = [&bench[..], &["--model", &model], &flags].concat();
        assert_refused(&arguments, 2, &parts);
    }
    let nowhere = folder.path().join("none/plot.svg").display().to_string();
    let arguments = [&bench[..], &["--model", &model, "--plot", &nowhere]].concat();
    assert_refused(&arguments, 2, &["none/plot.svg"]);
    let missing = folder.path().join("none.gguf").display().to_string();
    assert_refused(
        &[&bench[..], &["--model", &missing]].concat(),
        1,
        &["none.gguf"],
    );
    assert_refused(
        &[&bench[..], &["--model", "/dev/zero"]].concat(),
        1,
        &["/dev/zero"],
    );
}

/// A peer in the place of a Python with llama.cpp: it answers with a fixed speed for each form of the model
/// and writes down what it was asked.
struct FakePeer {
    folder: tempfile::TempDir,
    model: String,
}

impl FakePeer {
    /// `convert` and `work` are what it does when asked to, as shell commands.
    fn new(convert: &str, work: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let model = tiny_model(folder.path()).display().to_string();
        let script = format!(
            r#"#!/bin/sh
# -c SCRIPT convert MODEL FORMAT OUT, or -c SCRIPT serve MODEL --threads N
if [ "$3" = convert ]; then {convert}; exit; fi
case "$4" in *.Q4_0.gguf) name=Q4_0 rate=200;; *.BF16.gguf) name=BF16 rate=50;; *) name=file rate=100;; esac
echo '{{"ready": "fake 1.0"}}'
while read -r line; do echo "$name $6 $line" >> "$0.log"; {work}; done
"#
        );
        let python = folder.path().join("python");
        std::fs::write(&python, script).expect("writable");
        std::fs::set_permissions(&python, std::fs::Permissions::from_mode(0o755)).expect("ours");
        Self { folder, model }
    }

    fn python(&self) -> PathBuf {
        self.folder.path().join("python")
    }

    fn bench(&self, more: &[&str]) -> Ended {
        let python = self.python().display().to_string();
        let cache = self.folder.path().display().to_string();
        let arguments = [
            "bench",
            "engine",
            "--model",
            &self.model,
            "--threads",
            "2",
            "--peer",
            "llama.cpp",
        ];
        let environment = [
            ("BATON_PEER_PYTHON", python.as_str()),
            ("BATON_CACHE", &cache),
        ];
        baton_with(&[&arguments[..], more].concat(), &environment)
    }

    fn log(&self) -> Vec<String> {
        let text =
            std::fs::read_to_string(self.python().with_extension("log")).expect("it was asked");
        text.lines().map(str::to_owned).collect()
    }
}

const CONVERTS: &str = r#"echo "$5" > "$6"; echo '{"converted": "yes"}'"#;
const WORKS: &str = r#"echo "{\"tok_s\": $rate}""#;

#[test]
fn a_peer_takes_turns_and_ratios_are_of_its_best_form() {
    let peer = FakePeer::new(CONVERTS, WORKS);
    let report = json(&peer.bench(&["--rounds", "2", "--only", "prefill", "--json"]));
    assert_eq!(report["peer"], "fake 1.0");
    for entry in report["prefill"].as_array().expect("a list") {
        let number = |key: &str| entry[key].as_f64().expect("a number");
        let ours = number("tok_s");
        assert_eq!(
            entry["peer_tok_s"],
            serde_json::json!({"as shipped": 100.0, "Q4_0": 200.0, "BF16": 50.0})
        );
        assert_eq!(entry["best_format"], "Q4_0");
        // The peer's speed never varies, so ratios of rounds are the rounds' speeds.
        assert!(
            (number("vs_same_file") / (ours / 100.0) - 1.0).abs() < 1e-9,
            "{entry}"
        );
        assert!(
            (number("vs_best_format") / (ours / 200.0) - 1.0).abs() < 1e-9,
            "{entry}"
        );
    }
    let round = [128, 512, 2048].into_iter().flat_map(|tokens| {
        ["file", "Q4_0", "BF16"]
            .map(|form| format!(r#"{form} 2 {{"prefill":{{"tokens":{tokens}}}}}"#))
    });
    let round: Vec<String> = round.collect();
    assert_eq!(
        peer.log(),
        [&round[..], &round].concat(),
        "forms take turns within each work"
    );

    let again = peer.bench(&["--rounds", "1", "--only", "prefill"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert!(
        !again.stderr.contains("converting"),
        "conversions are kept: {}",
        again.stderr
    );
    for part in [
        "peer: fake 1.0",
        "peer file",
        "peer Q4_0",
        "same file",
        "best",
    ] {
        assert!(
            again.stdout.contains(part),
            "no {part:?} in {}",
            again.stdout
        );
    }
}

#[test]
fn a_form_that_the_peer_cannot_make_is_left_out() {
    let convert =
        format!(r#"if [ "$5" = BF16 ]; then echo '{{"error": "no room"}}'; else {CONVERTS}; fi"#);
    let peer = FakePeer::new(&convert, WORKS);
    let ended = peer.bench(&["--rounds", "1", "--only", "decode", "--json"]);
    let report = json(&ended);
    assert!(
        ended.stderr.contains("BF16") && ended.stderr.contains("no room"),
        "{}",
        ended.stderr
    );
    let entry = &report["decode"][0];
    assert_eq!(
        entry["peer_tok_s"],
        serde_json::json!({"as shipped": 100.0, "Q4_0": 200.0})
    );
    assert_eq!(
        peer.log()[0],
        r#"file 2 {"decode":{"context":256,"steps":16,"streams":1}}"#
    );
}

#[test]
fn a_peer_that_fails_ends_the_run_with_its_reason() {
    for (work, reason) in [
        (
            r#"echo '{"error": "out of cells"}'; exit 1"#,
            "fake 1.0: out of cells",
        ),
        ("exit 1", "ended without an answer"),
        ("echo nonsense", "answered \"nonsense\""),
        (r#"echo '{"tok_s": 0}'"#, "answered"),
    ] {
        let ended = FakePeer::new(CONVERTS, work).bench(&["--rounds", "1", "--only", "prefill"]);
        assert_eq!(ended.code, Some(1), "{work}: {ended:?}");
        assert!(
            ended.stderr.contains(reason) && ended.stdout.is_empty(),
            "{work}: {ended:?}"
        );
    }
}

#[test]
fn a_missing_peer_says_what_makes_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path()).display().to_string();
    let bench = ["bench", "engine", "--model", &model, "--peer", "llama.cpp"];
    let cache = folder.path().display().to_string();
    let ended = baton_with(&bench, &[("BATON_CACHE", &cache)]);
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let place = Path::new(&cache)
        .join("peers/bin/python")
        .display()
        .to_string();
    for part in ["make bench-peers", "--peer-python", &place] {
        assert!(
            ended.stderr.contains(part),
            "no {part:?} in {}",
            ended.stderr
        );
    }
    assert_refused(
        &["bench", "engine", "--model", &model, "--peer", "abacus"],
        2,
        &["abacus", "llama.cpp"],
    );
}
