//! The way to talk to a step loop from async code. It must not know what the loop decides.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_engine::StepEngine;
use baton_kv_cache::Blake3Hasher;
use tokio::sync::{mpsc, oneshot, watch};

use crate::inbox::{Command, Inbox};
use crate::progress::ProgressFactory;
use crate::pulse::Pulse;
use crate::scheduler::{ModelFacts, Scheduler};
use crate::step_loop::StepLoop;
use crate::{
    AfterPrompt, LoadSnapshot, ReservedPages, SchedulerConfig, SequenceError, SequenceEvent,
    SequenceId, SequenceSpec, Token,
};

/// Talks to the step loop; cheap to clone. Dropping all handles ends the loop.
///
/// Who gives pages back: with [`AfterPrompt::Decode`] and after landing, the loop, when the sequence
/// ends or its events channel is dropped. With [`AfterPrompt::HandOff`], and from
/// [`reserve`](Self::reserve) to [`land`](Self::land), a transfer may touch the pages, so only
/// [`release`](Self::release) gives them back, whatever else happens.
#[derive(Clone)]
pub struct StepHandle {
    owner: Arc<Owner>,
    snapshots: watch::Receiver<Arc<LoadSnapshot>>,
    alive: watch::Receiver<()>,
}

/// Ends the loop with the last handle.
struct Owner {
    inbox: Arc<Inbox>,
    pulse: Arc<Pulse>,
    next_id: AtomicU64,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

/// Releases a sequence whose id its owner has not got yet.
struct ReleaseUnlessTaken<'a> {
    inbox: &'a Inbox,
    id: SequenceId,
    is_taken: bool,
}

impl Drop for ReleaseUnlessTaken<'_> {
    fn drop(&mut self) {
        if !self.is_taken {
            release(self.inbox, self.id);
        }
    }
}

fn release(inbox: &Inbox, id: SequenceId) {
    inbox.note(|letters| {
        letters.released.insert(id);
    });
}

impl StepHandle {
    /// Queues a prompt. Events arrive on `events`; `progress` only for `HandOff`. Dropping the future
    /// cancels.
    ///
    /// # Errors
    /// Refusals of admission, at once.
    pub async fn submit(
        &self,
        spec: SequenceSpec,
        after: AfterPrompt,
        progress: Option<ProgressFactory>,
        events: mpsc::Sender<SequenceEvent>,
    ) -> Result<SequenceId, SequenceError> {
        let mut guard = self.new_sequence();
        let id = guard.id;
        let (reply, answer) = oneshot::channel();
        self.owner.inbox.command(Command::Submit {
            id,
            spec,
            after,
            progress,
            events,
            reply,
        })?;
        answer.await.map_err(|_| SequenceError::Gone)??;
        guard.is_taken = true;
        Ok(id)
    }

    /// Reserves pages for a prompt that another worker computes. The pages are `granted` until
    /// [`land`](Self::land), [`quarantine`](Self::quarantine) or [`release`](Self::release). Dropping the
    /// future releases.
    ///
    /// # Errors
    /// Refusals of admission, at once.
    pub async fn reserve(
        &self,
        spec: SequenceSpec,
        events: mpsc::Sender<SequenceEvent>,
    ) -> Result<ReservedPages, SequenceError> {
        let mut guard = self.new_sequence();
        let (reply, answer) = oneshot::channel();
        self.owner.inbox.command(Command::Reserve {
            id: guard.id,
            spec,
            events,
            reply,
        })?;
        let reserved = answer.await.map_err(|_| SequenceError::Gone)??;
        guard.is_taken = true;
        Ok(reserved)
    }

    /// The transfer is committed: the reserved sequence runs from its first tokens on, which are not told
    /// again. If no choice runs, `Done` follows.
    ///
    /// # Errors
    /// Unknown id, first tokens that do not fit the sequence, or the loop has ended.
    pub async fn land(
        &self,
        id: SequenceId,
        first_tokens: Vec<Token>,
        running_choices: Vec<u32>,
    ) -> Result<(), SequenceError> {
        let (reply, answer) = oneshot::channel();
        self.owner.inbox.command(Command::Land {
            id,
            first_tokens,
            running_choices,
            reply,
        })?;
        answer.await.map_err(|_| SequenceError::Gone)?
    }

    /// Broken transfer: the granted pages become quarantined until [`release`](Self::release).
    pub fn quarantine(&self, id: SequenceId) {
        self.owner.inbox.note(|letters| {
            letters.quarantined.insert(id);
        });
    }

    /// Gives back everything of a sequence, in whatever state; idempotent. This is cancel, `CommitAck` on
    /// the prefill side, and the end of quarantine. Done before the next step begins.
    pub fn release(&self, id: SequenceId) {
        release(&self.owner.inbox, id);
    }

    /// Cancels one choice (a stop string matched).
    pub fn cancel_choice(&self, id: SequenceId, choice: u32) {
        self.owner.inbox.note(|letters| {
            letters.cancelled_choices.insert((id, choice));
        });
    }

    /// On a prefill worker: this sequence's pages no longer wait for a grant.
    pub fn granted(&self, id: SequenceId) {
        self.set_granted(id, true);
    }

    /// On a prefill worker: the grant has come to nothing, and this sequence's pages wait for another one.
    pub fn grant_lost(&self, id: SequenceId) {
        self.set_granted(id, false);
    }

    fn set_granted(&self, id: SequenceId, granted: bool) {
        self.owner.inbox.note(|letters| {
            letters.granted.insert(id, granted);
        });
    }

    /// Refuse new work from now on; what has been accepted goes on.
    pub fn drain(&self) {
        self.owner.inbox.note(|letters| letters.drain = true);
    }

    /// Latest snapshot.
    pub fn snapshot(&self) -> Arc<LoadSnapshot> {
        Arc::clone(&self.snapshots.borrow())
    }

    /// Resolves when the snapshot has changed since this handle last waited. Never, once the loop has
    /// ended.
    pub async fn changed(&mut self) {
        if self.snapshots.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Resolves when the loop has ended: by a panic of the engine, as long as there is a handle.
    pub async fn ended(&self) {
        // Nothing is ever sent; the loop's end closes the channel.
        let mut alive = self.alive.clone();
        while alive.changed().await.is_ok() {}
    }

    /// Whether the step thread is not stuck: it waits for work, or it has moved (by a layer at least)
    /// since `seen`, which is brought up to date.
    pub fn has_moved(&self, seen: &mut u64) -> bool {
        self.owner.pulse.has_moved(seen)
    }

    fn new_sequence(&self) -> ReleaseUnlessTaken<'_> {
        ReleaseUnlessTaken {
            inbox: &self.owner.inbox,
            id: SequenceId(self.owner.next_id.fetch_add(1, Ordering::Relaxed)),
            is_taken: false,
        }
    }
}

/// A step loop and the way to talk to it once it runs.
///
/// # Errors
/// Configuration out of range, named.
pub fn step_loop(
    engine: Box<dyn StepEngine>,
    config: SchedulerConfig,
) -> Result<(StepHandle, StepLoop), SequenceError> {
    let model = ModelFacts {
        vocabulary: u32::try_from(engine.vocabulary()).unwrap_or(u32::MAX),
        context: engine.context_length(),
        sampler: engine.sampler(),
    };
    let inbox = Arc::new(Inbox::new(config.max_queued));
    let scheduler = Scheduler::new(config, model, Box::new(Blake3Hasher))?;
    let (sender, snapshots) = watch::channel(Arc::new(scheduler.snapshot()));
    let (alive_sender, alive) = watch::channel(());
    let pulse = Arc::<Pulse>::default();
    let step_loop = StepLoop::new(
        scheduler,
        engine,
        Arc::clone(&inbox),
        Arc::clone(&pulse),
        sender,
        alive_sender,
    );
    let owner = Owner {
        inbox,
        pulse,
        next_id: AtomicU64::new(1),
    };
    let handle = StepHandle {
        owner: Arc::new(owner),
        snapshots,
        alive,
    };
    Ok((handle, step_loop))
}

/// Runs a step loop on a thread of its own.
///
/// # Errors
/// The thread cannot start.
pub fn on_thread(step_loop: StepLoop) -> Result<(), SequenceError> {
    std::thread::Builder::new()
        .name("baton-step".into())
        .spawn(move || step_loop.run())
        .map_err(|error| SequenceError::Internal(format!("step thread: {error}")))?;
    Ok(())
}

/// Starts a step loop on its own thread.
///
/// # Errors
/// Configuration out of range, named; or the thread cannot start.
pub fn spawn(
    engine: Box<dyn StepEngine>,
    config: SchedulerConfig,
) -> Result<StepHandle, SequenceError> {
    let (handle, step_loop) = step_loop(engine, config)?;
    on_thread(step_loop)?;
    Ok(handle)
}
