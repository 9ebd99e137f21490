//! Headers of calls, `traceparent`, `tracestate` and `grpc-timeout`, must be refused or read, whatever they say.
#![no_main]

use baton_telemetry::traces::{TRACEPARENT, TRACESTATE, TraceContext};
use tonic::metadata::{MetadataMap, MetadataValue};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut metadata = MetadataMap::new();
    // One line a header; a name may come twice.
    for (line, name) in bytes.split(|byte| *byte == b'\n').zip(
        [TRACEPARENT, "grpc-timeout", TRACESTATE].iter().cycle(),
    ) {
        if let Ok(value) = MetadataValue::try_from(line) {
            metadata.append(*name, value);
        }
    }
    if let Some(context) = TraceContext::from_headers(metadata.as_ref()) {
        // What is carried on is read again.
        let mut carried = MetadataMap::new();
        context.insert_into(&mut carried);
        assert!(TraceContext::from_headers(carried.as_ref()).is_some());
        assert_eq!(
            TraceContext::from_bytes(&context.to_bytes()).map(|context| context.is_sampled()),
            Some(context.is_sampled())
        );
    }
    let _ = baton_router::time_given(&metadata);
});
