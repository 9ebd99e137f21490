//! `baton router`, `baton prefill`, `baton decode`: one role in this process.
//!
//! Each prints one line, `ready role=… grpc=ADDR …`, to standard output once it can be used.

mod membership;
mod metrics;
mod router;
mod worker;

use tokio::io::AsyncReadExt;

use crate::exit::Failure;
use crate::interrupts::Interrupts;

pub(crate) use router::router;
pub(crate) use worker::{decode, prefill};

/// Resolves on Ctrl-C, SIGTERM or, below a supervisor that holds standard input open, its end. A
/// second signal ends the process at once, but not below a supervisor: a terminal's Ctrl-C reaches
/// both, and the supervisor alone decides when draining has taken too long.
async fn shutdown(with_stdin: bool) -> Result<(), Failure> {
    let mut interrupts = Interrupts::new()?;
    tokio::select! {
        () = interrupts.next() => {}
        () = stdin_closed(), if with_stdin => {}
    }
    if with_stdin {
        return Ok(());
    }
    tokio::spawn(async move {
        interrupts.next().await;
        tracing::warn!("second signal: ending at once");
        std::process::exit(1);
    });
    Ok(())
}

async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    let mut bytes = [0; 64];
    while matches!(stdin.read(&mut bytes).await, Ok(1..)) {}
}

/// Prints the ready line; nobody reading it is no failure.
pub(crate) fn tell_ready(line: &str) {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "ready {line}").and_then(|()| out.flush());
}

/// Parses an address to listen on.
fn socket_address(flag: &str, value: &str) -> Result<std::net::SocketAddr, Failure> {
    value.parse().map_err(|_| {
        Failure::usage(format!(
            "{flag} is {value:?}, expected IP:PORT, e.g. 127.0.0.1:7070"
        ))
    })
}
