//! Bounds on what a message may carry, checked before anything is built from it.
//!
//! They are the protocol's own; what a model or a pool allows is checked where that is known.

/// Longest request id, in bytes.
pub const MAX_REQUEST_ID_BYTES: usize = 128;
/// Longest cache salt, in bytes.
pub const MAX_CACHE_SALT_BYTES: usize = 256;
/// Longest time a request may have left, in milliseconds (one day).
pub const MAX_DEADLINE_MS: u32 = 86_400_000;
/// Most page slots of one grant.
pub const MAX_GRANT_SLOTS: usize = 1 << 17;
/// Most endpoints of one grant.
pub const MAX_ENDPOINTS: usize = 8;
/// Longest network address or socket path, in bytes.
pub const MAX_ADDRESS_BYTES: usize = 256;
/// Longest host identity, version or KV type name, in bytes.
pub const MAX_NAME_BYTES: usize = 128;
/// Longest model name, in bytes.
pub const MAX_MODEL_NAME_BYTES: usize = 256;
/// Longest canonical text (rotary embedding, layout, numerics), in bytes.
pub const MAX_CANONICAL_BYTES: usize = 4096;
/// Longest lease of a grant, in milliseconds.
pub const MAX_LEASE_MS: u32 = 3_600_000;
/// Longest sequence any worker may declare, in tokens.
pub const MAX_CONTEXT_TOKENS: u32 = 1 << 24;
/// Largest pool any worker may declare, in pages.
pub const MAX_POOL_PAGES: u32 = 1 << 28;
/// Largest batch any worker may declare, in sequences.
pub const MAX_BATCH: u32 = 1 << 16;
/// Largest page, in tokens.
pub const MAX_PAGE_SIZE: u32 = 4096;
/// Most layers, heads or values per head.
pub const MAX_DIMENSION: u32 = 1 << 16;
/// Most counters of one load report.
pub const MAX_COUNTERS: usize = 256;
/// Most sequences or requests a load report may state.
pub const MAX_REPORTED_SEQUENCES: u32 = 1 << 24;
/// Longest step a load report may state, in microseconds (ten minutes).
pub const MAX_STEP_US: u32 = 600_000_000;
/// Longest free text of a peer that is kept (reasons), in bytes.
pub const MAX_REASON_BYTES: usize = 1024;
/// Most entries of one message of prompt log-probabilities.
pub const MAX_PROMPT_LOGPROBS: usize = 1024;
/// Most stop strings of one request.
pub const MAX_STOP_STRINGS: usize = 4;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 256;
/// Most fields that a refusal of a registration lists.
pub const MAX_DIFFERING_FIELDS: usize = 32;
