//! Qwen3: norms over each head of Q and of K.

use super::{HeadParts, WeightSource};

/// The two norms.
pub(super) fn head_parts<S: WeightSource>(
    source: &mut S,
    name: &dyn Fn(&str) -> String,
) -> Result<HeadParts<S::Vector>, S::Error> {
    let query = source.vector(&[name("self_attn.q_norm.weight")])?;
    let key = source.vector(&[name("self_attn.k_norm.weight")])?;
    Ok(HeadParts::Norms { query, key })
}
