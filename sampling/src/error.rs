//! What can be wrong with sampling parameters. Logits have an error of their own, beside the sampler.

/// A parameter that was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// A field is outside its range.
    #[error("{field} is {value}, allowed: {allowed}")]
    OutOfRange {
        /// Name of the field as clients write it.
        field: &'static str,
        /// The value that was given.
        value: String,
        /// The range or set that is allowed.
        allowed: String,
    },
}
