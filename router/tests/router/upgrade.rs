//! Upgrades that change the fingerprint: old and new workers are never paired, and no request is lost between
//! them.

use std::time::Duration;

use baton_proto::domain::Fingerprint;
use baton_proto::legs::PrefillEvent;
use baton_router::RouterConfig;
use tokio::sync::watch;
use tonic::Status;

use crate::failures::{is_exact, until_states};
use crate::fake::{FakeWorker, Setup, endless, fingerprint};
use crate::harness::{Harness, config, long, soon, status_of};

/// Of new workers.
fn upgraded() -> Fingerprint {
    Fingerprint {
        page_size: 32,
        ..fingerprint()
    }
}

fn new(setup: Setup) -> Setup {
    Setup {
        fingerprint: upgraded(),
        ..setup
    }
}

/// A prefill worker whose prompts wait in its queue, one of them after its first token, until it is told.
fn queueing(told: watch::Receiver<bool>, early_token: bool) -> Setup {
    Setup::prefill("prefill-old", endless()).plays(move |leg| {
        let mut told = told.clone();
        async move {
            if early_token {
                let [first] = &leg.first_tokens(&endless())[..] else {
                    panic!("one choice");
                };
                leg.send(PrefillEvent::FirstToken(first.clone())).await;
            }
            told.wait_for(|told| *told).await.unwrap();
            leg.behave(endless()).await
        }
    })
}

/// Lets the only request be planned for the old pair, whose prefill worker says nothing yet.
async fn old_pair(
    harness: &Harness,
    early_token: bool,
) -> (watch::Sender<bool>, FakeWorker, FakeWorker) {
    let (tell, told) = watch::channel(false);
    let prefill = harness.add(queueing(told, early_token)).await;
    let decode = harness.add(Setup::decode("decode-old", endless())).await;
    (tell, prefill, decode)
}

#[tokio::test]
async fn k8s_01_a_prompt_whose_decode_workers_have_all_been_upgraded_is_answered_by_the_new_ones() {
    for with_prefill in [false, true] {
        let patient = RouterConfig {
            grant_wait: Duration::from_mins(10),
            ..config()
        };
        let harness = Harness::start(patient).await;
        let (tell, old, decode) = old_pair(&harness, false).await;
        let upgrade = async {
            old.until_started(1).await;
            let mut fresh = vec![
                harness
                    .add(new(Setup::decode("decode-new", endless())))
                    .await,
            ];
            if with_prefill {
                let prefill = new(Setup::prefill("prefill-new", endless()));
                fresh.push(harness.add(prefill).await);
            }
            decode.report(|load| load.draining = true);
            until_states(&harness, &[("decode-old", "draining")]).await;
            tell.send(true).unwrap();
            fresh
        };
        let (answer, _fresh) = tokio::join!(harness.generate(long(20)), upgrade);
        let answer = is_exact(answer.unwrap(), 20);
        let attempts = &answer.receipt().attempts;
        assert_eq!(attempts.len(), 2, "{attempts:?}");
        assert_eq!(attempts[0].prefill_worker, "prefill-old");
        assert!(
            attempts[0].failure.contains("no decode worker"),
            "{attempts:?}"
        );
        let prefill = if with_prefill { "prefill-new" } else { "" };
        assert_eq!(attempts[1].prefill_worker, prefill, "{attempts:?}");
        assert_eq!(attempts[1].decode_worker, "decode-new", "{attempts:?}");
        old.until_idle().await;
        harness.until_idle().await;
    }
}

#[tokio::test]
async fn k8s_01_a_full_pool_of_old_workers_is_left_for_the_new_ones_once_the_wait_is_over() {
    let brief = RouterConfig {
        grant_wait: Duration::from_millis(200),
        ..config()
    };
    let harness = Harness::start(brief).await;
    let (tell, old, decode) = old_pair(&harness, false).await;
    let upgrade = async {
        old.until_started(1).await;
        decode.refuse(Some(Status::resource_exhausted("full")));
        let fresh = [
            harness
                .add(new(Setup::decode("decode-new", endless())))
                .await,
            harness
                .add(new(Setup::prefill("prefill-new", endless())))
                .await,
        ];
        tell.send(true).unwrap();
        fresh
    };
    let (answer, _fresh) = tokio::join!(harness.generate(long(20)), upgrade);
    let answer = is_exact(answer.unwrap(), 20);
    let last = answer.receipt().attempts.last().unwrap();
    assert_eq!(
        (last.prefill_worker.as_str(), last.decode_worker.as_str()),
        ("prefill-new", "decode-new")
    );
    old.until_idle().await;
}

#[tokio::test]
async fn k8s_01_what_has_begun_waits_for_its_own_model() {
    let brief = RouterConfig {
        grant_wait: Duration::from_millis(200),
        ..config()
    };
    let harness = Harness::start(brief).await;
    let (tell, old, decode) = old_pair(&harness, true).await;
    let upgrade = async {
        old.until_started(1).await;
        let other = Setup {
            fingerprint: Fingerprint {
                weights_digest: [9; 32],
                ..fingerprint()
            },
            ..Setup::decode("decode-new", endless())
        };
        let fresh = harness.add(other).await;
        decode.report(|load| load.draining = true);
        until_states(&harness, &[("decode-old", "draining")]).await;
        tell.send(true).unwrap();
        fresh
    };
    let (answer, fresh) = tokio::join!(soon("an end", harness.generate(long(20))), upgrade);
    let status = status_of(answer);
    assert_eq!(status.code(), tonic::Code::Unavailable, "{status:?}");
    assert_eq!(fresh.started(), 0);
}
