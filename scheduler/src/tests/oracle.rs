//! A model without weights: logits are a hash of all tokens so far, and "K and V" of a token are the
//! token itself with its position, kept per page slot. A wrong page table, a missing copy or a stale
//! prefix therefore changes the output or fails at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use baton_engine::{Batch, EngineError, Logits, StepEngine};
use baton_kv_cache::PageIndex;
use baton_sampling::{SampleInput, SamplingParams, TokenLogprobs, log_probabilities, sample};

pub(crate) const VOCABULARY: u32 = 32;
/// A prompt with this token gives NaN logits.
pub(crate) const POISON: u32 = 31;
/// A slice with this token is refused.
pub(crate) const REFUSED: u32 = 30;
/// The end-of-sequence id.
pub(crate) const EOS: u32 = 0;
pub(crate) const LAYERS: u32 = 2;

type Page = Vec<Option<(u32, u32)>>;

/// What is in the pages: position and token, per slot.
#[derive(Debug, Clone)]
pub(crate) struct Memory(Arc<Mutex<Vec<Page>>>);

impl Memory {
    pub(crate) fn new(pages: u32, page_size: u32) -> Self {
        let page = vec![None; page_size as usize];
        Self(Arc::new(Mutex::new(vec![page; pages as usize])))
    }

    pub(crate) fn read(&self, page: PageIndex) -> Page {
        self.0.lock().expect("not poisoned")[page.0 as usize].clone()
    }

    /// What a transfer does.
    pub(crate) fn write(&self, page: PageIndex, content: Page) {
        self.0.lock().expect("not poisoned")[page.0 as usize] = content;
    }
}

/// The engine.
pub(crate) struct Oracle {
    memory: Memory,
    page_size: usize,
    context: u32,
    logits: Vec<f32>,
    /// Called at the start of each step (tests block the step thread with it).
    on_step: Option<Box<dyn FnMut() + Send>>,
}

impl Oracle {
    pub(crate) fn new(memory: Memory, page_size: u32, context: u32) -> Self {
        Self {
            memory,
            page_size: page_size as usize,
            context,
            logits: Vec::new(),
            on_step: None,
        }
    }

    pub(crate) fn on_step(mut self, hook: impl FnMut() + Send + 'static) -> Self {
        self.on_step = Some(Box::new(hook));
        self
    }
}

impl StepEngine for Oracle {
    fn vocabulary(&self) -> usize {
        VOCABULARY as usize
    }

    fn context_length(&self) -> u32 {
        self.context
    }

    fn step(
        &mut self,
        batch: &Batch<'_>,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Logits<'_>, EngineError> {
        if let Some(hook) = &mut self.on_step {
            hook();
        }
        for (slice, tokens) in batch.slices.iter().enumerate() {
            if tokens.token_ids.contains(&REFUSED) {
                let reason = "refused token".into();
                return Err(EngineError::BadSlice { slice, reason });
            }
        }
        let mut memory = self.memory.0.lock().expect("not poisoned");
        for (from, to) in batch.copies {
            memory[to.0 as usize] = memory[from.0 as usize].clone();
        }
        let mut writers = HashMap::new();
        for (at, slice) in batch.slices.iter().enumerate() {
            assert!(!slice.token_ids.is_empty());
            for (position, token) in (slice.position..).zip(slice.token_ids) {
                let page = slice.pages[position as usize / self.page_size];
                let by = *writers.entry(page).or_insert(at);
                assert_eq!(by, at, "two slices write {page:?}");
                let slot = position as usize % self.page_size;
                memory[page.0 as usize][slot] = Some((position, *token));
            }
        }
        (0..LAYERS).for_each(on_layer);
        self.logits.clear();
        for slice in batch.slices {
            // Attention over everything before, as the pages have it.
            let length = slice.position as usize + slice.token_ids.len();
            let mut hash = HASH_START;
            let mut is_poisoned = false;
            for position in 0..length {
                let page = slice.pages[position / self.page_size];
                let Some((written, token)) = memory[page.0 as usize][position % self.page_size]
                else {
                    panic!(
                        "position {position} of slice at {} is not in {page:?}",
                        slice.position
                    );
                };
                assert_eq!(written as usize, position, "foreign content in {page:?}");
                hash = mix(hash, token);
                is_poisoned |= token == POISON;
                let after = length - position - 1;
                if after < slice.logits.count(slice.token_ids.len()) {
                    push_logits(hash, is_poisoned, &mut self.logits);
                }
            }
        }
        Ok(Logits {
            values: &self.logits,
            vocabulary: VOCABULARY as usize,
        })
    }
}

const HASH_START: u64 = 0x5851_f42d_4c95_7f2d;

fn mix(hash: u64, token: u32) -> u64 {
    let mut z = (hash ^ u64::from(token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z ^= z >> 29;
    z.wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (z >> 32)
}

/// Logits between -4 and 4; the end of sequence is unlikely but happens.
fn push_logits(hash: u64, is_poisoned: bool, into: &mut Vec<f32>) {
    for token in 0..VOCABULARY {
        let value = (mix(hash, token ^ 0x5555) >> 40) as f32 / (1 << 24) as f32;
        let special = if token == POISON || token == REFUSED {
            -50.0
        } else {
            0.0
        };
        into.push(if is_poisoned {
            f32::NAN
        } else {
            value * 8.0 - 4.0 + special
        });
    }
}

/// The completions that the model gives, computed without pages, batches or scheduling.
pub(crate) fn expected(
    prompt: &[u32],
    params: &SamplingParams,
    limit: u32,
    so_far: &[Vec<u32>],
) -> Vec<Vec<u32>> {
    (0..params.choices)
        .map(|choice| {
            let mut completion = so_far.get(choice as usize).cloned().unwrap_or_default();
            let mut hash = prompt
                .iter()
                .chain(&completion)
                .fold(HASH_START, |h, t| mix(h, *t));
            let mut logits = Vec::new();
            while completion.len() < limit as usize {
                logits.clear();
                push_logits(hash, false, &mut logits);
                let input = SampleInput {
                    logits: &logits,
                    prompt,
                    completion: &completion,
                    choice,
                    eos_ids: &[EOS],
                };
                let token = sample(params, &input).expect("finite").token_id;
                completion.push(token);
                hash = mix(hash, token);
                let is_eos = token == EOS && !params.ignore_eos;
                if is_eos || params.stop_token_ids.contains(&token) {
                    break;
                }
            }
            completion
        })
        .collect()
}

/// Log-probabilities of the prompt's tokens from the second on, if the parameters ask for them.
pub(crate) fn expected_prompt(prompt: &[u32], params: &SamplingParams) -> Vec<TokenLogprobs> {
    let Some(count) = params.prompt_logprobs else {
        return Vec::new();
    };
    let mut hash = HASH_START;
    let after = |pair: &[u32]| {
        hash = mix(hash, pair[0]);
        let mut logits = Vec::new();
        push_logits(hash, false, &mut logits);
        log_probabilities(&logits, pair[1], count).expect("finite")
    };
    prompt.windows(2).map(after).collect()
}
