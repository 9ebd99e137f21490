//! What each family of models computes, written once over a handful of fused operations.
//!
//! A family is one file: which parts its layers have, and in which order they run. It must not know
//! how a backend keeps weights or divides work.

mod layer;
mod llama;
mod qwen2;
mod qwen3;

use baton_model_file::Architecture;

pub(crate) use layer::{HeadParts, LayerWeights};

/// All weights in a backend's form: matrices `M`, vectors `V`.
pub(crate) struct Weights<M, V> {
    /// Token embedding: vocabulary × hidden.
    pub(crate) embedding: M,
    /// Layers, first to last.
    pub(crate) layers: Vec<LayerWeights<M, V>>,
    /// Last norm.
    pub(crate) norm: V,
    /// Output matrix; `None` if it is the embedding.
    pub(crate) output: Option<M>,
}

/// Where a family's loader gets tensors from, by canonical name.
pub(crate) trait WeightSource {
    /// A backend's matrix.
    type Matrix;
    /// A backend's vector.
    type Vector;
    /// What can go wrong.
    type Error;
    /// One matrix whose outputs are those of the named tensors, in order.
    fn matrix(&mut self, names: &[String]) -> Result<Self::Matrix, Self::Error>;
    /// One matrix whose outputs are silu(first × input) · (second × input).
    fn pair(&mut self, names: &[String; 2]) -> Result<Self::Matrix, Self::Error>;
    /// One vector that is the named tensors, in order.
    fn vector(&mut self, names: &[String]) -> Result<Self::Vector, Self::Error>;
}

/// Fused operations over the tokens of one step. Each hands its result to the next: the residual
/// stream, the normed input of the next product, the heads and the last product are the backend's.
/// `then` is the matrix of the product after, which a backend may fetch meanwhile. Weights outlive the step, so
/// that a backend may put operations off until a result is needed: that of the page writes at once.
pub(crate) trait Operations<'w> {
    /// A backend's matrix.
    type Matrix: 'w;
    /// A backend's vector.
    type Vector: 'w;
    /// Stream = embedding of each token; prepares rotations of each position.
    fn embed(&mut self, embedding: &'w Self::Matrix);
    /// Stream += last product; input of `next` = norm of the stream.
    fn norm(&mut self, weight: &'w Self::Vector, next: &'w Self::Matrix);
    /// Heads = Q, K and V of the input.
    fn project_heads(&mut self, qkv: &'w Self::Matrix, then: &'w Self::Matrix);
    /// Applies `parts` to the heads, rotates Q and K, writes K and V into the pages.
    fn rotate_and_store(&mut self, layer: u32, parts: &'w HeadParts<Self::Vector>);
    /// Input of `next` = attention of Q over the pages.
    fn attend(&mut self, layer: u32, next: &'w Self::Matrix);
    /// Last product = `weights` × input.
    fn project(&mut self, weights: &'w Self::Matrix, then: &'w Self::Matrix);
    /// Last product = `down` × (silu(gate × input) · (up × input)), where `gate_up` is the pair of both.
    fn gated_mlp(
        &mut self,
        gate_up: &'w Self::Matrix,
        down: &'w Self::Matrix,
        then: &'w Self::Matrix,
    );
    /// Logits = `output` × norm of (stream + last product), of the requested rows alone.
    fn logits(&mut self, norm: &'w Self::Vector, output: &'w Self::Matrix);
}

/// Loads the weights of a model of `layers` layers.
pub(crate) fn load<S: WeightSource>(
    architecture: Architecture,
    layers: u32,
    tied: bool,
    source: &mut S,
) -> Result<Weights<S::Matrix, S::Vector>, S::Error> {
    let parts = match architecture {
        Architecture::Llama => llama::head_parts,
        Architecture::Qwen2 => qwen2::head_parts,
        Architecture::Qwen3 => qwen3::head_parts,
    };
    let embedding = source.matrix(&["model.embed_tokens.weight".into()])?;
    let layers = (0..layers)
        .map(|index| layer::load(source, index, parts))
        .collect::<Result<_, _>>()?;
    let norm = source.vector(&["model.norm.weight".into()])?;
    let output = if tied {
        None
    } else {
        Some(source.matrix(&["lm_head.weight".into()])?)
    };
    Ok(Weights {
        embedding,
        layers,
        norm,
        output,
    })
}

/// One step over all layers; `on_layer(l)` follows the page writes of layer `l`.
pub(crate) fn forward<'w, O: Operations<'w>>(
    weights: &'w Weights<O::Matrix, O::Vector>,
    operations: &mut O,
    on_layer: &mut dyn FnMut(u32),
) {
    let output = weights.output.as_ref().unwrap_or(&weights.embedding);
    operations.embed(&weights.embedding);
    for (index, layer) in weights.layers.iter().enumerate() {
        let then = weights.layers.get(index + 1).map_or(output, layer::first);
        layer::run(operations, index as u32, layer, then, on_layer);
    }
    operations.logits(&weights.norm, output);
}
