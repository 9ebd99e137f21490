//! Threads that serve connections, each a lane of its own: a connection, its requests and their legs stay on one
//! thread, and no message wakes another.
//!
//! Each has a runtime for one thread. What is counted and decided for all requests together is shared as ever. It must
//! not know what is served.

mod door;
mod eager;

use std::io;
use std::thread;

use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

pub(crate) use door::{LaneDoor, Load};
pub(crate) use eager::soon;

/// Threads that serve. They end when this is dropped, and whatever is on them.
#[derive(Debug)]
pub struct Lanes(Vec<Lane>);

#[derive(Debug)]
struct Lane {
    runtime: Handle,
    /// Ends its thread when it is dropped.
    _running: oneshot::Sender<()>,
}

impl Lanes {
    /// Starts so many threads, at least one.
    ///
    /// # Errors
    /// The system gives no more threads or files.
    pub fn start(count: usize) -> io::Result<Self> {
        (0..count.max(1))
            .map(Lane::start)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// Where tasks of each lane are spawned.
    pub(crate) fn runtimes(&self) -> impl Iterator<Item = &Handle> {
        self.0.iter().map(|lane| &lane.runtime)
    }

    /// A door for each lane, for the connections of one listener; of `limit` connections each gets its share.
    pub(crate) fn doors(
        &self,
        listener: TcpListener,
        limit: usize,
    ) -> (
        Vec<LaneDoor>,
        impl Future<Output = ()> + Send + 'static + use<>,
    ) {
        door::doors(listener, self.count(), limit)
    }
}

impl Lane {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (running, ended) = oneshot::channel::<()>();
        let serve = move || {
            runtime.spawn(eager::watch());
            // Told or dropped: the same.
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        };
        thread::Builder::new()
            .name(format!("lane-{number}"))
            .spawn(serve)?;
        Ok(Self {
            runtime: handle,
            _running: running,
        })
    }
}
