//! Faults on real processes: killed workers, callers that leave, slow readers, garbage on every port, pools
//! that are too small. Every test ends with conserved ledgers on what survives.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use baton_model_file::fixtures::Random;
use baton_proto::v1::{PageLedger, WorkerRole};
use tonic::Code;

use crate::service::{Answer, PATIENCE, Service, Setup, by_ids, default_model, signal, tiny_model};

/// Whether the loops run in full.
fn soak() -> bool {
    std::env::var_os("BATON_SOAK").is_some()
}

fn prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..length)
        .map(|_| 1000 + random.below(30_000) as u32)
        .collect()
}

fn tiny_prompt(seed: u64, length: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..length).map(|_| random.below(256) as u32).collect()
}

/// Waits until the pages of some worker of this role look as wanted; gives its name and process id.
async fn when(
    service: &Service,
    role: WorkerRole,
    wanted: impl Fn(&PageLedger) -> bool,
) -> (String, u32) {
    let begin = Instant::now();
    loop {
        for worker in service.status().await.workers {
            let (Some(info), Some(load)) = (worker.info, worker.load) else {
                continue;
            };
            if info.role() == role && load.pages.as_ref().is_some_and(&wanted) {
                return (info.worker_id, info.pid);
            }
        }
        assert!(
            begin.elapsed() < PATIENCE,
            "no {role:?} worker came into the wanted state"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn with_faults(
    service: &Service,
    prompt: &[u32],
    fault: impl AsyncFnOnce(),
) -> Result<Answer, tonic::Status> {
    let (answer, ()) = tokio::join!(service.generate(by_ids(prompt.to_vec(), 12)), fault());
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_07_a_prefill_worker_killed_while_computing_costs_no_token() {
    let prompt = prompt(7, 1800);
    let service = Setup::new(&default_model())
        .flag("--prefill", 2)
        .start()
        .await;
    let expected = service
        .generate(by_ids(prompt.clone(), 12))
        .await
        .expect("undisturbed");
    let mut salted = prompt.clone();
    salted[0] += 1;
    let reference = service
        .generate(by_ids(salted.clone(), 12))
        .await
        .expect("undisturbed");
    drop(service);

    let service = Setup::new(&default_model())
        .flag("--prefill", 2)
        .start()
        .await;
    let answer = with_faults(&service, &prompt, async || {
        when(&service, WorkerRole::Decode, |pages| pages.granted > 0).await;
        let (_, pid) = when(&service, WorkerRole::Prefill, |pages| pages.live > 0).await;
        signal(pid, "KILL");
    })
    .await
    .expect("the other prefill worker computes it");
    assert_eq!(answer.choices, expected.choices);
    let attempts = &answer.receipt().attempts;
    assert!(
        attempts.len() >= 2 && !attempts[0].failure.is_empty(),
        "{attempts:?}"
    );
    let after = service
        .generate(by_ids(salted, 12))
        .await
        .expect("an answer");
    assert_eq!(after.choices, reference.choices);
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_any_prefill_worker_the_decode_worker_prefills() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--prefill", 0)
        .start()
        .await;
    let answer = service
        .generate(by_ids(tiny_prompt(1, 300), 8))
        .await
        .expect("an answer");
    let attempt = answer
        .receipt()
        .attempts
        .last()
        .expect("an attempt")
        .clone();
    assert_eq!(attempt.prefill_worker, "");
    assert!(attempt.reason.contains("prefill"), "{attempt:?}");
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_killed_before_landing_costs_no_token() {
    let prompt = prompt(8, 1800);
    let service = Setup::new(&default_model())
        .flag("--decode", 2)
        .start()
        .await;
    let expected = service
        .generate(by_ids(prompt.clone(), 12))
        .await
        .expect("undisturbed");
    drop(service);
    for transport in ["shm", "tcp"] {
        let service = Setup::new(&default_model())
            .flag("--decode", 2)
            .flag("--transport", transport)
            .start()
            .await;
        let answer = with_faults(&service, &prompt, async || {
            let (_, pid) = when(&service, WorkerRole::Decode, |pages| pages.granted > 0).await;
            signal(pid, "KILL");
        })
        .await
        .expect("the other decode worker gets the pages");
        assert_eq!(answer.choices, expected.choices, "{transport}");
        assert!(
            answer.receipt().attempts.len() >= 2,
            "{:?}",
            answer.receipt()
        );
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn str_04_a_decode_worker_killed_mid_stream_is_an_error_and_not_an_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let pids = service.pids().await;
    let mut request = by_ids(tiny_prompt(3, 100), 1500);
    request.sampling.as_mut().expect("sampling").ignore_eos = true;
    let mut events = service
        .inference()
        .generate(request)
        .await
        .expect("accepted")
        .into_inner();
    for _ in 0..5 {
        events.message().await.expect("a token").expect("a token");
    }
    signal(pids["decode-0"], "KILL");
    let end = async {
        loop {
            match events.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended as if it were complete"),
                Err(status) => return status,
            }
        }
    };
    let status = tokio::time::timeout(PATIENCE, end)
        .await
        .expect("an end in time");
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    when(&service, WorkerRole::Decode, |pages| pages.total > 0).await;
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_13_callers_that_leave_in_any_phase_leave_no_page_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    for transport in ["shm", "tcp"] {
        let service = Setup::new(&tiny_model(folder.path()))
            .flag("--transport", transport)
            .flag("--pages", 200)
            .start()
            .await;
        let seed = 99;
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let rounds = if soak() { 500 } else { 40 };
        for round in 0..rounds {
            let mut leaving = Vec::new();
            for _ in 0..6 {
                let mut request = by_ids(tiny_prompt(random.bits(), 1 + random.below(700)), 300);
                request.sampling.as_mut().expect("sampling").ignore_eos = true;
                request.sampling.as_mut().expect("sampling").n = Some(1 + random.below(3) as u32);
                // Some leave at once, some after so many microseconds, some after so many events.
                let patience = Duration::from_micros(random.below(40_000) as u64);
                let mut client = service.inference();
                leaving.push(async move {
                    let stay = async {
                        if let Ok(response) = client.generate(request).await {
                            let mut events = response.into_inner();
                            while let Ok(Some(_)) = events.message().await {}
                        }
                    };
                    let _ = tokio::time::timeout(patience, stay).await;
                });
            }
            futures::future::join_all(leaving).await;
            if round % 20 == 19 {
                service.assert_idle().await;
            }
        }
        let answer = service
            .generate(by_ids(tiny_prompt(5, 300), 20))
            .await
            .expect("still serving");
        assert!(!answer.ids().is_empty());
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_24_prefill_workers_that_die_never_take_the_decode_worker_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let decode = service.pids().await["decode-0"];
    let rounds = if soak() { 50 } else { 5 };
    for round in 0..rounds {
        let request = by_ids(tiny_prompt(round, 1500), 4);
        let pid = service.pids().await.get("prefill-0").copied();
        let kill = async {
            tokio::time::sleep(Duration::from_millis(round * 3 % 17)).await;
            if let Some(pid) = pid {
                signal(pid, "KILL");
            }
        };
        let (answer, ()) = tokio::join!(service.generate(request.clone()), kill);
        if let Err(status) = answer {
            assert!(matches!(status.code(), Code::Unavailable), "{status:?}");
        }
        let again = service
            .generate(request)
            .await
            .expect("with or without a prefill worker");
        assert_eq!(again.ids().len(), 4);
    }
    assert_eq!(
        service.pids().await["decode-0"],
        decode,
        "the decode worker must never have died"
    );
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn str_07_a_reader_that_stops_reading_slows_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let mut slow = by_ids(tiny_prompt(1, 80), 1900);
    slow.sampling.as_mut().expect("sampling").ignore_eos = true;
    // Held and never read: flow control must stop at this stream alone.
    let held = service
        .inference()
        .generate(slow)
        .await
        .expect("accepted")
        .into_inner();
    let calls = (0..16).map(|seed| service.generate(by_ids(tiny_prompt(seed, 120), 64)));
    for answer in futures::future::join_all(calls).await {
        answer.expect("fast readers finish");
    }
    drop(held);
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_01_what_can_never_fit_is_refused_and_blocks_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--pages", 8)
        .start()
        .await;
    let never = service.generate(by_ids(tiny_prompt(1, 200), 8));
    let growth = service.generate(by_ids(tiny_prompt(2, 100), 100));
    let short = futures::future::join_all(
        (0..3).map(|seed| service.generate(by_ids(tiny_prompt(seed, 10), 5))),
    );
    let (never, growth, short) = tokio::join!(never, growth, short);
    for (what, refused) in [("prompt", never), ("growth", growth)] {
        let status = refused.expect_err(what);
        assert!(
            matches!(
                status.code(),
                Code::InvalidArgument | Code::ResourceExhausted
            ),
            "{what}: {status:?}"
        );
        assert!(status.message().contains("pages"), "{what}: {status:?}");
    }
    for answer in short {
        answer.expect("short ones run");
    }
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_every_port_harms_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path()))
        .flag("--transport", "tcp")
        .start()
        .await;
    let request = by_ids(tiny_prompt(4, 200), 16);
    let expected = service
        .generate(request.clone())
        .await
        .expect("an answer")
        .choices;
    let mut pids = service.pids().await;
    pids.insert(
        "router".into(),
        service.status().await.router.expect("router").pid,
    );
    let seed = 4242;
    println!("seed {seed}");
    let mut random = Random::new(seed);
    for (name, pid) in &pids {
        for port in listening_ports(*pid) {
            for _ in 0..20 {
                let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                let bytes: Vec<u8> = (0..random.below(5000))
                    .map(|_| random.bits() as u8)
                    .collect();
                // The other side may close at any point.
                let _ = stream.write_all(&bytes);
                let _ = stream.set_read_timeout(Some(Duration::from_millis(10)));
                let _ = stream.read(&mut [0; 64]);
            }
            println!("{name}: port {port} took garbage");
        }
    }
    assert_eq!(
        service
            .generate(request)
            .await
            .expect("still serving")
            .choices,
        expected
    );
    let mut after = service.pids().await;
    after.insert(
        "router".into(),
        service.status().await.router.expect("router").pid,
    );
    assert_eq!(after, pids, "nobody died");
    service.assert_idle().await;
}

/// TCP ports on which a process listens, from /proc.
fn listening_ports(pid: u32) -> BTreeSet<u16> {
    let sockets: BTreeSet<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("a running process")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            Some(
                link.to_str()?
                    .strip_prefix("socket:[")?
                    .strip_suffix(']')?
                    .to_owned(),
            )
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("readable");
    let ports: BTreeSet<u16> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = *fields.get(3)? == "0A" && sockets.contains(*fields.get(9)?);
            let port = fields.get(1)?.rsplit_once(':')?.1;
            listens
                .then(|| u16::from_str_radix(port, 16).ok())
                .flatten()
        })
        .collect();
    assert!(!ports.is_empty(), "process {pid} listens nowhere");
    ports
}
