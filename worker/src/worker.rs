//! One running worker: identity, step loop, its legs and whether it drains.
//!
//! It must not know what the legs do.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_engine::StepEngine;
use baton_proto::SequenceLimits;
use baton_proto::domain::{WorkerInfo, WorkerLoad, WorkerRole};
use baton_proto::limits::MAX_PROMPT_LOGPROBS;
use baton_scheduler::{SchedulerConfig, SequenceError, StepHandle};
use baton_telemetry::metrics::Metrics;
use baton_telemetry::traces::Tracer;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;

use crate::metrics::Steps;
use crate::{Drive, KvRegion, LegError, WorkerError, WorkerOptions};

/// A choice that runs gets a token at least every this many steps.
const DECODE_EVERY: u32 = 4;
/// How long the end of the step loop may take to show after the end of its sequences.
const LOOP_END: Duration = Duration::from_millis(100);
/// Most rows of logits in one step for log-probabilities of prompts, each a vocabulary of f32: enough
/// tokens for the kernels of prefill, and no more memory than a full batch of decode rows takes.
pub(crate) const PROMPT_ROWS: usize = 64;
const _: () = assert!(
    PROMPT_ROWS <= MAX_PROMPT_LOGPROBS,
    "a chunk's entries are one message"
);
/// Share of a decode worker's pool that admission keeps free for growth, percent.
const HEADROOM_PERCENT: u32 = 5;

/// Identity, step loop and legs of a worker that has loaded its model.
pub struct Worker {
    info: WorkerInfo,
    fingerprint_digest: [u8; 32],
    limits: SequenceLimits,
    steps: StepHandle,
    /// What was last seen of the step thread's pulse, and when that was news.
    pulse: Mutex<(u64, Instant)>,
    write_deadline: Duration,
    draining: watch::Sender<bool>,
    routers: watch::Sender<Routers>,
    legs: TaskTracker,
    ended: CancellationToken,
    legs_started: AtomicU64,
    legs_done: AtomicU64,
    failures: Mutex<BTreeMap<&'static str, u64>>,
    tracer: Tracer,
}

impl Worker {
    /// Starts the step loop over an engine.
    ///
    /// # Errors
    /// Settings that the scheduler refuses.
    pub(crate) fn start(
        info: WorkerInfo,
        (engine, drive): (Box<dyn StepEngine>, Drive),
        eos_ids: Vec<u32>,
        region: &KvRegion,
        options: &WorkerOptions,
        metrics: &Metrics,
    ) -> Result<Arc<Self>, WorkerError> {
        let limits = SequenceLimits {
            vocabulary: engine.vocabulary() as u32,
            context_length: engine.context_length(),
        };
        let fingerprint_digest = info.fingerprint.digest();
        let layout = &region.layout;
        let prefill = info.role == WorkerRole::Prefill;
        let config = SchedulerConfig {
            pages: layout.pages,
            page_size: layout.page_size,
            token_budget: options.token_budget,
            max_chunk: options.max_chunk,
            max_batch: options.max_batch,
            max_prompt_rows: PROMPT_ROWS,
            max_queued: options.max_queued,
            // A prompt grows by one token at most on a prefill worker.
            headroom_percent: if prefill { 0 } else { HEADROOM_PERCENT },
            decode_every: DECODE_EVERY,
            fingerprint_digest,
            prefix_cache: options.prefix_cache,
            eos_ids,
            write_deadline: options.write_deadline,
            max_pages_awaiting_grant: (layout.pages / 2).max(1),
        };
        let steps = baton_scheduler::step_loop(engine, config).and_then(|(steps, step_loop)| {
            drive(step_loop.observed_by(Steps::new(metrics)))?;
            Ok(steps)
        });
        let steps = steps.map_err(WorkerError::Scheduler)?;
        Ok(Arc::new(Self {
            info,
            fingerprint_digest,
            limits,
            steps,
            pulse: Mutex::new((0, Instant::now())),
            write_deadline: options.write_deadline,
            draining: watch::Sender::new(false),
            routers: watch::Sender::default(),
            legs: TaskTracker::new(),
            ended: CancellationToken::new(),
            legs_started: AtomicU64::new(0),
            legs_done: AtomicU64::new(0),
            failures: Mutex::default(),
            tracer: options.tracer.clone(),
        }))
    }

    /// Who this worker is.
    pub fn info(&self) -> &WorkerInfo {
        &self.info
    }

    /// Digest of the fingerprint that requests must have been placed by.
    pub fn fingerprint_digest(&self) -> [u8; 32] {
        self.fingerprint_digest
    }

    /// What the model allows a sequence to be.
    pub fn limits(&self) -> &SequenceLimits {
        &self.limits
    }

    /// Where spans of requests begin.
    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    /// The step loop.
    pub fn steps(&self) -> &StepHandle {
        &self.steps
    }

    /// How long the step thread has been stuck: neither waiting for work nor done with a layer, as far
    /// as those who ask here have seen.
    pub(crate) fn still_since(&self) -> Duration {
        let mut pulse = self.pulse.lock().unwrap_or_else(PoisonError::into_inner);
        let (seen, moved_at) = &mut *pulse;
        if self.steps.has_moved(seen) {
            *moved_at = Instant::now();
        }
        moved_at.elapsed()
    }

    /// Load report, with the data plane's own counters added.
    pub fn load(&self, data_plane: Vec<(&'static str, u64)>) -> WorkerLoad {
        let snapshot = self.steps.snapshot();
        let legs = self.leg_figures();
        let own = [
            ("steps", snapshot.steps),
            ("tokens", snapshot.tokens),
            ("preemptions", snapshot.preemptions),
            ("cancelled", snapshot.cancelled),
            ("evicted_pages", snapshot.evicted),
            ("prefix_hit_tokens", snapshot.prefix_hit_tokens),
            ("legs_started", legs.started),
            ("legs_done", legs.done),
        ];
        let named = own
            .into_iter()
            .chain(data_plane)
            .chain(self.tracer.counters());
        let counters = named
            .map(|(name, value)| (name.to_owned(), value))
            .chain(
                legs.failures
                    .into_iter()
                    .map(|(reason, count)| (format!("legs_{reason}"), count)),
            )
            .collect();
        WorkerLoad {
            queued: snapshot.queued,
            running: snapshot.running,
            queued_tokens: snapshot.queued_tokens,
            pages: snapshot.ledger,
            step_us: snapshot.step_us,
            draining: self.is_draining(),
            counters,
        }
    }

    /// Legs so far.
    pub(crate) fn leg_figures(&self) -> LegFigures {
        LegFigures {
            started: self.legs_started.load(Ordering::Relaxed),
            done: self.legs_done.load(Ordering::Relaxed),
            failures: self.failures().clone(),
        }
    }

    /// Runs a leg to its end. A drain waits for it.
    pub fn spawn_leg(&self, leg: impl Future<Output = ()> + Send + 'static) {
        self.legs_started.fetch_add(1, Ordering::Relaxed);
        self.spawn(leg);
    }

    /// Runs what must still happen after a leg. A drain waits for it.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.legs.spawn(task);
    }

    /// Why the events of a sequence ended without a last one: with the step loop, or because nobody
    /// took them for so long that not even the news of that found room.
    pub(crate) async fn why_silent(&self) -> SequenceError {
        match tokio::time::timeout(LOOP_END, self.steps.ended()).await {
            Ok(()) => SequenceError::Gone,
            Err(_) => SequenceError::SlowReader(self.write_deadline),
        }
    }

    /// Legs that run, and fences that are still waited for.
    pub fn legs(&self) -> usize {
        self.legs.len()
    }

    /// Resolves when legs must end now: the drain limit has passed.
    pub async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Accepts nothing new from now on.
    pub fn drain(&self) {
        if !self.draining.send_replace(true) {
            tracing::info!(legs = self.legs(), "draining");
            self.steps.drain();
        }
    }

    /// Whether nothing new is accepted.
    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Changes when draining starts.
    pub(crate) fn watch_drain(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    /// Counts a router that reads this worker's load, for as long as the guard lives; whether the worker fits
    /// its model.
    pub(crate) fn read_load(self: &Arc<Self>, fits: bool) -> LoadReader {
        self.routers
            .send_modify(|routers| *routers.count(fits) += 1);
        let worker = Arc::clone(self);
        LoadReader { worker, fits }
    }

    /// The routers that read the load now.
    pub(crate) fn routers(&self) -> watch::Receiver<Routers> {
        self.routers.subscribe()
    }

    /// Drains, gives legs until `limit`, then ends the rest and waits, bounded, for them.
    pub(crate) async fn finish(&self, limit: Duration, grace: Duration) {
        self.drain();
        self.legs.close();
        if tokio::time::timeout(limit, self.legs.wait()).await.is_err() {
            tracing::warn!(
                legs = self.legs(),
                ?limit,
                "drain limit passed, ending what runs"
            );
        }
        self.ended.cancel();
        if tokio::time::timeout(grace, self.legs.wait()).await.is_err() {
            tracing::warn!(legs = self.legs(), "ended with peers that did not confirm");
        }
    }

    /// Counts a leg that ended well.
    pub(crate) fn leg_done(&self) {
        self.legs_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts and logs the end of a leg, and says it in gRPC's words.
    pub(crate) fn leg_failed(&self, request_id: &str, error: LegError) -> Status {
        *self.failures().entry(error.reason()).or_default() += 1;
        tracing::debug!(request_id, %error, "leg ended");
        error.into()
    }

    fn failures(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many routers read a worker's load.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Routers {
    /// Those that place requests there.
    pub(crate) fitting: usize,
    /// Those that serve another model.
    pub(crate) other: usize,
}

impl Routers {
    fn count(&mut self, fits: bool) -> &mut usize {
        if fits {
            &mut self.fitting
        } else {
            &mut self.other
        }
    }
}

/// Legs of a worker since its start.
pub(crate) struct LegFigures {
    pub(crate) started: u64,
    /// Ended well.
    pub(crate) done: u64,
    /// Ended otherwise, by reason.
    pub(crate) failures: BTreeMap<&'static str, u64>,
}

/// One router that reads the load.
pub(crate) struct LoadReader {
    worker: Arc<Worker>,
    fits: bool,
}

impl Drop for LoadReader {
    fn drop(&mut self) {
        let routers = &self.worker.routers;
        routers.send_modify(|routers| *routers.count(self.fits) -= 1);
    }
}
