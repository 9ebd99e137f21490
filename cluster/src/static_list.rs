//! A fixed list of workers: the router asks each who it is and watches its load.
//!
//! The list is TOML: `workers = ["host:port", …]`. It must not know where the file lies.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::v1;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::ClusterError;
use crate::backoff::Backoff;
use crate::http2::{self, MAX_MESSAGE_BYTES};
use crate::table::{Entry, TableWriter};

/// Most workers of a list.
pub const MAX_STATIC_WORKERS: usize = 1024;

/// Time for a worker to say who it is.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticList {
    addresses: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    workers: Vec<String>,
}

impl StaticList {
    /// Reads the TOML text of a list.
    ///
    /// # Errors
    /// Syntax, an unknown key, no or too many workers, or an address that is not `host:port`.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let file: File = toml::from_str(text)?;
        Self::new(file.workers)
    }

    /// A list of `host:port`.
    ///
    /// # Errors
    /// No or too many workers, or an address that is not `host:port`.
    pub fn new(mut addresses: Vec<String>) -> Result<Self, ClusterError> {
        addresses.sort();
        addresses.dedup();
        if addresses.is_empty() {
            return Err(ClusterError::Empty);
        }
        if addresses.len() > MAX_STATIC_WORKERS {
            let got = addresses.len();
            return Err(ClusterError::TooMany {
                got,
                limit: MAX_STATIC_WORKERS,
            });
        }
        for address in &addresses {
            http2::endpoint(address)?;
        }
        Ok(Self { addresses })
    }

    pub(crate) fn into_addresses(self) -> Vec<String> {
        self.addresses
    }
}

/// Keeps one worker of the list in the table while it answers.
pub(crate) async fn watch_worker(address: String, writer: Arc<TableWriter>) {
    let Ok(channel) = http2::channel(&address) else {
        return;
    };
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        let mut client = WorkerServiceClient::new(channel.clone())
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        match introduce(&mut client, &address, &writer).await {
            Ok(entry) => {
                let status = tokio::select! {
                    status = follow(&mut client, &entry) => status,
                    status = entry.displaced() => status,
                };
                // Two watchers of one worker do not take turns in a hurry.
                if status.code() != Code::Aborted {
                    backoff.reset();
                }
                tracing::info!(worker = %entry.key().0, reason = status.message(), "worker gone");
            }
            Err(status) => tracing::debug!(address, error = %status, "worker does not answer"),
        }
        tokio::time::sleep(backoff.delay()).await;
    }
}

async fn introduce(
    client: &mut WorkerServiceClient<Channel>,
    address: &str,
    writer: &Arc<TableWriter>,
) -> Result<Entry, Status> {
    let asked = client.get_worker(v1::GetWorkerRequest {});
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked)
        .await
        .map_err(|_| Status::deadline_exceeded("no answer within 5 s"))??
        .into_inner();
    let info = answer
        .info
        .ok_or_else(|| Status::invalid_argument("info is missing"))?;
    // The operator's address is the one that is known to be reachable from here.
    let info = WorkerInfo {
        address: address.to_owned(),
        ..WorkerInfo::try_from(info)?
    };
    tracing::info!(worker = %info.worker_id, incarnation = %info.incarnation, address, "worker found");
    let entry = writer.register(info)?;
    if let Some(load) = answer.load {
        take(&entry, load);
    }
    Ok(entry)
}

async fn follow(client: &mut WorkerServiceClient<Channel>, entry: &Entry) -> Status {
    let request = v1::WatchLoadRequest {
        incarnation: entry.key().1.0,
    };
    let mut reports = match client.watch_load(request).await {
        Ok(response) => response.into_inner(),
        Err(status) => return status,
    };
    loop {
        match reports.message().await {
            Ok(Some(v1::WatchLoadResponse { load: Some(load) })) => take(entry, load),
            Ok(Some(_)) => entry.refuse_report(),
            Ok(None) => return Status::unavailable("the worker ended its load reports"),
            Err(status) => return status,
        }
    }
}

fn take(entry: &Entry, load: v1::WorkerLoad) {
    match WorkerLoad::try_from(load) {
        Ok(load) => entry.report(load),
        Err(error) => {
            tracing::warn!(worker = %entry.key().0, %error, "load report refused");
            entry.refuse_report();
        }
    }
}
