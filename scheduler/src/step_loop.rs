//! The step loop: the only owner of scheduler and engine. It has a thread of its own, or, where an engine
//! only pretends to compute, is a task.
//!
//! Between steps it reads its inbox and delivers events; it waits for nothing but the inbox and the next
//! deadline, and only when nothing can run. It must not know networks, transfers or the router.

use std::sync::Arc;
use std::time::Instant;

use baton_engine::{Batch, EngineError, StepEngine};
use tokio::sync::{oneshot, watch};

use crate::inbox::{Command, Inbox, Letters};
use crate::load::LoadSnapshot;
use crate::mailbox::{Mailboxes, ReaderNews};
use crate::observer::{StepFigures, StepObserver};
use crate::plan::Plan;
use crate::pulse::Pulse;
use crate::scheduler::Scheduler;
use crate::{ReservedPages, SequenceError};

/// A step loop that waits to be run. However it ends (a panic of the engine too), its inbox is closed and
/// all channels end.
pub struct StepLoop {
    /// Held for its `Drop`, before all others.
    _closing: CloseOnDrop,
    scheduler: Scheduler,
    engine: Box<dyn StepEngine>,
    mailboxes: Mailboxes,
    inbox: Arc<Inbox>,
    pulse: Arc<Pulse>,
    snapshots: watch::Sender<Arc<LoadSnapshot>>,
    observer: Option<Box<dyn StepObserver>>,
    /// Held for its `Drop`, which says that the loop has ended.
    _alive: watch::Sender<()>,
}

/// What a look around came to.
enum Turn {
    /// Nobody can ask any more.
    Over,
    /// Something was told; look again.
    Again,
    /// Nothing can run before a letter or this instant.
    Idle(Option<Instant>),
    /// Run this.
    Step(Plan),
}

impl StepLoop {
    pub(crate) fn new(
        scheduler: Scheduler,
        engine: Box<dyn StepEngine>,
        inbox: Arc<Inbox>,
        pulse: Arc<Pulse>,
        snapshots: watch::Sender<Arc<LoadSnapshot>>,
        alive: watch::Sender<()>,
    ) -> Self {
        let write_deadline = scheduler.config.write_deadline;
        Self {
            mailboxes: Mailboxes::new(write_deadline, Arc::clone(&inbox)),
            _closing: CloseOnDrop(Arc::clone(&inbox)),
            scheduler,
            engine,
            inbox,
            pulse,
            snapshots,
            observer: None,
            _alive: alive,
        }
    }

    /// Tells of each step.
    #[must_use]
    pub fn observed_by(mut self, observer: impl StepObserver + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// Runs on this thread until nobody can ask any more.
    pub fn run(mut self) {
        loop {
            match self.turn() {
                Turn::Over => return,
                Turn::Again => {}
                Turn::Idle(until) => {
                    let _waiting = self.pulse.waiting();
                    self.inbox.wait(until);
                }
                Turn::Step(plan) => {
                    let started = now();
                    self.perform(plan, started);
                }
            }
        }
    }

    /// Like [`run`](Self::run), as a task: for engines that take no time of their own. A step of so many
    /// tokens begins, `pace(tokens)` passes, and then all of the step happens at once.
    pub async fn run_paced<F: Future<Output = ()>>(mut self, mut pace: impl FnMut(usize) -> F) {
        loop {
            match self.turn() {
                Turn::Over => return,
                Turn::Again => {}
                Turn::Idle(until) => {
                    let _waiting = self.pulse.waiting();
                    self.inbox.arrived(until).await;
                }
                Turn::Step(plan) => {
                    let started = now();
                    pace(plan.tokens()).await;
                    self.perform(plan, started);
                }
            }
        }
    }

    /// Everything between two steps.
    fn turn(&mut self) -> Turn {
        self.pulse.beat();
        let letters = self.inbox.take();
        if letters.closed {
            return Turn::Over;
        }
        let now = now();
        self.read(now, letters);
        self.scheduler.expire(now);
        let has_news = self.poll_readers(now);
        let mut plan = self.scheduler.plan();
        let has_events = self.deliver(now);
        self.scheduler.prune(&mut plan);
        if !plan.slices.is_empty() {
            Turn::Step(plan)
        } else if has_news || has_events {
            Turn::Again
        } else {
            Turn::Idle(self.next_deadline())
        }
    }

    /// A step, and the news of it.
    fn perform(&mut self, plan: Plan, started: Instant) {
        let (tokens, sequences) = (plan.tokens(), plan.slices.len());
        self.step(plan);
        let ended = now();
        let elapsed = ended - started;
        self.scheduler.record_step(elapsed);
        if let Some(observer) = &self.observer {
            observer.stepped(StepFigures {
                tokens,
                sequences,
                elapsed,
            });
        }
        self.deliver(ended);
    }

    /// Requests first, then what gives something back: a release always finds what it releases.
    fn read(&mut self, now: Instant, letters: Letters) {
        let answers: Vec<Answer> = letters
            .commands
            .into_iter()
            .map(|command| self.obey(now, command))
            .collect();
        for (id, granted) in letters.granted {
            self.scheduler.set_granted(id, granted);
        }
        for (id, choice) in letters.cancelled_choices {
            self.scheduler.cancel_choice(id, choice);
        }
        for id in letters.quarantined {
            self.scheduler.quarantine(id);
        }
        for id in letters.released {
            self.scheduler.release(id);
            self.mailboxes.close(id);
        }
        if letters.drain {
            self.scheduler.drain();
        }
        if !answers.is_empty() {
            self.publish();
            answers.into_iter().for_each(Answer::send);
        }
    }

    fn obey(&mut self, now: Instant, command: Command) -> Answer {
        match command {
            Command::Submit {
                id,
                spec,
                after,
                progress,
                events,
                reply,
            } => {
                let result = self.scheduler.submit(now, id, spec, after, progress);
                if result.is_ok() {
                    self.mailboxes.open(id, events);
                }
                Answer::Plain(reply, result)
            }
            Command::Reserve {
                id,
                spec,
                events,
                reply,
            } => {
                let result = self.scheduler.reserve(now, id, spec);
                if result.is_ok() {
                    self.mailboxes.open(id, events);
                }
                Answer::Reserved(reply, result)
            }
            Command::Land {
                id,
                first_tokens,
                running_choices,
                reply,
            } => {
                let result = self.scheduler.land(id, &first_tokens, &running_choices);
                Answer::Plain(reply, result)
            }
        }
    }

    /// Whether anything has changed.
    fn poll_readers(&mut self, now: Instant) -> bool {
        let news = self.mailboxes.poll(now);
        for news in &news {
            self.heed(*news);
        }
        !news.is_empty()
    }

    /// Hands out what the scheduler has told; whether that was anything. Whoever hears an event finds
    /// its effect in the snapshot.
    fn deliver(&mut self, now: Instant) -> bool {
        self.publish();
        let events = self.scheduler.take_events();
        let is_some = !events.is_empty();
        for (id, event) in events {
            if let Some(news) = self.mailboxes.post(now, id, event) {
                self.heed(news);
            }
        }
        is_some
    }

    fn heed(&mut self, news: ReaderNews) {
        match news {
            ReaderNews::Behind(id) => self.scheduler.set_paused(id, true),
            ReaderNews::CaughtUp(id) => self.scheduler.set_paused(id, false),
            ReaderNews::TooSlow(id) => {
                let write_deadline = self.scheduler.config.write_deadline;
                self.scheduler
                    .fail(id, SequenceError::SlowReader(write_deadline));
            }
            ReaderNews::Gone(id) => self.scheduler.reader_gone(id),
        }
    }

    /// Runs a planned step. What the engine refuses ends; the rest of the step runs.
    fn step(&mut self, mut plan: Plan) {
        while !plan.slices.is_empty() {
            let listeners = self.scheduler.listeners(&plan);
            let slices = self.scheduler.slices(&plan);
            let copies: Vec<_> = plan
                .copies
                .iter()
                .map(|copy| (copy.from, copy.to))
                .collect();
            let batch = Batch {
                copies: &copies,
                slices: &slices,
            };
            let pulse = &self.pulse;
            let mut on_layer = |layer| {
                pulse.beat();
                for (listener, tokens, _) in &listeners {
                    listener.advance(layer, *tokens);
                }
            };
            let error = match self.engine.step(&batch, &mut on_layer) {
                Ok(logits) => {
                    for (listener, _, is_last) in &listeners {
                        if *is_last {
                            listener.finish();
                        }
                    }
                    self.scheduler.complete(&plan, &logits);
                    return;
                }
                Err(error) => error,
            };
            let culprit = match &error {
                EngineError::BadSlice { slice, .. } => plan.slices.get(*slice).map(|s| s.id),
                EngineError::BadCopy { copy, .. } => plan.copies.get(*copy).map(|c| c.id),
                _ => None,
            };
            let culprits = culprit.map_or_else(|| plan.ids(), |id| vec![id]);
            tracing::error!(%error, sequences = culprits.len(), "the engine refused a step");
            for id in culprits {
                self.scheduler.refuse(&mut plan, id, error.to_string());
            }
        }
    }

    fn publish(&self) {
        let snapshot = self.scheduler.snapshot();
        self.snapshots.send_if_modified(|current| {
            let is_new = **current != snapshot;
            if is_new {
                *current = Arc::new(snapshot);
            }
            is_new
        });
    }

    fn next_deadline(&self) -> Option<Instant> {
        let of_sequences = self.scheduler.next_deadline();
        let of_readers = self.mailboxes.next_deadline();
        of_sequences.into_iter().chain(of_readers).min()
    }
}

/// An answer to a command, sent once the snapshot shows its effect.
enum Answer {
    Plain(
        oneshot::Sender<Result<(), SequenceError>>,
        Result<(), SequenceError>,
    ),
    Reserved(
        oneshot::Sender<Result<ReservedPages, SequenceError>>,
        Result<ReservedPages, SequenceError>,
    ),
}

impl Answer {
    /// An answer that nobody waits for any more is no loss: who gave up waiting also releases.
    fn send(self) {
        match self {
            Self::Plain(reply, result) => drop(reply.send(result)),
            Self::Reserved(reply, result) => drop(reply.send(result)),
        }
    }
}

/// The clock of the runtime, if there is one, else the system's: one and the same unless time is virtual.
fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Closes the inbox when the loop ends, so that nobody waits for it.
struct CloseOnDrop(Arc<Inbox>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}
