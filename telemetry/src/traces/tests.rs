//! The exporter against collectors that are there, absent, silent and slow, on a runtime with one thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::codegen::http::{HeaderMap, HeaderValue};
use tonic::{Request, Response, Status};

use super::*;

/// Ten times what the flush may take.
const BOUND: Duration = Duration::from_secs(30);

/// A collector that counts spans, after a while.
#[derive(Clone, Default)]
struct Counting {
    spans: Arc<AtomicUsize>,
    delay: Duration,
    /// Calls that are refused for now before one is taken.
    refusals: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl TraceService for Counting {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        tokio::time::sleep(self.delay).await;
        let refusals = &self.refusals;
        let left = refusals.try_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        });
        if left.is_ok() {
            return Err(Status::unavailable("not yet"));
        }
        let resources = request.into_inner().resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        let spans = scopes.map(|scope| scope.spans.len()).sum();
        self.spans.fetch_add(spans, Ordering::SeqCst);
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Serves the collector on a runtime of its own, so that it does not share the tests' one thread.
struct Served {
    url: String,
    runtime: Option<tokio::runtime::Runtime>,
}

impl Drop for Served {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Served {
    fn start(collector: Option<Counting>) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let std = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", std.local_addr().unwrap());
        std.set_nonblocking(true).unwrap();
        runtime.spawn(async move {
            let listener = TcpListener::from_std(std).unwrap();
            if let Some(collector) = collector {
                let incoming = tonic::transport::server::TcpIncoming::from(listener);
                tonic::transport::Server::builder()
                    .add_service(TraceServiceServer::new(collector))
                    .serve_with_incoming(incoming)
                    .await
                    .unwrap();
                return;
            }
            // Takes connections, and never says a word.
            let mut held = Vec::new();
            while let Ok((connection, _)) = listener.accept().await {
                held.push(connection);
            }
        });
        Self {
            url,
            runtime: Some(runtime),
        }
    }
}

fn settings(variables: &[(&str, &str)]) -> (Option<Settings>, Vec<String>) {
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    Settings::read(|name| variables.get(name).map(ToString::to_string))
}

fn exporting(variables: &[(&str, &str)]) -> (Tracer, Exporter) {
    let (settings, warnings) = settings(variables);
    assert!(warnings.is_empty(), "{warnings:?}");
    let identity = Identity {
        role: "router",
        version: "0".to_owned(),
        instance: "test".to_owned(),
    };
    start(settings.expect("an endpoint is set"), &identity).unwrap()
}

fn counts(tracer: &Tracer) -> (u64, u64, u64) {
    let counts: Vec<_> = tracer.counters().map(|(_, count)| count).collect();
    (counts[0], counts[1], counts[2])
}

fn unused() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

const SPANS: usize = 100_000;

/// Emits spans while work goes on beside it, then ends: neither waits, and every span is accounted for.
async fn emit_all(url: &str) {
    let (tracer, exporter) = exporting(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", url),
        ("OTEL_BSP_SCHEDULE_DELAY", "10"),
    ]);
    let served = Arc::new(AtomicUsize::new(0));
    let serving = {
        let served = Arc::clone(&served);
        tokio::spawn(async move {
            loop {
                served.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        })
    };
    let emitting = {
        let tracer = tracer.clone();
        tokio::spawn(async move {
            let mut steps = Vec::new();
            for index in 0..SPANS {
                let mut span = tracer.begin(Kind::Server, || "a request".to_owned(), None);
                assert!(span.is_recording());
                span.set("index", index as i64);
                drop(span);
                if index % 1000 == 0 {
                    tokio::task::yield_now().await;
                    steps.push(served.load(Ordering::SeqCst));
                }
            }
            steps
        })
    };
    let begin = Instant::now();
    let steps = emitting.await.unwrap();
    assert!(
        steps.is_sorted_by(|a, b| a < b),
        "{url}: work stood still: {steps:?}"
    );
    exporter.finish().await;
    assert!(begin.elapsed() < BOUND, "{url}: {:?}", begin.elapsed());
    serving.abort();
    let (exported, dropped, failed) = counts(&tracer);
    assert_eq!(exported + dropped + failed, SPANS as u64, "{url}");
    assert!(dropped > 0, "{url}: a queue of 2048 holds no {SPANS}");
    // Whoever goes on after the end is not held up either.
    drop(tracer.begin(Kind::Server, || "late".to_owned(), None));
    assert_eq!(counts(&tracer).1, dropped + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn obs_04_an_absent_collector_holds_nothing_up() {
    emit_all(&unused()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn obs_04_a_silent_collector_holds_nothing_up() {
    emit_all(&Served::start(None).url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn obs_04_a_slow_collector_holds_nothing_up() {
    let slow = Counting {
        delay: Duration::from_secs(10),
        ..Counting::default()
    };
    emit_all(&Served::start(Some(slow)).url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn spans_arrive_and_the_last_ones_are_flushed() {
    let collector = Counting {
        refusals: Arc::new(AtomicUsize::new(1)),
        ..Counting::default()
    };
    let served = Served::start(Some(collector.clone()));
    // Nothing would leave by itself within this test.
    let (tracer, exporter) = exporting(&[
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &served.url),
        ("OTEL_BSP_SCHEDULE_DELAY", "3600000"),
    ]);
    let mut tasks = JoinSet::new();
    for _ in 0..4 {
        let tracer = tracer.clone();
        tasks.spawn(async move {
            for _ in 0..250 {
                let request = tracer.begin(Kind::Server, || "a request".to_owned(), None);
                drop(request.child("a part"));
            }
        });
    }
    tasks.join_all().await;
    exporter.finish().await;
    assert_eq!(counts(&tracer), (2000, 0, 0));
    assert_eq!(collector.spans.load(Ordering::SeqCst), 2000);
}

fn caller(flags: &str) -> Option<TraceContext> {
    let mut headers = HeaderMap::new();
    let value = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-{flags}");
    headers.insert(TRACEPARENT, HeaderValue::from_str(&value).unwrap());
    TraceContext::from_headers(&headers)
}

#[tokio::test]
async fn obs_01_samplers_decide_as_their_names_say() {
    let url = unused();
    let is_recorded = |sampler: &[(&str, &str)], caller: Option<TraceContext>| {
        let all = [&[("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())], sampler].concat();
        let (tracer, _exporter) = exporting(&all);
        let span = tracer.begin(Kind::Server, || "a request".to_owned(), caller.clone());
        let passed = span.context().expect("a context");
        if let Some(caller) = caller {
            let trace = |context: &TraceContext| context.trace_id().to_string();
            assert_eq!(trace(&passed), trace(&caller));
        }
        assert_eq!(passed.is_sampled(), span.is_recording());
        assert_eq!(span.child("a part").is_recording(), span.is_recording());
        span.is_recording()
    };
    let by_name = |name: &'static str| [("OTEL_TRACES_SAMPLER", name)];
    let none = [
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0"),
    ];
    for (sampler, of_own, if_sampled, if_not) in [
        (&[][..], true, true, false),
        (&by_name("always_on"), true, true, true),
        (&by_name("always_off"), false, false, false),
        (&by_name("traceidratio"), true, true, true),
        (&by_name("parentbased_always_on"), true, true, false),
        (&by_name("parentbased_always_off"), false, true, false),
        (&none, false, true, false),
    ] {
        assert_eq!(is_recorded(sampler, None), of_own, "{sampler:?}");
        assert_eq!(
            is_recorded(sampler, caller("01")),
            if_sampled,
            "{sampler:?}"
        );
        assert_eq!(is_recorded(sampler, caller("00")), if_not, "{sampler:?}");
    }
}

#[tokio::test]
async fn callers_contexts_pass_through_a_tracer_that_is_off() {
    let off = Tracer::default();
    let span = off.begin(Kind::Server, || panic!("no name is needed"), caller("01"));
    assert!(!span.is_recording());
    assert_eq!(span.context(), caller("01"));
    assert!(
        off.begin(Kind::Server, String::new, None)
            .context()
            .is_none()
    );
    assert_eq!(off.counters().count(), 0);
    let url = unused();
    let (tracer, _exporter) = exporting(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &url),
        ("OTEL_PROPAGATORS", "none"),
    ]);
    let own = tracer.begin(Kind::Server, || "a request".to_owned(), caller("00"));
    assert!(own.is_recording(), "a caller's word is not taken");
    assert!(!tracer.join(Kind::Server, "a leg", None).is_recording());
    assert!(
        tracer
            .join(Kind::Server, "a leg", own.context())
            .is_recording()
    );
}

#[test]
fn nothing_is_exported_unless_it_is_asked_for() {
    let url = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    let off: [&[(&str, &str)]; 6] = [
        &[],
        &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")],
        &[url, ("OTEL_SDK_DISABLED", "TRUE")],
        &[url, ("OTEL_TRACES_EXPORTER", "none")],
        &[("OTEL_SERVICE_NAME", "a name")],
        &[("OTEL_TRACES_SAMPLER", "nonsense that nobody reads")],
    ];
    for variables in off {
        let (settings, warnings) = settings(variables);
        assert!(settings.is_none(), "{variables:?}");
        assert!(warnings.is_empty(), "{variables:?}: {warnings:?}");
    }
    let (settings, _) = settings(&[("OTEL_TRACES_EXPORTER", "otlp")]);
    assert_eq!(settings.expect("asked for").endpoint(), "localhost:4317");
}

#[test]
fn obs_04_what_makes_no_sense_is_told_and_its_default_taken() {
    let url = "http://user:secret@127.0.0.1:4317";
    let wrong = [
        ("OTEL_SDK_DISABLED", "perhaps"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "no pair,bad key=1,half=%4"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
        ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ("OTEL_RESOURCE_ATTRIBUTES", "=,nothing"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1e9"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "99999999999999999999"),
        ("OTEL_PROPAGATORS", "tracecontext,b3"),
    ];
    let all = [&[("OTEL_EXPORTER_OTLP_ENDPOINT", url)], &wrong[..]].concat();
    let (found, warnings) = settings(&all);
    for (name, _) in wrong {
        let told = warnings.iter().any(|warning| warning.contains(name));
        assert!(told, "{name} in {warnings:?}");
    }
    let found = found.expect("traces are exported nevertheless");
    assert_eq!(found.endpoint(), "127.0.0.1:4317", "without the password");
    assert_eq!(found.queue_spans, 2048);
    assert_eq!(found.batch_spans, 512);
    assert_eq!(found.timeout, Duration::from_secs(10));
    assert!(found.takes_context);
    let all = format!("{warnings:?}");
    assert!(!all.contains("half"), "headers may be secret: {all}");
}

#[test]
fn obs_04_endpoints_that_are_none_turn_traces_off_and_say_so() {
    for wrong in [
        "http://",
        "ftp://host:1",
        "not a url",
        "http://a b:1",
        "://",
    ] {
        let name = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        let (found, warnings) = settings(&[(name, wrong)]);
        assert!(found.is_none(), "{wrong}");
        let told = warnings
            .iter()
            .any(|w| w.contains(name) && w.contains(wrong));
        assert!(told, "{warnings:?}");
    }
    let missing = ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/ca.pem");
    let (found, warnings) = settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://host:1"), missing]);
    assert!(found.is_none());
    assert!(warnings[0].contains("/nowhere/ca.pem"), "{warnings:?}");
}
