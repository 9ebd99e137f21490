//! A client's deadline, from the `grpc-timeout` header.
//!
//! It must not know what happens when it passes.

use std::time::Duration;

use baton_proto::ConvertError;
use tonic::metadata::MetadataMap;

/// Time a client gives its request; `None` if it says nothing. The format is that of gRPC over
/// HTTP/2: at most eight digits and a unit of `H`, `M`, `S`, `m`, `u` or `n`.
///
/// # Errors
/// The header is something else.
pub fn time_given(metadata: &MetadataMap) -> Result<Option<Duration>, ConvertError> {
    let Some(value) = metadata.get("grpc-timeout") else {
        return Ok(None);
    };
    let text = value.to_str().unwrap_or("");
    parse(text)
        .map(Some)
        .ok_or_else(|| ConvertError::OutOfRange {
            field: "grpc-timeout",
            value: text.chars().take(16).collect(),
            allowed: "1 to 8 digits and a unit of H, M, S, m, u, n".into(),
        })
}

fn parse(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if !(1..=8).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};
    use tonic::metadata::MetadataValue;

    use super::*;

    #[test]
    fn timeouts_follow_the_format() {
        assert_eq!(parse("5S"), Some(Duration::from_secs(5)));
        assert_eq!(parse("99999999n"), Some(Duration::from_nanos(99_999_999)));
        assert_eq!(parse("1H"), Some(Duration::from_hours(1)));
        for wrong in ["", "S", "5", "5x", "123456789S", "-1S", "1.5S", "٣S"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn spoiled_timeouts_are_refused_or_within_the_format() {
        const ALPHABET: &[u8] = b"0123456789HMSmun+-. \xff\xd9";
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let most = Duration::from_hours(99_999_999);
        let (mut read, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let digits = random.random_range(0..11);
            let mut text: Vec<u8> = (0..digits)
                .map(|_| random.random_range(b'0'..=b'9'))
                .collect();
            text.push(b"HMSmun"[random.random_range(0..6)]);
            if random.random_bool(0.5) {
                let at = random.random_range(0..text.len());
                text[at] = ALPHABET[random.random_range(0..ALPHABET.len())];
            }
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", MetadataValue::try_from(&text[..]).unwrap());
            match time_given(&metadata) {
                Ok(given) => {
                    assert!(given.expect("it was there") <= most);
                    assert!((2..=9).contains(&text.len()), "{text:?}");
                    read += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(read > 1000 && refused > 1000, "{read} read, {refused} not");
    }
}
