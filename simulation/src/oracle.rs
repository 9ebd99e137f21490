//! A model without weights whose every token depends on every byte of its pages.
//!
//! "K and V" of a position are two words of a digest of all tokens up to it, in every layer. Attention
//! reads the words of all positions back out of the pages and hashes them into logits. A page that is
//! stale, missing, swapped or damaged therefore gives other tokens, and [`Oracle::completion`], which knows no
//! pages, tells which tokens are right. It must not know schedulers or transfers.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_engine::{Batch, EngineError, Logits, StepEngine};
use baton_kv_cache::{KvDtype, KvLayout};
use baton_sampling::{SampleInput, SamplingParams, sample};

use crate::chance::mix;
use crate::memory::Pages;

/// Layers of the model.
pub const LAYERS: u32 = 2;
/// Words that a position takes in a layer.
const WORDS: usize = 2;
/// Beginning of all hashes.
const START: u64 = 0x5851_f42d_4c95_7f2d;

/// Shape of the pages that the model works on.
pub fn layout(page_size: u32, pages: u32) -> KvLayout {
    // K and V of two f32 each: a position has two words.
    KvLayout {
        layers: LAYERS,
        kv_heads: 1,
        head_dim: 2,
        page_size,
        dtype: KvDtype::F32,
        pages,
    }
}

/// What the model makes of token ids.
#[derive(Debug, Clone)]
pub struct Oracle {
    /// Token ids are below this.
    pub vocabulary: u32,
    /// Longest sequence.
    pub context: u32,
    /// End-of-sequence ids.
    pub eos_ids: Vec<u32>,
}

/// Why a completion ends, as the oracle knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// End-of-sequence or stop token.
    Stop,
    /// As long as it may be.
    Length,
}

/// One choice.
#[derive(Debug, Clone)]
pub struct Completion {
    /// Its tokens.
    pub token_ids: Vec<u32>,
    /// Of each token, if asked for.
    pub logprobs: Vec<f32>,
    /// Why it ends.
    pub end: End,
}

/// Digests of positions, and what attention has seen of them.
#[derive(Debug, Clone, Copy)]
struct Running {
    digest: u64,
    seen: u64,
}

impl Running {
    const fn new() -> Self {
        Self {
            digest: START,
            seen: START,
        }
    }

    fn take(&mut self, token: u32) {
        self.digest = digest(self.digest, token);
        for layer in 0..LAYERS {
            for at in 0..WORDS {
                self.seen = mix(self.seen ^ content(self.digest, layer, at));
            }
        }
    }
}

/// Digest of a position from the one before.
fn digest(before: u64, token: u32) -> u64 {
    mix(before.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(token))
}

/// What a layer holds of a position: the digest itself first, so that the next one can be computed.
fn content(digest: u64, layer: u32, at: usize) -> u64 {
    match at {
        0 => digest,
        _ => mix(digest ^ (u64::from(layer) << 32 | at as u64)),
    }
}

impl Oracle {
    /// One choice of a prompt, computed without pages, batches or scheduling.
    pub fn completion(&self, prompt: &[u32], params: &SamplingParams, choice: u32) -> Completion {
        let mut running = Running::new();
        for &token in prompt {
            running.take(token);
        }
        let (mut token_ids, mut logprobs) = (Vec::new(), Vec::new());
        let mut logits = Vec::new();
        let end = loop {
            logits.clear();
            self.push_logits(running.seen, &mut logits);
            let input = SampleInput {
                logits: &logits,
                prompt,
                completion: &token_ids,
                choice,
                eos_ids: &self.eos_ids,
            };
            let Ok(sampled) = sample(params, &input) else {
                break End::Stop;
            };
            let token = sampled.token_id;
            logprobs.extend(sampled.logprobs.map(|some| some.chosen));
            token_ids.push(token);
            running.take(token);
            let stops = params.stop_token_ids.contains(&token)
                || (self.eos_ids.contains(&token) && !params.ignore_eos);
            if stops {
                break End::Stop;
            }
            let full = prompt.len() + token_ids.len() >= self.context as usize;
            if full || token_ids.len() >= params.max_tokens as usize {
                break End::Length;
            }
        };
        Completion {
            token_ids,
            logprobs,
            end,
        }
    }

    /// Logits between -4 and 4; every sequence may end.
    fn push_logits(&self, seen: u64, into: &mut Vec<f32>) {
        into.extend((0..self.vocabulary).map(|token| {
            let bits = mix(seen ^ (u64::from(token) << 20)) >> 40;
            let value = bits as f32 / (1 << 24) as f32 * 8.0 - 4.0;
            // Often enough to be met.
            value
                + if self.eos_ids.contains(&token) {
                    1.5
                } else {
                    0.0
                }
        }));
    }
}

/// The model over pages.
pub struct OracleEngine {
    oracle: Oracle,
    pages: Arc<Pages>,
    logits: Vec<f32>,
    defect: Option<Defect>,
    /// What was read of pages before, if it is kept.
    kept: BTreeMap<(u32, u32), Vec<u64>>,
}

/// What may be wrong with the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// It keeps what it has read of a page under the page's number alone, as if a page that changes hands
    /// had no new generation. Its own writes it notices, those of a transfer not.
    Generations,
    /// It copies no page.
    Copies,
    /// Rows of large batches come out otherwise.
    Company,
}

/// A batch is large from this many slices on.
const COMPANY: usize = 3;

impl OracleEngine {
    /// Over these pages.
    pub fn new(oracle: Oracle, pages: Arc<Pages>) -> Self {
        Self {
            oracle,
            pages,
            logits: Vec::new(),
            defect: None,
            kept: BTreeMap::new(),
        }
    }

    /// With a planted fault.
    #[must_use]
    pub fn with(self, defect: Defect) -> Self {
        let defect = Some(defect);
        Self { defect, ..self }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// A word of a page, as attention gets it.
    fn attend(&mut self, layer: u32, page: u32, at: usize) -> u64 {
        if !self.has(Defect::Generations) {
            return self.pages.read(layer, page, at);
        }
        let pages = &self.pages;
        let words = 0..pages.piece_words();
        let piece = self
            .kept
            .entry((layer, page))
            .or_insert_with(|| words.map(|at| pages.read(layer, page, at)).collect());
        piece[at]
    }

    fn write(&mut self, layer: u32, page: u32, at: usize, word: u64) {
        self.pages.write(layer, page, at, word);
        self.kept.remove(&(layer, page));
    }

    fn place(&self, table: &[baton_kv_cache::PageIndex], position: u32) -> Option<(u32, usize)> {
        let size = self.pages.layout().page_size;
        let page = table.get((position / size) as usize)?;
        Some((page.0, (position % size) as usize * WORDS))
    }
}

impl StepEngine for OracleEngine {
    fn vocabulary(&self) -> usize {
        self.oracle.vocabulary as usize
    }

    fn context_length(&self) -> u32 {
        self.oracle.context
    }

    fn step(
        &mut self,
        batch: &Batch<'_>,
        on_layer: &mut dyn FnMut(u32),
    ) -> Result<Logits<'_>, EngineError> {
        for (at, slice) in batch.slices.iter().enumerate() {
            let last = slice.position + slice.token_ids.len() as u32 - 1;
            if self.place(slice.pages, last).is_none() {
                let reason = format!("no page for position {last}");
                return Err(EngineError::BadSlice { slice: at, reason });
            }
        }
        let copies = if self.has(Defect::Copies) {
            &[]
        } else {
            batch.copies
        };
        for (from, to) in copies {
            for layer in 0..LAYERS {
                for at in 0..self.pages.piece_words() {
                    let word = self.pages.read(layer, from.0, at);
                    self.write(layer, to.0, at, word);
                }
            }
        }
        for slice in batch.slices {
            let before = slice.position.checked_sub(1);
            let mut running = match before.and_then(|at| self.place(slice.pages, at)) {
                Some((page, at)) => self.attend(0, page, at),
                None => START,
            };
            for (position, &token) in (slice.position..).zip(slice.token_ids) {
                running = digest(running, token);
                if let Some((page, at)) = self.place(slice.pages, position) {
                    for layer in 0..LAYERS {
                        for word in 0..WORDS {
                            self.write(layer, page, at + word, content(running, layer, word));
                        }
                    }
                }
            }
        }
        (0..LAYERS).for_each(on_layer);
        let mut logits = std::mem::take(&mut self.logits);
        logits.clear();
        for slice in batch.slices {
            let length = slice.position + slice.token_ids.len() as u32;
            let rows = slice.logits.count(slice.token_ids.len()) as u32;
            let mut seen = START;
            if self.has(Defect::Company) && batch.slices.len() >= COMPANY {
                seen += 1;
            }
            for position in 0..length {
                let Some((page, at)) = self.place(slice.pages, position) else {
                    continue;
                };
                for layer in 0..LAYERS {
                    for word in 0..WORDS {
                        seen = mix(seen ^ self.attend(layer, page, at + word));
                    }
                }
                if length - position <= rows {
                    self.oracle.push_logits(seen, &mut logits);
                }
            }
        }
        self.logits = logits;
        Ok(Logits {
            values: &self.logits,
            vocabulary: self.oracle.vocabulary as usize,
        })
    }
}
