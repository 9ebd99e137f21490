//! What etcd keeps: keys and their history by revision, and leases. Pure: it is told the time. It must not
//! know who asks.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;
use tonic::Status;

use super::wire::compare::TargetUnion;
use super::wire::event::Kind;
use super::wire::request_op::Request;
use super::wire::response_op::Response;
use super::wire::{
    Compare, DeleteRangeResponse, Event, KeyValue, PutRequest, PutResponse, RangeRequest,
    RangeResponse, RequestOp, ResponseHeader, ResponseOp, TxnRequest, TxnResponse, compare,
};
use crate::chance::Random;

/// Keys, their history and leases.
#[derive(Debug)]
pub struct Store {
    /// Of the last change.
    revision: i64,
    /// History before this revision is gone.
    compacted: i64,
    keys: BTreeMap<Vec<u8>, KeyValue>,
    /// Every change since the beginning, also of compacted revisions: they are refused, not forgotten.
    history: Vec<Event>,
    leases: BTreeMap<i64, Lease>,
    ids: Random,
}

#[derive(Debug)]
struct Lease {
    ttl: Duration,
    until: Instant,
}

impl Store {
    /// Empty; ids of leases come from `ids`.
    pub fn new(ids: Random) -> Self {
        Self {
            revision: 1,
            compacted: 0,
            keys: BTreeMap::new(),
            history: Vec::new(),
            leases: BTreeMap::new(),
            ids,
        }
    }

    /// Everything is lost but what ids have been given.
    pub fn forget(&mut self) {
        *self = Self::new(self.ids.clone());
    }

    pub(super) fn header(&self) -> ResponseHeader {
        let revision = self.revision;
        ResponseHeader { revision }
    }

    /// All keys under a lease, each with its value.
    pub fn leased(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let leased = self.keys.values().filter(|entry| entry.lease != 0);
        leased
            .map(|entry| (entry.key.clone(), entry.value.clone()))
            .collect()
    }

    /// Puts a key without a lease.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.revision += 1;
        self.set(PutRequest {
            key,
            value,
            lease: 0,
        });
    }

    /// Deletes a key.
    pub fn remove(&mut self, key: &[u8]) {
        self.revision += 1;
        self.delete(key);
    }

    /// Forgets all history before now.
    pub fn compact(&mut self) {
        self.compacted = self.revision;
    }

    pub(super) fn grant(&mut self, ttl_s: i64, now: Instant) -> i64 {
        let id = (self.ids.bits() >> 2) as i64 | 1;
        let ttl = Duration::from_secs(ttl_s.max(1) as u64);
        self.leases.insert(
            id,
            Lease {
                ttl,
                until: now + ttl,
            },
        );
        id
    }

    /// Seconds that the lease lives from now on; 0 if there is none.
    pub(super) fn keep(&mut self, id: i64, now: Instant) -> i64 {
        self.leases.get_mut(&id).map_or(0, |lease| {
            lease.until = now + lease.ttl;
            lease.ttl.as_secs() as i64
        })
    }

    /// Ends a lease and deletes its keys.
    pub(super) fn revoke(&mut self, id: i64) -> Result<(), Status> {
        let known = self.leases.remove(&id);
        known.ok_or_else(|| Status::not_found("etcdserver: requested lease not found"))?;
        let of_it = |entry: &&KeyValue| entry.lease == id;
        let keys: Vec<_> = self.keys.values().filter(of_it).cloned().collect();
        if !keys.is_empty() {
            self.revision += 1;
            for entry in &keys {
                self.delete(&entry.key);
            }
        }
        Ok(())
    }

    /// Ends every lease; how many there were.
    pub fn revoke_all(&mut self) -> usize {
        self.end_leases(|_| true)
    }

    /// Ends leases that were not kept alive; how many.
    pub(super) fn expire(&mut self, now: Instant) -> usize {
        self.end_leases(|lease| lease.until <= now)
    }

    /// Every lease has its whole time again, as after a new start.
    pub(super) fn extend(&mut self, now: Instant) {
        for lease in self.leases.values_mut() {
            lease.until = now + lease.ttl;
        }
    }

    fn end_leases(&mut self, which: impl Fn(&Lease) -> bool) -> usize {
        let ended: Vec<_> = (self.leases.iter())
            .filter(|(_, lease)| which(lease))
            .map(|(id, _)| *id)
            .collect();
        for id in &ended {
            // Only known ones are named.
            let _ = self.revoke(*id);
        }
        ended.len()
    }

    pub(super) fn range(&self, asked: &RangeRequest) -> Result<RangeResponse, Status> {
        if asked.revision > self.revision {
            let words = "etcdserver: mvcc: required revision is a future revision";
            return Err(Status::out_of_range(words));
        }
        if asked.revision > 0 && asked.revision < self.compacted {
            let words = "etcdserver: mvcc: required revision has been compacted";
            return Err(Status::out_of_range(words));
        }
        let then = match asked.revision {
            0 => self.keys.clone(),
            revision => self.as_of(revision),
        };
        let range = Range::new(&asked.key, &asked.range_end);
        let mut kvs: Vec<_> = then.into_values().filter(|kv| range.has(&kv.key)).collect();
        let count = kvs.len();
        if asked.limit > 0 {
            kvs.truncate(asked.limit as usize);
        }
        Ok(RangeResponse {
            header: Some(self.header()),
            more: kvs.len() < count,
            kvs,
            count: count as i64,
        })
    }

    fn as_of(&self, revision: i64) -> BTreeMap<Vec<u8>, KeyValue> {
        let mut keys = BTreeMap::new();
        for entry in self.history.iter().filter_map(|event| event.kv.as_ref()) {
            if entry.mod_revision > revision {
                break;
            }
            if entry.version == 0 {
                keys.remove(&entry.key);
            } else {
                keys.insert(entry.key.clone(), entry.clone());
            }
        }
        keys
    }

    pub(super) fn txn(&mut self, asked: TxnRequest) -> Result<TxnResponse, Status> {
        let succeeded = asked.compare.iter().all(|compare| self.holds(compare));
        let branch = if succeeded {
            asked.success
        } else {
            asked.failure
        };
        self.check(&branch)?;
        let writes = branch
            .iter()
            .any(|op| !matches!(op.request, Some(Request::RequestRange(_)) | None));
        self.revision += i64::from(writes);
        let mut responses = Vec::new();
        for op in branch {
            let response = match op.request {
                Some(Request::RequestRange(asked)) => Response::ResponseRange(self.range(&asked)?),
                Some(Request::RequestPut(asked)) => {
                    self.set(asked);
                    Response::ResponsePut(PutResponse {
                        header: Some(self.header()),
                    })
                }
                Some(Request::RequestDeleteRange(asked)) => {
                    let range = Range::new(&asked.key, &asked.range_end);
                    let keys: Vec<_> = self
                        .keys
                        .keys()
                        .filter(|key| range.has(key))
                        .cloned()
                        .collect();
                    for key in &keys {
                        self.delete(key);
                    }
                    Response::ResponseDeleteRange(DeleteRangeResponse {
                        header: Some(self.header()),
                        deleted: keys.len() as i64,
                    })
                }
                None => return Err(Status::invalid_argument("an operation without a request")),
            };
            responses.push(ResponseOp {
                response: Some(response),
            });
        }
        Ok(TxnResponse {
            header: Some(self.header()),
            succeeded,
            responses,
        })
    }

    /// Refuses a branch before any of it is done.
    fn check(&self, branch: &[RequestOp]) -> Result<(), Status> {
        let mut put = BTreeSet::new();
        for op in branch {
            let Some(Request::RequestPut(asked)) = &op.request else {
                continue;
            };
            if !put.insert(&asked.key) {
                let words = "etcdserver: duplicate key given in txn request";
                return Err(Status::invalid_argument(words));
            }
            if asked.lease != 0 && !self.leases.contains_key(&asked.lease) {
                return Err(Status::not_found("etcdserver: requested lease not found"));
            }
        }
        Ok(())
    }

    fn holds(&self, compare: &Compare) -> bool {
        let absent = KeyValue::default();
        let found = self.keys.get(&compare.key).unwrap_or(&absent);
        let order = match &compare.target_union {
            Some(TargetUnion::Version(wanted)) => found.version.cmp(wanted),
            Some(TargetUnion::CreateRevision(wanted)) => found.create_revision.cmp(wanted),
            Some(TargetUnion::ModRevision(wanted)) => found.mod_revision.cmp(wanted),
            Some(TargetUnion::Value(wanted)) => found.value.cmp(wanted),
            Some(TargetUnion::Lease(wanted)) => found.lease.cmp(wanted),
            None => return false,
        };
        match compare.result() {
            compare::Result::Equal => order.is_eq(),
            compare::Result::NotEqual => order.is_ne(),
            compare::Result::Greater => order.is_gt(),
            compare::Result::Less => order.is_lt(),
        }
    }

    fn set(&mut self, asked: PutRequest) {
        let before = self.keys.get(&asked.key);
        let entry = KeyValue {
            create_revision: before.map_or(self.revision, |entry| entry.create_revision),
            mod_revision: self.revision,
            version: before.map_or(0, |entry| entry.version) + 1,
            key: asked.key,
            value: asked.value,
            lease: asked.lease,
        };
        self.keys.insert(entry.key.clone(), entry.clone());
        self.history.push(Event {
            r#type: Kind::Put.into(),
            kv: Some(entry),
        });
    }

    fn delete(&mut self, key: &[u8]) {
        if self.keys.remove(key).is_none() {
            return;
        }
        self.history.push(Event {
            r#type: Kind::Delete.into(),
            kv: Some(KeyValue {
                key: key.to_vec(),
                mod_revision: self.revision,
                ..KeyValue::default()
            }),
        });
    }

    /// What has happened to a range from a revision on.
    ///
    /// # Errors
    /// The first revision of which there is history, if that is later.
    pub(super) fn events(&self, range: &Range, from: i64) -> Result<Vec<Event>, i64> {
        if from < self.compacted {
            return Err(self.compacted);
        }
        let wanted = |event: &&Event| {
            let entry = event.kv.as_ref();
            entry.is_some_and(|entry| entry.mod_revision >= from && range.has(&entry.key))
        };
        Ok(self.history.iter().filter(wanted).cloned().collect())
    }

    /// The revision of the last change.
    pub(super) fn revision(&self) -> i64 {
        self.revision
    }
}

/// One key, or all from one to below another.
#[derive(Debug, Clone)]
pub(super) struct Range {
    from: Vec<u8>,
    end: Vec<u8>,
}

impl Range {
    pub(super) fn new(from: &[u8], end: &[u8]) -> Self {
        Self {
            from: from.to_vec(),
            end: end.to_vec(),
        }
    }

    /// Whether it is a single key.
    pub(super) fn is_one(&self) -> bool {
        self.end.is_empty()
    }

    fn has(&self, key: &[u8]) -> bool {
        if self.is_one() {
            return self.from == key;
        }
        *self.from <= *key && *key < *self.end
    }
}
