//! Usage and receipt of a finished request, for programs and for people. Must not know how it came about.

use baton_proto::v1::DoneEvent;
use serde_json::{Value, json};

/// Usage with the names of baton.v1.
pub(crate) fn usage_json(done: &DoneEvent) -> Value {
    let usage = done.usage.unwrap_or_default();
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "cached_tokens": usage.cached_tokens,
    })
}

/// The receipt with the names of baton.v1.
pub(crate) fn receipt_json(done: &DoneEvent) -> Value {
    let receipt = done.receipt.clone().unwrap_or_default();
    let attempts: Vec<Value> = receipt
        .attempts
        .iter()
        .map(|attempt| {
            json!({
                "attempt": attempt.attempt, "prefill_worker": attempt.prefill_worker,
                "decode_worker": attempt.decode_worker, "reason": attempt.reason, "failure": attempt.failure,
                "kept_tokens": attempt.kept_tokens,
            })
        })
        .collect();
    json!({
        "request_id": receipt.request_id,
        "request_label": receipt.request_label,
        "seed": receipt.seed,
        "admission_us": receipt.admission_us,
        "queue_us": receipt.queue_us,
        "prefill_us": receipt.prefill_us,
        "grant_wait_us": receipt.grant_wait_us,
        "transfer_us": receipt.transfer_us,
        "transfer_bytes": receipt.transfer_bytes,
        "transfer_overlap": receipt.transfer_overlap,
        "transport": receipt.transport,
        "landing_us": receipt.landing_us,
        "ttft_us": receipt.ttft_us,
        "itl_mean_us": receipt.itl_mean_us,
        "itl_max_us": receipt.itl_max_us,
        "end_to_end_us": receipt.end_to_end_us,
        "cached_tokens": receipt.cached_tokens,
        "decode_cached_tokens": receipt.decode_cached_tokens,
        "preemptions": receipt.preemptions,
        "attempts": attempts,
    })
}

/// The receipt as lines.
pub(crate) fn receipt_text(done: &DoneEvent) -> String {
    use std::fmt::Write as _;
    let usage = done.usage.unwrap_or_default();
    let receipt = done.receipt.clone().unwrap_or_default();
    let ms = |us: u64| us as f64 / 1000.0;
    let mut text = String::from("receipt\n");
    let mut row = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "  {name:<14}{value}");
    };
    row(
        "tokens",
        format!(
            "{} prompt ({} cached), {} completion, seed {}",
            usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens, receipt.seed
        ),
    );
    for attempt in &receipt.attempts {
        let names = [
            attempt.prefill_worker.as_str(),
            attempt.decode_worker.as_str(),
        ];
        let path: Vec<_> = names.into_iter().filter(|name| !name.is_empty()).collect();
        let failure = if attempt.failure.is_empty() {
            String::new()
        } else {
            format!(", failed: {}", attempt.failure)
        };
        row(
            "placement",
            format!("{} ({}{failure})", path.join(" -> "), attempt.reason),
        );
    }
    row("admission", format!("{:.2} ms", ms(receipt.admission_us)));
    row("queue", format!("{:.2} ms", ms(receipt.queue_us)));
    row("prefill", format!("{:.2} ms", ms(receipt.prefill_us)));
    row("grant wait", format!("{:.2} ms", ms(receipt.grant_wait_us)));
    if receipt.transfer_bytes > 0 {
        row(
            "transfer",
            format!(
                "{:.2} ms, {:.2} MiB over {}, {:.0}% while prefill computed",
                ms(receipt.transfer_us),
                receipt.transfer_bytes as f64 / f64::from(1 << 20),
                receipt.transport,
                receipt.transfer_overlap * 100.0
            ),
        );
    }
    row("landing", format!("{:.2} ms", ms(receipt.landing_us)));
    row("TTFT", format!("{:.2} ms", ms(receipt.ttft_us)));
    row(
        "ITL",
        format!(
            "{:.2} ms mean, {:.2} ms max",
            ms(receipt.itl_mean_us),
            ms(receipt.itl_max_us)
        ),
    );
    row("end to end", format!("{:.2} ms", ms(receipt.end_to_end_us)));
    text
}
