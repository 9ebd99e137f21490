//! The worker's side: one key under a lease, put again by one loop whatever was lost: the connection,
//! the lease, the key or all of etcd.
//!
//! It must not know what makes a worker ready.

use std::time::Duration;

use baton_proto::domain::WorkerInfo;
use etcd_client::{
    Client, Compare, CompareOp, LeaseKeepAliveStream, LeaseKeeper, PutOptions, Txn, TxnOp,
    TxnOpResponse, WatchOptions,
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior};

use super::options::EtcdOptions;
use super::record;
use super::session::{CALL_TIMEOUT, answered, connect};
use crate::ClusterError;
use crate::backoff::Backoff;
use crate::dialer::Dialer;

/// Time to take the key away at the end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);
/// A connection that lasted this long was a good one.
const STEADY: Duration = Duration::from_secs(2);
/// Keep-alives of one lease time.
const BEATS: u32 = 3;

/// Keeps a worker registered in etcd until it is withdrawn or dropped; after a drop the lease runs out.
#[derive(Debug)]
pub struct EtcdRegistration {
    registered: watch::Receiver<bool>,
    withdraw: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl EtcdRegistration {
    /// Starts to register, over connections that `dialer` opens (whatever TLS they have is in the
    /// options). A key outlives its worker by `lease` at most, in whole seconds. Needs a tokio runtime.
    pub fn start(
        options: EtcdOptions,
        lease: Duration,
        info: &WorkerInfo,
        dialer: &Dialer,
    ) -> Self {
        let (registered, reader) = watch::channel(false);
        let (withdraw, withdrawn) = watch::channel(false);
        let keeper = Keeper {
            key: options.prefix().worker(info),
            value: record::encode(info),
            options,
            dialer: dialer.clone(),
            ttl: lease,
            lease: None,
            attempts: 0,
            registered,
        };
        Self {
            registered: reader,
            withdraw,
            task: tokio::spawn(keeper.run(withdrawn)),
        }
    }

    /// Whether the key is in etcd, as far as is known here.
    pub fn registered(&self) -> watch::Receiver<bool> {
        self.registered.clone()
    }

    /// Takes the key away, for good. See [`Self::withdrawn`].
    pub fn withdraw(&self) {
        self.withdraw.send_replace(true);
    }

    /// Takes the key away and waits for it, no longer than a second.
    pub async fn withdrawn(&mut self) {
        self.withdraw();
        // Closed when the task has ended.
        let ended = async { while self.registered.changed().await.is_ok() {} };
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, ended).await;
    }
}

impl Drop for EtcdRegistration {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Keeper {
    options: EtcdOptions,
    dialer: Dialer,
    key: String,
    value: Vec<u8>,
    ttl: Duration,
    /// The lease that the key is under, while it may live.
    lease: Option<i64>,
    attempts: usize,
    registered: watch::Sender<bool>,
}

impl Keeper {
    async fn run(mut self, mut withdrawn: watch::Receiver<bool>) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
        let mut told = false;
        loop {
            let began = Instant::now();
            let error = tokio::select! {
                // The other side is dropped only together with this task.
                _ = withdrawn.wait_for(|is| *is) => break,
                error = self.session() => error,
            };
            // What is lost again at once is not put again at once.
            if began.elapsed() >= STEADY {
                backoff.reset();
            }
            let was_registered = self.registered.send_replace(false);
            let told_before = std::mem::replace(&mut told, true);
            if was_registered || !told_before {
                tracing::warn!(%error, key = self.key, "not registered in etcd; trying again");
            }
            tokio::select! {
                _ = withdrawn.wait_for(|is| *is) => break,
                () = tokio::time::sleep(backoff.delay()) => {}
            }
        }
        let left = tokio::time::timeout(LEAVE_TIMEOUT, self.leave()).await;
        let silent = ClusterError::EtcdSilent {
            what: "the end of a registration",
        };
        if let Err(error) = left.unwrap_or(Err(silent)) {
            tracing::warn!(%error, key = self.key, "not taken from etcd; its lease runs out");
        }
        self.registered.send_replace(false);
    }

    /// One connection, for as long as the worker is registered over it; what ended it.
    async fn session(&mut self) -> ClusterError {
        match self.hold().await {
            Ok(never) => match never {},
            Err(error) => error,
        }
    }

    async fn hold(&mut self) -> Result<std::convert::Infallible, ClusterError> {
        let attempt = self.attempts;
        self.attempts += 1;
        let mut client = connect(&self.options, &self.dialer, attempt).await?;
        let (mut keeper, mut answers) = self.lease(&mut client).await?;
        let revision = self.put(&mut client, keeper.id()).await?;
        let own = WatchOptions::new().with_start_revision(revision + 1);
        let mut events = answered("a watch", client.watch(self.key.clone(), Some(own))).await?;
        self.registered.send_replace(true);
        tracing::info!(key = self.key, lease = %format_args!("{:x}", keeper.id()),
            endpoint = self.options.endpoint(attempt), "registered in etcd");

        let beat = self.ttl / BEATS;
        let mut beats = tokio::time::interval(beat);
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Of the lease, and of the watch: either may fall silent alone.
        let (mut heard, mut watched) = (Instant::now(), Instant::now());
        loop {
            tokio::select! {
                _ = beats.tick() => {
                    answered("keep-alives", keeper.keep_alive()).await?;
                    answered("requests for progress", events.request_progress()).await?;
                }
                answer = answers.message() => {
                    let answer = answer?.ok_or_else(ended)?;
                    if answer.ttl() <= 0 {
                        self.lease = None;
                        return Err(ClusterError::LeaseEnded);
                    }
                    heard = Instant::now();
                }
                event = events.message() => {
                    let event = event?.filter(|event| !event.canceled()).ok_or_else(ended)?;
                    watched = Instant::now();
                    let mut entries = event.events().iter().filter_map(etcd_client::Event::kv);
                    if let Some(entry) = entries.next() {
                        // Only what was deleted has version 0.
                        return Err(if entry.version() == 0 {
                            ClusterError::KeyDeleted
                        } else {
                            ClusterError::KeyContested
                        });
                    }
                }
                () = tokio::time::sleep_until(heard + beat + CALL_TIMEOUT) => {
                    return Err(ClusterError::EtcdSilent { what: "keep-alives" });
                }
                () = tokio::time::sleep_until(watched + beat + CALL_TIMEOUT) => {
                    return Err(ClusterError::EtcdSilent { what: "on its watch" });
                }
            }
        }
    }

    /// The lease of before if it still lives, else a new one.
    async fn lease(
        &mut self,
        client: &mut Client,
    ) -> Result<(LeaseKeeper, LeaseKeepAliveStream), ClusterError> {
        if let Some(id) = self.lease {
            let kept = answered("a keep-alive", client.lease_keep_alive(id)).await;
            match kept {
                Ok(kept) => return Ok(kept),
                // Silence says nothing about the lease.
                Err(error @ ClusterError::EtcdSilent { .. }) => return Err(error),
                Err(_) => self.lease = None,
            }
        }
        let seconds = self.ttl.as_secs() as i64;
        let granted = answered("a lease", client.lease_grant(seconds, None)).await?;
        self.lease = Some(granted.id());
        answered("a keep-alive", client.lease_keep_alive(granted.id())).await
    }

    /// Makes the key stand under this lease; the revision as of which it does.
    async fn put(&self, client: &mut Client, lease: i64) -> Result<i64, ClusterError> {
        let under = PutOptions::new().with_lease(lease);
        let put = || TxnOp::put(&*self.key, &*self.value, Some(under.clone()));
        let create = Txn::new()
            .when([Compare::version(&*self.key, CompareOp::Equal, 0)])
            .and_then([put()])
            .or_else([TxnOp::get(&*self.key, None)]);
        let mut answer = answered("a transaction", client.txn(create)).await?;
        if !answer.succeeded() {
            let found = answer.op_responses().into_iter().find_map(|op| match op {
                TxnOpResponse::Get(got) => got.kvs().first().cloned(),
                _ => None,
            });
            let found = found.ok_or(ClusterError::KeyContested)?;
            if found.lease() != lease || found.value() != self.value {
                // No other process has this incarnation: it is this worker's, under an older lease.
                let unchanged = found.mod_revision();
                let replace = Txn::new()
                    .when([Compare::mod_revision(
                        &*self.key,
                        CompareOp::Equal,
                        unchanged,
                    )])
                    .and_then([put()]);
                answer = answered("a transaction", client.txn(replace)).await?;
                if !answer.succeeded() {
                    return Err(ClusterError::KeyContested);
                }
            }
        }
        Ok(answer
            .header()
            .map_or(0, etcd_client::ResponseHeader::revision))
    }

    /// Takes the key away if it is under this worker's own lease, and the lease with it.
    async fn leave(&mut self) -> Result<(), ClusterError> {
        let Some(lease) = self.lease.take() else {
            return Ok(());
        };
        let attempt = self.attempts.saturating_sub(1);
        let mut client = connect(&self.options, &self.dialer, attempt).await?;
        let delete = Txn::new()
            .when([Compare::lease(&*self.key, CompareOp::Equal, lease)])
            .and_then([TxnOp::delete(&*self.key, None)]);
        answered("a transaction", client.txn(delete)).await?;
        answered("a revocation", client.lease_revoke(lease)).await?;
        tracing::info!(key = self.key, "taken from etcd");
        Ok(())
    }
}

fn ended() -> ClusterError {
    ClusterError::Etcd("the stream has ended".to_owned())
}
