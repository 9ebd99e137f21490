//! The member table: who there is and what each last reported.
//!
//! Keyed by worker id *and* incarnation, so that two processes with one name coexist and neither can
//! remove the other. An address belongs to the incarnation that registered there last. It must not
//! know where entries come from.

use std::collections::BTreeMap;
use std::sync::Arc;

use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::ids::{Incarnation, WorkerId};
use tokio::sync::watch;
use tokio::time::Instant;

/// Most members of a table.
pub const MAX_MEMBERS: usize = 4096;

/// One start of one worker.
pub type MemberKey = (WorkerId, Incarnation);

/// One worker incarnation.
#[derive(Debug, Clone)]
pub struct Member {
    /// Identity and capacity.
    pub info: Arc<WorkerInfo>,
    /// Last valid load report; the default before the first.
    pub load: Arc<WorkerLoad>,
    /// When it arrived; `None` before the first.
    pub load_at: Option<Instant>,
    /// Load reports that were refused as absurd.
    pub refused_loads: u64,
    /// Which registration wrote this entry: only that one may change or remove it.
    registration: u64,
}

/// All members at one moment.
#[derive(Debug, Clone, Default)]
pub struct MemberTable {
    members: BTreeMap<MemberKey, Member>,
}

impl MemberTable {
    /// Members by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&MemberKey, &Member)> {
        self.members.iter()
    }

    /// One member.
    pub fn get(&self, key: &MemberKey) -> Option<&Member> {
        self.members.get(key)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// The one place that changes the table.
#[derive(Debug)]
pub(crate) struct TableWriter {
    table: watch::Sender<Arc<MemberTable>>,
    registrations: std::sync::atomic::AtomicU64,
}

impl TableWriter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            table: watch::Sender::new(Arc::default()),
            registrations: std::sync::atomic::AtomicU64::new(1),
        })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<MemberTable>> {
        self.table.subscribe()
    }

    /// Adds a member, or replaces the entry of the same incarnation and any other one that claims
    /// its address. `None` if the table is full. The member goes when the entry is dropped.
    pub(crate) fn register(self: &Arc<Self>, info: WorkerInfo) -> Option<Entry> {
        let key = (info.worker_id.clone(), info.incarnation);
        let registration = self
            .registrations
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut added = false;
        self.table.send_modify(|table| {
            let members = &mut Arc::make_mut(table).members;
            members.retain(|other, member| *other == key || member.info.address != info.address);
            if members.len() < MAX_MEMBERS || members.contains_key(&key) {
                added = true;
                let member = Member {
                    info: Arc::new(info),
                    load: Arc::default(),
                    load_at: None,
                    refused_loads: 0,
                    registration,
                };
                members.insert(key.clone(), member);
            }
        });
        added.then(|| Entry {
            writer: Arc::clone(self),
            key,
            registration,
        })
    }
}

/// A member's presence in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    writer: Arc<TableWriter>,
    key: MemberKey,
    registration: u64,
}

impl Entry {
    pub(crate) fn key(&self) -> &MemberKey {
        &self.key
    }

    pub(crate) fn report(&self, load: WorkerLoad) {
        self.change(|member| {
            member.load = Arc::new(load);
            member.load_at = Some(Instant::now());
        });
    }

    pub(crate) fn refuse_report(&self) {
        self.change(|member| member.refused_loads += 1);
    }

    fn change(&self, change: impl FnOnce(&mut Member)) {
        self.writer.table.send_if_modified(|table| {
            if !self.owns(table) {
                return false;
            }
            if let Some(member) = Arc::make_mut(table).members.get_mut(&self.key) {
                change(member);
            }
            true
        });
    }

    fn owns(&self, table: &MemberTable) -> bool {
        table
            .get(&self.key)
            .is_some_and(|member| member.registration == self.registration)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.writer.table.send_if_modified(|table| {
            let owns = self.owns(table);
            if owns {
                Arc::make_mut(table).members.remove(&self.key);
            }
            owns
        });
    }
}
