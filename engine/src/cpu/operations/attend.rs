//! Attention of a step divided among the threads: by whole rows, or by spans where rows are few and
//! long.
//!
//! It must not know how a row or a span is computed.

use std::ops::Range;

use super::{
    super::{
        attention::{self, Query},
        plan::AttentionTask,
        shared_rows::SharedRows,
    },
    CpuOperations, TASKS_PER_THREAD,
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

impl AttentionShape {
    /// KV heads of one of `tasks` tasks: all, so that pages are read from end to end, unless that leaves
    /// threads idle or rows are many.
    fn heads_at_once(&self, threads: usize, tasks: usize, single: bool) -> usize {
        let all = attention::most_heads(self.group).min(self.kv_heads);
        if single
            && (threads == 1 || tasks * self.kv_heads.div_ceil(all) >= TASKS_PER_THREAD * threads)
        {
            all
        } else {
            1
        }
    }
}

impl CpuOperations<'_> {
    /// What `task` asks of some KV heads.
    ///
    /// # Safety
    /// Nobody writes the task's rows of the heads, or its rows and heads of the results, as long as
    /// the query lives.
    unsafe fn query<'b>(
        shape: AttentionShape,
        task: &AttentionTask,
        kv_heads: Range<usize>,
        slices: &'b [SequenceSlice<'b>],
        (heads, attended): (SharedRows<'b>, SharedRows<'b>),
    ) -> Query<'b> {
        let first = kv_heads.start * shape.group * shape.width;
        let last = task.row + task.tokens - 1;
        // SAFETY: the caller's promise; the rows exist.
        unsafe {
            Query {
                pages: slices[task.slice].pages,
                layer: shape.layer,
                kv_head: kv_heads.start,
                heads: kv_heads.len(),
                group: shape.group,
                position: task.position,
                tokens: task.tokens,
                queries: heads.pointer(task.row, last).add(first),
                stride: heads.stride(),
                out: attended.pointer(task.row, last).add(first),
                out_stride: attended.stride(),
            }
        }
    }

    /// Each thread takes whole rows.
    pub(super) fn attend_by_tasks(&mut self, shape: AttentionShape) {
        let (isa, pages, slices) = (self.isa, self.pages, self.batch.slices);
        let rows = (self.buffers.heads.share(), self.buffers.attended.share());
        let (scratch, tasks) = (&self.buffers.scratch, &self.plan.tasks);
        let single = tasks.iter().all(|task| task.tokens == 1);
        let heads = shape.heads_at_once(self.threads.count(), tasks.len(), single);
        let parts = shape.kv_heads.div_ceil(heads);
        self.threads.run(tasks.len() * parts, |thread, index| {
            let (task, first) = (&tasks[index / parts], index % parts * heads);
            let kv_heads = first..shape.kv_heads.min(first + heads);
            // SAFETY: each task writes its own rows' heads; queries and pages are not written now,
            // and the plan has checked that the page table covers the positions.
            unsafe {
                let query = Self::query(shape, task, kv_heads, slices, rows);
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
        let heads = shape.heads_at_once(self.threads.count(), spans.len(), true);
        let tasks = kv_heads.div_ceil(heads);
        self.threads.run(spans.len() * tasks, |thread, index| {
            let (at, first) = (index / tasks, index % tasks * heads);
            // SAFETY: as above; each task writes its own parts.
            unsafe {
                let some = first..kv_heads.min(first + heads);
                let query = Self::query(shape, &spans[at].task, some, slices, rows);
                let last = first_part(at, first) + query.heads * group - 1;
                let target = parts.pointer(first_part(at, first), last);
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
                    let (part, last) = (
                        first_part(at, 0) + head,
                        first_part(at + count - 1, 0) + head,
                    );
                    let part = parts.pointer(part, last);
                    let row = first.task.row;
                    let out = rows.1.pointer(row, row).add(head * shape.width);
                    let stride = kv_heads * group * parts.stride();
                    attention::join_all(isa, part, stride, count, shape.width, out);
                }
            }
        }
    }
}
