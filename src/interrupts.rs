//! The signals that ask a process to end. Must not know what ends.

use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Failure;

/// Ctrl-C and SIGTERM.
pub(crate) struct Interrupts {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Interrupts {
    /// Listens from now on.
    pub(crate) fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// Waits for the next of either.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
