//! The router: admission, placement, retries, the public API.
