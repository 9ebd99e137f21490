//! Distributions of lengths, written as `N`, `MIN-MAX` (uniform) or `MEAN~SD` (log-normal).

use rand::Rng;

use crate::exit::Failure;

/// Longest length a distribution may name.
const MAX_TOKENS: u32 = 1 << 20;

/// A distribution of token counts, each at least 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Lengths {
    /// Always the same.
    Fixed(u32),
    /// Both ends included.
    Uniform(u32, u32),
    /// By mean and standard deviation of the lengths themselves.
    LogNormal(f64, f64),
}

impl Lengths {
    /// Parses the notation.
    pub(crate) fn parse(flag: &str, text: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::usage(format!(
                "{flag} is {text:?}, expected N, MIN-MAX or MEAN~SD in tokens, 1 to {MAX_TOKENS}"
            ))
        };
        let count = |text: &str| {
            text.trim()
                .parse()
                .ok()
                .filter(|n| (1..=MAX_TOKENS).contains(n))
                .ok_or_else(wrong)
        };
        if let Some((least, most)) = text.split_once('-') {
            let (least, most) = (count(least)?, count(most)?);
            return if least <= most {
                Ok(Self::Uniform(least, most))
            } else {
                Err(wrong())
            };
        }
        if let Some((mean, deviation)) = text.split_once('~') {
            let number = |text: &str| text.trim().parse::<f64>().ok().filter(|x| x.is_finite());
            return match (number(mean), number(deviation)) {
                (Some(mean), Some(deviation))
                    if (1.0..=f64::from(MAX_TOKENS)).contains(&mean)
                        && (0.0..=f64::from(MAX_TOKENS)).contains(&deviation) =>
                {
                    Ok(Self::LogNormal(mean, deviation))
                }
                _ => Err(wrong()),
            };
        }
        Ok(Self::Fixed(count(text)?))
    }

    /// Draws one length.
    pub(crate) fn draw(self, random: &mut impl Rng) -> u32 {
        match self {
            Self::Fixed(length) => length,
            Self::Uniform(least, most) => random.random_range(least..=most),
            Self::LogNormal(mean, deviation) => {
                // Parameters of the underlying normal from mean and deviation of the log-normal.
                let variance = (1.0 + (deviation / mean).powi(2)).ln();
                let mu = mean.ln() - variance / 2.0;
                let length = (mu + variance.sqrt() * normal(random)).exp().round();
                length.clamp(1.0, f64::from(MAX_TOKENS)) as u32
            }
        }
    }
}

/// A standard normal variate (Box–Muller).
fn normal(random: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.random::<f64>()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.random::<f64>()).cos()
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn the_notation_is_checked() {
        let parse = |text| Lengths::parse("--x", text);
        assert_eq!(parse("7").ok(), Some(Lengths::Fixed(7)));
        assert_eq!(parse("3-9").ok(), Some(Lengths::Uniform(3, 9)));
        assert_eq!(parse("100~20").ok(), Some(Lengths::LogNormal(100.0, 20.0)));
        for wrong in [
            "",
            "0",
            "9-3",
            "a-b",
            "1e9",
            "-5",
            "100~-1",
            "NaN~1",
            "2000000",
            "100~1e200",
        ] {
            assert!(parse(wrong).is_err(), "{wrong:?} must be refused");
        }
    }

    #[test]
    fn a_log_normal_has_the_mean_it_names() {
        let mut random = rand::rngs::StdRng::seed_from_u64(5);
        let lengths = Lengths::LogNormal(200.0, 50.0);
        let sum: u64 = (0..20_000)
            .map(|_| u64::from(lengths.draw(&mut random)))
            .sum();
        let mean = sum as f64 / 20_000.0;
        assert!((mean - 200.0).abs() < 3.0, "mean {mean}");
    }
}
