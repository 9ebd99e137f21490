//! GPT-2's byte-level alphabet: every byte has one printable character.
//!
//! `bytes_to_unicode` of GPT-2's `encoder.py`: printable Latin-1 bytes stand for themselves, the
//! others for U+0100 and up, in order. Must not know of vocabularies.

use std::sync::LazyLock;

/// Characters above U+0143 are not in the alphabet.
static BYTE_OF: LazyLock<[Option<u8>; 0x144]> = LazyLock::new(|| {
    let mut table = [None; 0x144];
    let mut shifted = 0x100;
    for byte in 0..=255u8 {
        let itself = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let place = if itself {
            usize::from(byte)
        } else {
            shifted += 1;
            shifted - 1
        };
        table[place] = Some(byte);
    }
    table
});

/// The bytes that a token text stands for; a text with a character outside the alphabet stands for
/// itself.
pub(crate) fn to_bytes(token: &str) -> Vec<u8> {
    token
        .chars()
        .map(|c| BYTE_OF.get(c as usize).copied().flatten())
        .collect::<Option<Vec<u8>>>()
        .unwrap_or_else(|| token.as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_is_gpt_2s() {
        assert_eq!(to_bytes("Ġhi"), b" hi");
        assert_eq!(to_bytes("Ċ"), b"\n");
        assert_eq!(to_bytes("ðŁĻĤ"), "🙂".as_bytes());
        assert_eq!(to_bytes("Ń"), [0xAD]);
        assert_eq!(to_bytes("日本"), "日本".as_bytes());
        let bytes: std::collections::BTreeSet<u8> = BYTE_OF.iter().flatten().copied().collect();
        assert_eq!(bytes.len(), 256);
    }
}
