//! Delivery of events to the readers of sequences. The loop never blocks on a channel: a full one keeps
//! the events here and pauses its sequence, so what waits is bounded by one step's events.
//!
//! It must not know what events mean.

use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{self, OwnedPermit, error::SendError, error::TrySendError};

use crate::inbox::Inbox;
use crate::{SequenceEvent, SequenceId};

type Reserving =
    Pin<Box<dyn Future<Output = Result<OwnedPermit<SequenceEvent>, SendError<()>>> + Send>>;

/// One sequence's channel.
struct Mailbox {
    sender: mpsc::Sender<SequenceEvent>,
    /// What the channel had no room for.
    pending: VecDeque<SequenceEvent>,
    /// Since when, and the wait for room.
    blocked: Option<(Instant, Reserving)>,
    /// The last event has been put in.
    is_last: bool,
}

/// What happened to a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReaderNews {
    /// It is behind: pause.
    Behind(SequenceId),
    /// It has caught up: go on.
    CaughtUp(SequenceId),
    /// It took nothing for the write deadline.
    TooSlow(SequenceId),
    /// It is gone.
    Gone(SequenceId),
}

/// All channels.
pub(crate) struct Mailboxes {
    boxes: BTreeMap<SequenceId, Mailbox>,
    write_deadline: Duration,
    waker: Waker,
}

impl Mailboxes {
    pub(crate) fn new(write_deadline: Duration, inbox: Arc<Inbox>) -> Self {
        Self {
            boxes: BTreeMap::new(),
            write_deadline,
            waker: Waker::from(inbox),
        }
    }

    pub(crate) fn open(&mut self, id: SequenceId, sender: mpsc::Sender<SequenceEvent>) {
        let mailbox = Mailbox {
            sender,
            pending: VecDeque::new(),
            blocked: None,
            is_last: false,
        };
        self.boxes.insert(id, mailbox);
    }

    /// Nobody is to hear more of a sequence.
    pub(crate) fn close(&mut self, id: SequenceId) {
        self.boxes.remove(&id);
    }

    /// Puts an event into its channel, or keeps it.
    pub(crate) fn post(
        &mut self,
        now: Instant,
        id: SequenceId,
        event: SequenceEvent,
    ) -> Option<ReaderNews> {
        let mailbox = self.boxes.get_mut(&id)?;
        let is_last = matches!(event, SequenceEvent::Done { .. } | SequenceEvent::Failed(_));
        mailbox.is_last |= is_last;
        if mailbox.blocked.is_some() {
            mailbox.pending.push_back(event);
            return None;
        }
        match mailbox.sender.try_send(event) {
            Ok(()) if is_last => {
                self.boxes.remove(&id);
                None
            }
            Ok(()) => None,
            Err(TrySendError::Closed(_)) => {
                self.boxes.remove(&id);
                Some(ReaderNews::Gone(id))
            }
            Err(TrySendError::Full(event)) => {
                mailbox.pending.push_back(event);
                mailbox.wait_for_room(now);
                Some(ReaderNews::Behind(id))
            }
        }
    }

    /// Delivers what has room now and finds readers that are gone or too slow.
    pub(crate) fn poll(&mut self, now: Instant) -> Vec<ReaderNews> {
        let mut news = Vec::new();
        let mut context = Context::from_waker(&self.waker);
        for (&id, mailbox) in &mut self.boxes {
            let is_blocked = mailbox.blocked.is_some();
            if mailbox.sender.is_closed() || !mailbox.deliver(now, &mut context) {
                news.push(ReaderNews::Gone(id));
            } else if let Some((since, _)) = &mut mailbox.blocked {
                if now.saturating_duration_since(*since) < self.write_deadline {
                    continue;
                }
                if mailbox.is_last {
                    news.push(ReaderNews::Gone(id));
                } else {
                    // Once more that long for the news that it was too slow.
                    *since = now;
                    mailbox.pending.clear();
                    news.push(ReaderNews::TooSlow(id));
                }
            } else if is_blocked {
                news.push(ReaderNews::CaughtUp(id));
            }
        }
        self.boxes.retain(|id, mailbox| {
            let is_over = mailbox.is_last && mailbox.blocked.is_none();
            !is_over && !news.contains(&ReaderNews::Gone(*id))
        });
        news
    }

    /// When the next reader becomes too slow.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let since = |mailbox: &Mailbox| mailbox.blocked.as_ref().map(|(since, _)| *since);
        let earliest = self.boxes.values().filter_map(since).min()?;
        Some(earliest + self.write_deadline)
    }
}

impl Mailbox {
    fn wait_for_room(&mut self, now: Instant) {
        let reserving = Box::pin(self.sender.clone().reserve_owned());
        self.blocked = Some((now, reserving));
    }

    /// Delivers while there is room. False: the reader is gone.
    fn deliver(&mut self, now: Instant, context: &mut Context<'_>) -> bool {
        while let Some((_, reserving)) = &mut self.blocked {
            match reserving.as_mut().poll(context) {
                Poll::Pending => return true,
                Poll::Ready(Err(_)) => return false,
                Poll::Ready(Ok(permit)) => {
                    self.blocked = None;
                    if let Some(event) = self.pending.pop_front() {
                        permit.send(event);
                    }
                    if !self.pending.is_empty() {
                        self.wait_for_room(now);
                    }
                }
            }
        }
        true
    }
}
