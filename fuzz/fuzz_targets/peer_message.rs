//! Messages of routers, workers and clients must be refused or read, whatever they are made of.
#![no_main]

use baton_proto::{PeerMessage, SequenceLimits};

const LIMITS: SequenceLimits = SequenceLimits {
    vocabulary: 1000,
    context_length: 4096,
};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Some((kind, message)) = bytes.split_first() {
        let kinds = PeerMessage::ALL;
        kinds[usize::from(*kind) % kinds.len()].accepts(message, LIMITS);
    }
});
