//! A prompt on its way to a decode worker: grants, transfer, commit.
//!
//! Pages stay pinned from the first chunk until `CommitAck`, cancel or deadline; a broken transfer
//! leaves them pinned for another grant. It must not know why the router sends the grants it sends.

use std::time::Duration;

use baton_kv_transfer::{PageProgress, TransferError, TransferStats};
use baton_proto::domain::{GeneratedToken, Grant, PromptLogprobs};
use baton_proto::ids::Attempt;
use baton_proto::legs::{PrefillCommand, PrefillEvent, PrefillReport, Scheduled};
use baton_proto::v1;
use baton_scheduler::SequenceEvent;
use baton_worker::{LegError, OwnedSequence, Role as _, SequenceEvents, to_generated};
use tokio::time::Instant;
use tonic::Streaming;

use crate::PrefillWorker;
use crate::leg::PrefillLeg;
use crate::progress::SharedProgress;
use crate::spans::Spans;
use crate::transfer::Transfer;

/// What a prompt that has been computed goes on with.
struct Computed {
    running_choices: Vec<u32>,
    prefill: Duration,
}

/// One hand-off. Fields drop in this order: first the transfer ends, then the pages are given back.
pub(crate) struct HandOff<'a> {
    transfer: Transfer,
    sequence: OwnedSequence,
    prefill: &'a PrefillWorker,
    leg: &'a PrefillLeg,
    progress: SharedProgress,
    /// Attempt that the leg was started with; first tokens carry it.
    attempt: Attempt,
    /// Highest attempt granted so far.
    granted: Option<Attempt>,
    /// A grant that came before the pages were known.
    early: Option<Grant>,
    first_tokens: Vec<GeneratedToken>,
    computed: Option<Computed>,
    queued_at: Instant,
    scheduled_at: Option<(Instant, usize)>,
    /// Since when computed pages have had nowhere to go.
    waiting_since: Option<Instant>,
    grant_wait: Duration,
    spans: Spans<'a>,
}

impl<'a> HandOff<'a> {
    pub(crate) fn new(
        prefill: &'a PrefillWorker,
        leg: &'a PrefillLeg,
        sequence: OwnedSequence,
        progress: SharedProgress,
        attempt: Attempt,
        queued_at: Instant,
    ) -> Self {
        Self {
            transfer: Transfer::None,
            sequence,
            prefill,
            leg,
            progress,
            attempt,
            granted: None,
            early: None,
            first_tokens: Vec::new(),
            computed: None,
            queued_at,
            scheduled_at: None,
            waiting_since: None,
            grant_wait: Duration::ZERO,
            spans: Spans::queued(leg.span()),
        }
    }

    /// Runs until the pages have been taken over, or nobody needs them.
    pub(crate) async fn run(
        mut self,
        mut events: SequenceEvents,
        mut inbound: Streaming<v1::PrefillRequest>,
    ) -> Result<(), LegError> {
        let mut reading = true;
        loop {
            tokio::select! {
                biased;
                error = self.leg.over() => return Err(error),
                event = events.next() => {
                    self.on_event(event?).await?;
                    if self.computed.as_ref().is_some_and(|done| done.running_choices.is_empty()) {
                        return self.finish_without_pages().await;
                    }
                }
                (attempt, ended) = self.transfer.ended() => match ended {
                    Ok(stats) => return self.finish(attempt, stats).await,
                    Err(error) => self.on_broken(attempt, &error).await?,
                },
                message = inbound.message(), if reading => match message {
                    Ok(Some(message)) => self.on_message(message).await?,
                    Ok(None) => reading = false,
                    Err(status) => return Err(LegError::inbound(&status)),
                },
            }
        }
    }

    async fn on_event(&mut self, event: SequenceEvent) -> Result<(), LegError> {
        match event {
            SequenceEvent::Scheduled {
                cached_tokens,
                pages,
            } => {
                let now = Instant::now();
                self.scheduled_at = Some((now, pages.len()));
                self.spans.scheduled(cached_tokens);
                let queue = now - self.queued_at;
                let scheduled = Scheduled {
                    cached_tokens,
                    queue,
                };
                self.leg.send(PrefillEvent::Scheduled(scheduled)).await?;
                if let Some(grant) = self.early.take() {
                    self.begin(grant).await?;
                }
            }
            SequenceEvent::ChunkDone { computed_tokens } => {
                self.spans.chunk(computed_tokens);
                let chunk = PrefillEvent::ChunkDone { computed_tokens };
                self.leg.send(chunk).await?;
            }
            SequenceEvent::PromptLogprobs { position, entries } => {
                let some = PromptLogprobs {
                    attempt: self.attempt,
                    position,
                    entries,
                };
                self.leg.send(PrefillEvent::PromptLogprobs(some)).await?;
            }
            SequenceEvent::Token(token) => {
                let token = to_generated(token, self.attempt);
                self.first_tokens.push(token.clone());
                self.leg.send(PrefillEvent::FirstToken(token)).await?;
            }
            SequenceEvent::PromptDone { running_choices } => {
                let prefill = self
                    .scheduled_at
                    .map_or(Duration::ZERO, |(at, _)| at.elapsed());
                self.computed = Some(Computed {
                    running_choices,
                    prefill,
                });
                self.spans.computed();
                if matches!(self.transfer, Transfer::None) {
                    self.wait_for_grant();
                }
                self.commit_if_ready();
            }
            SequenceEvent::FirstStep | SequenceEvent::Done { .. } | SequenceEvent::Failed(_) => {}
        }
        Ok(())
    }

    async fn on_message(&mut self, message: v1::PrefillRequest) -> Result<(), LegError> {
        let limits = self.prefill.worker().limits();
        let PrefillCommand::Grant(grant) = PrefillCommand::from_wire(message, limits)? else {
            return Err(LegError::Unexpected("one start message"));
        };
        if self.granted.is_some_and(|attempt| grant.attempt <= attempt) {
            tracing::debug!(
                request_id = self.leg.request_id(),
                attempt = grant.attempt.0,
                "stale grant"
            );
            return Ok(());
        }
        let grant = *grant;
        self.granted = Some(grant.attempt);
        self.prefill.worker().steps().granted(self.sequence.id());
        if self.scheduled_at.is_none() {
            self.early = Some(grant);
            return Ok(());
        }
        self.begin(grant).await
    }

    /// Starts to stream to a grant's pages; the attempt before it, if any, ends.
    async fn begin(&mut self, grant: Grant) -> Result<(), LegError> {
        self.transfer = Transfer::None;
        let attempt = grant.attempt;
        if let Err(reason) = self.check(&grant) {
            return self.report_failure(attempt, reason).await;
        }
        let Some(progress) = self.progress() else {
            return self
                .report_failure(attempt, "pages are not known".into())
                .await;
        };
        if let Some(since) = self.waiting_since.take() {
            self.grant_wait += since.elapsed();
        }
        self.spans.send(&grant);
        let outgoing = self.prefill.sender().begin(grant, progress);
        self.transfer = Transfer::Streaming(attempt, outgoing);
        self.commit_if_ready();
        Ok(())
    }

    fn progress(&self) -> Option<std::sync::Arc<PageProgress>> {
        self.progress.get().cloned()
    }

    /// Whether a grant is for this prompt and for a worker that understands these pages.
    fn check(&self, grant: &Grant) -> Result<(), String> {
        let fields = self
            .prefill
            .worker()
            .info()
            .fingerprint
            .differing_fields(&grant.fingerprint);
        if !fields.is_empty() {
            return Err(format!("fingerprint_mismatch: {}", fields.join(", ")));
        }
        let pages = self.scheduled_at.map_or(0, |(_, pages)| pages);
        let granted = grant.slots.len() + grant.reused_pages as usize;
        if granted != pages {
            return Err(format!(
                "wrong_pages: {granted} granted, the prompt has {pages}"
            ));
        }
        Ok(())
    }

    async fn on_broken(&mut self, attempt: Attempt, error: &TransferError) -> Result<(), LegError> {
        self.transfer = Transfer::None;
        self.report_failure(attempt, format!("{}: {error}", error.name()))
            .await
    }

    /// The pages stay pinned, and wait for another grant.
    async fn report_failure(&mut self, attempt: Attempt, reason: String) -> Result<(), LegError> {
        self.spans.broken(&reason);
        // What waits for the next grant counts as what waits for the first.
        let steps = self.prefill.worker().steps();
        steps.grant_lost(self.sequence.id());
        if self.computed.is_some() && self.waiting_since.is_none() {
            self.wait_for_grant();
        }
        tracing::debug!(
            request_id = self.leg.request_id(),
            attempt = attempt.0,
            reason,
            "transfer failed"
        );
        self.leg
            .send(PrefillEvent::TransferFailed { attempt, reason })
            .await
    }

    fn commit_if_ready(&mut self) {
        let Some(Computed {
            running_choices, ..
        }) = &self.computed
        else {
            return;
        };
        if !running_choices.is_empty() {
            let span = self.spans.send_ref();
            (self.transfer).commit(&self.first_tokens, running_choices, span);
        }
    }

    fn wait_for_grant(&mut self) {
        self.waiting_since = Some(Instant::now());
        self.spans.waits_for_grant();
    }

    /// The decode worker has everything.
    async fn finish(mut self, attempt: Attempt, stats: TransferStats) -> Result<(), LegError> {
        self.spans.sent(&stats);
        let report = PrefillReport {
            prefill: self
                .computed
                .as_ref()
                .map_or(Duration::ZERO, |done| done.prefill),
            grant_wait: self.grant_wait,
            transfer: stats.elapsed,
            transfer_bytes: stats.bytes,
            bytes_before_last_step: stats.bytes_before_finish,
            transport: Some(stats.transport),
            committed: true,
            attempt: Some(attempt),
        };
        self.end(report).await
    }

    /// The first tokens ended every choice: nobody needs the pages.
    async fn finish_without_pages(mut self) -> Result<(), LegError> {
        if let Some((_, outgoing)) = self.transfer.take_streaming() {
            self.leg.unless_over(outgoing.revoke()).await?;
        }
        let report = PrefillReport {
            prefill: self
                .computed
                .as_ref()
                .map_or(Duration::ZERO, |done| done.prefill),
            ..PrefillReport::default()
        };
        self.end(report).await
    }

    /// Pages are given back before the router hears of the end.
    async fn end(self, report: PrefillReport) -> Result<(), LegError> {
        let Self {
            transfer,
            sequence,
            leg,
            ..
        } = self;
        drop(transfer);
        drop(sequence);
        leg.send(PrefillEvent::Done(report)).await
    }
}
