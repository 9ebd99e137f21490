//! A collector of traces over OTLP that remembers what it gets, and ones that are of no use.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::certificates::Signed;
use crate::process::PATIENCE;

/// A span as tests look at it; ids are hexadecimal, of nobody they are empty.
#[derive(Debug, Clone)]
pub(super) struct Recorded {
    pub(super) service: String,
    pub(super) name: String,
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    /// Trace and span ids.
    pub(super) links: Vec<(String, String)>,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) events: Vec<String>,
    pub(super) is_error: bool,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Recorded {
    fn new(service: &str, span: Span) -> Self {
        let attributes = span.attributes.iter().map(shown).collect();
        Self {
            service: service.to_owned(),
            name: span.name,
            trace: hex(&span.trace_id),
            id: hex(&span.span_id),
            parent: hex(&span.parent_span_id),
            links: (span.links.iter())
                .map(|link| (hex(&link.trace_id), hex(&link.span_id)))
                .collect(),
            attributes,
            events: span.events.into_iter().map(|event| event.name).collect(),
            is_error: span
                .status
                .is_some_and(|status| status.code() == StatusCode::Error),
            from: span.start_time_unix_nano,
            to: span.end_time_unix_nano,
        }
    }

    pub(super) fn attribute(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn shown(attribute: &KeyValue) -> (String, String) {
    (attribute.key.clone(), value(attribute.value.as_ref()))
}

fn value(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::ArrayValue(list)) => {
            let all: Vec<_> = list
                .values
                .iter()
                .map(|one| self::value(Some(one)))
                .collect();
            all.join(",")
        }
        other => format!("{other:?}"),
    }
}

/// A running collector; it ends when it is dropped.
pub(super) struct Collector {
    scheme: &'static str,
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Recorded>>>,
    headers: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

#[derive(Clone)]
struct Taking {
    spans: Arc<Mutex<Vec<Recorded>>>,
    headers: Arc<Mutex<Vec<String>>>,
    delay: Duration,
}

#[tonic::async_trait]
impl TraceService for Taking {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        tokio::time::sleep(self.delay).await;
        if let Some(header) = request.metadata().get("x-of-test") {
            let header = header.to_str().unwrap_or_default().to_owned();
            self.headers.lock().expect("not poisoned").push(header);
        }
        for resource in request.into_inner().resource_spans {
            let attributes = resource.resource.unwrap_or_default().attributes;
            let told: BTreeMap<_, _> = attributes.iter().map(shown).collect();
            let service = told.get("service.name").cloned().unwrap_or_default();
            let spans = resource
                .scope_spans
                .into_iter()
                .flat_map(|scope| scope.spans);
            let recorded = spans.map(|span| Recorded::new(&service, span));
            self.spans.lock().expect("not poisoned").extend(recorded);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    /// Takes everything at once.
    pub(super) async fn start() -> Self {
        Self::with_delay(Duration::ZERO).await
    }

    /// Takes its time for each batch.
    pub(super) async fn with_delay(delay: Duration) -> Self {
        Self::serve("http", Server::builder(), delay).await
    }

    /// Takes everything at once from who believes its certificate.
    pub(super) async fn over_tls(signed: &Signed) -> Self {
        let read = |path: &str| std::fs::read(path).expect("a file of certificates");
        let identity = Identity::from_pem(read(&signed.cert), read(&signed.key));
        let tls = ServerTlsConfig::new().identity(identity);
        let server = Server::builder().tls_config(tls).expect("TLS");
        Self::serve("https", server, Duration::ZERO).await
    }

    async fn serve(scheme: &'static str, mut server: Server, delay: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let taking = Taking {
            spans: Arc::default(),
            headers: Arc::default(),
            delay,
        };
        let (spans, headers) = (Arc::clone(&taking.spans), Arc::clone(&taking.headers));
        let task = tokio::spawn(async move {
            let _ = server
                .add_service(TraceServiceServer::new(taking))
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await;
        });
        Self {
            scheme,
            address,
            spans,
            headers,
            task,
        }
    }

    /// Takes connections, and never says a word.
    pub(super) async fn black_hole() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let task = tokio::spawn(async move {
            let mut held = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                held.push(connection);
            }
        });
        Self {
            scheme: "http",
            address,
            spans: Arc::default(),
            headers: Arc::default(),
            task,
        }
    }

    /// Where it listens, as a URL.
    pub(super) fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// Everything so far.
    pub(super) fn spans(&self) -> Vec<Recorded> {
        self.spans.lock().expect("not poisoned").clone()
    }

    /// Values of the header that tests send, one for each call that had it.
    pub(super) fn headers(&self) -> Vec<String> {
        self.headers.lock().expect("not poisoned").clone()
    }

    /// Waits until the trace has so many spans of each of these names, and gives all of it.
    pub(super) async fn trace(&self, trace: &str, names: &[(&str, usize)]) -> Tree {
        let begin = Instant::now();
        loop {
            let spans: Vec<_> = (self.spans().into_iter())
                .filter(|span| span.trace == trace)
                .collect();
            let tree = Tree(spans);
            let is_there = |(name, count): &(&str, usize)| tree.named(name).len() >= *count;
            if names.iter().all(is_there) {
                return tree;
            }
            assert!(begin.elapsed() < PATIENCE, "so far: {:#?}", self.spans());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Spans of one trace.
#[derive(Debug)]
pub(super) struct Tree(pub(super) Vec<Recorded>);

impl Tree {
    /// All of this name, in the order of their beginnings.
    pub(super) fn named(&self, name: &str) -> Vec<&Recorded> {
        let mut named: Vec<_> = self.0.iter().filter(|span| span.name == name).collect();
        named.sort_by_key(|span| span.from);
        named
    }

    /// The only one of this name.
    pub(super) fn only(&self, name: &str) -> &Recorded {
        match self.named(name)[..] {
            [only] => only,
            ref other => panic!("{} of {name} in {self:#?}", other.len()),
        }
    }

    /// Names of the parts of a span, sorted.
    pub(super) fn parts(&self, of: &Recorded) -> Vec<&str> {
        let parts = self.0.iter().filter(|span| span.parent == of.id);
        let mut names: Vec<_> = parts.map(|span| span.name.as_str()).collect();
        names.sort_unstable();
        names
    }
}
