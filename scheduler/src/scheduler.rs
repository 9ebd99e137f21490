//! The scheduler's state. State and clock in, decision out: no threads, channels or sockets.
//!
//! `admission` lets requests in and starts them, `plan` decides a step, `preempt` finds pages,
//! `outcome` books what a step gave, `transitions` does what the owner of a sequence asks for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_kv_cache::{PageHasher, PagePool};
use baton_sampling::Sampler;

use crate::group::Group;
use crate::load::{LoadSnapshot, StepTimes};
use crate::plan::{Plan, PlannedSlice};
use crate::progress::LayerProgress;
use crate::sequence::{Phase, Progress};
use crate::{SchedulerConfig, SequenceError, SequenceEvent, SequenceId};

/// What the engine can do.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelFacts {
    /// Token ids are below this.
    pub(crate) vocabulary: u32,
    /// Longest sequence, in tokens.
    pub(crate) context: u32,
    /// Chooses tokens from its logits.
    pub(crate) sampler: &'static dyn Sampler,
}

/// Totals since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) tokens: u64,
    pub(crate) preemptions: u64,
    pub(crate) cancelled: u64,
    pub(crate) prefix_hit_tokens: u64,
}

/// The head of the queue did not fit; looking again is worth while once one of these is better.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocked {
    pub(crate) head: SequenceId,
    /// The pages that were too few.
    pub(crate) available: u32,
    /// Pages in the prefix index by then ([`PagePool::indexed`]): more may be a longer prefix hit.
    pub(crate) indexed: u64,
    /// Tokens of prefix hits by then: whoever hits may hold what the head's prefix needs, too.
    pub(crate) prefix_hit_tokens: u64,
}

/// Owner of every sequence and page of a worker.
pub(crate) struct Scheduler {
    pub(crate) config: SchedulerConfig,
    pub(crate) model: ModelFacts,
    pub(crate) pool: PagePool,
    /// In order of arrival.
    pub(crate) groups: BTreeMap<SequenceId, Group>,
    /// Groups in [`Phase::Queued`].
    pub(crate) queue: BTreeSet<SequenceId>,
    /// Told but not yet taken.
    pub(crate) events: Vec<(SequenceId, SequenceEvent)>,
    /// Steps planned so far.
    pub(crate) step: u64,
    /// The last step had a chunk.
    pub(crate) chunks_ran: bool,
    pub(crate) blocked: Option<Blocked>,
    pub(crate) draining: bool,
    pub(crate) counters: Counters,
    step_times: StepTimes,
}

impl Scheduler {
    pub(crate) fn new(
        config: SchedulerConfig,
        model: ModelFacts,
        hasher: Box<dyn PageHasher>,
    ) -> Result<Self, SequenceError> {
        config.validate()?;
        Ok(Self {
            pool: PagePool::new(config.pages, config.page_size, hasher),
            config,
            model,
            groups: BTreeMap::new(),
            queue: BTreeSet::new(),
            events: Vec::new(),
            step: 0,
            chunks_ran: false,
            blocked: None,
            draining: false,
            counters: Counters::default(),
            step_times: StepTimes::default(),
        })
    }

    /// Events since the last call, in order.
    pub(crate) fn take_events(&mut self) -> Vec<(SequenceId, SequenceEvent)> {
        std::mem::take(&mut self.events)
    }

    /// Ends what has passed its deadline.
    pub(crate) fn expire(&mut self, now: Instant) {
        let overdue = |group: &&Group| !group.is_closed() && group.deadline <= now;
        let overdue: Vec<_> = self.groups.values().filter(overdue).map(|g| g.id).collect();
        for id in overdue {
            self.fail(id, SequenceError::DeadlineExceeded);
        }
    }

    /// When the next deadline passes.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let open = self.groups.values().filter(|group| !group.is_closed());
        open.map(|group| group.deadline).min()
    }

    pub(crate) fn record_step(&mut self, elapsed: Duration) {
        self.step_times.record(elapsed);
    }

    pub(crate) fn snapshot(&self) -> LoadSnapshot {
        let mut running = 0;
        let mut queued_tokens = 0;
        for group in self.groups.values() {
            match &group.phase {
                Phase::Queued => queued_tokens += u64::from(group.prompt_len()),
                Phase::Prompt(trunk) => {
                    queued_tokens += u64::from(group.trunk_len - trunk.computed);
                    running += group.alive().count();
                }
                Phase::Running => running += group.alive().count(),
                Phase::Reserved { .. } | Phase::Quarantined { .. } | Phase::Parked { .. } => {}
            }
        }
        LoadSnapshot {
            queued: self.queue.len() as u32,
            running: running as u32,
            queued_tokens,
            ledger: self.pool.ledger(),
            step_us: self.step_times.median_us(),
            steps: self.step,
            tokens: self.counters.tokens,
            preemptions: self.counters.preemptions,
            cancelled: self.counters.cancelled,
            evicted: self.pool.evicted(),
            prefix_hit_tokens: self.counters.prefix_hit_tokens,
        }
    }

    /// Listeners of the plan's hand-off prompts: `(listener, tokens complete after the step, last chunk)`.
    pub(crate) fn listeners(&self, plan: &Plan) -> Vec<(Arc<dyn LayerProgress>, u32, bool)> {
        let trunks = plan.slices.iter().filter(|slice| slice.choice.is_none());
        let listener = |slice: &PlannedSlice| {
            let group = self.groups.get(&slice.id)?;
            let Progress::Listener(listener) = &group.progress else {
                return None;
            };
            let end = slice.from + slice.len;
            Some((Arc::clone(listener), end, end == group.trunk_len))
        };
        trunks.filter_map(listener).collect()
    }

    /// Choices that run or will land here.
    pub(crate) fn claimed_choices(&self) -> usize {
        let claimed = self.groups.values().filter(|group| group.claims_choices());
        claimed.map(|group| group.alive().count()).sum()
    }
}
