//! The data plane's frame decoder must refuse or decode whatever a peer sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = baton_kv_transfer::decode_frame(bytes);
});
