//! Every kernel against the file format's own definition in f64, and against every other kernel's bits.

// Bits are what is compared; a list of one range is meant.
#![allow(clippy::float_cmp, clippy::single_range_in_vec_init)]

use std::ops::Range;

use baton_model_file::{TensorType, dequantize};
use half::{bf16, f16};

use super::{ActivationForm, Activations, OutputView, PackError, PackedMatrix, ROW_TILE, matmul};
use crate::{
    Isa,
    cpu::{elementwise::gate, memory::Arena},
};

const KINDS: [TensorType; 11] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q8_0,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q5_0,
    TensorType::Q5_1,
    TensorType::Q4_K,
    TensorType::Q5_K,
    TensorType::Q6_K,
];

/// `SplitMix64`: a seed is a whole test case.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    /// In -1..1.
    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// Random blocks: any codes and small scales, finite scales of either sign.
fn random_weights(kind: TensorType, rows: usize, columns: usize, random: &mut Random) -> Vec<u8> {
    let blocks = rows * columns / kind.block_size();
    let mut data = Vec::with_capacity(blocks * kind.block_bytes());
    for _ in 0..blocks {
        let mut block: Vec<u8> = (0..kind.block_bytes())
            .map(|_| random.next() as u8)
            .collect();
        let halves: &[usize] = match kind {
            TensorType::F32 => {
                block.copy_from_slice(&random.unit().to_le_bytes());
                &[]
            }
            TensorType::BF16 => {
                block.copy_from_slice(&bf16::from_f32(random.unit()).to_le_bytes());
                &[]
            }
            TensorType::F16 | TensorType::Q8_0 | TensorType::Q4_0 | TensorType::Q5_0 => &[0],
            TensorType::Q6_K => &[208],
            _ => &[0, 2],
        };
        for &at in halves {
            block[at..at + 2].copy_from_slice(&f16::from_f32(random.unit() * 0.02).to_le_bytes());
        }
        data.extend(block);
    }
    data
}

/// Rows with outliers, zero groups and different magnitudes.
fn random_activations(rows: usize, columns: usize, random: &mut Random) -> Vec<f32> {
    let mut values: Vec<f32> = (0..rows * columns).map(|_| random.unit()).collect();
    for group in values.chunks_mut(32) {
        match random.below(8) {
            0 => group.fill(0.0),
            1 => group[0] *= 300.0,
            2 => group.iter_mut().for_each(|x| *x *= 1e-6),
            3 => group.iter_mut().for_each(|x| *x = x.abs() + 1.0),
            _ => {}
        }
    }
    values
}

const BOTH: ActivationForm = ActivationForm {
    integer: true,
    float: true,
};

struct Case {
    kind: TensorType,
    rows: usize,
    columns: usize,
    tokens: usize,
    data: Vec<u8>,
    packed: PackedMatrix,
    x: Vec<f32>,
}

impl Case {
    fn random(kind: TensorType, tokens: usize, random: &mut Random) -> Self {
        let rows = 1 + random.below(70);
        let columns =
            kind.block_size() * (1 + random.below(if kind.block_size() > 32 { 3 } else { 9 }));
        let columns = if kind.block_size() == 1 {
            columns * 7 + random.below(9)
        } else {
            columns
        };
        Self::shaped(kind, rows, columns, tokens, random)
    }

    fn shaped(
        kind: TensorType,
        rows: usize,
        columns: usize,
        tokens: usize,
        random: &mut Random,
    ) -> Self {
        let data = random_weights(kind, rows, columns, random);
        let packed = PackedMatrix::pack(kind, rows, columns, &data).expect("a fitting shape");
        let x = random_activations(tokens, columns, random);
        Self {
            kind,
            rows,
            columns,
            tokens,
            data,
            packed,
            x,
        }
    }

    fn activations(&self, isa: Isa) -> Activations {
        let form = self.packed.form();
        let mut activations = Activations::new(self.tokens, self.columns, form);
        activations.quantize(isa, form, 0..self.tokens, self.columns, &self.x);
        activations
    }

    fn run(&self, isa: Isa) -> Vec<f32> {
        run(
            isa,
            &self.packed,
            &self.activations(isa),
            self.tokens,
            &[0..self.rows],
        )
    }

    fn name(&self) -> String {
        let Self {
            kind,
            rows,
            columns,
            tokens,
            packed,
            ..
        } = self;
        format!(
            "{kind:?} {rows}x{columns} by {tokens} in {:?}",
            packed.form()
        )
    }
}

fn run(
    isa: Isa,
    packed: &PackedMatrix,
    x: &Activations,
    tokens: usize,
    ranges: &[Range<usize>],
) -> Vec<f32> {
    let stride = packed.rows() + 3;
    let mut out = vec![f32::MIN; tokens * stride];
    for range in ranges {
        // SAFETY: one thread; the activations were quantised for this matrix.
        unsafe {
            matmul(
                isa,
                packed,
                x,
                tokens,
                range.clone(),
                OutputView::of(&mut out, stride),
            );
        };
    }
    for row in out.chunks_exact(stride) {
        assert!(
            row[packed.rows()..].iter().all(|x| *x == f32::MIN),
            "wrote past the rows"
        );
    }
    out.chunks_exact(stride)
        .flat_map(|row| row[..packed.rows()].to_vec())
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

fn dequantized(case: &Case) -> Vec<f32> {
    let mut weights = vec![0.0; case.rows * case.columns];
    dequantize(case.kind, &case.data, &mut weights);
    weights
}

/// Largest error of each activation of a row as its form defines it: half a step of its group.
fn half_steps(row: &[f32], form: ActivationForm) -> Vec<f64> {
    if !form.integer {
        return vec![0.0; row.len()];
    }
    let squares: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum();
    let rms = (squares / row.len() as f64).sqrt();
    row.chunks(32)
        .flat_map(|group| {
            let largest = group
                .iter()
                .fold(0.0, |largest: f64, x| largest.max(f64::from(x.abs())));
            let stands_out = largest >= 8.0 * rms;
            let steps = if stands_out { 127.0 * 254.0 } else { 127.0 };
            [largest / steps / 2.0; 32]
        })
        .collect()
}

/// A row of activations as its form defines it, in f64.
fn rounded(row: &[f32], form: ActivationForm) -> Vec<f64> {
    let coarse = |group: &[f32]| {
        let largest = group
            .iter()
            .fold(0.0_f32, |largest, x| largest.max(x.abs()));
        (
            largest / 127.0,
            if largest > 0.0 { 127.0 / largest } else { 0.0 },
        )
    };
    let halves = half_steps(row, form);
    let mut values = Vec::new();
    for (group, halves) in row.chunks(32).zip(halves.chunks(32)) {
        let (step, inverse) = coarse(group);
        for (x, half) in group.iter().zip(halves) {
            let high = f64::from((x * inverse).round_ties_even()) * f64::from(step);
            let rest = f64::from(*x) - high;
            values.push(
                match (form.integer, *half > 0.0 && *half < f64::from(step) / 4.0) {
                    (false, _) => f64::from(*x),
                    (true, false) => high,
                    (true, true) => high + (rest / (half * 2.0)).round_ties_even() * half * 2.0,
                },
            );
        }
    }
    values
}

/// A random case of every kind.
fn every_kind(tokens: usize, random: &mut Random) -> Vec<Case> {
    KINDS
        .into_iter()
        .map(|kind| Case::random(kind, tokens, random))
        .collect()
}

#[test]
fn rows_come_back_exactly() {
    let mut random = Random(1);
    for kind in KINDS {
        for _ in 0..8 {
            let case = Case::random(kind, 1, &mut random);
            let weights = dequantized(&case);
            let mut row = vec![0.0; case.columns];
            for (index, expected) in weights.chunks_exact(case.columns).enumerate() {
                case.packed.dequantize_row(index, &mut row);
                assert_eq!(row, expected, "{} row {index}", case.name());
            }
        }
    }
}

#[test]
fn products_equal_the_integer_formula() {
    let mut random = Random(2);
    for isa in Isa::available() {
        for tokens in [1, 2, 3, 5, 8, 13, 17] {
            for case in every_kind(tokens, &mut random) {
                let weights = dequantized(&case);
                let x: Vec<f64> = case
                    .x
                    .chunks(case.columns)
                    .flat_map(|row| rounded(row, case.packed.form()))
                    .collect();
                let out = case.run(*isa);
                for (index, &actual) in out.iter().enumerate() {
                    let (token, row) = (index / case.rows, index % case.rows);
                    let w = &weights[row * case.columns..][..case.columns];
                    let x = &x[token * case.columns..][..case.columns];
                    let terms = || w.iter().zip(x).map(|(w, x)| f64::from(*w) * x);
                    let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                    // Minimums and codes cancel: allow for their size, not only the result's.
                    let bound = 1e-5 * size + 1e-12;
                    let error = (f64::from(actual) - sum).abs();
                    assert!(
                        error <= bound,
                        "{isa:?} {}: {actual} for {sum}",
                        case.name()
                    );
                }
            }
        }
    }
}

#[test]
fn quantised_activations_explain_the_error() {
    let mut random = Random(3);
    // Values of groups that stand out and so have a second digit.
    let mut fine = 0;
    for case in every_kind(6, &mut random) {
        let weights = dequantized(&case);
        let out = case.run(Isa::detect());
        for (index, &actual) in out.iter().enumerate() {
            let (token, row) = (index / case.rows, index % case.rows);
            let w = &weights[row * case.columns..][..case.columns];
            let x = &case.x[token * case.columns..][..case.columns];
            let (mut sum, mut bound) = (0.0, 1e-9);
            let halves = half_steps(x, case.packed.form());
            for (group, halves) in x.chunks(32).zip(halves.chunks(32)) {
                let largest = group.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
                let is_fine = halves[0] > 0.0 && halves[0] < f64::from(largest) / 1_000.0;
                fine += usize::from(is_fine) * group.len();
            }
            for ((w, x), half) in w.iter().zip(x).zip(halves) {
                let (w, x) = (f64::from(*w), f64::from(*x));
                sum += w * x;
                bound += w.abs() * (half * 1.000_02 + x.abs() * 1e-6);
            }
            let error = (f64::from(actual) - sum).abs();
            assert!(
                error <= bound,
                "{}: {actual} for {sum}, bound {bound}",
                case.name()
            );
        }
    }
    assert!(fine > 1_000, "second digits occur: {fine}");
}

#[test]
fn bits_do_not_depend_on_isa_tokens_or_ranges() {
    let mut random = Random(4);
    for tokens in (1..=30).chain([97, 131]) {
        for case in every_kind(tokens, &mut random) {
            let reference = case.run(Isa::Portable);
            for &isa in Isa::available() {
                let x = case.activations(isa);
                let mut ranges = Vec::new();
                let mut start = 0;
                while start < case.rows {
                    let end = (start + 1 + random.below(40)).min(case.rows);
                    ranges.push(start..end);
                    start = end;
                }
                let split = run(isa, &case.packed, &x, tokens, &ranges);
                assert_eq!(
                    bits(&split),
                    bits(&reference),
                    "{isa:?} {} {ranges:?}",
                    case.name()
                );
                let fewer = 1 + random.below(tokens);
                let few = run(isa, &case.packed, &x, fewer, &[0..case.rows]);
                let same = &reference[..fewer * case.rows];
                assert_eq!(
                    bits(&few),
                    bits(same),
                    "{isa:?} {} of {}",
                    fewer,
                    case.name()
                );
            }
        }
    }
}

#[test]
fn bits_do_not_depend_on_the_place_of_a_row() {
    let mut random = Random(5);
    // Rows so long that few of them pass the panels together, too.
    let long = Case::shaped(TensorType::Q4_1, 20, 32_768, 14, &mut random);
    for case in every_kind(23, &mut random).into_iter().chain([long]) {
        for &isa in Isa::available() {
            let all = case.run(isa);
            for token in 0..case.tokens {
                let form = case.packed.form();
                let mut one = Activations::new(1, case.columns, form);
                let values = &case.x[token * case.columns..][..case.columns];
                one.quantize(isa, form, 0..1, case.columns, values);
                let alone = run(isa, &case.packed, &one, 1, &[0..case.rows]);
                let batched = &all[token * case.rows..][..case.rows];
                assert_eq!(
                    bits(&alone),
                    bits(batched),
                    "{isa:?} {} token {token}",
                    case.name()
                );
            }
        }
    }
}

#[test]
fn extreme_codes_do_not_saturate() {
    // All codes at their largest, activations at ±127 of their scale: the worst case of every
    // narrower intermediate sum.
    for kind in KINDS.into_iter().filter(|kind| kind.block_size() > 1) {
        let (rows, columns) = (16, 256);
        let mut data = vec![0xff; rows * columns / kind.block_size() * kind.block_bytes()];
        for (index, block) in data.chunks_exact_mut(kind.block_bytes()).enumerate() {
            let at = if kind == TensorType::Q6_K { 208 } else { 0 };
            block[at..at + 2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
            match kind {
                TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => {
                    block[2..4].copy_from_slice(&f16::from_f32(0.25).to_le_bytes());
                }
                TensorType::Q8_0 => block[2..].fill([0x80, 0x7f][index % 2]),
                _ => {}
            }
        }
        let packed = PackedMatrix::pack(kind, rows, columns, &data).expect("a fitting shape");
        let x = (0..4 * columns)
            .map(|i| if i / columns == 1 { -3.0 } else { 3.0 })
            .collect();
        let case = Case {
            kind,
            rows,
            columns,
            tokens: 4,
            data,
            packed,
            x,
        };
        let weights = dequantized(&case);
        extremes_agree(&case, &weights);
    }
}

fn extremes_agree(case: &Case, weights: &[f32]) {
    let (rows, columns) = (case.rows, case.columns);
    for &isa in Isa::available() {
        for (index, actual) in case.run(isa).into_iter().enumerate() {
            let (token, row) = (index / rows, index % rows);
            let sum: f64 = weights[row * columns..][..columns]
                .iter()
                .map(|w| f64::from(*w))
                .sum();
            let expected = if token == 1 { -3.0 * sum } else { 3.0 * sum };
            let error = (f64::from(actual) - expected).abs();
            assert!(
                error <= 1e-5 * expected.abs() + 1e-3,
                "{isa:?} {}: {actual} {expected}",
                case.name()
            );
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_row() {
    let mut random = Random(6);
    for mut case in every_kind(9, &mut random) {
        let clean = case.run(Isa::Portable);
        let bad = [(1, f32::NAN), (4, f32::INFINITY), (6, f32::NEG_INFINITY)];
        for (token, value) in bad {
            case.x[token * case.columns + random.below(case.columns)] = value;
        }
        for &isa in Isa::available() {
            let out = case.run(isa);
            for token in 0..case.tokens {
                let place = token * case.rows..(token + 1) * case.rows;
                if bad.iter().any(|(bad, _)| *bad == token) {
                    assert!(
                        out[place].iter().all(|y| !y.is_finite()),
                        "{isa:?} {}",
                        case.name()
                    );
                } else {
                    assert_eq!(bits(&out[place.clone()]), bits(&clean[place]), "{isa:?}");
                }
            }
        }
    }
}

#[test]
fn zero_and_tiny_rows_give_zero() {
    let mut random = Random(7);
    for mut case in every_kind(3, &mut random) {
        if case.packed.form().float {
            continue;
        }
        case.x[..case.columns].fill(0.0);
        case.x[case.columns..2 * case.columns].fill(f32::from_bits(1));
        for &isa in Isa::available() {
            let out = case.run(isa);
            assert!(
                out[..2 * case.rows].iter().all(|y| *y == 0.0),
                "{isa:?} {}",
                case.name()
            );
        }
    }
}

#[test]
fn parts_of_different_kinds_share_a_matrix() {
    let mut random = Random(8);
    let columns = 512;
    let cases: Vec<Case> = KINDS
        .into_iter()
        .map(|kind| {
            let rows = 1 + random.below(40);
            Case::shaped(kind, rows, columns, 7, &mut random)
        })
        .collect();
    let parts: Vec<_> = cases
        .iter()
        .map(|c| (c.kind, c.rows, &c.data[..]))
        .collect();
    let joined = PackedMatrix::pack_rows(&parts, columns).expect("fitting shapes");
    assert_eq!(joined.form(), BOTH);
    assert_eq!(
        joined.rows(),
        cases.iter().map(|case| case.rows).sum::<usize>()
    );
    for &isa in Isa::available() {
        let x = &cases[0].x;
        let mut activations = Activations::new(7, columns, BOTH);
        activations.quantize(isa, BOTH, 0..7, columns, x);
        let ranges: Vec<_> = (0..3).map(|share| joined.share(share, 3)).collect();
        let out = run(isa, &joined, &activations, 7, &ranges);
        let mut first = 0;
        for case in &cases {
            let alone = run(isa, &case.packed, &activations, 7, &[0..case.rows]);
            for token in 0..7 {
                let part = &out[token * joined.rows() + first..][..case.rows];
                let expected = &alone[token * case.rows..][..case.rows];
                assert_eq!(bits(part), bits(expected), "{isa:?} {}", case.name());
            }
            let mut rows = [vec![0.0; columns], vec![0.0; columns]];
            joined.dequantize_row(first + case.rows - 1, &mut rows[0]);
            case.packed.dequantize_row(case.rows - 1, &mut rows[1]);
            assert_eq!(rows[0], rows[1]);
            first += case.rows;
        }
    }
}

#[test]
fn pairs_gate_the_first_with_the_second() {
    let mut random = Random(12);
    for (kinds, rows, tokens) in [
        ([TensorType::Q4_1, TensorType::Q4_1], 80, 300),
        ([TensorType::Q4_K, TensorType::Q6_K], 48, 7),
        ([TensorType::Q8_0, TensorType::BF16], 37, 2),
        ([TensorType::F32, TensorType::F16], 5, 1),
    ] {
        let cases = kinds.map(|kind| Case::shaped(kind, rows, 512, tokens, &mut random));
        let parts = cases.each_ref().map(|c| (c.kind, c.rows, &c.data[..]));
        let pair = PackedMatrix::pack_pair_within(&mut Arena::default(), &parts, 512);
        let pair = pair.expect("a fitting shape");
        assert_eq!((pair.rows(), pair.outputs()), (2 * rows, rows));
        for (part, case) in cases.iter().enumerate() {
            let mut values = [vec![0.0; 512], vec![0.0; 512]];
            pair.dequantize_row((part + 1) * rows - 1, &mut values[0]);
            case.packed.dequantize_row(rows - 1, &mut values[1]);
            assert_eq!(values[0], values[1]);
        }
        let padded = rows.next_multiple_of(ROW_TILE);
        for &isa in Isa::available() {
            let mut x = Activations::new(tokens, 512, BOTH);
            x.quantize(isa, BOTH, 0..tokens, 512, &cases[0].x);
            let alone = cases
                .each_ref()
                .map(|case| run(isa, &case.packed, &x, tokens, &[0..rows]));
            let mut out = vec![f32::MIN; tokens * padded];
            for share in 0..2 {
                let view = OutputView::of(&mut out, padded);
                // SAFETY: one thread; the activations were quantised for this matrix.
                unsafe { matmul(isa, &pair, &x, tokens, pair.share(share, 2), view) };
            }
            for (at, out) in out.iter().enumerate().filter(|(at, _)| at % padded < rows) {
                let at = at / padded * rows + at % padded;
                let mut expected = [0.0; 16];
                // SAFETY: one vector.
                unsafe {
                    gate(
                        isa,
                        &[[alone[0][at]; 16]],
                        &[[alone[1][at]; 16]],
                        expected.as_mut_ptr(),
                        16,
                    );
                }
                let plain = f64::from(alone[0][at]);
                let plain = plain / (1.0 + (-plain).exp()) * f64::from(alone[1][at]);
                assert!((f64::from(*out) - plain).abs() <= 1e-6 * plain.abs() + 1e-30);
                assert_eq!(out.to_bits(), expected[0].to_bits(), "{isa:?} {kinds:?}");
            }
        }
    }
}

#[test]
fn shares_cover_all_rows_in_whole_panels() {
    let mut random = Random(9);
    for rows in [1, 15, 16, 17, 48, 100, 576, 1000] {
        let data = random_weights(TensorType::Q4_1, rows, 64, &mut random);
        let packed =
            PackedMatrix::pack(TensorType::Q4_1, rows, 64, &data).expect("a fitting shape");
        for shares in 1..9 {
            let mut next = 0;
            for share in 0..shares {
                let range = packed.share(share, shares);
                assert_eq!(range.start, next);
                assert!(range.end == rows || range.end.is_multiple_of(ROW_TILE));
                assert!(range.len() <= rows / shares + 2 * ROW_TILE);
                next = range.end;
            }
            assert_eq!(next, rows);
        }
    }
}

#[test]
fn packed_bytes_stay_near_the_file() {
    let mut random = Random(10);
    for kind in KINDS {
        let data = random_weights(kind, 64, 1536, &mut random);
        let packed = PackedMatrix::pack(kind, 64, 1536, &data).expect("a fitting shape");
        let ratio = packed.bytes() as f64 / data.len() as f64;
        assert!(ratio <= 1.1, "{kind:?}: {ratio}");
    }
}

#[test]
fn misfits_are_named() {
    let pack = |rows, columns, bytes: usize| {
        PackedMatrix::pack(TensorType::Q4_K, rows, columns, &vec![0; bytes]).map(|_| ())
    };
    let (rows, columns) = (0, 256);
    assert_eq!(pack(0, 256, 0), Err(PackError::Empty { rows, columns }));
    let kind = TensorType::Q4_K;
    assert_eq!(
        pack(1, 128, 72),
        Err(PackError::Columns {
            kind,
            columns: 128,
            block: 256
        })
    );
    let (rows, columns, expected, actual) = (2, 256, 288, 287);
    let length = PackError::Length {
        kind,
        rows,
        columns,
        expected,
        actual,
    };
    assert_eq!(pack(2, 256, 287), Err(length));
    let huge = usize::MAX / 256 * 256;
    let too_large = PackError::TooLarge {
        kind,
        rows: 64,
        columns: huge,
    };
    assert_eq!(pack(64, huge, 0), Err(too_large));
    let data = [0; 3 * 20];
    let unequal = [1, 2].map(|rows| (TensorType::Q4_1, rows, &data[..rows * 20]));
    assert_eq!(
        PackedMatrix::pack_pair_within(&mut Arena::default(), &unequal, 32).map(|_| ()),
        Err(PackError::Pair {
            first: 1,
            second: 2
        })
    );
    assert_eq!(
        PackedMatrix::pack_rows(&[], 256).map(|_| ()),
        Err(PackError::Empty {
            rows: 0,
            columns: 256
        })
    );
}
