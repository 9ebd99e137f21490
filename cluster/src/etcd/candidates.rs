//! The workers that etcd names, each with a connection of the router's own.
//!
//! A candidate is in the table while it answers as who it should be. One that etcd no longer names
//! stays for as long as its connection lives: its lease may have run out only because etcd was away. It
//! must not know how the names were read.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::WorkerInfo;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::key::Name;
use super::standing::Standing;
use crate::backoff::Backoff;
use crate::connection::Connection;
use crate::dialer::Dialer;
use crate::membership::CheckWorker;
use crate::table::{Entry, MAX_MEMBERS, TableWriter};

/// A candidate that is neither named nor answers is given up after this long.
const UNLISTED_GRACE: Duration = Duration::from_secs(10);

/// All candidates. Dropping it ends their connections.
pub(super) struct Candidates {
    dialer: Dialer,
    writer: Arc<TableWriter>,
    check: CheckWorker,
    standing: Arc<Standing>,
    known: HashMap<Name, Candidate>,
    tasks: JoinSet<()>,
    told_full: bool,
}

struct Candidate {
    info: WorkerInfo,
    listed: watch::Sender<bool>,
    task: AbortHandle,
}

impl Candidate {
    fn list(&self, listed: bool) {
        self.listed
            .send_if_modified(|now| std::mem::replace(now, listed) != listed);
    }
}

fn name(info: &WorkerInfo) -> Name {
    (info.role, (info.worker_id.clone(), info.incarnation))
}

impl Candidates {
    pub(super) fn new(
        dialer: Dialer,
        writer: Arc<TableWriter>,
        check: CheckWorker,
        standing: Arc<Standing>,
    ) -> Self {
        Self {
            dialer,
            writer,
            check,
            standing,
            known: HashMap::new(),
            tasks: JoinSet::new(),
            told_full: false,
        }
    }

    /// How many are known, listed or not.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// These are all that are listed now.
    pub(super) fn replace(&mut self, listed: Vec<WorkerInfo>) {
        let names: HashSet<_> = listed.iter().map(name).collect();
        for (name, candidate) in &self.known {
            if !names.contains(name) {
                candidate.list(false);
            }
        }
        for info in listed {
            self.put(info);
        }
        self.settle();
    }

    /// One is listed, in place of what was said of it before.
    pub(super) fn put(&mut self, info: WorkerInfo) {
        self.sweep();
        let key = name(&info);
        if let Some(known) = self.known.get(&key) {
            if known.info == info {
                known.list(true);
                return self.settle();
            }
            // Its connection may lead to where it no longer is.
            known.task.abort();
        } else if self.known.len() >= MAX_MEMBERS {
            self.standing.skip();
            if !std::mem::replace(&mut self.told_full, true) {
                tracing::warn!(
                    limit = MAX_MEMBERS,
                    "more workers in etcd than can be followed"
                );
            }
            return;
        }
        let candidate = self.follow(info);
        self.known.insert(key, candidate);
        self.settle();
    }

    /// One is no longer listed.
    pub(super) fn unlist(&mut self, key: &Name) {
        if let Some(candidate) = self.known.get(key) {
            candidate.list(false);
        }
        self.settle();
    }

    /// Forgets those that were given up.
    pub(super) fn sweep(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let ended: Vec<_> = self
            .known
            .extract_if(|_, candidate| candidate.task.is_finished())
            .collect();
        for (key, candidate) in ended {
            // Listed again in the very moment in which it was given up.
            if *candidate.listed.borrow() {
                let candidate = self.follow(candidate.info);
                self.known.insert(key, candidate);
            }
        }
    }

    fn follow(&mut self, info: WorkerInfo) -> Candidate {
        let (listed, receiver) = watch::channel(true);
        let (writer, standing) = (Arc::clone(&self.writer), Arc::clone(&self.standing));
        let (dialer, check) = (self.dialer.clone(), Arc::clone(&self.check));
        let task = watch_candidate(info.clone(), receiver, dialer, writer, check, standing);
        let task = self.tasks.spawn(task);
        Candidate { info, listed, task }
    }

    fn settle(&self) {
        let listed = self.known.values().filter(|one| *one.listed.borrow());
        self.standing.list(listed.count());
    }
}

/// Keeps one candidate in the table while it answers, until it neither answers nor is listed.
async fn watch_candidate(
    info: WorkerInfo,
    mut listed: watch::Receiver<bool>,
    dialer: Dialer,
    writer: Arc<TableWriter>,
    check: CheckWorker,
    standing: Arc<Standing>,
) {
    let Ok(channel) = dialer.channel(&info.address) else {
        tracing::warn!(worker = %info.worker_id, address = info.address, "not an address");
        return;
    };
    let mut connection = Connection::new(&info.address, channel);
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut lost_at = Instant::now();
    let mut told = None;
    loop {
        let status = match introduce(&mut connection, &info, &writer).await {
            Ok(entry) => {
                let status = connection.follow(&entry, check(&info)).await;
                lost_at = Instant::now();
                if status.code() != Code::Aborted {
                    backoff.reset();
                }
                tracing::info!(worker = %info.worker_id, incarnation = %info.incarnation,
                    reason = status.message(), "worker gone");
                status
            }
            Err(Refusal::Stranger(who)) => {
                if told != Some(Code::NotFound) {
                    standing.fence();
                    tracing::warn!(worker = %info.worker_id, incarnation = %info.incarnation,
                        address = info.address, who, "somebody else answers at the worker's address");
                }
                Status::not_found(who)
            }
            Err(Refusal::Status(status)) => {
                if told != Some(status.code()) {
                    tracing::info!(worker = %info.worker_id, incarnation = %info.incarnation,
                        address = info.address, error = %status, "worker does not answer");
                }
                status
            }
        };
        told = Some(status.code());
        // Where a stranger answers, the worker has ended.
        let gone = status.code() == Code::NotFound || lost_at.elapsed() >= UNLISTED_GRACE;
        if gone && !*listed.borrow() {
            tracing::info!(worker = %info.worker_id, incarnation = %info.incarnation,
                "worker given up: neither listed in etcd nor there");
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.delay()) => {}
            Ok(()) = listed.changed() => {}
        }
    }
}

enum Refusal {
    Status(Status),
    /// Who is there instead.
    Stranger(String),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

async fn introduce(
    connection: &mut Connection,
    expected: &WorkerInfo,
    writer: &Arc<TableWriter>,
) -> Result<Entry, Refusal> {
    let (found, load) = connection.ask().await?;
    if !is(&found, expected) {
        let what = if (&found.worker_id, found.incarnation)
            == (&expected.worker_id, expected.incarnation)
        {
            ", with another role or model than etcd has"
        } else {
            ""
        };
        return Err(Refusal::Stranger(format!(
            "{} (incarnation {}){what}",
            found.worker_id, found.incarnation
        )));
    }
    Ok(connection.enter(found, load, writer)?)
}

/// Whether it is the worker that was looked for, and what it was said to be.
fn is(found: &WorkerInfo, expected: &WorkerInfo) -> bool {
    found.worker_id == expected.worker_id
        && found.incarnation == expected.incarnation
        && found.role == expected.role
        && found.fingerprint == expected.fingerprint
}
