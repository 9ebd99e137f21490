//! The matrix products of a step, alone: how many there are, and how fast they run with nothing between
//! them.
//!
//! They are visited by the same pass over the model that a step makes, so both always agree. What is
//! multiplied is whatever the buffers hold: no time depends on it. The gate of the MLP is part of its product.

use baton_model_file::ModelConfig;

use super::super::{
    blocks::Blocks,
    buffers::{Buffers, widest_input},
    engine::CpuEngine,
    matmul::{OutputView, PackedMatrix},
    model::CpuModel,
    operations::{multiply, multiply_into, multiply_rows},
    threads::Threads,
};
use crate::{
    EngineError, Isa,
    model::{self, HeadParts, Operations},
};

/// What the products of a step cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProductWork {
    /// Multiplications and additions, each counted.
    pub operations: u64,
    /// Bytes of weights read, each matrix once.
    pub weight_bytes: u64,
}

impl CpuModel {
    /// Cost of the products of a step of `tokens` tokens, of which `rows` ask for logits.
    pub fn product_work(&self, tokens: usize, rows: usize) -> ProductWork {
        let mut count = Count {
            tokens: tokens as u64,
            rows: rows as u64,
            work: ProductWork::default(),
        };
        model::forward(&self.weights, &mut count, &mut |_| {});
        count.work
    }
}

impl CpuEngine {
    /// Runs the products of a step of `tokens` tokens, of which `rows` ask for logits, and nothing else
    /// of it.
    ///
    /// # Errors
    /// More tokens or rows than the engine was built for.
    pub fn run_products(&mut self, tokens: usize, rows: usize) -> Result<(), EngineError> {
        let limits = self.plan.limits();
        for (what, value, limit) in [
            ("tokens", tokens, limits.max_tokens),
            ("logits rows", rows, limits.max_logits),
        ] {
            if value > limit {
                return Err(EngineError::BatchTooLarge { what, value, limit });
            }
        }
        self.threads.adopt_caller()?;
        let mut products = Products {
            config: &self.model.config,
            isa: self.isa,
            threads: &mut self.threads,
            buffers: &mut self.buffers,
            tokens,
            rows,
        };
        model::forward(&self.model.weights, &mut products, &mut |_| {});
        Ok(())
    }
}

/// Where a product goes.
#[derive(Clone, Copy)]
enum Into {
    Heads,
    Product,
    Gated,
}

/// Runs products only.
struct Products<'a> {
    config: &'a ModelConfig,
    isa: Isa,
    threads: &'a mut Threads,
    buffers: &'a mut Buffers,
    tokens: usize,
    rows: usize,
}

impl Products<'_> {
    /// One product, each thread with its blocks of rows.
    fn in_blocks(&mut self, blocks: Blocks, weights: &PackedMatrix, into: Into) {
        let (isa, scratch) = (self.isa, &self.buffers.scratch);
        let heads = self.buffers.heads.share();
        self.threads.run(blocks.count(), |thread, block| {
            let rows = blocks.rows(block);
            // SAFETY: `thread` is this thread's own number; heads of a block belong to its task.
            unsafe {
                let own = &mut scratch.get(thread).block;
                let (out, first) = match into {
                    Into::Heads => (heads, rows.start),
                    Into::Product => (own.product.share(), 0),
                    Into::Gated => (own.gated.share(), 0),
                };
                multiply_rows(isa, weights, &own.activations, rows.len(), out, first);
            }
        });
    }

    fn product(&mut self, weights: &PackedMatrix, then: &PackedMatrix, into: Into) {
        let widest = widest_input(self.config);
        if let Some(blocks) = Blocks::of(self.tokens, self.threads.count(), widest) {
            return self.in_blocks(blocks, weights, into);
        }
        self.threads.announce(then.memory());
        let out = match into {
            Into::Heads => self.buffers.heads.share(),
            Into::Product => self.buffers.product.share(),
            Into::Gated => self.buffers.gated.share(),
        };
        let x = &self.buffers.activations;
        multiply(self.threads, self.isa, weights, x, self.tokens, out);
    }
}

impl Operations<'_> for Products<'_> {
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;

    fn embed(&mut self, _: &PackedMatrix) {}

    fn norm(&mut self, _: &Vec<f32>, _: &PackedMatrix) {}

    fn project_heads(&mut self, qkv: &PackedMatrix, then: &PackedMatrix) {
        self.product(qkv, then, Into::Heads);
    }

    fn rotate_and_store(&mut self, _: u32, _: &HeadParts<Vec<f32>>) {}

    fn attend(&mut self, _: u32, _: &PackedMatrix) {}

    fn project(&mut self, weights: &PackedMatrix, then: &PackedMatrix) {
        self.product(weights, then, Into::Product);
    }

    fn gated_mlp(&mut self, gate_up: &PackedMatrix, down: &PackedMatrix, then: &PackedMatrix) {
        self.product(gate_up, down, Into::Gated);
        self.project(down, then);
    }

    fn logits(&mut self, _: &Vec<f32>, output: &PackedMatrix) {
        let vocabulary = output.rows();
        let logits = &mut self.buffers.heads.values_mut()[..self.rows * vocabulary];
        let out = OutputView::of(logits, vocabulary);
        let x = &self.buffers.activations;
        multiply_into(self.threads, self.isa, output, x, self.rows, out);
    }
}

/// Counts products only.
struct Count {
    tokens: u64,
    rows: u64,
    work: ProductWork,
}

impl Count {
    fn product(&mut self, weights: &PackedMatrix, rows: u64) {
        self.work.operations += 2 * weights.rows() as u64 * weights.columns() as u64 * rows;
        if rows > 0 {
            self.work.weight_bytes += weights.bytes() as u64;
        }
    }
}

impl Operations<'_> for Count {
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;

    fn embed(&mut self, _: &PackedMatrix) {}

    fn norm(&mut self, _: &Vec<f32>, _: &PackedMatrix) {}

    fn project_heads(&mut self, qkv: &PackedMatrix, _: &PackedMatrix) {
        self.product(qkv, self.tokens);
    }

    fn rotate_and_store(&mut self, _: u32, _: &HeadParts<Vec<f32>>) {}

    fn attend(&mut self, _: u32, _: &PackedMatrix) {}

    fn project(&mut self, weights: &PackedMatrix, _: &PackedMatrix) {
        self.product(weights, self.tokens);
    }

    fn gated_mlp(&mut self, gate_up: &PackedMatrix, down: &PackedMatrix, _: &PackedMatrix) {
        self.product(gate_up, self.tokens);
        self.product(down, self.tokens);
    }

    fn logits(&mut self, _: &Vec<f32>, output: &PackedMatrix) {
        self.product(output, self.rows);
    }
}
