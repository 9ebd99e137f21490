//! From Q, K and V of a product to rotated queries and pages, token by token.
//!
//! It must not know which thread has which token.

use std::ops::Range;

use super::super::{
    elementwise,
    model::CpuModel,
    pages::{Pages, TokenHeads},
    plan::Row,
    shared_rows::SharedRows,
};
use crate::{Isa, model::HeadParts};

/// Q, K and V of single tokens on their way to rotated queries and pages.
#[derive(Clone, Copy)]
pub(super) struct HeadStore<'a> {
    pub(super) model: &'a CpuModel,
    pub(super) pages: &'a Pages,
    pub(super) isa: Isa,
    pub(super) layer: u32,
    pub(super) parts: &'a HeadParts<Vec<f32>>,
}

impl HeadStore<'_> {
    /// Finishes the queries of the rows in `range` in place and writes their K and V into their slots.
    ///
    /// # Safety
    /// The rows and their slots belong to the caller alone, and nobody writes the tables.
    pub(super) unsafe fn run(
        &self,
        rows: &[Row],
        range: Range<usize>,
        heads: SharedRows<'_>,
        tables: SharedRows<'_>,
        scratch: &mut [Vec<f32>; 2],
    ) {
        let mut at = range.start;
        while at < range.end {
            let count = rows[at].neighbours(&rows[at + 1..range.end]);
            // SAFETY: the caller's promise.
            unsafe { self.rows(&rows[at..at + count], at, heads, tables, scratch) };
            at += count;
        }
    }

    /// Finishes the queries of one or two `rows` from number `first` on in place and writes their K
    /// and V into the rows' slots, which are neighbours.
    ///
    /// # Safety
    /// The rows and their slots belong to the caller alone, and nobody writes the tables.
    unsafe fn rows(
        &self,
        rows: &[Row],
        first: usize,
        heads: SharedRows<'_>,
        tables: SharedRows<'_>,
        scratch: &mut [Vec<f32>; 2],
    ) {
        let mut tokens = [TokenHeads::default(); 2];
        for (at, token) in (first..first + rows.len()).zip(&mut tokens) {
            // SAFETY: the caller's promise.
            *token = unsafe { self.finish(heads.row_mut(at), tables.row(at), scratch) };
        }
        let slot = (rows[0].page, rows[0].slot);
        // SAFETY: the caller's promise.
        unsafe {
            self.pages
                .write(self.isa, self.layer, slot, &tokens[..rows.len()]);
        }
    }

    /// Biases, norms and rotates one token's heads and scales its queries; returns its K and V.
    fn finish<'a>(
        &self,
        heads: &'a mut [f32],
        table: &[f32],
        scratch: &mut [Vec<f32>; 2],
    ) -> TokenHeads<'a> {
        let config = &self.model.config;
        let (width, kv_heads) = (config.head_dim as usize, config.kv_heads as usize);
        let queries = config.heads as usize * width;
        let heads = &mut heads[..queries + 2 * kv_heads * width];
        if let HeadParts::Bias(bias) = self.parts {
            heads
                .iter_mut()
                .zip(bias)
                .for_each(|(value, bias)| *value += bias);
        }
        let (queries, keys_values) = heads.split_at_mut(queries);
        let (keys, values) = keys_values.split_at_mut(kv_heads * width);
        if let HeadParts::Norms { query, key } = self.parts {
            for (heads, weight) in [(&mut *queries, query), (&mut *keys, key)] {
                for head in heads.chunks_exact_mut(width) {
                    self.norm(head, weight, scratch);
                }
            }
        }
        let rotations = &self.model.rotations;
        let table = &table[..rotations.table_len()];
        let scale = 1.0 / (width as f32).sqrt();
        rotations.rotate(self.isa, table, queries, width, scale);
        rotations.rotate(self.isa, table, keys, width, 1.0);
        TokenHeads { keys, values }
    }

    fn norm(&self, head: &mut [f32], weight: &[f32], [input, out]: &mut [Vec<f32>; 2]) {
        let epsilon = self.model.config.norm_eps;
        input[..head.len()].copy_from_slice(head);
        elementwise::add_and_norm(self.isa, input, None, weight, head.len(), epsilon, out);
        head.copy_from_slice(&out[..head.len()]);
    }
}
