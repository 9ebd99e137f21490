//! Random requests for the exactness tests: greedy and sampled, several choices, stop strings, short and
//! long prompts, shared prefixes.

use baton_model_file::fixtures::Random;
use baton_proto::v1::generate_request::Input;
use baton_proto::v1::{GenerateRequest, SamplingOptions, TokenInput};

/// What random requests look like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Ids `low..high` make up prompts.
    pub(crate) low: u32,
    pub(crate) high: u32,
    /// Longest prompt.
    pub(crate) prompt: usize,
    /// Longest completion.
    pub(crate) output: usize,
}

/// Requests for the random models.
pub(crate) const TINY: Shape = Shape {
    low: 0,
    high: 256,
    prompt: 700,
    output: 60,
};

/// Requests for the default model.
pub(crate) const REAL: Shape = Shape {
    low: 1000,
    high: 40_000,
    prompt: 700,
    output: 24,
};

/// `count` requests from one seed. Every third shares its beginning with the one before.
pub(crate) fn requests(seed: u64, count: usize, shape: Shape) -> Vec<GenerateRequest> {
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut requests: Vec<GenerateRequest> = Vec::new();
    let mut last: Vec<u32> = Vec::new();
    for index in 0..count {
        // Lengths around page and chunk edges, then the whole range.
        let edges = [1, 15, 16, 17, 63, 64, 65, shape.prompt];
        let length = match edges.get(index) {
            Some(edge) => (*edge).min(shape.prompt),
            None => 1 + random.below(shape.prompt),
        };
        let mut prompt: Vec<u32> = (0..length)
            .map(|_| shape.low + random.below((shape.high - shape.low) as usize) as u32)
            .collect();
        if index % 3 == 2 {
            let shared = last.len().min(length) / 2;
            prompt[..shared].copy_from_slice(&last[..shared]);
        }
        last.clone_from(&prompt);
        let sampling = sampling(&mut random, index, shape);
        requests.push(GenerateRequest {
            input: Some(Input::Tokens(TokenInput { token_ids: prompt })),
            sampling: Some(sampling),
            ..GenerateRequest::default()
        });
    }
    requests
}

/// The same requests, each with a cache salt of its own: none finds a prefix of another.
pub(crate) fn salted(requests: &[GenerateRequest]) -> Vec<GenerateRequest> {
    let salted = requests.iter().enumerate().map(|(index, request)| {
        let cache_salt = format!("salt {index}");
        GenerateRequest {
            cache_salt,
            ..request.clone()
        }
    });
    salted.collect()
}

fn sampling(random: &mut Random, index: usize, shape: Shape) -> SamplingOptions {
    let sampled = index % 2 == 1;
    SamplingOptions {
        temperature: Some(if sampled {
            0.5 + random.unit().abs()
        } else {
            0.0
        }),
        top_p: sampled.then(|| 0.5 + random.unit().abs() / 2.0),
        top_k: (sampled && index % 4 == 1).then(|| 1 + random.below(40) as u32),
        seed: Some(random.bits()),
        n: Some(if index % 5 == 3 {
            2 + random.below(3) as u32
        } else {
            1
        }),
        max_tokens: Some(1 + random.below(shape.output) as u32),
        min_tokens: if index.is_multiple_of(7) { 2 } else { 0 },
        presence_penalty: if index % 6 == 5 { 0.7 } else { 0.0 },
        frequency_penalty: if index % 6 == 4 { 0.4 } else { 0.0 },
        repetition_penalty: (index % 9 == 8).then_some(1.2),
        stop: if index % 4 >= 2 {
            vec!["e".into(), "th".into()]
        } else {
            Vec::new()
        },
        ignore_eos: index.is_multiple_of(3),
        logprobs: (index % 8 == 1).then_some(3),
        prompt_logprobs: (index % 11 == 7).then_some(2),
        ..SamplingOptions::default()
    }
}
