//! Bytes in, characters out, as soon as they are whole.
//!
//! Invalid bytes become U+FFFD exactly as `String::from_utf8_lossy` does it; an incomplete character
//! is held until its next byte comes. Must not know of tokens.

/// Decoder of one byte stream.
#[derive(Debug, Default, Clone)]
pub(crate) struct Utf8Stream {
    /// The start of a character, at most 3 bytes between calls.
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Appends to `out` every character that `bytes` complete.
    pub(crate) fn push(&mut self, bytes: &[u8], out: &mut String) {
        if self.pending.is_empty()
            && let Ok(whole) = std::str::from_utf8(bytes)
        {
            out.push_str(whole);
            return;
        }
        self.pending.extend_from_slice(bytes);
        let mut taken = 0;
        while let Some(rest) = self.pending.get(taken..)
            && !rest.is_empty()
        {
            match std::str::from_utf8(rest) {
                Ok(whole) => {
                    out.push_str(whole);
                    taken += rest.len();
                }
                Err(error) => {
                    let (valid, _) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    taken += valid.len();
                    let Some(bad) = error.error_len() else {
                        break;
                    };
                    out.push(char::REPLACEMENT_CHARACTER);
                    taken += bad;
                }
            }
        }
        self.pending.drain(..taken);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_decode_as_std_does_it(
            pieces in prop::collection::vec(
                prop_oneof![
                    prop::collection::vec(any::<u8>(), 0..5),
                    "[aé日🙂]{0,3}".prop_map(String::into_bytes),
                    Just(vec![0xF0, 0x9F]),
                    Just(vec![0xE6, 0x97]),
                ],
                0..40,
            )
        ) {
            let whole: Vec<u8> = pieces.concat();
            let mut stream = Utf8Stream::default();
            let mut text = String::new();
            for piece in &pieces {
                stream.push(piece, &mut text);
                prop_assert!(stream.pending.len() <= 3);
            }
            // The held tail is the only difference: std writes one replacement mark for it.
            let expected = String::from_utf8_lossy(&whole);
            if stream.pending.is_empty() {
                prop_assert_eq!(text, expected);
            } else {
                prop_assert_eq!(text + "\u{FFFD}", expected);
            }
        }
    }
}
