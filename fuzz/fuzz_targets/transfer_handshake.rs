//! The handshake must refuse or decode whatever a stranger sends.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = baton_kv_transfer::decode_hello(bytes);
});
