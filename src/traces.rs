//! Traces of a serving process, as its environment asks for them. It must not know spans.

use baton_telemetry::traces::{Exporter, Identity, Settings, Tracer};

use crate::exit::Failure;

/// Starts to export, if an `OTEL_*` variable names a collector; what makes no sense there is told in the log.
pub(crate) fn start(role: &'static str) -> Result<(Tracer, Exporter), Failure> {
    let (settings, warnings) = Settings::read(|name| std::env::var(name).ok());
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    let Some(settings) = settings else {
        return Ok((Tracer::default(), Exporter::default()));
    };
    let identity = Identity {
        role,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        instance: format!("{:032x}", rand::random::<u128>()),
    };
    let endpoint = settings.endpoint().to_owned();
    let started = baton_telemetry::traces::start(settings, &identity)
        .map_err(|error| Failure::failed(format!("cannot start to export traces: {error}")))?;
    tracing::info!("traces go to {endpoint}");
    Ok(started)
}
