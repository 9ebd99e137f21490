//! A prefill worker: the worker underneath and the sending side of the data plane.
//!
//! It must not know single requests.

use std::sync::Arc;
use std::time::Duration;

use baton_kv_cache::KvLayout;
use baton_kv_transfer::{Identity, Sender, SenderOptions};
use baton_proto::domain::WorkerRole;
use baton_worker::{BoundWorker, KvRegion, Role, Slot, Stage, Worker, WorkerError, WorkerOptions};
use tonic::service::RoutesBuilder;

use crate::service::PrefillFront;

/// Time to connect to a decode worker and shake hands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Computes prompts and streams their pages to decode workers.
pub struct PrefillWorker {
    worker: Arc<Worker>,
    layout: KvLayout,
    sender: Sender,
}

impl PrefillWorker {
    /// Loads the model of `options` and serves until `shutdown` resolves and the drain is over.
    ///
    /// # Errors
    /// What keeps the worker from starting or going on.
    pub async fn run(
        options: WorkerOptions,
        observer: impl FnMut(Stage) + Send,
        shutdown: impl Future<Output = ()> + Send,
    ) -> Result<(), WorkerError> {
        BoundWorker::bind(options)
            .await?
            .run_model::<Self>(observer, shutdown)
            .await
    }

    /// Shape of the pages.
    pub(crate) fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// Streams pages to decode workers.
    pub(crate) fn sender(&self) -> &Sender {
        &self.sender
    }
}

impl Role for PrefillWorker {
    const ROLE: WorkerRole = WorkerRole::Prefill;

    fn add_service(slot: Slot<Self>, routes: &mut RoutesBuilder) {
        routes.add_service(PrefillFront::server(slot));
    }

    async fn assemble(
        worker: Arc<Worker>,
        region: KvRegion,
        options: &WorkerOptions,
    ) -> Result<Self, WorkerError> {
        let info = worker.info();
        let identity = Identity {
            incarnation: info.incarnation,
            fingerprint: info.fingerprint.clone(),
            host_id: info.host_id.clone(),
        };
        let settings = SenderOptions {
            transports: options.transports,
            connect_timeout: CONNECT_TIMEOUT,
            progress_timeout: options.transfer_lease,
            network: Arc::clone(&options.network),
        };
        let sender = Sender::new(identity, region.layout, region.memory, settings);
        Ok(Self {
            worker,
            layout: region.layout,
            sender,
        })
    }

    fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.sender.counters().snapshot()
    }
}
