//! A request as spans: the request itself, its admission, each placement and each attempt, under which the workers'
//! own spans come.
//!
//! Attributes follow OpenTelemetry's conventions for generative models, and `baton.*` for what is ours. Text of
//! prompts and answers is never among them. It must not know how spans leave the process.

use baton_proto::code_name;
use baton_proto::v1;
use baton_proto::v1::generate_request::Input;
use baton_sampling::SamplingParams;
use baton_telemetry::traces::{Kind, Span, TraceContext};
use tonic::Code;

use crate::error::RequestError;
use crate::shared::Shared;

/// Spans of one request; one that does not go on is off. Inner ones are dropped, and so end, first.
#[derive(Debug)]
pub(crate) struct RequestTrace {
    grant: Span,
    attempt: Span,
    placement: Span,
    admission: Span,
    request: Span,
    /// Reasons by choice, in the order of their ends.
    finish_reasons: Vec<(u32, &'static str)>,
    has_ended: bool,
}

impl RequestTrace {
    /// A request has come in, from a caller that may have a trace of its own.
    pub(crate) fn begin(
        shared: &Shared,
        caller: Option<TraceContext>,
        message: &v1::GenerateRequest,
    ) -> Self {
        let operation = match message.input {
            Some(Input::Chat(_)) => "chat",
            _ => "text_completion",
        };
        let model = shared.model.name();
        // A name that nobody knows is not worth a span's.
        let is_known = shared.model.answers_to(&message.model);
        let name = || {
            if is_known {
                format!("{operation} {model}")
            } else {
                operation.to_owned()
            }
        };
        let mut request = shared.tracer().begin(Kind::Server, name, caller);
        if request.is_recording() {
            request.set("gen_ai.operation.name", operation);
            request.set("gen_ai.provider.name", "baton");
            if is_known {
                request.set("gen_ai.request.model", model.to_owned());
                request.set("gen_ai.response.model", model.to_owned());
            }
        }
        Self {
            admission: request.child("admission"),
            request,
            placement: Span::default(),
            attempt: Span::default(),
            grant: Span::default(),
            finish_reasons: Vec::new(),
            has_ended: false,
        }
    }

    /// What logs of the request carry.
    pub(crate) fn log_span(&self) -> tracing::Span {
        self.request.log_span()
    }

    /// The request's own span.
    pub(crate) fn own_context(&self) -> Option<TraceContext> {
        self.request.context()
    }

    /// The prompt becomes token ids; over when this is dropped.
    pub(super) fn tokenizing(&self) -> Span {
        self.admission.child("tokenize")
    }

    /// Every default is fixed.
    pub(super) fn prepared(
        &mut self,
        request_id: &str,
        label: &str,
        prompt: usize,
        params: &SamplingParams,
    ) {
        let span = &mut self.request;
        if !span.is_recording() {
            return;
        }
        span.set("baton.request_id", request_id.to_owned());
        if label != request_id && !label.is_empty() {
            span.set("baton.request_label", label.to_owned());
        }
        span.set("gen_ai.response.id", request_id.to_owned());
        span.set("gen_ai.usage.input_tokens", prompt as i64);
        span.set("gen_ai.request.max_tokens", i64::from(params.max_tokens));
        span.set("gen_ai.request.temperature", f64::from(params.temperature));
        span.set("gen_ai.request.top_p", f64::from(params.top_p));
        if params.top_k > 0 {
            span.set("gen_ai.request.top_k", i64::from(params.top_k));
        }
        if params.choices > 1 {
            span.set("gen_ai.request.choice.count", i64::from(params.choices));
        }
        if params.presence_penalty != 0.0 {
            let penalty = f64::from(params.presence_penalty);
            span.set("gen_ai.request.presence_penalty", penalty);
        }
        if params.frequency_penalty != 0.0 {
            let penalty = f64::from(params.frequency_penalty);
            span.set("gen_ai.request.frequency_penalty", penalty);
        }
        // Attributes know no number of 64 bits without a sign.
        match i64::try_from(params.seed) {
            Ok(seed) => span.set("gen_ai.request.seed", seed),
            Err(_) => span.set("gen_ai.request.seed", params.seed.to_string()),
        }
    }

    /// It has its place.
    pub(super) fn admitted(&mut self) {
        self.admission = Span::default();
    }

    /// A worker is looked for.
    pub(super) fn placing(&mut self) {
        if !self.placement.is_recording() {
            self.placement = self.request.child("placement");
        }
    }

    /// An attempt begins where it was placed; the one before, if any, is over.
    pub(super) fn attempt(&mut self, placed: &v1::PlacementAttempt) {
        self.grant = Span::default();
        self.attempt = Span::default();
        if self.request.is_recording() {
            let mut span = self.request.child_of_kind(Kind::Client, "attempt", None);
            span.set("baton.attempt", i64::from(placed.attempt));
            span.set("baton.reason", placed.reason.clone());
            if !placed.prefill_worker.is_empty() {
                span.set("baton.prefill_worker", placed.prefill_worker.clone());
            }
            if !placed.decode_worker.is_empty() {
                span.set("baton.decode_worker", placed.decode_worker.clone());
            }
            if placed.kept_tokens > 0 {
                span.set("baton.kept_tokens", placed.kept_tokens as i64);
            }
            self.attempt = span;
        }
        self.placement = Span::default();
    }

    /// Under what the workers' spans belong.
    pub(super) fn context(&self) -> Option<TraceContext> {
        self.attempt.context().or_else(|| self.request.context())
    }

    /// Pages are looked for.
    pub(super) fn searching(&mut self) {
        self.grant = self.attempt.child("grant");
    }

    /// They have been granted.
    pub(super) fn granted(&mut self, decode_worker: &str, reused_tokens: u32) {
        self.grant = Span::default();
        if self.attempt.is_recording() {
            let span = &mut self.attempt;
            span.set("baton.decode_worker", decode_worker.to_owned());
            span.set("baton.reused_tokens", i64::from(reused_tokens));
        }
    }

    /// The attempt has ended badly.
    pub(super) fn failed(&mut self, failure: &str) {
        self.grant = Span::default();
        self.attempt.fail("attempt_failed", || failure.to_owned());
    }

    /// A choice has ended.
    pub(super) fn choice_finished(&mut self, finished: &v1::FinishedEvent) {
        if self.request.is_recording() {
            let reason = match finished.finish_reason() {
                v1::FinishReason::Stop => "stop",
                v1::FinishReason::Length => "length",
                v1::FinishReason::Unspecified => "unspecified",
            };
            self.finish_reasons.push((finished.choice, reason));
        }
    }

    /// Everything has been answered.
    pub(super) fn finished(&mut self, usage: &v1::Usage, receipt: &v1::Receipt) {
        self.has_ended = true;
        self.attempt = Span::default();
        let span = &mut self.request;
        if !span.is_recording() {
            return;
        }
        self.finish_reasons.sort_by_key(|(choice, _)| *choice);
        let reasons = self.finish_reasons.iter().map(|(_, reason)| *reason);
        span.set_names("gen_ai.response.finish_reasons", reasons);
        span.set(
            "gen_ai.usage.output_tokens",
            i64::from(usage.completion_tokens),
        );
        span.set(
            "gen_ai.usage.cache_read.input_tokens",
            i64::from(usage.cached_tokens),
        );
        span.set("baton.ttft_us", receipt.ttft_us as i64);
        let attempts = receipt.attempts.last().map_or(0, |last| last.attempt);
        span.set("baton.attempts", i64::from(attempts));
    }

    /// It ends badly.
    pub(crate) fn fail(&mut self, error: &RequestError) {
        let code = error.code();
        let said_by_client = matches!(code, Code::InvalidArgument | Code::NotFound);
        // What is wrong with a request may repeat words of it.
        self.end_badly(code, || {
            if said_by_client {
                code_name(code).to_owned()
            } else {
                error.to_string()
            }
        });
    }

    fn end_badly(&mut self, code: Code, description: impl FnOnce() -> String) {
        if !std::mem::replace(&mut self.has_ended, true) {
            self.request.fail(code_name(code), description);
        }
    }
}

impl Drop for RequestTrace {
    /// Whoever drops a request cancels it.
    fn drop(&mut self) {
        self.end_badly(Code::Cancelled, || "the client is gone".to_owned());
    }
}
