//! Serving on a pair: prefill on one worker, decode on another that is chosen when prefill starts.
//!
//! Both legs are owned here. Before the pages have landed, either worker can be replaced here; a decode
//! worker that is lost after that ends this way of serving, and another attempt goes on from the tokens
//! that were sent. It must not know how a decode worker is found; that is `grant`.

use std::sync::Arc;

use baton_proto::domain::{GeneratedToken, Grant};
use baton_proto::ids::Attempt;
use baton_proto::legs::{DecodeEvent, PrefillEvent, PrefillReport};

use super::grant::{GrantSearch, Negotiation};
use super::output::Source;
use super::setback::Setback;
use super::task::RequestTask;
use crate::counters::Counters;
use crate::error::RequestError;
use crate::legs::{DecodeLeg, LegFailure, PrefillLeg};
use crate::workers::{Excluded, Slot, Worker};

/// Legs of one prefill and of the grants for it.
struct Split {
    prefill: Option<PrefillLeg>,
    prefill_worker: Arc<Worker>,
    /// Attempt that the prefill leg began with; its tokens may carry any from there on.
    started: Attempt,
    attempt: Attempt,
    /// The last one whose grant went to the prefill worker.
    granted: Option<Attempt>,
    search: Option<Negotiation>,
    decode: Option<DecodeLeg>,
    landed: bool,
    /// The landing, heard before prefill had told everything of the prompt.
    early: Option<DecodeEvent>,
    /// Decode workers that lost this prompt's pages.
    lost: Excluded,
}

/// What is heard next.
enum Heard {
    Prefill(Result<PrefillEvent, LegFailure>),
    Decode(Result<DecodeEvent, LegFailure>),
    Search(Box<Result<(DecodeLeg, Grant), Setback>>),
}

impl RequestTask {
    pub(super) async fn split(&mut self, slot: Slot, reason: &str) -> Result<(), Setback> {
        let prefill_worker = Arc::clone(slot.worker());
        let prefill = self.open_prefill(slot, reason, true).await?;
        let started = self.attempt();
        let mut legs = Split {
            prefill: Some(prefill),
            prefill_worker,
            started,
            attempt: started,
            granted: None,
            search: None,
            decode: None,
            landed: false,
            early: None,
            lost: Excluded::default(),
        };
        while !self.output.all_ended() {
            let Some(heard) = self.hear(&mut legs).await? else {
                continue;
            };
            match heard {
                Heard::Prefill(event) => self.hear_prefill(&mut legs, event)?,
                Heard::Decode(event) => self.hear_decode(&mut legs, event)?,
                Heard::Search(found) => self.hear_search(&mut legs, (*found)?),
            }
            self.hear_buffered(&mut legs)?;
            if legs.search.is_some() && self.output.has_begun() {
                // Whoever decodes the rest must be of the same model.
                let _ = self.wanted.answers.set(legs.prefill_worker.answers);
            }
        }
        self.close_split(legs).await
    }

    /// Takes what has arrived with the last decode event: it needs no wait, and is little.
    fn hear_buffered(&mut self, legs: &mut Split) -> Result<(), Setback> {
        while !self.output.all_ended() && legs.early.is_none() {
            let buffered = legs.decode.as_mut().and_then(DecodeLeg::next_buffered);
            let Some(event) = buffered else { break };
            self.hear_decode(legs, event)?;
        }
        Ok(())
    }

    /// What is heard next. `None`: a client that was behind has caught up.
    async fn hear(&mut self, legs: &mut Split) -> Result<Option<Heard>, RequestError> {
        if self.client_lags() {
            return self.race_with_client(legs.hear(false)).await;
        }
        self.race_to_deadline(legs.hear(true)).await.map(Some)
    }

    fn hear_prefill(
        &mut self,
        legs: &mut Split,
        event: Result<PrefillEvent, LegFailure>,
    ) -> Result<(), Setback> {
        let event = match event {
            Ok(event) => event,
            // Nothing more is needed from there.
            Err(_) if legs.landed => {
                legs.prefill = None;
                return Ok(());
            }
            Err(failure) => return Err(failure.into()),
        };
        match event {
            PrefillEvent::Scheduled(scheduled) => {
                self.receipt.scheduled(scheduled);
                if legs.search.is_none() && legs.decode.is_none() {
                    self.search(legs);
                }
            }
            PrefillEvent::PromptLogprobs(told) => {
                if (legs.started..=legs.attempt).contains(&told.attempt) {
                    self.emit_prompt(&told)
                        .map_err(|wrong| legs.prefill_misbehaved(wrong))?;
                }
                if self.output.prompt_is_told()
                    && let Some(landed) = legs.early.take()
                {
                    return self.hear_decode(legs, Ok(landed));
                }
            }
            PrefillEvent::FirstToken(token) => {
                if (legs.started..=legs.attempt).contains(&token.attempt) {
                    self.emit_of(legs, &token, Source::Generated)
                        .map_err(|wrong| legs.prefill_misbehaved(wrong))?;
                } else {
                    Counters::add(&self.shared.counters.tokens_dropped);
                }
            }
            // The leg has noted it.
            PrefillEvent::ChunkDone { .. } | PrefillEvent::Alive => {}
            PrefillEvent::Done(report) => return self.prefill_done(legs, &report),
            PrefillEvent::TransferFailed { attempt, reason } => {
                if attempt == legs.attempt && !legs.landed {
                    let worker = legs
                        .decode
                        .as_ref()
                        .map(|leg| leg.slot().worker().key.clone());
                    let worker = worker.unwrap_or_else(|| legs.prefill_worker.key.clone());
                    let reason = format!("the transfer failed: {reason}");
                    let kind = crate::legs::FailureKind::HandOff;
                    self.search_again(
                        legs,
                        LegFailure {
                            worker,
                            kind,
                            reason,
                        },
                    )?;
                }
            }
        }
        Ok(())
    }

    fn prefill_done(&mut self, legs: &mut Split, report: &PrefillReport) -> Result<(), Setback> {
        self.receipt.prefill(report);
        if !self.output.prompt_is_told() {
            return Err(legs.prefill_misbehaved("it told too little of the prompt"));
        }
        if !report.committed && !self.output.all_ended() {
            return Err(legs.prefill_misbehaved("it ended without a hand-off"));
        }
        if report.committed && !legs.was_granted(report.attempt) {
            return Err(legs.prefill_misbehaved("it handed off what nobody granted"));
        }
        self.note_prefix(&legs.prefill_worker, false);
        legs.prefill = None;
        let is_older = report.attempt.is_some_and(|attempt| attempt < legs.attempt);
        if report.committed && (legs.search.is_some() || is_older) {
            // Pages went to a worker that was lost before it said so: nobody has any to send to the one
            // that takes its place.
            let prefill = legs.prefill_worker.key.0.as_str();
            self.receipt
                .failed(prefill, "its pages went to a worker that was lost");
            return Err(Setback::Again);
        }
        Ok(())
    }

    fn hear_decode(
        &mut self,
        legs: &mut Split,
        event: Result<DecodeEvent, LegFailure>,
    ) -> Result<(), Setback> {
        // Tokens come after what prefill still has to tell of the prompt.
        let is_early =
            matches!(event, Ok(DecodeEvent::Landed { .. })) && !self.output.prompt_is_told();
        if is_early {
            legs.early = event.ok();
            return Ok(());
        }
        let Some(decode) = &mut legs.decode else {
            return Ok(());
        };
        let taken = match event {
            Ok(DecodeEvent::Landed {
                attempt,
                first_tokens,
            }) if attempt == decode.attempt && !legs.landed => {
                legs.landed = true;
                self.receipt.landed();
                // Choices that a stop string ended before anyone could be told.
                let known = &self.request.completions;
                let is_new = |choice: &u32| known.get(*choice as usize).is_none_or(|c| !c.ended);
                self.output
                    .stopped()
                    .filter(is_new)
                    .for_each(|choice| decode.cancel_choice(choice));
                let worker = Arc::clone(decode.slot().worker());
                self.note_prefix(&worker, false);
                first_tokens
                    .iter()
                    .try_for_each(|token| self.emit_of(legs, token, Source::Echoed))
            }
            Ok(DecodeEvent::Token(token)) if legs.landed => {
                if token.attempt == decode.attempt {
                    self.emit_of(legs, &token, Source::Generated)
                } else {
                    Counters::add(&self.shared.counters.tokens_dropped);
                    Ok(())
                }
            }
            Ok(DecodeEvent::Done(_)) => Err("it ended before its choices did".to_owned()),
            Ok(_) => Err("a message out of order".to_owned()),
            Err(failure) => return self.decode_lost(legs, failure),
        };
        let Err(wrong) = taken else { return Ok(()) };
        match &mut legs.decode {
            Some(decode) => {
                let failure = decode.misbehaved(wrong);
                self.decode_lost(legs, failure)
            }
            None => Ok(()),
        }
    }

    fn decode_lost(&mut self, legs: &mut Split, failure: LegFailure) -> Result<(), Setback> {
        if legs.landed || legs.prefill.is_none() {
            // The pages were handed over and are gone: prefill again.
            return Err(failure.into());
        }
        self.search_again(legs, failure)
    }

    fn hear_search(&mut self, legs: &mut Split, (decode, grant): (DecodeLeg, Grant)) {
        let page_size = grant.fingerprint.page_size;
        let reused = grant.reused_pages.saturating_mul(page_size);
        self.receipt.decode_worker(&decode.slot().name(), reused);
        legs.search = None;
        legs.decode = Some(decode);
        if let Some(prefill) = &mut legs.prefill {
            legs.granted = Some(grant.attempt);
            prefill.grant(grant);
        }
    }

    /// Looks for a decode worker for the current attempt.
    fn search(&mut self, legs: &mut Split) {
        let mut excluded = std::mem::take(&mut legs.lost);
        let failed_before = self.excluded.failed.iter().cloned();
        excluded.failed.extend(failed_before);
        let search = GrantSearch {
            shared: Arc::clone(&self.shared),
            request: Arc::clone(&self.request),
            wanted: Arc::clone(&self.wanted),
            digest: legs.prefill_worker.digest,
            attempt: legs.attempt,
            excluded,
        };
        self.receipt.trace.searching();
        legs.search = Some(search.start());
    }

    /// The pages' way is broken before they landed: another grant on the same prefill leg.
    fn search_again(&mut self, legs: &mut Split, failure: LegFailure) -> Result<(), Setback> {
        Counters::add(&self.shared.counters.grant_retries);
        legs.decode = None;
        legs.early = None;
        legs.lost.failed.insert(failure.worker.clone());
        let prefill = self.receipt.last_prefill();
        self.set_back(failure)?;
        if self.excluded.shuns_hand_offs() {
            return Err(Setback::Again);
        }
        let reason = "split: another grant for the same prefill";
        legs.attempt = self.begin_attempt(&prefill, "", reason);
        self.receipt.prefill_goes_on();
        self.search(legs);
        Ok(())
    }

    /// Sends a token on, and tells the decode worker of a stop string.
    fn emit_of(
        &mut self,
        legs: &mut Split,
        token: &GeneratedToken,
        from: Source,
    ) -> Result<(), String> {
        let stopped = self.emit(token, from)?;
        if let (true, true, Some(decode)) = (stopped, legs.landed, &mut legs.decode) {
            decode.cancel_choice(token.choice);
        }
        Ok(())
    }

    /// After the last token: what is still open gets a moment to report, then ends with its drop.
    async fn close_split(&mut self, mut legs: Split) -> Result<(), Setback> {
        legs.search = None;
        // A stop string that ended the last choice before the hand-off: everything is cancelled.
        let cut_short = !legs.landed && self.output.stopped().next().is_some();
        if cut_short {
            return Ok(());
        }
        if let Some(mut prefill) = legs.prefill.take() {
            self.close_prefill(&mut prefill).await?;
        }
        if let (true, Some(mut decode)) = (legs.landed, legs.decode.take()) {
            self.close_decode(&mut decode, false).await?;
        }
        Ok(())
    }
}

impl Split {
    /// The next event of whatever is open, of prefill only `with_prefill`. Cancel-safe.
    async fn hear(&mut self, with_prefill: bool) -> Heard {
        let Self {
            search,
            prefill,
            decode,
            early,
            ..
        } = self;
        let found = async {
            match search {
                Some(search) => search.await,
                None => std::future::pending().await,
            }
        };
        let prefilled = async {
            match prefill {
                Some(leg) if with_prefill => leg.next().await,
                _ => std::future::pending().await,
            }
        };
        let decoded = async {
            match decode {
                Some(leg) if early.is_none() => leg.next().await,
                _ => std::future::pending().await,
            }
        };
        // What clients wait for goes first. What has arrived on a leg is little: its window is.
        tokio::select! {
            biased;
            event = prefilled => Heard::Prefill(event),
            event = decoded => Heard::Decode(event),
            found = found => Heard::Search(Box::new(found)),
        }
    }

    /// Whether the prefill worker has had a grant for this attempt; for any, if it does not say which.
    fn was_granted(&self, attempt: Option<Attempt>) -> bool {
        self.granted
            .is_some_and(|last| attempt.is_none_or(|attempt| attempt <= last))
    }

    fn prefill_misbehaved(&mut self, wrong: impl Into<String>) -> Setback {
        match &mut self.prefill {
            Some(prefill) => prefill.misbehaved(wrong).into(),
            None => RequestError::Internal.into(),
        }
    }
}
