//! Seeds as `make test` runs them; that a seed replays; that a planted fault is seen.

use std::process::{Command, Output};

/// The seeds of every test run.
const SEEDS: u64 = 1000;

fn simulation(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_baton-simulation"))
        .args(arguments)
        .output()
        .expect("it starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_thousand_seeds_hold() {
    let output = simulation(&["seeds", "--count", &SEEDS.to_string()]);
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn a_seed_replays_to_the_same_event_log() {
    // The last two have etcd, and much happens to it.
    for seed in ["3", "17", "4242", "99991", "123", "193"] {
        let runs = [(); 3].map(|()| text(&simulation(&["one", seed, "--log"])));
        assert!(runs[0].lines().count() > 20, "seed {seed}: {}", runs[0]);
        assert_eq!(runs[0], runs[1], "seed {seed}");
        assert_eq!(runs[0], runs[2], "seed {seed}");
    }
}

#[test]
fn a_planted_fault_is_seen() {
    let tokens = " instead of ";
    for (planted, seen) in [
        ("generations", tokens),
        ("copies", tokens),
        ("company", tokens),
        ("repeats", tokens),
        ("positions", "wrong: "),
        ("grants", "granted: "),
        ("revisions", "is not listed once"),
        ("leases", "etcd: "),
        ("endless", "etcd: "),
    ] {
        // Some need a request that is resumed, which not every seed has.
        let mut runs = (0..400).step_by(40).map(|from| {
            let from = from.to_string();
            let seeds = ["--from", &from, "--count", "40", "--plant", planted];
            simulation(&[&["seeds"], &seeds[..]].concat())
        });
        let output = runs.find(|output| !output.status.success());
        let text = text(&output.unwrap_or_else(|| panic!("{planted} is not seen")));
        assert!(text.contains(seen), "{planted}: {text}");
    }
}
