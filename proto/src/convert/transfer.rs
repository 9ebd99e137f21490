//! Grants and the payload of Commit.
//!
//! It must not know transports beyond their names.

use std::time::Duration;

use baton_sampling::MAX_CHOICES;

use super::check::{entries, fixed, name, present, refused, text, within};
use super::sequence::{attempt, choice};
use crate::domain::{CommitPayload, GeneratedToken, Grant, PageSlot, TransferEndpoint, Transport};
use crate::error::ConvertError;
use crate::ids::{Incarnation, SpanRef, TransferId, TransferSecret};
use crate::limits::{
    MAX_ADDRESS_BYTES, MAX_ENDPOINTS, MAX_GRANT_SLOTS, MAX_LEASE_MS, MAX_NAME_BYTES,
};
use crate::v1;

impl TryFrom<v1::Grant> for Grant {
    type Error = ConvertError;

    fn try_from(grant: v1::Grant) -> Result<Self, ConvertError> {
        entries("grant.slots", grant.slots.len(), MAX_GRANT_SLOTS)?;
        entries("grant.endpoints", grant.endpoints.len(), MAX_ENDPOINTS)?;
        within(
            "grant.reused_pages",
            grant.reused_pages,
            0..=MAX_GRANT_SLOTS as u32,
        )?;
        let lease_ms = within("grant.lease_ms", grant.lease_ms, 1..=MAX_LEASE_MS)?;
        let endpoints = grant.endpoints.into_iter().map(TransferEndpoint::try_from);
        Ok(Self {
            transfer_id: TransferId(fixed("grant.transfer_id", &grant.transfer_id)?),
            attempt: attempt("grant.attempt", grant.attempt)?,
            incarnation: Incarnation(grant.incarnation),
            fingerprint: present("grant.fingerprint", grant.fingerprint)?.try_into()?,
            reused_pages: grant.reused_pages,
            endpoints: endpoints.collect::<Result<_, _>>()?,
            secret: TransferSecret(fixed("grant.secret", &grant.secret)?),
            lease: Duration::from_millis(u64::from(lease_ms)),
            span: span("grant.span", &grant.span)?,
            slots: grant.slots.into_iter().map(PageSlot::from).collect(),
        })
    }
}

impl From<Grant> for v1::Grant {
    fn from(grant: Grant) -> Self {
        Self {
            transfer_id: grant.transfer_id.0.to_vec(),
            attempt: grant.attempt.0,
            incarnation: grant.incarnation.0,
            slots: grant.slots.into_iter().map(v1::PageSlot::from).collect(),
            fingerprint: Some(grant.fingerprint.into()),
            reused_pages: grant.reused_pages,
            endpoints: grant
                .endpoints
                .into_iter()
                .map(v1::TransferEndpoint::from)
                .collect(),
            secret: grant.secret.0.to_vec(),
            lease_ms: grant.lease.as_millis().clamp(1, u128::from(MAX_LEASE_MS)) as u32,
            span: span_bytes(grant.span),
        }
    }
}

/// No bytes are no span.
fn span(field: &'static str, bytes: &[u8]) -> Result<Option<SpanRef>, ConvertError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    fixed(field, bytes).map(|bytes| Some(SpanRef(bytes)))
}

fn span_bytes(span: Option<SpanRef>) -> Vec<u8> {
    span.map_or_else(Vec::new, |SpanRef(bytes)| bytes.to_vec())
}

impl From<v1::PageSlot> for PageSlot {
    fn from(slot: v1::PageSlot) -> Self {
        Self {
            page: slot.page,
            generation: slot.generation,
        }
    }
}

impl From<PageSlot> for v1::PageSlot {
    fn from(slot: PageSlot) -> Self {
        Self {
            page: slot.page,
            generation: slot.generation,
        }
    }
}

impl Transport {
    /// Name on the wire and in receipts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

impl TryFrom<&str> for Transport {
    type Error = ConvertError;

    fn try_from(name: &str) -> Result<Self, ConvertError> {
        match name {
            "shm" => Ok(Self::Shm),
            "tcp" => Ok(Self::Tcp),
            other => Err(refused("transport", other, "shm, tcp")),
        }
    }
}

impl TryFrom<v1::TransferEndpoint> for TransferEndpoint {
    type Error = ConvertError;

    fn try_from(endpoint: v1::TransferEndpoint) -> Result<Self, ConvertError> {
        Ok(Self {
            transport: Transport::try_from(endpoint.transport.as_str())?,
            address: name("endpoint.address", endpoint.address, MAX_ADDRESS_BYTES)?,
            host_id: text("endpoint.host_id", endpoint.host_id, MAX_NAME_BYTES)?,
        })
    }
}

impl From<TransferEndpoint> for v1::TransferEndpoint {
    fn from(endpoint: TransferEndpoint) -> Self {
        Self {
            transport: endpoint.transport.as_str().into(),
            address: endpoint.address,
            host_id: endpoint.host_id,
        }
    }
}

impl TryFrom<v1::CommitPayload> for CommitPayload {
    type Error = ConvertError;

    fn try_from(payload: v1::CommitPayload) -> Result<Self, ConvertError> {
        let most = MAX_CHOICES as usize;
        entries("commit.first_tokens", payload.first_tokens.len(), most)?;
        entries(
            "commit.running_choices",
            payload.running_choices.len(),
            most,
        )?;
        for &running in &payload.running_choices {
            choice(running)?;
        }
        if !payload.running_choices.is_sorted_by(|a, b| a < b) {
            let value = format!("{:?}", payload.running_choices);
            return Err(refused(
                "commit.running_choices",
                value,
                "ascending choices",
            ));
        }
        let first_tokens = payload
            .first_tokens
            .into_iter()
            .map(GeneratedToken::try_from);
        Ok(Self {
            first_tokens: first_tokens.collect::<Result<_, _>>()?,
            running_choices: payload.running_choices,
            span: span("commit.span", &payload.span)?,
        })
    }
}

impl From<CommitPayload> for v1::CommitPayload {
    fn from(payload: CommitPayload) -> Self {
        let first_tokens = payload
            .first_tokens
            .into_iter()
            .map(v1::GeneratedToken::from);
        Self {
            first_tokens: first_tokens.collect(),
            running_choices: payload.running_choices,
            span: span_bytes(payload.span),
        }
    }
}
