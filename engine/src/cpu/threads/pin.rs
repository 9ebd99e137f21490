//! Keeps a thread on one CPU, where the system can.

use crate::EngineError;

#[cfg(target_os = "linux")]
pub(super) fn pin(cpu: usize) -> Result<(), EngineError> {
    use rustix::thread::{CpuSet, sched_setaffinity};
    let refused = |source| EngineError::System {
        what: format!("pinning a thread to CPU {cpu}"),
        source,
    };
    if cpu >= CpuSet::MAX_CPU {
        return Err(refused(std::io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).map_err(|error| refused(error.into()))
}

#[cfg(not(target_os = "linux"))]
pub(super) fn pin(_cpu: usize) -> Result<(), EngineError> {
    Ok(())
}
