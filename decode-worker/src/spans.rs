//! The phases of a sequence on a decode worker as spans: landing and decode, or queued, prefill and decode. One goes
//! on at a time. It must not know why a phase ends.

use baton_telemetry::traces::{KeyValue, Span};

/// The phase that goes on.
pub(crate) struct Phases<'a> {
    leg: &'a Span,
    phase: Span,
    tokens: i64,
    is_landing: bool,
}

impl<'a> Phases<'a> {
    /// The prompt is to be computed here, and waits for its turn.
    pub(crate) fn queued(leg: &'a Span) -> Self {
        Self::begin(leg, "queued")
    }

    /// The prompt has arrived, and waits for its first step.
    pub(crate) fn landing(leg: &'a Span) -> Self {
        Self {
            is_landing: true,
            ..Self::begin(leg, "landing")
        }
    }

    fn begin(leg: &'a Span, name: &'static str) -> Self {
        Self {
            leg,
            phase: leg.child(name),
            tokens: 0,
            is_landing: false,
        }
    }

    /// The first chunk is starting.
    pub(crate) fn scheduled(&mut self, cached_tokens: u32) {
        self.phase = self.leg.child("prefill");
        self.phase
            .set("baton.cached_tokens", i64::from(cached_tokens));
    }

    /// A chunk is computed, and more follow.
    pub(crate) fn chunk(&mut self, computed_tokens: u32) {
        self.phase.event("chunk", || {
            let computed = i64::from(computed_tokens);
            vec![KeyValue::new("baton.computed_tokens", computed)]
        });
    }

    /// The first step of a prompt that arrived is done.
    pub(crate) fn landed(&mut self) {
        if self.is_landing {
            self.decode();
        }
    }

    /// From here on tokens are generated.
    pub(crate) fn decode(&mut self) {
        self.is_landing = false;
        self.phase = self.leg.child("decode");
    }

    /// One has been.
    pub(crate) fn token(&mut self) {
        self.tokens += 1;
    }

    /// The sequence has ended well.
    pub(crate) fn done(mut self, preemptions: u32) {
        self.phase.set("baton.tokens", self.tokens);
        self.phase.set("baton.preemptions", i64::from(preemptions));
    }
}
