//! The products of a step alone: their count, their limits, and that they leave no trace.
#![allow(missing_docs)]

mod common;

use baton_engine::EngineError;
use baton_kv_cache::KvDtype;
use baton_model_file::{
    TensorType,
    fixtures::{Random, TinyModel},
};
use common::{PageDealer, bits, engine, load, options, step};

fn model() -> TinyModel {
    TinyModel {
        weights: vec![TensorType::Q4_1, TensorType::Q8_0, TensorType::F16],
        ..TinyModel::default()
    }
}

#[test]
fn work_is_that_of_the_shapes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, shape) = (folder.path().join("m.gguf"), model());
    shape.write_gguf(&path).expect("written");
    let model = load(&path);
    let (hidden, wide) = (u64::from(shape.hidden), u64::from(shape.intermediate));
    let heads = u64::from(shape.heads * shape.head_dim);
    let kv_heads = u64::from(shape.kv_heads * shape.head_dim);
    let layer = hidden * (heads + 2 * kv_heads) + heads * hidden + 3 * hidden * wide;
    let layers = u64::from(shape.layers) * layer;
    let output = hidden * u64::from(shape.vocabulary);

    let work = model.product_work(7, 3);
    assert_eq!(work.operations, 2 * (7 * layers + 3 * output));
    assert_eq!(
        work.weight_bytes,
        model.product_work(1, 1).weight_bytes,
        "each matrix once"
    );
    let without = model.product_work(7, 0);
    assert_eq!(without.operations, 2 * 7 * layers);
    assert!(
        without.weight_bytes < work.weight_bytes,
        "the output matrix is not read"
    );
}

#[test]
fn products_alone_keep_the_limits_and_change_no_later_step() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.gguf");
    model().write_gguf(&path).expect("written");
    let options = options(2, None);
    let mut engine = engine(&load(&path), &options, 16, 8, KvDtype::Bf16);
    let mut pages = PageDealer::new(8, &mut Random::new(1));
    let mut sequence = pages.sequence(40, 16);
    let tokens: Vec<u32> = (0..20).collect();
    let mut again = sequence.clone();
    let before = step(&mut engine, &mut [(&mut sequence, &tokens)]);

    engine
        .run_products(options.max_step_tokens, options.max_step_rows)
        .expect("the largest");
    engine.run_products(1, 0).expect("no logits");
    for (tokens, rows, wrong) in [
        (options.max_step_tokens + 1, 1, "tokens"),
        (1, options.max_step_rows + 1, "logits rows"),
    ] {
        let error = engine.run_products(tokens, rows).expect_err("too many");
        assert!(
            matches!(error, EngineError::BatchTooLarge { what, .. } if what == wrong),
            "{error}"
        );
    }

    let after = step(&mut engine, &mut [(&mut again, &tokens)]);
    assert_eq!(bits(&before[0]), bits(&after[0]));
}
