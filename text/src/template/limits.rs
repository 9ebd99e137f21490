//! How large a template's values may be, and how long it may take.
//!
//! A value's size counts each part as often as it stands there, as writing, comparing or dropping the
//! value would meet it, though the parts may be shared. Sizes of lists and maps are remembered, so
//! that a look costs as much as the value has parts of its own. Must not know of instructions.

use std::borrow::Borrow;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use minijinja::value::{ObjectRepr, Tuple, Value, ValueKind};
use minijinja::{Error, ErrorKind};

/// Largest value, besides what the messages' length adds.
const BASE_BYTES: u64 = 4 << 20;
/// What each byte of the messages adds to that.
const PER_BYTE: u64 = 4;
/// What a value counts for besides its text: about what it takes in memory.
const VALUE_BYTES: u64 = 32;
/// A text made of a value (each character escaped, each part indented) is at most this much longer.
const TEXT_FACTOR: u64 = 8;
/// Most lists and maps around a value.
const MAX_DEPTH: u32 = 32;
/// Longest rendering: some thousand times what a long chat takes.
const LONGEST: Duration = Duration::from_secs(10);
/// Most parts of values whose sizes are remembered, which keeps them in memory.
const MAX_KNOWN: usize = 1 << 16;

/// Of a value that has no parts.
const NONE: std::iter::Empty<Value> = std::iter::empty();

/// What a rendering passed.
#[derive(Debug)]
pub(super) struct Excess {
    pub(super) what: &'static str,
    pub(super) limit: u64,
}

impl Excess {
    /// A text of more than `limit` bytes.
    pub(super) const fn text(limit: u64) -> Self {
        let what = "bytes in one text";
        Self { what, limit }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit of {} {}", self.limit, self.what)
    }
}

impl std::error::Error for Excess {}

impl From<Excess> for Error {
    fn from(excess: Excess) -> Self {
        Self::new(ErrorKind::InvalidOperation, "limit").with_source(excess)
    }
}

/// Limits of one rendering.
pub(super) struct Limits {
    most: u64,
    ends: Instant,
    known: Mutex<Known>,
}

/// Sizes of lists and maps by address; the value kept beside it keeps the address its own.
#[derive(Default)]
struct Known {
    sizes: HashMap<usize, (Value, Size)>,
    parts: usize,
}

#[derive(Clone, Copy)]
struct Size {
    bytes: u64,
    depth: u32,
}

impl Limits {
    /// `bytes`: length of all messages.
    pub(super) fn new(bytes: usize) -> Self {
        Self {
            most: BASE_BYTES + PER_BYTE * bytes as u64,
            ends: Instant::now() + LONGEST,
            known: Mutex::default(),
        }
    }

    /// Longest text that a filter may make of one value.
    pub(super) const fn most_text(&self) -> u64 {
        TEXT_FACTOR * self.most
    }

    /// Refuses a value that is too large or too deep, and any value once time is up.
    pub(super) fn check(&self, value: &Value) -> Result<bool, Error> {
        if Instant::now() > self.ends {
            let what = "seconds";
            let limit = LONGEST.as_secs();
            return Err(Excess { what, limit }.into());
        }
        if value.as_object().is_some() || value.as_str().is_some() {
            self.size(&mut self.known(), value)?;
        }
        Ok(true)
    }

    /// The value, checked. An iterator becomes the list that it would yield: iterators over iterators
    /// have no depth that could be told.
    pub(super) fn plain(&self, value: Value) -> Result<Value, Error> {
        let value = self.listed(value);
        self.check(&value)?;
        Ok(value)
    }

    fn listed(&self, value: Value) -> Value {
        if value.kind() != ValueKind::Iterable {
            return value;
        }
        // One more than fit: the list is then refused.
        let most = usize::try_from(self.most / VALUE_BYTES).unwrap_or(usize::MAX - 1) + 1;
        value
            .try_iter()
            .map_or_else(Value::from, |parts| parts.take(most).collect())
    }

    /// The value, if it can be a part of another.
    pub(super) fn kept(&self, value: Value) -> Result<Value, Error> {
        self.part(&mut self.known(), &value)?;
        Ok(value)
    }

    /// Refuses a format string that could make too long a text of these values.
    pub(super) fn check_format(&self, format: &str, values: &[Value]) -> Result<(), Error> {
        let fields = format.bytes().filter(|byte| b"{%".contains(byte)).count() as u64;
        let widest = format
            .split(|letter: char| !letter.is_ascii_digit())
            .filter(|digits| !digits.is_empty())
            .map(|digits| digits.parse().unwrap_or(u64::MAX))
            .max()
            .unwrap_or(0);
        let mut largest = widest;
        for value in values {
            largest = largest.max(self.size(&mut self.known(), value)?.bytes);
        }
        if fields.saturating_mul(largest) > self.most_text() {
            return Err(Excess::text(self.most_text()).into());
        }
        Ok(())
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.parts > MAX_KNOWN {
            *known = Known::default();
        }
        known
    }

    /// Size of a part of a list or map. Only plain values can be: what changes later (a namespace)
    /// or reads others (an iterator) has no lasting size, and could hold itself.
    fn part(&self, known: &mut Known, value: &Value) -> Result<Size, Error> {
        let changing = value.as_object().is_some_and(|object| match object.repr() {
            ObjectRepr::Map => value
                .downcast_object_ref::<BTreeMap<Value, Value>>()
                .is_none(),
            repr => repr == ObjectRepr::Iterable,
        });
        if changing {
            let detail = "only plain values can be kept in a list, a map or a namespace";
            return Err(Error::new(ErrorKind::InvalidOperation, detail));
        }
        self.size(known, value)
    }

    fn size(&self, known: &mut Known, value: &Value) -> Result<Size, Error> {
        if let Some(text) = value.as_str() {
            return self.sum(known, text.len() as u64, NONE);
        }
        if let Some(list) = value.downcast_object_ref::<Vec<Value>>() {
            let address = ptr::from_ref(list).addr();
            return self.remembered(known, address, value, list.iter());
        }
        if let Some(map) = value.downcast_object_ref::<BTreeMap<Value, Value>>() {
            let address = ptr::from_ref(map).addr();
            let parts = map.iter().flat_map(|(key, value)| [key, value]);
            return self.remembered(known, address, value, parts);
        }
        if let Some(tuple) = value.downcast_object_ref::<Tuple>() {
            let address = ptr::from_ref(tuple).addr();
            return self.remembered(known, address, value, tuple.iter());
        }
        // A namespace, or what the engine itself made: seen anew each time.
        let Some(object) = value.as_object() else {
            return self.sum(known, 0, NONE);
        };
        if object.repr() == ObjectRepr::Map {
            let pairs = object.try_iter_pairs().into_iter().flatten();
            let parts = pairs.flat_map(|(key, value)| [key, self.listed(value)]);
            self.sum(known, 0, parts)
        } else {
            let parts = object.try_iter().into_iter().flatten();
            self.sum(known, 0, parts.map(|part| self.listed(part)))
        }
    }

    fn remembered<'v>(
        &self,
        known: &mut Known,
        address: usize,
        value: &Value,
        parts: impl Iterator<Item = &'v Value>,
    ) -> Result<Size, Error> {
        if let Some((_, size)) = known.sizes.get(&address) {
            return Ok(*size);
        }
        let mut count = 1;
        let size = self.sum(known, 0, parts.inspect(|_| count += 1))?;
        known.parts += count;
        known.sizes.insert(address, (value.clone(), size));
        Ok(size)
    }

    /// `bytes` of its own and the parts'.
    fn sum(
        &self,
        known: &mut Known,
        bytes: u64,
        parts: impl Iterator<Item = impl Borrow<Value>>,
    ) -> Result<Size, Error> {
        let mut sum = Size {
            bytes: bytes + VALUE_BYTES,
            depth: 0,
        };
        let over = |sum: &Size| {
            if sum.bytes > self.most {
                let what = "bytes in one value";
                return Err(Excess {
                    what,
                    limit: self.most,
                });
            }
            if sum.depth > MAX_DEPTH {
                let what = "values inside each other";
                let limit = u64::from(MAX_DEPTH);
                return Err(Excess { what, limit });
            }
            Ok(())
        };
        over(&sum)?;
        for part in parts {
            let part = self.part(known, part.borrow())?;
            sum.bytes += part.bytes;
            sum.depth = sum.depth.max(part.depth + 1);
            over(&sum)?;
        }
        Ok(sum)
    }
}
