//! The same bits however a sequence is run: alone, in chunks, among others, over other pages, with
//! other threads and instruction sets.
#![allow(missing_docs)]

mod common;

use std::sync::Arc;

use baton_engine::{CpuModel, CpuOptions, Isa, LogitRows};
use baton_kv_cache::KvDtype;
use baton_model_file::{
    Architecture, TensorType,
    fixtures::{Random, TinyModel},
};
use common::{
    PageDealer, Sequence, bits, engine, load, options, random_tokens, real_model, run, step,
    step_with,
};

const TOKENS: usize = 90;
const PAGE_SIZES: [u32; 6] = [1, 7, 16, 32, 64, 256];
const CHUNKS: [usize; 6] = [1, 7, 16, 17, 64, TOKENS];

fn tiny(model: &TinyModel) -> Arc<CpuModel> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tiny.gguf");
    model.write_gguf(&path).expect("the model is written");
    load(&path)
}

/// Models that differ in everything a kernel can depend on.
fn models() -> Vec<TinyModel> {
    let mut models = Vec::new();
    let shapes = [
        (4, 2, 16),
        (3, 1, 24),
        (7, 7, 8),
        (6, 2, 64),
        (2, 1, 80),
        (9, 3, 64),
        (8, 1, 32),
    ];
    let families = [
        Architecture::Llama,
        Architecture::Qwen2,
        Architecture::Qwen3,
    ];
    for (at, (heads, kv_heads, head_dim)) in shapes.into_iter().enumerate() {
        models.push(TinyModel {
            architecture: families[at % 3],
            heads,
            kv_heads,
            head_dim,
            ..TinyModel::default()
        });
    }
    for (at, kind) in TensorType::ALL.into_iter().enumerate() {
        let mixed = TensorType::ALL[(at + 3) % TensorType::ALL.len()];
        let model = TinyModel {
            architecture: families[at % 3],
            hidden: 256,
            intermediate: 256,
            layers: 1,
            heads: 6,
            kv_heads: 2,
            head_dim: 128,
            output: (at % 2 == 0).then_some(kind),
            ..TinyModel::default()
        };
        models.push(TinyModel {
            weights: vec![kind, mixed],
            ..model.with_type(kind)
        });
    }
    models
}

/// One way to run a model.
#[derive(Debug, Clone, Copy)]
struct Way {
    isa: Isa,
    threads: usize,
    page_size: u32,
    dtype: KvDtype,
}

impl Way {
    /// What other ways are compared with.
    fn plain(dtype: KvDtype) -> Self {
        Self {
            isa: Isa::detect(),
            threads: 1,
            page_size: 16,
            dtype,
        }
    }
}

/// Logits after each token, run one at a time.
fn alone(model: &Arc<CpuModel>, tokens: &[u32], way: Way, random: &mut Random) -> Vec<Vec<u32>> {
    chunked(model, tokens, 1, way, random)
        .into_iter()
        .map(|(_, bits)| bits)
        .collect()
}

/// Position of each chunk's last token and its logits.
fn chunked(
    model: &Arc<CpuModel>,
    tokens: &[u32],
    chunk: usize,
    way: Way,
    random: &mut Random,
) -> Vec<(usize, Vec<u32>)> {
    let pages = (tokens.len() as u32).div_ceil(way.page_size) + 5;
    let options = options(way.threads, Some(way.isa));
    let mut engine = engine(model, &options, way.page_size, pages, way.dtype);
    let mut sequence = PageDealer::new(pages, random).sequence(tokens.len(), way.page_size);
    let ends = (0..tokens.len())
        .step_by(chunk)
        .map(|from| tokens.len().min(from + chunk) - 1);
    ends.zip(run(&mut engine, &mut sequence, tokens, chunk))
        .map(|(at, row)| (at, bits(&row)))
        .collect()
}

fn pick<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len())]
}

fn any_way(random: &mut Random, dtype: KvDtype) -> Way {
    Way {
        isa: pick(random, Isa::available()),
        threads: 1 + random.below(3),
        page_size: pick(random, &PAGE_SIZES),
        dtype,
    }
}

#[test]
fn chunks_pages_threads_and_instruction_sets_give_the_same_bits() {
    let mut random = Random::new(0xba70);
    for shape in models() {
        let model = tiny(&shape);
        let tokens = random_tokens(&mut random, TOKENS, shape.vocabulary as usize);
        let other = pick(&mut random, &[KvDtype::Bf16, KvDtype::F16, KvDtype::F32]);
        for dtype in [other, KvDtype::Int8] {
            let plain = Way::plain(dtype);
            let expected = alone(&model, &tokens, plain, &mut random);
            for chunk in CHUNKS {
                let way = any_way(&mut random, dtype);
                for (at, row) in chunked(&model, &tokens, chunk, way, &mut random) {
                    assert!(
                        row == expected[at],
                        "{shape:?}\nchunks of {chunk}, {way:?}: token {at} differs"
                    );
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    let mut random = Random::new(0xba71);
    let q4 = TinyModel {
        heads: 6,
        head_dim: 64,
        ..TinyModel::default()
    }
    .with_type(TensorType::Q4_1);
    for shape in [
        TinyModel {
            heads: 3,
            kv_heads: 1,
            head_dim: 24,
            ..TinyModel::default()
        },
        q4,
    ] {
        let model = tiny(&shape);
        let tokens = random_tokens(&mut random, TOKENS, shape.vocabulary as usize);
        for dtype in [KvDtype::Bf16, KvDtype::Int8] {
            let plain = Way::plain(dtype);
            let expected = alone(&model, &tokens, plain, &mut random);
            for &isa in Isa::available() {
                for threads in 1..=3 {
                    for page_size in PAGE_SIZES {
                        let way = Way {
                            isa,
                            threads,
                            page_size,
                            ..plain
                        };
                        let rows = chunked(&model, &tokens, 64, way, &mut random);
                        assert!(
                            rows.iter().all(|(at, row)| *row == expected[*at]),
                            "{way:?}"
                        );
                    }
                }
            }
        }
    }
}

/// Sequences of random lengths join, run in random chunks beside each other, and leave. Each asks for
/// the logits of no token, the last or all.
#[test]
fn random_batches_give_the_same_bits_as_each_sequence_alone() {
    let mut random = Random::new(0xba72);
    for shape in models() {
        let model = tiny(&shape);
        let dtype = pick(&mut random, &[KvDtype::Bf16, KvDtype::Int8]);
        let way = any_way(&mut random, dtype);
        let plain = Way::plain(dtype);
        let prompts: Vec<Vec<u32>> = (0..6)
            .map(|_| {
                let length = 1 + random.below(TOKENS);
                random_tokens(&mut random, length, shape.vocabulary as usize)
            })
            .collect();
        let expected: Vec<_> = prompts
            .iter()
            .map(|tokens| alone(&model, tokens, plain, &mut random))
            .collect();

        let pages = prompts
            .iter()
            .map(|p| (p.len() as u32).div_ceil(way.page_size))
            .sum();
        let options = CpuOptions {
            max_step_rows: 6 * TOKENS,
            ..options(way.threads, Some(way.isa))
        };
        let mut engine = engine(&model, &options, way.page_size, pages, way.dtype);
        let mut dealer = PageDealer::new(pages, &mut random);
        let mut sequences: Vec<Sequence> = prompts
            .iter()
            .map(|p| dealer.sequence(p.len(), way.page_size))
            .collect();
        while sequences
            .iter()
            .zip(&prompts)
            .any(|(s, p)| (s.position as usize) < p.len())
        {
            let (mut rows_of, mut wanted) = (Vec::new(), Vec::new());
            let mut parts: Vec<(&mut Sequence, &[u32])> = Vec::new();
            for (at, sequence) in sequences.iter_mut().enumerate() {
                let rest = &prompts[at][sequence.position as usize..];
                if !rest.is_empty() && random.below(3) > 0 {
                    let chunk = if random.below(2) == 0 {
                        1
                    } else {
                        1 + random.below(rest.len())
                    };
                    let rows = pick(
                        &mut random,
                        &[LogitRows::None, LogitRows::Last, LogitRows::All],
                    );
                    let end = sequence.position as usize + chunk;
                    rows_of.extend((end - rows.count(chunk)..end).map(|position| (at, position)));
                    wanted.push(rows);
                    parts.push((sequence, &rest[..chunk]));
                }
            }
            let rows = step_with(&mut engine, &mut parts, &wanted);
            assert_eq!(rows.len(), rows_of.len());
            for ((at, position), row) in rows_of.into_iter().zip(rows) {
                assert!(
                    bits(&row) == expected[at][position],
                    "{shape:?}\n{way:?}: sequence {at} token {position}"
                );
            }
        }
    }
}

/// The default model: one token at a time, in chunks, beside a neighbour, on other threads, pages
/// and instruction sets.
#[test]
fn real_model_gives_the_same_bits_however_it_runs() {
    let mut random = Random::new(0xba73);
    let model = load(&real_model());
    let vocabulary = model.config().vocabulary as usize;
    let (tokens, neighbour) = (
        random_tokens(&mut random, 70, vocabulary),
        random_tokens(&mut random, 33, vocabulary),
    );
    for dtype in [KvDtype::Bf16, KvDtype::Int8] {
        every_way(&model, &tokens, &neighbour, dtype, &mut random);
    }
}

fn every_way(
    model: &Arc<CpuModel>,
    tokens: &[u32],
    neighbour: &[u32],
    dtype: KvDtype,
    random: &mut Random,
) {
    let plain = Way::plain(dtype);
    let expected = alone(model, tokens, plain, random);
    for (chunk, page_size) in [(70, 16), (17, 32), (33, 5)] {
        let way = Way {
            threads: 2,
            page_size,
            ..plain
        };
        let rows = chunked(model, tokens, chunk, way, random);
        assert!(
            rows.iter().all(|(at, row)| *row == expected[*at]),
            "chunks of {chunk}, {way:?}"
        );
    }
    for &isa in Isa::available() {
        // Fused multiply-add without hardware is a function call for each lane.
        let tokens = &tokens[..if isa == Isa::Portable {
            8
        } else {
            tokens.len()
        }];
        let way = Way { isa, ..plain };
        let rows = chunked(model, tokens, tokens.len(), way, random);
        assert!(
            rows.iter().all(|(at, row)| *row == expected[*at]),
            "{way:?}"
        );
    }
    let mut engine = engine(model, &options(2, None), 16, 10, dtype);
    let mut dealer = PageDealer::new(10, random);
    let (mut first, mut second) = (dealer.sequence(70, 16), dealer.sequence(33, 16));
    let mut from = 0;
    for (ours, theirs) in [(1, 20), (40, 1), (1, 1), (28, 11)] {
        let part = &tokens[from..from + ours];
        let at = second.position as usize;
        let beside = &neighbour[at..at + theirs];
        from += ours;
        let rows = step(
            &mut engine,
            &mut [(&mut second, beside), (&mut first, part)],
        );
        assert!(
            bits(&rows[1]) == expected[from - 1],
            "{dtype:?}, token {}",
            from - 1
        );
    }
}
