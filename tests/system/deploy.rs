//! Everything in `deploy/`, checked without a cluster by `tests/deploy/`: kubectl builds every overlay, every
//! document keeps its schema, and what it says of Baton is asked of the shipped binary.

use std::process::Command;

use crate::clients::tool;
use crate::models::tiny_model;
use crate::process::Turn;

/// Runs a script of `tests/deploy`; returns whether all was well, and what it printed.
fn script(name: &str, arguments: &[&str]) -> (bool, String) {
    let _turn = Turn::take();
    let folder = tempfile::tempdir().expect("a folder");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/deploy/");
    let output = Command::new(tool("python"))
        .arg("-B")
        .arg(format!("{script}{name}"))
        .args(["--baton", env!("CARGO_BIN_EXE_baton"), "--model"])
        .arg(tiny_model(folder.path()))
        .args(arguments)
        .output()
        .expect("Python starts");
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    (output.status.success(), format!("{out}{err}"))
}

fn assert_holds(rule: &str) {
    let (holds, told) = script("check.py", &["--only", rule]);
    assert!(holds, "{told}");
}

#[test]
fn everything_in_deploy_fits_the_binary_and_itself() {
    let (holds, told) = script("check.py", &[]);
    assert!(holds, "{told}");
}

#[test]
fn k8s_01_02_pods_get_the_time_that_their_requests_need() {
    assert_holds("k8s_01");
    assert_holds("k8s_02");
}

#[test]
fn k8s_03_roll_outs_wait_for_successors() {
    assert_holds("k8s_03");
}

#[test]
fn k8s_04_05_probes_ask_by_the_names_that_the_binary_has() {
    assert_holds("k8s_04");
    assert_holds("k8s_05");
}

#[test]
fn what_is_broken_in_deploy_is_found() {
    let (holds, told) = script("broken.py", &[]);
    assert!(holds, "{told}");
}
