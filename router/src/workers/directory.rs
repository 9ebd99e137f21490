//! The member table joined with the router's own record of each worker.
//!
//! It must not know why a worker is wanted.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_cluster::{Dialer, Member, MemberKey, MemberTable};
use baton_proto::domain::{WorkerInfo, WorkerLoad, WorkerRole};
use tokio::sync::watch;
use tokio::time::Instant;

use super::slot::Worker;
use crate::affinity::{PrefixHashes, PrefixRecord};
use crate::counters::Counters;
use crate::model::ServedModel;

/// Loads older than this count as unknown: workers report every second, so that one which has been stopped
/// shows here before its connection breaks.
const STALE_AFTER: Duration = Duration::from_millis(1600);
/// A worker that is still there is found again well within this time.
const EXPECTED_BACK: Duration = Duration::from_secs(2);
/// Prefixes remembered: about a hundred bytes each.
const PREFIXES: usize = 1 << 16;

const READY: &str = "ready";
const DRAINING: &str = "draining";
const QUARANTINED: &str = "quarantined";
const INCOMPATIBLE: &str = "incompatible";
/// What a worker can be, in one word.
pub(crate) const STATES: [&str; 4] = [READY, DRAINING, QUARANTINED, INCOMPATIBLE];

/// All workers. Placement is serialised here, so that a claim is seen by the next one.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(super) model: ServedModel,
    members: watch::Receiver<Arc<MemberTable>>,
    pub(super) dialer: Dialer,
    pub(super) counters: Arc<Counters>,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    table: Arc<MemberTable>,
    workers: BTreeMap<MemberKey, Arc<Worker>>,
    pub(super) prefixes: PrefixRecord,
    /// When the last open decode worker left the table.
    decode_lost_at: Option<Instant>,
}

/// One worker with its last report, for operators.
#[derive(Debug, Clone)]
pub(crate) struct WorkerView {
    pub(crate) worker: Arc<Worker>,
    pub(crate) load: Arc<WorkerLoad>,
    pub(crate) load_at: Option<Instant>,
    pub(crate) refused_loads: u64,
}

impl Directory {
    pub(crate) fn new(
        model: ServedModel,
        members: watch::Receiver<Arc<MemberTable>>,
        dialer: Dialer,
        counters: Arc<Counters>,
    ) -> Self {
        let state = State {
            table: Arc::default(),
            workers: BTreeMap::new(),
            prefixes: PrefixRecord::new(PREFIXES),
            decode_lost_at: None,
        };
        Self {
            model,
            members,
            dialer,
            counters,
            state: Mutex::new(state),
        }
    }

    /// The member table, for those who wait for it to change.
    pub(crate) fn members(&self) -> watch::Receiver<Arc<MemberTable>> {
        self.members.clone()
    }

    /// Everyone in the table now.
    pub(crate) fn views(&self) -> Vec<WorkerView> {
        self.lock().members().collect()
    }

    /// Whether requests can be served: one compatible decode worker is enough, since it also
    /// prefills when nobody else does.
    pub(crate) fn is_ready(&self) -> bool {
        self.lock().has_decode()
    }

    /// Until when decode workers are expected back that have all been lost at once, as by a router that
    /// was cut off or stood still: it takes a moment to find them again.
    pub(crate) fn decode_expected_until(&self) -> Option<Instant> {
        Some(self.lock().decode_lost_at? + EXPECTED_BACK)
    }

    /// Notes that a worker holds a sequence's pages.
    pub(crate) fn note_prefix(&self, prefixes: &PrefixHashes, worker: &MemberKey) {
        self.lock().prefixes.note(prefixes, worker);
    }

    /// The state, brought up to the newest table.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        let table = Arc::clone(&self.members.borrow());
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&table, &state.table) {
            state.update(table, self);
        }
        state
    }
}

impl State {
    fn update(&mut self, table: Arc<MemberTable>, directory: &Directory) {
        let had_decode = self.has_decode();
        // A worker that comes back under its key is the same process: what runs there still counts.
        self.workers
            .retain(|key, worker| table.get(key).is_some() || worker.in_flight() > 0);
        for (key, member) in table.iter() {
            let known = self.workers.get(key);
            if known.is_some_and(|worker| same_process(&worker.info, &member.info)) {
                continue;
            }
            let info = Arc::clone(&member.info);
            match Worker::new(key.clone(), info, directory) {
                Ok(worker) => {
                    self.workers.insert(key.clone(), Arc::new(worker));
                }
                Err(error) => tracing::warn!(worker = %key.0, %error, "worker cannot be reached"),
            }
        }
        self.table = table;
        if had_decode && !self.has_decode() {
            self.decode_lost_at = Some(Instant::now());
        }
    }

    fn has_decode(&self) -> bool {
        self.members()
            .any(|view| view.worker.info.role == WorkerRole::Decode && view.is_open())
    }

    pub(super) fn members(&self) -> impl Iterator<Item = WorkerView> + '_ {
        self.table.iter().filter_map(|(key, member)| {
            self.workers
                .get(key)
                .map(|worker| WorkerView::new(worker, member))
        })
    }
}

fn same_process(known: &Arc<WorkerInfo>, now: &Arc<WorkerInfo>) -> bool {
    Arc::ptr_eq(known, now) || known == now
}

impl WorkerView {
    fn new(worker: &Arc<Worker>, member: &Member) -> Self {
        Self {
            worker: Arc::clone(worker),
            load: Arc::clone(&member.load),
            load_at: member.load_at,
            refused_loads: member.refused_loads,
        }
    }

    /// Whether it takes requests at all: it fits the model and does not drain.
    pub(super) fn is_open(&self) -> bool {
        self.worker.differing.is_empty() && !self.is_draining()
    }

    fn is_draining(&self) -> bool {
        self.load.draining || self.worker.is_draining()
    }

    /// Whether nothing was heard of it of late, or a leg waits there for a word that is due.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        self.worker.is_quiet()
            || self
                .load_at
                .is_none_or(|at| now.saturating_duration_since(at) > STALE_AFTER)
    }

    /// As operators read it.
    pub(crate) fn state(&self) -> String {
        let name = self.state_name();
        match name {
            INCOMPATIBLE => format!("{name}: {}", self.worker.differing.join(", ")),
            QUARANTINED => {
                let breaker = self.worker.breaker();
                let reason = breaker.quarantine().map_or("", |(_, reason)| reason);
                format!("{name}: {reason}")
            }
            _ => name.to_owned(),
        }
    }

    /// One of [`STATES`].
    pub(crate) fn state_name(&self) -> &'static str {
        if !self.worker.differing.is_empty() {
            return INCOMPATIBLE;
        }
        if self.is_draining() {
            return DRAINING;
        }
        let breaker = self.worker.breaker();
        let quarantined = breaker.quarantine().is_some() && !breaker.is_half_over(Instant::now());
        if quarantined { QUARANTINED } else { READY }
    }
}
