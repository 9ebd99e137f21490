//! Actors of the tests: an engine behind a gate, worker nodes, the router's part, a faulty link.

pub(crate) mod gate;
pub(crate) mod link;
pub(crate) mod node;
pub(crate) mod router;

use std::time::Duration;

use baton_model_file::fixtures::Random;

/// No single wait of a test is longer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Bounds a wait; says what was waited for.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(PATIENCE, future).await;
    waited.unwrap_or_else(|_| panic!("waited {PATIENCE:?} for {what}"))
}

/// Waits until `condition` holds; bounded.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut condition: impl FnMut() -> F) {
    soon(what, async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A prompt of `tokens` tokens of the tiny models' vocabulary (past the control tokens).
pub(crate) fn prompt(seed: u64, tokens: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..tokens).map(|_| 3 + random.below(500) as u32).collect()
}
