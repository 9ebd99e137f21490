//! Qwen2: biases on Q, K and V.

use super::{HeadParts, WeightSource};

/// The three biases as one vector.
pub(super) fn head_parts<S: WeightSource>(
    source: &mut S,
    name: &dyn Fn(&str) -> String,
) -> Result<HeadParts<S::Vector>, S::Error> {
    let names = ["q", "k", "v"].map(|part| name(&format!("self_attn.{part}_proj.bias")));
    Ok(HeadParts::Bias(source.vector(&names)?))
}
