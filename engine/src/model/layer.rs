//! The layer that all families share: pre-norm attention with grouped heads, then a gated MLP.
//! What a family does to its heads before rotation is the family's own file.

use super::{Operations, WeightSource};

/// Weights of one layer.
pub(crate) struct LayerWeights<M, V> {
    attention_norm: V,
    /// Q, then K, then V.
    qkv: M,
    heads: HeadParts<V>,
    attention_output: M,
    mlp_norm: V,
    /// The pair of gate and up.
    gate_up: M,
    down: M,
}

/// What happens to Q, K and V between projection and rotation.
pub(crate) enum HeadParts<V> {
    /// Nothing.
    Plain,
    /// A bias on all of Q, K and V, in this order.
    Bias(V),
    /// A norm over each head of Q and of K.
    Norms {
        /// Weight of Q's norm: `head_dim` values.
        query: V,
        /// Weight of K's norm: `head_dim` values.
        key: V,
    },
}

/// A family's loader of [`HeadParts`]; the closure names a tensor of the layer.
pub(super) type LoadHeadParts<S> =
    fn(
        &mut S,
        &dyn Fn(&str) -> String,
    ) -> Result<HeadParts<<S as WeightSource>::Vector>, <S as WeightSource>::Error>;

/// Loads layer `index`.
pub(super) fn load<S: WeightSource>(
    source: &mut S,
    index: u32,
    head_parts: LoadHeadParts<S>,
) -> Result<LayerWeights<S::Matrix, S::Vector>, S::Error> {
    let name = |part: &str| format!("model.layers.{index}.{part}");
    let weight = |part: &str| name(&format!("{part}.weight"));
    let qkv = ["q", "k", "v"].map(|part| weight(&format!("self_attn.{part}_proj")));
    let gate_up = ["gate", "up"].map(|part| weight(&format!("mlp.{part}_proj")));
    let attention_output = [weight("self_attn.o_proj")];
    let down = [weight("mlp.down_proj")];
    Ok(LayerWeights {
        attention_norm: source.vector(&[weight("input_layernorm")])?,
        qkv: source.matrix(&qkv)?,
        heads: head_parts(source, &name)?,
        attention_output: source.matrix(&attention_output)?,
        mlp_norm: source.vector(&[weight("post_attention_layernorm")])?,
        gate_up: source.pair(&gate_up)?,
        down: source.matrix(&down)?,
    })
}

/// The matrix of a layer's first product.
pub(super) fn first<M, V>(layer: &LayerWeights<M, V>) -> &M {
    &layer.qkv
}

/// Runs layer `index`; `then` is the matrix of the first product after it.
pub(super) fn run<'w, O: Operations<'w>>(
    operations: &mut O,
    index: u32,
    layer: &'w LayerWeights<O::Matrix, O::Vector>,
    then: &'w O::Matrix,
    on_layer: &mut dyn FnMut(u32),
) {
    operations.norm(&layer.attention_norm, &layer.qkv);
    operations.project_heads(&layer.qkv, &layer.attention_output);
    operations.rotate_and_store(index, &layer.heads);
    on_layer(index);
    operations.attend(index, &layer.attention_output);
    operations.project(&layer.attention_output, &layer.gate_up);
    operations.norm(&layer.mlp_norm, &layer.gate_up);
    operations.gated_mlp(&layer.gate_up, &layer.down, then);
}
