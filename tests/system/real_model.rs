//! The default model, end to end: the right answer, pages that leave while prefill computes, receipts.

use crate::models::{by_ids, chat, default_model};
use crate::service::Setup;

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_answered_over_both_paths() {
    for local in [0, 1000] {
        let service = Setup::new(&default_model())
            .flag("--local-prefill-tokens", local)
            .start()
            .await;
        let answer = service
            .generate(chat(
                "What is the capital of France? Answer in one sentence.",
                32,
            ))
            .await
            .expect("an answer");
        assert_eq!(answer.text(), "The capital of France is Paris.");
        assert_eq!(answer.usage.prompt_tokens, 42);
        assert_eq!(answer.usage.completion_tokens as usize, answer.ids().len());
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_leave_while_prefill_computes_and_the_receipt_tells_all() {
    for transport in ["shm", "tcp"] {
        let service = Setup::new(&default_model())
            .flag("--transport", transport)
            .start()
            .await;
        let prompt: Vec<u32> = (0..1000).map(|index| 1000 + index * 37 % 30_000).collect();
        let answer = service
            .generate(by_ids(prompt, 8))
            .await
            .expect("an answer");
        let receipt = answer.receipt();
        assert!(
            receipt.transfer_overlap >= 0.9,
            "{transport}: only {} of the bytes left while prefill computed",
            receipt.transfer_overlap
        );
        // 63 pages of 16 tokens, 30 layers, K and V of 3 heads of 64 in 16 bits.
        assert_eq!(receipt.transfer_bytes, 63 * 16 * 30 * 2 * 3 * 64 * 2);
        assert_eq!(receipt.transport, transport);
        for (name, value) in [
            ("prefill", receipt.prefill_us),
            ("transfer", receipt.transfer_us),
            ("landing", receipt.landing_us),
            ("ttft", receipt.ttft_us),
            ("itl mean", receipt.itl_mean_us),
            ("itl max", receipt.itl_max_us),
        ] {
            assert!(value > 0, "{transport}: {name} is missing in {receipt:?}");
        }
        let spent = receipt.ttft_us + 7 * receipt.itl_mean_us;
        assert!(
            receipt.end_to_end_us.abs_diff(spent) <= 8,
            "ITL = (end to end - TTFT) / 7: {receipt:?}"
        );
        assert_eq!(answer.workers(), ("prefill-0", "decode-0"));
        let attempt = receipt.attempts.last().expect("an attempt");
        assert!(!attempt.reason.is_empty());
        service.assert_idle().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_of_a_chat_finds_its_prefix() {
    let service = Setup::new(&default_model()).start().await;
    let prompt: Vec<u32> = (0..200).map(|index| 1000 + index * 91 % 20_000).collect();
    let first = service
        .generate(by_ids(prompt.clone(), 24))
        .await
        .expect("an answer");
    let mut next = prompt;
    next.extend(first.ids());
    next.extend([2000, 2001, 2002]);
    let second = service
        .generate(by_ids(next.clone(), 8))
        .await
        .expect("an answer");
    assert!(
        second.usage.cached_tokens >= 208,
        "completions count too: {:?}",
        second.receipt()
    );
    // The same without any cache: another salt shares nothing.
    let mut cold = by_ids(next, 8);
    cold.cache_salt = "another tenant".into();
    let cold = service.generate(cold).await.expect("an answer");
    assert_eq!(cold.usage.cached_tokens, 0);
    assert_eq!(cold.choices, second.choices);
    service.assert_idle().await;
}
