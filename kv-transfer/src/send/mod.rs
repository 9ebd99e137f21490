//! The sending side of a process: one task and one data connection per attempt. It must not know who
//! computes the pages, nor when they are freed: it touches none after an attempt has ended.
//!
//! One connection per attempt, not one per peer: "a broken connection ends its attempt" then needs no
//! bookkeeping, the kernel keeps attempts from stalling each other, and the price is one handshake
//! that overlaps with compute.

pub(crate) mod attempt;
mod connection;
mod credit;
mod dial;
mod gate;
mod outbox;
mod peers;
mod reachable;
pub(crate) mod run;
mod writer;

use std::sync::Arc;
use std::time::Duration;

use baton_kv_cache::{KvLayout, KvMemory};
use baton_proto::domain::{Grant, Transport};
use baton_proto::ids::Incarnation;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use attempt::{Ending, Pace, SendAttempt};
use connection::{Command, Connection, Figures};
use credit::Share;
use dial::Dialer;
use gate::Gate;
use outbox::Outbox;

use crate::counters::{Counters, add};
use crate::error::TransferError;
use crate::frame::MAX_COMMIT_PAYLOAD_BYTES;
use crate::identity::{Identity, TransportChoice};
use crate::network::Network;
use crate::page_access::PageMemory;
use crate::panics::unless_panics;
use crate::progress::PageProgress;

/// Writes smaller than this cost more than they move.
const USEFUL_WRITE_BYTES: usize = 256 << 10;
/// The lease comes from the grant; however short, it does not make this side do nothing else.
const SHORTEST_KEEP_ALIVE: Duration = Duration::from_millis(5);
/// Local instants must not overflow.
const LONGEST_TIMEOUT: Duration = Duration::from_hours(24);

/// Settings of the sending side.
#[derive(Debug, Clone)]
pub struct SenderOptions {
    /// Usable transports.
    pub transports: TransportChoice,
    /// Time to connect and shake hands.
    pub connect_timeout: Duration,
    /// Time without progress after which an attempt fails.
    pub progress_timeout: Duration,
    /// Makes the connections of the tcp transport.
    pub network: Arc<dyn Network>,
}

/// The sending side of one process. What it knows of a receiver (credit, the mapping of its pool) is
/// kept per incarnation. Attempts outlive it.
#[derive(Debug)]
pub struct Sender {
    dialer: Dialer,
    memory: Result<PageMemory, TransferError>,
    progress_timeout: Duration,
}

/// Figures of a finished transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferStats {
    /// Transport used.
    pub transport: Transport,
    /// Payload bytes.
    pub bytes: u64,
    /// Payload bytes that had left before prefill's last step ended.
    pub bytes_before_finish: u64,
    /// First byte sent to `CommitAck`.
    pub elapsed: Duration,
}

type Report = Option<Result<TransferStats, TransferError>>;

impl Sender {
    /// `memory` is the local region that pages are read from. If it does not fit the layout, every
    /// attempt fails with that reason.
    pub fn new(
        identity: Identity,
        layout: KvLayout,
        memory: Arc<dyn KvMemory>,
        options: SenderOptions,
    ) -> Self {
        let dialer = Dialer {
            identity,
            layout,
            transports: options.transports,
            timeout: options.connect_timeout,
            network: options.network,
            peers: Arc::default(),
            counters: Arc::default(),
        };
        let memory = PageMemory::new(memory, layout);
        Self {
            dialer,
            memory,
            progress_timeout: options.progress_timeout,
        }
    }

    /// Starts streaming what `progress` makes ready, until committed, revoked or dropped (a drop revokes).
    /// Must be called within a tokio runtime.
    pub fn begin(&self, grant: Grant, progress: Arc<PageProgress>) -> Outgoing {
        let gate = Arc::new(Gate::new());
        // One Commit, one Revoke: more is never sent.
        let (commands, orders) = mpsc::channel(2);
        let (report, ended) = watch::channel(None);
        let task = Task {
            dialer: self.dialer.clone(),
            memory: self.memory.clone(),
            progress_timeout: self.progress_timeout,
            gate: Arc::clone(&gate),
            progress,
        };
        tokio::spawn(task.run(grant, orders, report));
        Outgoing {
            gate,
            commands,
            ended,
            revoke_timeout: self.progress_timeout,
        }
    }

    #[cfg(test)]
    pub(crate) fn peers(&self) -> &peers::Peers {
        &self.dialer.peers
    }

    /// Counters of this side.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.dialer.counters)
    }
}

/// One attempt at the sender. Once it has been dropped, or one of its futures has told the end, no page
/// is read for it any more.
#[derive(Debug)]
pub struct Outgoing {
    gate: Arc<Gate>,
    commands: mpsc::Sender<Command>,
    ended: watch::Receiver<Report>,
    revoke_timeout: Duration,
}

impl Outgoing {
    /// Resolves early if the attempt fails before it is committed (refused, broken, no progress).
    /// Cancel-safe.
    pub async fn failed(&mut self) -> TransferError {
        loop {
            match self.wait().await {
                Err(error) => return error,
                // Only `commit`, which consumes this value, ends well.
                Ok(_) => std::future::pending().await,
            }
        }
    }

    /// After the last page: sends Commit (count, digest, payload), waits for `CommitAck`. Pages that are
    /// not ready yet are waited for.
    ///
    /// # Errors
    /// The attempt failed or was closed by the receiver; pages may be sent again under a new grant.
    pub async fn commit(mut self, payload: Vec<u8>) -> Result<TransferStats, TransferError> {
        let (bytes, limit) = (payload.len(), MAX_COMMIT_PAYLOAD_BYTES);
        if bytes > limit {
            return Err(TransferError::CommitPayload { bytes, limit });
        }
        // An attempt that has ended reports so below.
        let _ = self.commands.send(Command::Commit(payload)).await;
        self.wait().await
    }

    /// Sends Revoke and waits, bounded, for `RevokeAck`: after it nothing is written any more.
    pub async fn revoke(mut self) {
        let _ = self.commands.send(Command::Revoke).await;
        // Whether answered or not: the drop shuts the gate.
        let _ = tokio::time::timeout(self.revoke_timeout, self.wait()).await;
    }

    async fn wait(&mut self) -> Result<TransferStats, TransferError> {
        match self.ended.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or(Err(TransferError::Shutdown)),
            Err(_) => Err(TransferError::Shutdown),
        }
    }
}

impl Drop for Outgoing {
    fn drop(&mut self) {
        self.gate.shut();
    }
}

/// What an attempt runs with.
struct Task {
    dialer: Dialer,
    memory: Result<PageMemory, TransferError>,
    progress_timeout: Duration,
    gate: Arc<Gate>,
    progress: Arc<PageProgress>,
}

impl Task {
    async fn run(
        self,
        grant: Grant,
        mut orders: mpsc::Receiver<Command>,
        report: watch::Sender<Report>,
    ) {
        let counters = Arc::clone(&self.dialer.counters);
        let (gate, incarnation) = (Arc::clone(&self.gate), grant.incarnation);
        let peers = Arc::clone(&self.dialer.peers);
        add(&counters.opened, 1);
        let (result, connection) = match self.connect(grant, &mut orders).await {
            Ok(mut connection) => {
                let ending = unless_panics(connection.run(&mut orders)).await;
                let figures = &connection.figures;
                add(&counters.bytes_sent, figures.bytes);
                add(&counters.bytes_sent_early, figures.bytes_before_finish);
                match ending {
                    Some(ending) => (stats(ending, &connection), Some(connection)),
                    // Its end is all that it says, and gives back what it held.
                    None => (Err(panicked(incarnation)), None),
                }
            }
            Err(error) => (Err(error), None),
        };
        // Before anyone is told of the end, pages are out of reach.
        gate.shut();
        match &result {
            Ok(_) => add(&counters.committed, 1),
            Err(TransferError::Revoked) => add(&counters.revoked, 1),
            Err(error) => {
                counters.count_failure(error);
                peers.forget_memory(incarnation);
            }
        }
        report.send_replace(Some(result));
        if let Some(connection) = connection {
            connection.finish().await;
        }
    }

    /// Checks the grant and reaches its receiver, unless the attempt is given up before.
    async fn connect(
        self,
        grant: Grant,
        orders: &mut mpsc::Receiver<Command>,
    ) -> Result<Connection, TransferError> {
        let memory = self.memory?;
        let fields = self
            .dialer
            .identity
            .fingerprint
            .differing_fields(&grant.fingerprint);
        if !fields.is_empty() {
            let fields = fields.into_iter().map(str::to_owned).collect();
            return Err(TransferError::Incompatible { fields });
        }
        let piece_bytes = memory.layout().piece_bytes();
        let progress = self.progress_timeout.min(LONGEST_TIMEOUT);
        let keep_alive = (grant.lease.min(progress) / 3).max(SHORTEST_KEEP_ALIVE);
        let pace = Pace {
            keep_alive,
            progress,
        };
        let now = Instant::now().into_std();
        let mut attempt = SendAttempt::new(now, grant.clone(), &self.progress, piece_bytes, pace)?;
        self.progress
            .wake_after(USEFUL_WRITE_BYTES.div_ceil(piece_bytes) as u32);
        let dial = self.dialer.dial(&grant);
        tokio::pin!(dial);
        let link = loop {
            tokio::select! {
                biased;
                order = orders.recv() => match order {
                    Some(Command::Commit(payload)) => attempt.commit(payload),
                    Some(Command::Revoke) | None => return Err(TransferError::Revoked),
                },
                link = &mut dial => break link?,
            }
        };
        attempt.progressed(Instant::now().into_std());
        let credit = self
            .dialer
            .peers
            .credit(grant.incarnation, link.credit_bytes);
        Ok(Connection {
            link,
            attempt,
            memory,
            progress: self.progress,
            gate: self.gate,
            credit: Share::new(credit),
            outbox: Outbox::default(),
            figures: Figures::default(),
        })
    }
}

fn panicked(receiver: Incarnation) -> TransferError {
    tracing::error!(%receiver, "the task of a transfer panicked");
    TransferError::lost("the sender's task panicked")
}

fn stats(ending: Ending, connection: &Connection) -> Result<TransferStats, TransferError> {
    match ending {
        Ending::Committed => Ok(TransferStats {
            transport: connection.link.writer.transport(),
            bytes: connection.figures.bytes,
            bytes_before_finish: connection.figures.bytes_before_finish,
            elapsed: connection
                .figures
                .first_byte
                .map(|first| first.elapsed())
                .unwrap_or_default(),
        }),
        Ending::Revoked => Err(TransferError::Revoked),
        Ending::Failed(error) => Err(error),
    }
}
