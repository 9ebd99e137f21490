//! The process that etcd is: started, killed, stopped, started again with or without what it kept. It must
//! not know who uses it.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_cluster::incoming;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::transport::Server;

use super::service::{Calls, Flaw, Service};
use super::store::Store;
use super::wire::kv_server::KvServer;
use super::wire::lease_server::LeaseServer;
use super::wire::watch_server::WatchServer;
use crate::chance::Random;
use crate::log::Log;
use crate::network::{Death, Host, Machine, Network};

/// Where etcd runs.
pub const ETCD: Machine = Machine(3);
/// Its port.
const PORT: u16 = 2379;
/// Leases are looked at this often.
const LOOK: Duration = Duration::from_millis(500);
/// Most connections.
const CONNECTIONS: usize = 64;

/// etcd and what it keeps, whether it runs or not.
pub struct Etcd {
    network: Network,
    log: Log,
    service: Service,
    running: Mutex<Option<(Host, JoinSet<()>)>>,
}

impl Etcd {
    /// Empty and not started; ids come from `random`.
    pub fn new(network: Network, log: Log, random: Random, flaw: Option<Flaw>) -> Self {
        Self {
            network,
            log,
            service: Service::new(Store::new(random), flaw),
            running: Mutex::default(),
        }
    }

    /// Where it listens.
    pub fn address() -> SocketAddr {
        (ETCD.ip(), PORT).into()
    }

    /// Its only endpoint.
    pub fn endpoint() -> String {
        format!("http://{}", Self::address())
    }

    /// Starts it where it does not run.
    ///
    /// # Errors
    /// In words: its address is taken.
    pub fn start(&self) -> Result<(), String> {
        let host = self.network.start(ETCD);
        let listener = host
            .listen(Self::address())
            .map_err(|error| error.to_string())?;
        self.service.with(|store| store.extend(Instant::now()));
        let mut tasks = JoinSet::new();
        let service = self.service.clone();
        let server = Server::builder()
            .add_service(KvServer::new(service.clone()))
            .add_service(LeaseServer::new(service.clone()))
            .add_service(WatchServer::new(service.clone()))
            .serve_with_incoming(incoming(listener, CONNECTIONS));
        let log = self.log.clone();
        tasks.spawn(async move {
            let ended = server.await;
            log.note(format_args!("etcd ended: {ended:?}"));
        });
        let (log, clock) = (self.log.clone(), host.clone());
        tasks.spawn(async move {
            loop {
                tokio::time::sleep(LOOK).await;
                clock.running().await;
                let ended = service.expire();
                if ended > 0 {
                    log.note(format_args!("{ended} leases end"));
                }
            }
        });
        *self.lock() = Some((host, tasks));
        self.log.note("etcd started");
        Ok(())
    }

    /// Kills it; false if it does not run.
    pub fn kill(&self, death: Death) -> bool {
        // Its tasks end here.
        let Some((host, _tasks)) = self.lock().take() else {
            return false;
        };
        self.network.kill(host.id(), death);
        self.log.note(format_args!("etcd dies: {death:?}"));
        true
    }

    /// Stops it or lets it go on.
    pub fn freeze(&self, frozen: bool) {
        if let Some((host, _)) = &*self.lock() {
            self.network.freeze(host.id(), frozen);
            let how = if frozen { "stops" } else { "goes on" };
            self.log.note(format_args!("etcd {how}"));
        }
    }

    /// Watches that are open now say nothing any more.
    pub fn deafen(&self) {
        self.service.deafen();
    }

    /// Answers come so late from now on.
    pub fn answer_late(&self, late: Duration) {
        self.service.answer_late(late);
    }

    /// Reads or changes what it keeps.
    pub fn with<R>(&self, change: impl FnOnce(&mut Store) -> R) -> R {
        self.service.with(change)
    }

    /// What it has been asked so far.
    pub fn calls(&self) -> Calls {
        self.service.calls()
    }

    fn lock(&self) -> MutexGuard<'_, Option<(Host, JoinSet<()>)>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
