//! The router's own connection to a worker: who answers there, and its load for as long as it lives.
//!
//! It must not know how the worker was found.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::limits::MAX_DIFFERING_FIELDS;
use baton_proto::v1;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use tonic::Status;
use tonic::transport::Channel;

use crate::http2::MAX_MESSAGE_BYTES;
use crate::table::{Entry, TableWriter};

/// Time for a worker to say who it is, and to begin with its load.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to one address.
pub(crate) struct Connection {
    address: String,
    client: WorkerServiceClient<Channel>,
}

impl Connection {
    pub(crate) fn new(address: &str, channel: Channel) -> Self {
        Self {
            address: address.to_owned(),
            client: WorkerServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
        }
    }

    /// Asks who is there.
    pub(crate) async fn ask(&mut self) -> Result<(WorkerInfo, Option<v1::WorkerLoad>), Status> {
        let asked = self.client.get_worker(v1::GetWorkerRequest {});
        let answer = tokio::time::timeout(ANSWER_TIMEOUT, asked)
            .await
            .map_err(|_| Status::deadline_exceeded("no answer within 5 s"))??
            .into_inner();
        let info = answer
            .info
            .ok_or_else(|| Status::invalid_argument("info is missing"))?;
        // The address that was asked is the one that is known to be reachable from here.
        let info = WorkerInfo {
            address: self.address.clone(),
            ..WorkerInfo::try_from(info)?
        };
        Ok((info, answer.load))
    }

    /// Puts the worker that answered into the table.
    pub(crate) fn enter(
        &self,
        info: WorkerInfo,
        load: Option<v1::WorkerLoad>,
        writer: &Arc<TableWriter>,
    ) -> Result<Entry, Status> {
        tracing::info!(worker = %info.worker_id, incarnation = %info.incarnation,
            address = self.address, "worker found");
        let entry = writer.register(info)?;
        if let Some(load) = load {
            take(&entry, load);
        }
        Ok(entry)
    }

    /// Follows the worker's load until its end, or until another has taken its place. The worker is told
    /// in which fields it does not fit.
    pub(crate) async fn follow(&mut self, entry: &Entry, differing_fields: Vec<String>) -> Status {
        tokio::select! {
            status = self.loads(entry, differing_fields) => status,
            status = entry.displaced() => status,
        }
    }

    async fn loads(&mut self, entry: &Entry, mut differing_fields: Vec<String>) -> Status {
        differing_fields.truncate(MAX_DIFFERING_FIELDS);
        let request = v1::WatchLoadRequest {
            incarnation: entry.key().1.0,
            differing_fields,
        };
        let asked = self.client.watch_load(request);
        let mut reports = match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
            Ok(Ok(response)) => response.into_inner(),
            Ok(Err(status)) => return status,
            Err(_) => return Status::deadline_exceeded("no load within 5 s"),
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
