//! A plain forward pass in f64 on dequantised weights: no pages, no batches, nothing shared with the
//! engine but the file reader.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::{collections::HashMap, f64::consts::TAU};

use baton_model_file::{Architecture, ModelConfig, ModelFile, RopePairing, RopeScaling};

pub struct Naive {
    pub config: ModelConfig,
    tensors: HashMap<String, Vec<f64>>,
}

/// Q (unscaled) and K of one layer after rotation: tokens × heads × width.
pub struct Rotated {
    pub queries: Vec<Vec<f64>>,
    pub keys: Vec<Vec<f64>>,
}

impl Naive {
    /// Reads all tensors, or those of the first `layers` layers.
    pub fn read(file: &ModelFile, layers: u32) -> Self {
        let mut config = file.config().clone();
        config.layers = config.layers.min(layers);
        let wanted = |name: &str| match name.strip_prefix("model.layers.") {
            Some(rest) => rest
                .split('.')
                .next()
                .and_then(|n| n.parse::<u32>().ok())
                .is_some_and(|n| n < layers),
            None => true,
        };
        let tensors = file
            .tensors()
            .filter(|info| wanted(&info.name))
            .map(|info| {
                let tensor = file.read_tensor(&info.name).expect("the tensor reads");
                (
                    info.name.clone(),
                    tensor.to_f32().into_iter().map(f64::from).collect(),
                )
            })
            .collect();
        Self { config, tensors }
    }

    fn tensor(&self, name: &str) -> &[f64] {
        &self.tensors[name]
    }

    fn layer(&self, layer: u32, part: &str) -> &[f64] {
        self.tensor(&format!("model.layers.{layer}.{part}"))
    }

    fn size(&self) -> (usize, usize, usize, usize) {
        let c = &self.config;
        (
            c.hidden as usize,
            c.heads as usize,
            c.kv_heads as usize,
            c.head_dim as usize,
        )
    }

    /// Residual streams of `tokens` before the first layer.
    pub fn embed(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let hidden = self.config.hidden as usize;
        let table = self.tensor("model.embed_tokens.weight");
        tokens
            .iter()
            .map(|&t| table[t as usize * hidden..][..hidden].to_vec())
            .collect()
    }

    /// Q, K (rotated by position) and V of one layer.
    pub fn heads(&self, layer: u32, streams: &[Vec<f64>]) -> (Rotated, Vec<Vec<f64>>) {
        let (_, heads, kv_heads, width) = self.size();
        let mut rotated = Rotated {
            queries: Vec::new(),
            keys: Vec::new(),
        };
        let mut values = Vec::new();
        for (position, stream) in streams.iter().enumerate() {
            let x = norm(
                stream,
                self.layer(layer, "input_layernorm.weight"),
                self.config.norm_eps,
            );
            let project = |part: &str| {
                let mut y = multiply(
                    self.layer(layer, &format!("self_attn.{part}_proj.weight")),
                    &x,
                );
                if self.config.architecture == Architecture::Qwen2 {
                    let bias = self.layer(layer, &format!("self_attn.{part}_proj.bias"));
                    y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
                }
                y
            };
            let (mut q, mut k, v) = (project("q"), project("k"), project("v"));
            assert_eq!((q.len(), k.len()), (heads * width, kv_heads * width));
            for (part, y) in [("q", &mut q), ("k", &mut k)] {
                for head in y.chunks_mut(width) {
                    if self.config.architecture == Architecture::Qwen3 {
                        let weight = self.layer(layer, &format!("self_attn.{part}_norm.weight"));
                        head.copy_from_slice(&norm(head, weight, self.config.norm_eps));
                    }
                    rotate(&self.config, position, head);
                }
            }
            rotated.queries.push(q);
            rotated.keys.push(k);
            values.push(v);
        }
        (rotated, values)
    }

    /// Logits after every token.
    pub fn logits(&self, tokens: &[u32]) -> Vec<Vec<f64>> {
        let (_, heads, kv_heads, width) = self.size();
        let mut streams = self.embed(tokens);
        for layer in 0..self.config.layers {
            let (rotated, values) = self.heads(layer, &streams);
            for (at, stream) in streams.iter_mut().enumerate() {
                let mut attended = vec![0.0; heads * width];
                for head in 0..heads {
                    let kv = head / (heads / kv_heads);
                    let q = &rotated.queries[at][head * width..][..width];
                    let scores: Vec<f64> = (0..=at)
                        .map(|key| {
                            dot(q, &rotated.keys[key][kv * width..][..width])
                                / (width as f64).sqrt()
                        })
                        .collect();
                    let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                    let weights: Vec<f64> = scores.iter().map(|s| (s - largest).exp()).collect();
                    let total: f64 = weights.iter().sum();
                    for (key, weight) in weights.iter().enumerate() {
                        for d in 0..width {
                            attended[head * width + d] +=
                                weight / total * values[key][kv * width + d];
                        }
                    }
                }
                add(
                    stream,
                    &multiply(self.layer(layer, "self_attn.o_proj.weight"), &attended),
                );
                let x = norm(
                    stream,
                    self.layer(layer, "post_attention_layernorm.weight"),
                    self.config.norm_eps,
                );
                let gate = multiply(self.layer(layer, "mlp.gate_proj.weight"), &x);
                let up = multiply(self.layer(layer, "mlp.up_proj.weight"), &x);
                let inner: Vec<f64> = gate
                    .iter()
                    .zip(&up)
                    .map(|(g, u)| g / (1.0 + (-g).exp()) * u)
                    .collect();
                add(
                    stream,
                    &multiply(self.layer(layer, "mlp.down_proj.weight"), &inner),
                );
            }
        }
        let output = if self.config.tied_embeddings {
            "model.embed_tokens.weight"
        } else {
            "lm_head.weight"
        };
        let last = |stream: &Vec<f64>| {
            norm(
                stream,
                self.tensor("model.norm.weight"),
                self.config.norm_eps,
            )
        };
        streams
            .iter()
            .map(|stream| multiply(self.tensor(output), &last(stream)))
            .collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(stream: &mut [f64], delta: &[f64]) {
    stream.iter_mut().zip(delta).for_each(|(s, d)| *s += d);
}

fn multiply(matrix: &[f64], x: &[f64]) -> Vec<f64> {
    matrix
        .chunks_exact(x.len())
        .map(|row| dot(row, x))
        .collect()
}

fn norm(x: &[f64], weight: &[f64], epsilon: f32) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(epsilon)).sqrt();
    x.iter().zip(weight).map(|(x, w)| x * scale * w).collect()
}

fn rotate(config: &ModelConfig, position: usize, head: &mut [f64]) {
    let d = config.rope.dimensions as usize;
    for pair in 0..d / 2 {
        let (frequency, magnitude) = frequency(config, pair);
        let (s, c) = (position as f64 * frequency).sin_cos();
        let (i, j) = match config.rope.pairing {
            RopePairing::Interleaved => (2 * pair, 2 * pair + 1),
            RopePairing::HalfSplit => (pair, pair + d / 2),
        };
        let (a, b) = (head[i], head[j]);
        head[i] = (a * c - b * s) * magnitude;
        head[j] = (a * s + b * c) * magnitude;
    }
}

/// Radians per position of a pair, and the multiplier of the rotation, from the definitions.
fn frequency(config: &ModelConfig, pair: usize) -> (f64, f64) {
    let d = f64::from(config.rope.dimensions);
    let theta = f64::from(config.rope.theta);
    let plain = theta.powf(-2.0 * pair as f64 / d);
    match &config.rope.scaling {
        RopeScaling::None => (plain, 1.0),
        RopeScaling::Linear { factor } => (plain / f64::from(*factor), 1.0),
        RopeScaling::Factors(factors) => (plain / f64::from(factors[pair]), 1.0),
        RopeScaling::Llama3 {
            factor,
            low_freq_factor,
            high_freq_factor,
            original_context,
        } => {
            let (factor, low, high) = (
                f64::from(*factor),
                f64::from(*low_freq_factor),
                f64::from(*high_freq_factor),
            );
            let context = f64::from(*original_context);
            let wavelength = TAU / plain;
            if wavelength < context / high {
                (plain, 1.0)
            } else if wavelength > context / low {
                (plain / factor, 1.0)
            } else {
                let smooth = (context / wavelength - low) / (high - low);
                ((1.0 - smooth) * plain / factor + smooth * plain, 1.0)
            }
        }
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast,
            beta_slow,
            attention_factor,
            attention_multiplier,
        } => {
            let factor = f64::from(*factor);
            let dimension = |rotations: f32| {
                (d * (f64::from(*original_context) / (f64::from(rotations) * TAU)).ln())
                    / (2.0 * theta.ln())
            };
            let low = dimension(*beta_fast).floor().max(0.0);
            let high = dimension(*beta_slow).ceil().min(d - 1.0);
            let ramp = ((pair as f64 - low) / (high - low).max(0.001)).clamp(0.0, 1.0);
            let magnitude = attention_factor.map_or(0.1 * factor.ln() + 1.0, f64::from)
                * f64::from(*attention_multiplier);
            (plain / factor * ramp + plain * (1.0 - ramp), magnitude)
        }
    }
}
