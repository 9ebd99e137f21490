//! Settings of a worker process, validated once. It must not know where they came from.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::{Dialer, EtcdOptions, Tls};
use baton_engine::Isa;
use baton_kv_cache::KvDtype;
use baton_kv_transfer::{Network, Tcp, TransportChoice};
use baton_proto::ids::WorkerId;
use baton_telemetry::traces::Tracer;

use crate::WorkerError;
use crate::tls_network::TlsNetwork;

/// How many pages the pool has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolSize {
    /// This many pages.
    Pages(u32),
    /// As many as fit into this many bytes.
    Bytes(u64),
    /// A quarter of the memory that is available, at most 4 GiB.
    Auto,
}

/// How the worker becomes known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// Registers with the router at this `host:port`; ready once it accepts.
    Router(String),
    /// Routers have a list and find it; ready once it is loaded.
    Static,
    /// Registers in etcd, where routers find it; ready once it is registered and a router has come.
    Etcd {
        /// How to reach etcd.
        options: EtcdOptions,
        /// How long the registration outlives the worker, in whole seconds.
        lease: Duration,
    },
}

/// Settings of a worker process.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    /// GGUF file or Hugging Face directory.
    pub model: PathBuf,
    /// Stable name.
    pub worker_id: WorkerId,
    /// gRPC address (port 0: any).
    pub listen: SocketAddr,
    /// `host:port` that routers are told to connect to (default: the bound address).
    pub advertise: Option<String>,
    /// How it becomes known.
    pub membership: Membership,
    /// Size of the page pool.
    pub pool: PoolSize,
    /// Tokens per page.
    pub page_size: u32,
    /// Element type of K and V.
    pub kv_dtype: KvDtype,
    /// Compute threads.
    pub threads: usize,
    /// CPUs to pin compute threads to (empty: no pinning).
    pub cpus: Vec<usize>,
    /// Force an instruction set.
    pub isa: Option<Isa>,
    /// Most tokens in one step.
    pub token_budget: usize,
    /// Most tokens of one chunk.
    pub max_chunk: usize,
    /// Most sequences in one step.
    pub max_batch: usize,
    /// Most requests waiting.
    pub max_queued: usize,
    /// Whether prefixes are kept and reused.
    pub prefix_cache: bool,
    /// A sequence whose reader takes nothing for this long ends.
    pub write_deadline: Duration,
    /// A step thread that stands still for this long makes the worker not ready, and for
    /// twelve times as long not live.
    pub stuck_after: Duration,
    /// Which transports move pages.
    pub transports: TransportChoice,
    /// Address of the data plane's TCP listener (decode workers; port 0: any).
    pub transfer_listen: SocketAddr,
    /// Host that prefill workers are told to connect to (default: the listen address).
    pub transfer_advertise: Option<String>,
    /// Time without progress after which a transfer fails.
    pub transfer_lease: Duration,
    /// Makes and takes the data plane's tcp connections.
    pub network: Arc<dyn Network>,
    /// Reaches routers.
    pub dialer: Dialer,
    /// Under which the gRPC port is served; strangers are refused.
    pub tls: Option<Tls>,
    /// Folder for Unix sockets.
    pub runtime_dir: PathBuf,
    /// Longest time that running requests get to end after shutdown was asked for.
    pub drain_limit: Duration,
    /// Where spans of requests begin.
    pub tracer: Tracer,
}

/// How many times longer than [`WorkerOptions::stuck_after`] a step thread must stand still for the process to
/// be given up.
pub(crate) const DEAD_AFTER: u32 = 12;

impl WorkerOptions {
    /// Puts every plane under TLS: both sides show a certificate.
    pub fn secure(&mut self, tls: Tls) {
        self.dialer = self.dialer.clone().with_tls(Some(&tls));
        self.network = Arc::new(TlsNetwork::new(tls.clone()));
        self.tls = Some(tls);
    }

    /// Defaults for a model: loopback, any port, automatic pool.
    pub fn new(model: PathBuf, worker_id: WorkerId) -> Self {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        Self {
            model,
            worker_id,
            listen: any,
            advertise: None,
            membership: Membership::Static,
            pool: PoolSize::Auto,
            page_size: 16,
            kv_dtype: KvDtype::Bf16,
            threads: 1,
            cpus: Vec::new(),
            isa: None,
            token_budget: 512,
            max_chunk: 512,
            max_batch: 64,
            max_queued: 256,
            prefix_cache: true,
            write_deadline: Duration::from_secs(30),
            stuck_after: Duration::from_secs(5),
            transports: TransportChoice::Auto,
            transfer_listen: any,
            transfer_advertise: None,
            transfer_lease: Duration::from_secs(5),
            network: Arc::new(Tcp),
            dialer: Dialer::plain(),
            tls: None,
            runtime_dir: std::env::temp_dir(),
            drain_limit: Duration::from_secs(30),
            tracer: Tracer::default(),
        }
    }

    /// Checks every number against its limits.
    ///
    /// # Errors
    /// The first option out of range, with its value and what is accepted.
    pub fn validate(&self) -> Result<(), WorkerError> {
        range("page-size", self.page_size as u64, 1, 256)?;
        range("threads", self.threads as u64, 1, 1024)?;
        range("token-budget", self.token_budget as u64, 1, 65_536)?;
        range(
            "max-chunk",
            self.max_chunk as u64,
            1,
            self.token_budget as u64,
        )?;
        range(
            "max-batch",
            self.max_batch as u64,
            1,
            self.token_budget as u64,
        )?;
        range("max-queued", self.max_queued as u64, 1, 65_536)?;
        match self.pool {
            PoolSize::Pages(pages) => range("pages", pages as u64, 1, MAX_PAGES as u64)?,
            PoolSize::Bytes(bytes) => range("memory", bytes, 1, 1 << 46)?,
            PoolSize::Auto => {}
        }
        let millis = |time: Duration| time.as_millis() as u64;
        range(
            "write-deadline-ms",
            millis(self.write_deadline),
            1,
            3_600_000,
        )?;
        range(
            "transfer-lease-ms",
            millis(self.transfer_lease),
            10,
            600_000,
        )?;
        range("drain-limit-ms", millis(self.drain_limit), 0, 3_600_000)?;
        if let Membership::Etcd { lease, .. } = &self.membership {
            range("etcd-lease-s", lease.as_secs(), 1, 3600)?;
        }
        Ok(())
    }
}

/// Most pages of a pool.
pub(crate) const MAX_PAGES: u32 = 1 << 24;

fn range(option: &'static str, value: u64, low: u64, high: u64) -> Result<(), WorkerError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    let allowed = format!("{low} to {high}");
    Err(WorkerError::Option {
        option,
        value: value.to_string(),
        allowed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    type Spoil = fn(&mut WorkerOptions);

    #[test]
    fn numbers_out_of_range_are_refused_with_value_and_limits() {
        let wrong: [(&str, Spoil); 13] = [
            ("page-size is 0, must be 1 to 256", |o| o.page_size = 0),
            ("page-size is 4294967295, must be 1 to 256", |o| {
                o.page_size = u32::MAX;
            }),
            ("threads is 0, must be 1 to 1024", |o| o.threads = 0),
            ("threads is 5000, must be 1 to 1024", |o| o.threads = 5000),
            ("token-budget is 0, must be 1 to 65536", |o| {
                o.token_budget = 0;
            }),
            ("max-chunk is 513, must be 1 to 512", |o| o.max_chunk = 513),
            ("max-batch is 0, must be 1 to 512", |o| o.max_batch = 0),
            ("max-queued is 0, must be 1 to 65536", |o| o.max_queued = 0),
            ("pages is 0, must be 1 to 16777216", |o| {
                o.pool = PoolSize::Pages(0);
            }),
            ("pages is 4294967295, must be 1 to 16777216", |o| {
                o.pool = PoolSize::Pages(u32::MAX);
            }),
            ("memory is 0, must be 1 to 70368744177664", |o| {
                o.pool = PoolSize::Bytes(0);
            }),
            ("transfer-lease-ms is 0, must be 10 to 600000", |o| {
                o.transfer_lease = Duration::ZERO;
            }),
            (
                "drain-limit-ms is 18446744073709551615, must be 0 to 3600000",
                |o| {
                    o.drain_limit = Duration::from_millis(u64::MAX);
                },
            ),
        ];
        let worker_id = WorkerId::new("w").expect("a valid name");
        let options = WorkerOptions::new(PathBuf::new(), worker_id);
        options.validate().expect("the defaults are in range");
        for (message, spoil) in wrong {
            let mut options = options.clone();
            spoil(&mut options);
            let error = options.validate().expect_err(message);
            assert_eq!(error.to_string(), message);
        }
    }
}
