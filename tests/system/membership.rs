//! Routers with a fixed list of workers, and workers that wait to be found.

use std::time::Duration;

use tonic::Code;

use crate::client::Client;
use crate::models::{endless, tiny_model, tiny_prompt};
use crate::process::Process;
use crate::service::Roles;

#[tokio::test(flavor = "multi_thread")]
async fn a_router_finds_the_workers_of_a_static_list() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    let worker = |role: &str, id: &str, listen: &str| {
        roles.role(
            role,
            &["--worker-id", id, "--listen", listen, "--threads", "1"],
        )
    };
    // Nobody registers: without a router a worker is ready once it has loaded.
    let mut decode = worker("decode", "first", "127.0.0.1:0");
    let prefill = worker("prefill", "second", "127.0.0.1:0");
    let list = folder.path().join("workers.toml");
    let [a, b] = [&decode, &prefill].map(Process::address);
    std::fs::write(&list, format!("workers = [\"{a}\", \"{b}\"]\n")).expect("writable");
    let membership = format!("static:{}", list.display());
    let router = roles.router(&["--membership", &membership]);
    let client = Client::connect(router.address()).await;
    client.until_ready(2).await;
    let request = endless(tiny_prompt(1, 300), 8);
    let before = client.generate(request.clone()).await.expect("an answer");
    assert_eq!(before.workers(), ("second", "first"));
    client.assert_idle().await;

    // Gone, and found again at its address.
    let address = decode.address().to_owned();
    decode.signal("KILL");
    decode.wait();
    client.until_ready(1).await;
    let refused = client
        .generate(request.clone())
        .await
        .expect_err("nobody decodes");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    decode = worker("decode", "first", &address);
    client.until_ready(2).await;
    let after = client.generate(request).await.expect("an answer");
    assert_eq!(after.choices, before.choices);
    client.assert_idle().await;
    drop(decode);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_another_model_registers_but_gets_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    let router = roles.router(&[]);
    let other = tempfile::tempdir().expect("a folder");
    let model = crate::models::slow_model(other.path())
        .display()
        .to_string();
    let _decode = roles.worker("decode", &router, &[]);
    // It never gets ready, so it is not started by `worker`.
    let mut stranger = std::process::Command::new(env!("CARGO_BIN_EXE_baton"))
        .args(["decode", "--model", &model, "--worker-id", "stranger"])
        .args(["--router", router.address()])
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("the binary starts");
    let client = Client::connect(router.address()).await;
    let begin = std::time::Instant::now();
    let state = loop {
        let workers = client.status().await.workers;
        let found = workers.into_iter().find(|worker| {
            worker
                .info
                .as_ref()
                .is_some_and(|info| info.worker_id == "stranger")
        });
        if let Some(worker) = found {
            break worker.state;
        }
        assert!(begin.elapsed() < crate::process::PATIENCE, "it never came");
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(
        state.starts_with("incompatible") && state.contains("metadata_digest"),
        "{state}"
    );
    for seed in 0..4 {
        let answer = client.generate(endless(tiny_prompt(seed, 100), 4)).await;
        assert_eq!(answer.expect("an answer").workers().1, "decode-0");
    }
    crate::process::signal(stranger.id(), "TERM");
    stranger.wait().expect("it ends");
    client.assert_idle().await;
}
