//! `WorkerService`: identity, load and drain of this worker. It must not know the role.

use std::sync::Arc;
use std::time::Duration;

use baton_proto::ids::Incarnation;
use baton_proto::limits::{MAX_DIFFERING_FIELDS, MAX_NAME_BYTES};
use baton_proto::v1;
use baton_proto::v1::worker_service_server::WorkerService;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::load::LoadReports;
use crate::{LegError, Role, Slot};

/// A step loop that has stood still for this long is no good: who asks is refused, and learns why.
const STUCK: Duration = Duration::from_secs(2);

/// Serves `WorkerService` for whatever is in the slot.
pub(crate) struct WorkerFront<R> {
    pub(crate) slot: Slot<R>,
    /// Ends the streams when the server ends.
    pub(crate) stop: CancellationToken,
}

#[tonic::async_trait]
impl<R: Role> WorkerService for WorkerFront<R> {
    type WatchLoadStream = ReceiverStream<Result<v1::WatchLoadResponse, Status>>;

    async fn get_worker(
        &self,
        _: Request<v1::GetWorkerRequest>,
    ) -> Result<Response<v1::GetWorkerResponse>, Status> {
        let role = self.slot.get()?;
        let still = role.worker().still_since();
        if still > STUCK {
            return Err(LegError::Stuck(still).into());
        }
        Ok(Response::new(v1::GetWorkerResponse {
            info: Some(role.worker().info().clone().into()),
            load: Some(role.load().into()),
        }))
    }

    async fn watch_load(
        &self,
        request: Request<v1::WatchLoadRequest>,
    ) -> Result<Response<Self::WatchLoadStream>, Status> {
        let request = request.into_inner();
        let role = self.checked(request.incarnation)?.clone();
        let fits = fits(&request.differing_fields)?;
        let (reports, reader) = mpsc::channel(1);
        let stop = self.stop.clone();
        let reader_counts = role.worker().read_load(fits);
        tokio::spawn(async move {
            let _reader_counts = reader_counts;
            let mut loads = LoadReports::new(role);
            loop {
                let load = tokio::select! {
                    load = loads.next() => load,
                    () = reports.closed() => return,
                    () = stop.cancelled() => return,
                };
                let report = v1::WatchLoadResponse {
                    load: Some(load.into()),
                };
                tokio::select! {
                    sent = reports.send(Ok(report)) => if sent.is_err() { return },
                    () = stop.cancelled() => return,
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(reader)))
    }

    async fn drain_worker(
        &self,
        request: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        let worker = self.checked(request.into_inner().incarnation)?.worker();
        worker.drain();
        Ok(Response::new(v1::DrainWorkerResponse {
            running: worker.legs() as u32,
        }))
    }
}

impl<R: Role> WorkerFront<R> {
    fn checked(&self, incarnation: u64) -> Result<&Arc<R>, LegError> {
        let role = self.slot.get()?;
        let (asked, here) = (Incarnation(incarnation), role.worker().info().incarnation);
        if asked == here {
            Ok(role)
        } else {
            Err(LegError::WrongIncarnation { asked, here })
        }
    }
}

/// Whether the router that asks places requests here; if it serves another model, the log says so.
fn fits(differing_fields: &[String]) -> Result<bool, Status> {
    if differing_fields.len() > MAX_DIFFERING_FIELDS
        || differing_fields.iter().any(|f| f.len() > MAX_NAME_BYTES)
    {
        return Err(Status::invalid_argument(format!(
            "differing_fields: {} names, allowed are {MAX_DIFFERING_FIELDS} of {MAX_NAME_BYTES} bytes",
            differing_fields.len()
        )));
    }
    if !differing_fields.is_empty() {
        tracing::error!(
            ?differing_fields,
            "a router serves another model; it places nothing here"
        );
    }
    Ok(differing_fields.is_empty())
}
