//! Serving one token from a prefill worker alone: no decode leg, no transfer.
//!
//! It must not know decode workers.

use baton_proto::legs::PrefillEvent;
use tokio::time::Instant;

use super::output::Source;
use super::setback::Setback;
use super::task::{REPORT_WAIT, RequestTask};
use crate::counters::Counters;
use crate::legs::{FailureKind, PrefillLeg};
use crate::workers::Slot;

impl RequestTask {
    pub(super) async fn prefill_only(&mut self, slot: Slot, reason: &str) -> Result<(), Setback> {
        let mut leg = self.open_prefill(slot, reason, false).await?;
        while !self.output.all_ended() {
            self.let_client_catch_up().await?;
            match self.race_to_deadline(leg.next()).await?? {
                // The leg has noted it.
                PrefillEvent::ChunkDone { .. } | PrefillEvent::Alive => {}
                PrefillEvent::Scheduled(scheduled) => self.receipt.scheduled(scheduled),
                PrefillEvent::FirstToken(token) => {
                    self.emit(&token, Source::Generated)
                        .map_err(|wrong| leg.misbehaved(wrong))?;
                }
                PrefillEvent::PromptLogprobs(told) => {
                    self.emit_prompt(&told)
                        .map_err(|wrong| leg.misbehaved(wrong))?;
                }
                PrefillEvent::Done(_) => {
                    return Err(leg.misbehaved("it ended before its choices did").into());
                }
                PrefillEvent::TransferFailed { .. } => {
                    return Err(leg.misbehaved("a transfer that nobody asked for").into());
                }
            }
        }
        self.close_prefill(&mut leg).await
    }

    /// Opens a prefill leg under a new attempt.
    pub(super) async fn open_prefill(
        &mut self,
        slot: Slot,
        reason: &str,
        hand_off: bool,
    ) -> Result<PrefillLeg, Setback> {
        let attempt = self.begin_attempt(&slot.name(), "", reason);
        let request = self.request.clone();
        let opening = PrefillLeg::open(slot, &request, attempt, hand_off);
        self.race_to_deadline(opening).await?.map_err(|failure| {
            if matches!(failure.kind, FailureKind::Busy(_)) {
                Counters::add(&self.shared.counters.prefill_refusals);
            }
            failure.into()
        })
    }

    /// After the last token: waits a little for the worker's report.
    pub(super) async fn close_prefill(&mut self, leg: &mut PrefillLeg) -> Result<(), Setback> {
        let until = Instant::now() + REPORT_WAIT;
        // A failure now costs the report only.
        while let Some(Ok(event)) = self.race_for_report(until, leg.next()).await? {
            if let PrefillEvent::Done(report) = event {
                self.receipt.prefill(&report);
                break;
            }
        }
        let worker = leg.slot().worker().clone();
        self.note_prefix(&worker, false);
        Ok(())
    }
}
