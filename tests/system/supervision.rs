//! `baton up` as a supervisor: what dies is told and started again, and nothing outlives it.

use std::time::{Duration, Instant};

use crate::client::Client;
use crate::models::{endless, tiny_model, tiny_prompt};
use crate::process::{PATIENCE, runs, signal};
use crate::service::{Service, Setup};

/// Waits until a process of this name is another one than before.
async fn replaced(service: &Service, name: &str, before: u32) {
    let begin = Instant::now();
    loop {
        if service
            .pids()
            .await
            .get(name)
            .is_some_and(|pid| *pid != before)
        {
            return;
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "{name} was not restarted: {}",
            service.process.log()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn up_restarts_what_dies_and_ends_everything() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut service = Setup::new(&tiny_model(folder.path())).start().await;
    let request = endless(tiny_prompt(1, 300), 10);
    let expected = service.generate(request.clone()).await.expect("an answer");
    let before = service.pids().await;
    for name in ["decode-0", "prefill-0"] {
        let pid = service.pids().await[name];
        signal(pid, "KILL");
        replaced(&service, name, pid).await;
        let log = service.process.log();
        let told = format!("{name} ended: killed by signal 9");
        assert!(log.contains(&told), "{log}");
        for _ in 0..3 {
            let answer = service.generate(request.clone()).await.expect("an answer");
            assert_eq!(answer.choices, expected.choices);
        }
    }
    let router = service.status().await.router.expect("router").pid;
    signal(router, "KILL");
    let begin = Instant::now();
    let client = loop {
        if let Some((client, status)) = Client::try_connect(&service.address).await
            && status.router.expect("router").pid != router
        {
            break client;
        }
        assert!(begin.elapsed() < PATIENCE, "{}", service.process.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    client.until_ready(2).await;
    let answer = client.generate(request).await.expect("an answer");
    assert_eq!(answer.choices, expected.choices);
    client.assert_idle().await;

    let after = client.pids().await;
    assert!(after.iter().all(|(name, pid)| before[name] != *pid));
    service.process.signal("TERM");
    assert!(service.process.wait().success());
    for (name, pid) in after {
        assert!(!runs(pid), "{name} outlived its supervisor");
    }
}

/// As a package's upgrade does while the service runs.
#[tokio::test(flavor = "multi_thread")]
async fn children_are_restarted_though_the_programs_file_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("baton");
    let built = env!("CARGO_BIN_EXE_baton");
    std::fs::hard_link(built, &program)
        .or_else(|_| std::fs::copy(built, &program).map(|_| ()))
        .expect("the program's file");
    let setup = Setup::new(&tiny_model(folder.path())).program(&program);
    let service = setup.start().await;
    let request = endless(tiny_prompt(1, 40), 5);
    let expected = service.generate(request.clone()).await.expect("an answer");
    std::fs::remove_file(&program).expect("a file");
    let pid = service.pids().await["decode-0"];
    signal(pid, "KILL");
    replaced(&service, "decode-0", pid).await;
    let answer = service.generate(request).await.expect("an answer");
    assert_eq!(answer.choices, expected.choices);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_supervisor_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let mut pids = service.pids().await;
    let router = service.status().await.router.expect("router").pid;
    pids.insert("router".into(), router);
    service.process.signal("KILL");
    let begin = Instant::now();
    for (name, pid) in pids {
        while runs(pid) {
            assert!(begin.elapsed() < PATIENCE, "{name} goes on");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
