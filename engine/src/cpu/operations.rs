//! The fused operations of a step over its buffers, each divided into tasks for the threads.
//!
//! How work is divided never shows in a result: every task computes whole rows, whole outputs of a
//! product, or whole query rows. Which operations run in which order is the model's business.
//!
//! A layer takes at most ten runs of the team, each of which ends with a barrier: norm, Q/K/V, rotation
//! with the page write, attention, its quantisation, output, norm, gate/up, its quantisation, down. A step
//! of few rows (one to four of the default model) takes five: the four products and attention. What lies
//! between is done by the caller alone in less time than a barrier takes, while the others fetch the
//! beginning of their part of the next matrix. A step of many rows takes two: attention, and everything
//! from there to the next layer's page write, each thread with blocks of rows of its own.
#![allow(unsafe_code)] // Tasks of one operation write disjoint parts of shared rows.

mod attend;
mod heads;
mod rows;
mod stages;

use std::ops::Range;

use self::{
    attend::AttentionShape,
    heads::HeadStore,
    rows::{Normed, norm_row, quantize_row},
    stages::{Stage, Stages},
};
pub(super) use stages::multiply_rows;

use super::{
    blocks::Blocks,
    buffers::{Buffers, widest_input},
    matmul::{Activations, OutputView, PackedMatrix, ROW_TILE, matmul},
    model::CpuModel,
    pages::Pages,
    plan::Plan,
    shared_rows::SharedRows,
    threads::Threads,
};
use crate::{
    Batch, Isa,
    model::{HeadParts, Operations},
};

/// Tasks per thread of an evenly divisible operation: few enough to cost nothing, enough that a
/// thread that lost its processor for a moment leaves the rest to the others.
const TASKS_PER_THREAD: usize = 4;

/// Values of rows that a task should have at least: fewer are done sooner than another thread joins.
const MIN_TASK_VALUES: usize = 2_048;

/// Most bytes of weights that a thread takes at once: with many tokens, they stay in the second-level
/// cache while all tokens pass.
const BITE_BYTES: usize = 144 << 10;
/// Least bytes of weights that a thread takes at once for a single token: reading them takes longer than
/// taking them.
const MIN_BITE_BYTES: usize = 12 << 10;

/// One step's view of the engine.
pub(super) struct CpuOperations<'a> {
    model: &'a CpuModel,
    pages: &'a Pages,
    isa: Isa,
    batch: &'a Batch<'a>,
    plan: &'a Plan,
    threads: &'a mut Threads,
    buffers: &'a mut Buffers,
    /// The last product is still to be added to the stream.
    pending: bool,
    /// How many rows are divided; operations then wait until a result is needed.
    blocks: Option<Blocks>,
    stages: Stages<'a>,
}

impl<'a> CpuOperations<'a> {
    pub(super) fn new(
        model: &'a CpuModel,
        pages: &'a Pages,
        isa: Isa,
        batch: &'a Batch<'a>,
        plan: &'a Plan,
        threads: &'a mut Threads,
        buffers: &'a mut Buffers,
    ) -> Self {
        Self {
            model,
            pages,
            isa,
            batch,
            plan,
            pending: false,
            blocks: Blocks::of(
                plan.rows.len(),
                threads.count(),
                widest_input(&model.config),
            ),
            stages: Stages::default(),
            threads,
            buffers,
        }
    }
}

impl<'a> Operations<'a> for CpuOperations<'a> {
    type Matrix = PackedMatrix;
    type Vector = Vec<f32>;

    fn embed(&mut self, embedding: &PackedMatrix) {
        let (rows, rotations) = (&self.plan.rows, &self.model.rotations);
        let stream = self.buffers.stream.share();
        let tables = self.buffers.rotations.share();
        for_rows(self.threads, rows.len(), embedding.columns(), |_, range| {
            for (at, row) in range.clone().zip(&rows[range]) {
                // SAFETY: each row belongs to one task.
                let (stream, table) = unsafe { (stream.row_mut(at), tables.row_mut(at)) };
                embedding.dequantize_row(row.token as usize, &mut stream[..embedding.columns()]);
                rotations.fill(row.position, &mut table[..rotations.table_len()]);
            }
        });
        self.pending = false;
    }

    fn norm(&mut self, weight: &'a Vec<f32>, next: &'a PackedMatrix) {
        if self.blocks.is_some() {
            let pending = std::mem::take(&mut self.pending);
            return self.stages.push(Stage::Norm(weight, next, pending));
        }
        let (isa, epsilon, pending) = (self.isa, self.model.config.norm_eps, self.pending);
        let (stream, product) = (self.buffers.stream.share(), self.buffers.product.share());
        let (activations, scratch) = (&self.buffers.activations, &self.buffers.scratch);
        let rows = self.plan.rows.len();
        for_rows(self.threads, rows, next.columns(), |thread, range| {
            // SAFETY: `thread` is this thread's own number.
            let out = unsafe { &mut scratch.get(thread).row };
            for at in range {
                // SAFETY: each row belongs to one task; the product is not written now.
                unsafe {
                    let normed = Normed {
                        delta: pending.then(|| product.row(at)),
                        weight,
                        epsilon,
                        next,
                    };
                    norm_row(isa, stream.row_mut(at), &normed, out, activations, at);
                }
            }
        });
        self.pending = false;
    }

    fn project_heads(&mut self, qkv: &'a PackedMatrix, then: &'a PackedMatrix) {
        if self.blocks.is_some() {
            return self.stages.push(Stage::ProjectHeads(qkv));
        }
        self.threads.announce(then.memory());
        let tokens = self.plan.rows.len();
        let heads = self.buffers.heads.share();
        multiply(
            self.threads,
            self.isa,
            qkv,
            &self.buffers.activations,
            tokens,
            heads,
        );
    }

    fn rotate_and_store(&mut self, layer: u32, parts: &'a HeadParts<Vec<f32>>) {
        let store = HeadStore {
            model: self.model,
            pages: self.pages,
            isa: self.isa,
            layer,
            parts,
        };
        if let Some(blocks) = self.blocks {
            self.stages.push(Stage::Store(store));
            return self.run_stages(blocks);
        }
        let heads = self.buffers.heads.share();
        let tables = self.buffers.rotations.share();
        let scratch = &self.buffers.scratch;
        let rows = &self.plan.rows;
        let values = 2 * heads.stride();
        for_rows(self.threads, rows.len(), values, |thread, range| {
            // SAFETY: `thread` is this thread's own number.
            let scratch = unsafe { &mut scratch.get(thread).head };
            // SAFETY: each row, and with it its slot of a page, belongs to one task; tables are not
            // written now.
            unsafe { store.run(rows, range, heads, tables, scratch) };
        });
    }

    fn attend(&mut self, layer: u32, next: &'a PackedMatrix) {
        let config = &self.model.config;
        let shape = AttentionShape {
            layer,
            kv_heads: config.kv_heads as usize,
            group: (config.heads / config.kv_heads) as usize,
            width: config.head_dim as usize,
        };
        if self.plan.divides_spans() {
            self.attend_by_spans(shape);
        } else {
            self.attend_by_tasks(shape);
        }
        if self.blocks.is_some() {
            return self.stages.push(Stage::TakeAttended(next));
        }
        let (isa, tokens) = (self.isa, self.plan.rows.len());
        let attended = self.buffers.attended.share();
        let activations = &self.buffers.activations;
        quantize(self.threads, isa, attended, tokens, next, activations);
    }

    fn project(&mut self, weights: &'a PackedMatrix, then: &'a PackedMatrix) {
        self.pending = true;
        if self.blocks.is_some() {
            return self.stages.push(Stage::Project(weights));
        }
        self.threads.announce(then.memory());
        let tokens = self.plan.rows.len();
        let product = self.buffers.product.share();
        multiply(
            self.threads,
            self.isa,
            weights,
            &self.buffers.activations,
            tokens,
            product,
        );
    }

    fn gated_mlp(
        &mut self,
        gate_up: &'a PackedMatrix,
        down: &'a PackedMatrix,
        then: &'a PackedMatrix,
    ) {
        if self.blocks.is_some() {
            self.pending = true;
            return self.stages.push(Stage::GatedMlp(gate_up, down));
        }
        self.threads.announce(down.memory());
        let (isa, tokens) = (self.isa, self.plan.rows.len());
        let gated = self.buffers.gated.share();
        let activations = &self.buffers.activations;
        multiply(self.threads, isa, gate_up, activations, tokens, gated);
        quantize(self.threads, isa, gated, tokens, down, activations);
        self.project(down, then);
    }

    fn logits(&mut self, norm: &'a Vec<f32>, output: &'a PackedMatrix) {
        if let Some(blocks) = self.blocks
            && std::mem::take(&mut self.pending)
        {
            self.stages.push(Stage::Add);
            self.run_stages(blocks);
        }
        let (isa, epsilon, columns) = (self.isa, self.model.config.norm_eps, output.columns());
        let (stream, product) = (self.buffers.stream.share(), self.buffers.product.share());
        let (activations, scratch) = (&self.buffers.activations, &self.buffers.scratch);
        let (wanted, pending) = (&self.plan.logits, self.pending);
        for_rows(self.threads, wanted.len(), columns, |thread, range| {
            // SAFETY: `thread` is this thread's own number.
            let out = unsafe { &mut scratch.get(thread).row };
            for at in range {
                // SAFETY: wanted rows are different ones, so each belongs to one task.
                unsafe {
                    let normed = Normed {
                        delta: pending.then(|| product.row(wanted[at])),
                        weight: norm,
                        epsilon,
                        next: output,
                    };
                    norm_row(
                        isa,
                        stream.row_mut(wanted[at]),
                        &normed,
                        out,
                        activations,
                        at,
                    );
                }
            }
        });
        let vocabulary = output.rows();
        let logits = &mut self.buffers.heads.values_mut()[..wanted.len() * vocabulary];
        let out = OutputView::of(logits, vocabulary);
        multiply_into(self.threads, isa, output, activations, wanted.len(), out);
    }
}

/// Input of `next` = the first `count` of `rows`.
fn quantize(
    threads: &mut Threads,
    isa: Isa,
    rows: SharedRows<'_>,
    count: usize,
    next: &PackedMatrix,
    activations: &Activations,
) {
    let columns = next.columns();
    for_rows(threads, count, columns, |_, range| {
        for at in range {
            // SAFETY: each row of the activations belongs to one task; `rows` are not written now.
            unsafe { quantize_row(isa, rows.row(at), next, activations, at) };
        }
    });
}

/// Divides `rows` rows of `values` values each among the threads, pairs of neighbours together; too
/// little work for that is one task.
fn for_rows(
    threads: &mut Threads,
    rows: usize,
    values: usize,
    body: impl Fn(usize, Range<usize>) + Sync,
) {
    let most = threads.count() * TASKS_PER_THREAD;
    let tasks = (rows * values / MIN_TASK_VALUES).clamp(1, most);
    let many = rows.div_ceil(tasks).next_multiple_of(2);
    threads.run(rows.div_ceil(many.max(1)), |thread, task| {
        body(thread, task * many..rows.min((task + 1) * many));
    });
}

/// `out` = product of `weights` with the activations of the first `tokens` rows.
pub(super) fn multiply(
    threads: &mut Threads,
    isa: Isa,
    weights: &PackedMatrix,
    activations: &Activations,
    tokens: usize,
    out: SharedRows<'_>,
) {
    // SAFETY: the rows are writable and this operation's own.
    let out = unsafe { OutputView::new(out.base(), out.stride(), out.rows()) };
    multiply_into(threads, isa, weights, activations, tokens, out);
}

/// As [`multiply`], into a view.
pub(super) fn multiply_into(
    threads: &mut Threads,
    isa: Isa,
    weights: &PackedMatrix,
    activations: &Activations,
    tokens: usize,
    out: OutputView<'_>,
) {
    if tokens == 0 {
        return;
    }
    let (count, rows) = (threads.count(), weights.outputs());
    let tile_bytes = weights.bytes() * ROW_TILE / rows.next_multiple_of(ROW_TILE);
    // Outputs of an item: few, as several threads end together then, but worth taking.
    let least = (MIN_BITE_BYTES / tile_bytes.max(1)).div_ceil(tokens).max(1);
    let many = least * ROW_TILE;
    let part = |thread| {
        let share = weights.share(thread, count);
        share.start.div_ceil(many)..share.end.div_ceil(many)
    };
    let most = (BITE_BYTES / (least * tile_bytes).max(1)).max(1);
    threads.run_parts(rows.div_ceil(many), most, part, |_, bite| {
        let outputs = bite.start * many..rows.min(bite.end * many);
        // SAFETY: each bite has its own outputs; the activations are not written now, and were
        // quantised for these weights by the operation before.
        unsafe { matmul(isa, weights, activations, tokens, outputs, out) };
    });
}
