//! A step's plan: the batch, checked and laid out row by row, before anything is computed.
//!
//! It must not know weights or kernels, and touches no page.

use baton_kv_cache::{KvLayout, PageIndex};

use super::attention::{spans, task_tokens};
use crate::{Batch, EngineError, SequenceSlice};

/// What the engine was built for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) max_tokens: usize,
    pub(super) max_logits: usize,
    pub(super) context_length: u32,
    pub(super) vocabulary: u32,
    /// Query heads per KV head.
    pub(super) group: usize,
    pub(super) threads: usize,
}

impl Limits {
    /// Most spans that a step divides among threads.
    pub(super) fn max_spans(&self) -> usize {
        if self.threads == 1 {
            return 0;
        }
        self.max_tokens.min(self.few_rows()) * spans(self.context_length.max(1) as usize - 1)
    }

    /// Rows that do not keep all threads busy with whole rows.
    fn few_rows(&self) -> usize {
        self.threads
    }
}

/// One token of the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Row {
    pub(super) token: u32,
    pub(super) position: u32,
    pub(super) page: PageIndex,
    pub(super) slot: usize,
}

impl Row {
    /// How many rows from this one on, 1 or 2, fill an even slot and the odd one after it.
    pub(super) fn neighbours(&self, next: &[Self]) -> usize {
        let pair = next.first().is_some_and(|next| {
            self.slot.is_multiple_of(2) && next.page == self.page && next.slot == self.slot + 1
        });
        1 + usize::from(pair)
    }
}

/// Neighbouring tokens of one slice whose attention is one task per KV head.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionTask {
    pub(super) slice: usize,
    /// First row in the batch.
    pub(super) row: usize,
    pub(super) position: usize,
    pub(super) tokens: usize,
}

/// One span of the attention of a single token.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanTask {
    pub(super) task: AttentionTask,
    pub(super) span: usize,
}

/// Reused from step to step; never grows after construction.
#[derive(Debug)]
pub(super) struct Plan {
    limits: Limits,
    page_size: u32,
    pub(super) rows: Vec<Row>,
    /// Most expensive first.
    pub(super) tasks: Vec<AttentionTask>,
    /// Spans of all tasks, those of a task in order; empty if tasks are not divided.
    pub(super) spans: Vec<SpanTask>,
    /// Rows whose logits are wanted, ascending.
    pub(super) logits: Vec<usize>,
    /// Per page, the mark of its last writer.
    marks: Vec<u64>,
    mark: u64,
}

impl Plan {
    pub(super) fn new(limits: Limits, layout: &KvLayout) -> Self {
        Self {
            limits,
            page_size: layout.page_size,
            rows: Vec::with_capacity(limits.max_tokens),
            tasks: Vec::with_capacity(limits.max_tokens),
            spans: Vec::with_capacity(limits.max_spans()),
            logits: Vec::with_capacity(limits.max_logits),
            marks: vec![0; layout.pages as usize],
            mark: 0,
        }
    }

    /// What the engine was built for.
    pub(super) fn limits(&self) -> Limits {
        self.limits
    }

    /// Checks `batch` and plans it.
    ///
    /// # Errors
    /// The first malformed copy or slice, or a batch larger than the limits.
    pub(super) fn prepare(&mut self, batch: &Batch<'_>) -> Result<(), EngineError> {
        self.rows.clear();
        self.tasks.clear();
        self.spans.clear();
        self.logits.clear();
        self.check_size(batch)?;
        self.check_copies(batch.copies)?;
        self.mark += 1;
        for (index, slice) in batch.slices.iter().enumerate() {
            self.add(index, slice)
                .map_err(|reason| EngineError::BadSlice {
                    slice: index,
                    reason,
                })?;
        }
        // Cost grows with rows times keys; long tasks first leave no straggler at the end.
        self.tasks.sort_unstable_by_key(|task| {
            (
                std::cmp::Reverse(task.tokens * (task.position + task.tokens)),
                task.row,
            )
        });
        self.divide_spans();
        Ok(())
    }

    /// Whether attention is divided by spans.
    pub(super) fn divides_spans(&self) -> bool {
        !self.spans.is_empty()
    }

    /// Divides a few long rows, which as whole tasks would leave threads idle.
    fn divide_spans(&mut self) {
        let few = self.limits.threads > 1
            && self.tasks.len() <= self.limits.few_rows()
            && self.tasks.iter().all(|task| task.tokens == 1)
            && self.tasks.iter().any(|task| spans(task.position) > 1);
        if few {
            self.spans.extend(self.tasks.iter().flat_map(|&task| {
                (0..spans(task.position)).map(move |span| SpanTask { task, span })
            }));
        }
    }

    fn check_size(&self, batch: &Batch<'_>) -> Result<(), EngineError> {
        let tokens = batch.slices.iter().fold(0, |sum: usize, slice| {
            sum.saturating_add(slice.token_ids.len())
        });
        let logits = batch.slices.iter().fold(0, |sum: usize, slice| {
            sum.saturating_add(slice.logits.count(slice.token_ids.len()))
        });
        for (what, value, limit) in [
            ("tokens", tokens, self.limits.max_tokens),
            ("logits rows", logits, self.limits.max_logits),
        ] {
            if value > limit {
                return Err(EngineError::BatchTooLarge { what, value, limit });
            }
        }
        Ok(())
    }

    /// Every page of a copy exists, and no target is another copy's source or target.
    fn check_copies(&mut self, copies: &[(PageIndex, PageIndex)]) -> Result<(), EngineError> {
        self.mark += 1;
        let bad = |copy, reason| Err(EngineError::BadCopy { copy, reason });
        for (copy, &(from, to)) in copies.iter().enumerate() {
            for page in [from, to] {
                if page.0 as usize >= self.marks.len() {
                    return bad(copy, no_page(page, self.marks.len()));
                }
            }
            if std::mem::replace(&mut self.marks[to.0 as usize], self.mark) == self.mark {
                return bad(copy, format!("page {} is the target of two copies", to.0));
            }
        }
        for (copy, (from, _)) in copies.iter().enumerate() {
            if self.marks[from.0 as usize] == self.mark {
                return bad(
                    copy,
                    format!("page {} is both source and target of copies", from.0),
                );
            }
        }
        Ok(())
    }

    fn add(&mut self, index: usize, slice: &SequenceSlice<'_>) -> Result<(), String> {
        let end = self.check_range(slice)?;
        let (size, pages) = (self.page_size, self.marks.len());
        if let Some(page) = slice.pages.iter().find(|page| page.0 as usize >= pages) {
            return Err(no_page(*page, pages));
        }
        for &page in &slice.pages[(slice.position / size) as usize..end.div_ceil(size) as usize] {
            if std::mem::replace(&mut self.marks[page.0 as usize], self.mark) == self.mark {
                return Err(format!("page {} is written twice in one step", page.0));
            }
        }
        if let Some(token) = slice
            .token_ids
            .iter()
            .find(|token| **token >= self.limits.vocabulary)
        {
            return Err(format!(
                "token id {token} is not below the vocabulary of {}",
                self.limits.vocabulary
            ));
        }
        let first = self.rows.len();
        self.rows.extend(
            slice
                .token_ids
                .iter()
                .zip(slice.position..)
                .map(|(&token, position)| Row {
                    token,
                    position,
                    page: slice.pages[(position / size) as usize],
                    slot: (position % size) as usize,
                }),
        );
        let many = task_tokens(self.limits.group);
        for from in (0..slice.token_ids.len()).step_by(many) {
            self.tasks.push(AttentionTask {
                slice: index,
                row: first + from,
                position: slice.position as usize + from,
                tokens: many.min(slice.token_ids.len() - from),
            });
        }
        let end = self.rows.len();
        self.logits
            .extend(end - slice.logits.count(end - first)..end);
        Ok(())
    }

    /// Position after the slice's last token, if context and page table hold it.
    fn check_range(&self, slice: &SequenceSlice<'_>) -> Result<u32, String> {
        let tokens = slice.token_ids.len();
        if tokens == 0 {
            return Err("no tokens".into());
        }
        let context = self.limits.context_length;
        let end = u64::from(slice.position) + tokens as u64;
        if end > u64::from(context) {
            return Err(format!(
                "{tokens} tokens from position {} on exceed the context of {context}",
                slice.position
            ));
        }
        let covered = slice.pages.len() as u64 * u64::from(self.page_size);
        if end > covered {
            return Err(format!(
                "{tokens} tokens from position {} on exceed the page table, which covers {covered}",
                slice.position
            ));
        }
        Ok(end as u32)
    }
}

fn no_page(page: PageIndex, pages: usize) -> String {
    format!("page {} is not below the pool of {pages}", page.0)
}
