//! Who sends the spans, as attributes that all of them share. It must not know the environment.

use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;

use super::settings::Identity;

/// Merges what the process knows about itself with what the operator says, who has the last word.
pub(super) fn resource(identity: &Identity, told: &[(String, String)]) -> Resource {
    let own = [
        KeyValue::new("service.name", format!("baton-{}", identity.role)),
        KeyValue::new("service.version", identity.version.clone()),
        KeyValue::new("service.instance.id", identity.instance.clone()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
        KeyValue::new("telemetry.sdk.name", "opentelemetry"),
        KeyValue::new("telemetry.sdk.language", "rust"),
        KeyValue::new("baton.role", identity.role),
    ];
    let told = told
        .iter()
        .map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    Resource::builder_empty()
        .with_attributes(own)
        .with_attributes(told)
        .build()
}
