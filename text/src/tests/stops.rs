//! Stop strings over any cutting of a text. Not tokens.

use proptest::prelude::*;

use super::{real, strings};
use crate::stop::StopMatcher;
use crate::{MAX_STOP_BYTES, TextError};

/// Feeds pieces; returns the deltas until a stop or the end, and the stop.
fn feed(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>) {
    let mut matcher = StopMatcher::new(&strings(stops)).unwrap();
    let mut deltas = Vec::new();
    for piece in pieces {
        let (text, stopped) = matcher.push((*piece).to_owned());
        deltas.push(text);
        if stopped.is_some() {
            assert_eq!(matcher.push("more".into()), (String::new(), None));
            assert_eq!(matcher.finish(), "");
            return (deltas, stopped);
        }
    }
    deltas.push(matcher.finish());
    (deltas, None)
}

/// The same with the tokens of the default model.
fn feed_tokens(stops: &[&str], text: &str) -> (String, Option<String>) {
    let mut detokenizer = real().detokenizer(&strings(stops)).unwrap();
    let mut out = String::new();
    for id in real().encode(text, false).unwrap() {
        let delta = detokenizer.push(id);
        out.push_str(&delta.text);
        if delta.stopped.is_some() {
            return (out, delta.stopped);
        }
    }
    out.push_str(&detokenizer.finish());
    (out, None)
}

#[test]
fn smp_15_text_ends_just_before_the_first_match() {
    let fox = "The quick brown fox";
    for (stops, text, rest, stop) in [
        (&["own fox"][..], fox, "The quick br", Some("own fox")),
        (&["ck br"], fox, "The qui", Some("ck br")),
        (&["The"], fox, "", Some("The")),
        (&["x"], fox, "The quick brown fo", Some("x")),
        (&[" "], fox, "The", Some(" ")),
        (&["fox", "quick"], fox, "The ", Some("quick")),
        (&["zebra"], fox, fox, None),
        (&["foxes"], fox, fox, None),
        (&["ab", "abc"], "xxabcd", "xx", Some("ab")),
        (&["abc", "ab"], "xxabcd", "xx", Some("ab")),
        (&["bc", "abc"], "xxabcd", "xx", Some("abc")),
        (&["aab"], "aaaab", "aa", Some("aab")),
        (&["日本"], "in 日本 now", "in ", Some("日本")),
        (&["本"], "日本日", "日", Some("本")),
        (&["è"], "éé", "éé", None),
    ] {
        let expected = (rest.to_owned(), stop.map(str::to_owned));
        assert_eq!(feed_tokens(stops, text), expected, "{stops:?} in {text:?}");
        // In one piece, and character by character.
        for pieces in [vec![text], text.split("").collect()] {
            let (deltas, stopped) = feed(stops, &pieces);
            assert_eq!(
                (deltas.concat(), stopped),
                expected,
                "{stops:?} in {pieces:?}"
            );
        }
    }
}

#[test]
fn smp_16_only_what_could_begin_a_stop_string_is_held() {
    let long = "#".to_owned() + &"stop".repeat(49);
    let (deltas, stopped) = feed(&[&long], &["It ", "never ", "begins."]);
    assert_eq!(deltas, ["It ", "never ", "begins.", ""]);
    assert_eq!(stopped, None);
    // A false start is held, then let go as soon as it is known to be false, or at the end.
    let (deltas, _) = feed(&["#stop"], &["a#st", "op", "x"]);
    assert_eq!(deltas, ["a", ""]);
    let (deltas, _) = feed(&["#stop"], &["a#st", "ep", "#s"]);
    assert_eq!(deltas, ["a", "#step", "", "#s"]);
    let (deltas, _) = feed(&["aab"], &["aa", "a", "c"]);
    assert_eq!(deltas, ["", "a", "aac", ""]);
}

#[test]
fn smp_16_bad_stop_lists_are_refused() {
    let refused = |stops: &[String]| real().detokenizer(stops).unwrap_err();
    assert_eq!(refused(&strings(&[""])), TextError::EmptyStop { index: 0 });
    assert_eq!(
        refused(&strings(&["a", ""])),
        TextError::EmptyStop { index: 1 }
    );
    assert_eq!(
        refused(&strings(&["a", "b", "c", "d", "e"])),
        TextError::TooMany {
            what: "stop strings",
            count: 5,
            limit: 4
        }
    );
    let long = "x".repeat(MAX_STOP_BYTES + 1);
    assert_eq!(
        refused(&[long]).to_string(),
        "a stop string has 257 bytes, limit 256"
    );
    assert!(real().detokenizer(&strings(&["a", "b", "c", "d"])).is_ok());
}

proptest! {
    /// Against a search of the whole text: the match that ends first, the longest of those.
    #[test]
    fn smp_15_pieces_do_not_matter(
        stops in prop::collection::vec("[abé日]{1,4}", 0..=4),
        pieces in prop::collection::vec("[abcé日]{0,5}", 0..20),
    ) {
        let text = pieces.concat();
        let found = (0..=text.len())
            .filter(|&end| text.is_char_boundary(end))
            .find_map(|end| {
                let matched = stops.iter().filter(|stop| text[..end].ends_with(stop.as_str()));
                matched.max_by_key(|stop| stop.len()).map(|stop| (end - stop.len(), stop.clone()))
            });
        let stop_list: Vec<&str> = stops.iter().map(String::as_str).collect();
        let piece_list: Vec<&str> = pieces.iter().map(String::as_str).collect();
        let (deltas, stopped) = feed(&stop_list, &piece_list);
        let (end, stop) = found.map_or((text.len(), None), |(end, stop)| (end, Some(stop)));
        prop_assert_eq!(deltas.concat(), &text[..end]);
        prop_assert_eq!(stopped, stop);
    }

    /// Nothing is held that cannot begin a stop string.
    #[test]
    fn smp_16_holds_no_more_than_it_must(
        stops in prop::collection::vec("[ab]{1,4}", 1..=4),
        pieces in prop::collection::vec("[abc]{0,5}", 0..20),
    ) {
        let mut matcher = StopMatcher::new(&stops).unwrap();
        let mut sent = String::new();
        let mut seen = String::new();
        for piece in pieces {
            seen.push_str(&piece);
            let (text, stopped) = matcher.push(piece);
            sent.push_str(&text);
            if stopped.is_some() {
                break;
            }
            let held = &seen[sent.len()..];
            prop_assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)));
        }
    }
}
