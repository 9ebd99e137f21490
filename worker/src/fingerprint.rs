//! The compatibility identity of a loaded model. It must not know who compares it.

use std::fmt::Write as _;

use baton_kv_cache::KvLayout;
use baton_model_file::{Rope, RopePairing, RopeScaling};
use baton_proto::domain::{Fingerprint, PROTOCOL_VERSION};

/// The digests that make a model what it is.
#[derive(Debug, Clone, Copy)]
pub struct Digests {
    /// blake3 of the weights.
    pub weights: [u8; 32],
    /// blake3 of metadata and tensor table.
    pub metadata: [u8; 32],
    /// blake3 of tokenizer and template.
    pub tokenizer: [u8; 32],
}

/// Puts a fingerprint together; `layout_id` and `numerics_id` are the engine's.
pub fn fingerprint(
    digests: &Digests,
    layout: &KvLayout,
    rope: &Rope,
    layout_id: &str,
    numerics_id: &str,
) -> Fingerprint {
    Fingerprint {
        protocol_version: PROTOCOL_VERSION,
        weights_digest: digests.weights,
        metadata_digest: digests.metadata,
        tokenizer_digest: digests.tokenizer,
        kv_dtype: layout.dtype.name().to_owned(),
        page_size: layout.page_size,
        layers: layout.layers,
        kv_heads: layout.kv_heads,
        head_dim: layout.head_dim,
        layout: layout_id.to_owned(),
        rope: rope_text(rope),
        numerics: numerics_id.to_owned(),
    }
}

/// Canonical text of a rotary embedding; floats in their shortest exact form.
fn rope_text(rope: &Rope) -> String {
    let pairing = match rope.pairing {
        RopePairing::Interleaved => "interleaved",
        RopePairing::HalfSplit => "half-split",
    };
    let scaling = match &rope.scaling {
        RopeScaling::None => "none".to_owned(),
        RopeScaling::Linear { factor } => format!("linear({factor})"),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            format!("llama3({factor},{low_freq_factor},{high_freq_factor},{original_context})")
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            attention_factor,
            attention_multiplier,
        } => {
            let mut attention: String =
                attention_factor.map_or("default".into(), |factor| factor.to_string());
            if attention_multiplier.to_bits() != 1.0_f32.to_bits() {
                let _ = write!(attention, "*{attention_multiplier}");
            }
            format!("yarn({factor},{original_context},{beta_fast},{beta_slow},{attention})")
        }
        RopeScaling::Factors(factors) => {
            let mut text = String::from("factors(");
            for factor in factors {
                let _ = write!(text, "{factor},");
            }
            text + ")"
        }
    };
    format!(
        "theta={} dimensions={} pairing={pairing} scaling={scaling}",
        rope.theta, rope.dimensions
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rope_text_tells_scalings_apart() {
        let rope = |scaling| Rope {
            theta: 1e4,
            dimensions: 64,
            pairing: RopePairing::HalfSplit,
            scaling,
        };
        assert_eq!(
            rope_text(&rope(RopeScaling::None)),
            "theta=10000 dimensions=64 pairing=half-split scaling=none"
        );
        let linear = rope_text(&rope(RopeScaling::Linear { factor: 2.5 }));
        assert!(linear.ends_with("scaling=linear(2.5)"), "{linear}");
        let factors = rope_text(&rope(RopeScaling::Factors(vec![1.0, 0.1])));
        assert!(factors.ends_with("scaling=factors(1,0.1,)"), "{factors}");
    }
}
