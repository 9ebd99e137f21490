//! A router and its workers as processes of the simulated network: started, stopped, killed, started again.
//!
//! Everything here is the product's own code, but for the engine and the network. It must not know what is
//! asked of the fleet, nor what is right.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_cluster::{EtcdOptions, Membership, StaticList};
use baton_decode_worker::DecodeWorker;
use baton_kv_transfer::TransportChoice;
use baton_prefill_worker::PrefillWorker;
use baton_proto::ids::WorkerId;
use baton_proto::v1;
use baton_router::{Router, RouterConfig};
use baton_worker::{
    BoundWorker, Equipment, KvRegion, Membership as Known, PoolSize, Role, Source, Stage,
    WorkerOptions,
};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::chance::Random;
use crate::etcd::process::{ETCD, Etcd};
use crate::front::Front;
use crate::log::Log;
use crate::memory::Pages;
use crate::model::Model;
use crate::network::{Death, Host, Listener, Machine, Network};
use crate::oracle::{OracleEngine, layout};
use crate::planted::Planted;
use crate::scenario::{End, Known as KnownBy, Scenario, Seat};

/// Port of gRPC.
const PORT: u16 = 7000;
/// Port of a worker that has a front.
const BEHIND_PORT: u16 = 7002;
/// Port of the data plane: fixed, so that a restarted worker has the address of the one before.
const DATA_PORT: u16 = 7001;
/// Where in etcd the service lies.
const PREFIX: &str = "sim";
/// Where the router runs.
pub const ROUTER: Machine = Machine(1);
/// Where clients run.
pub const CLIENTS: Machine = Machine(2);

/// A router and its workers.
pub struct Fleet {
    /// What they talk over.
    pub network: Network,
    /// What happens.
    pub log: Log,
    /// What they serve.
    pub model: Arc<Model>,
    /// What it is made of.
    pub scenario: Scenario,
    /// Where workers register, if that is etcd.
    pub etcd: Option<Etcd>,
    planted: Option<Planted>,
    router: Mutex<Option<(Host, JoinHandle<()>)>>,
    seats: Vec<Mutex<Option<Running>>>,
}

/// A worker that runs.
struct Running {
    host: Host,
    ended: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
}

impl Fleet {
    /// A fleet that has not been started.
    pub fn new(
        seed: u64,
        network: Network,
        log: Log,
        model: Arc<Model>,
        scenario: Scenario,
        planted: Option<Planted>,
    ) -> Arc<Self> {
        let etcd = matches!(scenario.known, KnownBy::Etcd { .. }).then(|| {
            let ids = Random::named(seed, "leases");
            let flaw = planted.and_then(Planted::flaw);
            Etcd::new(network.clone(), log.clone(), ids, flaw)
        });
        let seats = scenario.workers.iter().map(|_| Mutex::default()).collect();
        Arc::new(Self {
            network,
            log,
            model,
            scenario,
            etcd,
            planted,
            router: Mutex::default(),
            seats,
        })
    }

    /// Starts etcd, if there is one, the router and every worker.
    ///
    /// # Errors
    /// In words: what the product refuses.
    pub fn start(self: &Arc<Self>) -> Result<(), String> {
        self.etcd.as_ref().map_or(Ok(()), Etcd::start)?;
        self.start_router()?;
        (0..self.seats.len()).try_for_each(|at| self.start_worker(at))
    }

    /// Starts a router where none runs.
    ///
    /// # Errors
    /// In words: what the product refuses.
    pub fn start_router(&self) -> Result<(), String> {
        let host = self.network.start(ROUTER);
        let dialer = host.dialer();
        let check = self.model.served.check_worker();
        let membership = match self.scenario.known {
            KnownBy::Listed => {
                let workers = 0..self.seats.len();
                let addresses = workers.map(|at| address(machine(at)).to_string()).collect();
                let list = StaticList::new(addresses).map_err(|error| error.to_string())?;
                Membership::static_list(list, &dialer, &check)
            }
            KnownBy::Registered => Membership::embedded(),
            KnownBy::Etcd { .. } => Membership::etcd(etcd_options()?, &dialer, check),
        };
        let config = RouterConfig {
            local_prefill_tokens: self.scenario.local_prefill_tokens,
            grant_wait: Duration::from_secs(5),
            progress_timeout: Duration::from_secs(4),
            tokenizer_threads: 1,
            ..RouterConfig::default()
        };
        let router = Router::new(config, self.model.served.clone(), membership, dialer)
            .map_err(|error| error.to_string())?;
        let listener = host
            .listen(address(ROUTER))
            .map_err(|error| error.to_string())?;
        let log = self.log.clone();
        let ended = tokio::spawn(async move {
            let ended = router.serve(listener, std::future::pending()).await;
            log.note(format_args!("router ended: {ended:?}"));
        });
        *self.router() = Some((host, ended));
        self.log.note("the router started");
        Ok(())
    }

    /// Kills the router; false if none runs.
    pub fn kill_router(&self, death: Death) -> bool {
        let Some((host, ended)) = self.router().take() else {
            return false;
        };
        self.network.kill(host.id(), death);
        ended.abort();
        self.log.note(format_args!("the router dies: {death:?}"));
        true
    }

    /// Starts a worker where none runs.
    ///
    /// # Errors
    /// In words: what the product refuses.
    pub fn start_worker(self: &Arc<Self>, at: usize) -> Result<(), String> {
        let machine = machine(at);
        let host = self.network.start(machine);
        let seat = &self.scenario.workers[at];
        let listener = self.listen(&host, seat.decodes, machine)?;
        let options = self.options(at, seat, &host)?;
        let worker = BoundWorker::over(options, listener, address(machine))
            .map_err(|error| error.to_string())?;
        let source = Source::Ready(Box::new(self.equipment(seat, &host)));
        let (stop, stopped) = oneshot::channel();
        let ended = if seat.decodes {
            tokio::spawn(run::<DecodeWorker>(
                self.log.clone(),
                at,
                worker,
                source,
                stopped,
            ))
        } else {
            tokio::spawn(run::<PrefillWorker>(
                self.log.clone(),
                at,
                worker,
                source,
                stopped,
            ))
        };
        *self.seat(at) = Some(Running {
            host,
            ended,
            stop: Some(stop),
        });
        self.log.note(format_args!("{} started", name(at)));
        Ok(())
    }

    /// Where a worker listens: behind a front, if one has been planted.
    fn listen(&self, host: &Host, decodes: bool, machine: Machine) -> Result<Listener, String> {
        let listen = |at| host.listen(at).map_err(|error| error.to_string());
        let lie = self.planted.and_then(Planted::lie);
        let Some(lie) = lie.filter(|_| decodes) else {
            return listen(address(machine));
        };
        let behind = SocketAddr::new(machine.ip(), BEHIND_PORT);
        let worker = host.dialer().channel(&behind.to_string());
        let front = Front::new(worker.map_err(|error| error.to_string())?, lie);
        tokio::spawn(front.serve(listen(address(machine))?));
        listen(behind)
    }

    fn options(&self, at: usize, seat: &Seat, host: &Host) -> Result<WorkerOptions, String> {
        let id = WorkerId::new(&self.scenario.name(at)).ok_or("a worker's name")?;
        let mut options = WorkerOptions::new(PathBuf::new(), id);
        options.listen = address(machine(at));
        options.membership = match self.scenario.known {
            KnownBy::Listed => Known::Static,
            KnownBy::Registered => Known::Router(address(ROUTER).to_string()),
            KnownBy::Etcd { lease } => Known::Etcd {
                options: etcd_options()?,
                lease,
            },
        };
        options.pool = PoolSize::Pages(seat.pages);
        options.page_size = self.scenario.page_size;
        options.token_budget = seat.chunk + seat.batch;
        options.max_chunk = seat.chunk;
        options.max_batch = seat.batch;
        options.transports = TransportChoice::Tcp;
        options.transfer_listen = SocketAddr::new(machine(at).ip(), DATA_PORT);
        options.transfer_lease = Duration::from_secs(2);
        options.drain_limit = Duration::from_secs(4);
        options.write_deadline = Duration::from_secs(5);
        options.dialer = host.dialer();
        options.network = Arc::new(host.clone());
        Ok(options)
    }

    fn equipment(&self, seat: &Seat, host: &Host) -> Equipment {
        let layout = layout(self.scenario.page_size, seat.pages);
        let pages = Pages::new(layout);
        let engine = OracleEngine::new(self.model.oracle.clone(), pages.clone());
        let (host, step, token) = (host.clone(), seat.step, seat.token);
        Equipment {
            engine: match self.planted {
                Some(planted) => planted.engine(engine),
                None => Box::new(engine),
            },
            drive: Box::new(move |step_loop| {
                tokio::spawn(step_loop.run_paced(move |tokens| {
                    let host = host.clone();
                    async move {
                        tokio::time::sleep(step + token * tokens as u32).await;
                        // A stopped process computes nothing; a dead one never again.
                        host.running().await;
                    }
                }));
                Ok(())
            }),
            region: KvRegion {
                layout,
                memory: pages,
                shared: None,
            },
            fingerprint: self.model.fingerprint(self.scenario.page_size),
            model: self.model.name.clone(),
            eos_ids: self.model.oracle.eos_ids.clone(),
        }
    }

    /// Kills the worker that runs at a seat; false if there is none.
    pub fn kill_worker(&self, at: usize, death: Death) -> bool {
        let Some(running) = self.seat(at).take() else {
            return false;
        };
        self.network.kill(running.host.id(), death);
        running.ended.abort();
        self.log.note(format_args!("{} dies: {death:?}", name(at)));
        true
    }

    /// Asks the worker at a seat to end and waits until it has; false if there is none.
    pub async fn drain_worker(&self, at: usize) -> bool {
        let Some(running) = self.seat(at).take() else {
            return false;
        };
        self.log.note(format_args!("{} is asked to end", name(at)));
        if let Some(stop) = running.stop {
            // One that has ended by itself is not there to be told.
            let _ = stop.send(());
        }
        let _ = running.ended.await;
        self.network.kill(running.host.id(), Death::Killed);
        true
    }

    /// The process at a seat.
    pub fn host(&self, at: usize) -> Option<Host> {
        self.seat(at).as_ref().map(|running| running.host.clone())
    }

    fn router(&self) -> MutexGuard<'_, Option<(Host, JoinHandle<()>)>> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seat(&self, at: usize) -> MutexGuard<'_, Option<Running>> {
        self.seats[at]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

async fn run<R: Role>(
    log: Log,
    at: usize,
    worker: BoundWorker,
    source: Source,
    stopped: oneshot::Receiver<()>,
) {
    let reports = log.clone();
    let observer = move |stage| match stage {
        Stage::Ready(_) => reports.note(format_args!("{} is ready", name(at))),
        Stage::Draining { legs } => {
            reports.note(format_args!("{} drains {legs} legs", name(at)));
        }
        Stage::Listening(_) | Stage::Loading { .. } => {}
    };
    let shutdown = async {
        if stopped.await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let ended = worker.run::<R>(source, observer, shutdown).await;
    log.note(format_args!("{} has ended: {ended:?}", name(at)));
}

fn etcd_options() -> Result<EtcdOptions, String> {
    EtcdOptions::new(&Etcd::endpoint(), PREFIX).map_err(|error| error.to_string())
}

/// What the keys of all workers in etcd begin with.
pub fn keys() -> String {
    format!("{PREFIX}/workers/")
}

/// A worker's key in etcd.
pub fn key(info: &v1::WorkerInfo) -> String {
    let role = match info.role() {
        v1::WorkerRole::Prefill => "prefill",
        _ => "decode",
    };
    let (id, incarnation) = (&info.worker_id, info.incarnation);
    format!("{}{role}/{id}/{incarnation:016x}", keys())
}

/// A worker's machine.
pub fn machine(at: usize) -> Machine {
    Machine(10 + at as u8)
}

/// A link end's machine.
pub fn end(of: End) -> Machine {
    match of {
        End::Router => ROUTER,
        End::Worker(at) => machine(at),
        End::Etcd => ETCD,
    }
}

/// Where a machine's gRPC is.
pub fn address(machine: Machine) -> SocketAddr {
    SocketAddr::new(machine.ip(), PORT)
}

/// How the log calls a worker.
pub fn name(at: usize) -> String {
    format!("w{at}")
}
