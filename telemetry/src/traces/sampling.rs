//! Which traces are kept, by `OTEL_TRACES_SAMPLER` and its argument. It must not know the environment.

use opentelemetry_sdk::trace::Sampler;

/// The sampler of these settings; in words what is wrong with them otherwise.
pub(super) fn sampler(name: &str, argument: Option<&str>) -> Result<Sampler, String> {
    let ratio = || match argument.map(str::parse::<f64>) {
        None => Ok(Sampler::TraceIdRatioBased(1.0)),
        Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Ok(Sampler::TraceIdRatioBased(ratio)),
        Some(_) => Err(format!(
            "OTEL_TRACES_SAMPLER_ARG is {:?}, allowed: a number from 0 to 1",
            argument.unwrap_or_default()
        )),
    };
    let by_parent = |root| Sampler::ParentBased(Box::new(root));
    Ok(match name {
        "always_on" => Sampler::AlwaysOn,
        "always_off" => Sampler::AlwaysOff,
        "traceidratio" => ratio()?,
        "parentbased_always_on" => by_parent(Sampler::AlwaysOn),
        "parentbased_always_off" => by_parent(Sampler::AlwaysOff),
        "parentbased_traceidratio" => by_parent(ratio()?),
        _ => {
            return Err(format!(
                "OTEL_TRACES_SAMPLER is {name:?}, known: always_on, always_off, traceidratio, each also as \
                 parentbased_…"
            ));
        }
    })
}
