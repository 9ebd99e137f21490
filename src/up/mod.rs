//! `baton up`: router and workers as child processes of one supervisor.
//!
//! The supervisor holds no request and no page. It starts children, tells when all are ready, restarts
//! what dies, and ends everything on Ctrl-C or SIGTERM. Children also end by themselves when their
//! standard input closes, so a killed supervisor leaves nothing behind.

mod child;
mod plan;

use std::path::PathBuf;

use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use crate::args::UpArgs;
use crate::exit::Failure;
use crate::interrupts::Interrupts;
use crate::progress;
use crate::roles::tell_ready;

use child::{Child, Ready};
use plan::Plan;

/// What the children get from this process besides flags.
pub(crate) struct Inherited {
    /// `--config`.
    pub(crate) config: Option<PathBuf>,
    /// `--log`.
    pub(crate) log: Option<String>,
}

/// Runs until a signal or a failed start.
pub(crate) async fn run(args: UpArgs, inherited: Inherited) -> Result<(), Failure> {
    let plan = Plan::new(args, inherited)?;
    let mut interrupts = Interrupts::new()?;
    let mut router = Pool::new();
    let mut workers = Pool::new();

    let started = tokio::select! {
        started = start(&plan, &mut router, &mut workers) => started,
        () = interrupts.next() => Err(Failure::failed("interrupted while starting")),
    };
    let result = match started {
        Ok((ready, metrics)) => {
            let http = ready
                .http
                .as_deref()
                .map_or_else(String::new, |http| format!(" http={http}"));
            tell_ready(&format!(
                "grpc={}{http} prefill={} decode={}{metrics}",
                ready.address, plan.prefill, plan.decode
            ));
            tokio::select! {
                () = interrupts.next() => {
                    tracing::info!("stopping; a second signal stops at once");
                    Ok(())
                }
                failure = router.ended() => Err(failure),
                failure = workers.ended() => Err(failure),
            }
        }
        Err(failure) => Err(failure),
    };
    // The router first: what it still serves needs its workers.
    tokio::select! {
        () = async {
            router.stop().await;
            workers.stop().await;
        } => {}
        () = interrupts.next() => {
            // Aborted supervision kills its child as it is dropped, which must have happened before
            // this process ends.
            router.children.shutdown().await;
            workers.children.shutdown().await;
        }
    }
    result
}

/// The router first, for workers need its address; then all workers at once.
/// Also where metrics are, in words: the router's first, then the workers' in the order of their names.
async fn start(
    plan: &Plan,
    router: &mut Pool,
    workers: &mut Pool,
) -> Result<(Ready, String), Failure> {
    let total = 1 + u64::from(plan.prefill) + u64::from(plan.decode);
    let bar = progress::requests("starting", total);
    bar.enable_steady_tick(TICK);
    let ready = router.launch(plan.router());
    let address = router.ready(ready).await?;
    bar.inc(1);
    let mut metrics: Vec<String> = address.metrics.iter().cloned().collect();
    let children = plan.workers(&address.address);
    let waiting: Vec<_> = children
        .into_iter()
        .map(|child| workers.launch(child))
        .collect();
    for ready in waiting {
        metrics.extend(workers.ready(ready).await?.metrics);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let metrics = match &metrics[..] {
        [] => String::new(),
        some => format!(" metrics={}", some.join(",")),
    };
    Ok((address, metrics))
}

/// How often the clock beside the progress bar moves.
const TICK: std::time::Duration = std::time::Duration::from_millis(100);

/// Children that stop together.
struct Pool {
    children: JoinSet<Result<(), Failure>>,
    shutdown: watch::Sender<bool>,
}

impl Pool {
    fn new() -> Self {
        Self {
            children: JoinSet::new(),
            shutdown: watch::Sender::new(false),
        }
    }

    fn launch(&mut self, child: Child) -> oneshot::Receiver<Ready> {
        let (told, ready) = oneshot::channel();
        self.children
            .spawn(child.supervise(told, self.shutdown.subscribe()));
        ready
    }

    async fn ready(&mut self, ready: oneshot::Receiver<Ready>) -> Result<Ready, Failure> {
        tokio::select! {
            Ok(ready) = ready => Ok(ready),
            failure = self.ended() => Err(failure),
        }
    }

    /// Why supervision of a child has ended by itself; pending while all go on.
    async fn ended(&mut self) -> Failure {
        match self.children.join_next().await {
            Some(ended) => supervision_ended(ended),
            None => std::future::pending().await,
        }
    }

    async fn stop(&mut self) {
        self.shutdown.send_replace(true);
        while self.children.join_next().await.is_some() {}
    }
}

fn supervision_ended(ended: Result<Result<(), Failure>, tokio::task::JoinError>) -> Failure {
    match ended {
        Ok(Err(failure)) => failure,
        Ok(Ok(())) => Failure::failed("a part of the service has ended"),
        Err(error) => Failure::failed(format!("supervision failed: {error}")),
    }
}
