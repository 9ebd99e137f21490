//! Figures of many values. It must not know what was measured.

/// Nearest-rank quantile of sorted values; 0 of none.
pub(super) fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Arithmetic mean; 0 of none.
pub(super) fn mean(values: &[f64]) -> f64 {
    if values.is_empty() {
        0.0
    } else {
        values.iter().sum::<f64>() / values.len() as f64
    }
}

/// A median with the range around it; all 0 of no values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Median {
    pub(super) value: f64,
    pub(super) least: f64,
    pub(super) most: f64,
}

impl Median {
    /// Of an even number of values, the middle between the two in the middle.
    pub(super) fn of(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(0.0);
        let last = sorted.len().saturating_sub(1);
        Self {
            value: f64::midpoint(at(last / 2), at(last.div_ceil(2))),
            least: at(0),
            most: at(last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_rank_over_every_value() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let quantiles = [0.5, 0.9, 0.99, 1.0].map(|share| quantile(&values, share).to_bits());
        assert_eq!(quantiles, [50.0_f64, 90.0, 99.0, 100.0].map(f64::to_bits));
        assert!(quantile(&[], 0.5).abs() < f64::EPSILON);
    }

    #[test]
    fn a_median_stands_in_the_middle() {
        let all = |values: &[f64]| {
            let Median { value, least, most } = Median::of(values.iter().copied());
            [value, least, most].map(f64::to_bits)
        };
        assert_eq!(all(&[3.0, 1.0, 2.0]), [2.0_f64, 1.0, 3.0].map(f64::to_bits));
        assert_eq!(
            all(&[4.0, 1.0, 2.0, 3.0]),
            [2.5_f64, 1.0, 4.0].map(f64::to_bits)
        );
        assert_eq!(all(&[]), [0.0_f64; 3].map(f64::to_bits));
    }
}
