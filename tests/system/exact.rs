//! Promise 1: the tokens of a request are a pure function of model, prompt, parameters and seed.
//!
//! The same 50 random requests run through services that differ in everything that must not matter.

use baton_engine::Isa;
use baton_model_file::fixtures::Random;
use baton_proto::v1::{FinishReason, GenerateRequest};

use crate::answer::{Answer, Essence};
use crate::client::Client;
use crate::models::{default_model, tiny_model, with};
use crate::random_requests::{self, REAL, Shape, TINY, requests, salted};
use crate::service::{Roles, Setup};

/// One after the other.
async fn alone(client: &Client, requests: &[GenerateRequest]) -> Vec<Answer> {
    let mut answers = Vec::new();
    for request in requests {
        answers.push(client.generate(request.clone()).await.expect("an answer"));
    }
    answers
}

/// All at once, in an order of their own.
async fn crowded(client: &Client, requests: &[GenerateRequest], seed: u64) -> Vec<Answer> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let mut random = Random::new(seed);
    for index in (1..order.len()).rev() {
        order.swap(index, random.below(index + 1));
    }
    let calls = order
        .iter()
        .map(|index| client.generate(requests[*index].clone()));
    let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
    for (index, answer) in order.iter().zip(futures::future::join_all(calls).await) {
        answers[*index] = Some(answer.expect("an answer"));
    }
    answers
        .into_iter()
        .map(|answer| answer.expect("every request was sent"))
        .collect()
}

/// Each request by itself, unified, without a single prefix hit: what all others are compared with.
async fn reference(setup: &Setup, requests: &[GenerateRequest]) -> Vec<Essence> {
    let service = unified(setup.clone()).start().await;
    let answers = alone(&service, &salted(requests)).await;
    for answer in &answers {
        assert_eq!(answer.usage.cached_tokens, 0, "every salt is new");
    }
    service.assert_idle().await;
    answers.iter().map(Answer::essence).collect()
}

fn assert_same(what: &str, expected: &[Essence], answers: &[Answer]) {
    assert_eq!(expected.len(), answers.len());
    for (index, (expected, got)) in expected.iter().zip(answers).enumerate() {
        assert_eq!(*expected, got.essence(), "{what}: request {index} differs");
    }
}

/// Requests of which some prompt tokens were found in the cache.
fn hits(answers: &[Answer]) -> usize {
    let cached = answers.iter().filter(|one| one.usage.cached_tokens > 0);
    cached.count()
}

/// Everything is prefilled on the decode worker: one worker does it all.
fn unified(setup: Setup) -> Setup {
    setup.flag("--local-prefill-tokens", 1_000_000)
}

/// Everything is split, however short.
fn split(setup: Setup) -> Setup {
    setup.flag("--local-prefill-tokens", 0)
}

fn chunks(setup: Setup, budget: usize) -> Setup {
    setup
        .flag("--prefill-token-budget", budget)
        .flag("--decode-token-budget", budget)
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_do_not_depend_on_batch_chunk_split_or_transport() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup::new(&tiny_model(folder.path())).flag("--pages", 1024);
    let seed = 20_261_130;
    let requests = requests(seed, 50, TINY);
    let reference = reference(&setup, &requests).await;
    assert_variety(&reference);

    let service = unified(setup.clone()).start().await;
    let first = alone(&service, &requests).await;
    assert_same("with shared prefixes", &reference, &first);
    assert!(hits(&first) >= 8, "only {} found a prefix", hits(&first));
    let second = alone(&service, &requests).await;
    assert_same("with whole prompts held", &reference, &second);
    assert!(hits(&second) >= 40, "only {} were held", hits(&second));
    let answers = crowded(&service, &salted(&requests), seed).await;
    assert_same("crowded, nothing held", &reference, &answers);
    service.assert_idle().await;
    drop(service);

    for transport in ["shm", "tcp"] {
        let service = split(setup.clone())
            .flag("--transport", transport)
            .start()
            .await;
        let answers = alone(&service, &salted(&requests)).await;
        assert_same(transport, &reference, &answers);
        let moved = answers
            .iter()
            .filter(|answer| answer.receipt().transport == transport);
        assert!(
            moved.count() > 25,
            "most requests must really have been split over {transport}"
        );
        for round in 0..2 {
            let answers = crowded(&service, &requests, seed + round).await;
            assert_same("split and crowded", &reference, &answers);
            let least = [0, 25][round as usize];
            assert!(
                hits(&answers) >= least,
                "only {} found a prefix in round {round}",
                hits(&answers)
            );
        }
        service.assert_idle().await;
    }
    for budget in [16, 64, 512] {
        for how in [split as fn(Setup) -> Setup, unified] {
            let service = chunks(how(setup.clone()), budget).start().await;
            let answers = crowded(&service, &salted(&requests), 7).await;
            assert_same(&format!("chunks of {budget}"), &reference, &answers);
            service.assert_idle().await;
        }
    }
}

/// The requests end in every way there is, or they would not show much.
fn assert_variety(reference: &[Essence]) {
    let choices = || reference.iter().flat_map(|(choices, ..)| choices);
    let stopped: Vec<_> = choices().filter(|c| !c.stop.is_empty()).collect();
    assert!(stopped.len() >= 3, "{} met a stop string", stopped.len());
    for choice in stopped {
        assert_eq!(choice.finish, Some(FinishReason::Stop));
        assert!(!choice.text.contains(&choice.stop), "{choice:?}");
    }
    let full = choices().filter(|c| c.finish == Some(FinishReason::Length));
    assert!(full.count() >= 20);
    assert!(reference.iter().any(|(choices, ..)| choices.len() > 2));
    let told = reference
        .iter()
        .filter(|(_, prompt, tokens, _)| prompt.logprobs.len() + 1 == *tokens as usize);
    assert!(told.count() >= 4, "prompts are told whole");
    let silent = |(_, prompt, ..): &&Essence| prompt.logprobs.is_empty();
    assert!(reference.iter().filter(silent).count() >= 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_05_preemption_changes_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup::new(&tiny_model(folder.path()));
    // Completions that are long enough to grow out of a pool that holds the largest request alone.
    let shape = Shape {
        output: 200,
        ..TINY
    };
    let seed = 20_261_130;
    let requests = requests(seed, 50, shape);
    let reference = reference(&setup, &requests).await;
    assert_variety(&reference);
    for how in [unified as fn(Setup) -> Setup, split] {
        let service = how(setup.clone()).flag("--pages", 100).start().await;
        crowd_until_preempted(&service, &requests, &reference, 8).await;
        service.assert_idle().await;
    }
}

/// Crowds a pool that is too small until so many requests were preempted, some of several choices among
/// them. Who is preempted depends on time; what anybody gets does not.
async fn crowd_until_preempted(
    client: &Client,
    requests: &[GenerateRequest],
    reference: &[Essence],
    wanted: usize,
) {
    let (mut preempted, mut several) = (0, 0);
    for order in 0..20 {
        let answers = crowded(client, requests, order).await;
        assert_same("a pool that is too small", reference, &answers);
        let hit = answers.iter().filter(|one| one.receipt().preemptions > 0);
        for answer in hit {
            preempted += 1;
            several += usize::from(answer.choices.len() > 1);
        }
        if preempted >= wanted && several > 0 {
            return;
        }
    }
    panic!("only {preempted} were preempted, {several} of them with several choices");
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_05_long_completions_grow_out_of_the_pool() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup::new(&tiny_model(folder.path()));
    // Small prompts, long completions: growth, not admission, exhausts the pool.
    let shape = Shape {
        prompt: 40,
        output: 120,
        ..TINY
    };
    let seed = 34;
    let requests: Vec<_> = requests(seed, 24, shape)
        .into_iter()
        .map(|request| {
            with(request, |sampling| {
                sampling.max_tokens = Some(100);
                sampling.ignore_eos = true;
            })
        })
        .collect();
    let reference = reference(&setup, &requests).await;
    for how in [unified as fn(Setup) -> Setup, split] {
        let service = how(setup.clone()).flag("--pages", 36).start().await;
        crowd_until_preempted(&service, &requests, &reference, 5).await;
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_real_model_gives_the_same_tokens_however_it_is_run() {
    let setup = Setup::new(&default_model());
    let mut requests = requests(77, 9, REAL);
    let short = Shape {
        prompt: 40,
        output: 70,
        ..REAL
    };
    // Two choices each, so that whoever is preempted has several.
    let growing = requests.len()..requests.len() + 6;
    requests.extend(
        random_requests::requests(78, growing.len(), short)
            .into_iter()
            .map(|request| {
                with(request, |sampling| {
                    sampling.max_tokens = Some(60);
                    sampling.ignore_eos = true;
                    sampling.n = Some(2);
                })
            }),
    );
    let reference = reference(&setup, &requests).await;
    for (budget, transport) in [(16, "shm"), (64, "tcp"), (512, "shm")] {
        let setup = chunks(split(setup.clone()), budget).flag("--transport", transport);
        let service = setup.start().await;
        let answers = crowded(&service, &requests, 7).await;
        let what = format!("chunks of {budget} over {transport}");
        assert_same(&what, &reference, &answers);
        if budget == 512 {
            let again = crowded(&service, &requests, 8).await;
            assert_same("with prefix hits", &reference, &again);
            assert!(hits(&again) >= 5, "only {} found a prefix", hits(&again));
        }
        service.assert_idle().await;
    }
    let service = unified(setup).flag("--pages", 14).start().await;
    let growing = (&requests[growing.clone()], &reference[growing]);
    crowd_until_preempted(&service, growing.0, growing.1, 1).await;
    service.assert_idle().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn int8_pages_give_the_same_tokens_split_and_unified() {
    let folder = tempfile::tempdir().expect("a folder");
    let setup = Setup::new(&tiny_model(folder.path()))
        .flag("--pages", 1024)
        .flag("--kv-dtype", "int8");
    let requests = requests(20_261_130, 20, TINY);
    let reference = reference(&setup, &requests).await;
    for transport in ["shm", "tcp"] {
        let service = split(setup.clone())
            .flag("--transport", transport)
            .start()
            .await;
        let answers = crowded(&service, &salted(&requests), 3).await;
        assert_same(transport, &reference, &answers);
        let moved = answers
            .iter()
            .filter(|answer| answer.receipt().transport == transport);
        assert!(moved.count() > 10, "most must really have been split");
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_of_different_instruction_sets_give_the_same_tokens() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let requests = requests(20_261_130, 20, TINY);
    let reference = reference(&Setup::new(&model).flag("--pages", 1024), &requests).await;
    for pair in Isa::available().windows(2) {
        let roles = Roles::new(&model);
        let router = roles.router(&[]);
        let flags = |isa: &Isa| ["--pages", "1024", "--isa", isa.name()];
        let _decode = roles.worker("decode", &router, &flags(&pair[0]));
        let _prefill = roles.worker("prefill", &router, &flags(&pair[1]));
        let client = Client::connect(router.address()).await;
        let answers = crowded(&client, &salted(&requests), 5).await;
        assert_same(&format!("{pair:?}"), &reference, &answers);
    }
}
