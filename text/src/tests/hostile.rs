//! Damaged and hostile tokenizers: an error or a working model, never a panic.

use baton_model_file::{GgufTokenizer, TokenizerSource};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::hugging_face::sentence_piece;
use super::{config, message, tiny_metadata};
use crate::TextModel;

fn exercise(source: TokenizerSource) {
    let mut metadata = tiny_metadata(&[]);
    metadata.tokenizer = source;
    (metadata.bos_id, metadata.eos_id) = (None, None);
    let Ok(model) = TextModel::new(&metadata, &config()) else {
        return;
    };
    for text in ["hi the 12 日本 🙂", "<s>hi</s>", "a\u{301}\0"] {
        for special in [false, true] {
            if let Ok(ids) = model.encode(text, special) {
                // An unknown-token id may be a hole; decoding says so.
                let _ = model.decode(&ids, true);
            }
        }
    }
    let _ = model.encode_chat(&[message("user", "<s>hi")]);
}

/// Puts `value` at the `at`-th place of the tree, counted in document order.
fn replace(tree: &mut Value, at: &mut usize, value: &Value) {
    if *at == 0 {
        *tree = value.clone();
        *at = usize::MAX;
        return;
    }
    *at -= 1;
    match tree {
        Value::Array(items) => {
            for item in items {
                if *at != usize::MAX {
                    replace(item, at, value);
                }
            }
        }
        Value::Object(items) => {
            for item in items.values_mut() {
                if *at != usize::MAX {
                    replace(item, at, value);
                }
            }
        }
        _ => {}
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["", ""])),
        Just(json!("")),
        Just(json!("▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁")),
        Just(json!({"type": "Replace", "pattern": {"Regex": "(a*)*b"}, "content": "x"})),
        Just(
            json!({"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": false})
        ),
        Just(json!({"type": "Strip", "content": " ", "start": 9_999_999_999u64, "stop": 0})),
        any::<i64>().prop_map(|number| json!(number)),
        (0u32..600).prop_map(|number| json!(number)),
        any::<bool>().prop_map(|flag| json!(flag)),
        "[a-z▁<> ]{0,4}".prop_map(|text| json!(text)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn a_damaged_tokenizer_json_never_panics(
        changes in prop::collection::vec((0usize..400, any_value()), 1..4),
    ) {
        let mut tree = sentence_piece();
        for (mut at, value) in changes {
            replace(&mut tree, &mut at, &value);
        }
        exercise(TokenizerSource::TokenizerJson(tree.to_string()));
    }

    #[test]
    fn an_arbitrary_gguf_tokenizer_never_panics(
        tokens in prop::collection::vec("[a-cĠ<>日]{0,4}", 0..40),
        token_types in prop::collection::vec(-1i32..9, 0..40),
        merges in prop::collection::vec("[a-cĠ]{0,3} ?[a-cĠ]{0,3}", 0..6),
        pre in prop_oneof![Just("smollm"), Just("llama-bpe"), Just("qwen2")],
    ) {
        let mut types = token_types;
        types.resize(tokens.len(), 1);
        exercise(TokenizerSource::Gguf(GgufTokenizer {
            model: "gpt2".into(),
            pre: Some(pre.into()),
            tokens,
            token_types: types,
            merges,
        }));
    }

    #[test]
    fn text_that_is_not_a_tokenizer_json_is_refused(text in "\\PC{0,60}") {
        exercise(TokenizerSource::TokenizerJson(text));
    }
}
