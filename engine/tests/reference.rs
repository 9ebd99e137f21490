//! The default model against Hugging Face transformers in float32 on the dequantised weights.
#![allow(missing_docs)]

mod common;

use baton_kv_cache::KvDtype;
use baton_model_file::fixtures::Random;
use common::{PageDealer, Sequence, argmax, engine, load, options, real_model, reference, step};

struct Item {
    name: String,
    prompt: Vec<u32>,
    continuation: Vec<u32>,
    margins: Vec<f64>,
    top_ids: Vec<u32>,
    top_logits: Vec<f64>,
}

fn items() -> Vec<Item> {
    let list = |value: &serde_json::Value| -> Vec<f64> {
        value
            .as_array()
            .expect("a list")
            .iter()
            .map(|x| x.as_f64().expect("a number"))
            .collect()
    };
    let ids = |value: &serde_json::Value| list(value).iter().map(|id| *id as u32).collect();
    reference()["items"]
        .as_array()
        .expect("items")
        .iter()
        .map(|item| Item {
            name: item["name"].as_str().expect("a name").into(),
            prompt: ids(&item["prompt_ids"]),
            continuation: ids(&item["gen_ids"]),
            margins: list(&item["margins"]),
            top_ids: ids(&item["first_top5_ids"]),
            top_logits: list(&item["first_top5_logits"]),
        })
        .collect()
}

/// Largest difference to the reference's gaps between its best token and its next four.
fn gap_error(item: &Item, logits: &[f32]) -> f64 {
    let ours = |i: usize| f64::from(logits[item.top_ids[i] as usize]);
    (1..item.top_ids.len())
        .map(|i| ((ours(i) - ours(0)) - (item.top_logits[i] - item.top_logits[0])).abs())
        .fold(0.0, f64::max)
}

#[test]
fn real_model_agrees_with_the_reference() {
    let tolerance = reference()["tolerance"].clone();
    let largest_gap = tolerance["gap"].as_f64().expect("tolerance.gap");
    let greedy_margin = tolerance["greedy_margin"]
        .as_f64()
        .expect("tolerance.greedy_margin");
    let items = items();
    let model = load(&real_model());
    let pages = 400;
    let mut engine = engine(&model, &options(2, None), 16, pages, KvDtype::Bf16);
    let mut dealer = PageDealer::new(pages, &mut Random::new(7));

    let mut gaps = Vec::new();
    let mut running: Vec<(&Item, Sequence, Vec<f32>)> = Vec::new();
    for item in &items {
        let mut sequence = dealer.sequence(item.prompt.len() + item.continuation.len(), 16);
        let mut last = Vec::new();
        for chunk in item.prompt.chunks(1024) {
            last = step(&mut engine, &mut [(&mut sequence, chunk)]).remove(0);
        }
        let gap = gap_error(item, &last);
        println!("{}: gap error {gap:.3}", item.name);
        gaps.push(gap);
        running.push((item, sequence, last));
    }

    // Teacher-forced: all items decode together, each fed the reference's own tokens.
    let longest = items
        .iter()
        .map(|item| item.continuation.len())
        .max()
        .expect("items");
    let mut checked = 0_u32;
    let mut disagreed: f64 = 0.0;
    let mut squares = 0.0;
    for at in 0..longest {
        for (item, _, logits) in running
            .iter()
            .filter(|(item, ..)| at < item.continuation.len())
        {
            let (ours, theirs) = (argmax(logits), item.continuation[at] as usize);
            checked += 1;
            let others = logits.iter().enumerate().filter(|(id, _)| *id != theirs);
            let second = others.fold(f32::NEG_INFINITY, |most, (_, logit)| logit.max(most));
            squares += (f64::from(logits[theirs] - second) - item.margins[at]).powi(2);
            if ours != theirs {
                disagreed = disagreed.max(item.margins[at]);
                assert!(
                    item.margins[at] < greedy_margin,
                    "{} step {at}: token {ours} instead of {theirs}, whose margin is {}",
                    item.name,
                    item.margins[at]
                );
            }
        }
        running.retain(|(item, ..)| at + 1 < item.continuation.len());
        let mut parts: Vec<(&mut Sequence, &[u32])> = running
            .iter_mut()
            .map(|(item, sequence, _)| (sequence, &item.continuation[at..=at]))
            .collect();
        let rows = step(&mut engine, &mut parts);
        running
            .iter_mut()
            .zip(rows)
            .for_each(|((.., logits), row)| *logits = row);
    }
    assert_eq!(
        checked as usize,
        items
            .iter()
            .map(|item| item.continuation.len())
            .sum::<usize>()
    );

    gaps.sort_by(f64::total_cmp);
    let (median, largest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!(
        "gap error: median {median:.3}, largest {largest:.3}; {checked} greedy tokens, \
              largest margin among those that differ {disagreed:.3}, rms error of margins {:.4}",
        (squares / f64::from(checked)).sqrt()
    );
    assert!(median <= 0.21, "median gap error {median}");
    assert!(largest <= largest_gap, "largest gap error {largest}");
}
