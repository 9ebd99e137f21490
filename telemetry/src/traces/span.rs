//! One span, or the place of one that nobody wants. It must not know where spans go.

use std::borrow::Cow;

use opentelemetry::trace::{
    Link, Span as _, SpanBuilder, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SdkTracer, Span as SdkSpan};

use super::TraceContext;

/// What a span is to those around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Answers a call from elsewhere.
    Server,
    /// Calls and waits for the answer.
    Client,
    /// Gives something to a span that is linked to it.
    Producer,
    /// Takes something from a span that is linked to it.
    Consumer,
    /// Part of its parent's work.
    Internal,
}

/// A span that ends when it is dropped. By default it is off: it records nothing and costs nothing.
#[derive(Debug, Default)]
pub struct Span(State);

#[derive(Debug, Default)]
enum State {
    #[default]
    Off,
    /// Not recorded, but part of a trace: others hear of it.
    Passing(Box<TraceContext>),
    Recording(Box<Recording>),
}

#[derive(Debug)]
struct Recording {
    span: SdkSpan,
    tracer: SdkTracer,
}

impl Span {
    /// Records nothing and passes a caller's context on.
    pub(super) fn passing(context: Option<TraceContext>) -> Self {
        Self(context.map_or(State::Off, |context| State::Passing(Box::new(context))))
    }

    pub(super) fn start(
        tracer: &SdkTracer,
        kind: Kind,
        name: impl Into<Cow<'static, str>>,
        parent: Option<&TraceContext>,
        link: Option<&TraceContext>,
    ) -> Self {
        let mut builder = SpanBuilder::from_name(name).with_kind(kind.into());
        if let Some(link) = link {
            builder = builder.with_links(vec![Link::with_context(link.0.clone())]);
        }
        let place = match parent {
            Some(parent) => Context::new().with_remote_span_context(parent.0.clone()),
            None => Context::new(),
        };
        let span = tracer.build_with_context(builder, &place);
        let tracer = tracer.clone();
        if span.is_recording() {
            return Self(State::Recording(Box::new(Recording { span, tracer })));
        }
        let context = TraceContext(span.span_context().clone());
        Self(State::Passing(Box::new(context)))
    }

    /// What logs of this span's work carry: the trace's id, if there is one.
    pub fn log_span(&self) -> tracing::Span {
        match self.context() {
            // Told at every level.
            Some(context) => tracing::error_span!("request", trace_id = %context.trace_id()),
            None => tracing::Span::none(),
        }
    }

    /// Whether attributes are worth being built.
    pub fn is_recording(&self) -> bool {
        matches!(self.0, State::Recording(_))
    }

    /// What others need to continue from here.
    pub fn context(&self) -> Option<TraceContext> {
        match &self.0 {
            State::Off => None,
            State::Passing(context) => Some((**context).clone()),
            State::Recording(recording) => {
                Some(TraceContext(recording.span.span_context().clone()))
            }
        }
    }

    /// A part of this span; off if this one is not recorded.
    #[must_use]
    pub fn child(&self, name: &'static str) -> Self {
        self.child_of_kind(Kind::Internal, name, None)
    }

    /// As [`Self::child`], of another kind, linked to a span elsewhere.
    #[must_use]
    pub fn child_of_kind(
        &self,
        kind: Kind,
        name: &'static str,
        link: Option<&TraceContext>,
    ) -> Self {
        let State::Recording(recording) = &self.0 else {
            return Self::default();
        };
        let here = TraceContext(recording.span.span_context().clone());
        Self::start(&recording.tracer, kind, name, Some(&here), link)
    }

    /// Sets an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let State::Recording(recording) = &mut self.0 {
            recording
                .span
                .set_attribute(KeyValue::new(key, value.into()));
        }
    }

    /// Sets an attribute that is a list of names.
    pub fn set_names(&mut self, key: &'static str, names: impl Iterator<Item = &'static str>) {
        if self.is_recording() {
            let names: Vec<StringValue> = names.map(StringValue::from).collect();
            self.set(key, Value::Array(names.into()));
        }
    }

    /// Notes that something happened now.
    pub fn event(&mut self, name: &'static str, attributes: impl FnOnce() -> Vec<KeyValue>) {
        if let State::Recording(recording) = &mut self.0 {
            recording.span.add_event(name, attributes());
        }
    }

    /// Links a span elsewhere.
    pub fn link(&mut self, other: &TraceContext) {
        if let State::Recording(recording) = &mut self.0 {
            recording.span.add_link(other.0.clone(), Vec::new());
        }
    }

    /// Ended badly: `kind` is a short name, `description` says more.
    pub fn fail(&mut self, kind: &'static str, description: impl FnOnce() -> String) {
        if let State::Recording(recording) = &mut self.0 {
            let span = &mut recording.span;
            span.set_attribute(KeyValue::new("error.type", kind));
            span.set_status(Status::error(description()));
        }
    }
}

impl From<Kind> for SpanKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Server => Self::Server,
            Kind::Client => Self::Client,
            Kind::Producer => Self::Producer,
            Kind::Consumer => Self::Consumer,
            Kind::Internal => Self::Internal,
        }
    }
}
