//! Keys and values of etcd must be skipped or read, whoever wrote them.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    const KEY: &[u8] = b"baton/workers/decode/d-0/00000000000000ff";
    baton_cluster::is_etcd_entry(KEY, bytes);
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        baton_cluster::is_etcd_entry(&bytes[..end], &bytes[end + 1..]);
    }
});
