//! What both ways to generate have in common: parameters, and the requests they mean. It must not know
//! answers.

use baton_proto::v1;
use baton_proto::v1::generate_request::Input;
use baton_sampling::{MAX_LOGPROBS, MAX_STOP_TOKEN_IDS};

use super::error::HttpError;
use super::fields::{Nested, Only, request};
use super::values::{AtMost, LogitBias, Seed, StopStrings, TopK};

request! {
    /// Parameters of every request that generates.
    struct Common {
        /// Empty or absent: the only model.
        model: String,
        /// Whether the answer comes piece by piece, as server-sent events.
        stream: bool,
        /// How it is streamed; needs `stream`.
        stream_options: Nested<StreamOptions>,
        /// Number of choices, 1 to 16.
        n: u32,
        /// Most completion tokens per choice.
        max_tokens: u32,
        /// No end-of-sequence or stop token before this many completion tokens.
        min_tokens: u32,
        /// 0 is greedy, 10 the most; default 1.
        temperature: f32,
        /// Above 0, up to 1; default 1.
        top_p: f32,
        /// Keep so many most likely tokens; 0 and -1 keep all.
        top_k: TopK,
        /// From 0 to 1; default 0.
        min_p: f32,
        /// The same seed gives the same answer.
        seed: Seed,
        /// From -2 to 2.
        presence_penalty: f32,
        /// From -2 to 2.
        frequency_penalty: f32,
        /// From 0.01 to 10; default 1, which is off.
        repetition_penalty: f32,
        /// Token ids and what is added to their logits, from -100 to 100; at most 300.
        logit_bias: LogitBias,
        /// Up to 4 strings that end a choice.
        stop: StopStrings,
        /// Token ids that end a choice, besides the model's own; at most 64.
        stop_token_ids: AtMost<u32, MAX_STOP_TOKEN_IDS>,
        /// Go on past end-of-sequence ids.
        ignore_eos: bool,
        /// A label for logs and the receipt; the header X-Request-Id goes before it.
        request_id: String,
        /// Requests with different salts never share cached prefixes.
        cache_salt: String,
        /// Whether the answer tells what happened to the request, phase by phase, in `receipts`.
        receipt: bool,
    }
}

request! {
    /// How an answer is streamed.
    struct StreamOptions {
        /// Whether a last piece without choices tells the usage.
        include_usage: bool,
        /// Whether every piece tells the usage so far.
        continuous_usage_stats: bool,
    }
    const IGNORED: &'static [&'static str] = &["include_obfuscation"];
}

/// Which of the two kinds of answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Chat,
    Text,
}

/// What a stream tells besides the answer.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Streamed {
    /// Usage, at its end.
    pub(super) usage: bool,
    /// And usage so far with every piece.
    pub(super) everywhere: bool,
}

/// How the client wants its answer.
#[derive(Debug, Clone)]
pub(super) struct Reply {
    pub(super) shape: Shape,
    pub(super) stream: Option<Streamed>,
    pub(super) receipt: bool,
    pub(super) echo: bool,
    /// Whether log-probabilities are told.
    pub(super) logprobs: bool,
    /// Choices of each prompt.
    pub(super) choices: u32,
}

/// What a client means.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) model: String,
    pub(super) inputs: Vec<Input>,
    pub(super) sampling: v1::SamplingOptions,
    pub(super) label: String,
    pub(super) cache_salt: String,
    pub(super) reply: Reply,
}

impl Common {
    /// Parameters that are taken and do nothing here.
    pub(super) const IGNORED: &'static [&'static str] = &[
        "user",
        "store",
        "metadata",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
    ];

    /// Parameters that are taken where they ask for nothing.
    pub(super) const ONLY: &'static [Only] = &[
        Only("response_format", &["{\"type\":\"text\"}"]),
        Only("use_beam_search", &["false"]),
        Only("length_penalty", &["1"]),
        Only("include_stop_str_in_output", &["false"]),
        Only("skip_special_tokens", &["true"]),
        Only("spaces_between_special_tokens", &["true"]),
        Only("truncate_prompt_tokens", &[]),
        Only("prompt_logprobs", &[]),
        Only("guided_json", &[]),
        Only("guided_regex", &[]),
        Only("guided_choice", &["[]"]),
        Only("guided_grammar", &[]),
        Only("structured_outputs", &[]),
    ];

    /// What these parameters mean for these inputs.
    pub(super) fn asked(self, shape: Shape, inputs: Vec<Input>) -> Result<Asked, HttpError> {
        let stream = self.stream.unwrap_or(false);
        let Nested(options) = match self.stream_options {
            Some(_) if !stream => {
                return Err(HttpError::invalid(
                    Some("stream_options"),
                    "stream_options needs stream: true",
                ));
            }
            options => options.unwrap_or_default(),
        };
        let reply = Reply {
            shape,
            stream: stream.then_some(Streamed {
                usage: options.include_usage.unwrap_or(false),
                everywhere: options.continuous_usage_stats.unwrap_or(false),
            }),
            receipt: self.receipt.unwrap_or(false),
            echo: false,
            logprobs: false,
            choices: self.n.unwrap_or(1),
        };
        let sampling = v1::SamplingOptions {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k.map(|TopK(count)| count),
            min_p: self.min_p,
            seed: self.seed.map(|Seed(bits)| bits),
            n: self.n,
            max_tokens: self.max_tokens,
            min_tokens: self.min_tokens.unwrap_or(0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty,
            logit_bias: (self.logit_bias.unwrap_or_default().0)
                .into_iter()
                .collect(),
            stop_token_ids: self.stop_token_ids.unwrap_or_default().0,
            stop: self.stop.unwrap_or_default().0,
            ignore_eos: self.ignore_eos.unwrap_or(false),
            logprobs: None,
            prompt_logprobs: None,
        };
        Ok(Asked {
            model: self.model.unwrap_or_default(),
            inputs,
            sampling,
            label: self.request_id.unwrap_or_default(),
            cache_salt: self.cache_salt.unwrap_or_default(),
            reply,
        })
    }
}

impl Asked {
    /// Asks for log-probabilities of so many most likely tokens.
    pub(super) fn set_logprobs(&mut self, top: Option<u32>) -> Result<(), HttpError> {
        if let Some(top) = top
            && top > MAX_LOGPROBS
        {
            let name = match self.reply.shape {
                Shape::Chat => "top_logprobs",
                Shape::Text => "logprobs",
            };
            let words = format!("{name} is {top}, allowed: 0 to {MAX_LOGPROBS}");
            return Err(HttpError::invalid(Some(name), words));
        }
        self.reply.logprobs = top.is_some();
        self.sampling.logprobs = top;
        Ok(())
    }

    /// The messages of the pipeline, one for each prompt, and how to answer them. Each repeats what goes for all,
    /// of whatever length: it is made when it is taken, and refused before the next one is.
    pub(super) fn requests(
        self,
    ) -> (
        impl ExactSizeIterator<Item = v1::GenerateRequest> + Send,
        Reply,
    ) {
        let Self {
            model,
            inputs,
            sampling,
            label,
            cache_salt,
            reply,
        } = self;
        let request = move |input| v1::GenerateRequest {
            model: model.clone(),
            input: Some(input),
            sampling: Some(sampling.clone()),
            request_label: label.clone(),
            cache_salt: cache_salt.clone(),
        };
        (inputs.into_iter().map(request), reply)
    }
}
