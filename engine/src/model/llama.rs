//! Llama 2 and 3, `SmolLM2`, Mistral: heads go straight from projection to rotation.

use super::{HeadParts, WeightSource};

/// Nothing beyond the shared layer.
#[expect(clippy::unnecessary_wraps, reason = "other families load tensors here")]
pub(super) fn head_parts<S: WeightSource>(
    _: &mut S,
    _: &dyn Fn(&str) -> String,
) -> Result<HeadParts<S::Vector>, S::Error> {
    Ok(HeadParts::Plain)
}
