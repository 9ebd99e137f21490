//! The request's task: plan, follow the plan, and plan again after a setback, within bounds.
//!
//! It must not know messages on legs; that is `split`, `local` and `prefill_only`. What a setback means is
//! in `resume`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::Backoff;
use baton_proto::domain::{GeneratedToken, PromptLogprobs};
use baton_proto::ids::Attempt;
use baton_proto::v1;
use baton_proto::v1::generate_response::Event;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::admission::{Admitted, Prepared};
use super::ending::Ending;
use super::outbox::{Outbox, ResponseStream, outbox};
use super::output::{Output, Source};
use super::receipt::ReceiptBuilder;
use super::resume::Setbacks;
use super::setback::Setback;
use crate::affinity::PrefixHashes;
use crate::counters::Counters;
use crate::error::RequestError;
use crate::legs::LegRequest;
use crate::shared::Shared;
use crate::workers::{Excluded, Plan, Wanted, Worker};

/// Longest wait, after the last token, for the workers' share of the receipt.
pub(super) const REPORT_WAIT: Duration = Duration::from_millis(500);

/// One request being served.
pub(super) struct RequestTask {
    pub(super) shared: Arc<Shared>,
    pub(super) request: Arc<LegRequest>,
    pub(super) wanted: Arc<Wanted>,
    pub(super) output: Output,
    pub(super) outbox: Outbox,
    pub(super) receipt: ReceiptBuilder,
    pub(super) excluded: Excluded,
    pub(super) setbacks: Setbacks,
    /// Tokens that the current attempt need not generate.
    pub(super) kept: u64,
    /// Number of the current attempt.
    attempt: u32,
}

/// Starts the task of an admitted request.
pub(crate) fn start(
    shared: &Arc<Shared>,
    admitted: Admitted,
    mut ending: Ending,
) -> Result<ResponseStream, RequestError> {
    let (outbox, stream) = outbox(shared.config.client_buffer, shared.config.write_deadline);
    let Admitted { prepared, place } = admitted;
    let record = prepared.entry.record();
    let output = match Output::new(shared, record, &prepared.request, &prepared.stops) {
        Ok(output) => output,
        Err(error) => {
            let error = error.into();
            prepared.refused(&error);
            ending.refused(error.code(), &error);
            return Err(error);
        }
    };
    let Prepared {
        client,
        received,
        label,
        stops: _,
        request,
        wanted,
        entry,
        trace,
    } = prepared;
    let record = entry.record();
    let seed = request.params.seed;
    let log_span = trace.log_span();
    let request_id = &request.request_id;
    let receipt = ReceiptBuilder::new(record, trace, received, request_id, &label, seed);
    let mut task = RequestTask {
        shared: Arc::clone(shared),
        request: Arc::new(request),
        wanted: Arc::new(wanted),
        output,
        outbox,
        receipt,
        excluded: Excluded::default(),
        setbacks: Setbacks::default(),
        kept: 0,
        attempt: 0,
    };
    let serve = async move {
        let _places = (client, place);
        let result = task.run_unless_cut_off().await;
        let request_id = task.request.request_id.clone();
        let code = match result {
            Ok(()) => task.finish().await,
            Err(error) => {
                let error = task.with_what_was_lost(error);
                entry.why(&error);
                task.fail(error)
            }
        };
        tracing::debug!(request_id, label, ?code, "request ended");
        entry.end(code);
        ending.set(code);
    };
    let handle = tokio::spawn(serve.instrument(log_span));
    Ok(stream.owning(handle))
}

impl RequestTask {
    /// As [`Self::run`]; a router that ends does not wait for ever. Dropping what runs cancels its legs.
    async fn run_unless_cut_off(&mut self) -> Result<(), RequestError> {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            biased;
            result = self.run() => result,
            () = shared.answers.are_cut_off() => Err(RequestError::ShuttingDown),
        }
    }

    /// Serves until every choice has ended.
    async fn run(&mut self) -> Result<(), RequestError> {
        let mut backoff = Backoff::new(Duration::from_millis(25), Duration::from_millis(500));
        loop {
            if self.go_on_from_here() {
                backoff.reset();
            }
            self.receipt.trace.placing();
            match self.shared.directory.plan(&self.wanted, &self.excluded) {
                Ok(plan) => {
                    let answers = plan.worker().answers;
                    let followed = self.follow(plan).await;
                    if self.output.has_begun() {
                        // The rest must be of the same model. Set once; later attempts agree with it.
                        let _ = self.wanted.answers.set(answers);
                    }
                    match followed {
                        Ok(()) => return Ok(()),
                        Err(Setback::Fatal(error)) => return Err(error),
                        Err(Setback::Again) => {}
                        Err(Setback::NoGrant(asked)) => {
                            self.go_elsewhere(*asked);
                            Counters::add(&self.shared.counters.retries);
                        }
                        Err(Setback::Leg(failure)) => {
                            self.set_back(failure)?;
                            Counters::add(&self.shared.counters.retries);
                        }
                    }
                }
                Err(not_placed) => {
                    let until = self.worth_waiting(&not_placed);
                    let delay = backoff.delay();
                    if until.is_none_or(|until| Instant::now() + delay >= until) {
                        return Err(not_placed.into());
                    }
                    self.race(Instant::now() + delay, std::future::pending::<()>())
                        .await?;
                    self.excluded.clear();
                }
            }
        }
    }

    async fn follow(&mut self, plan: Plan) -> Result<(), Setback> {
        self.shared.counters.attempt(plan.why());
        match plan {
            Plan::Split(slot, reason) => {
                let reason = self.note_resume(reason.words);
                self.split(slot, &reason).await
            }
            Plan::PrefillOnly(slot, reason) => {
                let reason = self.note_resume(reason.words);
                self.prefill_only(slot, &reason).await
            }
            Plan::Local(slot, reason) => {
                let reason = self.note_resume(reason.words);
                self.local(slot, &reason).await
            }
        }
    }

    /// The current attempt.
    pub(super) fn attempt(&self) -> Attempt {
        Attempt(self.attempt)
    }

    /// Begins the next attempt, on these workers as far as they are chosen.
    pub(super) fn begin_attempt(&mut self, prefill: &str, decode: &str, reason: &str) -> Attempt {
        self.attempt += 1;
        (self.receipt).attempt(self.attempt, prefill, decode, reason);
        let trace = self.receipt.trace.context();
        if trace.is_some() {
            Arc::make_mut(&mut self.request).trace = trace;
        }
        Attempt(self.attempt)
    }

    /// Waits for `future`, the client and the deadline.
    pub(super) async fn race_to_deadline<T>(
        &mut self,
        future: impl Future<Output = T>,
    ) -> Result<T, RequestError> {
        let deadline = self.request.deadline;
        tokio::select! {
            biased;
            error = self.outbox.watch() => Err(error),
            output = future => Ok(output),
            () = tokio::time::sleep_until(deadline) => Err(self.deadline_error()),
        }
    }

    /// As [`Self::race_to_deadline`], but `None` when `silent_at` comes first.
    pub(super) async fn race<T>(
        &mut self,
        silent_at: Instant,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>, RequestError> {
        let bounded = tokio::time::timeout_at(silent_at, future);
        Ok(self.race_to_deadline(bounded).await?.ok())
    }

    /// As [`Self::race`], for a request whose every token has been told: its deadline costs the report only.
    pub(super) async fn race_for_report<T>(
        &mut self,
        until: Instant,
        report: impl Future<Output = T>,
    ) -> Result<Option<T>, RequestError> {
        let until = until.min(self.request.deadline);
        let bounded = tokio::time::timeout_at(until, report);
        tokio::select! {
            biased;
            error = self.outbox.watch() => Err(error),
            output = bounded => Ok(output.ok()),
        }
    }

    /// Sends log-probabilities of the prompt on to the client; in words what is wrong with them
    /// otherwise. Once all have been sent, workers of later attempts are not asked again.
    pub(super) fn emit_prompt(&mut self, told: &PromptLogprobs) -> Result<(), String> {
        for event in self.output.take_prompt(told)? {
            self.outbox.push(event);
        }
        if self.output.prompt_is_told() {
            Arc::make_mut(&mut self.request).params.prompt_logprobs = None;
        }
        Ok(())
    }

    /// Whether the client is behind with the prompt's log-probabilities: until it has caught up, whoever
    /// computes them waits.
    pub(super) fn client_lags(&self) -> bool {
        !self.output.prompt_is_told() && self.outbox.is_behind()
    }

    /// Waits for `future` while a client that is behind catches up; `None` once it has.
    pub(super) async fn race_with_client<T>(
        &mut self,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>, RequestError> {
        let deadline = self.request.deadline;
        tokio::select! {
            biased;
            flushed = self.outbox.flush() => flushed.map(|()| None),
            output = future => Ok(Some(output)),
            () = tokio::time::sleep_until(deadline) => Err(self.deadline_error()),
        }
    }

    /// Lets a client that is behind with the prompt's log-probabilities catch up.
    pub(super) async fn let_client_catch_up(&mut self) -> Result<(), RequestError> {
        if self.client_lags() {
            self.race_with_client(std::future::pending::<()>()).await?;
        }
        Ok(())
    }

    /// Sends a token on to the client. True if a stop string ended its choice; in words what is
    /// wrong with it otherwise.
    pub(super) fn emit(&mut self, token: &GeneratedToken, from: Source) -> Result<bool, String> {
        let emitted = self.output.take(token, from)?;
        let stopped = emitted.stopped && !emitted.events.is_empty();
        for event in emitted.events {
            if let Event::Finished(finished) = &event {
                self.receipt.trace.choice_finished(finished);
            }
            self.outbox.push(event);
        }
        Ok(stopped)
    }

    /// Remembers that a worker holds the prompt, and what has been generated there.
    pub(super) fn note_prefix(&self, worker: &Worker, with_completions: bool) {
        let directory = &self.shared.directory;
        directory.note_prefix(&self.wanted.prefixes(worker), &worker.key);
        if with_completions {
            for completion in self.output.completions().filter(|ids| !ids.is_empty()) {
                // K and V of the last token were never computed.
                let computed = &completion[..completion.len() - 1];
                let ids = [&*self.request.prompt_ids, computed].concat();
                let page_size = worker.info.fingerprint.page_size;
                let salt = &self.wanted.cache_salt;
                let prefixes = PrefixHashes::new(&worker.digest, page_size, salt, &ids);
                directory.note_prefix(&prefixes, &worker.key);
            }
        }
    }

    /// Sends usage and receipt.
    async fn finish(self) -> tonic::Code {
        let Self {
            output,
            mut outbox,
            receipt,
            request,
            shared,
            ..
        } = self;
        let usage = v1::Usage {
            prompt_tokens: request.prompt_ids.len() as u32,
            completion_tokens: output.tokens() as u32,
            cached_tokens: receipt.cached_tokens(),
        };
        let (receipt, mut trace) = receipt.build(&output);
        shared.note_receipt(&receipt);
        trace.finished(&usage, &receipt);
        outbox.push(Event::Done(v1::DoneEvent {
            usage: Some(usage),
            receipt: Some(receipt),
        }));
        let flushed = tokio::select! {
            biased;
            flushed = outbox.flush() => flushed,
            () = shared.answers.are_cut_off() => Err(RequestError::ShuttingDown),
        };
        match flushed {
            Ok(()) => tonic::Code::Ok,
            Err(error) => end_badly(outbox, &shared, error),
        }
    }

    fn fail(mut self, error: RequestError) -> tonic::Code {
        self.receipt.trace.fail(&error);
        let request_id = &self.request.request_id;
        if matches!(error, RequestError::ClientGone) {
            tracing::debug!(request_id, "the client is gone");
        } else {
            tracing::warn!(request_id, %error, "request failed");
        }
        end_badly(self.outbox, &self.shared, error)
    }
}

fn end_badly(outbox: Outbox, shared: &Shared, error: RequestError) -> tonic::Code {
    if matches!(error, RequestError::SlowReader(_)) {
        Counters::add(&shared.counters.slow_readers);
    }
    let code = error.code();
    outbox.fail(error.into());
    code
}
