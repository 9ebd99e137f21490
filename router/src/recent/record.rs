//! One request as it is remembered: when what happened, where, and how it ended.
//!
//! Times are kept as the request's task hears of things. Per token it is a number that is written. It must
//! not know who reads it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use baton_proto::v1;
use tokio::time::Instant;
use tonic::Code;

use super::attempts::Attempts;
use super::micros;

/// Longest reason or error, in bytes.
const MAX_WORDS: usize = 240;

/// How a request came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Api {
    Grpc,
    Http,
}

/// What is known from the beginning.
#[derive(Debug)]
pub(crate) struct NewRecord {
    pub(crate) id: String,
    /// Bounded and harmless, as admission makes it.
    pub(crate) label: String,
    pub(crate) api: Api,
    pub(crate) received: Instant,
    pub(crate) prompt_tokens: u32,
    pub(crate) choices: u32,
}

/// One request.
#[derive(Debug)]
pub(crate) struct Record {
    pub(super) id: String,
    pub(super) label: String,
    pub(super) received: Instant,
    api: Api,
    received_us: u64,
    received_unix: Duration,
    prompt_tokens: u32,
    choices: u32,
    completion_tokens: AtomicU64,
    /// The next token is the first one of its attempt.
    awaits_token: AtomicBool,
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    admitted_us: Option<u64>,
    first_token_us: Option<u64>,
    finished_us: Option<u64>,
    attempts: Attempts,
    outcome: &'static str,
    error: String,
    /// Without what the record says itself.
    receipt: Option<Box<v1::Receipt>>,
}

impl Record {
    pub(super) fn new(new: NewRecord, origin: Instant) -> Self {
        let NewRecord {
            id,
            label,
            api,
            received,
            prompt_tokens,
            choices,
        } = new;
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            id,
            label,
            received,
            api,
            received_us: micros(received.saturating_duration_since(origin)),
            received_unix: since.saturating_sub(received.elapsed()),
            prompt_tokens,
            choices,
            completion_tokens: AtomicU64::new(0),
            awaits_token: AtomicBool::new(true),
            progress: Mutex::default(),
        }
    }

    /// Time since its receipt.
    pub(crate) fn age(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.received)
    }

    /// It has its place.
    pub(crate) fn admitted(&self) {
        self.note(|progress, now_us| progress.admitted_us = Some(now_us));
    }

    /// An attempt begins.
    pub(crate) fn attempt(&self, placement: &v1::PlacementAttempt) {
        self.note(|progress, now_us| progress.attempts.begin(placement, now_us));
        self.awaits_token.store(true, Ordering::Relaxed);
    }

    /// The attempt's prefill has begun.
    pub(crate) fn scheduled(&self) {
        self.note_attempt(|attempt, now_us| attempt.scheduled_us = Some(now_us));
    }

    /// This decode worker has granted pages.
    pub(crate) fn granted(&self, worker: &str) {
        self.note_attempt(|attempt, now_us| {
            attempt.granted_us = Some(now_us);
            if let Some(placement) = &mut attempt.placement {
                worker.clone_into(&mut placement.decode_worker);
            }
        });
    }

    /// The prefill worker reports how long its transfer took.
    pub(crate) fn transferred(&self, transfer: Duration) {
        self.note_attempt(|attempt, now_us| {
            let end = attempt.landed_us.unwrap_or(now_us);
            let began = end.saturating_sub(micros(transfer));
            attempt.transfer_us = Some(began.max(attempt.granted_us.unwrap_or(0)));
        });
    }

    /// All pages have landed.
    pub(crate) fn landed(&self) {
        self.note_attempt(|attempt, now_us| attempt.landed_us = Some(now_us));
    }

    /// Why the last attempt ended.
    pub(crate) fn failed(&self, failure: &str) {
        self.note_attempt(|attempt, now_us| {
            attempt.ended_us = Some(now_us);
            if let Some(placement) = &mut attempt.placement {
                failure.clone_into(&mut placement.failure);
                shortened(&mut placement.failure);
            }
        });
    }

    /// A token goes out; `so_far` with it, of all choices.
    pub(crate) fn token(&self, so_far: u64) {
        // Written by the request's task alone.
        self.completion_tokens.store(so_far, Ordering::Relaxed);
        if self.awaits_token.load(Ordering::Relaxed) {
            self.awaits_token.store(false, Ordering::Relaxed);
            self.note(|progress, now_us| {
                progress.first_token_us.get_or_insert(now_us);
                if let Some(attempt) = progress.attempts.last_mut() {
                    attempt.first_token_us = Some(now_us);
                }
            });
        }
    }

    /// What happened, as the client is told.
    pub(crate) fn receipt(&self, receipt: &v1::Receipt) {
        let receipt = v1::Receipt {
            request_id: String::new(),
            request_label: String::new(),
            attempts: Vec::new(),
            transport: receipt.transport.clone(),
            ..*receipt
        };
        self.progress().receipt = Some(Box::new(receipt));
    }

    pub(super) fn why(&self, error: &str) {
        let mut error = error.to_owned();
        shortened(&mut error);
        self.progress().error = error;
    }

    pub(super) fn end(&self, code: Code) {
        self.note(|progress, now_us| {
            progress.finished_us = Some(now_us);
            progress.outcome = outcome(code);
            progress.attempts.end(now_us);
        });
    }

    /// For readers.
    pub(super) fn told(&self, with_receipt: bool) -> v1::RequestRecord {
        let completion_tokens = self.completion_tokens.load(Ordering::Relaxed);
        let progress = self.progress();
        let (attempts, attempts_left_out) = progress.attempts.told();
        let receipt = progress.receipt.as_deref().filter(|_| with_receipt);
        let receipt = receipt.map(|receipt| v1::Receipt {
            request_id: self.id.clone(),
            request_label: self.label.clone(),
            attempts: (attempts.iter())
                .filter_map(|attempt| attempt.placement.clone())
                .collect(),
            ..receipt.clone()
        });
        v1::RequestRecord {
            request_id: self.id.clone(),
            request_label: self.label.clone(),
            api: match self.api {
                Api::Grpc => "grpc".to_owned(),
                Api::Http => "http".to_owned(),
            },
            model: String::new(),
            received_us: self.received_us,
            received_unix_ms: self.received_unix.as_millis() as u64,
            prompt_tokens: self.prompt_tokens,
            completion_tokens,
            choices: self.choices,
            phase: progress.phase().to_owned(),
            outcome: progress.outcome.to_owned(),
            error: progress.error.clone(),
            admitted_us: progress.admitted_us,
            first_token_us: progress.first_token_us,
            finished_us: progress.finished_us,
            attempts,
            attempts_left_out,
            receipt,
        }
    }

    fn note(&self, change: impl FnOnce(&mut Progress, u64)) {
        let now_us = micros(self.received.elapsed());
        change(&mut self.progress(), now_us);
    }

    fn note_attempt(&self, change: impl FnOnce(&mut v1::RequestAttempt, u64)) {
        self.note(|progress, now_us| {
            if let Some(attempt) = progress.attempts.last_mut() {
                change(attempt, now_us);
            }
        });
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Progress {
    fn phase(&self) -> &'static str {
        if self.finished_us.is_some() {
            return "ended";
        }
        let Some(attempt) = self.attempts.last() else {
            return if self.admitted_us.is_some() {
                "queued"
            } else {
                "waiting"
            };
        };
        let placement = attempt.placement.as_ref();
        let is_handed_off = placement.is_some_and(|placement| !placement.prefill_worker.is_empty());
        if attempt.landed_us.is_some() || attempt.first_token_us.is_some() && !is_handed_off {
            "decode"
        } else if attempt.first_token_us.is_some() {
            "transfer"
        } else if attempt.scheduled_us.is_some() {
            "prefill"
        } else {
            "queued"
        }
    }
}

/// The classes that requests are counted in.
fn outcome(code: Code) -> &'static str {
    match code {
        Code::Ok => "ok",
        Code::Cancelled => "cancelled",
        Code::InvalidArgument | Code::NotFound | Code::OutOfRange => "invalid",
        Code::ResourceExhausted => "refused",
        Code::Unavailable => "unavailable",
        Code::DeadlineExceeded => "deadline",
        _ => "failed",
    }
}

/// Cuts words that are too long to be kept.
pub(super) fn shortened(words: &mut String) {
    if words.len() > MAX_WORDS {
        let end = (0..=MAX_WORDS - 3)
            .rev()
            .find(|&at| words.is_char_boundary(at));
        words.truncate(end.unwrap_or(0));
        words.push('…');
    }
    words.shrink_to_fit();
}
