//! What workers tell about themselves.
//!
//! It must not know how the report travels or what is made of it.

use super::check::{entries, fixed, name, present, refused, text, within};
use crate::domain::{Fingerprint, Ledger, WorkerInfo, WorkerLoad, WorkerRole};
use crate::error::ConvertError;
use crate::ids::{Incarnation, WorkerId};
use crate::limits::{
    MAX_ADDRESS_BYTES, MAX_BATCH, MAX_CANONICAL_BYTES, MAX_CONTEXT_TOKENS, MAX_COUNTERS,
    MAX_DIMENSION, MAX_MODEL_NAME_BYTES, MAX_NAME_BYTES, MAX_PAGE_SIZE, MAX_POOL_PAGES,
    MAX_REPORTED_SEQUENCES, MAX_STEP_US,
};
use crate::v1;

impl TryFrom<v1::Fingerprint> for Fingerprint {
    type Error = ConvertError;

    fn try_from(wire: v1::Fingerprint) -> Result<Self, ConvertError> {
        let canonical = |field, value| text(field, value, MAX_CANONICAL_BYTES);
        Ok(Self {
            protocol_version: wire.protocol_version,
            weights_digest: fixed("fingerprint.weights_digest", &wire.weights_digest)?,
            metadata_digest: fixed("fingerprint.metadata_digest", &wire.metadata_digest)?,
            tokenizer_digest: fixed("fingerprint.tokenizer_digest", &wire.tokenizer_digest)?,
            kv_dtype: name("fingerprint.kv_dtype", wire.kv_dtype, MAX_NAME_BYTES)?,
            page_size: within("fingerprint.page_size", wire.page_size, 1..=MAX_PAGE_SIZE)?,
            layers: within("fingerprint.layers", wire.layers, 1..=MAX_DIMENSION)?,
            kv_heads: within("fingerprint.kv_heads", wire.kv_heads, 1..=MAX_DIMENSION)?,
            head_dim: within("fingerprint.head_dim", wire.head_dim, 1..=MAX_DIMENSION)?,
            layout: canonical("fingerprint.layout", wire.layout)?,
            rope: canonical("fingerprint.rope", wire.rope)?,
            numerics: canonical("fingerprint.numerics", wire.numerics)?,
        })
    }
}

impl From<Fingerprint> for v1::Fingerprint {
    fn from(fingerprint: Fingerprint) -> Self {
        Self {
            protocol_version: fingerprint.protocol_version,
            weights_digest: fingerprint.weights_digest.to_vec(),
            metadata_digest: fingerprint.metadata_digest.to_vec(),
            tokenizer_digest: fingerprint.tokenizer_digest.to_vec(),
            kv_dtype: fingerprint.kv_dtype,
            page_size: fingerprint.page_size,
            layers: fingerprint.layers,
            kv_heads: fingerprint.kv_heads,
            head_dim: fingerprint.head_dim,
            layout: fingerprint.layout,
            rope: fingerprint.rope,
            numerics: fingerprint.numerics,
        }
    }
}

impl TryFrom<v1::WorkerRole> for WorkerRole {
    type Error = ConvertError;

    fn try_from(role: v1::WorkerRole) -> Result<Self, ConvertError> {
        match role {
            v1::WorkerRole::Prefill => Ok(Self::Prefill),
            v1::WorkerRole::Decode => Ok(Self::Decode),
            v1::WorkerRole::Unspecified => Err(ConvertError::Missing { field: "role" }),
        }
    }
}

impl From<WorkerRole> for v1::WorkerRole {
    fn from(role: WorkerRole) -> Self {
        match role {
            WorkerRole::Prefill => Self::Prefill,
            WorkerRole::Decode => Self::Decode,
        }
    }
}

impl TryFrom<v1::WorkerInfo> for WorkerInfo {
    type Error = ConvertError;

    fn try_from(info: v1::WorkerInfo) -> Result<Self, ConvertError> {
        let worker_id = WorkerId::new(&info.worker_id)
            .ok_or_else(|| refused("worker_id", &info.worker_id, "[A-Za-z0-9._-]{1,64}"))?;
        let role = v1::WorkerRole::try_from(info.role)
            .map_err(|_| refused("role", info.role, "1 (prefill), 2 (decode)"))?;
        if info.incarnation == 0 {
            return Err(ConvertError::Missing {
                field: "incarnation",
            });
        }
        let context = within(
            "context_length",
            info.context_length,
            2..=MAX_CONTEXT_TOKENS,
        )?;
        Ok(Self {
            worker_id,
            incarnation: Incarnation(info.incarnation),
            role: role.try_into()?,
            address: address(info.address)?,
            fingerprint: present("fingerprint", info.fingerprint)?.try_into()?,
            model: name("model", info.model, MAX_MODEL_NAME_BYTES)?,
            pages_total: within("pages_total", info.pages_total, 1..=MAX_POOL_PAGES)?,
            max_batch: within("max_batch", info.max_batch, 1..=MAX_BATCH)?,
            context_length: context,
            pid: info.pid,
            host_id: text("host_id", info.host_id, MAX_NAME_BYTES)?,
            version: text("version", info.version, MAX_NAME_BYTES)?,
        })
    }
}

impl From<WorkerInfo> for v1::WorkerInfo {
    fn from(info: WorkerInfo) -> Self {
        Self {
            worker_id: info.worker_id.as_str().to_owned(),
            incarnation: info.incarnation.0,
            role: v1::WorkerRole::from(info.role).into(),
            address: info.address,
            fingerprint: Some(info.fingerprint.into()),
            model: info.model,
            pages_total: info.pages_total,
            max_batch: info.max_batch,
            context_length: info.context_length,
            pid: info.pid,
            host_id: info.host_id,
            version: info.version,
        }
    }
}

impl TryFrom<v1::PageLedger> for Ledger {
    type Error = ConvertError;

    fn try_from(pages: v1::PageLedger) -> Result<Self, ConvertError> {
        let parts = [
            pages.free,
            pages.cached,
            pages.live,
            pages.granted,
            pages.quarantined,
        ];
        let sum: u64 = parts.into_iter().map(u64::from).sum();
        if sum != u64::from(pages.total) {
            let value = format!("{parts:?} with a sum of {sum}");
            return Err(refused(
                "pages",
                value,
                format!("parts that add up to {}", pages.total),
            ));
        }
        Ok(Self {
            total: pages.total,
            free: pages.free,
            cached: pages.cached,
            live: pages.live,
            granted: pages.granted,
            quarantined: pages.quarantined,
        })
    }
}

impl From<Ledger> for v1::PageLedger {
    fn from(pages: Ledger) -> Self {
        Self {
            total: pages.total,
            free: pages.free,
            cached: pages.cached,
            live: pages.live,
            granted: pages.granted,
            quarantined: pages.quarantined,
        }
    }
}

impl TryFrom<v1::WorkerLoad> for WorkerLoad {
    type Error = ConvertError;

    fn try_from(load: v1::WorkerLoad) -> Result<Self, ConvertError> {
        entries("counters", load.counters.len(), MAX_COUNTERS)?;
        for key in load.counters.keys() {
            if key.is_empty() || key.len() > MAX_NAME_BYTES || !key.is_ascii() {
                return Err(refused("counters", key, "ASCII names of 1 to 128 bytes"));
            }
        }
        let mut counters: Vec<_> = load.counters.into_iter().collect();
        counters.sort();
        let most_tokens = u64::from(MAX_REPORTED_SEQUENCES) * u64::from(MAX_CONTEXT_TOKENS);
        Ok(Self {
            queued: within("queued", load.queued, 0..=MAX_REPORTED_SEQUENCES)?,
            running: within("running", load.running, 0..=MAX_REPORTED_SEQUENCES)?,
            queued_tokens: within("queued_tokens", load.queued_tokens, 0..=most_tokens)?,
            pages: present("pages", load.pages)?.try_into()?,
            step_us: within("step_us", load.step_us, 0..=MAX_STEP_US)?,
            draining: load.draining,
            counters,
        })
    }
}

impl From<WorkerLoad> for v1::WorkerLoad {
    fn from(load: WorkerLoad) -> Self {
        Self {
            queued: load.queued,
            running: load.running,
            queued_tokens: load.queued_tokens,
            pages: Some(load.pages.into()),
            step_us: load.step_us,
            draining: load.draining,
            counters: load.counters.into_iter().collect(),
        }
    }
}

/// `host:port`; the host is a name or an address, IPv6 in brackets.
fn address(value: String) -> Result<String, ConvertError> {
    let value = name("address", value, MAX_ADDRESS_BYTES)?;
    let fits = value.rsplit_once(':').is_some_and(|(host, port)| {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let inner = host.trim_start_matches('[').trim_end_matches(']');
        let host_fits = if bracketed {
            inner.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            !host.is_empty() && host.bytes().all(plain)
        };
        host_fits && port.parse::<u16>().is_ok_and(|port| port > 0)
    });
    if fits {
        Ok(value)
    } else {
        Err(refused("address", value, "host:port"))
    }
}
