//! Settings of the router, validated once.
//!
//! It must not know files, flags or the environment.

use std::time::Duration;

use crate::error::ConfigError;

/// Everything that can be set. Each limit bounds what one client, or all together, can make the
/// router hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterConfig {
    /// Requests served at a time.
    pub max_running: usize,
    /// Requests that wait for a place; one more is refused.
    pub max_waiting: usize,
    /// Requests of one client address (an IPv6 client is its /64 network) that run or wait; one more
    /// is refused.
    pub max_per_client: usize,
    /// Longest wait for a place.
    pub admission_wait: Duration,
    /// Bytes of HTTP bodies held at once, beyond the first 64 KiB of each; more are refused for now.
    pub max_body_bytes: usize,
    /// Longest prompt text (or all messages of a chat together), in bytes.
    pub max_prompt_bytes: usize,
    /// `max_tokens` of requests that name none, if context and pools have room for it.
    pub default_max_tokens: u32,
    /// Prompts of at most this many tokens (or with at most this many that the decode worker does
    /// not hold) are prefilled on the decode worker.
    pub local_prefill_tokens: u32,
    /// How long a prompt may look for decode pages before the request is refused.
    pub grant_wait: Duration,
    /// Hand-off attempts of one request.
    pub max_attempts: u32,
    /// Deadline of requests that state none, and the longest that is taken.
    pub max_deadline: Duration,
    /// Time for a worker to accept a leg, and for a decode worker to grant.
    pub leg_open_timeout: Duration,
    /// Longest silence of a leg, unless ten of its worker's recent steps take longer. Workers speak every
    /// half second of whatever waits, so this is how long a stuck one goes unnoticed.
    pub progress_timeout: Duration,
    /// Events that a client may be behind before they are merged.
    pub client_buffer: usize,
    /// A client that takes nothing for this long is cancelled.
    pub write_deadline: Duration,
    /// Connections accepted at a time.
    pub max_connections: usize,
    /// Threads that tokenize.
    pub tokenizer_threads: usize,
    /// Time between the first sign of shutdown, no longer being ready, and closing the door: requests
    /// from those who have not noticed are served meanwhile.
    pub drain_notice: Duration,
    /// Time for running requests to end after the door has closed.
    pub drain_timeout: Duration,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            max_running: 512,
            max_waiting: 1024,
            // Half of the places: one client alone cannot shut out the others.
            max_per_client: 256,
            admission_wait: Duration::from_secs(10),
            max_body_bytes: 128 << 20,
            max_prompt_bytes: 1 << 20,
            default_max_tokens: 4096,
            local_prefill_tokens: 64,
            grant_wait: Duration::from_secs(10),
            // One lost worker can end a grant and the prefill behind it.
            max_attempts: 8,
            max_deadline: Duration::from_mins(10),
            leg_open_timeout: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(2),
            client_buffer: 64,
            write_deadline: Duration::from_secs(10),
            max_connections: 1024,
            tokenizer_threads: std::thread::available_parallelism().map_or(2, |n| n.get().min(8)),
            drain_notice: Duration::ZERO,
            drain_timeout: Duration::from_secs(30),
        }
    }
}

impl RouterConfig {
    /// Checks every field.
    ///
    /// # Errors
    /// The first field out of range, with its value and limits.
    pub fn validate(self) -> Result<Self, ConfigError> {
        let day = Duration::from_hours(24);
        let millisecond = Duration::from_millis(1);
        count("max_running", self.max_running, 1, 1 << 16)?;
        count("max_waiting", self.max_waiting, 0, 1 << 16)?;
        count("max_per_client", self.max_per_client, 1, 1 << 17)?;
        // One body of the longest kind fits.
        count("max_body_bytes", self.max_body_bytes, 4 << 20, 1 << 40)?;
        // A message is at most 4 MiB, and so is a prompt.
        count("max_prompt_bytes", self.max_prompt_bytes, 1, 4 << 20)?;
        count(
            "default_max_tokens",
            self.default_max_tokens as usize,
            1,
            1 << 20,
        )?;
        count(
            "local_prefill_tokens",
            self.local_prefill_tokens as usize,
            0,
            1 << 20,
        )?;
        count("max_attempts", self.max_attempts as usize, 1, 100)?;
        count("client_buffer", self.client_buffer, 1, 1 << 16)?;
        count("max_connections", self.max_connections, 1, 1 << 20)?;
        count("tokenizer_threads", self.tokenizer_threads, 1, 1024)?;
        time("admission_wait", self.admission_wait, Duration::ZERO, day)?;
        time("grant_wait", self.grant_wait, millisecond, day)?;
        time("max_deadline", self.max_deadline, millisecond, day)?;
        time("leg_open_timeout", self.leg_open_timeout, millisecond, day)?;
        let least_progress = Duration::from_secs(1);
        time(
            "progress_timeout",
            self.progress_timeout,
            least_progress,
            day,
        )?;
        time("write_deadline", self.write_deadline, millisecond, day)?;
        time("drain_notice", self.drain_notice, Duration::ZERO, day)?;
        time("drain_timeout", self.drain_timeout, Duration::ZERO, day)?;
        Ok(self)
    }
}

fn count(field: &'static str, value: usize, least: usize, most: usize) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let allowed = format!("{least} to {most}");
    Err(ConfigError::OutOfRange {
        field,
        value: value.to_string(),
        allowed,
    })
}

fn time(
    field: &'static str,
    value: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), ConfigError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let allowed = format!("{least:?} to {most:?}");
    Err(ConfigError::OutOfRange {
        field,
        value: format!("{value:?}"),
        allowed,
    })
}
