//! Attention of random shapes beside a plain f64 computation over the same pages, and bit for bit
//! beside itself: on every instruction set, row by row, span by span.

use std::ops::Range;

use baton_kv_cache::{KvDtype, KvLayout, PageIndex};
use baton_model_file::fixtures::Random;

use super::{Query, Scratch, attend, attend_span, join_all, part_values, spans, task_tokens};
use crate::{
    Isa,
    cpu::{
        anonymous_memory,
        lanes::LANES,
        pages::{Pages, TokenHeads},
    },
};

const SEED: u64 = 0x0a77_e2d0;
const HEADS: usize = 3;

/// Pages with random K and V, and queries.
struct Case {
    pages: Pages,
    table: Vec<PageIndex>,
    group: usize,
    position: usize,
    tokens: usize,
    queries: Vec<f32>,
    /// Of every position: K of the heads, V of the heads.
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Case {
    fn new(random: &mut Random, dtype: KvDtype) -> Self {
        let head_dim = 2 * (1 + random.below(48));
        let page_size = 1 + random.below(33);
        // In place and not, one row and many, one span and several.
        let (head_dim, page_size) = match random.below(3) {
            0 => (head_dim, page_size),
            1 => (16 * (1 + random.below(8)), 16 * (1 + random.below(2))),
            _ => (64, 16),
        };
        let group = 1 + random.below(7);
        let longest = if random.below(3) == 0 { 1_300 } else { 200 };
        let position = random.below(longest);
        let tokens = 1 + random.below(task_tokens(group));
        let end = position + tokens;
        let layout = KvLayout {
            layers: 1,
            kv_heads: HEADS as u32,
            head_dim: head_dim as u32,
            page_size: page_size as u32,
            dtype,
            pages: (end.div_ceil(page_size) + 1) as u32,
        };
        let memory = anonymous_memory(layout.region_bytes()).expect("memory");
        // What no token has written yet may be anything.
        // SAFETY: the test's own memory.
        unsafe {
            memory
                .base()
                .as_ptr()
                .write_bytes(0xff, layout.region_bytes());
        };
        let pages = Pages::new(layout, memory);
        let table: Vec<_> = (0..end.div_ceil(page_size))
            .rev()
            .map(|page| PageIndex(page as u32))
            .collect();
        let mut numbers = |count: usize, scale: f32| -> Vec<f32> {
            (0..count).map(|_| random.unit() * 2.0 * scale).collect()
        };
        let keys: Vec<_> = (0..end).map(|_| numbers(HEADS * head_dim, 1.0)).collect();
        let values: Vec<_> = (0..end).map(|_| numbers(HEADS * head_dim, 1.0)).collect();
        let queries = numbers(
            tokens * HEADS * group * head_dim + LANES,
            2.0 / (head_dim as f32).sqrt(),
        );
        for (at, (keys, values)) in keys.iter().zip(&values).enumerate() {
            let slot = (table[at / page_size], at % page_size);
            // SAFETY: the test's own pages.
            unsafe { pages.write(Isa::detect(), 0, slot, &[TokenHeads { keys, values }]) };
        }
        Self {
            pages,
            table,
            group,
            position,
            tokens,
            queries,
            keys,
            values,
        }
    }

    fn head_dim(&self) -> usize {
        self.pages.layout().head_dim as usize
    }

    /// Values of a token's queries.
    fn stride(&self) -> usize {
        HEADS * self.group * self.head_dim()
    }

    /// A query of `tokens` tokens from `first` on, of some KV heads, into `out`.
    fn query(
        &self,
        heads: Range<usize>,
        first: usize,
        tokens: usize,
        out: &mut [f32],
    ) -> Query<'_> {
        let kv_head = heads.start;
        let at = first * self.stride() + kv_head * self.group * self.head_dim();
        Query {
            pages: &self.table,
            layer: 0,
            kv_head,
            heads: heads.len(),
            group: self.group,
            position: self.position + first,
            tokens,
            queries: self.queries[at..].as_ptr(),
            stride: self.stride(),
            out: out[at..].as_mut_ptr(),
            out_stride: self.stride(),
        }
    }

    /// All results, in calls of `tokens` tokens.
    fn attend(&self, isa: Isa, tokens: usize) -> Vec<f32> {
        let mut out = vec![0.0; self.tokens * self.stride()];
        let mut scratch = Scratch::new(self.head_dim(), self.group);
        for kv_head in 0..HEADS {
            for first in (0..self.tokens).step_by(tokens) {
                let tokens = tokens.min(self.tokens - first);
                let query = self.query(kv_head..kv_head + 1, first, tokens, &mut out);
                // SAFETY: everything is the test's own and large enough.
                unsafe { attend(isa, &self.pages, &query, &mut scratch) };
            }
        }
        out
    }

    /// All results, token by token, all heads of one at once.
    fn attend_by_tokens(&self, isa: Isa) -> Vec<f32> {
        let mut out = vec![0.0; self.tokens * self.stride()];
        let mut scratch = Scratch::new(self.head_dim(), self.group);
        for token in 0..self.tokens {
            let query = self.query(0..HEADS, token, 1, &mut out);
            // SAFETY: as above.
            unsafe { attend(isa, &self.pages, &query, &mut scratch) };
        }
        out
    }

    /// All results, span by span in any order.
    fn attend_by_spans(&self, isa: Isa) -> Vec<f32> {
        let head_dim = self.head_dim();
        let values = part_values(head_dim);
        let mut out = vec![0.0; self.tokens * self.stride()];
        let mut scratch = Scratch::new(head_dim, self.group);
        for token in 0..self.tokens {
            // Several heads at once, and one alone.
            for heads in [0..HEADS - 1, HEADS - 1..HEADS] {
                let query = self.query(heads, token, 1, &mut out);
                let (count, rows) = (spans(query.position), query.rows());
                let mut parts = vec![0.0; count * rows * values];
                for span in (0..count).rev() {
                    let target = parts[span * rows * values..].as_mut_ptr();
                    // SAFETY: as above.
                    unsafe {
                        attend_span(
                            isa,
                            &self.pages,
                            &query,
                            span,
                            (target, values),
                            &mut scratch,
                        );
                    };
                }
                for row in 0..rows {
                    // SAFETY: as above.
                    unsafe {
                        let part = parts[row * values..].as_mut_ptr();
                        let out = query.out.add(row * head_dim);
                        join_all(isa, part, rows * values, count, head_dim, out);
                    }
                }
            }
        }
        out
    }

    /// Largest difference to plain attention over unrounded numbers.
    fn error(&self, results: &[f32]) -> f64 {
        let head_dim = self.head_dim();
        let mut largest: f64 = 0.0;
        for token in 0..self.tokens {
            for head in 0..HEADS * self.group {
                let at = token * self.stride() + head * head_dim;
                let part = head / self.group * head_dim..(head / self.group + 1) * head_dim;
                let scores: Vec<f64> = self.keys[..=self.position + token]
                    .iter()
                    .map(|keys| {
                        let query = &self.queries[at..at + head_dim];
                        let pairs = query.iter().zip(&keys[part.clone()]);
                        pairs.map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
                    })
                    .collect();
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
                let total: f64 = weights.iter().sum();
                for dimension in 0..head_dim {
                    let sum: f64 = weights
                        .iter()
                        .zip(&self.values)
                        .map(|(weight, values)| weight * f64::from(values[part.start + dimension]))
                        .sum();
                    let ours = f64::from(results[at + dimension]);
                    assert!(ours.is_finite(), "token {token}, head {head}");
                    largest = largest.max((ours - sum / total).abs());
                }
            }
        }
        largest
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn random_shapes_agree_with_plain_attention_and_bit_for_bit_with_themselves() {
    println!("seed {SEED:#x}");
    let mut random = Random::new(SEED);
    for (dtype, bound) in [
        // Values within 2; weights and both operands rounded to 8 bits of mantissa.
        (KvDtype::Bf16, 0.06),
        (KvDtype::F16, 6e-3),
        (KvDtype::F32, 2e-5),
        (KvDtype::Int8, 0.06),
    ] {
        let mut largest: f64 = 0.0;
        for number in 0..24 {
            let case = Case::new(&mut random, dtype);
            let name = format!(
                "{dtype:?} {number}: {:?}, group {}, {} tokens from {}",
                case.pages.layout(),
                case.group,
                case.tokens,
                case.position
            );
            let results = case.attend(Isa::detect(), case.tokens);
            let error = case.error(&results);
            assert!(error < bound, "{name}: error {error}");
            largest = largest.max(error);
            let expected = bits(&results);
            for &isa in Isa::available() {
                assert_eq!(
                    bits(&case.attend(isa, case.tokens)),
                    expected,
                    "{name}, {isa:?}"
                );
            }
            assert_eq!(
                bits(&case.attend(Isa::detect(), 1)),
                expected,
                "{name}, one by one"
            );
            for &isa in Isa::available() {
                let by_tokens = case.attend_by_tokens(isa);
                assert_eq!(bits(&by_tokens), expected, "{name}, {isa:?}, by tokens");
            }
            let by_spans = case.attend_by_spans(Isa::detect());
            assert_eq!(bits(&by_spans), expected, "{name}, by spans");
        }
        println!("{dtype:?}: largest error {largest:.2e}");
    }
}

#[test]
fn a_key_that_is_not_a_number_spoils_only_the_rows_that_see_it() {
    let mut random = Random::new(SEED);
    for number in 0..20 {
        let dtype = [KvDtype::Bf16, KvDtype::Int8][number % 2];
        let case = Case::new(&mut random, dtype);
        let clean = case.attend(Isa::detect(), case.tokens);
        let bad = random.below(case.tokens);
        let width = HEADS * case.head_dim();
        let nothing = vec![f32::NAN; width];
        let position = case.position + bad;
        let page_size = case.pages.layout().page_size as usize;
        let slot = (case.table[position / page_size], position % page_size);
        // SAFETY: the test's own pages.
        unsafe {
            let heads = [TokenHeads {
                keys: &nothing,
                values: &nothing,
            }];
            case.pages.write(Isa::detect(), 0, slot, &heads);
        }
        for &isa in Isa::available() {
            let spoilt = case.attend(isa, case.tokens);
            let (before, after) = spoilt.split_at(bad * case.stride());
            assert_eq!(
                bits(before),
                bits(&clean[..before.len()]),
                "{dtype:?}, {isa:?}"
            );
            assert!(
                after.iter().all(|value| value.is_nan()),
                "{dtype:?}, {isa:?}"
            );
        }
    }
}
