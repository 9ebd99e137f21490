//! Working memory of an engine, allocated once for its largest step.
//!
//! It must not know which operation uses what when.

use std::io;

use baton_model_file::ModelConfig;

use super::{
    attention,
    blocks::Blocks,
    lanes::LANES,
    matmul::{ActivationForm, Activations},
    memory::{self, Arena},
    plan::Limits,
    shared_rows::Rows,
    threads::PerThread,
};

/// Rows of all tokens of a step, and working memory of each thread.
pub(super) struct Buffers {
    /// Residual stream: tokens × hidden.
    pub(super) stream: Rows,
    /// Last product, to be added to the stream: few tokens × hidden.
    pub(super) product: Rows,
    /// Q, K and V: tokens × (heads + 2 KV heads) × head width. When the layers are done, wanted rows ×
    /// vocabulary of logits, without padding: nobody needs both at once, and both are large.
    pub(super) heads: Rows,
    /// Results of attention: tokens × heads × head width.
    pub(super) attended: Rows,
    /// Of attention divided by spans: spans × heads parts of a row.
    pub(super) parts: Rows,
    /// Gated values: few tokens × intermediate.
    pub(super) gated: Rows,
    /// Rotation table of each token's position.
    pub(super) rotations: Rows,
    /// Input of the next product: few tokens, or wanted rows.
    pub(super) activations: Activations,
    /// Of each thread.
    pub(super) scratch: PerThread<Scratch>,
}

/// Working memory of one thread.
pub(super) struct Scratch {
    /// One row of the widest input of a product, in whole vectors.
    pub(super) row: Vec<f32>,
    /// One head before and after its norm, in whole vectors; padding is zero.
    pub(super) head: [Vec<f32>; 2],
    /// For attention.
    pub(super) attention: attention::Scratch,
    /// For blocks of rows.
    pub(super) block: BlockRows,
}

/// What a thread needs of the rows of a block. It stays in the second-level cache from block to block.
pub(super) struct BlockRows {
    /// Input of the next product.
    pub(super) activations: Activations,
    /// Last product, to be added to the stream.
    pub(super) product: Rows,
    /// Gated values.
    pub(super) gated: Rows,
}

/// Columns of the widest input of a layer's product.
pub(super) fn widest_input(config: &ModelConfig) -> usize {
    let queries = config.heads * config.head_dim;
    config.hidden.max(config.intermediate).max(queries) as usize
}

impl Buffers {
    /// Buffers for steps of so many tokens and wanted rows.
    ///
    /// # Errors
    /// The system refuses the memory.
    pub(super) fn new(
        config: &ModelConfig,
        forms: ActivationForm,
        limits: &Limits,
    ) -> io::Result<Self> {
        let (max_tokens, max_logits) = (limits.max_tokens, limits.max_logits);
        let size = |value: u32| value as usize;
        let (hidden, intermediate) = (size(config.hidden), size(config.intermediate));
        let (queries, width) = (size(config.heads * config.head_dim), size(config.head_dim));
        let heads = size((config.heads + 2 * config.kv_heads) * config.head_dim);
        let widest = widest_input(config);
        let padded = |width: usize| vec![0.0; width.next_multiple_of(LANES)];
        let group = size(config.heads / config.kv_heads);
        let mut arena = Arena::with_room(memory::SLAB_BYTES);
        let mut rows = |count, columns| Rows::within(&mut arena, count, columns, 0);
        let few = Blocks::most_without(max_tokens, limits.threads, widest);
        let block = Blocks::most_of_one(max_tokens, limits.threads, widest);
        let logits = max_logits * size(config.vocabulary);
        Ok(Self {
            stream: rows(max_tokens, hidden)?,
            product: rows(few, hidden)?,
            attended: rows(max_tokens, queries)?,
            rotations: rows(max_tokens, 2 * size(config.rope.dimensions))?,
            gated: rows(few, intermediate)?,
            heads: Rows::within(&mut arena, max_tokens, heads, logits)?,
            parts: Rows::within(
                &mut arena,
                limits.max_spans() * size(config.heads),
                attention::part_values(width),
                0,
            )?,
            activations: Activations::within(&mut arena, few.max(max_logits), widest, forms)?,
            scratch: PerThread::new(limits.threads, || {
                Ok::<_, io::Error>(Scratch {
                    row: padded(widest),
                    head: [padded(width), padded(width)],
                    attention: attention::Scratch::new(width, group),
                    block: BlockRows {
                        activations: Activations::within(&mut arena, block, widest, forms)?,
                        product: Rows::within(&mut arena, block, hidden, 0)?,
                        gated: Rows::within(&mut arena, block, intermediate, 0)?,
                    },
                })
            })?,
        })
    }
}
