//! Operations of a step of many rows, put off and then run block by block: a thread takes a block of rows
//! through all of them while its values are in the cache.
//!
//! It must not know how kernels compute, or which rows make a block.

use std::ops::Range;

use super::{
    super::{
        blocks::Blocks,
        buffers::{BlockRows, Scratch},
        matmul::{Activations, OutputView, PackedMatrix, matmul},
        shared_rows::SharedRows,
    },
    CpuOperations,
    heads::HeadStore,
    rows::{Normed, norm_row, quantize_row},
};
use crate::{Isa, cpu::plan::Row};

/// Most operations between two runs of attention.
const MOST: usize = 8;

/// An operation that waits.
#[derive(Clone, Copy)]
pub(super) enum Stage<'a> {
    /// Stream += last product, if there is one; input = the stream's norm.
    Norm(&'a [f32], &'a PackedMatrix, bool),
    /// Heads = product of the input.
    ProjectHeads(&'a PackedMatrix),
    /// Heads to rotated queries and pages.
    Store(HeadStore<'a>),
    /// Input = result of attention.
    TakeAttended(&'a PackedMatrix),
    /// Last product = product of the input.
    Project(&'a PackedMatrix),
    /// Last product = the MLP of the input: the pair of gate and up, and down.
    GatedMlp(&'a PackedMatrix, &'a PackedMatrix),
    /// Stream += last product.
    Add,
}

/// Operations that wait, in order.
#[derive(Default)]
pub(super) struct Stages<'a> {
    list: [Option<Stage<'a>>; MOST],
    count: usize,
}

impl<'a> Stages<'a> {
    pub(super) fn push(&mut self, stage: Stage<'a>) {
        self.list[self.count] = Some(stage);
        self.count += 1;
    }
}

/// What all blocks share.
#[derive(Clone, Copy)]
struct Shared<'s> {
    isa: Isa,
    epsilon: f32,
    rows: &'s [Row],
    stream: SharedRows<'s>,
    heads: SharedRows<'s>,
    attended: SharedRows<'s>,
    tables: SharedRows<'s>,
}

impl CpuOperations<'_> {
    /// Runs what waits.
    pub(super) fn run_stages(&mut self, blocks: Blocks) {
        let stages = std::mem::take(&mut self.stages);
        let shared = Shared {
            isa: self.isa,
            epsilon: self.model.config.norm_eps,
            rows: &self.plan.rows,
            stream: self.buffers.stream.share(),
            heads: self.buffers.heads.share(),
            attended: self.buffers.attended.share(),
            tables: self.buffers.rotations.share(),
        };
        let scratch = &self.buffers.scratch;
        self.threads.run(blocks.count(), |thread, block| {
            // SAFETY: `thread` is this thread's own number.
            let scratch = unsafe { scratch.get(thread) };
            for stage in stages.list.iter().flatten() {
                // SAFETY: each row belongs to one block; nothing else is written now.
                unsafe { shared.run(stage, blocks.rows(block), scratch) };
            }
        });
    }
}

impl Shared<'_> {
    /// # Safety
    /// The rows are the caller's alone, and nobody writes pages or tables that they need.
    unsafe fn run(&self, stage: &Stage<'_>, rows: Range<usize>, scratch: &mut Scratch) {
        let (isa, count) = (self.isa, rows.len());
        let BlockRows {
            activations,
            product,
            gated,
        } = &mut scratch.block;
        // SAFETY: the caller's promise.
        unsafe {
            match *stage {
                Stage::Norm(weight, next, pending) => {
                    let product = product.share();
                    for (at, row) in rows.enumerate() {
                        let normed = Normed {
                            delta: pending.then(|| product.row(at)),
                            weight,
                            epsilon: self.epsilon,
                            next,
                        };
                        norm_row(
                            isa,
                            self.stream.row_mut(row),
                            &normed,
                            &mut scratch.row,
                            activations,
                            at,
                        );
                    }
                }
                Stage::ProjectHeads(qkv) => {
                    multiply_rows(isa, qkv, activations, count, self.heads, rows.start);
                }
                Stage::Store(store) => {
                    store.run(self.rows, rows, self.heads, self.tables, &mut scratch.head);
                }
                Stage::TakeAttended(next) => {
                    for (at, row) in rows.enumerate() {
                        quantize_row(isa, self.attended.row(row), next, activations, at);
                    }
                }
                Stage::Project(weights) => {
                    multiply_rows(isa, weights, activations, count, product.share(), 0);
                }
                Stage::GatedMlp(gate_up, down) => {
                    let gated = gated.share();
                    multiply_rows(isa, gate_up, activations, count, gated, 0);
                    for at in 0..count {
                        quantize_row(isa, gated.row(at), down, activations, at);
                    }
                    multiply_rows(isa, down, activations, count, product.share(), 0);
                }
                Stage::Add => {
                    let product = product.share();
                    for (at, row) in rows.enumerate() {
                        let stream = self.stream.row_mut(row);
                        for (value, delta) in stream.iter_mut().zip(product.row(at)) {
                            *value += *delta;
                        }
                    }
                }
            }
        }
    }
}

/// Rows of `out` from `first` on = product of `weights` with `count` rows of activations.
///
/// # Safety
/// The activations were quantised for these weights; these rows of `out` are the caller's alone.
pub(in crate::cpu) unsafe fn multiply_rows(
    isa: Isa,
    weights: &PackedMatrix,
    activations: &Activations,
    count: usize,
    out: SharedRows<'_>,
    first: usize,
) {
    assert!(first + count <= out.rows(), "row {}", first + count);
    // SAFETY: the caller's promise; the rows exist.
    unsafe {
        let target = out.base().add(first * out.stride());
        let target = OutputView::new(target, out.stride(), count);
        matmul(
            isa,
            weights,
            activations,
            count,
            0..weights.outputs(),
            target,
        );
    }
}
