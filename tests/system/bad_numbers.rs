//! A model that gives no numbers for some prompts: their requests end by an error, and nobody else notices.

use std::path::{Path, PathBuf};

use baton_model_file::TensorType;
use baton_model_file::fixtures::TinyModel;
use tonic::Code;

use crate::models::{endless, tiny_prompt, with};
use crate::service::Setup;

/// Prompts of the tests stay below it.
const SICK: u32 = 300;

/// A tiny model whose embedding of one token is not a number.
fn sick_model(folder: &Path) -> PathBuf {
    let model = TinyModel {
        // A matrix of its own, so that other prompts' logits are numbers.
        output: Some(TensorType::F32),
        ..TinyModel::default()
    };
    let mut file = model.gguf();
    let tensors = file.tensors.iter_mut();
    let embedding = tensors.filter(|tensor| tensor.name == "token_embd.weight");
    for tensor in embedding {
        let at = SICK as usize * model.hidden as usize * 4;
        tensor.data[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    }
    let path = folder.join("sick.gguf");
    std::fs::write(&path, file.bytes()).expect("the folder is writable");
    path
}

#[tokio::test(flavor = "multi_thread")]
async fn sch_15_a_prompt_without_logits_fails_alone_and_once() {
    let folder = tempfile::tempdir().expect("a folder");
    // Everything is split, or everything is local.
    for local_tokens in [0, 1_000_000] {
        let service = Setup::new(&sick_model(folder.path()))
            .flag("--local-prefill-tokens", local_tokens)
            .start()
            .await;
        let healthy = |seed: u64| {
            let prompt = tiny_prompt(seed, 40 + 30 * seed as usize);
            with(endless(prompt, 40), |sampling| sampling.n = Some(2))
        };
        let mut expected = Vec::new();
        for seed in 0..6 {
            let answer = service.generate(healthy(seed)).await;
            expected.push(answer.expect("healthy").essence());
        }
        let sick = |seed: u64| {
            let mut prompt = tiny_prompt(seed, 90);
            prompt[70] = SICK;
            with(endless(prompt, 40), |sampling| {
                sampling.n = Some(2);
                sampling.prompt_logprobs = seed.is_multiple_of(2).then_some(1);
            })
        };
        let neighbours = (0..6).map(|seed| service.generate(healthy(seed)));
        let failing = (0..6).map(|seed| service.generate(sick(seed)));
        let (answers, failures) = tokio::join!(
            futures::future::join_all(neighbours),
            futures::future::join_all(failing)
        );
        for (answer, expected) in answers.into_iter().zip(&expected) {
            assert_eq!(answer.expect("undisturbed").essence(), *expected);
        }
        for (seed, failure) in failures.into_iter().enumerate() {
            let status = failure.expect_err("no token can be chosen");
            assert_eq!(status.code(), Code::Internal, "{status:?}");
            let words = if seed % 2 == 0 {
                "logits after prompt token 70 are not finite"
            } else {
                "logits of position 0 are not finite"
            };
            assert!(status.message().contains(words), "{status:?}");
        }
        // No worker is blamed for it, and none is asked again.
        assert_eq!(service.counter("worker_failures").await, 0);
        assert_eq!(service.counter("retries").await, 0);
        service.assert_idle().await;
    }
}
