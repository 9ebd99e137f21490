//! What a model is, independent of the file format it came from.
//!
//! It must not know file formats, tensor data or execution.

/// Architecture families whose execution differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2/3, `SmolLM2`, Mistral (no sliding window).
    Llama,
    /// Qwen2: biases on Q, K and V.
    Qwen2,
    /// Qwen3: norms on each head of Q and K.
    Qwen3,
}

/// How rows of Q and K pair up under rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopePairing {
    /// Dimensions (2i, 2i+1) rotate together: llama-architecture GGUF files.
    Interleaved,
    /// Dimensions (i, i + d/2) rotate together: Hugging Face files and Qwen GGUF files.
    HalfSplit,
}

/// Scaling of rotary frequencies.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// Frequencies as they are.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// Llama 3.1's piecewise scaling.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f32,
        /// Wavelengths above `original_context / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_context / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of pre-training.
        original_context: u32,
    },
    /// `YaRN` (arXiv 2309.00071).
    Yarn {
        /// Extension factor.
        factor: f32,
        /// Context length of pre-training.
        original_context: u32,
        /// Rotations above which a dimension is not interpolated.
        beta_fast: f32,
        /// Rotations below which a dimension is fully interpolated.
        beta_slow: f32,
        /// Multiplier of cos and sin; `None` means `0.1 ln(factor) + 1`.
        attention_factor: Option<f32>,
        /// What GGUF states instead: multiplies that once more; 1 if nothing is stated.
        attention_multiplier: f32,
    },
    /// Explicit divisors per frequency (`rope_freqs.weight`), `head_dim / 2` values.
    Factors(Vec<f32>),
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    /// Base of the frequencies; 10,000 where the file states none.
    pub theta: f32,
    /// Rotated dimensions of each head; always `head_dim`: partial rotation is refused.
    pub dimensions: u32,
    /// Which dimensions rotate together.
    pub pairing: RopePairing,
    /// Frequency scaling.
    pub scaling: RopeScaling,
}

/// Shapes and constants of a model. All sizes have been checked against limits.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Family.
    pub architecture: Architecture,
    /// Name from GGUF metadata if it is fit to print (up to 256 bytes, no control characters), else
    /// the stem of the file or the name of the directory.
    pub name: String,
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u32,
    /// Width of the gated MLP.
    pub intermediate: u32,
    /// Query heads.
    pub heads: u32,
    /// Key/value heads; divides `heads`.
    pub kv_heads: u32,
    /// Width of one head.
    pub head_dim: u32,
    /// Vocabulary (rows of the embedding).
    pub vocabulary: u32,
    /// Longest prompt + completion the model is meant for, in tokens; with `YaRN` the longer of the
    /// stated length and `factor * original_context`.
    pub context_length: u32,
    /// Epsilon of RMS norms.
    pub norm_eps: f32,
    /// Rotary embedding.
    pub rope: Rope,
    /// Whether the output matrix is the embedding.
    pub tied_embeddings: bool,
    /// All ids that end a sequence (file metadata, `generation_config.json`).
    pub eos_ids: Vec<u32>,
}
