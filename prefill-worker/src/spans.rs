//! The phases of a prompt on a prefill worker as spans: queued, prefill, grant wait, send. It must not know why a
//! phase ends.

use baton_kv_transfer::TransferStats;
use baton_proto::domain::Grant;
use baton_proto::ids::SpanRef;
use baton_telemetry::traces::{KeyValue, Kind, Span};
use baton_worker::{linked_span, span_ref};

/// Spans of one leg; a phase that is not going on is off.
pub(crate) struct Spans<'a> {
    leg: &'a Span,
    queued: Span,
    prefill: Span,
    grant_wait: Span,
    send: Span,
}

impl<'a> Spans<'a> {
    /// The prompt waits for its turn.
    pub(crate) fn queued(leg: &'a Span) -> Self {
        Self {
            leg,
            queued: leg.child("queued"),
            prefill: Span::default(),
            grant_wait: Span::default(),
            send: Span::default(),
        }
    }

    /// Its first chunk is starting.
    pub(crate) fn scheduled(&mut self, cached_tokens: u32) {
        self.queued = Span::default();
        self.prefill = self.leg.child("prefill");
        self.prefill
            .set("baton.cached_tokens", i64::from(cached_tokens));
    }

    /// A chunk is computed, and more follow.
    pub(crate) fn chunk(&mut self, computed_tokens: u32) {
        self.prefill.event("chunk", || {
            let computed = i64::from(computed_tokens);
            vec![KeyValue::new("baton.computed_tokens", computed)]
        });
    }

    /// The whole prompt is computed.
    pub(crate) fn computed(&mut self) {
        self.prefill = Span::default();
    }

    /// Computed pages have nowhere to go.
    pub(crate) fn waits_for_grant(&mut self) {
        self.grant_wait = self.leg.child("grant wait");
    }

    /// Pages leave for those of a grant.
    pub(crate) fn send(&mut self, grant: &Grant) {
        self.grant_wait = Span::default();
        if !self.leg.is_recording() {
            return;
        }
        let receive = linked_span(grant.span);
        let mut send = (self.leg).child_of_kind(Kind::Producer, "send", receive.as_ref());
        send.set("baton.attempt", i64::from(grant.attempt.0));
        send.set("baton.pages", grant.slots.len() as i64);
        send.set("baton.reused_pages", i64::from(grant.reused_pages));
        self.send = send;
    }

    /// For the receiver, to link its own.
    pub(crate) fn send_ref(&self) -> Option<SpanRef> {
        span_ref(&self.send)
    }

    /// Every page is the receiver's.
    pub(crate) fn sent(&mut self, stats: &TransferStats) {
        if self.send.is_recording() {
            self.send.set("baton.bytes", stats.bytes as i64);
            self.send
                .set("baton.early_bytes", stats.bytes_before_finish as i64);
            self.send.set("baton.transport", stats.transport.as_str());
        }
        self.send = Span::default();
    }

    /// The transfer broke.
    pub(crate) fn broken(&mut self, reason: &str) {
        self.send.fail("transfer_failed", || reason.to_owned());
        self.send = Span::default();
    }
}
