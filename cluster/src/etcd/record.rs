//! The value of a worker's key: protobuf with a format number.
//!
//! Whatever stands in etcd is checked before anything is built from it, and the value must be of the
//! worker that the key names. It must not know connections.

use baton_proto::domain::WorkerInfo;
use baton_proto::v1;
use prost::Message as _;

use super::key::{Name, Prefix};

/// The only format so far.
const FORMAT: u32 = 1;
/// Longest value that is decoded, in bytes: several times the longest valid one.
const MAX_VALUE_BYTES: usize = 64 << 10;

/// The value that says who a worker is.
pub(super) fn encode(info: &WorkerInfo) -> Vec<u8> {
    let record = v1::WorkerRecord {
        format: FORMAT,
        info: Some(info.clone().into()),
    };
    record.encode_to_vec()
}

/// Whether a key below `baton/` and its value name a worker: the entry for whoever throws
/// arbitrary bytes at it.
pub fn is_etcd_entry(key: &[u8], value: &[u8]) -> bool {
    Prefix::new("baton").is_ok_and(|prefix| decode(&prefix, key, value).is_ok())
}

/// Reads a key and its value.
///
/// # Errors
/// Which worker the key names, if any, and what is wrong.
pub(super) fn decode(
    prefix: &Prefix,
    key: &[u8],
    value: &[u8],
) -> Result<WorkerInfo, (Option<Name>, String)> {
    let Some(named) = prefix.parse(key) else {
        return Err((None, "the key names no worker".to_owned()));
    };
    let wrong = |what: String| (Some(named.clone()), what);
    if value.len() > MAX_VALUE_BYTES {
        let got = value.len();
        let what = format!("the value has {got} bytes, the limit is {MAX_VALUE_BYTES}");
        return Err(wrong(what));
    }
    let record =
        v1::WorkerRecord::decode(value).map_err(|error| wrong(format!("the value: {error}")))?;
    if record.format != FORMAT {
        let format = record.format;
        return Err(wrong(format!("the format is {format}, known is {FORMAT}")));
    }
    let info = record.info.unwrap_or_default();
    let info = WorkerInfo::try_from(info).map_err(|error| wrong(error.to_string()))?;
    if (info.role, (info.worker_id.clone(), info.incarnation)) != named {
        let what = format!(
            "the value is of worker {} (incarnation {}) in another place",
            info.worker_id, info.incarnation
        );
        return Err(wrong(what));
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::*;
    use crate::tests::info;

    #[test]
    fn sec_07_spoiled_entries_are_skipped_and_never_panic() {
        let seed = rand::random();
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let worker = info("d-0", 255, "127.0.0.1:1");
        let prefix = Prefix::new("baton").unwrap();
        let (key, value) = (prefix.worker(&worker).into_bytes(), encode(&worker));
        assert!(is_etcd_entry(&key, &value));
        assert!(!is_etcd_entry(
            b"baton/workers/decode/d-1/00000000000000ff",
            &value
        ));
        assert!(!is_etcd_entry(&key, &vec![0; MAX_VALUE_BYTES + 1]));
        for _ in 0..20_000 {
            let (mut key, mut value) = (key.clone(), value.clone());
            for _ in 0..random.random_range(0..3) {
                let at = random.random_range(0..key.len());
                key[at] = random.random();
            }
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..value.len());
                match random.random_range(0..3) {
                    0 => value[at] = random.random(),
                    1 => value.truncate(at.max(1)),
                    // A length or a tag that promises more than there is.
                    _ => value.splice(at..at, [0xff; 9]).for_each(drop),
                }
            }
            // Whatever is read is the worker that the key names.
            if let Ok(read) = decode(&prefix, &key, &value) {
                assert_eq!(prefix.worker(&read).into_bytes(), key);
            }
        }
    }
}
