//! One worker, and a request's claim on it.
//!
//! It must not know how a worker is chosen.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_cluster::{ClusterError, Links, MemberKey, MemberTable};
use baton_proto::domain::WorkerInfo;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Channel;

use super::breaker::Breaker;
use super::directory::Directory;
use super::probe;
use crate::counters::Counters;

/// One worker incarnation and this router's own record of it.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) key: MemberKey,
    pub(crate) info: Arc<WorkerInfo>,
    /// Digest of its fingerprint: pairs have equal ones.
    pub(crate) digest: [u8; 32],
    /// Digest of what decides answers: a request that has begun to answer goes on where it is equal.
    pub(crate) answers: [u8; 32],
    /// Fields in which it contradicts the router's model; placed on only if there are none.
    pub(crate) differing: Vec<&'static str>,
    pub(crate) channel: Channel,
    /// For legs.
    pub(crate) links: Links,
    in_flight: AtomicU32,
    tokens: AtomicU64,
    draining: AtomicBool,
    /// Legs there that say nothing though they should.
    quiet_legs: AtomicU32,
    breaker: Mutex<Breaker>,
    /// For its latest report.
    members: watch::Receiver<Arc<MemberTable>>,
    counters: Arc<Counters>,
}

impl Worker {
    pub(super) fn new(
        key: MemberKey,
        info: Arc<WorkerInfo>,
        directory: &Directory,
    ) -> Result<Self, ClusterError> {
        Ok(Self {
            key,
            digest: info.fingerprint.digest(),
            answers: info.fingerprint.answers_digest(),
            differing: directory.model.differing_fields(&info.fingerprint),
            links: directory.dialer.links(&info.address)?,
            channel: directory.dialer.channel(&info.address)?,
            info,
            in_flight: AtomicU32::new(0),
            tokens: AtomicU64::new(0),
            draining: AtomicBool::new(false),
            quiet_legs: AtomicU32::new(0),
            breaker: Mutex::default(),
            members: directory.members(),
            counters: Arc::clone(&directory.counters),
        })
    }

    /// Requests of this router that are there now.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Work of those requests, as [`super::choose`] counts it.
    pub(super) fn work(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }

    /// How long its steps took of late; zero if it has not said.
    pub(crate) fn step_time(&self) -> Duration {
        let members = self.members.borrow();
        let step_us = members
            .get(&self.key)
            .map_or(0, |member| member.load.step_us);
        Duration::from_micros(u64::from(step_us))
    }

    /// Places nothing more there.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Counts a leg that says nothing, for as long as the guard lives.
    pub(crate) fn quiet(&self) -> Quiet<'_> {
        self.quiet_legs.fetch_add(1, Ordering::Relaxed);
        Quiet(self)
    }

    /// Whether some leg there says nothing though it should.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet_legs.load(Ordering::Relaxed) > 0
    }

    pub(super) fn breaker(&self) -> MutexGuard<'_, Breaker> {
        self.breaker.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One leg of a worker that says nothing.
#[derive(Debug)]
pub(crate) struct Quiet<'w>(&'w Worker);

impl Drop for Quiet<'_> {
    fn drop(&mut self) {
        self.0.quiet_legs.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request's claim on a worker, raised when the worker is selected and given back by `Drop`.
#[derive(Debug)]
pub(crate) struct Slot {
    worker: Arc<Worker>,
    work: u64,
    /// This request is the probe after a quarantine and has not said how it went.
    probe: bool,
    /// It has answered, and the breaker knows.
    answered: bool,
}

impl Slot {
    pub(super) fn claim(worker: &Arc<Worker>, work: u64) -> Self {
        worker.in_flight.fetch_add(1, Ordering::Relaxed);
        worker.tokens.fetch_add(work, Ordering::Relaxed);
        let probe = worker.breaker().enter();
        Self {
            worker: Arc::clone(worker),
            work,
            probe,
            answered: false,
        }
    }

    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    pub(crate) fn name(&self) -> String {
        self.worker.key.0.to_string()
    }

    /// The worker answered as it should.
    pub(crate) fn succeeded(&mut self) {
        if !self.answered {
            self.answered = true;
            self.probe = false;
            self.worker.breaker().succeed();
        }
    }

    /// The worker failed by its own fault.
    pub(crate) fn failed(&mut self, least: Duration, reason: &str) {
        self.probe = false;
        let mut breaker = self.worker.breaker();
        let begins = breaker.fail(Instant::now(), least, reason);
        let is_alone = begins && breaker.look_after();
        drop(breaker);
        if is_alone {
            probe::start(&self.worker);
        }
        if begins {
            Counters::add(&self.worker.counters.worker_failures);
            tracing::warn!(worker = %self.worker.key.0, reason, "worker quarantined");
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.worker.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.worker.tokens.fetch_sub(self.work, Ordering::Relaxed);
        if self.probe {
            self.worker.breaker().abandon_probe();
        }
    }
}
