//! From values to places on an axis, and where its lines stand.

use super::{Axis, Scale};

/// Most numbers on an axis.
const MAX_TICKS: usize = 12;

/// Share of the axis' length at which `value` stands; outside 0 to 1 it is not on the axis. `None` of
/// what no axis can show.
pub(super) fn place(axis: &Axis, value: f64) -> Option<f64> {
    let share = match axis.scale {
        Scale::Linear => (value - axis.least) / (axis.most - axis.least),
        // Below everything.
        Scale::Logarithmic if value <= 0.0 => -1.0,
        Scale::Logarithmic => (value / axis.least).ln() / (axis.most / axis.least).ln(),
    };
    share.is_finite().then_some(share)
}

/// Values with a line and a number.
pub(super) fn ticks(axis: &Axis) -> Vec<f64> {
    if !axis.ticks.is_empty() {
        return axis.ticks.clone();
    }
    match axis.scale {
        Scale::Linear => linear(axis.least, axis.most),
        Scale::Logarithmic => logarithmic(axis.least, axis.most),
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, about five.
fn linear(least: f64, most: f64) -> Vec<f64> {
    let rough = (most - least) / 5.0;
    if !(rough.is_finite() && rough > 0.0) {
        return vec![least];
    }
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough);
    let first = (least / step).ceil();
    (0..MAX_TICKS)
        .map(|index| (first + index as f64) * step)
        .take_while(|tick| *tick <= most * 1.000_001)
        .collect()
}

/// 1, 2 and 5 times powers of ten; powers alone where that would be too many.
fn logarithmic(least: f64, most: f64) -> Vec<f64> {
    let powers = least.log10().floor() as i32..=most.log10().ceil() as i32;
    let of = |factors: &[f64]| -> Vec<f64> {
        powers
            .clone()
            .flat_map(|power| {
                factors
                    .iter()
                    .map(move |factor| factor * 10_f64.powi(power))
            })
            .filter(|tick| (least * 0.999..=most * 1.001).contains(tick))
            .take(MAX_TICKS + 1)
            .collect()
    };
    let fine = of(&[1.0, 2.0, 5.0]);
    if fine.len() <= MAX_TICKS {
        fine
    } else {
        of(&[1.0])
    }
}

/// The greatest 1, 2 or 5 times a power of ten that is not above `value`, which is positive.
pub(super) fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|round| *round <= value)
        .unwrap_or(power)
}

/// The least 1, 2, 5 or 10 times a power of ten above `value`, which is positive.
pub(super) fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|round| *round > value)
        .unwrap_or(20.0 * power)
}

/// A number as people write it: 2,048, 0.5.
pub(super) fn number(value: f64) -> String {
    if !(1e-3..1e9).contains(&value.abs()) && value != 0.0 {
        return format!("{value:e}");
    }
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let digits = whole.trim_start_matches('-');
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if value < 0.0 { "-" } else { "" };
    format!("{sign}{grouped}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_people_do() {
        for (value, text) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (128.0, "128"),
            (2048.0, "2,048"),
            (-1_234_567.0, "-1,234,567"),
            (1e12, "1e12"),
        ] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(
            linear(0.0, 4200.0).map_bits(),
            [0.0, 1000.0, 2000.0, 3000.0, 4000.0].map_bits()
        );
        assert_eq!(
            logarithmic(2.0, 50.0).map_bits(),
            [2.0, 5.0, 10.0, 20.0, 50.0].map_bits()
        );
        assert_eq!(logarithmic(1.0, 1e6).len(), 7);
        assert!(linear(0.0, f64::MIN_POSITIVE).len() <= MAX_TICKS);
    }

    #[test]
    fn values_are_rounded_outwards() {
        for value in [0.0123, 0.5, 1.0, 7.3, 99.0, 100.0, 12_345.0] {
            let (down, up) = (round_down(value), round_up(value));
            assert!(
                down <= value && value <= up && down < up && up / down <= 5.001,
                "{down} {value} {up}"
            );
        }
    }

    trait MapBits {
        fn map_bits(&self) -> Vec<u64>;
    }
    impl<T: AsRef<[f64]>> MapBits for T {
        fn map_bits(&self) -> Vec<u64> {
            // Rounded: powers of ten are not exact.
            self.as_ref()
                .iter()
                .map(|x| ((x * 1e6).round()).to_bits())
                .collect()
        }
    }
}
