//! `baton up`: router and workers as child processes of one supervisor.
//!
//! The supervisor holds no request and no page. It starts children, tells when all are ready, restarts
//! what dies, and ends everything on Ctrl-C or SIGTERM. Children also end by themselves when their
//! standard input closes, so a killed supervisor leaves nothing behind.

mod child;
mod plan;

use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::args::UpArgs;
use crate::exit::Failure;
use crate::progress;

use child::{Child, Ready};
use plan::Plan;

/// Runs until a signal or a failed start.
pub(crate) async fn run(args: UpArgs, config: Option<PathBuf>) -> Result<(), Failure> {
    let plan = Plan::new(args, config)?;
    let mut interrupts = Interrupts::new()?;
    let (shutdown, stopping) = watch::channel(false);
    let mut children = JoinSet::new();

    let started = tokio::select! {
        started = start(&plan, &mut children, &stopping) => started,
        () = interrupts.next() => Err(Failure::failed("interrupted while starting")),
    };
    let result = match started {
        Ok(router) => {
            println!("ready grpc={} prefill={} decode={}", router.address, plan.prefill, plan.decode);
            tokio::select! {
                () = interrupts.next() => {
                    tracing::info!("stopping; a second signal stops at once");
                    Ok(())
                }
                Some(ended) = children.join_next() => Err(supervision_ended(ended)),
            }
        }
        Err(failure) => Err(failure),
    };
    // Children get SIGTERM and drain; a second signal closes their standard input for good.
    let _ = shutdown.send(true);
    tokio::select! {
        () = async { while children.join_next().await.is_some() {} } => {}
        () = interrupts.next() => children.shutdown().await,
    }
    result
}

/// The router first, for workers need its address; then all workers at once.
async fn start(
    plan: &Plan,
    children: &mut JoinSet<Result<(), Failure>>,
    stopping: &watch::Receiver<bool>,
) -> Result<Ready, Failure> {
    let total = 1 + u64::from(plan.prefill) + u64::from(plan.decode);
    let bar = progress::requests("starting", total);
    let launch = |child: Child, children: &mut JoinSet<_>| {
        let (told, ready) = tokio::sync::oneshot::channel();
        children.spawn(child.supervise(told, stopping.clone()));
        ready
    };
    let router = await_ready(launch(plan.router(), children), children).await?;
    bar.inc(1);
    let waiting: Vec<_> = plan
        .workers(&router.address)
        .into_iter()
        .map(|child| launch(child, children))
        .collect();
    for ready in waiting {
        await_ready(ready, children).await?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(router)
}

async fn await_ready(
    mut ready: tokio::sync::oneshot::Receiver<Ready>,
    children: &mut JoinSet<Result<(), Failure>>,
) -> Result<Ready, Failure> {
    tokio::select! {
        Ok(ready) = &mut ready => Ok(ready),
        Some(ended) = children.join_next() => Err(supervision_ended(ended)),
    }
}

fn supervision_ended(ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Failure {
    match ended {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) => Failure::failed("a part of the service has ended"),
        Err(error) => Failure::failed(format!("supervision failed: {error}")),
    }
}

/// Ctrl-C and SIGTERM.
struct Interrupts {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Interrupts {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| {
            signal(kind).map_err(|error| Failure::failed(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
