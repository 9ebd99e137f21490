//! The default model beside what Hugging Face gave, and the time that long texts take. Not chats.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::{ids, real, reference, reference_file, tiny};
use crate::{MAX_TEXT_BYTES, TextError};

#[test]
fn tok_07_ids_equal_the_golden_ones() {
    let reference = reference();
    let strings = reference["tokenizer"].as_array().unwrap();
    assert!(strings.len() >= 120);
    for item in strings {
        let text = item["text"].as_str().unwrap();
        let encoded = real().encode(text, false).unwrap();
        assert_eq!(encoded, ids(&item["ids"]), "{text:?}");
        assert_eq!(real().decode(&encoded, false).unwrap(), text);
    }
    for item in reference["items"].as_array().unwrap() {
        if item["kind"] == "text" {
            let text = item["prompt"].as_str().unwrap();
            assert_eq!(
                real().encode_prompt(text).unwrap(),
                ids(&item["prompt_ids"]),
                "{text:?}"
            );
        }
    }
}

#[test]
fn tok_07_a_long_text_has_the_golden_ids() {
    let text = reference_file("constitution.txt");
    let golden: serde_json::Value =
        serde_json::from_str(&reference_file("constitution.ids.json")).unwrap();
    let encoded = real().encode(&text, false).unwrap();
    assert_eq!(encoded, ids(&golden));
    assert_eq!(real().decode(&encoded, false).unwrap(), text);
}

#[test]
fn tok_07_digits_stand_alone() {
    for text in ["12345 6,789", "a1b22", "2024-12-31", "x²٣"] {
        let encoded = real().encode(text, false).unwrap();
        for &id in &encoded {
            let bytes = real().token_bytes(id).unwrap();
            let digits = bytes.iter().filter(|byte| byte.is_ascii_digit()).count();
            assert!(digits == 0 || bytes.len() == 1, "{text:?}: {bytes:?}");
        }
        assert_eq!(real().decode(&encoded, true).unwrap(), text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Round trip over text of many scripts, white space, digits, marks and emoji. The bytes that
    /// the vocabulary lacks (control characters, planes 4 to 15) are left out of the alphabet.
    #[test]
    fn tok_07_round_trip(text in "([a-zA-Z ,.'0-9]{0,12}|[\\t\\r\\n ]{0,4}|\\PC{0,3}|[à-ÿЀ-џا-ي一-龥가-힣😀-🙏\u{300}-\u{36F}]{0,6}|'(s|t|re|ve|ll)){0,8}") {
        let supported = text.chars().all(|c| !('\u{40000}'..='\u{FFFFF}').contains(&c));
        prop_assume!(supported);
        let encoded = real().encode(&text, false).unwrap();
        prop_assert_eq!(real().decode(&encoded, false).unwrap(), text);
    }

    /// A vocabulary of all 256 bytes restores anything.
    #[test]
    fn tok_07_round_trip_of_any_unicode(text in "\\p{Any}{0,40}") {
        let model = tiny(&[]);
        let encoded = model.encode(&text, false).unwrap();
        prop_assert_eq!(model.decode(&encoded, false).unwrap(), text);
    }
}

#[test]
fn characters_without_a_token_are_dropped() {
    assert_eq!(
        real().encode("a\u{4}b", false).unwrap(),
        [
            real().encode("a", false).unwrap(),
            real().encode("b", false).unwrap()
        ]
        .concat()
    );
    assert_eq!(real().encode_prompt("\u{4}"), Err(TextError::EmptyPrompt));
}

/// Loose bound, ten times what the case asks on a free core, and a ratio that a quadratic method
/// (16 times at 4 times the length) misses.
#[test]
fn tok_10_long_runs_take_n_log_n() {
    for unit in ["a", "_", "日", " ", "1", "\n", "ab"] {
        let time = |count: usize| {
            let text = unit.repeat(count);
            let start = Instant::now();
            let encoded = real().encode(&text, false).unwrap();
            let taken = start.elapsed();
            assert_eq!(real().decode(&encoded, false).unwrap(), text);
            taken
        };
        // On a busy machine the best of a few tries counts.
        let best = |count| (0..3).map(|_| time(count)).min().unwrap_or_default();
        let (short, long) = (best(25_000), best(100_000));
        assert!(long < Duration::from_secs(2), "{unit:?}: {long:?}");
        let floor = Duration::from_millis(20);
        assert!(
            long < short.max(floor) * 10,
            "{unit:?}: {short:?} then {long:?}"
        );
    }
}

#[test]
fn tok_10_text_above_the_limit_is_refused_before_any_work() {
    let limit = real().max_text_bytes();
    assert!(limit <= MAX_TEXT_BYTES);
    let text = "a".repeat(limit + 1);
    // On a busy machine the best of a few tries counts.
    let times: Vec<_> = (0..5)
        .map(|_| {
            let start = Instant::now();
            assert_eq!(
                real().encode_prompt(&text),
                Err(TextError::TooLong {
                    what: "the prompt",
                    bytes: limit + 1,
                    limit
                })
            );
            start.elapsed()
        })
        .collect();
    let quick = |time: &Duration| *time < Duration::from_millis(50);
    assert!(times.iter().any(quick), "{times:?}");
    let chat = [super::message("user", &text)];
    assert!(matches!(
        real().encode_chat(&chat),
        Err(TextError::TooLong { .. })
    ));
}

#[test]
fn smp_11_empty_prompts_are_refused_and_blank_ones_are_not() {
    assert_eq!(real().encode_prompt(""), Err(TextError::EmptyPrompt));
    assert_eq!(real().encode_chat(&[]), Err(TextError::EmptyPrompt));
    assert!(!real().encode_prompt(" ").unwrap().is_empty());
    assert!(!real().encode_prompt("\n\t").unwrap().is_empty());
    assert!(
        !real()
            .encode_chat(&[super::message("user", "")])
            .unwrap()
            .is_empty()
    );
}
