//! What the router remembers of requests: those that run, the last ones that have ended, and how TTFT, ITL
//! and throughput went, second by second.
//!
//! Bounded in number and size, and never text or tokens. It must not know who looks.

mod attempts;
mod bins;
mod history;
mod record;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::v1;
use tokio::time::Instant;
use tonic::Code;

use history::History;
pub(crate) use history::Pace;
pub(crate) use record::{Api, NewRecord, Record};

/// Requests that are remembered after their end.
pub(crate) const KEPT: usize = 512;
/// Requests of a list whose reader names no number.
const LISTED: usize = 100;

/// Requests by the order of their receipt, and their history.
#[derive(Debug)]
pub(crate) struct Recent {
    model: String,
    /// The router's start; clocks of all records and seconds count from here.
    origin: Instant,
    known: Mutex<Known>,
    history: History,
}

#[derive(Debug, Default)]
struct Known {
    next: u64,
    running: BTreeMap<u64, Arc<Record>>,
    /// In the order of their ends.
    ended: VecDeque<Arc<Record>>,
}

/// A request's place among those that run. Dropped without a word, it was cancelled.
#[derive(Debug)]
pub(crate) struct Entry {
    recent: Arc<Recent>,
    number: u64,
    record: Arc<Record>,
    code: Code,
}

impl Recent {
    pub(crate) fn new(model: &str) -> Arc<Self> {
        let origin = Instant::now();
        Arc::new(Self {
            model: model.to_owned(),
            origin,
            known: Mutex::default(),
            history: History::new(origin),
        })
    }

    /// Remembers a request from now on.
    pub(crate) fn begin(self: &Arc<Self>, new: NewRecord) -> Entry {
        self.history.received(u64::from(new.prompt_tokens));
        let record = Arc::new(Record::new(new, self.origin));
        let mut known = self.known();
        let number = known.next;
        known.next += 1;
        known.running.insert(number, Arc::clone(&record));
        drop(known);
        Entry {
            recent: Arc::clone(self),
            number,
            record,
            code: Code::Cancelled,
        }
    }

    /// Counts the tokens of one request.
    pub(crate) fn pace(self: &Arc<Self>) -> Pace {
        Pace::new(Arc::clone(self))
    }

    /// The newest requests first, without receipts.
    pub(crate) fn list(&self, limit: usize) -> v1::ListRequestsResponse {
        let limit = if limit == 0 { LISTED } else { limit };
        let mut records = self.records();
        records.sort_by_key(|record| std::cmp::Reverse(record.received));
        records.truncate(limit);
        let requests = records.iter().map(|record| self.told(record, false));
        v1::ListRequestsResponse {
            requests: requests.collect(),
            now_us: self.now_us(),
        }
    }

    /// One request by id, or the newest one of a label.
    pub(crate) fn get(&self, name: &str) -> Option<v1::GetRequestResponse> {
        let records = self.records();
        let by_id = records.iter().find(|record| record.id == name);
        let labelled = || {
            let of_label = records.iter().filter(|record| record.label == name);
            of_label.max_by_key(|record| record.received)
        };
        let record = by_id.or_else(labelled)?;
        Some(v1::GetRequestResponse {
            request: Some(self.told(record, true)),
            now_us: self.now_us(),
        })
    }

    /// The last seconds, or all of them if none are asked for.
    pub(crate) fn history(&self, seconds: usize) -> v1::GetHistoryResponse {
        v1::GetHistoryResponse {
            seconds: self.history.told(seconds),
            bin_ends_us: bins::ends().collect(),
            now_us: self.now_us(),
        }
    }

    fn told(&self, record: &Record, with_receipt: bool) -> v1::RequestRecord {
        let mut told = record.told(with_receipt);
        told.model.clone_from(&self.model);
        told
    }

    /// All that are known; the lock is held for as long as it takes to count references.
    fn records(&self) -> Vec<Arc<Record>> {
        let known = self.known();
        let all = known.running.values().chain(&known.ended);
        all.cloned().collect()
    }

    fn now_us(&self) -> u64 {
        micros(self.origin.elapsed())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Why it does not end well.
    pub(crate) fn why(&self, error: &impl ToString) {
        self.record.why(&error.to_string());
    }

    /// How it ends.
    pub(crate) fn end(mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.record.end(self.code);
        self.recent.history.ended(self.code == Code::Ok);
        let mut known = self.recent.known();
        if let Some(record) = known.running.remove(&self.number) {
            if known.ended.len() >= KEPT {
                known.ended.pop_front();
            }
            known.ended.push_back(record);
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(label: &str) -> NewRecord {
        received(label, Instant::now())
    }

    fn received(label: &str, received: Instant) -> NewRecord {
        NewRecord {
            id: format!("id-{label}"),
            label: label.to_owned(),
            api: Api::Grpc,
            received,
            prompt_tokens: 3,
            choices: 1,
        }
    }

    fn attempt(number: u32, reason: &str) -> v1::PlacementAttempt {
        v1::PlacementAttempt {
            attempt: number,
            reason: reason.to_owned(),
            ..v1::PlacementAttempt::default()
        }
    }

    #[test]
    fn what_is_remembered_is_bounded_and_the_newest_comes_first() {
        let recent = Recent::new("model");
        let start = Instant::now();
        let long_one = recent.begin(received("long", start));
        for number in 0..=KEPT {
            let at = start + Duration::from_micros(1 + number as u64);
            recent
                .begin(received(&number.to_string(), at))
                .end(Code::Ok);
        }
        let listed = recent.list(usize::MAX).requests;
        assert_eq!(listed.len(), KEPT + 1);
        assert_eq!(listed[0].request_label, KEPT.to_string());
        assert_eq!(listed[KEPT].request_label, "long");
        assert_eq!(recent.list(2).requests.len(), 2);
        assert_eq!(recent.list(0).requests.len(), LISTED);
        assert!(
            recent.get("id-0").is_none(),
            "the first to end is forgotten"
        );
        assert_eq!(recent.get("id-1").unwrap().request.unwrap().outcome, "ok");
        drop(long_one);
        let gone = recent.get("long").unwrap().request.unwrap();
        assert_eq!(gone.outcome, "cancelled");
    }

    #[test]
    fn of_many_attempts_the_first_and_the_last_are_kept() {
        let recent = Recent::new("model");
        let entry = recent.begin(new("a"));
        for number in 1..=40 {
            entry.record().attempt(&attempt(number, &"ü".repeat(1000)));
            entry.record().failed("lost");
        }
        let record = recent.get("a").unwrap().request.unwrap();
        let told = |attempt: &v1::RequestAttempt| attempt.placement.clone().unwrap();
        let numbers: Vec<u32> = (record.attempts.iter()).map(|a| told(a).attempt).collect();
        let expected: Vec<u32> = (1..=8).chain(33..=40).collect();
        assert_eq!(numbers, expected);
        assert_eq!(record.attempts_left_out, 24);
        assert!(told(&record.attempts[0]).reason.len() <= 240);
        assert_eq!(told(&record.attempts[15]).failure, "lost");
    }

    #[test]
    fn phases_follow_what_is_heard() {
        let recent = Recent::new("model");
        let entry = recent.begin(new("a"));
        let record = entry.record();
        let phase = || recent.get("a").unwrap().request.unwrap().phase;
        assert_eq!(phase(), "waiting");
        record.admitted();
        assert_eq!(phase(), "queued");
        let mut split = attempt(1, "split");
        split.prefill_worker = "prefill-0".into();
        record.attempt(&split);
        assert_eq!(phase(), "queued");
        record.scheduled();
        record.granted("decode-0");
        assert_eq!(phase(), "prefill");
        record.token(1);
        assert_eq!(phase(), "transfer");
        record.landed();
        assert_eq!(phase(), "decode");
        record.failed("decode-0: lost");
        record.attempt(&attempt(2, "local"));
        record.scheduled();
        assert_eq!(phase(), "prefill");
        record.token(2);
        assert_eq!(phase(), "decode");
        entry.end(Code::Ok);
        assert_eq!(phase(), "ended");
    }

    #[test]
    fn history_has_no_gaps_and_forgets() {
        let recent = Recent::new("model");
        let mut pace = recent.pace();
        pace.first(recent.origin, Duration::from_millis(5));
        pace.token(recent.origin, None);
        let gap = Duration::from_secs(3);
        pace.token(recent.origin + gap, Some(gap));
        drop(pace);
        let seconds = recent.history.told_at(3, usize::MAX);
        let tokens: Vec<u64> = seconds.iter().map(|s| s.completion_tokens).collect();
        assert_eq!(tokens, [1, 0, 0, 1]);
        let ttft = seconds[0].ttft.clone().unwrap();
        assert_eq!(ttft.counts, [1]);
        let end = bins::ends().nth(ttft.first_bin as usize).unwrap();
        assert!((5000..6300).contains(&end), "{end}");
        assert_eq!(recent.history.told_at(3, 2).len(), 2);
        let seconds = recent.history.told_at(503, usize::MAX);
        assert_eq!(seconds.len(), 120);
        assert_eq!(seconds[119].second, 503);
        assert!(seconds.iter().all(|s| s.completion_tokens == 0));
        assert_eq!(recent.history.told_at(504, usize::MAX)[0].second, 385);
        recent.history.change(3, |oldest| oldest.received = 7);
        assert_eq!(recent.history.told_at(504, usize::MAX)[0].received, 7);
    }
}
