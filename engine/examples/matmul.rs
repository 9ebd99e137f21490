//! Speed of the matrix products, beside the machine's own ceilings measured in the same run.
//!
//! `cargo run --release -p baton-engine --example matmul [forms|kinds|model] [threads]`
//!
//! `forms`: packing and quantising. `kinds`: GOP/s of each weight type and instruction set on the default model's shapes. `model`: all
//! products of the default model, as tokens per second and as shares of the ceilings.
#![allow(unsafe_code)] // A product's contract is disjoint outputs and quantised rows.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use baton_engine::Isa;
use baton_engine::cpu::ceilings::{Arithmetic, ReadCeiling};
use baton_engine::cpu::matmul::{ActivationForm, Activations, OutputView, PackedMatrix, matmul};
use baton_model_file::TensorType;

/// Output × input features of a layer: Q+K+V, attention output, gate+up, down.
const LAYER: [(usize, usize); 4] = [(960, 576), (576, 576), (3072, 576), (576, 1536)];
const LAYERS: usize = 30;
const VOCABULARY: usize = 49_152;
const BUDGET: Duration = Duration::from_millis(60);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = |name: &str| arguments.is_empty() || arguments.iter().any(|a| a == name);
    let threads = arguments.iter().find_map(|a| a.parse().ok()).unwrap_or(2);
    let int8 = Arithmetic::Int8.measure(1) / 1e9;
    println!("int8 ceiling, 1 thread: {int8:.0} GOP/s");
    let memory = ReadCeiling::new(512 << 20).expect("memory to read");
    for megabytes in [16, 96, 512] {
        let rate = memory.measure(megabytes << 20, 1) / 1e9;
        println!("read of {megabytes} MiB, 1 thread: {rate:.1} GB/s");
    }
    drop(memory);
    if wanted("forms") {
        forms();
    }
    if wanted("kinds") {
        kinds();
    }
    if wanted("model") {
        for threads in 1..=threads {
            model(threads);
        }
    }
}

/// Weights of any bytes with finite scales: speed does not depend on values.
fn weights(kind: TensorType, rows: usize, columns: usize) -> PackedMatrix {
    let blocks = rows * columns / kind.block_size();
    let mut data: Vec<u8> = (0..blocks * kind.block_bytes())
        .map(|i| (i * 31 % 59) as u8)
        .collect();
    for value in data.iter_mut().skip(1).step_by(2) {
        *value &= 0x3f;
    }
    PackedMatrix::pack(kind, rows, columns, &data).expect("a fitting shape")
}

fn activations(isa: Isa, tokens: usize, columns: usize, form: ActivationForm) -> Activations {
    let values: Vec<f32> = (0..tokens * columns)
        .map(|i| (i % 97) as f32 - 48.0)
        .collect();
    let mut x = Activations::new(tokens, columns, form);
    x.quantize(isa, form, 0..tokens, columns, &values);
    x
}

/// Least seconds of `work` within the budget: what else runs on the machine only adds time.
fn best_time(mut work: impl FnMut()) -> f64 {
    work();
    let start = Instant::now();
    let mut times = Vec::new();
    while times.len() < 5 || start.elapsed() < BUDGET {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    times[0]
}

/// Speed of packing weights and of quantising activations.
fn forms() {
    let data = vec![0x11; 3072 * 576 / 32 * 20];
    let seconds = best_time(|| {
        black_box(PackedMatrix::pack(TensorType::Q4_1, 3072, 576, &data).expect("a fitting shape"));
    });
    println!(
        "packing Q4_1: {:.0} MB/s",
        data.len() as f64 / seconds / 1e6
    );
    let values: Vec<f32> = (0..64 * 1536).map(|i| (i % 97) as f32 - 48.0).collect();
    let form = ActivationForm {
        integer: true,
        float: false,
    };
    let mut x = Activations::new(64, 1536, form);
    for &isa in Isa::available() {
        let seconds = best_time(|| x.quantize(isa, form, 0..64, 1536, &values));
        let rate = values.len() as f64 / seconds / 1e9;
        println!("quantising, {isa:?}: {rate:.2} G values/s");
    }
}

fn kinds() {
    const TOKENS: [usize; 5] = [1, 4, 16, 64, 512];
    println!("GOP/s, 1 thread, one layer's products; tokens {TOKENS:?}");
    for kind in [
        TensorType::Q4_0,
        TensorType::Q4_1,
        TensorType::Q5_0,
        TensorType::Q5_1,
        TensorType::Q8_0,
        TensorType::Q4_K,
        TensorType::Q5_K,
        TensorType::Q6_K,
        TensorType::BF16,
        TensorType::F16,
        TensorType::F32,
    ] {
        // Super-blocks do not divide 576 columns.
        let shapes =
            LAYER.map(|(rows, columns)| (rows, columns.next_multiple_of(kind.block_size())));
        let layer = shapes.map(|(rows, columns)| weights(kind, rows, columns));
        for &isa in Isa::available() {
            let mut line = format!("{kind:?} {isa:?}");
            for tokens in TOKENS
                .into_iter()
                .filter(|t| isa != Isa::Portable || *t <= 16)
            {
                let mut out = vec![0.0; tokens * 3072];
                let xs = layer
                    .each_ref()
                    .map(|w| activations(isa, tokens, w.columns(), w.form()));
                let seconds = best_time(|| {
                    for (w, x) in layer.iter().zip(&xs) {
                        let out = OutputView::of(&mut out, 3072);
                        // SAFETY: one thread; quantised for this matrix.
                        unsafe { matmul(isa, w, x, tokens, 0..w.rows(), out) };
                    }
                });
                let operations: usize = shapes.iter().map(|(r, c)| 2 * r * c * tokens).sum();
                let rate = operations as f64 / seconds / 1e9;
                write!(line, " {rate:7.1}").expect("a string takes all");
            }
            println!("{line}");
        }
    }
}

fn model(threads: usize) {
    println!("\ndefault model's products (Q4_1 layers, Q8_0 output), {threads} threads");
    let isa = Isa::detect();
    let layers: Vec<[PackedMatrix; 4]> = (0..LAYERS)
        .map(|_| LAYER.map(|(rows, columns)| weights(TensorType::Q4_1, rows, columns)))
        .collect();
    let output = weights(TensorType::Q8_0, VOCABULARY, 576);
    let bytes: usize = layers.iter().flatten().map(PackedMatrix::bytes).sum();
    for tokens in [1, 2, 4, 8, 16, 32, 64, 128, 512] {
        let logits = if tokens <= 32 { tokens } else { 1 };
        let form = output.form();
        let narrow = activations(isa, tokens, 576, form);
        let wide = activations(isa, tokens, 1536, form);
        let mut out = vec![0.0; tokens * 3072];
        let mut values = vec![0.0; logits * VOCABULARY];
        let seconds = best_time(|| {
            let (out, values) = (
                OutputView::of(&mut out, 3072),
                OutputView::of(&mut values, VOCABULARY),
            );
            std::thread::scope(|scope| {
                let pass = |thread: usize| {
                    for w in layers.iter().flatten() {
                        let x = if w.columns() == 576 { &narrow } else { &wide };
                        // SAFETY: shares are disjoint; quantised for these matrices.
                        unsafe { matmul(isa, w, x, tokens, w.share(thread, threads), out) };
                    }
                    // SAFETY: as above.
                    unsafe {
                        matmul(
                            isa,
                            &output,
                            &narrow,
                            logits,
                            output.share(thread, threads),
                            values,
                        );
                    };
                };
                for thread in 1..threads {
                    scope.spawn(move || pass(thread));
                }
                pass(0);
            });
        });
        let operations = LAYER
            .iter()
            .map(|(r, c)| 2 * r * c * tokens * LAYERS)
            .sum::<usize>()
            + 2 * VOCABULARY * 576 * logits;
        println!(
            "{tokens:4} tokens: {:8.0} tok/s {:8.1} GOP/s {:6.1} GB/s of weights",
            tokens as f64 / seconds,
            operations as f64 / seconds / 1e9,
            (bytes + output.bytes()) as f64 / seconds / 1e9,
        );
    }
}
