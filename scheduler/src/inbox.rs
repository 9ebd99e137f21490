//! What the outside asks of the step loop, and how it wakes the loop.
//!
//! Requests wait in a bounded queue and are refused beyond it. What gives something back (release,
//! quarantine, cancel) is a set of ids: it cannot be lost, cannot block and cannot outgrow the sequences
//! that live. It must not know what the loop does with either.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Wake;
use std::time::Instant;

use tokio::sync::{Notify, mpsc, oneshot};

use crate::progress::ProgressFactory;
use crate::{
    AfterPrompt, ReservedPages, SequenceError, SequenceEvent, SequenceId, SequenceSpec, Token,
};

/// A request to the loop, answered between steps.
pub(crate) enum Command {
    Submit {
        id: SequenceId,
        spec: SequenceSpec,
        after: AfterPrompt,
        progress: Option<ProgressFactory>,
        events: mpsc::Sender<SequenceEvent>,
        reply: oneshot::Sender<Result<(), SequenceError>>,
    },
    Reserve {
        id: SequenceId,
        spec: SequenceSpec,
        events: mpsc::Sender<SequenceEvent>,
        reply: oneshot::Sender<Result<ReservedPages, SequenceError>>,
    },
    Land {
        id: SequenceId,
        first_tokens: Vec<Token>,
        running_choices: Vec<u32>,
        reply: oneshot::Sender<Result<(), SequenceError>>,
    },
}

/// Everything asked since the loop last looked.
#[derive(Default)]
pub(crate) struct Letters {
    pub(crate) commands: VecDeque<Command>,
    /// Submissions and reservations among them.
    asked: usize,
    /// Whether pages to hand off have a grant now.
    pub(crate) granted: BTreeMap<SequenceId, bool>,
    pub(crate) cancelled_choices: BTreeSet<(SequenceId, u32)>,
    pub(crate) quarantined: BTreeSet<SequenceId>,
    pub(crate) released: BTreeSet<SequenceId>,
    pub(crate) drain: bool,
    /// A reader that was behind has room again.
    pub(crate) reader_ready: bool,
    /// Nobody can ask any more; or the loop has ended.
    pub(crate) closed: bool,
}

impl Letters {
    fn is_empty(&self) -> bool {
        self.commands.is_empty()
            && self.granted.is_empty()
            && self.cancelled_choices.is_empty()
            && self.quarantined.is_empty()
            && self.released.is_empty()
            && !(self.drain || self.reader_ready || self.closed)
    }
}

/// The loop's letter box.
pub(crate) struct Inbox {
    letters: Mutex<Letters>,
    /// For a loop on a thread.
    thread: Condvar,
    /// For a loop that is a task.
    task: Notify,
    /// Most submissions and reservations between two looks.
    most_commands: usize,
}

impl Inbox {
    pub(crate) fn new(most_commands: usize) -> Self {
        Self {
            letters: Mutex::new(Letters::default()),
            thread: Condvar::new(),
            task: Notify::new(),
            most_commands,
        }
    }

    /// Puts a command in the queue. Landing is not counted: each uses up a reservation.
    pub(crate) fn command(&self, command: Command) -> Result<(), SequenceError> {
        let mut letters = self.lock();
        if letters.closed {
            return Err(SequenceError::Gone);
        }
        let is_bounded = !matches!(command, Command::Land { .. });
        if is_bounded && letters.asked >= self.most_commands {
            return Err(SequenceError::QueueFull {
                limit: self.most_commands,
            });
        }
        letters.asked += usize::from(is_bounded);
        letters.commands.push_back(command);
        drop(letters);
        self.tell();
        Ok(())
    }

    /// Leaves a note; dropped if the loop has ended, which gave everything back.
    pub(crate) fn note(&self, write: impl FnOnce(&mut Letters)) {
        let mut letters = self.lock();
        if letters.closed {
            return;
        }
        write(&mut letters);
        drop(letters);
        self.tell();
    }

    /// Ends the loop, or says that it has ended.
    pub(crate) fn close(&self) {
        let mut letters = self.lock();
        letters.closed = true;
        // Whoever waits for a reply hears that nobody will answer. Dropped outside the lock: what a
        // command carries may leave a note when dropped.
        let unanswered = std::mem::take(&mut letters.commands);
        drop(letters);
        drop(unanswered);
        self.tell();
    }

    /// Takes everything, at once.
    pub(crate) fn take(&self) -> Letters {
        let mut letters = self.lock();
        let closed = letters.closed;
        let taken = std::mem::take(&mut *letters);
        letters.closed = closed;
        taken
    }

    /// Sleeps until something is there or `until` has passed.
    pub(crate) fn wait(&self, until: Option<Instant>) {
        let mut letters = self.lock();
        while letters.is_empty() {
            let Some(until) = until else {
                letters = self
                    .thread
                    .wait(letters)
                    .unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            letters = self
                .thread
                .wait_timeout(letters, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// [`wait`](Self::wait) for a loop that is a task.
    pub(crate) async fn arrived(&self, until: Option<Instant>) {
        // A letter that comes before the wait leaves a permit.
        let arrival = async {
            while self.lock().is_empty() {
                self.task.notified().await;
            }
        };
        match until {
            // Whether a letter or the instant came: the loop looks.
            Some(until) => drop(tokio::time::timeout_at(until.into(), arrival).await),
            None => arrival.await,
        }
    }

    fn tell(&self) {
        self.thread.notify_one();
        self.task.notify_one();
    }

    /// Letters are whole after every change, so a panic elsewhere does not spoil them.
    fn lock(&self) -> MutexGuard<'_, Letters> {
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for Inbox {
    fn wake(self: Arc<Self>) {
        self.note(|letters| letters.reader_ready = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn landings_take_no_place_of_submissions() {
        let inbox = Inbox::new(1);
        let land = || Command::Land {
            id: SequenceId(1),
            first_tokens: Vec::new(),
            running_choices: Vec::new(),
            reply: oneshot::channel().0,
        };
        let reserve = || Command::Reserve {
            id: SequenceId(2),
            spec: crate::tests::rig::spec(Instant::now(), &[1], crate::tests::rig::params(1)),
            events: mpsc::channel(1).0,
            reply: oneshot::channel().0,
        };
        for _ in 0..3 {
            inbox.command(land()).expect("landings are not counted");
        }
        inbox.command(reserve()).expect("the first of one");
        assert_eq!(
            inbox.command(reserve()).expect_err("the second of one"),
            SequenceError::QueueFull { limit: 1 }
        );
        inbox.take();
        inbox.command(reserve()).expect("the loop has looked");
    }
}
