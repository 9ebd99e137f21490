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
