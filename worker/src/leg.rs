//! What every leg needs: its outbound stream, its deadline, its sign of life, and one owner of its sequence.
//!
//! It must not know which events a leg sends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_proto::legs::Alive;
use baton_scheduler::{SequenceEvent, SequenceId, StepHandle};
use baton_telemetry::traces::Span;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Status, Streaming};

use crate::{Admitted, LegError, Worker};

/// How long the first message of a leg may take.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// How long the router may take to make room for the status.
const LAST_MESSAGE: Duration = Duration::from_secs(2);
/// A leg that has had nothing to say for this long says so, unless the step loop is stuck.
pub(crate) const ALIVE_EVERY: Duration = Duration::from_millis(500);
/// Messages that wait for the router to read them.
const OUTBOUND: usize = 64;
/// Events of the step loop that wait for their leg.
const SEQUENCE_EVENTS: usize = 128;

/// The outbound half of a leg and what can end it from outside.
pub struct Leg<T> {
    worker: Arc<Worker>,
    outbound: mpsc::Sender<Result<T, Status>>,
    deadline: Instant,
    request_id: String,
    /// When the router last heard, or could not hear, something. `None` before the start message.
    told_at: Mutex<Option<Instant>>,
    span: Span,
}

/// What the server hands to gRPC: dropping it is the router's cancel.
pub type Outbound<T> = mpsc::Receiver<Result<T, Status>>;

impl<T: From<Alive>> Leg<T> {
    /// A leg, whose span is this, and the stream that its router reads. It ends soon unless a start message comes.
    pub fn new(worker: Arc<Worker>, span: Span) -> (Self, Outbound<T>) {
        let (outbound, reader) = mpsc::channel(OUTBOUND);
        let deadline = Instant::now() + FIRST_MESSAGE;
        (
            Self {
                worker,
                outbound,
                deadline,
                request_id: String::new(),
                told_at: Mutex::default(),
                span,
            },
            reader,
        )
    }

    /// The first message.
    ///
    /// # Errors
    /// None came in time, or the router has gone.
    pub async fn first<M>(&self, inbound: &mut Streaming<M>) -> Result<M, LegError> {
        tokio::select! {
            biased;
            error = self.over() => Err(match error {
                LegError::DeadlineExceeded => LegError::NoStart(FIRST_MESSAGE),
                other => other,
            }),
            message = inbound.message() => match message {
                Ok(Some(message)) => Ok(message),
                Ok(None) => Err(LegError::Unexpected("a start message")),
                Err(status) => Err(LegError::inbound(&status)),
            },
        }
    }

    /// The request is known: its deadline is the leg's.
    pub fn begin(&mut self, admitted: &Admitted) {
        self.deadline = admitted.spec.deadline.into();
        self.request_id.clone_from(&admitted.spec.request_id);
        self.note_told();
        if self.span.is_recording() {
            self.describe(admitted);
        }
    }

    fn describe(&mut self, admitted: &Admitted) {
        let spec = &admitted.spec;
        let so_far = spec.completions.iter().map(|choice| choice.token_ids.len());
        let kept = so_far.sum::<usize>();
        let worker = self.worker.info();
        let span = &mut self.span;
        span.set("baton.request_id", spec.request_id.clone());
        span.set("baton.attempt", i64::from(admitted.attempt.0));
        span.set("baton.worker", worker.worker_id.to_string());
        span.set("baton.incarnation", worker.incarnation.to_string());
        span.set("baton.prompt_tokens", spec.prompt.len() as i64);
        if kept > 0 {
            span.set("baton.kept_tokens", kept as i64);
        }
    }

    /// The leg's span: its phases are children of it.
    pub fn span(&self) -> &Span {
        &self.span
    }

    /// The router's id of the request.
    pub fn request_id(&self) -> &str {
        &self.request_id
    }

    /// Sends a message; waits for a slow router no longer than the leg may live.
    ///
    /// # Errors
    /// The leg has ended.
    pub async fn send(&self, message: impl Into<T>) -> Result<(), LegError> {
        tokio::select! {
            biased;
            sent = self.outbound.send(Ok(message.into())) => {
                self.note_told();
                sent.map_err(|_| LegError::Cancelled)
            }
            error = self.over() => Err(error),
        }
    }

    /// Waits for `future`, which may be dropped half way, no longer than the leg may live.
    ///
    /// # Errors
    /// The leg has ended.
    pub async fn unless_over<F: Future>(&self, future: F) -> Result<F::Output, LegError> {
        tokio::select! {
            biased;
            output = future => Ok(output),
            error = self.over() => Err(error),
        }
    }

    /// Resolves when the leg must end although nothing is wrong with it: the router has gone, the
    /// deadline has passed, or the worker ends. Every wait of a leg waits for this too, so this is also
    /// where the router is told that there is nothing to tell.
    pub async fn over(&self) -> LegError {
        let alive = async {
            loop {
                self.say_alive().await;
            }
        };
        tokio::select! {
            biased;
            () = self.outbound.closed() => LegError::Cancelled,
            () = self.worker.ended() => LegError::DrainLimit,
            () = tokio::time::sleep_until(self.deadline) => LegError::DeadlineExceeded,
            () = alive => LegError::Cancelled,
        }
    }

    /// Once nothing has been said for a while, says that the leg waits; if the step loop is stuck, it
    /// does not, and the router draws its conclusions.
    async fn say_alive(&self) {
        let told_at = *self.told_at();
        let Some(told_at) = told_at else {
            return std::future::pending().await;
        };
        tokio::time::sleep_until(told_at + ALIVE_EVERY).await;
        if self.worker.still_since() < ALIVE_EVERY {
            // Without room there is something else to read.
            let _ = self.outbound.try_send(Ok(T::from(Alive)));
        }
        self.note_told();
    }

    fn note_told(&self) {
        *self.told_at() = Some(Instant::now());
    }

    /// An instant is whole whatever happened to whoever wrote it.
    fn told_at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.told_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the stream: well, or with the status of what went wrong, which waits, bounded, for a
    /// slow router.
    pub async fn close(mut self, result: Result<(), LegError>) {
        match result {
            Ok(()) => self.worker.leg_done(),
            Err(error) => {
                self.span.fail(error.reason(), || error.to_string());
                let status = self.worker.leg_failed(&self.request_id, error);
                // Who does not read the status misses the last message, which tells as much.
                let _ = tokio::time::timeout(LAST_MESSAGE, self.outbound.send(Err(status))).await;
            }
        }
    }
}

/// What the step loop says of one sequence.
pub struct SequenceEvents {
    worker: Arc<Worker>,
    events: mpsc::Receiver<SequenceEvent>,
}

impl SequenceEvents {
    /// The place where the step loop puts them, and the one where they are read.
    pub fn channel(worker: &Arc<Worker>) -> (mpsc::Sender<SequenceEvent>, Self) {
        let (sender, events) = mpsc::channel(SEQUENCE_EVENTS);
        let worker = worker.clone();
        (sender, Self { worker, events })
    }

    /// The next event. Cancel-safe.
    ///
    /// # Errors
    /// The sequence has failed, or the step loop has given up telling so.
    pub async fn next(&mut self) -> Result<SequenceEvent, LegError> {
        match self.events.recv().await {
            Some(SequenceEvent::Failed(error)) => Err(error.into()),
            Some(event) => Ok(event),
            None => Err(self.worker.why_silent().await.into()),
        }
    }
}

/// The one owner of a sequence at the step loop; gives everything back when dropped.
pub struct OwnedSequence {
    steps: StepHandle,
    id: SequenceId,
}

impl OwnedSequence {
    /// Takes over what `submit` or `reserve` gave.
    pub fn new(steps: StepHandle, id: SequenceId) -> Self {
        Self { steps, id }
    }

    /// Its id.
    pub fn id(&self) -> SequenceId {
        self.id
    }
}

impl Drop for OwnedSequence {
    fn drop(&mut self) {
        self.steps.release(self.id);
    }
}
