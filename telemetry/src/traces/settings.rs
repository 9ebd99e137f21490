//! What the `OTEL_*` variables of the environment say, as the OpenTelemetry specification reads them.
//!
//! A value that makes no sense is told and its default taken: telemetry never keeps a process from serving. It must
//! not know where the variables come from.

use std::time::Duration;

use opentelemetry_sdk::trace::Sampler;
use tonic::metadata::{MetadataKey, MetadataMap, MetadataValue};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::sampling::sampler;

/// Where a collector listens by default.
const DEFAULT_ENDPOINT: &str = "http://localhost:4317";
/// Most spans that may wait, whatever is asked for.
const MAX_QUEUE_SPANS: usize = 1 << 20;
/// Largest file of certificates.
const MAX_CERTIFICATE_BYTES: u64 = 4 << 20;
/// Where systems keep the certificates that they trust.
const TRUSTED: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Which process exports.
#[derive(Debug, Clone)]
pub struct Identity {
    /// `router`, `prefill` or `decode`.
    pub role: &'static str,
    /// Of Baton.
    pub version: String,
    /// This one of its kind.
    pub instance: String,
}

/// How to export.
#[derive(Debug, Clone)]
pub struct Settings {
    pub(super) endpoint: Endpoint,
    /// For the log.
    pub(super) shown_endpoint: String,
    pub(super) metadata: MetadataMap,
    /// For one batch, however often it is sent.
    pub(super) timeout: Duration,
    pub(super) sampler: Sampler,
    pub(super) resource: Vec<(String, String)>,
    /// Most ended spans that wait.
    pub(super) queue_spans: usize,
    pub(super) batch_spans: usize,
    /// How long a span waits for others.
    pub(super) delay: Duration,
    /// Whether traces of clients are continued.
    pub(super) takes_context: bool,
}

impl Settings {
    /// Where spans go, as `HOST:PORT`.
    pub fn endpoint(&self) -> &str {
        &self.shown_endpoint
    }

    /// Reads the variables: nothing if no traces are to be exported, and in words what was ignored.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> (Option<Self>, Vec<String>) {
        let mut reading = Reading {
            variable: &variable,
            warnings: Vec::new(),
        };
        let settings = reading.settings();
        (settings, reading.warnings)
    }
}

struct Reading<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    warnings: Vec<String>,
}

impl Reading<'_> {
    fn settings(&mut self) -> Option<Settings> {
        if self.flag("OTEL_SDK_DISABLED") {
            return None;
        }
        let exporter = self.get("OTEL_TRACES_EXPORTER");
        let endpoint = self.of_traces("ENDPOINT");
        match exporter.as_deref() {
            None | Some("otlp") => {}
            Some("none") => return None,
            Some(other) => {
                self.warn(format!(
                    "OTEL_TRACES_EXPORTER is {other:?}, known: otlp, none; no traces are exported"
                ));
                return None;
            }
        }
        let endpoint = match (endpoint, exporter) {
            (Some(endpoint), _) => endpoint,
            (None, Some(_)) => (
                "OTEL_TRACES_EXPORTER".to_owned(),
                DEFAULT_ENDPOINT.to_owned(),
            ),
            (None, None) => return None,
        };
        let timeout = self.milliseconds_of_traces("TIMEOUT", 10_000);
        let (endpoint, shown_endpoint) = match self.endpoint(&endpoint) {
            Ok(found) => found,
            Err(wrong) => {
                self.warn(format!("{wrong}; no traces are exported"));
                return None;
            }
        };
        self.check_protocol();
        let queue_spans = self.number("OTEL_BSP_MAX_QUEUE_SIZE", 2048, MAX_QUEUE_SPANS);
        let batch_spans = self.number(
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
            512.min(queue_spans),
            queue_spans,
        );
        let most = self.milliseconds("OTEL_BSP_EXPORT_TIMEOUT", 30_000);
        Some(Settings {
            endpoint,
            shown_endpoint,
            metadata: self.headers(),
            timeout: timeout.min(most),
            sampler: self.sampler(),
            resource: self.resource(),
            queue_spans,
            batch_spans,
            delay: self.milliseconds("OTEL_BSP_SCHEDULE_DELAY", 5000),
            takes_context: self.takes_context(),
        })
    }

    /// A variable's value; an empty one is none.
    fn get(&self, name: &str) -> Option<String> {
        let value = (self.variable)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// A setting of the exporter, for traces alone or for all signals, and the name that it was found under.
    fn of_traces(&self, what: &str) -> Option<(String, String)> {
        ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"]
            .into_iter()
            .map(|prefix| format!("{prefix}{what}"))
            .find_map(|name| self.get(&name).map(|value| (name, value)))
    }

    fn warn(&mut self, warning: String) {
        self.warnings.push(warning);
    }

    fn flag(&mut self, name: &str) -> bool {
        match self.get(name).map(|value| value.to_ascii_lowercase()) {
            Some(value) if value == "true" => true,
            Some(value) if value != "false" => {
                self.warn(format!("{name} is {value:?}, taken as false"));
                false
            }
            _ => false,
        }
    }

    fn number(&mut self, name: &str, default: usize, most: usize) -> usize {
        let Some(value) = self.get(name) else {
            return default;
        };
        match value.parse() {
            Ok(number) if (1..=most).contains(&number) => number,
            _ => {
                self.warn(format!(
                    "{name} is {value:?}, allowed: 1 to {most}; {default} is taken"
                ));
                default
            }
        }
    }

    fn milliseconds(&mut self, name: &str, default: u64) -> Duration {
        let found = self.get(name).map(|value| (name.to_owned(), value));
        self.as_milliseconds(found, default)
    }

    fn milliseconds_of_traces(&mut self, what: &str, default: u64) -> Duration {
        let found = self.of_traces(what);
        self.as_milliseconds(found, default)
    }

    fn as_milliseconds(&mut self, found: Option<(String, String)>, default: u64) -> Duration {
        const DAY_MS: u64 = 86_400_000;
        let Some((name, value)) = found else {
            return Duration::from_millis(default);
        };
        if let Ok(ms @ 1..=DAY_MS) = value.parse() {
            return Duration::from_millis(ms);
        }
        self.warn(format!(
            "{name} is {value:?}, allowed: 1 to {DAY_MS} milliseconds; {default} is taken"
        ));
        Duration::from_millis(default)
    }

    fn endpoint(&mut self, (name, value): &(String, String)) -> Result<(Endpoint, String), String> {
        let url = if value.contains("://") {
            value.clone()
        } else {
            format!("http://{value}")
        };
        let wrong =
            || format!("{name} is {value:?}, expected http://HOST:PORT or https://HOST:PORT");
        let endpoint = Endpoint::from_shared(url.clone()).map_err(|_| wrong())?;
        let uri = endpoint.uri();
        let shown = format!("{}", uri.authority().ok_or_else(wrong)?);
        // Whoever writes a password into a URL does not want it in a log.
        let shown = shown.rsplit('@').next().unwrap_or_default().to_owned();
        let endpoint = endpoint
            .connect_timeout(Duration::from_secs(5))
            .http2_keep_alive_interval(Duration::from_secs(10))
            .keep_alive_timeout(Duration::from_secs(5));
        match uri_scheme(&url) {
            "http" => Ok((endpoint, shown)),
            "https" => {
                let tls = ClientTlsConfig::new().ca_certificate(self.trusted()?);
                let endpoint = endpoint
                    .tls_config(tls)
                    .map_err(|error| format!("{name}: {error}"))?;
                Ok((endpoint, shown))
            }
            _ => Err(wrong()),
        }
    }

    /// Certificates that may sign a collector's.
    fn trusted(&mut self) -> Result<Certificate, String> {
        let named = self.of_traces("CERTIFICATE");
        let system = TRUSTED
            .iter()
            .find(|path| std::path::Path::new(path).is_file());
        let path = match (&named, system) {
            (Some((_, path)), _) => path,
            (None, Some(path)) => *path,
            (None, None) => {
                return Err("no certificates are trusted here: OTEL_EXPORTER_OTLP_CERTIFICATE can name some".into());
            }
        };
        let name = named
            .as_ref()
            .map_or("trusted certificates", |(name, _)| name);
        let wrong = |error: std::io::Error| format!("{name}: cannot read {path}: {error}");
        let bytes = std::fs::metadata(path).map_err(wrong)?.len();
        if bytes > MAX_CERTIFICATE_BYTES {
            return Err(format!(
                "{name}: {path} has {bytes} bytes, at most {MAX_CERTIFICATE_BYTES} are read"
            ));
        }
        std::fs::read(path)
            .map(Certificate::from_pem)
            .map_err(wrong)
    }

    fn check_protocol(&mut self) {
        if let Some((name, value)) = self.of_traces("PROTOCOL")
            && value != "grpc"
        {
            self.warn(format!(
                "{name} is {value:?}, but traces are exported over grpc alone"
            ));
        }
        if let Some((name, value)) = self.of_traces("COMPRESSION")
            && value != "none"
        {
            self.warn(format!(
                "{name} is {value:?}, but traces are exported uncompressed"
            ));
        }
    }

    /// `key=value,…`, values percent-encoded.
    fn headers(&mut self) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        let Some((name, list)) = self.of_traces("HEADERS") else {
            return metadata;
        };
        for (key, value) in self.pairs(&name, &list, false) {
            let parsed_key = MetadataKey::from_bytes(key.to_ascii_lowercase().as_bytes());
            match (parsed_key, MetadataValue::try_from(value)) {
                (Ok(key), Ok(value)) => {
                    metadata.insert(key, value);
                }
                _ => self.warn(format!("{name}: the header {key:?} is none and left out")),
            }
        }
        metadata
    }

    fn resource(&mut self) -> Vec<(String, String)> {
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let list = self.get(name);
        let mut attributes = list.map_or_else(Vec::new, |list| self.pairs(name, &list, true));
        if let Some(service) = self.get("OTEL_SERVICE_NAME") {
            attributes.push(("service.name".to_owned(), service));
        }
        attributes
    }

    /// The pairs of a list; those that are none are told (values may be secret, unless `shown`) and left out.
    fn pairs(&mut self, name: &str, list: &str, shown: bool) -> Vec<(String, String)> {
        let mut pairs = Vec::new();
        for entry in list.split(',').filter(|entry| !entry.trim().is_empty()) {
            let pair = entry.split_once('=').and_then(|(key, value)| {
                let key = key.trim();
                let value = percent_decoded(value.trim())?;
                (!key.is_empty()).then(|| (key.to_owned(), value))
            });
            match pair {
                Some(pair) => pairs.push(pair),
                None if shown => {
                    self.warn(format!("{name}: {entry:?} is no key=value and left out"));
                }
                None => self.warn(format!("{name}: an entry is no key=value and left out")),
            }
        }
        pairs
    }

    fn sampler(&mut self) -> Sampler {
        let name = self.get("OTEL_TRACES_SAMPLER");
        let argument = self.get("OTEL_TRACES_SAMPLER_ARG");
        let default = || Sampler::ParentBased(Box::new(Sampler::AlwaysOn));
        let Some(name) = name else {
            return default();
        };
        sampler(&name, argument.as_deref()).unwrap_or_else(|wrong| {
            self.warn(format!("{wrong}; parentbased_always_on is taken"));
            default()
        })
    }

    fn takes_context(&mut self) -> bool {
        let Some(list) = self.get("OTEL_PROPAGATORS") else {
            return true;
        };
        let mut takes = false;
        for name in list.split(',').map(str::trim) {
            match name {
                "tracecontext" => takes = true,
                // Baggage is nothing that spans are made of.
                "baggage" | "none" => {}
                _ => self.warn(format!(
                    "OTEL_PROPAGATORS names {name:?}, known: tracecontext, baggage, none"
                )),
            }
        }
        takes
    }
}

fn uri_scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
}

/// Text in which `%41` stands for `A`; nothing if it is malformed.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            let (digits, after) = after.split_at_checked(2)?;
            let digits = std::str::from_utf8(digits).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = after;
        } else {
            bytes.push(byte);
            rest = after;
        }
    }
    String::from_utf8(bytes).ok()
}
