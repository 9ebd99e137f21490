//! Who gets a request.

use std::collections::HashMap;
use std::time::Duration;

use baton_proto::domain::Fingerprint;
use tonic::Code;

use crate::fake::{Setup, endless, fingerprint};
use crate::harness::{Answer, Harness, by_ids, config, long, prompt_of, soon, status_of};

#[tokio::test]
async fn rte_04_a_burst_is_spread_over_equal_workers() {
    let harness = Harness::start(config()).await;
    let mut workers = Vec::new();
    for number in 0..8 {
        workers.push(
            harness
                .add(Setup::decode(&format!("decode-{number}"), endless()))
                .await,
        );
    }
    let calls: Vec<_> = (0..64)
        .map(|_| {
            let mut client = harness.client();
            tokio::spawn(async move { Answer::of(&mut client, by_ids(prompt_of(20), 30)).await })
        })
        .collect();
    let mut taken: HashMap<String, usize> = HashMap::new();
    for call in calls {
        let answer = call.await.unwrap().unwrap().whole();
        *taken
            .entry(answer.receipt().attempts[0].decode_worker.clone())
            .or_default() += 1;
    }
    assert!(taken.values().all(|&count| count <= 16), "{taken:?}");
}

#[tokio::test]
async fn xfr_11_unequal_workers_are_never_paired() {
    let harness = Harness::start(config()).await;
    let pages = Fingerprint {
        page_size: 32,
        ..fingerprint()
    };
    let other_pages = Setup {
        fingerprint: pages,
        ..Setup::prefill("prefill-pages", endless())
    };
    let numerics = Fingerprint {
        numerics: "other".into(),
        ..fingerprint()
    };
    let other_numerics = Setup {
        fingerprint: numerics,
        ..Setup::prefill("prefill-numerics", endless())
    };
    let prefills = [
        harness.add(other_pages).await,
        harness.add(other_numerics).await,
    ];
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    for _ in 0..5 {
        let answer = harness.generate(long(3)).await.unwrap().whole();
        let reason = &answer.receipt().attempts[0].reason;
        let nearest = ["page_size", "numerics"].map(|field| {
            format!("local: no prefill worker matches this decode worker (differs in: {field})")
        });
        assert!(nearest.contains(reason), "{reason}");
    }
    assert!(prefills.iter().all(|worker| worker.started() == 0));
}

#[tokio::test]
async fn xfr_11_workers_of_another_model_are_listed_and_not_used() {
    let harness = Harness::start(config()).await;
    let model = Fingerprint {
        metadata_digest: [9; 32],
        tokenizer_digest: [9; 32],
        ..fingerprint()
    };
    let stranger = Setup {
        fingerprint: model,
        ..Setup::decode("decode-0", endless())
    };
    let stranger = harness.add(stranger).await;
    let state = harness.list().await.workers[0].state.clone();
    assert_eq!(state, "incompatible: metadata_digest, tokenizer_digest");
    let status = status_of(harness.generate(long(3)).await);
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(stranger.started(), 0);
}

#[tokio::test]
async fn rte_08_old_and_absurd_loads_do_not_remove_the_last_worker() {
    let harness = Harness::start(config()).await;
    let decode = harness.add(Setup::decode("decode-0", endless())).await;
    // Absurd: refused and counted, the last good report stays.
    decode.report(|load| load.pages.free = 1_000_000);
    soon("it is counted", async {
        while harness.counter("loads_refused").await == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // No good report comes any more; some seconds later the load counts as unknown.
    soon("it is old", async {
        while harness.list().await.workers[0].load_age_ms < 3100 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
    harness.generate(long(3)).await.unwrap().whole();
    // Beside one whose load is known it is the second choice.
    let fresh = harness.add(Setup::decode("decode-1", endless())).await;
    let before = decode.started();
    for _ in 0..5 {
        harness
            .generate(by_ids(prompt_of(5), 3))
            .await
            .unwrap()
            .whole();
    }
    assert_eq!((decode.started(), fresh.started()), (before, 5));
}

#[tokio::test]
async fn dsc_06_a_restarted_worker_is_used_at_its_new_address() {
    let harness = Harness::start(config()).await;
    let mut old = harness.add(Setup::decode("decode-0", endless())).await;
    harness.generate(long(3)).await.unwrap().whole();
    old.kill();
    let new = harness.add(Setup::decode("decode-0", endless())).await;
    for _ in 0..5 {
        harness.generate(long(3)).await.unwrap().whole();
    }
    assert_eq!(new.started(), 5);
}

/// Binds a port again that a killed process had.
async fn bind_again(address: &str) -> std::net::TcpListener {
    soon("the port is free", async {
        loop {
            match tokio::net::TcpListener::bind(address).await {
                Ok(listener) => break listener.into_std().unwrap(),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await
}

#[tokio::test]
async fn xfr_09_a_new_process_at_the_same_address_is_another_peer() {
    for prefill_restarts in [true, false] {
        let (harness, prefill, decode) = Harness::pair(endless()).await;
        harness.generate(long(3)).await.unwrap().whole();
        let (mut old, other, setup) = if prefill_restarts {
            (prefill, decode, Setup::prefill("prefill-0", endless()))
        } else {
            (decode, prefill, Setup::decode("decode-0", endless()))
        };
        let (name, incarnation) = (setup.name.clone(), setup.incarnation);
        let address = old.address.clone();
        old.kill();
        let listener = bind_again(&address).await;
        let new = setup.start_at(listener, &harness.address, &harness.board);
        assert_eq!(new.address, address);
        if prefill_restarts {
            // Whoever the router takes for alive at this moment, the request is served.
            harness.generate(long(3)).await.unwrap().whole();
        }
        harness.until_listed(&name, incarnation).await;
        let (before, beside) = (new.started(), other.started());
        for _ in 0..10 {
            let answer = harness.generate(long(3)).await.unwrap().whole();
            assert_eq!(answer.receipt().attempts.len(), 1);
        }
        assert_eq!((new.started() - before, other.started() - beside), (10, 10));
        let workers = harness.list().await.workers;
        assert_eq!(workers.len(), 2, "the old one is gone: {workers:?}");
        assert!(workers.iter().all(|worker| worker.state == "ready"));
    }
}

#[tokio::test]
async fn dsc_09_workers_of_one_name_both_serve() {
    let harness = Harness::start(config()).await;
    let mut first = harness.add(Setup::decode("decode-0", endless())).await;
    let second = harness.add(Setup::decode("decode-0", endless())).await;
    for _ in 0..40 {
        harness
            .generate(by_ids(prompt_of(5), 2))
            .await
            .unwrap()
            .whole();
    }
    assert!(first.started() > 0 && second.started() > 0);
    first.kill();
    for _ in 0..5 {
        harness
            .generate(by_ids(prompt_of(5), 2))
            .await
            .unwrap()
            .whole();
    }
}

#[tokio::test]
async fn the_least_loaded_worker_is_taken() {
    let harness = Harness::start(config()).await;
    let _decode = harness.add(Setup::decode("decode-0", endless())).await;
    let busy = harness.add(Setup::prefill("prefill-busy", endless())).await;
    busy.report(|load| load.queued_tokens = 50_000);
    soon("the load is known", async {
        let known =
            |w: &baton_proto::v1::WorkerStatus| w.load.as_ref().unwrap().queued_tokens == 50_000;
        while !harness.list().await.workers.iter().any(known) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
    let idle = harness.add(Setup::prefill("prefill-idle", endless())).await;
    for _ in 0..10 {
        harness.generate(long(3)).await.unwrap().whole();
    }
    assert_eq!((busy.started(), idle.started()), (0, 10));
}
