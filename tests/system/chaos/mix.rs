//! The requests of the load: a fixed set of many kinds of sampling over short and long prompts. It knows
//! nothing of faults.

use baton_model_file::fixtures::Random;
use baton_proto::v1::{GenerateRequest, SamplingOptions};

use crate::answer::Answer;
use crate::models::{endless, tiny_prompt, with};

/// Prompt lengths: prefilled on the decode worker, a page or two, many chunks.
const LENGTHS: [usize; 8] = [12, 50, 90, 150, 250, 400, 700, 1500];
/// Each kind of sampling meets so many lengths.
const ROUNDS: usize = 3;
/// Completion tokens of most requests.
const TOKENS: u32 = 200;

/// The requests, all of one seed.
pub(super) fn requests(seed: u64) -> Vec<GenerateRequest> {
    let mut random = Random::named(seed, "mix");
    (0..ROUNDS * LENGTHS.len())
        .map(|index| {
            let prompt = tiny_prompt(random.bits(), LENGTHS[index % LENGTHS.len()]);
            let kind = (index + 3 * (index / LENGTHS.len())) % LENGTHS.len();
            let request = endless(prompt, TOKENS);
            with(request, |sampling| shape(sampling, kind, &mut random))
        })
        .collect()
}

fn shape(sampling: &mut SamplingOptions, kind: usize, random: &mut Random) {
    if ![0, 3, 5].contains(&kind) {
        sampling.temperature = Some(0.9);
        sampling.seed = Some(random.bits());
    }
    match kind {
        1 => sampling.top_p = Some(0.9),
        2 => sampling.n = Some(2),
        4 => {
            sampling.presence_penalty = 0.6;
            sampling.frequency_penalty = 0.3;
            sampling.repetition_penalty = Some(1.2);
        }
        5 => {
            sampling.logprobs = Some(3);
            sampling.prompt_logprobs = Some(1);
        }
        6 => {
            // Ends soon after its least length, at one of many tokens.
            sampling.min_tokens = TOKENS / 2;
            sampling.stop_token_ids = (0..64).map(|_| random.below(256) as u32).collect();
            sampling.ignore_eos = false;
        }
        7 => {
            sampling.n = Some(3);
            sampling.top_k = Some(40);
            sampling.min_p = Some(0.01);
            sampling.logprobs = Some(1);
            sampling.max_tokens = Some(TOKENS / 2);
        }
        // Greedy; its third kind gets stop strings once its text is known.
        _ => {}
    }
}

/// Whether the request is to end at a string of its own answer.
pub(super) fn wants_stop(index: usize) -> bool {
    (index + 3 * (index / LENGTHS.len())) % LENGTHS.len() == 3
}

/// The request with stop strings: some characters of its own text well after its middle, and two that begin
/// as this text does and do not go on so, which are always half seen.
pub(super) fn stopped(request: GenerateRequest, answer: &Answer) -> GenerateRequest {
    let text: Vec<char> = answer.text().chars().collect();
    let begin = text.len() * 6 / 10;
    let some = |from: usize, count: usize| text[from..from + count].iter().collect::<String>();
    with(request, |sampling| {
        sampling.stop = vec![some(begin, 6.min(text.len() - begin))];
        if let Some(early) = text.len().checked_sub(4) {
            sampling.stop.push(some(early / 4, 3) + "\u{1}");
            sampling.stop.push(some(early / 2, 3) + "\u{1}");
        }
    })
}
