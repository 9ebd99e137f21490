//! Added tokens: where they are found, and pre-tokenizers around them. Not chats.

use super::{built, gguf, tiny, tiny_metadata};
use crate::TextError;
use crate::added::{AddedToken, AddedTokens, Control, Segment};

const USER_DEFINED: i32 = 4;
const CONTROL: i32 = 3;

#[test]
fn tok_09_user_defined_tokens_match_always_and_control_tokens_only_when_parsed() {
    let model = tiny(&[("FOO[bar]", USER_DEFINED), ("<ctl>", CONTROL)]);
    let (foo, ctl) = (400, 401);
    let text = "a FOO[bar] b <ctl>";
    let parsed = model.encode(text, true).unwrap();
    let plain = model.encode(text, false).unwrap();
    assert_eq!(parsed.iter().filter(|&&id| id == foo).count(), 1);
    assert_eq!(plain.iter().filter(|&&id| id == foo).count(), 1);
    assert_eq!(parsed.iter().filter(|&&id| id == ctl).count(), 1);
    assert!(!plain.contains(&ctl));
    // Spaces around added tokens survive.
    assert_eq!(model.decode(&parsed, false).unwrap(), text);
    assert_eq!(model.decode(&plain, true).unwrap(), text);
    assert_eq!(model.decode(&parsed, true).unwrap(), "a FOO[bar] b ");
}

/// From each byte of a text that is all one letter, a token of that letter is followed to its end.
#[test]
fn tokens_that_would_make_looking_for_them_slow_are_refused() {
    let token = |length: usize| AddedToken {
        id: 0,
        text: "a".repeat(length),
        control: false,
        lstrip: false,
        rstrip: false,
        single_word: false,
    };
    assert!(AddedTokens::new(vec![token(256)]).is_ok());
    assert_eq!(
        AddedTokens::new(vec![token(3), token(257)]).unwrap_err(),
        TextError::TooLong {
            what: "an added token",
            bytes: 257,
            limit: 256
        }
    );
}

#[test]
fn tok_09_the_longest_match_wins() {
    let model = tiny(&[
        ("<a>", USER_DEFINED),
        ("<a><b>", USER_DEFINED),
        ("<a><b><c>", CONTROL),
    ]);
    let (a, ab, abc) = (400, 401, 402);
    assert_eq!(model.encode("<a><b>", false).unwrap(), [ab]);
    assert_eq!(model.encode("<a><a><b>", false).unwrap(), [a, ab]);
    assert_eq!(model.encode("<a><b><c>", true).unwrap(), [abc]);
    // Where the longest is not allowed, the next shorter one counts.
    assert_eq!(model.encode("<a><b><c>", false).unwrap()[0], ab);
}

#[test]
fn a_word_that_spells_a_control_token_stays_text() {
    // With ignore_merges a word of the vocabulary is taken whole.
    let mut metadata = tiny_metadata(&[("stop", CONTROL)]);
    gguf(&mut metadata).pre = Some("llama-bpe".into());
    let model = built(&metadata);
    assert!(!model.encode("stop", false).unwrap().contains(&400));
    assert_eq!(model.encode("stop", true).unwrap(), [400]);
}

#[test]
fn flags_of_added_tokens() {
    let token = |id, text: &str, lstrip, rstrip, single_word| AddedToken {
        id,
        text: text.into(),
        control: false,
        lstrip,
        rstrip,
        single_word,
    };
    let added = AddedTokens::new(vec![
        token(0, "<l>", true, false, false),
        token(1, "<r>", false, true, false),
        token(2, "word", false, false, true),
        token(3, "", false, false, false),
    ])
    .unwrap();
    let split = |text: &str| added.split(text, Control::Never);
    assert_eq!(
        split("a  <l> b <r>  c"),
        [
            Segment::Text(0..1),
            Segment::Token(0),
            Segment::Text(6..9),
            Segment::Token(1),
            Segment::Text(14..15),
        ]
    );
    assert_eq!(split("swords"), [Segment::Text(0..6)]);
    assert_eq!(
        split("a word!"),
        [Segment::Text(0..2), Segment::Token(2), Segment::Text(6..7)]
    );
    assert!(split("").is_empty());
}

#[test]
fn pre_tokenizers_cut_as_their_models_do() {
    let mut metadata = tiny_metadata(&[("12", 1), ("123", 1)]);
    gguf(&mut metadata)
        .merges
        .extend(["1 2".to_owned(), "12 3".to_owned()]);
    let mut encode = |pre: &str, text: &str| {
        gguf(&mut metadata).pre = Some(pre.into());
        let model = built(&metadata);
        let ids = model.encode(text, false).unwrap();
        ids.iter()
            .map(|&id| String::from_utf8_lossy(&model.token_bytes(id).unwrap()).into_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(encode("smollm", "1234"), ["1", "2", "3", "4"]);
    assert_eq!(encode("qwen2", "1234"), ["1", "2", "3", "4"]);
    assert_eq!(encode("llama-bpe", "1234"), ["123", "4"]);
    // Llama 3 counts digits in threes from the left; GPT-2's rule would not part "4123".
    assert_eq!(
        encode("llama-bpe", "9994123"),
        ["9", "9", "9", "4", "12", "3"]
    );
    // Qwen2 composes characters, the others do not.
    let decomposed = "e\u{301}";
    assert_eq!(encode("qwen2", decomposed).concat().len(), 6);
    assert_eq!(encode("smollm", decomposed).len(), 3);
    assert_eq!(encode("llama-bpe", decomposed).len(), 3);
}
