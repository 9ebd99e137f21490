//! The life of a worker process: listen, load, register, serve, drain, end.
//!
//! It must not know the role's work or where options and signals come from.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::Accept;
use baton_kv_transfer::host_id;
use baton_proto::domain::WorkerInfo;
use baton_proto::ids::Incarnation;
use baton_telemetry::metrics::Metrics;
use rand::Rng as _;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::metrics;
use crate::registration::{News, Registration};
use crate::server::{Health, serve};
use crate::watchdog::Watchdog;
use crate::{Equipment, Role, Slot, Worker, WorkerError, WorkerOptions, load_model};

/// How long ended legs, fences and open calls get after the drain limit.
const GRACE: Duration = Duration::from_secs(2);

/// Where a worker is in its life; for progress bars and the line that says "ready".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stage {
    /// gRPC answers at this address; health says live.
    Listening(SocketAddr),
    /// Weights are being read and packed.
    Loading {
        /// So far.
        done_bytes: u64,
        /// All.
        total_bytes: u64,
    },
    /// The worker may be placed.
    Ready(Box<WorkerInfo>),
    /// Nothing new is accepted; this many legs run.
    Draining {
        /// Legs that run.
        legs: usize,
    },
}

/// Gives the engine, and may block. `progress(done_bytes, total_bytes)`.
pub type Loading =
    Box<dyn FnOnce(&mut dyn FnMut(u64, u64)) -> Result<Equipment, WorkerError> + Send>;

/// Where the engine comes from.
pub enum Source {
    /// It is loaded, on a thread of its own.
    Loading(Loading),
    /// It is there.
    Ready(Box<Equipment>),
}

/// A worker that has its address but no model yet.
pub struct BoundWorker {
    options: WorkerOptions,
    listener: Box<dyn Accept>,
    address: SocketAddr,
    metrics: Arc<Metrics>,
}

impl BoundWorker {
    /// Checks the options and binds the gRPC address.
    ///
    /// # Errors
    /// An option out of range, or an address in use.
    pub async fn bind(options: WorkerOptions) -> Result<Self, WorkerError> {
        options.validate()?;
        let listen = options.listen;
        let failed = |error| WorkerError::Listen {
            address: listen,
            error,
        };
        let listener = TcpListener::bind(listen).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            options,
            listener: Box::new(listener),
            address,
            metrics: Metrics::new(),
        })
    }

    /// Checks the options and takes connections from a listener of any kind, which is bound to `address`.
    ///
    /// # Errors
    /// An option out of range.
    pub fn over(
        options: WorkerOptions,
        listener: impl Accept,
        address: SocketAddr,
    ) -> Result<Self, WorkerError> {
        options.validate()?;
        Ok(Self {
            options,
            listener: Box::new(listener),
            address,
            metrics: Metrics::new(),
        })
    }

    /// The bound gRPC address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What this worker tells Prometheus; before its model is loaded only of the process.
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// Loads the options' model for the CPU and runs until `shutdown` resolves and the drain is over.
    ///
    /// # Errors
    /// What keeps the worker from starting or going on.
    pub async fn run_model<R: Role>(
        self,
        observer: impl FnMut(Stage) + Send,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), WorkerError> {
        let options = self.options.clone();
        let source =
            move |progress: &mut dyn FnMut(u64, u64)| load_model(&options, R::ROLE, progress);
        self.run::<R>(Source::Loading(Box::new(source)), observer, shutdown)
            .await
    }

    /// Like [`run_model`](Self::run_model), with an engine from anywhere.
    ///
    /// # Errors
    /// What keeps the worker from starting or going on.
    pub async fn run<R: Role>(
        self,
        source: Source,
        mut observer: impl FnMut(Stage) + Send,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), WorkerError> {
        let Self {
            options,
            listener,
            address,
            metrics,
        } = self;
        // Ended when this function is.
        let mut keeping = JoinSet::new();
        metrics.set_role(metrics::role_name(R::ROLE));
        keeping.spawn(Arc::clone(&metrics).keep());
        let stop = CancellationToken::new();
        // Whatever ends this function ends the server with it.
        let _stop_on_exit = stop.clone().drop_guard();
        let health = Health::new().await;
        let slot = Slot::<R>::empty();
        let mut server = tokio::spawn(serve(
            listener,
            options.tls.clone(),
            slot.clone(),
            health.clone(),
            stop.clone(),
        ));
        observer(Stage::Listening(address));

        let mut shutdown = std::pin::pin!(shutdown);
        let equipment = tokio::select! {
            () = &mut shutdown => return Ok(()),
            ended = &mut server => return Err(unexpected_end(ended)),
            equipment = load(source, &mut observer) => equipment?,
        };
        let role = Arc::new(assemble::<R>(equipment, &options, address, &metrics).await?);
        metrics::read(&metrics, &role);
        slot.fill(role.clone());

        let mut registration = Registration::start(&role, &options.membership, &options.dialer)?;
        let mut draining = role.worker().watch_drain();
        let mut watchdog = Watchdog::new(options.stuck_after);
        let outcome = loop {
            tokio::select! {
                () = &mut shutdown => break Ok(()),
                ended = &mut server => break Err(unexpected_end(ended)),
                () = role.worker().steps().ended() => break Err(WorkerError::StepLoopEnded),
                news = registration.next() => match news {
                    News::Placeable => {
                        watchdog.placeable(&health, true).await;
                        observer(Stage::Ready(Box::new(role.worker().info().clone())));
                    }
                    News::NotPlaceable => watchdog.placeable(&health, false).await,
                    News::Drain => role.worker().drain(),
                },
                () = watchdog.next() => watchdog.look(role.worker(), &health).await,
                // A drain that was asked for ends the worker as a signal does.
                Ok(()) = draining.changed() => break Ok(()),
            }
        };
        if outcome.is_err() {
            health.set_live(false).await;
            return outcome;
        }
        health.set_ready(false).await;
        observer(Stage::Draining {
            legs: role.worker().legs(),
        });
        // Out of etcd first, so that no router comes for what is refused from now on.
        registration.withdrawn().await;
        role.worker().finish(options.drain_limit, GRACE).await;
        drop(registration);
        stop.cancel();
        // Open calls of clients that do not go away must not keep the process.
        let _ = tokio::time::timeout(GRACE, server).await;
        Ok(())
    }
}

/// Loads on a thread of its own, which a shutdown need not wait for.
async fn load(
    source: Source,
    observer: &mut (impl FnMut(Stage) + Send),
) -> Result<Equipment, WorkerError> {
    let source = match source {
        Source::Loading(loading) => loading,
        Source::Ready(equipment) => return Ok(*equipment),
    };
    let (report, mut reports) = mpsc::channel(16);
    let (finish, mut finished) = oneshot::channel();
    let body = move || {
        let loaded = source(&mut |done_bytes, total_bytes| {
            // A progress report that nobody has taken yet is as good as the next one.
            let _ = report.try_send(Stage::Loading {
                done_bytes,
                total_bytes,
            });
        });
        let _ = finish.send(loaded);
    };
    std::thread::Builder::new()
        .name("load".into())
        .spawn(body)
        .map_err(|error| WorkerError::Internal(format!("cannot start a thread: {error}")))?;
    loop {
        tokio::select! {
            Some(stage) = reports.recv() => observer(stage),
            loaded = &mut finished => {
                return loaded
                    .unwrap_or_else(|_| Err(WorkerError::Internal("loading panicked".into())));
            }
        }
    }
}

async fn assemble<R: Role>(
    equipment: Equipment,
    options: &WorkerOptions,
    address: SocketAddr,
    metrics: &Metrics,
) -> Result<R, WorkerError> {
    let Equipment {
        engine,
        drive,
        region,
        fingerprint,
        model,
        eos_ids,
    } = equipment;
    let info = WorkerInfo {
        worker_id: options.worker_id.clone(),
        // Zero is "absent" on the wire.
        incarnation: Incarnation(rand::rng().random_range(1..=u64::MAX)),
        role: R::ROLE,
        address: advertised(options.advertise.as_deref(), address),
        fingerprint,
        model,
        pages_total: region.layout.pages,
        max_batch: options.max_batch as u32,
        context_length: engine.context_length(),
        pid: std::process::id(),
        host_id: host_id(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let worker = Worker::start(info, (engine, drive), eos_ids, &region, options, metrics)?;
    R::assemble(worker, region, options).await
}

/// `host:port` for others: as asked, with the bound port where none was given.
fn advertised(asked: Option<&str>, bound: SocketAddr) -> String {
    match asked {
        None => bound.to_string(),
        Some(host) if host.ends_with(']') || !host.contains(':') => {
            format!("{host}:{}", bound.port())
        }
        Some(address) => address.to_owned(),
    }
}

fn unexpected_end(ended: Result<Result<(), WorkerError>, tokio::task::JoinError>) -> WorkerError {
    match ended {
        Ok(Err(error)) => error,
        Ok(Ok(())) => WorkerError::Internal("the gRPC server ended by itself".into()),
        Err(error) => WorkerError::Internal(format!("the gRPC server: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_host_gets_the_bound_port() {
        let bound = SocketAddr::from(([127, 0, 0, 1], 7071));
        assert_eq!(advertised(None, bound), "127.0.0.1:7071");
        assert_eq!(advertised(Some("pod-3"), bound), "pod-3:7071");
        assert_eq!(advertised(Some("pod-3:80"), bound), "pod-3:80");
        assert_eq!(advertised(Some("[::1]"), bound), "[::1]:7071");
        assert_eq!(advertised(Some("[::1]:80"), bound), "[::1]:80");
    }
}
