//! One membership, whatever fills its table.
//!
//! It must not know what the table is used for.

use std::sync::Arc;

use baton_proto::domain::WorkerInfo;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::dialer::Dialer;
use crate::etcd::{EtcdOptions, Standing, keep_members};
use crate::registry::Registry;
use crate::static_list::{StaticList, watch_worker};
use crate::table::{MemberKey, MemberTable, TableWriter};

/// Says in which fields a worker does not fit the router's model; nothing if it fits.
pub type CheckWorker = Arc<dyn Fn(&WorkerInfo) -> Vec<String> + Send + Sync>;

/// Who there is. Dropping it ends its connections.
#[derive(Debug)]
pub struct Membership {
    writer: Arc<TableWriter>,
    registry: Option<Registry>,
    /// How well the view of etcd stands, where there is one.
    standing: Option<Arc<Standing>>,
    /// Connections to workers that this process has heard of, and to etcd.
    _watchers: JoinSet<()>,
}

impl Membership {
    /// Workers come to this process: see [`Membership::registry`] and [`crate::Announcer`].
    pub fn embedded() -> Self {
        let writer = TableWriter::new();
        let registry = Some(Registry::new(Arc::clone(&writer)));
        Self {
            writer,
            registry,
            standing: None,
            _watchers: JoinSet::new(),
        }
    }

    /// This process goes to the workers of a list; those that do not fit stay in the table, told which
    /// fields differ. Needs a tokio runtime.
    pub fn static_list(list: StaticList, dialer: &Dialer, check: &CheckWorker) -> Self {
        let writer = TableWriter::new();
        let mut watchers = JoinSet::new();
        for address in list.into_addresses() {
            let (dialer, writer) = (dialer.clone(), Arc::clone(&writer));
            watchers.spawn(watch_worker(address, dialer, writer, Arc::clone(check)));
        }
        Self {
            writer,
            registry: None,
            standing: None,
            _watchers: watchers,
        }
    }

    /// This process reads of workers in etcd and goes to them; those that do not fit stay in the table,
    /// told which fields differ. Needs a tokio runtime.
    pub fn etcd(options: EtcdOptions, dialer: &Dialer, check: CheckWorker) -> Self {
        let writer = TableWriter::new();
        let standing = Arc::new(Standing::new());
        let mut watchers = JoinSet::new();
        watchers.spawn(keep_members(
            options,
            dialer.clone(),
            Arc::clone(&writer),
            check,
            Arc::clone(&standing),
        ));
        Self {
            writer,
            registry: None,
            standing: Some(standing),
            _watchers: watchers,
        }
    }

    /// Figures for operators, by name: how old the view of etcd is, and what it has met. None without
    /// etcd.
    pub fn counters(&self) -> Vec<(&'static str, u64)> {
        self.standing
            .as_ref()
            .map(|standing| standing.counters())
            .unwrap_or_default()
    }

    /// The table, now and whenever it changes.
    pub fn table(&self) -> watch::Receiver<Arc<MemberTable>> {
        self.writer.subscribe()
    }

    /// The service that workers register with, if this membership has one.
    pub fn registry(&self) -> Option<&Registry> {
        self.registry.as_ref()
    }

    /// Tells a registered worker over its registration to drain. False where there is no such
    /// registration; the worker's own service can be asked in any case.
    pub fn request_drain(&self, key: &MemberKey) -> bool {
        self.registry
            .as_ref()
            .is_some_and(|registry| registry.request_drain(key))
    }
}
