//! A worker's life: health while it loads, registration, load reports, drain, end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::{CheckWorker, Dialer, Membership, StaticList, http2};
use baton_decode_worker::DecodeWorker;
use baton_prefill_worker::PrefillWorker;
use baton_proto::v1;
use baton_worker::WorkerError;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::support::gate::Gate;
use crate::support::node::{Node, Wish};
use crate::support::router::{Ask, DecodeLeg, Got, PrefillLeg, local, reason, split};
use crate::support::{prompt, soon, until};

async fn health(node: &Node, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.into(),
    };
    let reply = soon(
        "health",
        HealthClient::new(node.channel.clone()).check(request),
    )
    .await;
    reply.expect("a known service").into_inner().status()
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_04_live_at_once_and_ready_only_when_loaded() {
    let load_gate = Gate::closed();
    let wish = Wish {
        load_gate: Some(load_gate.clone()),
        ..Wish::default()
    };
    let mut node = Node::bind::<DecodeWorker>(wish).await;
    assert_eq!(health(&node, "live").await, ServingStatus::Serving);
    assert_eq!(health(&node, "ready").await, ServingStatus::NotServing);
    assert_eq!(health(&node, "").await, ServingStatus::NotServing);
    let status = node
        .client()
        .get_worker(v1::GetWorkerRequest {})
        .await
        .unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Unavailable, "loading")
    );
    let refused = DecodeLeg::open_raw(&node, v1::DecodeRequest::default()).await;
    assert_eq!(refused.err().unwrap().code(), Code::Unavailable);
    load_gate.let_all();
    node.until_ready().await;
    assert_eq!(health(&node, "ready").await, ServingStatus::Serving);
    assert_eq!(health(&node, "").await, ServingStatus::Serving);
    assert_eq!(node.info().pid, std::process::id());
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_lists_the_services() {
    let node = Node::start::<PrefillWorker>(Wish::default()).await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(node.channel.clone());
    let replies = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await;
    let reply = replies
        .unwrap()
        .into_inner()
        .message()
        .await
        .unwrap()
        .unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = reply.message_response else {
        panic!("no list");
    };
    let names: Vec<&str> = list
        .service
        .iter()
        .map(|service| service.name.as_str())
        .collect();
    for name in [
        "baton.v1.PrefillService",
        "baton.v1.WorkerService",
        "grpc.health.v1.Health",
    ] {
        assert!(names.contains(&name), "{name} in {names:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn load_reports_follow_changes_and_come_every_second() {
    let node = Node::start::<DecodeWorker>(Wish::default()).await;
    let incarnation = node.info().incarnation.0;
    let mut client = node.client();
    let wrong = client
        .watch_load(v1::WatchLoadRequest {
            incarnation: 1,
            ..Default::default()
        })
        .await
        .unwrap_err();
    assert_eq!(
        (wrong.code(), reason(&wrong).as_str()),
        (Code::FailedPrecondition, "wrong_incarnation")
    );
    let reports = client
        .watch_load(v1::WatchLoadRequest {
            incarnation,
            ..Default::default()
        })
        .await;
    let mut reports = reports.unwrap().into_inner();
    let mut next = async || {
        let report = soon("a report", reports.message()).await.unwrap().unwrap();
        report.load.unwrap()
    };
    assert_eq!(next().await.running, 0);
    let mut leg = DecodeLeg::open(&node, &Ask::greedy(prompt(1, 20), 1500), true)
        .await
        .unwrap();
    while next().await.running == 0 {}
    leg.step(&mut Got::default()).await.unwrap();
    drop(leg);
    while next().await.running > 0 {}
    // Nothing changes any more, and still they come.
    next().await;
    next().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_a_drain_lets_running_requests_end_and_refuses_new_ones() {
    let prefill = Node::start::<PrefillWorker>(Wish {
        name: "p",
        ..Wish::default()
    })
    .await;
    let wish = Wish {
        name: "d",
        gate: Gate::open(),
        ..Wish::default()
    };
    let mut decode = Node::start::<DecodeWorker>(wish).await;
    let ask = Ask::greedy(prompt(1, 50), 40);
    let expected = local(&decode, &ask).await.unwrap();
    let arrived = decode.gate.arrived();
    decode.gate.close();
    let mut running = DecodeLeg::open(&decode, &ask, true).await.unwrap();
    decode.gate.until_arrived(arrived + 1).await;
    decode.ask_to_end();
    until("the drain", async || decode.load().await.draining).await;
    assert_eq!(health(&decode, "ready").await, ServingStatus::NotServing);
    assert_eq!(health(&decode, "live").await, ServingStatus::Serving);
    let refused = split(&prefill, &decode, &ask).await.unwrap_err();
    assert_eq!(
        (refused.code(), reason(&refused).as_str()),
        (Code::Unavailable, "draining")
    );
    decode.gate.let_all();
    let mut got = Got::default();
    running.finish(&mut got).await.unwrap();
    assert_eq!(got.choices, expected.choices);
    drop(running);
    decode.ended().await.unwrap();
    prefill.until_idle().await;
    prefill.shut_down().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_past_the_drain_limit_the_rest_ends_with_an_explicit_error() {
    let drain_limit = Duration::from_millis(100);
    let mut prefill = Node::start::<PrefillWorker>(Wish {
        drain_limit,
        ..Wish::default()
    })
    .await;
    let mut leg = PrefillLeg::open(&prefill, &Ask::greedy(prompt(1, 50), 4), true)
        .await
        .unwrap();
    leg.scheduled().await.unwrap();
    prefill.ask_to_end();
    // No grant ever comes.
    let status = leg.finish(&mut Got::default()).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Unavailable, "drain_limit")
    );
    drop(leg);
    prefill.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn str_05_a_generation_that_the_drain_cuts_does_not_look_finished() {
    let drain_limit = Duration::from_millis(100);
    let mut decode = Node::start::<DecodeWorker>(Wish {
        drain_limit,
        ..Wish::default()
    })
    .await;
    let ask = Ask::greedy(prompt(1, 50), 1900);
    let expected = local(&decode, &ask).await.unwrap();
    let mut leg = DecodeLeg::open(&decode, &ask, true).await.unwrap();
    let mut got = Got::default();
    while got.choices.get(&0).is_none_or(|tokens| tokens.len() < 3) {
        leg.step(&mut got).await.unwrap();
    }
    decode.gate.close();
    decode.ask_to_end();
    let status = leg.finish(&mut got).await.unwrap_err();
    assert_eq!(
        (status.code(), reason(&status).as_str()),
        (Code::Unavailable, "drain_limit")
    );
    let tokens = &got.choices[&0];
    assert!(tokens.len() < 1900 && tokens.iter().all(|seen| seen.2.is_none()));
    assert_eq!(tokens[..], expected.choices[&0][..tokens.len()]);
    drop(leg);
    decode.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_01_a_drain_that_is_asked_for_ends_the_process_when_all_is_done() {
    let mut node = Node::start::<DecodeWorker>(Wish::default()).await;
    let mut client = node.client();
    let wrong = client
        .drain_worker(v1::DrainWorkerRequest { incarnation: 1 })
        .await
        .unwrap_err();
    assert_eq!(wrong.code(), Code::FailedPrecondition);
    let ask = Ask::greedy(prompt(1, 5), 40);
    let expected = local(&node, &ask).await.unwrap();
    let arrived = node.gate.arrived();
    node.gate.close();
    let mut running = DecodeLeg::open(&node, &ask, true).await.unwrap();
    node.gate.until_arrived(arrived + 1).await;
    let incarnation = node.info().incarnation.0;
    client
        .drain_worker(v1::DrainWorkerRequest { incarnation })
        .await
        .unwrap();
    assert!(node.load().await.draining);
    let refused = local(&node, &ask).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    until("not ready", async || {
        health(&node, "ready").await == ServingStatus::NotServing
    })
    .await;
    assert_eq!(health(&node, "live").await, ServingStatus::Serving);
    node.gate.let_all();
    let mut got = Got::default();
    running.finish(&mut got).await.unwrap();
    assert_eq!(got.choices, expected.choices);
    drop(running);
    node.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_07_a_step_that_stands_still_is_seen_by_probes_and_mended() {
    let wish = Wish {
        stuck_after: Duration::from_millis(100),
        ..Wish::default()
    };
    let node = Node::start::<DecodeWorker>(wish).await;
    assert_eq!(health(&node, "ready").await, ServingStatus::Serving);
    node.gate.close();
    let ask = Ask::greedy(prompt(1, 5), 40);
    let mut waiting = Vec::new();
    for _ in 0..5 {
        waiting.push(DecodeLeg::open(&node, &ask, true).await.unwrap());
    }
    for service in ["ready", "live"] {
        until(service, async || {
            health(&node, service).await == ServingStatus::NotServing
        })
        .await;
    }
    // What waits ends in time, whether steps are run or not.
    let brief = Ask {
        time: Duration::from_millis(300),
        ..ask.clone()
    };
    let mut leg = DecodeLeg::open(&node, &brief, true).await.unwrap();
    let status = leg.finish(&mut Got::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    drop(waiting);
    node.gate.let_all();
    for service in ["ready", "live"] {
        until(service, async || {
            health(&node, service).await == ServingStatus::Serving
        })
        .await;
    }
    local(&node, &ask).await.unwrap();
    node.until_idle().await;
}

/// The part of a router that workers register with.
struct Registrar {
    membership: Membership,
    runtime: Option<Runtime>,
}

impl Registrar {
    async fn at(address: SocketAddr, differing: &'static [&'static str]) -> Self {
        let runtime = Runtime::new().expect("a runtime");
        let membership = Membership::embedded();
        let check: CheckWorker =
            Arc::new(move |_| differing.iter().map(|field| (*field).to_owned()).collect());
        let service = membership.registry().expect("embedded").service(check);
        let listener = TcpListener::bind(address);
        let listener = soon("the router's port", runtime.spawn(listener)).await;
        let listener = TcpListenerStream::new(listener.expect("no panic").expect("a free port"));
        runtime.spawn(
            http2::server()
                .add_service(service)
                .serve_with_incoming(listener),
        );
        let runtime = Some(runtime);
        Self {
            membership,
            runtime,
        }
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn free_port() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    listener.local_addr().expect("an address")
}

#[tokio::test(flavor = "multi_thread")]
async fn k8s_03_ready_only_while_a_router_has_accepted_the_worker() {
    let address = free_port().await;
    let membership = baton_worker::Membership::Router(address.to_string());
    let wish = Wish {
        membership,
        ..Wish::default()
    };
    let mut node = Node::bind::<DecodeWorker>(wish).await;
    // Loaded, but no router is there.
    until("the model", async || {
        node.client()
            .get_worker(v1::GetWorkerRequest {})
            .await
            .is_ok()
    })
    .await;
    assert_eq!(health(&node, "ready").await, ServingStatus::NotServing);

    let router = Registrar::at(address, &[]).await;
    node.until_ready().await;
    until("ready", async || {
        health(&node, "ready").await == ServingStatus::Serving
    })
    .await;
    let table = router.membership.table();
    until("a load report", async || {
        let table = table.borrow();
        let (key, member) = table.iter().next().expect("a member");
        assert_eq!(key.1, node.info().incarnation);
        member.load.pages.total == 128
    })
    .await;

    drop(router);
    until("not ready", async || {
        health(&node, "ready").await == ServingStatus::NotServing
    })
    .await;
    assert_eq!(health(&node, "live").await, ServingStatus::Serving);
    let router = Registrar::at(address, &[]).await;
    node.until_ready().await;

    // The router's drain reaches the worker, which ends.
    let key = (node.info().worker_id.clone(), node.info().incarnation);
    until("the registration", async || {
        router.membership.request_drain(&key)
    })
    .await;
    node.ended().await.unwrap();
    until("the end of the registration", async || {
        router.membership.table().borrow().get(&key).is_none()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_11_a_worker_of_another_model_does_not_become_ready() {
    let address = free_port().await;
    let router = Registrar::at(address, &["weights_digest"]).await;
    let membership = baton_worker::Membership::Router(address.to_string());
    let wish = Wish {
        membership,
        ..Wish::default()
    };
    let node = Node::bind::<DecodeWorker>(wish).await;
    until("the registration", async || {
        !router.membership.table().borrow().is_empty()
    })
    .await;
    assert_eq!(health(&node, "ready").await, ServingStatus::NotServing);
    assert_eq!(health(&node, "live").await, ServingStatus::Serving);
}

#[tokio::test(flavor = "multi_thread")]
async fn xfr_11_a_listed_worker_that_fits_no_router_is_told_and_not_ready() {
    let node = Node::start::<DecodeWorker>(Wish::default()).await;
    let router = |differing: &'static [&'static str]| {
        let check: CheckWorker =
            Arc::new(|_| differing.iter().map(|&field| field.to_owned()).collect());
        let list = StaticList::new(vec![node.address.to_string()]).unwrap();
        Membership::static_list(list, &Dialer::plain(), &check)
    };
    let becomes = async |status| {
        until("the health", async || {
            health(&node, "ready").await == status
        })
        .await;
    };
    let _other = router(&["weights_digest"]);
    becomes(ServingStatus::NotServing).await;
    let fitting = router(&[]);
    becomes(ServingStatus::Serving).await;
    drop(fitting);
    becomes(ServingStatus::NotServing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_fails_ends_the_worker_with_an_error() {
    let mut node = Node::start::<DecodeWorker>(Wish::default()).await;
    node.gate.break_engine();
    let mut leg = DecodeLeg::open(&node, &Ask::greedy(prompt(1, 20), 4), true)
        .await
        .unwrap();
    let status = leg.finish(&mut Got::default()).await.unwrap_err();
    assert_ne!(status.code(), Code::Ok);
    drop(leg);
    let ended = node.ended().await;
    assert!(
        matches!(ended, Err(WorkerError::StepLoopEnded)),
        "{ended:?}"
    );
}
