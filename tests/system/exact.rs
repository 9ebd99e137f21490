//! Promise 1: the tokens of a request are a pure function of model, prompt, parameters and seed.
//!
//! The same 50 random requests run through services that differ in everything that must not matter.

use baton_model_file::fixtures::Random;
use baton_proto::v1::GenerateRequest;

use crate::random_requests::{Shape, requests};
use crate::service::{Answer, Choice, Service, Setup, default_model, tiny_model};

const TINY: Shape = Shape {
    low: 0,
    high: 256,
    prompt: 400,
    output: 40,
};
const REAL: Shape = Shape {
    low: 1000,
    high: 40_000,
    prompt: 700,
    output: 24,
};

/// What must not change: ids, text, log-probability bits and finish reasons of every choice.
fn essence(answers: &[Answer]) -> Vec<Vec<Choice>> {
    answers
        .iter()
        .map(|answer| answer.choices.values().cloned().collect())
        .collect()
}

/// One after the other.
async fn alone(service: &Service, requests: &[GenerateRequest]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for request in requests {
        answers.push(service.generate(request.clone()).await.expect("an answer"));
    }
    answers
}

/// All at once, in an order of their own.
async fn crowded(service: &Service, requests: &[GenerateRequest], seed: u64) -> Vec<Answer> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let mut random = Random::new(seed);
    for index in (1..order.len()).rev() {
        order.swap(index, random.below(index + 1));
    }
    let calls = order
        .iter()
        .map(|index| service.generate(requests[*index].clone()));
    let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
    for (index, answer) in order.iter().zip(futures::future::join_all(calls).await) {
        answers[*index] = Some(answer.expect("an answer"));
    }
    answers
        .into_iter()
        .map(|answer| answer.expect("every request was sent"))
        .collect()
}

fn assert_same(what: &str, expected: &[Vec<Choice>], answers: &[Answer]) {
    for (index, (expected, got)) in expected.iter().zip(essence(answers)).enumerate() {
        assert_eq!(*expected, got, "{what}: request {index} differs");
    }
}

/// Everything is prefilled on the decode worker: one worker does it all.
fn unified(setup: Setup) -> Setup {
    setup.flag("--local-prefill-tokens", 1_000_000)
}

/// Everything is split, however short.
fn split(setup: Setup) -> Setup {
    setup.flag("--local-prefill-tokens", 0)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_do_not_depend_on_batch_chunk_split_or_transport() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup::new(&tiny_model(folder.path())).flag("--pages", 512);
    let seed = 20_261_130;
    println!("seed {seed}");
    let requests = requests(seed, 50, TINY);

    let service = unified(setup.clone()).start().await;
    let reference = essence(&alone(&service, &requests).await);
    assert_same(
        "repeated, with prefix hits",
        &reference,
        &alone(&service, &requests).await,
    );
    assert_same(
        "crowded",
        &reference,
        &crowded(&service, &requests, seed).await,
    );
    service.assert_idle().await;
    drop(service);

    for transport in ["shm", "tcp"] {
        let service = split(setup.clone())
            .flag("--transport", transport)
            .start()
            .await;
        let answers = alone(&service, &requests).await;
        assert_same(transport, &reference, &answers);
        let moved = answers
            .iter()
            .filter(|answer| answer.receipt().transport == transport);
        assert!(
            moved.count() > 25,
            "most requests must really have been split over {transport}"
        );
        assert_same(
            "split and crowded",
            &reference,
            &crowded(&service, &requests, seed + 1).await,
        );
        service.assert_idle().await;
    }
    for budget in [16, 64, 512] {
        let service = split(setup.clone())
            .flag("--prefill-token-budget", budget)
            .flag("--decode-token-budget", budget)
            .start()
            .await;
        assert_same(
            &format!("chunks of {budget}"),
            &reference,
            &crowded(&service, &requests, 7).await,
        );
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_05_preemption_changes_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup::new(&tiny_model(folder.path()));
    let seed = 34;
    println!("seed {seed}");
    // Small prompts, long completions: growth, not admission, exhausts the pool.
    let shape = Shape {
        prompt: 40,
        output: 120,
        ..TINY
    };
    let requests: Vec<_> = requests(seed, 24, shape)
        .into_iter()
        .map(|mut request| {
            let sampling = request.sampling.as_mut().expect("set above");
            sampling.max_tokens = Some(100);
            sampling.n = Some(1);
            sampling.ignore_eos = true;
            sampling.stop.clear();
            request
        })
        .collect();
    let service = unified(setup.clone()).flag("--pages", 1024).start().await;
    let reference = essence(&alone(&service, &requests).await);
    drop(service);
    for split_or_not in [unified as fn(Setup) -> Setup, split] {
        let service = split_or_not(setup.clone())
            .flag("--pages", 28)
            .start()
            .await;
        let answers = crowded(&service, &requests, seed).await;
        assert_same("a pool that is too small", &reference, &answers);
        let preemptions: u32 = answers
            .iter()
            .map(|answer| answer.receipt().preemptions)
            .sum();
        assert!(preemptions > 0, "the pool was meant to be too small");
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_model_gives_the_same_tokens_split_and_unified() {
    let setup = Setup::new(&default_model());
    let seed = 77;
    println!("seed {seed}");
    let requests = requests(seed, 10, REAL);
    let service = unified(setup.clone()).start().await;
    let reference = essence(&alone(&service, &requests).await);
    drop(service);
    for transport in ["shm", "tcp"] {
        let service = split(setup.clone())
            .flag("--transport", transport)
            .start()
            .await;
        assert_same(
            transport,
            &reference,
            &crowded(&service, &requests, seed).await,
        );
        service.assert_idle().await;
    }
}
