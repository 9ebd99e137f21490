//! Bodies of HTTP clients must be refused or read, whatever they are made of.
#![no_main]

use baton_router::HttpBody;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for kind in HttpBody::ALL {
        kind.accepts(bytes);
    }
});
