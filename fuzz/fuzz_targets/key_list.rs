//! A list of API keys, and a list of workers, must be refused or read.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let _ = baton_router::KeyList::parse(text);
        let _ = baton_cluster::StaticList::parse(text);
    }
});
