//! Requests as the page reads them. It must not know what they are for.

use baton_proto::v1;
use serde::Serialize;

use super::super::replies::Receipt;

/// One request; times in microseconds since its receipt.
#[derive(Debug, Serialize)]
pub(super) struct Told {
    id: String,
    label: String,
    api: String,
    received_us: u64,
    received_unix_ms: u64,
    prompt_tokens: u32,
    completion_tokens: u64,
    choices: u32,
    phase: String,
    outcome: String,
    error: String,
    admitted_us: Option<u64>,
    first_token_us: Option<u64>,
    finished_us: Option<u64>,
    attempts: Vec<Attempt>,
    attempts_left_out: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    receipt: Option<Receipt>,
}

#[derive(Debug, Serialize)]
struct Attempt {
    number: u32,
    prefill_worker: String,
    decode_worker: String,
    reason: String,
    failure: String,
    kept_tokens: u64,
    begun_us: u64,
    scheduled_us: Option<u64>,
    granted_us: Option<u64>,
    first_token_us: Option<u64>,
    transfer_us: Option<u64>,
    landed_us: Option<u64>,
    ended_us: Option<u64>,
}

/// All that is known, with the receipt.
pub(super) fn whole(mut record: v1::RequestRecord) -> Told {
    let receipt = record.receipt.take().map(Receipt::from);
    Told {
        receipt,
        ..brief(record)
    }
}

/// What a list says.
pub(super) fn brief(record: v1::RequestRecord) -> Told {
    Told {
        id: record.request_id,
        label: record.request_label,
        api: record.api,
        received_us: record.received_us,
        received_unix_ms: record.received_unix_ms,
        prompt_tokens: record.prompt_tokens,
        completion_tokens: record.completion_tokens,
        choices: record.choices,
        phase: record.phase,
        outcome: record.outcome,
        error: record.error,
        admitted_us: record.admitted_us,
        first_token_us: record.first_token_us,
        finished_us: record.finished_us,
        attempts: record.attempts.into_iter().map(attempt).collect(),
        attempts_left_out: record.attempts_left_out,
        receipt: None,
    }
}

fn attempt(attempt: v1::RequestAttempt) -> Attempt {
    let placement = attempt.placement.unwrap_or_default();
    Attempt {
        number: placement.attempt,
        prefill_worker: placement.prefill_worker,
        decode_worker: placement.decode_worker,
        reason: placement.reason,
        failure: placement.failure,
        kept_tokens: placement.kept_tokens,
        begun_us: attempt.begun_us,
        scheduled_us: attempt.scheduled_us,
        granted_us: attempt.granted_us,
        first_token_us: attempt.first_token_us,
        transfer_us: attempt.transfer_us,
        landed_us: attempt.landed_us,
        ended_us: attempt.ended_us,
    }
}
