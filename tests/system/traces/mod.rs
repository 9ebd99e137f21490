//! Traces of real processes at a real collector: whose spans belong to whom, which are linked, and which are not
//! there; and collectors that are of no use to anybody.

mod collector;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use self::collector::{Collector, Recorded, Tree};
use crate::answer::Answer;
use crate::certificates::Authority;
use crate::client::{Client, rest};
use crate::models::{endless, slow_model, tiny_model, tiny_prompt, with};
use crate::process::{Process, baton};
use crate::service::{Roles, Trio};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// Has a router tell everything about requests.
const LOGS_ALL: [&str; 2] = ["--log", "baton_router=debug"];

/// Router, workers, and where their spans go. Workers end first.
struct Traced {
    client: Client,
    decode: Vec<Process>,
    prefill: Process,
    router: Process,
    _roles: Roles,
}

/// A service of a tiny model with one decode worker, whose spans a collector takes.
async fn collected(router_flags: &[&str], more: &[(&str, &str)]) -> (Traced, Collector) {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start().await;
    let model = tiny_model(folder.path());
    // Whoever is ready has read the model.
    let service = Traced::start(&model, &collector.url(), router_flags, 1, more).await;
    (service, collector)
}

impl Traced {
    async fn start(
        model: &Path,
        url: &str,
        router_flags: &[&str],
        decode_workers: usize,
        more: &[(&str, &str)],
    ) -> Self {
        let mut roles = Roles::new(model);
        roles.set("OTEL_EXPORTER_OTLP_ENDPOINT", url);
        roles.set("OTEL_BSP_SCHEDULE_DELAY", "20");
        for (name, value) in more {
            roles.set(name, value);
        }
        let flags = [&["--http-listen", "127.0.0.1:0"], router_flags].concat();
        let router = roles.router(&flags);
        let worker = |role: &str, id: &str| roles.worker(role, &router, &["--worker-id", id]);
        let decode = (0..decode_workers)
            .map(|at| worker("decode", &format!("decode-{at}")))
            .collect();
        let prefill = worker("prefill", "prefill-0");
        let client = Client::connect(router.address()).await;
        client.until_ready(decode_workers + 1).await;
        Self {
            client,
            decode,
            prefill,
            router,
            _roles: roles,
        }
    }

    /// Sends a request over gRPC with this `traceparent`.
    async fn generate(
        &self,
        request: baton_proto::v1::GenerateRequest,
        traceparent: &str,
    ) -> Answer {
        let mut request = tonic::Request::new(request);
        let value = traceparent.parse().expect("a header");
        request.metadata_mut().insert("traceparent", value);
        let events = self.client.inference().generate(request).await;
        let events = events.expect("it begins").into_inner();
        rest(events, Answer::default()).await.expect("an answer")
    }

    /// Sends a request over HTTP with this `traceparent`; it is answered well.
    fn post(&self, path: &str, body: &Value, traceparent: &str) -> Value {
        let answer = self.try_post(path, body, traceparent);
        assert!(answer["error"].is_null(), "{answer}");
        answer
    }

    /// Sends a request over HTTP with this `traceparent`.
    fn try_post(&self, path: &str, body: &Value, traceparent: &str) -> Value {
        let url = format!("http://{}{path}", self.router.http());
        let header = format!("traceparent: {traceparent}");
        let ended = std::process::Command::new("curl")
            .args(["--silent", "--show-error"])
            .args(["--max-time", "60", "--header", &header])
            .args(["--header", "Content-Type: application/json"])
            .args(["--data", &body.to_string(), &url])
            .output()
            .expect("curl starts");
        assert!(ended.status.success(), "{ended:?}");
        serde_json::from_slice(&ended.stdout).expect("JSON")
    }
}

fn sampled(trace: &str) -> String {
    format!("00-{trace}-{CALLER}-01")
}

/// Spans of a request that was handed off once.
const HANDED_OFF: [(&str, usize); 12] = [
    ("admission", 1),
    ("tokenize", 1),
    ("placement", 1),
    ("attempt", 1),
    ("grant", 1),
    ("prefill leg", 1),
    ("queued", 1),
    ("prefill", 1),
    ("send", 1),
    ("decode leg", 1),
    ("receive", 1),
    ("decode", 1),
];

/// Whose part is whose, and whose is linked to whose, in a request that was handed off once.
fn assert_handed_off(tree: &Tree, name: &str) {
    let request = tree.only(name);
    assert_eq!(request.parent, CALLER, "{request:#?}");
    assert_eq!(request.service, "baton-router");
    assert_eq!(tree.parts(request), ["admission", "attempt", "placement"]);
    assert_eq!(tree.parts(tree.only("admission")), ["tokenize"]);
    let attempt = tree.only("attempt");
    assert_eq!(tree.parts(attempt), ["decode leg", "grant", "prefill leg"]);
    let (prefill, decode) = (tree.only("prefill leg"), tree.only("decode leg"));
    assert_eq!(prefill.service, "baton-prefill");
    assert_eq!(decode.service, "baton-decode");
    let parts = tree.parts(prefill);
    let least = ["prefill", "queued", "send"];
    assert!(least.iter().all(|part| parts.contains(part)), "{parts:?}");
    assert_eq!(tree.parts(decode), ["decode", "landing", "receive"]);
    let (send, receive) = (tree.only("send"), tree.only("receive"));
    let place = |span: &Recorded| vec![(span.trace.clone(), span.id.clone())];
    assert_eq!(send.links, place(receive), "{send:#?}");
    assert_eq!(receive.links, place(send), "{receive:#?}");
    assert_ne!(send.attribute("baton.bytes"), "0");
    for span in &tree.0 {
        assert!(!span.is_error, "{span:#?}");
        assert!(span.from <= span.to, "{span:#?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_01_spans_of_all_processes_are_one_trace_over_grpc_and_http() {
    let headers = ("OTEL_EXPORTER_OTLP_HEADERS", "x-of-test=a%20b");
    let (service, collector) = collected(&[], &[headers]).await;
    let request = with(endless(tiny_prompt(1, 90), 7), |sampling| {
        (sampling.seed, sampling.temperature) = (Some(11), Some(0.5));
    });
    service.generate(request, &sampled(TRACE)).await;
    let name = "text_completion tiny";
    let names = [&HANDED_OFF[..], &[(name, 1)]].concat();
    let tree = collector.trace(TRACE, &names).await;
    assert_handed_off(&tree, name);
    let told = |attribute: &str| tree.only(name).attribute(attribute);
    assert_eq!(told("gen_ai.operation.name"), "text_completion");
    assert_eq!(told("gen_ai.request.model"), "tiny");
    assert_eq!(told("gen_ai.request.max_tokens"), "7");
    assert_eq!(told("gen_ai.request.temperature"), "0.5");
    assert_eq!(told("gen_ai.request.seed"), "11");
    assert_eq!(told("gen_ai.usage.input_tokens"), "90");
    assert_eq!(told("gen_ai.usage.output_tokens"), "7");
    assert_eq!(told("gen_ai.response.finish_reasons"), "length");
    assert_eq!(tree.only("decode").attribute("baton.tokens"), "6");
    let attempt = tree.only("attempt");
    assert_eq!(attempt.attribute("baton.prefill_worker"), "prefill-0");
    assert_eq!(attempt.attribute("baton.decode_worker"), "decode-0");
    assert_eq!(collector.headers()[0], "a b");

    let trace = TRACE.replace('4', "5");
    let secret = "Xylophone";
    let body = json!({
        "messages": [{"role": "user", "content": format!("{secret} ").repeat(8)}], "max_tokens": 5,
        "stop": [format!("{secret} {secret}")], "ignore_eos": true, "user": secret,
    });
    service.post("/v1/chat/completions", &body, &sampled(&trace));
    let name = "chat tiny";
    let names = [&HANDED_OFF[..], &[(name, 1)]].concat();
    let tree = collector.trace(&trace, &names).await;
    assert_handed_off(&tree, name);
    let all = format!("{:?}", collector.spans());
    assert!(
        !all.contains(secret),
        "what clients say is unheard-of business"
    );
    let traces: BTreeSet<_> = collector
        .spans()
        .into_iter()
        .map(|span| span.trace)
        .collect();
    assert_eq!(traces, BTreeSet::from([TRACE.to_owned(), trace]));
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_01_malformed_and_unsampled_contexts() {
    let (service, collector) = collected(&[], &[]).await;
    let request = || endless(tiny_prompt(2, 90), 4);
    let body = json!({"prompt": tiny_prompt(3, 90), "max_tokens": 4, "ignore_eos": true});
    // Not wanted by its caller: nobody hears of it.
    let unsampled = TRACE.replace('4', "6");
    let header = format!("00-{unsampled}-{CALLER}-00");
    service.generate(request(), &header).await;
    service.post("/v1/completions", &body, &header);
    let malformed = [
        format!("00-{TRACE}-{CALLER}"),
        format!("00-{}-{CALLER}-01", "0".repeat(32)),
        format!("00-{TRACE}-{CALLER}-01-more"),
        "x".repeat(4000),
    ];
    for header in &malformed {
        service.generate(request(), header).await;
        service.post("/v1/completions", &body, header);
    }
    let last = TRACE.replace('4', "7");
    service.generate(request(), &sampled(&last)).await;
    let names = [&HANDED_OFF[..], &[("text_completion tiny", 1)]].concat();
    collector.trace(&last, &names).await;
    let begin = Instant::now();
    let roots = loop {
        let spans = collector.spans();
        let roots: Vec<_> = (spans.into_iter())
            .filter(|span| span.name == "text_completion tiny" && span.trace != last)
            .collect();
        if roots.len() >= 2 * malformed.len() {
            break roots;
        }
        assert!(begin.elapsed() < crate::process::PATIENCE, "{roots:#?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(roots.len(), 2 * malformed.len());
    let traces: BTreeSet<_> = roots.iter().map(|root| root.trace.clone()).collect();
    assert_eq!(traces.len(), roots.len(), "each has a trace of its own");
    assert!(
        roots.iter().all(|root| root.parent.is_empty()),
        "{roots:#?}"
    );
    assert!(!traces.contains(TRACE));
    let all = collector.spans();
    assert!(all.iter().all(|span| span.trace != unsampled), "{all:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_01_logs_of_a_request_name_its_trace_from_the_first_line_on() {
    let (service, _collector) = collected(&LOGS_ALL, &[]).await;
    let refused = |of: &str, trace: &str| {
        let log = service.router.log();
        let all: Vec<_> = (log.lines())
            .filter(|line| line.contains("request refused") && line.contains(of))
            .collect();
        assert_eq!(all.len(), 1, "{of}: {log}");
        assert!(all[0].contains(trace), "no {trace} in {}", all[0]);
    };
    // Before its body is understood, before it has token ids, and when it can have no place.
    let bodies = [
        json!({"prompt": "x", "temprature": 1}),
        json!({"prompt": [4_000_000_000_u32], "request_id": "of-test"}),
    ];
    let (misspelt, unknown) = (TRACE.replace('4', "5"), TRACE.replace('4', "6"));
    for (body, trace) in bodies.iter().zip([&misspelt, &unknown]) {
        let error = service.try_post("/v1/completions", body, &sampled(trace));
        assert_eq!(error["error"]["type"], "invalid_request_error", "{error}");
    }
    refused("temprature", &misspelt);
    refused("4000000000", &unknown);
    refused("of-test", &unknown);
    let mut request = endless(tiny_prompt(1, 20), 2);
    request.model = "unheard-of".into();
    let mut request = tonic::Request::new(request);
    let value = sampled(TRACE).parse().expect("a header");
    request.metadata_mut().insert("traceparent", value);
    let error = service.client.inference().generate(request).await;
    assert_eq!(error.expect_err("refused").code(), tonic::Code::NotFound);
    refused("unheard-of", TRACE);
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_01_two_choices_are_one_set_of_spans() {
    let (service, collector) = collected(&[], &[]).await;
    let request = with(endless(tiny_prompt(4, 90), 5), |sampling| {
        (sampling.n, sampling.temperature) = (Some(2), Some(1.0));
    });
    service.generate(request, &sampled(TRACE)).await;
    let name = "text_completion tiny";
    let names = [&HANDED_OFF[..], &[(name, 1)]].concat();
    let tree = collector.trace(TRACE, &names).await;
    assert_handed_off(&tree, name);
    let told = |attribute: &str| tree.only(name).attribute(attribute);
    assert_eq!(told("gen_ai.request.choice.count"), "2");
    assert_eq!(told("gen_ai.usage.output_tokens"), "10");
    assert_eq!(told("gen_ai.response.finish_reasons"), "length,length");
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_01_a_prompt_that_is_computed_where_it_decodes() {
    let flags = ["--local-prefill-tokens", "1000"];
    let (service, collector) = collected(&flags, &[]).await;
    let request = endless(tiny_prompt(5, 300), 5);
    service.generate(request, &sampled(TRACE)).await;
    let names = [("decode leg", 1), ("text_completion tiny", 1)];
    let tree = collector.trace(TRACE, &names).await;
    assert_eq!(tree.parts(tree.only("attempt")), ["decode leg"]);
    let parts = tree.parts(tree.only("decode leg"));
    assert_eq!(parts, ["decode", "prefill", "queued"]);
    let chunks = &tree.only("prefill").events;
    assert!(!chunks.is_empty(), "300 tokens are several chunks");
    assert!(chunks.iter().all(|event| event == "chunk"), "{chunks:?}");
    assert!(service.prefill.log().len() < 100_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_01_every_attempt_of_a_resumed_request_is_a_span() {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start().await;
    let model = slow_model(folder.path());
    let service = Traced::start(&model, &collector.url(), &[], 2, &[]).await;
    let request = endless(tiny_prompt(6, 90), 100);
    let mut call = tonic::Request::new(request);
    let value = sampled(TRACE).parse().expect("a header");
    call.metadata_mut().insert("traceparent", value);
    let events = service.client.inference().generate(call).await;
    let mut events = events.expect("it begins").into_inner();
    let mut answer = Answer::default();
    while answer
        .choices
        .values()
        .map(|c| c.token_ids.len())
        .sum::<usize>()
        < 10
    {
        let event = events.message().await.expect("it goes on");
        answer.take(event.expect("more"));
    }
    let status = service.client.status().await;
    let busy = (status.workers.iter())
        .filter(|worker| worker.in_flight > 0)
        .filter_map(|worker| worker.info.as_ref())
        .find(|info| info.worker_id.starts_with("decode"))
        .expect("somebody decodes");
    let index = usize::from(busy.worker_id == "decode-1");
    service.decode[index].signal("KILL");
    let answer = rest(events, answer).await.expect("it is resumed");
    assert_eq!(answer.ids().len(), 100);

    let names = [
        ("text_completion tiny", 1),
        ("attempt", 2),
        ("prefill leg", 2),
        ("decode leg", 1),
    ];
    let tree = collector.trace(TRACE, &names).await;
    let request = tree.only("text_completion tiny");
    let attempts = tree.named("attempt");
    assert!(attempts.iter().all(|attempt| attempt.parent == request.id));
    let [first, .., last] = attempts[..] else {
        panic!("{tree:#?}")
    };
    assert!(first.is_error, "{first:#?}");
    assert!(!last.is_error, "{last:#?}");
    assert!(!request.is_error, "{request:#?}");
    assert_ne!(last.attribute("baton.kept_tokens"), "", "{last:#?}");
    assert!(last.attribute("baton.reason").starts_with("resume: "));
    assert_eq!(tree.only("decode leg").parent, last.id);
    let legs: Vec<_> = tree
        .named("prefill leg")
        .iter()
        .map(|leg| &leg.parent)
        .collect();
    assert!(
        legs.contains(&&first.id) && legs.contains(&&last.id),
        "{legs:?}"
    );
    let log = service.router.log();
    let failed = log.lines().find(|line| line.contains("leg failed"));
    let failed = failed.expect("a failure is logged");
    assert!(failed.contains(TRACE), "logs name the trace: {failed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_04_useless_collectors_touch_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let slow = Collector::with_delay(Duration::from_secs(10)).await;
    let black_hole = Collector::black_hole().await;
    // A port that nobody listens on once it is given back.
    let absent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let absent = absent.local_addr().expect("bound");
    let absent = format!("http://{absent}");
    let little = [
        ("OTEL_BSP_MAX_QUEUE_SIZE", "16"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "8"),
    ];
    let mut expected: Option<Vec<Vec<u32>>> = None;
    for url in [absent, black_hole.url(), slow.url()] {
        let mut service = Traced::start(&model, &url, &[], 1, &little).await;
        let mut answers = Vec::new();
        for seed in 0..20 {
            let request = endless(tiny_prompt(seed, 80), 8);
            let answer = service.client.generate(request).await.expect("an answer");
            answers.push(answer.ids().to_vec());
        }
        assert_eq!(expected.get_or_insert_with(|| answers.clone()), &answers);
        service.client.assert_idle().await;
        let dropped = service.client.counter("trace_spans_dropped").await;
        assert!(dropped > 0, "{url}: a queue of 16 holds no 20 requests");
        let begin = Instant::now();
        let Traced {
            decode,
            prefill,
            router,
            ..
        } = &mut service;
        let all = decode.iter_mut().chain([prefill, router]);
        for process in all {
            process.signal("TERM");
            let status = process.wait();
            assert!(status.success(), "{url}: {status}: {}", process.log());
            assert!(!process.log().contains("panicked"), "{}", process.log());
        }
        // Three processes, each of which may take three seconds for its last spans.
        assert!(begin.elapsed() < Duration::from_secs(50), "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_04_settings_that_make_no_sense_are_told_and_serve() {
    let odd = [
        ("OTEL_TRACES_SAMPLER", "sometimes"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "many"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "nothing,deployment.environment.name=test",
        ),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_SERVICE_NAME", "of-test"),
    ];
    let (service, collector) = collected(&[], &odd).await;
    service
        .generate(endless(tiny_prompt(1, 90), 4), &sampled(TRACE))
        .await;
    let tree = collector.trace(TRACE, &[("text_completion tiny", 1)]).await;
    assert_eq!(tree.only("text_completion tiny").service, "of-test");
    let log = service.router.log();
    for (name, _) in &odd[..4] {
        assert!(log.contains(name), "{name} is not in {log}");
    }
    drop(service);
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let service = Traced::start(&model, "no url at all", &[], 1, &[]).await;
    let answer = service
        .generate(endless(tiny_prompt(1, 90), 4), &sampled(TRACE))
        .await;
    assert_eq!(answer.ids().len(), 4);
    let log = service.router.log();
    assert!(
        log.contains("OTEL_EXPORTER_OTLP_ENDPOINT is \"no url at all\""),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn obs_04_collectors_under_tls_are_known_by_their_authority() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let authority = Authority::new(folder.path(), "collectors");
    let stranger = Authority::new(folder.path(), "strangers");
    let collector = Collector::over_tls(&authority.sign("collector")).await;
    let name = "text_completion tiny";
    let start = async |ca: &str| {
        let settings = [
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", ca),
            // So that a batch is given up soon.
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ];
        Traced::start(&model, &collector.url(), &[], 1, &settings).await
    };
    let request = || endless(tiny_prompt(9, 90), 4);
    let service = start(&authority.ca).await;
    let expected = service.generate(request(), &sampled(TRACE)).await;
    let names = [&HANDED_OFF[..], &[(name, 1)]].concat();
    assert_handed_off(&collector.trace(TRACE, &names).await, name);
    let lost = service.client.counter("trace_spans_failed").await;
    assert_eq!(lost, 0, "{}", service.router.log());
    drop(service);

    // Nobody that a stranger vouches for is told anything; requests do not notice.
    let service = start(&stranger.ca).await;
    let trace = TRACE.replace('4', "5");
    let answer = service.generate(request(), &sampled(&trace)).await;
    assert_eq!(answer.ids(), expected.ids());
    let begin = Instant::now();
    while service.client.counter("trace_spans_failed").await == 0 {
        assert!(begin.elapsed() < crate::process::PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    service.client.assert_idle().await;
    let all = collector.spans();
    assert!(all.iter().all(|span| span.trace != trace), "{all:#?}");
    let log = service.router.log();
    let told = log
        .lines()
        .find(|line| line.contains("traces do not reach"));
    let told = told.unwrap_or_else(|| panic!("not told: {log}"));
    assert!(told.contains("certificate"), "not why: {told}");
}

/// Names of the phases, in the order of their beginnings.
fn phases(trace: &Value) -> Vec<&str> {
    let phases = trace["phases"].as_array().expect("phases").iter();
    let mut phases: Vec<_> = phases
        .inspect(|phase| {
            assert!(
                phase["from_us"].as_u64() <= phase["to_us"].as_u64(),
                "{phase}"
            );
        })
        .filter_map(|phase| Some((phase["from_us"].as_u64()?, phase["phase"].as_str()?)))
        .collect();
    phases.sort_unstable_by_key(|(from, _)| *from);
    phases.into_iter().map(|(_, name)| name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_drawn_in_the_terminal() {
    let folder = tempfile::tempdir().expect("a folder");
    let model = tiny_model(folder.path());
    let service = Trio::start(&model, &[]).await;
    let ids: Vec<String> = tiny_prompt(1, 300)
        .iter()
        .map(ToString::to_string)
        .collect();
    let ids = ids.join(",");
    let router = service.router.address();
    let ask = ["generate", "--connect", router, "--token-ids", &ids];
    let ask = [&ask[..], &["--max-tokens", "5", "--ignore-eos", "--trace"]].concat();
    let drawn = baton(&ask);
    assert_eq!(drawn.code, Some(0), "{drawn:#?}");
    for part in [
        "admission",
        "queued",
        "prefill-0 -> decode-0",
        "transfer",
        "first token",
        "█",
    ] {
        assert!(
            drawn.stderr.contains(part),
            "no {part:?} in {}",
            drawn.stderr
        );
    }
    assert!(
        !drawn.stderr.contains('\x1b'),
        "no colours where there is no terminal"
    );
    assert!(
        !drawn.stdout.contains("admission"),
        "the answer stands alone"
    );

    let told = baton(&[&ask[..], &["--format", "json"]].concat());
    let events: Vec<Value> = (told.stdout.lines())
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let last = events.last().expect("events");
    assert_eq!(last["event"], "trace");
    let trace = &last["trace"];
    let all = phases(trace);
    for phase in ["admission", "queued", "prefill", "transfer", "decode"] {
        assert!(all.contains(&phase), "{all:?}");
    }
    assert_eq!((all[0], all[1]), ("admission", "queued"));
    let request = trace["request_id"].as_str().expect("an id");
    let again = baton(&["trace", request, "--connect", router, "--format", "json"]);
    let again: Value = serde_json::from_str(&again.stdout).expect("JSON");
    assert_eq!(again["request_id"], trace["request_id"]);
    assert_eq!(again["outcome"], "ok");
    let text = baton(&["trace", request, "--connect", router]);
    assert!(text.stdout.contains("prefill-0 -> decode-0"), "{text:#?}");
    let unknown = baton(&["trace", "nobody", "--connect", router]);
    assert_eq!(unknown.code, Some(3), "{unknown:#?}");
    assert_eq!(baton(&["trace", "--connect", router]).code, Some(2));
}
