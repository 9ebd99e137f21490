//! What clients are told, in the shapes that they know. It must not know how it came about.

use std::collections::BTreeMap;

use baton_proto::v1;

use super::schema::reply;

reply! {
    /// Tokens of a request, all its prompts and choices together.
    struct Usage {
        prompt_tokens: u32,
        completion_tokens: u32,
        total_tokens: u32,
        prompt_tokens_details: PromptDetails,
    }
}

reply! {
    /// More about prompts.
    struct PromptDetails {
        /// Prompt tokens that had been computed before.
        cached_tokens: u32,
    }
}

reply! {
    /// A token and how likely it was.
    struct ChatToken {
        /// Its text; `bytes:` and hexadecimal escapes if it is not whole characters.
        token: String,
        logprob: f32,
        bytes: Vec<u8>,
        top_logprobs: Vec<Alternative>,
    }
}

reply! {
    /// One of the most likely tokens in a place.
    struct Alternative {
        token: String,
        logprob: f32,
        bytes: Vec<u8>,
    }
}

reply! {
    /// Log-probabilities of a chat's answer.
    struct ChatLogprobs {
        content: Vec<ChatToken>,
    }
}

reply! {
    /// Log-probabilities of a text.
    struct TextLogprobs {
        tokens: Vec<String>,
        /// The first token of a prompt has none.
        token_logprobs: Vec<Option<f32>>,
        /// The most likely tokens in each place, and the one that stands there.
        top_logprobs: Vec<Option<BTreeMap<String, f32>>>,
        /// In characters.
        text_offset: Vec<u32>,
    }
}

reply! {
    /// An answer to a chat.
    struct ChatCompletion {
        id: String,
        object: &'static str,
        created: u64,
        model: String,
        choices: Vec<ChatChoice>,
        usage: Usage,
        /// One for each prompt, if asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        receipts: Option<Vec<Receipt>>,
    }
}

reply! {
    /// One answer.
    struct ChatChoice {
        index: u32,
        message: AssistantMessage,
        logprobs: Option<ChatLogprobs>,
        /// `stop` or `length`.
        finish_reason: Option<&'static str>,
    }
}

reply! {
    /// What the model says.
    struct AssistantMessage {
        role: &'static str,
        content: String,
    }
}

reply! {
    /// A piece of a streamed answer to a chat.
    struct ChatChunk {
        id: String,
        object: &'static str,
        created: u64,
        model: String,
        choices: Vec<ChatDelta>,
        /// With `stream_options.include_usage`: null but in the last piece.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<UsageSoFar>,
        /// In the last piece, if asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        receipts: Option<Vec<Receipt>>,
    }
}

reply! {
    /// What follows in one answer.
    struct ChatDelta {
        index: u32,
        delta: Delta,
        logprobs: Option<ChatLogprobs>,
        finish_reason: Option<&'static str>,
    }
}

reply! {
    /// What follows.
    struct Delta {
        /// In the first piece of a choice, together with its text.
        #[serde(skip_serializing_if = "Option::is_none")]
        role: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<String>,
    }
}

reply! {
    /// Completions of texts, or a piece of them if they are streamed.
    struct TextCompletion {
        id: String,
        object: &'static str,
        created: u64,
        model: String,
        choices: Vec<TextChoice>,
        /// Streamed only with `stream_options.include_usage`: null but in the last piece.
        #[serde(skip_serializing_if = "Option::is_none")]
        usage: Option<UsageSoFar>,
        /// One for each prompt, in the last piece, if asked for.
        #[serde(skip_serializing_if = "Option::is_none")]
        receipts: Option<Vec<Receipt>>,
    }
}

reply! {
    /// One completion.
    struct TextChoice {
        /// Prompt × n + choice.
        index: u32,
        text: String,
        logprobs: Option<TextLogprobs>,
        finish_reason: Option<&'static str>,
    }
}

reply! {
    /// What happened to a request, phase by phase; times in microseconds, names as in baton.v1.
    struct Receipt {
        request_id: String,
        request_label: String,
        seed: u64,
        admission_us: u64,
        queue_us: u64,
        prefill_us: u64,
        grant_wait_us: u64,
        transfer_us: u64,
        transfer_bytes: u64,
        transfer_overlap: f32,
        transport: String,
        landing_us: u64,
        ttft_us: u64,
        itl_mean_us: u64,
        itl_max_us: u64,
        end_to_end_us: u64,
        cached_tokens: u32,
        decode_cached_tokens: u32,
        preemptions: u32,
        /// In order; of many, the first 32 and the last 32.
        attempts: Vec<Placement>,
    }
}

reply! {
    /// Where a request was placed.
    struct Placement {
        attempt: u32,
        prefill_worker: String,
        decode_worker: String,
        reason: String,
        failure: String,
    }
}

/// Usage, or null where it is told later.
pub(super) type UsageSoFar = Option<Usage>;

impl Usage {
    pub(super) fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: PromptDetails { cached_tokens },
        }
    }
}

impl From<v1::Receipt> for Receipt {
    fn from(receipt: v1::Receipt) -> Self {
        let attempt = |attempt: v1::PlacementAttempt| Placement {
            attempt: attempt.attempt,
            prefill_worker: attempt.prefill_worker,
            decode_worker: attempt.decode_worker,
            reason: attempt.reason,
            failure: attempt.failure,
        };
        Self {
            request_id: receipt.request_id,
            request_label: receipt.request_label,
            seed: receipt.seed,
            admission_us: receipt.admission_us,
            queue_us: receipt.queue_us,
            prefill_us: receipt.prefill_us,
            grant_wait_us: receipt.grant_wait_us,
            transfer_us: receipt.transfer_us,
            transfer_bytes: receipt.transfer_bytes,
            transfer_overlap: receipt.transfer_overlap,
            transport: receipt.transport,
            landing_us: receipt.landing_us,
            ttft_us: receipt.ttft_us,
            itl_mean_us: receipt.itl_mean_us,
            itl_max_us: receipt.itl_max_us,
            end_to_end_us: receipt.end_to_end_us,
            cached_tokens: receipt.cached_tokens,
            decode_cached_tokens: receipt.decode_cached_tokens,
            preemptions: receipt.preemptions,
            attempts: receipt.attempts.into_iter().map(attempt).collect(),
        }
    }
}
