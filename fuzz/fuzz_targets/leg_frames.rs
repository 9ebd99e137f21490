//! What a worker sends on a leg must be refused or read, and the same however it is cut.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let [piece, bytes @ ..] = bytes else {
        return;
    };
    let told = |piece| {
        let told = baton_cluster::framed_messages(bytes, piece);
        told.map_err(|(before, status)| (before, status.code()))
    };
    assert_eq!(told(usize::from(*piece)), told(bytes.len()));
});
