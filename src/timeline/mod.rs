//! One request's way as phases on a time axis: what the router remembers of it or, if that may not be asked for, what
//! its receipt says. It must not know how a router is asked.

mod draw;

use baton_proto::v1::{Receipt, RequestAttempt, RequestRecord};
use serde_json::{Value, json};

pub(crate) use draw::Canvas;

/// A request's phases. All times are microseconds since its receipt by the router.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Timeline {
    request: String,
    /// How it stands or ended.
    outcome: String,
    attempts: Vec<Attempt>,
    first_token_us: Option<u64>,
    end_us: u64,
    /// What readers must know.
    note: Option<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Attempt {
    /// Where and why; nothing before the first one.
    title: String,
    phases: Vec<Phase>,
}

/// One phase on one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Phase {
    name: &'static str,
    worker: String,
    from_us: u64,
    to_us: u64,
}

impl Timeline {
    /// Of what the router remembers, whose clock says `now_us`.
    pub(crate) fn of_record(record: &RequestRecord, now_us: u64) -> Self {
        let age_us = now_us.saturating_sub(record.received_us);
        let end_us = record.finished_us.unwrap_or(age_us);
        let admission = Phase::new("admission", "", 0, record.admitted_us.unwrap_or(end_us));
        let mut attempts = vec![Attempt {
            title: String::new(),
            phases: vec![admission],
        }];
        let receipt = record.receipt.as_ref();
        for (index, attempt) in record.attempts.iter().enumerate() {
            // A receipt's phases are those of the attempt that gave the first token.
            let landing_us = receipt
                .filter(|_| index == 0 && record.attempts.len() == 1)
                .map_or(0, |receipt| receipt.landing_us);
            attempts.push(Attempt::of_record(attempt, landing_us, end_us));
        }
        let left_out = record.attempts_left_out;
        Self {
            request: record.request_id.clone(),
            outcome: match (record.outcome.as_str(), record.error.as_str()) {
                ("", _) => format!("{}, still running", record.phase),
                (outcome, "") => outcome.to_owned(),
                (outcome, error) => format!("{outcome}: {error}"),
            },
            attempts,
            first_token_us: record.first_token_us,
            end_us,
            note: (left_out > 0)
                .then(|| format!("{left_out} attempts between these are forgotten")),
        }
    }

    /// Of a receipt alone, which tells how long phases took and not when they began.
    pub(crate) fn of_receipt(receipt: &Receipt) -> Self {
        let mut attempts = vec![Attempt {
            title: String::new(),
            phases: vec![Phase::new("admission", "", 0, receipt.admission_us)],
        }];
        attempts.extend(receipt.attempts.iter().map(|placed| {
            let title = title(
                placed.attempt,
                &placed.prefill_worker,
                &placed.decode_worker,
                &placed.reason,
                &placed.failure,
            );
            Attempt {
                title,
                phases: Vec::new(),
            }
        }));
        if let [_, only] = &mut attempts[..] {
            let placed = &receipt.attempts[0];
            only.phases = phases_of(receipt, &placed.prefill_worker, &placed.decode_worker);
        }
        let note = match attempts.len() {
            2 if receipt.transfer_bytes > 0 => "when the transfer began is an estimate",
            2 => "",
            _ => "phases of several attempts are known to the router alone",
        };
        Self {
            request: receipt.request_id.clone(),
            outcome: "ok".to_owned(),
            attempts,
            first_token_us: Some(receipt.ttft_us),
            end_us: receipt.end_to_end_us,
            note: (!note.is_empty()).then(|| note.to_owned()),
        }
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let phases = self.attempts.iter().zip(0..).flat_map(|(attempt, number)| {
            attempt.phases.iter().map(move |phase| {
                json!({
                    "attempt": number, "phase": phase.name, "worker": phase.worker,
                    "from_us": phase.from_us, "to_us": phase.to_us,
                })
            })
        });
        json!({
            "request_id": self.request,
            "outcome": self.outcome,
            "first_token_us": self.first_token_us,
            "end_us": self.end_us,
            "phases": phases.collect::<Vec<_>>(),
        })
    }
}

impl Attempt {
    fn of_record(attempt: &RequestAttempt, landing_us: u64, now_us: u64) -> Self {
        let placed = attempt.placement.clone().unwrap_or_default();
        let (prefill, decode) = (&placed.prefill_worker, &placed.decode_worker);
        let first = if prefill.is_empty() { decode } else { prefill };
        let end = attempt.ended_us.unwrap_or(now_us);
        let mut phases = Vec::new();
        let mut phase = |name, worker: &str, from: Option<u64>, to: Option<u64>| {
            if let Some(from) = from {
                let to = to.unwrap_or(end);
                phases.push(Phase::new(name, worker, from, to));
            }
        };
        let (scheduled, computed) = (attempt.scheduled_us, attempt.first_token_us);
        phase("queued", first, Some(attempt.begun_us), scheduled);
        phase("prefill", first, scheduled, computed);
        if !prefill.is_empty() && !decode.is_empty() {
            // Only pages that are computed wait for their grant.
            let waited = computed.filter(|computed| attempt.granted_us > Some(*computed));
            phase("grant wait", decode, waited, attempt.granted_us);
            phase("transfer", decode, attempt.transfer_us, attempt.landed_us);
            let in_batch = attempt.landed_us.map(|landed| landed + landing_us);
            if landing_us > 0 {
                phase("landing", decode, attempt.landed_us, in_batch);
            }
            phase("decode", decode, in_batch, None);
        } else if !decode.is_empty() {
            phase("decode", decode, computed, None);
        }
        let title = title(
            placed.attempt,
            prefill,
            decode,
            &placed.reason,
            &placed.failure,
        );
        Self { title, phases }
    }
}

impl Phase {
    fn new(name: &'static str, worker: &str, from_us: u64, to_us: u64) -> Self {
        Self {
            name,
            worker: worker.to_owned(),
            from_us,
            to_us: to_us.max(from_us),
        }
    }
}

/// Phases one after the other, as long as the receipt says.
fn phases_of(receipt: &Receipt, prefill: &str, decode: &str) -> Vec<Phase> {
    let first = if prefill.is_empty() { decode } else { prefill };
    let mut at = receipt.admission_us;
    let mut phases = Vec::new();
    let mut then = |name, worker: &str, for_us: u64| {
        let from = at;
        at += for_us;
        phases.push(Phase::new(name, worker, from, at));
        at
    };
    then("queued", first, receipt.queue_us);
    let computed = then("prefill", first, receipt.prefill_us);
    let mut begun = computed;
    if receipt.transfer_bytes > 0 {
        let sent_from = if receipt.grant_wait_us > 0 {
            then("grant wait", decode, receipt.grant_wait_us)
        } else {
            computed
        };
        let early = f64::from(receipt.transfer_overlap.clamp(0.0, 1.0));
        let late_us = (receipt.transfer_us as f64 * (1.0 - early)) as u64;
        let landed = sent_from + late_us;
        let from = landed.saturating_sub(receipt.transfer_us);
        phases.push(Phase::new("transfer", decode, from, landed));
        begun = landed + receipt.landing_us;
        phases.push(Phase::new("landing", decode, landed, begun));
    }
    if !decode.is_empty() {
        phases.push(Phase::new("decode", decode, begun, receipt.end_to_end_us));
    }
    phases
}

/// `attempt 1: prefill-0 -> decode-0 (split: least loaded), failed: …`
fn title(attempt: u32, prefill: &str, decode: &str, reason: &str, failure: &str) -> String {
    let names = [prefill, decode];
    let path: Vec<_> = names.into_iter().filter(|name| !name.is_empty()).collect();
    let failure = match failure {
        "" => String::new(),
        failure => format!(", failed: {failure}"),
    };
    format!(
        "attempt {attempt}: {} ({reason}){failure}",
        path.join(" -> ")
    )
}

#[cfg(test)]
mod tests;
