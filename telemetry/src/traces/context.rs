//! Where a span stands, as it crosses processes: W3C trace context in headers, 25 bytes elsewhere.
//!
//! What cannot be read is no context: whoever gets it begins a trace of its own. It must not know spans.

use std::fmt;
use std::str::FromStr;

use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::metadata::{MetadataMap, MetadataValue};

/// Header that names trace, span and whether they are sampled.
pub const TRACEPARENT: &str = "traceparent";
/// Header that carries what vendors have to say besides.
pub const TRACESTATE: &str = "tracestate";

/// Bytes of a `traceparent` of version 00.
const TRACEPARENT_BYTES: usize = 55;
/// A longer `tracestate` is not carried on.
const MAX_TRACESTATE_BYTES: usize = 512;
/// Bytes of [`TraceContext::to_bytes`].
const CONTEXT_BYTES: usize = 25;

/// A span of this or another process: its trace, its id, and whether it is sampled.
#[derive(Clone, PartialEq, Eq)]
pub struct TraceContext(pub(super) SpanContext);

impl TraceContext {
    /// What a caller's headers (or gRPC metadata, `metadata.as_ref()`) say; nothing if they say nothing or
    /// anything else than exactly one good `traceparent`.
    pub fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut values = headers.get_all(TRACEPARENT).iter();
        let parent = values.next()?;
        if values.next().is_some() {
            return None;
        }
        let (trace_id, span_id, flags) = parse(parent.as_bytes())?;
        let state = state(headers);
        let context = SpanContext::new(trace_id, span_id, flags, true, state);
        context.is_valid().then_some(Self(context))
    }

    /// Adds the headers to the metadata of a call.
    pub fn insert_into(&self, metadata: &mut MetadataMap) {
        let traceparent = format!(
            "00-{}-{}-{:02x}",
            self.0.trace_id(),
            self.0.span_id(),
            self.0.trace_flags() & TraceFlags::SAMPLED
        );
        if let Ok(value) = MetadataValue::try_from(traceparent) {
            metadata.insert(TRACEPARENT, value);
        }
        let state = self.0.trace_state().header();
        if !state.is_empty()
            && let Ok(value) = MetadataValue::try_from(state)
        {
            metadata.insert(TRACESTATE, value);
        }
    }

    /// Trace id 16, span id 8, flags 1.
    pub fn to_bytes(&self) -> [u8; CONTEXT_BYTES] {
        let mut bytes = [0; CONTEXT_BYTES];
        bytes[..16].copy_from_slice(&self.0.trace_id().to_bytes());
        bytes[16..24].copy_from_slice(&self.0.span_id().to_bytes());
        bytes[24] = self.0.trace_flags().to_u8();
        bytes
    }

    /// Reads [`Self::to_bytes`] of another process; nothing if an id is zero.
    pub fn from_bytes(bytes: &[u8; CONTEXT_BYTES]) -> Option<Self> {
        let (trace_id, rest) = bytes.split_first_chunk::<16>()?;
        let (span_id, rest) = rest.split_first_chunk::<8>()?;
        let flags = TraceFlags::new(rest[0]) & TraceFlags::SAMPLED;
        let (trace_id, span_id) = (TraceId::from_bytes(*trace_id), SpanId::from_bytes(*span_id));
        let context = SpanContext::new(trace_id, span_id, flags, true, TraceState::NONE);
        context.is_valid().then_some(Self(context))
    }

    /// Whether whoever began the trace wants its spans.
    pub fn is_sampled(&self) -> bool {
        self.0.is_sampled()
    }

    /// The trace's id, as 32 hexadecimal digits.
    pub fn trace_id(&self) -> impl fmt::Display + fmt::Debug + use<> {
        self.0.trace_id()
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.trace_id(), self.0.span_id())
    }
}

/// `VERSION-TRACE_ID-SPAN_ID-FLAGS` in lower-case hexadecimal digits. Later versions may append to it.
fn parse(text: &[u8]) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, rest) = text.split_at_checked(TRACEPARENT_BYTES)?;
    let version = hex(known.get(..2)?)?;
    let fits = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest[0] == b'-',
    };
    let dashed = known[2] == b'-' && known[35] == b'-' && known[52] == b'-';
    if !fits || !dashed {
        return None;
    }
    let trace_id = TraceId::from(hex(&known[3..35])?);
    let span_id = SpanId::from(u64::try_from(hex(&known[36..52])?).ok()?);
    let flags = TraceFlags::new(u8::try_from(hex(&known[53..55])?).ok()?);
    Some((trace_id, span_id, flags & TraceFlags::SAMPLED))
}

/// At most 32 digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |value, digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(digit))
    })
}

/// All `tracestate` headers, one after the other; nothing if they are malformed or too long.
fn state(headers: &HeaderMap) -> TraceState {
    let mut all = String::new();
    for value in headers.get_all(TRACESTATE) {
        let Ok(value) = HeaderValue::to_str(value) else {
            return TraceState::NONE;
        };
        if all.len() + value.len() >= MAX_TRACESTATE_BYTES {
            return TraceState::NONE;
        }
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(value);
    }
    let state = TraceState::from_str(&all).unwrap_or_default();
    match state.get("") {
        // The library takes an empty key for one.
        Some(_) => TraceState::NONE,
        None => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn of(values: &[&str], states: &[&str]) -> Option<TraceContext> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(TRACEPARENT, HeaderValue::from_str(value).unwrap());
        }
        for value in states {
            headers.append(TRACESTATE, HeaderValue::from_str(value).unwrap());
        }
        TraceContext::from_headers(&headers)
    }

    #[test]
    fn a_good_header_is_read_and_written_again() {
        let context = of(&[GOOD], &["a=1", "b=2"]).expect("a context");
        assert!(context.is_sampled());
        let mut metadata = MetadataMap::new();
        context.insert_into(&mut metadata);
        assert_eq!(metadata.get(TRACEPARENT).unwrap(), GOOD);
        assert_eq!(metadata.get(TRACESTATE).unwrap(), "a=1,b=2");
        let unsampled = of(&[&GOOD.replace("-01", "-00")], &[]).expect("a context");
        assert!(!unsampled.is_sampled());
    }

    #[test]
    fn later_versions_may_append() {
        assert!(of(&[&format!("cc{}", &GOOD[2..])], &[]).is_some());
        assert!(of(&[&format!("cc{}-more", &GOOD[2..])], &[]).is_some());
        assert!(of(&[&format!("cc{}more", &GOOD[2..])], &[]).is_none());
        assert!(of(&[&format!("{GOOD}-more")], &[]).is_none());
    }

    #[test]
    fn obs_01_malformed_headers_are_no_context() {
        let zero_trace = "00-00000000000000000000000000000000-00f067aa0ba902b7-01";
        let zero_span = "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01";
        let wrong = [
            "",
            "00",
            zero_trace,
            zero_span,
            &GOOD.to_uppercase(),
            &GOOD.replace('-', "_"),
            &GOOD[..54],
            &format!("ff{}", &GOOD[2..]),
            &GOOD.replace("4bf9", "4bg9"),
            &GOOD.replace("4bf9", "+bf9"),
            &"x".repeat(8192),
        ];
        for header in wrong {
            assert_eq!(of(&[header], &[]), None, "{header}");
        }
        assert_eq!(of(&[GOOD, GOOD], &[]), None, "two of them");
        let mut headers = HeaderMap::new();
        headers.insert(
            TRACEPARENT,
            HeaderValue::from_bytes(&[0xff; TRACEPARENT_BYTES]).unwrap(),
        );
        assert_eq!(TraceContext::from_headers(&headers), None);
    }

    #[test]
    fn a_bad_or_long_state_is_left_out() {
        for state in ["=", "no equals sign", &format!("a={}", "x".repeat(600))] {
            let context = of(&[GOOD], &[state]).expect("a context");
            assert_eq!(context.0.trace_state().header(), "", "{state}");
        }
    }

    #[test]
    fn bytes_are_read_and_written_again() {
        let context = of(&[GOOD], &[]).expect("a context");
        assert_eq!(TraceContext::from_bytes(&context.to_bytes()), Some(context));
        assert_eq!(TraceContext::from_bytes(&[0; 25]), None);
    }

    /// Whatever comes, it is read the same again or not at all.
    #[test]
    fn obs_01_random_headers_never_panic() {
        let mut state = 0x9E37_79B9_7F4A_7C15_u64;
        let mut next = move |below: usize| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut good = 0;
        for _ in 0..20_000 {
            let mut bytes = GOOD.as_bytes().to_vec();
            for _ in 0..next(3) {
                let alphabet = b"0123456789abcdefABCDEFg-+ \xff";
                let at = next(bytes.len());
                bytes[at] = alphabet[next(alphabet.len())];
            }
            bytes.truncate(TRACEPARENT_BYTES + 1 - next(2) * next(TRACEPARENT_BYTES));
            let Ok(value) = HeaderValue::from_bytes(&bytes) else {
                continue;
            };
            let mut headers = HeaderMap::new();
            headers.insert(TRACEPARENT, value);
            if let Some(context) = TraceContext::from_headers(&headers) {
                good += 1;
                let mut metadata = MetadataMap::new();
                context.insert_into(&mut metadata);
                let again = TraceContext::from_headers(metadata.as_ref());
                assert_eq!(again, Some(context), "{}", bytes.escape_ascii());
            }
        }
        assert!(good > 1000, "{good} of them are good");
    }
}
