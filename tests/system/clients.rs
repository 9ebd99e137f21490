//! Clients from outside: grpcurl through reflection, and a generated Python client.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::models::default_model;
use crate::service::Setup;

/// A program of the virtual environment that `make test` has set up.
pub(crate) fn tool(name: &str) -> PathBuf {
    let venv = std::env::var_os("BATON_VENV").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/baton/venv"),
        PathBuf::from,
    );
    let path = venv.join("bin").join(name);
    assert!(
        path.exists(),
        "{} is missing; `make test` installs it",
        path.display()
    );
    path
}

fn run(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .expect("the program starts");
    let [out, err] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(
        output.status.success(),
        "{} {arguments:?}: {}\n{out}\n{err}",
        program.display(),
        output.status
    );
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn grpcurl_lists_describes_and_calls_through_reflection() {
    let service = Setup::new(&default_model()).start().await;
    let grpcurl = tool("grpcurl");
    let services = run(&grpcurl, &["-plaintext", &service.address, "list"]);
    for name in [
        "baton.v1.InferenceService",
        "baton.v1.AdminService",
        "grpc.health.v1.Health",
    ] {
        assert!(
            services.lines().any(|line| line == name),
            "{name} is not in {services}"
        );
    }
    let described = run(
        &grpcurl,
        &[
            "-plaintext",
            &service.address,
            "describe",
            "baton.v1.InferenceService",
        ],
    );
    assert!(described.contains("rpc Generate"), "{described}");
    let data =
        r#"{"prompt":"The capital of France is","sampling":{"temperature":0,"maxTokens":4}}"#;
    let call = [
        "-plaintext",
        "-d",
        data,
        &service.address,
        "baton.v1.InferenceService/Generate",
    ];
    let answer = run(&grpcurl, &call);
    assert!(
        answer.contains("Paris") && answer.contains("\"receipt\""),
        "{answer}"
    );
    // Workers answer reflection and health too.
    for worker in service.status().await.workers {
        let address = worker.info.expect("info").address;
        let services = run(&grpcurl, &["-plaintext", &address, "list"]);
        assert!(services.contains("baton.v1.WorkerService"), "{services}");
        let ready = [
            "-plaintext",
            "-d",
            r#"{"service":"ready"}"#,
            &address,
            "grpc.health.v1.Health/Check",
        ];
        assert!(run(&grpcurl, &ready).contains("SERVING"));
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_generated_python_client_streams() {
    let service = Setup::new(&default_model()).start().await;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python/client.py");
    let script = script.to_str().expect("a readable path");
    let answer = run(
        &tool("python"),
        &[script, "--check", "--connect", &service.address],
    );
    assert!(answer.contains("Paris"), "{answer}");
    service.assert_idle().await;
}
