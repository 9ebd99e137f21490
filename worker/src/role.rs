//! What makes a worker a prefill or a decode worker, and the place where it appears once loaded.
//!
//! It must not know how either does its work.

use std::sync::{Arc, OnceLock};

use baton_proto::domain::{WorkerLoad, WorkerRole};
use tonic::service::RoutesBuilder;

use crate::{KvRegion, LegError, Worker, WorkerError, WorkerOptions};

/// One kind of worker: its data plane and its gRPC service.
pub trait Role: Send + Sync + Sized + 'static {
    /// Which kind.
    const ROLE: WorkerRole;

    /// Adds the role's service; it refuses until the slot is filled.
    fn add_service(slot: Slot<Self>, routes: &mut RoutesBuilder);

    /// Puts the data plane over the region; the step loop runs already.
    fn assemble(
        worker: Arc<Worker>,
        region: KvRegion,
        options: &WorkerOptions,
    ) -> impl Future<Output = Result<Self, WorkerError>> + Send;

    /// The worker underneath.
    fn worker(&self) -> &Arc<Worker>;

    /// Counters of the data plane since start, by name.
    fn counters(&self) -> Vec<(&'static str, u64)>;

    /// Load report.
    fn load(&self) -> WorkerLoad {
        self.worker().load(self.counters())
    }
}

/// Where a role appears when its model has been loaded.
pub struct Slot<R>(Arc<OnceLock<Arc<R>>>);

impl<R> Slot<R> {
    pub(crate) fn empty() -> Self {
        Self(Arc::new(OnceLock::new()))
    }

    pub(crate) fn fill(&self, role: Arc<R>) {
        // Only the one run of a worker fills its slot.
        let _ = self.0.set(role);
    }

    /// The role, if it is there.
    ///
    /// # Errors
    /// The model is still loading.
    pub fn get(&self) -> Result<&Arc<R>, LegError> {
        self.0.get().ok_or(LegError::Loading)
    }
}

impl<R> Clone for Slot<R> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
