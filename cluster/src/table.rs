//! The member table: who there is and what each last reported.
//!
//! Keyed by worker id *and* incarnation, so that two processes with one name coexist and neither can
//! remove the other. An address belongs to one incarnation: to the one that holds it for as long as
//! that one reports, then to the next that asks. It must not know where entries come from.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::ids::{Incarnation, WorkerId};
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::Status;

/// Most members of a table.
pub const MAX_MEMBERS: usize = 4096;
/// A member that has not reported for this long no longer holds its address against others.
const HOLDS_FOR: Duration = Duration::from_secs(3);

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
    registered_at: Instant,
    /// Tells that registration who took its place.
    successor: Arc<watch::Sender<Option<MemberKey>>>,
}

impl Member {
    fn has_reported_lately(&self) -> bool {
        self.load_at.unwrap_or(self.registered_at).elapsed() < HOLDS_FOR
    }
}

/// Why a member is not added.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RegisterError {
    #[error("{MAX_MEMBERS} workers are registered already")]
    Full,
    #[error(
        "address {address} belongs to worker {} (incarnation {}), which is alive at {held}",
        holder.0, holder.1
    )]
    Taken {
        address: String,
        holder: MemberKey,
        held: String,
    },
}

impl From<RegisterError> for Status {
    fn from(error: RegisterError) -> Self {
        match error {
            RegisterError::Full => Self::resource_exhausted(error.to_string()),
            RegisterError::Taken { .. } => Self::failed_precondition(error.to_string()),
        }
    }
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

impl MemberTable {
    /// Puts a member into the table, or leaves the table as it is.
    fn admit(self: &mut Arc<Self>, key: &MemberKey, member: Member) -> Result<(), RegisterError> {
        let address = &member.info.address;
        // The same process again is the same key at the same address.
        let rivals = self
            .members
            .iter()
            .filter(|(other, rival)| (*other == key) != (rival.info.address == *address));
        for (holder, rival) in rivals {
            if rival.has_reported_lately() {
                return Err(RegisterError::Taken {
                    address: address.clone(),
                    holder: holder.clone(),
                    held: rival.info.address.clone(),
                });
            }
        }
        let goes =
            |other: &MemberKey, rival: &Member| other == key || rival.info.address == *address;
        let displaced = self
            .members
            .iter()
            .filter(|(other, rival)| goes(other, rival))
            .count();
        if self.members.len() - displaced >= MAX_MEMBERS {
            return Err(RegisterError::Full);
        }
        let members = &mut Arc::make_mut(self).members;
        members.retain(|other, rival| {
            let goes = goes(other, rival);
            if goes {
                tracing::warn!(worker = %other.0, incarnation = %other.1, address,
                    by = %key.0, by_incarnation = %key.1, "registration displaced");
                rival.successor.send_replace(Some(key.clone()));
            }
            !goes
        });
        members.insert(key.clone(), member);
        Ok(())
    }
}

/// The one place that changes the table.
#[derive(Debug)]
pub(crate) struct TableWriter {
    table: watch::Sender<Arc<MemberTable>>,
    registrations: AtomicU64,
}

impl TableWriter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            table: watch::Sender::new(Arc::default()),
            registrations: AtomicU64::new(1),
        })
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Arc<MemberTable>> {
        self.table.subscribe()
    }

    /// Adds a member, in place of the same incarnation's earlier entry and of one that has fallen
    /// silent at this address; who is displaced learns of it. The member goes when the entry is
    /// dropped.
    pub(crate) fn register(self: &Arc<Self>, info: WorkerInfo) -> Result<Entry, RegisterError> {
        let key = (info.worker_id.clone(), info.incarnation);
        let registration = self.registrations.fetch_add(1, Ordering::Relaxed);
        let (successor, displaced) = watch::channel(None);
        let mut member = Some(Member {
            info: Arc::new(info),
            load: Arc::default(),
            load_at: None,
            refused_loads: 0,
            registration,
            registered_at: Instant::now(),
            successor: Arc::new(successor),
        });
        let mut result = Ok(());
        self.table.send_if_modified(|table| {
            if let Some(member) = member.take() {
                result = table.admit(&key, member);
            }
            result.is_ok()
        });
        if let Err(error) = result {
            tracing::warn!(worker = %key.0, incarnation = %key.1, %error, "registration refused");
            return Err(error);
        }
        Ok(Entry {
            writer: Arc::clone(self),
            key,
            registration,
            displaced,
        })
    }
}

/// A member's presence in the table.
#[derive(Debug)]
pub(crate) struct Entry {
    writer: Arc<TableWriter>,
    key: MemberKey,
    registration: u64,
    displaced: watch::Receiver<Option<MemberKey>>,
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

    /// Waits until another registration has taken this one's place; what to tell its owner.
    pub(crate) async fn displaced(&self) -> Status {
        let mut displaced = self.displaced.clone();
        let by = match displaced.wait_for(Option::is_some).await {
            Ok(by) => by.clone(),
            Err(_) => None,
        };
        match by {
            Some(by) if by == self.key => Status::aborted("registered again by the same worker"),
            Some((worker, incarnation)) => Status::aborted(format!(
                "the address was taken by worker {worker} (incarnation {incarnation})"
            )),
            // Removed by the entry's own end only.
            None => std::future::pending().await,
        }
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
