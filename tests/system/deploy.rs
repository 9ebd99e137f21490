//! Everything in `deploy/`, checked without a cluster by `tests/deploy/`: kubectl builds every overlay, every
//! document keeps its schema, and what it says of Baton is asked of the shipped binary.

use std::process::Command;
use std::sync::OnceLock;

use crate::clients::tool;
use crate::models::tiny_model;
use crate::process::Turn;

/// Runs a script of `tests/deploy`; returns whether all was well, and what it printed.
fn script(name: &str) -> (bool, String) {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/");
    let output = Command::new(tool("python"))
        .arg("-B")
        .arg(format!("{script}{name}"))
        .args(["--baton", env!("CARGO_BIN_EXE_baton"), "--model"])
        .arg(tiny_model(folder.path()))
        .output()
        .expect("Python starts");
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.success(), format!("{out}{err}"))
}

/// What the checks have said, once for all tests.
fn checked() -> &'static (bool, String) {
    static CHECKED: OnceLock<(bool, String)> = OnceLock::new();
    CHECKED.get_or_init(|| script("check.py"))
}

/// Whether something was checked by each of these rules, and nothing found.
fn assert_hold(rules: &[&str]) {
    let (_, told) = checked();
    for rule in rules {
        assert!(told.contains(&format!("rule {rule}")), "{rule}: {told}");
        assert!(!told.contains(&format!("[{rule}")), "{told}");
    }
}

#[test]
fn everything_in_deploy_fits_the_binary_and_itself() {
    let (holds, told) = checked();
    assert!(holds, "{told}");
    assert_hold(&["schema", "flags", "ports", "network", "security", "metrics"]);
    assert_hold(&[
        "alerts",
        "dashboard",
        "image",
        "compose",
        "references",
        "manual",
    ]);
}

#[test]
fn k8s_01_02_pods_get_the_time_that_their_requests_need() {
    assert_hold(&["k8s_01", "k8s_02"]);
}

#[test]
fn k8s_03_roll_outs_wait_for_successors() {
    assert_hold(&["k8s_03"]);
}

#[test]
fn k8s_04_05_probes_ask_by_the_names_that_the_binary_has() {
    assert_hold(&["k8s_04", "k8s_05"]);
}

#[test]
fn what_is_broken_in_deploy_is_found() {
    let (holds, told) = script("broken.py");
    assert!(holds, "{told}");
}

#[test]
fn the_model_of_a_pod_is_fetched_once_and_checked() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/fetch.py");
    let fetched = Command::new(tool("python")).args(["-B", script]).output();
    let fetched = fetched.expect("Python starts");
    let told = String::from_utf8_lossy(&fetched.stderr);
    assert!(fetched.status.success(), "{told}");
}
