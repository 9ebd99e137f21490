//! Attention of a step divided among the threads: by whole rows, or by spans where rows are few and
//! long.
//!
//! It must not know how a row or a span is computed.

use super::{
    super::{
        attention::{self, Query},
        plan::AttentionTask,
        shared_rows::SharedRows,
    },
    CpuOperations,
};
use crate::SequenceSlice;

/// Attention of one layer.
#[derive(Clone, Copy)]
pub(super) struct AttentionShape {
    pub(super) layer: u32,
    pub(super) kv_heads: usize,
    /// Query heads per KV head.
    pub(super) group: usize,
    /// Values of a head.
    pub(super) width: usize,
}

impl CpuOperations<'_> {
    /// What `task` asks of `kv_head`.
    ///
    /// # Safety
    /// Nobody writes the task's rows of the heads, or its rows and heads of the results, as long as
    /// the query lives.
    unsafe fn query<'b>(
        shape: AttentionShape,
        task: &AttentionTask,
        kv_head: usize,
        slices: &'b [SequenceSlice<'b>],
        (heads, attended): (SharedRows<'b>, SharedRows<'b>),
    ) -> Query<'b> {
        let first = kv_head * shape.group * shape.width;
        // SAFETY: the caller's promise; the rows exist.
        unsafe {
            Query {
                pages: slices[task.slice].pages,
                layer: shape.layer,
                kv_head,
                group: shape.group,
                position: task.position,
                tokens: task.tokens,
                queries: heads.row(task.row)[first..].as_ptr(),
                stride: heads.stride(),
                out: attended.base().add(task.row * attended.stride() + first),
                out_stride: attended.stride(),
            }
        }
    }

    /// Each thread takes whole rows.
    pub(super) fn attend_by_tasks(&mut self, shape: AttentionShape) {
        let (isa, pages, slices) = (self.isa, self.pages, self.batch.slices);
        let rows = (self.buffers.heads.share(), self.buffers.attended.share());
        let (scratch, tasks) = (&self.buffers.scratch, &self.plan.tasks);
        let count = tasks.len() * shape.kv_heads;
        self.threads.run(count, |thread, index| {
            let (task, kv_head) = (&tasks[index / shape.kv_heads], index % shape.kv_heads);
            // SAFETY: each task writes its own rows' heads; queries and pages are not written now,
            // and the plan has checked that the page table covers the positions.
            unsafe {
                let query = Self::query(shape, task, kv_head, slices, rows);
                attention::attend(isa, pages, &query, &mut scratch.get(thread).attention);
            }
        });
    }

    /// Few long rows: each thread takes spans of them, which are then joined.
    pub(super) fn attend_by_spans(&mut self, shape: AttentionShape) {
        let (isa, pages, slices) = (self.isa, self.pages, self.batch.slices);
        let rows = (self.buffers.heads.share(), self.buffers.attended.share());
        let (scratch, spans) = (&self.buffers.scratch, &self.plan.spans);
        let parts = self.buffers.parts.share();
        let (group, kv_heads) = (shape.group, shape.kv_heads);
        // A row of parts holds those of one query head of one span.
        let first_part = |index: usize, kv_head: usize| (index * kv_heads + kv_head) * group;
        self.threads.run(spans.len() * kv_heads, |thread, index| {
            let (at, kv_head) = (index / kv_heads, index % kv_heads);
            // SAFETY: as above; each task writes its own parts.
            unsafe {
                let query = Self::query(shape, &spans[at].task, kv_head, slices, rows);
                let target = parts.row_mut(first_part(at, kv_head)).as_mut_ptr();
                attention::attend_span(
                    isa,
                    pages,
                    &query,
                    spans[at].span,
                    (target, parts.stride()),
                    &mut scratch.get(thread).attention,
                );
            }
        });
        for (at, first) in spans.iter().enumerate().filter(|(_, span)| span.span == 0) {
            let count = attention::spans(first.task.position);
            for head in 0..kv_heads * group {
                // SAFETY: no task runs; the parts of a row follow each other span by span.
                unsafe {
                    let part = parts.row_mut(first_part(at, 0) + head).as_mut_ptr();
                    let out = rows.1.row_mut(first.task.row)[head * shape.width..].as_mut_ptr();
                    let stride = kv_heads * group * parts.stride();
                    attention::join_all(isa, part, stride, count, shape.width, out);
                }
            }
        }
    }
}
