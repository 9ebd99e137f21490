//! Validated domain types that several parts share. Wire types stop at the conversion beside them.

use std::time::Duration;

use baton_sampling::{SamplingParams, TokenLogprobs};

use crate::ids::{Attempt, Incarnation, RequestId, SpanRef, TransferId, TransferSecret, WorkerId};

#[cfg(test)]
mod tests;

/// Version of the worker protocol and the data plane.
pub const PROTOCOL_VERSION: u32 = 3;

/// One compatibility identity: only equal fingerprints may exchange pages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// [`PROTOCOL_VERSION`] of the process.
    pub protocol_version: u32,
    /// blake3 of the weights.
    pub weights_digest: [u8; 32],
    /// blake3 of metadata and tensor table (what the router can check).
    pub metadata_digest: [u8; 32],
    /// blake3 of tokenizer and template.
    pub tokenizer_digest: [u8; 32],
    /// Name of the KV element type.
    pub kv_dtype: String,
    /// Tokens per page.
    pub page_size: u32,
    /// Layers.
    pub layers: u32,
    /// Key/value heads.
    pub kv_heads: u32,
    /// Values per head.
    pub head_dim: u32,
    /// Order of values inside a page.
    pub layout: String,
    /// Canonical text of the rotary embedding.
    pub rope: String,
    /// Which arithmetic the engine uses.
    pub numerics: String,
}

/// What a worker is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorkerRole {
    /// Computes prompts and hands them off.
    Prefill,
    /// Receives prompts and generates.
    Decode,
}

/// Identity and capacity of one worker incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerInfo {
    /// Stable name.
    pub worker_id: WorkerId,
    /// This process start.
    pub incarnation: Incarnation,
    /// Role.
    pub role: WorkerRole,
    /// `host:port` of its gRPC services.
    pub address: String,
    /// Compatibility identity.
    pub fingerprint: Fingerprint,
    /// Model name.
    pub model: String,
    /// Pages in its pool.
    pub pages_total: u32,
    /// Most sequences in a step.
    pub max_batch: u32,
    /// Longest sequence in tokens.
    pub context_length: u32,
    /// Process id.
    pub pid: u32,
    /// Identity of the host (boot id), for local transports.
    pub host_id: String,
    /// Version of Baton.
    pub version: String,
}

/// Pages by state, as reported.
pub use baton_kv_cache::Ledger;

/// A worker's load report.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct WorkerLoad {
    /// Requests waiting.
    pub queued: u32,
    /// Sequences running.
    pub running: u32,
    /// Prompt tokens not computed yet.
    pub queued_tokens: u64,
    /// The page ledger.
    pub pages: Ledger,
    /// Recent median step time, microseconds.
    pub step_us: u32,
    /// Accepts nothing new.
    pub draining: bool,
    /// Counters since start, by name.
    pub counters: Vec<(String, u64)>,
}

/// Tokens of one choice so far.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Completion {
    /// Token ids.
    pub token_ids: Vec<u32>,
    /// The choice has ended and must not run.
    pub ended: bool,
}

/// One request as both legs carry it.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceSpec {
    /// Router's id.
    pub request_id: RequestId,
    /// The incarnation that must answer.
    pub incarnation: Incarnation,
    /// Digest of the fingerprint the router paired by.
    pub fingerprint_digest: [u8; 32],
    /// Prompt token ids, at least one.
    pub prompt_ids: Vec<u32>,
    /// Completion so far per choice; empty or `params.choices` entries.
    pub completions: Vec<Completion>,
    /// Sampling parameters, validated.
    pub params: SamplingParams,
    /// Salt keyed into page hashes.
    pub cache_salt: Vec<u8>,
    /// Time left.
    pub time_left: Duration,
    /// Attempt.
    pub attempt: Attempt,
}

/// Why a choice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    /// End-of-sequence id, stop token id or stop string.
    Stop,
    /// `max_tokens` or the context limit.
    Length,
}

/// One generated token as workers report it.
#[derive(Debug, Clone, PartialEq)]
pub struct GeneratedToken {
    /// Attempt that produced it.
    pub attempt: Attempt,
    /// Choice index.
    pub choice: u32,
    /// Completion index.
    pub position: u32,
    /// Token.
    pub token_id: u32,
    /// If requested.
    pub logprobs: Option<TokenLogprobs>,
    /// Set on the last token of a choice.
    pub finish: Option<FinishReason>,
}

/// Log-probabilities of neighbouring prompt tokens as workers report them.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptLogprobs {
    /// Attempt that computed them.
    pub attempt: Attempt,
    /// Prompt index of the first entry, at least 1: the first token has none.
    pub position: u32,
    /// One for each prompt token from there on (`chosen`), at least one.
    pub entries: Vec<TokenLogprobs>,
}

/// A granted page slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageSlot {
    /// Page index at the receiver.
    pub page: u32,
    /// Its generation when granted.
    pub generation: u32,
}

/// Which transport moves pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Receiver's memfd pool; the sender writes the final page.
    Shm,
    /// Framed stream.
    Tcp,
}

/// Where a receiver can be reached.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TransferEndpoint {
    /// Transport.
    pub transport: Transport,
    /// shm: path of a Unix socket; tcp: `host:port`.
    pub address: String,
    /// Host identity (shm only works on the same host).
    pub host_id: String,
}

/// Pages that a decode worker has reserved for one transfer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The transfer.
    pub transfer_id: TransferId,
    /// The attempt.
    pub attempt: Attempt,
    /// Incarnation of the receiver.
    pub incarnation: Incarnation,
    /// Slots of the prompt's pages after the reused prefix, in order.
    pub slots: Vec<PageSlot>,
    /// The receiver's fingerprint.
    pub fingerprint: Fingerprint,
    /// Leading pages of the prompt that the receiver holds already.
    pub reused_pages: u32,
    /// Ways to reach the receiver, best first.
    pub endpoints: Vec<TransferEndpoint>,
    /// Proof of the grant.
    pub secret: TransferSecret,
    /// Time until the receiver gives up without progress.
    pub lease: Duration,
    /// The receiver's span, if it is traced.
    pub span: Option<SpanRef>,
}

/// Payload of Commit: what decode needs besides pages. Bounded by choices × logprobs.
#[derive(Debug, Clone, PartialEq)]
pub struct CommitPayload {
    /// First token of each choice that started.
    pub first_tokens: Vec<GeneratedToken>,
    /// Choices that go on, ascending.
    pub running_choices: Vec<u32>,
    /// The sender's span, if it is traced.
    pub span: Option<SpanRef>,
}

impl Fingerprint {
    /// Names of the fields in which two fingerprints differ.
    pub fn differing_fields(&self, other: &Self) -> Vec<&'static str> {
        let mut fields = Vec::new();
        let mut check = |same: bool, name| {
            if !same {
                fields.push(name);
            }
        };
        check(
            self.protocol_version == other.protocol_version,
            "protocol_version",
        );
        check(
            self.weights_digest == other.weights_digest,
            "weights_digest",
        );
        check(
            self.metadata_digest == other.metadata_digest,
            "metadata_digest",
        );
        check(
            self.tokenizer_digest == other.tokenizer_digest,
            "tokenizer_digest",
        );
        check(self.kv_dtype == other.kv_dtype, "kv_dtype");
        check(self.page_size == other.page_size, "page_size");
        check(self.layers == other.layers, "layers");
        check(self.kv_heads == other.kv_heads, "kv_heads");
        check(self.head_dim == other.head_dim, "head_dim");
        check(self.layout == other.layout, "layout");
        check(self.rope == other.rope, "rope");
        check(self.numerics == other.numerics, "numerics");
        fields
    }

    /// Digest of what decides an answer: all but how pages are cut and spoken of. A request that has begun
    /// to answer may go on wherever this is equal.
    pub fn answers_digest(&self) -> [u8; 32] {
        let uncut = Self {
            protocol_version: 0,
            page_size: 0,
            layout: String::new(),
            ..self.clone()
        };
        uncut.digest()
    }

    /// blake3 over tagged, length-prefixed fields.
    pub fn digest(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        let mut put = |tag: &str, bytes: &[u8]| {
            hasher.update(&(tag.len() as u64).to_le_bytes());
            hasher.update(tag.as_bytes());
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        put("protocol_version", &self.protocol_version.to_le_bytes());
        put("weights_digest", &self.weights_digest);
        put("metadata_digest", &self.metadata_digest);
        put("tokenizer_digest", &self.tokenizer_digest);
        put("kv_dtype", self.kv_dtype.as_bytes());
        put("page_size", &self.page_size.to_le_bytes());
        put("layers", &self.layers.to_le_bytes());
        put("kv_heads", &self.kv_heads.to_le_bytes());
        put("head_dim", &self.head_dim.to_le_bytes());
        put("layout", self.layout.as_bytes());
        put("rope", self.rope.as_bytes());
        put("numerics", self.numerics.as_bytes());
        *hasher.finalize().as_bytes()
    }
}
