//! A decode worker: the worker underneath and the receiving side of the data plane.
//!
//! It must not know single requests.

use std::sync::Arc;

use baton_kv_cache::KvLayout;
use baton_kv_transfer::{Identity, Receiver, ReceiverOptions};
use baton_proto::domain::WorkerRole;
use baton_worker::{BoundWorker, KvRegion, Role, Slot, Stage, Worker, WorkerError, WorkerOptions};
use tonic::service::RoutesBuilder;

use crate::service::DecodeFront;

/// Bytes that one prefill worker may have in flight.
const CREDIT_BYTES: usize = 64 << 20;

/// Grants pages to prefill workers and generates from what lands there.
pub struct DecodeWorker {
    worker: Arc<Worker>,
    layout: KvLayout,
    receiver: Receiver,
}

impl DecodeWorker {
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

    /// Where prompts arrive.
    pub(crate) fn receiver(&self) -> &Receiver {
        &self.receiver
    }
}

impl Role for DecodeWorker {
    const ROLE: WorkerRole = WorkerRole::Decode;

    fn add_service(slot: Slot<Self>, routes: &mut RoutesBuilder) {
        routes.add_service(DecodeFront::server(slot));
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
        let settings = ReceiverOptions {
            transports: options.transports,
            listen: options.transfer_listen,
            advertise: options.transfer_advertise.clone(),
            socket_dir: options.runtime_dir.clone(),
            lease: options.transfer_lease,
            credit_bytes: CREDIT_BYTES,
            // A peer that leaves half a pool behind must not get another chance to write it itself.
            quarantine_cap_pages: (region.layout.pages / 2).max(1),
            network: Arc::clone(&options.network),
        };
        let KvRegion {
            layout,
            memory,
            shared,
        } = region;
        let receiver = Receiver::bind(identity, layout, memory, shared, settings)
            .await
            .map_err(WorkerError::Transfer)?;
        Ok(Self {
            worker,
            layout,
            receiver,
        })
    }

    fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.receiver.counters().snapshot()
    }
}
