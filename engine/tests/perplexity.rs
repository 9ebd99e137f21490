//! Perplexity of the default model against Hugging Face transformers in float32 on the dequantised
//! weights, for each element type of the pages.
#![allow(missing_docs)]

mod common;

use std::{path::Path, sync::Arc};

use baton_engine::{CpuModel, LogitRows};
use baton_kv_cache::KvDtype;
use baton_model_file::fixtures::Random;
use common::{PageDealer, engine, load, options, real_model, reference, run, step_with};

const PAGE_SIZE: u32 = 16;
/// Tokens of one step: bounds the logits in memory.
const CHUNK: usize = 64;

struct Window {
    tokens: Vec<u32>,
    mean_nll: f64,
}

fn windows() -> Vec<Window> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/reference/constitution.ids.json");
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let ids: Vec<u32> = serde_json::from_slice(&text).expect("a list of token ids");
    reference()["perplexity"]["windows"]
        .as_array()
        .expect("windows")
        .iter()
        .map(|window| {
            let number = |name: &str| window[name].as_u64().expect("a number") as usize;
            let start = number("start");
            Window {
                tokens: ids[start..start + number("tokens")].to_vec(),
                mean_nll: window["mean_nll"].as_f64().expect("a number"),
            }
        })
        .collect()
}

/// Negative logarithm of the probability that `logits` give to `token`.
fn nll(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    // Neighbours first: short chains of additions, and no f64 for each of a vocabulary.
    let sum: f64 = logits
        .chunks(64)
        .map(|part| f64::from(part.iter().map(|x| (x - largest).exp()).sum::<f32>()))
        .sum();
    sum.ln() - f64::from(logits[token as usize] - largest)
}

/// Mean negative log-likelihood of a window, run alone from position 0.
fn mean_nll(model: &Arc<CpuModel>, tokens: &[u32], dtype: KvDtype) -> f64 {
    let pages = (tokens.len() as u32).div_ceil(PAGE_SIZE);
    let mut engine = engine(model, &options(2, None), PAGE_SIZE, pages, dtype);
    let mut sequence =
        PageDealer::new(pages, &mut Random::new(8)).sequence(tokens.len(), PAGE_SIZE);
    let mut sum = 0.0;
    for chunk in tokens.chunks(CHUNK) {
        let next = sequence.position as usize + 1;
        let rows = step_with(
            &mut engine,
            &mut [(&mut sequence, chunk)],
            &[LogitRows::All],
        );
        sum += rows
            .iter()
            .zip(&tokens[next..])
            .map(|(row, token)| nll(row, *token))
            .sum::<f64>();
    }
    sum / (tokens.len() - 1) as f64
}

/// Perplexity over all windows, relative to the reference's.
fn relative_error(model: &Arc<CpuModel>, windows: &[Window], dtype: KvDtype) -> f64 {
    let expected = reference()["perplexity"]["perplexity"]
        .as_f64()
        .expect("a perplexity");
    let mut sum = 0.0;
    let mut largest: f64 = 0.0;
    for window in windows {
        let nll = mean_nll(model, &window.tokens, dtype);
        largest = largest.max((nll - window.mean_nll).abs());
        sum += nll;
    }
    let perplexity = (sum / windows.len() as f64).exp();
    let error = perplexity / expected - 1.0;
    println!(
        "{}: perplexity {perplexity:.4}, reference {expected:.4}, {:+.2}%; \
         largest difference of a window's mean {largest:.4}",
        dtype.name(),
        error * 100.0
    );
    error
}

/// Largest difference to the reference's gaps between its best token after a prompt and its next four,
/// per prompt, sorted.
fn first_step_gaps(model: &Arc<CpuModel>, dtype: KvDtype) -> Vec<f64> {
    let numbers = |value: &serde_json::Value| -> Vec<f64> {
        let list = value.as_array().expect("a list").iter();
        list.map(|x| x.as_f64().expect("a number")).collect()
    };
    let ids = |value: &serde_json::Value| -> Vec<u32> {
        numbers(value).into_iter().map(|id| id as u32).collect()
    };
    let reference = reference();
    let items = reference["items"].as_array().expect("items");
    let mut gaps: Vec<f64> = items
        .iter()
        .map(|item| {
            let prompt = ids(&item["prompt_ids"]);
            let pages = (prompt.len() as u32).div_ceil(PAGE_SIZE);
            let mut engine = engine(model, &options(2, None), PAGE_SIZE, pages, dtype);
            let mut sequence =
                PageDealer::new(pages, &mut Random::new(9)).sequence(prompt.len(), PAGE_SIZE);
            let rows = run(&mut engine, &mut sequence, &prompt, 512);
            let logits = rows.last().expect("a prompt");
            let top = ids(&item["first_top5_ids"]);
            let theirs = numbers(&item["first_top5_logits"]);
            let ours = |i: usize| f64::from(logits[top[i] as usize]);
            (1..top.len())
                .map(|i| ((ours(i) - ours(0)) - (theirs[i] - theirs[0])).abs())
                .fold(0.0, f64::max)
        })
        .collect();
    gaps.sort_by(f64::total_cmp);
    gaps
}

#[test]
fn perplexity_is_the_references_whatever_the_pages_hold() {
    let (model, windows) = (load(&real_model()), windows());
    for (dtype, bound) in [
        (KvDtype::Bf16, 0.005),
        (KvDtype::F16, 0.005),
        (KvDtype::Int8, 0.015),
    ] {
        let error = relative_error(&model, &windows, dtype);
        assert!(error.abs() < bound, "{}: {error}", dtype.name());
    }
}

#[test]
fn gaps_after_prompts_with_int8_pages_stay_within_the_references_tolerance() {
    let gaps = first_step_gaps(&load(&real_model()), KvDtype::Int8);
    let (median, largest) = (gaps[gaps.len() / 2], gaps[gaps.len() - 1]);
    println!("int8: gap error median {median:.3}, largest {largest:.3}");
    let limit = reference()["tolerance"]["gap"].as_f64().expect("a gap");
    assert!(largest <= limit, "largest gap error {largest}");
}
