//! Whether a change was asked for by the page itself, where no key says so: other sites' pages, also under
//! names that were made to point here, can make a browser send requests. It must not know what changes.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderName, StatusCode, header};
use tonic::Code;

use super::super::error::HttpError;

/// Set by browsers, and by them alone.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Refuses what another page has sent, and what came under a name of somebody else's.
pub(super) fn is_of_the_page(headers: &HeaderMap) -> Result<(), HttpError> {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let host = text(header::HOST).unwrap_or_default();
    let is_own = match (text(FETCH_SITE), text(header::ORIGIN)) {
        (Some(site), _) => site == "same-origin",
        (None, Some(origin)) => origin
            .split_once("://")
            .is_some_and(|(_, from)| from == host),
        // No browser.
        (None, None) => true,
    };
    if is_own && is_address(host) {
        return Ok(());
    }
    let words = "without API keys, only the page itself may ask for changes, opened by an address of this machine";
    Err(HttpError::refused(
        StatusCode::FORBIDDEN,
        Code::PermissionDenied,
        words,
    ))
}

/// Whether a host is named by its address, which nobody else can give a meaning.
fn is_address(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn asked(lines: &[(&'static str, &'static str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.insert(*name, HeaderValue::from_static(value));
        }
        is_of_the_page(&headers).is_ok()
    }

    #[test]
    fn only_the_page_itself_asks() {
        let here = ("host", "127.0.0.1:8000");
        assert!(asked(&[here]));
        assert!(asked(&[here, ("sec-fetch-site", "same-origin")]));
        assert!(asked(&[here, ("origin", "http://127.0.0.1:8000")]));
        assert!(asked(&[("host", "localhost:8000")]));
        assert!(asked(&[("host", "[::1]:8000")]));
        assert!(asked(&[("host", "[::1]")]));
        for site in ["cross-site", "same-site", "none"] {
            assert!(!asked(&[here, ("sec-fetch-site", site)]), "{site}");
        }
        assert!(!asked(&[here, ("origin", "http://evil.example")]));
        assert!(!asked(&[here, ("origin", "null")]));
        let cross = ("sec-fetch-site", "cross-site");
        assert!(!asked(&[here, ("origin", "http://127.0.0.1:8000"), cross]));
        let renamed = ("host", "evil.example:8000");
        assert!(!asked(&[renamed, ("sec-fetch-site", "same-origin")]));
        assert!(!asked(&[renamed, ("origin", "http://evil.example:8000")]));
        assert!(!asked(&[]));
    }
}
