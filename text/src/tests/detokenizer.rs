//! Streams of tokens that become text again. Not stop strings.

use proptest::prelude::*;

use super::{real, strings, tiny};

/// Streams ids one by one: every delta, then the tail.
fn stream(ids: &[u32], stops: &[&str]) -> Vec<String> {
    let mut detokenizer = real().detokenizer(&strings(stops)).unwrap();
    let mut deltas: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).text).collect();
    deltas.push(detokenizer.finish());
    deltas
}

#[test]
fn tok_01_characters_that_span_tokens_arrive_whole() {
    let text = "ok 🙂 日本";
    let ids = real().encode(text, false).unwrap();
    let split = ids.iter().any(|&id| {
        let bytes = real().token_bytes(id).unwrap();
        std::str::from_utf8(&bytes).is_err()
    });
    assert!(
        split,
        "the text must hold a character that spans tokens: {ids:?}"
    );
    let deltas = stream(&ids, &[]);
    assert!(
        deltas.iter().all(|delta| !delta.contains('\u{FFFD}')),
        "{deltas:?}"
    );
    assert_eq!(deltas.concat(), text);
    assert_eq!(real().decode(&ids, true).unwrap(), text);
    // Byte by byte, with a vocabulary that has no longer pieces of these characters.
    let bytes = tiny(&[]);
    let ids = bytes.encode(text, false).unwrap();
    let mut detokenizer = bytes.detokenizer(&[]).unwrap();
    let mut streamed = String::new();
    for &id in &ids {
        streamed.push_str(&detokenizer.push(id).text);
        assert!(text.starts_with(&streamed));
    }
    assert_eq!(streamed, text);
}

#[test]
fn tok_02_an_incomplete_character_at_the_end_is_dropped() {
    let model = tiny(&[]);
    let ids = model.encode("ok 🙂", false).unwrap();
    for missing in 1..=3 {
        let cut = &ids[..ids.len() - missing];
        let mut detokenizer = model.detokenizer(&[]).unwrap();
        let mut streamed: String = cut.iter().map(|&id| detokenizer.push(id).text).collect();
        streamed.push_str(&detokenizer.finish());
        assert_eq!(streamed, "ok ");
        assert_eq!(model.decode(cut, true).unwrap(), "ok ");
    }
    // With a half character at the end, text held for a stop string still comes out.
    let mut detokenizer = model.detokenizer(&strings(&["k !"])).unwrap();
    let cut = &ids[..ids.len() - 2];
    let mut streamed: String = cut.iter().map(|&id| detokenizer.push(id).text).collect();
    assert_eq!(streamed, "o");
    streamed.push_str(&detokenizer.finish());
    assert_eq!(streamed, "ok ");
}

#[test]
fn control_tokens_have_no_text() {
    let ids = real()
        .encode("<|im_start|>user\nhi<|im_end|>", true)
        .unwrap();
    assert_eq!(ids.first(), Some(&1));
    assert_eq!(stream(&ids, &[]).concat(), "user\nhi");
    assert_eq!(real().decode(&ids, true).unwrap(), "user\nhi");
    assert_eq!(
        real().decode(&ids, false).unwrap(),
        "<|im_start|>user\nhi<|im_end|>"
    );
    assert!(real().is_special(1) && !real().is_special(ids[1]));
    assert_eq!(real().token_bytes(2).unwrap(), b"<|im_end|>");
    assert_eq!(real().token_bytes(49_152), None);
    assert!(real().decode(&[49_152], true).is_err());
    let mut detokenizer = real().detokenizer(&[]).unwrap();
    assert_eq!(detokenizer.push(u32::MAX).text, "");
}

#[test]
fn xfr_19_a_split_stop_string_and_a_split_character_across_the_hand_off() {
    // The first token comes from prefill, the rest from decode; one object sees both.
    let text = "日本 is far";
    let ids = real().encode(text, false).unwrap();
    let first = real().token_bytes(ids[0]).unwrap();
    assert!(std::str::from_utf8(&first).is_err() || first.len() < "日本".len());
    let mut detokenizer = real().detokenizer(&strings(&["日本"])).unwrap();
    let mut stopped = None;
    for &id in &ids {
        let delta = detokenizer.push(id);
        assert_eq!(delta.text, "");
        if delta.stopped.is_some() {
            stopped = delta.stopped;
            break;
        }
    }
    assert_eq!(stopped.as_deref(), Some("日本"));
    assert_eq!(detokenizer.push(ids[0]).text, "");
    assert_eq!(detokenizer.finish(), "");
    // First token equal to a stop string.
    let hello = real().encode("Hello", false).unwrap();
    assert_eq!(hello.len(), 1);
    let mut detokenizer = real().detokenizer(&strings(&["Hello"])).unwrap();
    let delta = detokenizer.push(hello[0]);
    assert_eq!(
        (delta.text.as_str(), delta.stopped.as_deref()),
        ("", Some("Hello"))
    );
}

proptest! {
    #[test]
    fn any_ids_stream_to_what_they_decode_to(ids in prop::collection::vec(0u32..49_152, 0..60)) {
        prop_assert_eq!(stream(&ids, &[]).concat(), real().decode(&ids, true).unwrap());
    }

    #[test]
    fn any_bytes_stream_to_what_they_decode_to(ids in prop::collection::vec(0u32..400, 0..80)) {
        let model = tiny(&[]);
        let mut detokenizer = model.detokenizer(&[]).unwrap();
        let mut streamed: String = ids.iter().map(|&id| detokenizer.push(id).text).collect();
        streamed.push_str(&detokenizer.finish());
        prop_assert_eq!(streamed, model.decode(&ids, true).unwrap());
    }
}
