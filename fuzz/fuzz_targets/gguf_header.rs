//! The GGUF reader must refuse or read whatever bytes it gets.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = baton_model_file::parse_gguf_header(bytes);
});
