//! Too much of something: readers that are too slow, requests that are too large, the same prompt twice at
//! the same time. Others notice nothing.

use std::time::Duration;

use tonic::Code;

use crate::answer::Answer;
use crate::client::{Client, rest};
use crate::models::{by_ids, endless, tiny_model, tiny_prompt, with};
use crate::process::resident_mib;
use crate::service::Setup;

/// Memory that a router may take for one reader that does not read, in MiB: some thousand tokens with
/// twenty log-probabilities each.
const PER_READER_MIB: u64 = 64;

/// A request whose stream is far too large for any buffer on its way: 16 choices of 1,900 tokens with 20
/// log-probabilities each.
fn flood(seed: u64) -> baton_proto::v1::GenerateRequest {
    with(endless(tiny_prompt(seed, 80), 1900), |sampling| {
        sampling.n = Some(16);
        sampling.temperature = Some(0.9);
        sampling.seed = Some(seed);
        sampling.logprobs = Some(20);
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn str_07_a_reader_that_stops_reading_is_given_up_and_slows_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let fast = || (0..8).map(|seed| service.generate(endless(tiny_prompt(seed, 120), 300)));
    let expected: Vec<_> = futures::future::join_all(fast()).await;
    let router = service.status().await.router.expect("router").pid;
    let before = resident_mib(router);

    let mut most = Vec::new();
    for wave in 0..2 {
        // Held and never read: one on a connection of its own, one beside the fast ones.
        let alone = Client::connect_with_window(&service.address, 64 << 10).await;
        let held = [alone.open(flood(0)).await, service.open(flood(1)).await];
        let mut peak = before;
        while service.counter("slow_readers").await < 2 * (wave + 1) {
            // Fast readers go on all the time.
            let answers = futures::future::join_all(fast()).await;
            for (answer, expected) in answers.iter().zip(&expected) {
                let [answer, expected] = [answer, expected].map(|one| one.as_ref().expect("fast"));
                assert_eq!(answer.choices, expected.choices);
            }
            peak = peak.max(resident_mib(router));
        }
        most.push(peak);
        service.assert_idle().await;
        // What lies on the way is still read, then comes an error, never an end that looks good.
        for events in held {
            let status = rest(events, Answer::default()).await.expect_err("given up");
            assert_eq!(status.code(), Code::Aborted, "{status:?}");
        }
    }
    println!("router: {before} MiB before, {most:?} MiB at most");
    assert!(
        most[0] <= before + 2 * PER_READER_MIB && most[1] <= most[0] + PER_READER_MIB / 2,
        "the router grew from {before} to {most:?} MiB"
    );
    let counters = service.status().await.router.expect("router").counters;
    assert_eq!(counters["slow_readers"], 4, "{counters:?}");
    assert_eq!(
        counters["requests_ok"] % 8,
        0,
        "only fast ones: {counters:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn str_07_a_reader_that_is_slow_gets_every_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let service = Setup::new(&tiny_model(folder.path())).start().await;
    let request = with(flood(3), |sampling| {
        sampling.n = Some(1);
    });
    let expected = service.generate(request.clone()).await.expect("an answer");
    let client = Client::connect_with_window(&service.address, 64 << 10).await;
    let mut events = client.open(request).await;
    let (mut answer, mut count) = (Answer::default(), 0);
    while let Some(response) = events.message().await.expect("slow is not too slow") {
        answer.take(response);
        count += 1;
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(answer.essence(), expected.essence());
    assert!(
        count < 1900,
        "tokens were merged while the reader was behind"
    );
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
async fn xfr_23_equal_prompts_at_the_same_time_share_nothing_but_their_result() {
    let folder = tempfile::tempdir().expect("a folder");
    for transport in ["shm", "tcp"] {
        let service = Setup::new(&tiny_model(folder.path()))
            .flag("--transport", transport)
            .flag("--local-prefill-tokens", 0)
            .start()
            .await;
        let two = |prompt: Vec<u32>| {
            with(endless(prompt, 40), |sampling| {
                sampling.n = Some(2);
                sampling.temperature = Some(0.8);
                sampling.seed = Some(9);
            })
        };
        let prompts = [
            tiny_prompt(1, 203),
            tiny_prompt(2, 150),
            tiny_prompt(1, 203),
        ];
        let too_long = service.generate(two(tiny_prompt(3, 5000)));
        let together = prompts.clone().map(|prompt| service.generate(two(prompt)));
        let (refused, answers) = tokio::join!(too_long, futures::future::join_all(together));
        let refused = refused.expect_err("longer than the context");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        let answers: Vec<Answer> = answers.into_iter().map(|a| a.expect("an answer")).collect();
        assert_eq!(answers[0].essence(), answers[2].essence());
        for (answer, prompt) in answers.iter().zip(prompts) {
            assert_eq!(answer.choices.keys().copied().collect::<Vec<_>>(), [0, 1]);
            assert_ne!(answer.choices[&0].token_ids, answer.choices[&1].token_ids);
            assert_eq!(answer.receipt().transport, transport);
            let again = service.generate(two(prompt)).await.expect("an answer");
            assert_eq!(again.essence(), answer.essence(), "alone and together");
        }
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_08_a_prefix_hit_changes_no_bit_of_a_log_probability() {
    let folder = tempfile::tempdir().expect("a folder");
    for local in [0, 1_000_000] {
        let service = Setup::new(&tiny_model(folder.path()))
            .flag("--local-prefill-tokens", local)
            .start()
            .await;
        let request = with(endless(tiny_prompt(8, 117), 24), |sampling| {
            sampling.logprobs = Some(20);
        });
        let first = service.generate(request.clone()).await.expect("an answer");
        let second = service.generate(request).await.expect("an answer");
        assert_eq!(first.usage.cached_tokens, 0);
        assert_eq!(second.usage.cached_tokens, 112, "seven pages of sixteen");
        assert_eq!(first.choices[&0].logprobs.len(), 24);
        assert_eq!(first.choices[&0].top.len(), 24 * 20);
        assert_eq!(first.choices, second.choices, "bits of log-probabilities");
        service.assert_idle().await;
    }
}
