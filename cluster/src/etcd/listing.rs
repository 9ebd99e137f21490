//! The router's side: the whole prefix is read, then watched from the revision after.
//!
//! Whatever ends a watch (a compaction, a lost connection, silence) is answered by reading the whole
//! prefix again, which replaces what was listed before. It must not know what becomes of the workers
//! that it reads of.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::WorkerInfo;
use etcd_client::{Client, GetOptions, KeyValue, WatchOptions, WatchResponse};
use tokio::time::{Instant, MissedTickBehavior};

use super::candidates::Candidates;
use super::options::EtcdOptions;
use super::record;
use super::session::{answered, connect};
use super::standing::Standing;
use super::told::Told;
use crate::ClusterError;
use crate::backoff::Backoff;
use crate::dialer::Dialer;
use crate::membership::CheckWorker;
use crate::table::{MAX_MEMBERS, TableWriter};

/// Keys of one read: values may be as large as etcd allows, 1.5 MiB by default.
const PAGE: usize = 32;
/// Most bytes of one answer.
const MAX_ANSWER_BYTES: usize = 64 << 20;
/// Most keys that are read, valid or not.
const MAX_KEYS: usize = 2 * MAX_MEMBERS;
/// A watch is asked for its progress this often.
const PROGRESS: Duration = Duration::from_secs(2);
/// A watch that says nothing for this long is dead.
const SILENCE: Duration = Duration::from_secs(6);
/// A connection that lasted this long was a good one.
const STEADY: Duration = Duration::from_secs(2);

/// Follows etcd for as long as the router lives.
pub(crate) async fn keep_members(
    options: EtcdOptions,
    dialer: Dialer,
    writer: Arc<TableWriter>,
    check: CheckWorker,
    standing: Arc<Standing>,
) {
    let mut listing = Listing {
        options,
        dialer: dialer.clone(),
        candidates: Candidates::new(dialer, writer, check, Arc::clone(&standing)),
        standing,
        told: Told::default(),
        // The first answer is news.
        away: true,
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    for attempt in 0.. {
        let began = Instant::now();
        let error = match listing.session(attempt).await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        // What breaks again at once is not asked again at once.
        if began.elapsed() >= STEADY {
            backoff.reset();
        }
        if !std::mem::replace(&mut listing.away, true) || attempt == 0 {
            let known = listing.candidates.len();
            tracing::warn!(%error, known, "etcd is away; going on with the workers known so far");
        }
        tokio::time::sleep(backoff.delay()).await;
        listing.candidates.sweep();
    }
}

struct Listing {
    options: EtcdOptions,
    dialer: Dialer,
    candidates: Candidates,
    standing: Arc<Standing>,
    /// Skipped entries.
    told: Told,
    /// Whether there has been no full read since the last trouble, which has been told.
    away: bool,
}

impl Listing {
    /// One connection: list, then watch. Ends with what ended it.
    async fn session(&mut self, attempt: usize) -> Result<std::convert::Infallible, ClusterError> {
        let mut client = connect(&self.options, &self.dialer, attempt).await?;
        let revision = self.list(&mut client).await?;
        let prefix = self.options.prefix().workers();
        let options = WatchOptions::new()
            .with_prefix()
            .with_start_revision(revision + 1)
            .with_progress_notify()
            .with_fragment();
        let mut watches = client
            .watch_client()
            .max_decoding_message_size(MAX_ANSWER_BYTES);
        let mut watch = answered("a watch", watches.watch(prefix, Some(options))).await?;
        let mut progress = tokio::time::interval(PROGRESS);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut heard = Instant::now();
        loop {
            tokio::select! {
                message = watch.message() => {
                    let message = message?;
                    let message = message.ok_or_else(|| cancelled("the stream has ended"))?;
                    if message.canceled() {
                        return Err(cancelled(message.cancel_reason()));
                    }
                    heard = Instant::now();
                    self.standing.heard();
                    self.apply(&message);
                }
                _ = progress.tick() => {
                    answered("requests for progress", watch.request_progress()).await?;
                    self.candidates.sweep();
                }
                () = tokio::time::sleep_until(heard + SILENCE) => {
                    return Err(ClusterError::EtcdSilent { what: "on its watch" });
                }
            }
        }
    }

    /// Reads the whole prefix as of one revision, which is returned.
    async fn list(&mut self, client: &mut Client) -> Result<i64, ClusterError> {
        let mut kv = client
            .kv_client()
            .max_decoding_message_size(MAX_ANSWER_BYTES);
        let mut from = self.options.prefix().workers().into_bytes();
        let end = range_end(&from);
        let mut revision = 0;
        let (mut read, mut listed) = (0, Vec::new());
        self.told.begin_read();
        loop {
            let options = GetOptions::new()
                .with_range(end.clone())
                .with_limit(PAGE as i64)
                .with_revision(revision);
            let answer = answered("a read", kv.get(from, Some(options))).await?;
            if revision == 0 {
                revision = answer
                    .header()
                    .map_or(0, etcd_client::ResponseHeader::revision);
            }
            listed.extend(answer.kvs().iter().filter_map(|entry| self.read(entry)));
            read += answer.kvs().len();
            let Some(last) = answer.kvs().last().filter(|_| answer.more()) else {
                break;
            };
            if read >= MAX_KEYS {
                tracing::warn!(
                    limit = MAX_KEYS,
                    "too many keys in etcd; the rest is not read"
                );
                break;
            }
            // The smallest key after it.
            from = [last.key(), &[0]].concat();
        }
        if std::mem::replace(&mut self.away, false) {
            let age_ms = self.standing.age().as_millis();
            let entries = listed.len();
            tracing::info!(entries, age_ms, "workers read from etcd");
        }
        self.told.end_read();
        self.standing.heard();
        self.standing.full_read();
        self.candidates.replace(listed);
        Ok(revision)
    }

    fn apply(&mut self, message: &WatchResponse) {
        for entry in message.events().iter().filter_map(etcd_client::Event::kv) {
            // Only what was deleted has version 0.
            if entry.version() == 0 {
                self.told.forget(entry.key());
                if let Some(name) = self.options.prefix().parse(entry.key()) {
                    self.candidates.unlist(&name);
                }
            } else if let Some(info) = self.read(entry) {
                self.candidates.put(info);
            }
        }
    }

    /// An entry, if it is valid; else it is skipped, and told once.
    fn read(&mut self, entry: &KeyValue) -> Option<WorkerInfo> {
        let (named, error) = match record::decode(self.options.prefix(), entry.key(), entry.value())
        {
            Ok(info) => {
                self.told.forget(entry.key());
                return Some(info);
            }
            Err(wrong) => wrong,
        };
        // What was said before of the one that it names no longer counts.
        if let Some(name) = named {
            self.candidates.unlist(&name);
        }
        // All that one read can meet.
        if (self.told).is_news(entry.key(), entry.mod_revision(), MAX_KEYS + PAGE) {
            self.standing.skip();
            let key: String = String::from_utf8_lossy(entry.key())
                .chars()
                .take(256)
                .collect();
            tracing::warn!(key, error, "entry in etcd skipped");
        }
        None
    }
}

fn cancelled(reason: &str) -> ClusterError {
    ClusterError::Etcd(format!("the watch was cancelled: {reason}"))
}

/// The smallest key after all that begin with `prefix`, which ends in `/`.
fn range_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}
