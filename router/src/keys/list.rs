//! The list of API keys: TOML that holds only their hashes. It must not know where the list lies.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use baton_proto::ids::WorkerId;
use rand::RngCore as _;

use crate::error::ConfigError;

/// Most keys of a list: all are compared with every call's.
const MAX_KEYS: usize = 10_000;
/// Most tokens per minute that can be set.
const MAX_TOKENS_PER_MINUTE: u64 = 1 << 40;

/// Keys by hash, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyList {
    pub(super) keys: Vec<KeyEntry>,
}

/// One key and its limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyEntry {
    pub(super) name: String,
    /// Of the whole key, as it is presented.
    pub(super) hash: [u8; 32],
    pub(super) max_concurrent: Option<usize>,
    pub(super) tokens_per_minute: Option<u64>,
    pub(super) admin: bool,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    key: Vec<Written>,
}

/// A key as the file has it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    hash: String,
    max_concurrent: Option<u64>,
    tokens_per_minute: Option<u64>,
    #[serde(default)]
    admin: bool,
}

impl KeyList {
    /// Reads the TOML text of a list.
    ///
    /// # Errors
    /// Syntax, an unknown field, a name or hash that is not one, a limit out of range, two keys of one
    /// name or hash, too many keys.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let wrong = |detail: String| ConfigError::Keys { detail };
        let file: File = toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
        let (got, limit) = (file.key.len(), MAX_KEYS);
        if got > limit {
            return Err(wrong(format!("{got} keys, the limit is {limit}")));
        }
        let keys: Result<Vec<_>, _> = file.key.into_iter().map(Written::check).collect();
        let keys = keys.map_err(wrong)?;
        let (mut names, mut hashes) = (BTreeSet::new(), BTreeSet::new());
        for key in &keys {
            if !names.insert(&key.name) || !hashes.insert(key.hash) {
                let name = &key.name;
                return Err(wrong(format!(
                    "key {name}: its name or hash is there twice"
                )));
            }
        }
        Ok(Self { keys })
    }
}

impl Written {
    fn check(self) -> Result<KeyEntry, String> {
        // Names of keys and of workers follow one pattern.
        let Some(name) = WorkerId::new(&self.name) else {
            let shown: String = self
                .name
                .chars()
                .take(64)
                .flat_map(char::escape_debug)
                .collect();
            return Err(format!(
                "name \"{shown}\" must match [A-Za-z0-9._-]{{1,64}}"
            ));
        };
        let name = name.to_string();
        let hash = bytes_of(&self.hash)
            .ok_or_else(|| format!("key {name}: its hash must be 64 hexadecimal digits"))?;
        let range = |field: &str, value: Option<u64>, most: u64| match value {
            Some(value) if !(1..=most).contains(&value) => Err(format!(
                "key {name}: {field} is {value}, allowed: 1 to {most}"
            )),
            value => Ok(value),
        };
        let max_concurrent = range("max_concurrent", self.max_concurrent, 1 << 20)?;
        let tokens_per_minute = range(
            "tokens_per_minute",
            self.tokens_per_minute,
            MAX_TOKENS_PER_MINUTE,
        )?;
        Ok(KeyEntry {
            hash,
            max_concurrent: max_concurrent.map(|most| most as usize),
            tokens_per_minute,
            admin: self.admin,
            name,
        })
    }
}

fn bytes_of(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (byte, digits) in bytes.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(hex.get(2 * digits..2 * digits + 2)?, 16).ok()?;
    }
    Some(bytes)
}

/// A new random key, and its hash as a list has it.
pub fn new_key() -> (String, String) {
    let mut secret = [0; 32];
    rand::rng().fill_bytes(&mut secret);
    let mut key = "baton-".to_owned();
    for byte in secret {
        // Writing to a String cannot fail.
        let _ = write!(key, "{byte:02x}");
    }
    let hash = blake3::hash(key.as_bytes()).to_hex().to_string();
    (key, hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_checked() {
        let (key, hash) = new_key();
        assert_eq!(key.len(), 70);
        let text = format!("[[key]]\nname = \"a\"\nhash = \"{hash}\"\n");
        let list = KeyList::parse(&text).unwrap();
        assert_eq!(list.keys[0].hash, *blake3::hash(key.as_bytes()).as_bytes());
        assert!(KeyList::parse("").unwrap().keys.is_empty());
        let other = new_key().1;
        let wrong = [
            (text.replace("hash", "hush"), "unknown field"),
            (
                text.replace("name = \"a\"", "name = \"../a\""),
                "must match",
            ),
            (text.replace(&hash, "12"), "64 hexadecimal digits"),
            (
                text.replace(&hash, &"é".repeat(32)),
                "64 hexadecimal digits",
            ),
            (
                format!("{text}max_concurrent = 0"),
                "max_concurrent is 0, allowed: 1 to 1048576",
            ),
            (
                format!("{text}tokens_per_minute = 0"),
                "tokens_per_minute is 0",
            ),
            (format!("{text}{text}"), "twice"),
            (format!("{text}{}", text.replace(&hash, &other)), "twice"),
            (format!("{text}{}", text.replace("\"a\"", "\"b\"")), "twice"),
        ];
        for (text, part) in wrong {
            let error = KeyList::parse(&text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains(&hash), "a hash in {error}");
        }
    }
}
