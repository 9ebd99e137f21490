//! Connections that are open, at most so many: a newcomer takes the place of the one that has had no request
//! in progress and is oldest, so that silence shuts nobody out. It must not know what is said on them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::task::{AbortHandle, JoinSet};

use crate::lanes::Load;

/// Requests in progress on a connection; whether there are any is told where connections are counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Busy {
    requests: Arc<AtomicUsize>,
    load: Arc<Load>,
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub(super) struct Held(Busy);

impl Busy {
    pub(super) fn hold(&self) -> Held {
        if self.requests.fetch_add(1, Ordering::Relaxed) == 0 {
            self.load.busy.fetch_add(1, Ordering::Relaxed);
        }
        Held(self.clone())
    }

    fn is_idle(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.load.busy.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// All that are open.
pub(super) struct Connections {
    limit: usize,
    load: Arc<Load>,
    tasks: JoinSet<()>,
    /// Oldest first; some may have ended.
    open: Vec<(AbortHandle, Busy)>,
}

impl Connections {
    pub(super) fn new(limit: usize, load: Arc<Load>) -> Self {
        Self {
            limit,
            load,
            tasks: JoinSet::new(),
            open: Vec::new(),
        }
    }

    /// Runs one more; false if all others are busy.
    pub(super) fn add<F: Future<Output = ()> + Send + 'static>(
        &mut self,
        serve: impl FnOnce(Busy) -> F,
    ) -> bool {
        while self.tasks.try_join_next().is_some() {}
        if self.tasks.len() >= self.limit {
            self.open.retain(|(task, _)| !task.is_finished());
            if self.open.len() >= self.limit {
                let Some(idle) = self.open.iter().position(|(_, busy)| busy.is_idle()) else {
                    return false;
                };
                let (task, _) = self.open.remove(idle);
                task.abort();
            }
        }
        if self.open.len() >= 2 * self.limit {
            self.open.retain(|(task, _)| !task.is_finished());
        }
        let busy = Busy {
            requests: Arc::default(),
            load: Arc::clone(&self.load),
        };
        let task = self.tasks.spawn(serve(busy.clone()));
        self.open.push((task, busy));
        true
    }

    /// Waits for all to end.
    pub(super) async fn ended(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sec_05_silent_connections_make_room_and_busy_ones_do_not() {
        let mut connections = Connections::new(2, Arc::default());
        let held = Arc::new(std::sync::Mutex::new(Vec::new()));
        let serve = |busy_one: bool| {
            let held = Arc::clone(&held);
            move |busy: Busy| async move {
                if busy_one {
                    held.lock().unwrap().push(busy.hold());
                }
                std::future::pending::<()>().await;
            }
        };
        let settle = || async {
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
        };
        assert!(connections.add(serve(true)));
        assert!(connections.add(serve(false)));
        settle().await;
        let silent = connections.open[1].0.clone();
        assert!(
            connections.add(serve(true)),
            "in the place of the silent one"
        );
        settle().await;
        assert!(silent.is_finished());
        assert!(!connections.add(serve(true)), "all are busy");
        held.lock().unwrap().remove(0);
        let first = connections.open[0].0.clone();
        assert!(connections.add(serve(false)));
        settle().await;
        assert!(first.is_finished());
    }
}
