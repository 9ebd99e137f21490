//! API keys: who a caller is, and how much its key may use.
//!
//! A key is known here by its hash alone. It must not know what a call is about.

mod bucket;
mod list;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use tokio::time::Instant;
use tonic::metadata::MetadataMap;

use bucket::Bucket;
use list::KeyEntry;
pub use list::{KeyList, new_key};

use crate::error::RequestError;

/// Hint to those who have too many requests.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Longest hint: a debt may be long, and limits may be raised.
const LONGEST_HINT: Duration = Duration::from_mins(1);
/// How a key is presented.
const SCHEME: &str = "Bearer ";

/// The keys that are taken now. Clones share them.
#[derive(Debug, Clone)]
pub struct ApiKeys {
    keys: Arc<RwLock<Arc<[Arc<Key>]>>>,
}

/// One key and what it uses.
pub(crate) struct Key {
    entry: KeyEntry,
    hash: blake3::Hash,
    usage: Arc<Usage>,
}

/// Outlives changes of the list.
#[derive(Debug)]
struct Usage {
    running: AtomicUsize,
    bucket: Mutex<Option<Bucket>>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.entry.name).finish()
    }
}

impl ApiKeys {
    /// Takes these keys.
    pub fn new(list: &KeyList) -> Self {
        let keys = Self {
            keys: Arc::new(RwLock::new(Arc::from([]))),
        };
        keys.replace(list);
        keys
    }

    /// Takes these keys from now on. A key that keeps its name keeps what it has used.
    pub fn replace(&self, list: &KeyList) {
        let now = Instant::now();
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let known: BTreeMap<&str, &Arc<Key>> = (keys.iter())
            .map(|key| (key.entry.name.as_str(), key))
            .collect();
        *keys = (list.keys.iter())
            .map(|entry| {
                let known = known.get(entry.name.as_str()).copied();
                Arc::new(Key::new(entry.clone(), known, now))
            })
            .collect();
    }

    /// Whose call this is.
    pub(crate) fn caller(&self, metadata: &MetadataMap) -> Result<Arc<Key>, RequestError> {
        let given = metadata
            .get("authorization")
            .ok_or(RequestError::Unauthenticated("an API key is needed"))?;
        let key = given.to_str().ok().and_then(bearer);
        let key = key.ok_or(RequestError::Unauthenticated(
            "authorization must be `Bearer KEY`",
        ))?;
        let presented = blake3::hash(key.as_bytes());
        let keys = Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner));
        // Hashes compare in constant time, and all of them are compared.
        let mut found = None;
        for known in keys.iter() {
            if known.hash == presented {
                found = Some(known);
            }
        }
        let unknown = RequestError::Unauthenticated("the API key is not known here");
        found.cloned().ok_or(unknown)
    }
}

/// The key of an `authorization`; the scheme's case does not matter.
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, key) = authorization.split_at_checked(SCHEME.len())?;
    scheme
        .eq_ignore_ascii_case(SCHEME)
        .then(|| key.trim())
        .filter(|key| !key.is_empty())
}

impl Key {
    fn new(entry: KeyEntry, known: Option<&Arc<Self>>, now: Instant) -> Self {
        let usage = known.map_or_else(
            || {
                Arc::new(Usage {
                    running: AtomicUsize::new(0),
                    bucket: Mutex::new(None),
                })
            },
            |known| Arc::clone(&known.usage),
        );
        {
            let mut bucket = usage.bucket();
            match (entry.tokens_per_minute, bucket.as_mut()) {
                (Some(rate), Some(bucket)) => bucket.set_rate(rate, now),
                (Some(rate), None) => *bucket = Some(Bucket::new(rate, now)),
                (None, _) => *bucket = None,
            }
        }
        Self {
            hash: entry.hash.into(),
            entry,
            usage,
        }
    }

    /// Whether it may operate the service.
    pub(crate) fn is_admin(&self) -> bool {
        self.entry.admin
    }

    /// Counts a call until the place is dropped; refused, with a hint, if there are too many.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<KeyPlace, RequestError> {
        let running = self.usage.running.fetch_add(1, Ordering::Relaxed);
        let place = KeyPlace(Arc::clone(self));
        match self.entry.max_concurrent {
            Some(limit) if running >= limit => {
                let name = &self.entry.name;
                Err(RequestError::Overloaded {
                    what: format!(
                        "{running} requests of key {name} run or wait already, its limit is {limit}"
                    ),
                    retry_after: RETRY_AFTER,
                })
            }
            _ => Ok(place),
        }
    }

    /// Counts a prompt's tokens; refused, with a hint, if the minute has none left for it.
    pub(crate) fn charge_prompt(&self, tokens: usize, now: Instant) -> Result<(), RequestError> {
        let mut bucket = self.usage.bucket();
        let Some(bucket) = bucket.as_mut() else {
            return Ok(());
        };
        bucket
            .try_take(tokens as u64, now)
            .map_err(|after| RequestError::Overloaded {
                what: format!(
                    "key {} has used its {} tokens per minute",
                    self.entry.name,
                    self.entry.tokens_per_minute.unwrap_or_default()
                ),
                retry_after: after.min(LONGEST_HINT),
            })
    }

    /// Counts tokens of a completion. What has begun is never cut off: later requests wait.
    pub(crate) fn charge_completion(&self, tokens: usize, now: Instant) {
        if let Some(bucket) = self.usage.bucket().as_mut() {
            bucket.take(tokens as u64, now);
        }
    }

    /// The cache salt of a request: a key shares prefixes with itself alone.
    pub(crate) fn salt(&self, given: &[u8]) -> Vec<u8> {
        blake3::keyed_hash(self.hash.as_bytes(), given)
            .as_bytes()
            .to_vec()
    }
}

impl Usage {
    fn bucket(&self) -> MutexGuard<'_, Option<Bucket>> {
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One call of a key; it counts until it is dropped.
#[derive(Debug)]
pub(crate) struct KeyPlace(Arc<Key>);

impl KeyPlace {
    pub(crate) fn key(&self) -> &Arc<Key> {
        &self.0
    }
}

impl Drop for KeyPlace {
    fn drop(&mut self) {
        self.0.usage.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(keys: &[(&str, &str, &str)]) -> KeyList {
        let mut text = String::new();
        for (name, key, more) in keys {
            let hash = blake3::hash(key.as_bytes()).to_hex();
            let lines = [
                "[[key]]\nname = \"",
                name,
                "\"\nhash = \"",
                &hash,
                "\"\n",
                more,
                "\n",
            ];
            text += &lines.concat();
        }
        KeyList::parse(&text).unwrap()
    }

    fn presented(authorization: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", authorization.parse().unwrap());
        metadata
    }

    #[test]
    fn callers_are_known_by_their_key_alone() {
        let keys = ApiKeys::new(&list(&[("a", "one", ""), ("b", "two", "admin = true")]));
        let caller = |authorization: &str| keys.caller(&presented(authorization));
        assert_eq!(caller("Bearer one").unwrap().entry.name, "a");
        assert!(caller("bearer  two ").unwrap().is_admin());
        for wrong in [
            "",
            "Bearer ",
            "Bearer on",
            "Bearer onee",
            "Basic one",
            "one",
        ] {
            let error = caller(wrong).unwrap_err();
            assert_eq!(error.code(), tonic::Code::Unauthenticated, "{wrong}");
            assert!(!error.to_string().contains("onee"), "{error}");
        }
        assert!(keys.caller(&MetadataMap::new()).is_err());
        keys.replace(&list(&[("b", "two", "")]));
        assert!(caller("Bearer one").is_err());
        assert!(!caller("Bearer two").unwrap().is_admin());
    }

    #[test]
    fn salts_differ_by_key_and_by_what_was_given() {
        let keys = ApiKeys::new(&list(&[("a", "one", ""), ("b", "two", "")]));
        let caller = |authorization: &str| keys.caller(&presented(authorization)).unwrap();
        let (a, b) = (caller("Bearer one"), caller("Bearer two"));
        assert_eq!(a.salt(b""), a.salt(b""));
        assert_ne!(a.salt(b""), b.salt(b""));
        assert_ne!(a.salt(b""), a.salt(b"x"));
        assert_ne!(a.salt(b"x"), b.salt(b"x"));
    }

    #[test]
    fn usage_is_limited_by_key_and_survives_a_new_list() {
        let limits = "max_concurrent = 2\ntokens_per_minute = 60";
        let keys = ApiKeys::new(&list(&[("a", "one", limits), ("b", "two", "")]));
        let key = || keys.caller(&presented("Bearer one")).unwrap();
        let _first = key().enter().unwrap();
        let second = key().enter().unwrap();
        keys.replace(&list(&[("a", "one", limits)]));
        let error = key().enter().unwrap_err().to_string();
        assert!(
            error.contains("key a") && error.contains("limit is 2"),
            "{error}"
        );
        drop(second);
        drop(key().enter().unwrap());

        let now = Instant::now();
        key().charge_prompt(40, now).unwrap();
        key().charge_completion(30, now);
        keys.replace(&list(&[("a", "one", limits)]));
        let RequestError::Overloaded { what, retry_after } =
            key().charge_prompt(5, now).unwrap_err()
        else {
            panic!("not overloaded");
        };
        assert!(what.contains("60 tokens per minute"), "{what}");
        // A new list is taken at another moment: the bucket has filled a little since.
        let enough = Duration::from_secs(15);
        assert!(retry_after <= enough && retry_after > enough / 2);
        key().charge_prompt(5, now + enough).unwrap();
    }
}
