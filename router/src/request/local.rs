//! Serving on the decode worker alone: it prefills in chunks between its decode steps.
//!
//! It must not know prefill workers.

use baton_proto::legs::DecodeEvent;
use tokio::time::Instant;

use super::output::Source;
use super::setback::Setback;
use super::task::{REPORT_WAIT, RequestTask};
use crate::counters::Counters;
use crate::legs::{DecodeLeg, FailureKind, LegFailure};
use crate::workers::Slot;

impl RequestTask {
    pub(super) async fn local(&mut self, slot: Slot, reason: &str) -> Result<(), Setback> {
        let attempt = self.begin_attempt("", &slot.name(), reason);
        let request = self.request.clone();
        let opening = DecodeLeg::open_local(slot, &request, attempt);
        let mut leg = match self.race_to_deadline(opening).await? {
            Ok(leg) => leg,
            Err(failure) => {
                if matches!(failure.kind, FailureKind::Busy(_)) {
                    Counters::add(&self.shared.counters.decode_refusals);
                }
                return Err(failure.into());
            }
        };
        while !self.output.all_ended() {
            self.let_client_catch_up().await?;
            let event = self.race_to_deadline(leg.next()).await??;
            self.take_local(&mut leg, event)?;
            // What has arrived with it needs no wait, and is little.
            while !self.output.all_ended()
                && !self.client_lags()
                && let Some(event) = leg.next_buffered()
            {
                self.take_local(&mut leg, event?)?;
            }
        }
        self.close_decode(&mut leg, true).await?;
        Ok(())
    }

    fn take_local(&mut self, leg: &mut DecodeLeg, event: DecodeEvent) -> Result<(), LegFailure> {
        match event {
            DecodeEvent::Scheduled(scheduled) => self.receipt.scheduled(scheduled),
            DecodeEvent::PromptLogprobs(told) if told.attempt == leg.attempt => self
                .emit_prompt(&told)
                .map_err(|wrong| leg.misbehaved(wrong))?,
            DecodeEvent::Token(token) if token.attempt == leg.attempt => {
                let stopped = self
                    .emit(&token, Source::Generated)
                    .map_err(|wrong| leg.misbehaved(wrong))?;
                if stopped {
                    leg.cancel_choice(token.choice);
                }
            }
            DecodeEvent::Token(_) => Counters::add(&self.shared.counters.tokens_dropped),
            // Of another attempt, or noted by the leg.
            DecodeEvent::PromptLogprobs(_) | DecodeEvent::ChunkDone { .. } | DecodeEvent::Alive => {
            }
            DecodeEvent::Done(_) => return Err(leg.misbehaved("it ended before its choices did")),
            DecodeEvent::Grant(_) | DecodeEvent::Landed { .. } => {
                return Err(leg.misbehaved("a message of a hand-off in a local prefill"));
            }
        }
        Ok(())
    }

    /// After the last token: waits a little for the worker's report.
    pub(super) async fn close_decode(
        &mut self,
        leg: &mut DecodeLeg,
        local: bool,
    ) -> Result<(), Setback> {
        let until = Instant::now() + REPORT_WAIT;
        // Late tokens of stopped choices are dropped; a failure now costs the report only.
        while let Some(Ok(event)) = self.race_for_report(until, leg.next()).await? {
            match event {
                DecodeEvent::Done(report) => {
                    self.receipt.decode(report, local);
                    break;
                }
                _ => Counters::add(&self.shared.counters.tokens_dropped),
            }
        }
        let worker = leg.slot().worker().clone();
        self.note_prefix(&worker, true);
        Ok(())
    }
}
