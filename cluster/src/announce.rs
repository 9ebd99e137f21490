//! Embedded membership, the worker's side: one registration per router, opened again whenever it
//! breaks.
//!
//! It must not know what the load consists of.

use std::time::Duration;

use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::limits::MAX_DIFFERING_FIELDS;
use baton_proto::v1;
use baton_proto::v1::register_request::Message;
use baton_proto::v1::registry_service_client::RegistryServiceClient;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::ClusterError;
use crate::backoff::Backoff;
use crate::dialer::Dialer;
use crate::http2::MAX_MESSAGE_BYTES;

/// Load is sent at least this often after [`LOAD_PAUSE`]: every second.
const LOAD_INTERVAL: Duration = Duration::from_millis(980);
/// Changes closer than this become one report.
const LOAD_PAUSE: Duration = Duration::from_millis(20);
/// A router that cannot be reached is told of at most this often.
const UNREACHED_PAUSE: Duration = Duration::from_secs(10);
/// Time for a router to answer a registration.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// State of the registration with one router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// Not registered now; why, if an attempt failed.
    Connecting {
        /// The last failure.
        last_error: Option<String>,
    },
    /// The router places requests here.
    Accepted,
    /// The router serves another model.
    Incompatible {
        /// Names of the fields that differ.
        differing_fields: Vec<String>,
    },
}

/// Keeps this worker registered until dropped.
#[derive(Debug)]
pub struct Announcer {
    states: Vec<watch::Receiver<Registration>>,
    drain: watch::Receiver<bool>,
    _tasks: JoinSet<()>,
}

impl Announcer {
    /// Registers with every router (`host:port`). Needs a tokio runtime.
    ///
    /// # Errors
    /// An address is not one.
    pub fn start(
        dialer: &Dialer,
        routers: &[String],
        info: &WorkerInfo,
        load: &watch::Receiver<WorkerLoad>,
    ) -> Result<Self, ClusterError> {
        let (drain, drain_receiver) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut states = Vec::with_capacity(routers.len());
        for router in routers {
            let channel = dialer.channel(router)?;
            let (state, receiver) = watch::channel(Registration::Connecting { last_error: None });
            states.push(receiver);
            let task = Task {
                router: router.clone(),
                channel,
                info: info.clone(),
                load: load.clone(),
                state,
                drain: drain.clone(),
            };
            tasks.spawn(task.run());
        }
        Ok(Self {
            states,
            drain: drain_receiver,
            _tasks: tasks,
        })
    }

    /// State of each registration, in the order of the routers.
    pub fn states(&self) -> &[watch::Receiver<Registration>] {
        &self.states
    }

    /// Becomes true when a router asks this worker to drain.
    pub fn drain_requested(&self) -> watch::Receiver<bool> {
        self.drain.clone()
    }
}

struct Task {
    router: String,
    channel: Channel,
    info: WorkerInfo,
    load: watch::Receiver<WorkerLoad>,
    state: watch::Sender<Registration>,
    drain: watch::Sender<bool>,
}

impl Task {
    async fn run(self) {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
        let mut told_at: Option<Instant> = None;
        loop {
            let status = self.register().await;
            let was_registered = !matches!(*self.state.borrow(), Registration::Connecting { .. });
            // Who was displaced does not take its place back in a hurry.
            if was_registered && status.code() != Code::Aborted {
                backoff.reset();
            }
            let error = format!("{}: {}", status.code(), status.message());
            let refused = matches!(
                status.code(),
                Code::InvalidArgument | Code::FailedPrecondition
            );
            if was_registered && !refused {
                // No news if the router is back at once, or if this worker ends with it; else the next line tells.
                let router = &self.router;
                tracing::info!(router, error, "registration ended; trying again");
            } else if refused {
                tracing::warn!(
                    router = self.router,
                    error,
                    "registration ended; trying again"
                );
            } else if told_at.is_none_or(|at| at.elapsed() >= UNREACHED_PAUSE) {
                told_at = Some(Instant::now());
                let router = &self.router;
                tracing::warn!("cannot reach router {router}: {error}; trying again");
            }
            self.state.send_replace(Registration::Connecting {
                last_error: Some(error),
            });
            tokio::time::sleep(backoff.delay()).await;
        }
    }

    /// One registration, from its first message to its end.
    async fn register(&self) -> Status {
        let mut client = RegistryServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        // Owned here, so that the registration ends with this future.
        let (requests, stream) = mpsc::channel(4);
        let first = v1::RegisterRequest {
            message: Some(Message::Info(self.info.clone().into())),
        };
        // The channel is new and has room.
        let _ = requests.try_send(first);
        let opening = client.register(ReceiverStream::new(stream));
        let mut replies = match tokio::time::timeout(ANSWER_TIMEOUT, opening).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return status,
            Err(_) => return Status::deadline_exceeded("the router does not answer"),
        };
        let listening = async {
            loop {
                match replies.message().await {
                    Ok(Some(reply)) => self.take(reply),
                    Ok(None) => return Status::unavailable("the router ended the registration"),
                    Err(status) => return status,
                }
            }
        };
        tokio::select! {
            status = listening => status,
            () = report(self.load.clone(), requests) => Status::cancelled("the worker ends"),
        }
    }

    fn take(&self, mut reply: v1::RegisterResponse) {
        if reply.drain {
            tracing::info!(router = self.router, "the router asks this worker to drain");
            self.drain.send_replace(true);
        } else if reply.accepted {
            tracing::info!(router = self.router, "registered");
            self.state.send_replace(Registration::Accepted);
        } else {
            reply.differing_fields.truncate(MAX_DIFFERING_FIELDS);
            let differing_fields = reply.differing_fields;
            tracing::error!(
                router = self.router,
                ?differing_fields,
                "the router serves another model; it places nothing here"
            );
            self.state
                .send_replace(Registration::Incompatible { differing_fields });
        }
    }
}

/// Sends the load on change and at least every second, until the worker or the registration ends.
async fn report(
    mut load: watch::Receiver<WorkerLoad>,
    requests: mpsc::Sender<v1::RegisterRequest>,
) {
    loop {
        let report = load.borrow_and_update().clone();
        let request = v1::RegisterRequest {
            message: Some(Message::Load(report.into())),
        };
        if requests.send(request).await.is_err() {
            // What ended the registration is told by its answer stream.
            return std::future::pending().await;
        }
        tokio::time::sleep(LOAD_PAUSE).await;
        if let Ok(Err(_)) = tokio::time::timeout(LOAD_INTERVAL, load.changed()).await {
            return;
        }
    }
}
