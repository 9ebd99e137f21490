//! A connection's task that panics ends its own attempt and nothing else. It must not know what it does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

/// Runs to the end; `None` if it panics.
pub(crate) async fn unless_panics<T>(future: impl Future<Output = T>) -> Option<T> {
    let mut future = std::pin::pin!(future);
    std::future::poll_fn(|cx| {
        // What is looked at after a panic is the socket, figures, and an attempt that is closed there and then.
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx)));
        polled.map_or(Poll::Ready(None), |polled| polled.map(Some))
    })
    .await
}
