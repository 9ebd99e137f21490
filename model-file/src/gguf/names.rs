//! Names of tensors: GGUF's and the canonical ones of Hugging Face.
//!
//! It must not know shapes or which tensors a model needs.

/// Names outside the layers: (GGUF, canonical).
const GLOBAL: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Modules of a layer: (GGUF, canonical), both followed by `.weight` or `.bias`.
const MODULES: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The canonical name of a GGUF tensor; names without one stay as they are.
pub(super) fn canonical(name: &str) -> String {
    translate(name, "blk.", "model.layers.", |pair| (pair.0, pair.1))
}

/// The GGUF name of a canonical one.
pub(crate) fn native(name: &str) -> String {
    translate(name, "model.layers.", "blk.", |pair| (pair.1, pair.0))
}

type Pair = (&'static str, &'static str);

fn translate(name: &str, from: &str, to: &str, order: fn(Pair) -> Pair) -> String {
    let find = |table: &[Pair], wanted: &str| {
        table
            .iter()
            .map(|&pair| order(pair))
            .find(|pair| pair.0 == wanted)
            .map(|pair| pair.1)
    };
    if let Some(found) = find(&GLOBAL, name) {
        return found.into();
    }
    let parts = name.strip_prefix(from).and_then(|rest| {
        let (layer, rest) = rest.split_once('.')?;
        let (module, parameter) = rest.rsplit_once('.')?;
        let plain = !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit());
        let known = plain && matches!(parameter, "weight" | "bias");
        known.then_some((layer, find(&MODULES, module)?, parameter))
    });
    match parts {
        Some((layer, module, parameter)) => format!("{to}{layer}.{module}.{parameter}"),
        None => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::{canonical, native};

    #[test]
    fn names_translate_both_ways() {
        for (gguf, canon) in [
            ("token_embd.weight", "model.embed_tokens.weight"),
            ("output.weight", "lm_head.weight"),
            (
                "blk.7.attn_q.weight",
                "model.layers.7.self_attn.q_proj.weight",
            ),
            (
                "blk.12.attn_k.bias",
                "model.layers.12.self_attn.k_proj.bias",
            ),
            (
                "blk.0.attn_q_norm.weight",
                "model.layers.0.self_attn.q_norm.weight",
            ),
            (
                "blk.0.ffn_down.weight",
                "model.layers.0.mlp.down_proj.weight",
            ),
        ] {
            assert_eq!(canonical(gguf), canon);
            assert_eq!(native(canon), gguf);
        }
        for odd in [
            "blk..attn_q.weight",
            "blk.x.attn_q.weight",
            "blk.0.attn_q",
            "rope_freqs.weight",
        ] {
            assert_eq!(canonical(odd), odd);
        }
    }
}
