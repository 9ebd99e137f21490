//! Operators' view, health, reflection, static lists, shutdown.

use std::time::Duration;

use baton_cluster::{Dialer, Membership, StaticList};
use baton_proto::v1;
use baton_router::{ConfigError, Router, RouterConfig};
use tokio::net::TcpListener;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::fake::{Board, Setup, endless};
use crate::harness::{
    Harness, MODEL, by_ids, config, first_token, long, prompt_of, soon, status_of,
};

async fn health(harness: &Harness, service: &str) -> ServingStatus {
    let request = HealthCheckRequest {
        service: service.into(),
    };
    HealthClient::new(harness.channel())
        .check(request)
        .await
        .unwrap()
        .into_inner()
        .status()
}

async fn until_ready(harness: &Harness, wanted: ServingStatus) {
    soon("readiness", async {
        while health(harness, "ready").await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

#[tokio::test]
async fn ready_follows_the_decode_workers_and_live_does_not() {
    let harness = Harness::start(config()).await;
    assert_eq!(health(&harness, "live").await, ServingStatus::Serving);
    assert_eq!(health(&harness, "ready").await, ServingStatus::NotServing);
    let _prefill = harness.add(Setup::prefill("prefill-0", endless())).await;
    assert_eq!(health(&harness, "ready").await, ServingStatus::NotServing);
    let models = |harness: &Harness| {
        let mut client = harness.client();
        async move {
            client
                .list_models(v1::ListModelsRequest {})
                .await
                .unwrap()
                .into_inner()
                .models
        }
    };
    assert!(models(&harness).await.is_empty());
    let mut decode = harness.add(Setup::decode("decode-0", endless())).await;
    until_ready(&harness, ServingStatus::Serving).await;
    assert_eq!(health(&harness, "").await, ServingStatus::Serving);
    let served = models(&harness).await;
    assert_eq!(served[0].name, MODEL.served.name());
    assert_eq!(served[0].vocabulary, MODEL.file.config().vocabulary);
    decode.kill();
    until_ready(&harness, ServingStatus::NotServing).await;
    assert_eq!(health(&harness, "live").await, ServingStatus::Serving);
    let unknown = HealthCheckRequest {
        service: "other".into(),
    };
    let status = HealthClient::new(harness.channel())
        .check(unknown)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
}

#[tokio::test]
async fn reflection_lists_the_services() {
    let harness = Harness::start(config()).await;
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(harness.channel());
    let mut answers = client
        .server_reflection_info(tokio_stream::iter([request]))
        .await
        .unwrap()
        .into_inner();
    let answer = answers
        .message()
        .await
        .unwrap()
        .unwrap()
        .message_response
        .unwrap();
    let MessageResponse::ListServicesResponse(list) = answer else {
        panic!("{answer:?}")
    };
    let names: Vec<_> = list
        .service
        .into_iter()
        .map(|service| service.name)
        .collect();
    for wanted in [
        "baton.v1.InferenceService",
        "baton.v1.AdminService",
        "grpc.health.v1.Health",
    ] {
        assert!(
            names.iter().any(|name| name == wanted),
            "{wanted}: {names:?}"
        );
    }
}

#[tokio::test]
async fn a_drained_worker_finishes_and_gets_nothing_new() {
    let harness = Harness::start(config()).await;
    let first = harness.add(Setup::decode("decode-0", endless())).await;
    let mut stream = harness
        .client()
        .generate(by_ids(prompt_of(5), 300))
        .await
        .unwrap()
        .into_inner();
    first_token(&mut stream).await;
    let second = harness.add(Setup::decode("decode-1", endless())).await;
    let drain = v1::DrainRequest {
        worker_id: "decode-0".into(),
    };
    let drained = harness.admin().drain(drain).await.unwrap().into_inner();
    assert_eq!(drained.running, 1);
    for _ in 0..10 {
        harness
            .generate(by_ids(prompt_of(5), 2))
            .await
            .unwrap()
            .whole();
    }
    assert_eq!((first.started(), second.started()), (1, 10));
    let list = harness.list().await;
    let state = |name: &str| {
        let named = |w: &&v1::WorkerStatus| w.info.as_ref().unwrap().worker_id == name;
        list.workers.iter().find(named).unwrap().state.clone()
    };
    assert_eq!(
        (state("decode-0").as_str(), state("decode-1").as_str()),
        ("draining", "ready")
    );
    let mut tokens = 1;
    while let Some(response) = soon("an event", stream.message()).await.unwrap() {
        if let Some(v1::generate_response::Event::Token(token)) = response.event {
            tokens += token.token_ids.len();
        }
    }
    assert_eq!(tokens, 300, "what ran there went on");
    for (name, code) in [("nobody", Code::NotFound), ("../x", Code::InvalidArgument)] {
        let drain = v1::DrainRequest {
            worker_id: name.into(),
        };
        assert_eq!(harness.admin().drain(drain).await.unwrap_err().code(), code);
    }
}

#[tokio::test]
async fn drain_of_a_name_that_two_workers_have_is_refused() {
    let harness = Harness::start(config()).await;
    let first = harness.add(Setup::decode("decode-0", endless())).await;
    let second = harness.add(Setup::decode("decode-0", endless())).await;
    let drain = || v1::DrainRequest {
        worker_id: "decode-0".into(),
    };
    let refused = harness.admin().drain(drain()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for worker in [&first, &second] {
        let incarnation = worker.info().incarnation.to_string();
        assert!(refused.message().contains(&incarnation), "{refused}");
        assert!(refused.message().contains(&worker.address), "{refused}");
    }
    let list = harness.list().await;
    assert!(list.workers.iter().all(|worker| worker.state == "ready"));
    drop(second);
    soon("one is left", async {
        while harness.list().await.workers.len() > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    harness.admin().drain(drain()).await.unwrap();
}

#[tokio::test]
async fn a_worker_that_says_it_drains_gets_nothing_new() {
    let harness = Harness::start(config()).await;
    let leaving = harness.add(Setup::decode("decode-0", endless())).await;
    // Health follows the list: it may not have said yet that the worker is there.
    until_ready(&harness, ServingStatus::Serving).await;
    leaving.report(|load| load.draining = true);
    until_ready(&harness, ServingStatus::NotServing).await;
    let status = status_of(harness.generate(long(3)).await);
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(leaving.started(), 0);
}

#[tokio::test]
async fn a_static_list_serves_like_registrations() {
    let board = Board::default();
    let unannounced = |setup: Setup| Setup {
        announce: false,
        ..setup
    };
    let prefill = unannounced(Setup::prefill("prefill-0", endless()))
        .start("127.0.0.1:1", &board)
        .await;
    let decode = unannounced(Setup::decode("decode-0", endless()))
        .start("127.0.0.1:1", &board)
        .await;
    let list = StaticList::new(vec![prefill.address.clone(), decode.address.clone()]).unwrap();
    let check = MODEL.served.check_worker();
    let membership = move || Membership::static_list(list, &Dialer::plain(), &check);
    let harness = Harness::start_with(config(), membership).await;
    until_ready(&harness, ServingStatus::Serving).await;
    soon("both are listed", async {
        while harness.list().await.workers.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let answer = harness.generate(long(5)).await.unwrap().whole();
    assert!(answer.receipt().attempts[0].reason.starts_with("split"));
    assert_eq!((prefill.started(), decode.started()), (1, 1));
}

#[tokio::test]
async fn shutdown_lets_running_requests_end() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let router = Router::new(
        config(),
        MODEL.served.clone(),
        Membership::embedded(),
        Dialer::plain(),
    )
    .unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(router.serve(listener, async {
        let _ = stopped.await;
    }));
    let board = Board::default();
    let _decode = Setup::decode("decode-0", endless())
        .start(&address, &board)
        .await;
    let channel = Dialer::plain().channel(&address).unwrap();
    let mut client = v1::inference_service_client::InferenceServiceClient::new(channel.clone());
    let request = || by_ids(prompt_of(5), 100);
    let mut stream = soon("the worker is known", async {
        loop {
            match client.generate(request()).await {
                Ok(response) => {
                    let mut stream = response.into_inner();
                    if let Ok(Some(_)) = stream.message().await {
                        return stream;
                    }
                }
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    })
    .await;
    stop.send(()).unwrap();
    let refused = soon("new ones are refused", async {
        loop {
            match client.generate(request()).await {
                Ok(_) => tokio::time::sleep(Duration::from_millis(2)).await,
                Err(status) => return status,
            }
        }
    })
    .await;
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    let mut done = false;
    while let Some(response) = soon("an event", stream.message()).await.unwrap() {
        done = matches!(response.event, Some(v1::generate_response::Event::Done(_)));
    }
    assert!(done, "the running one ended as usual");
    soon("serving ends", serving).await.unwrap().unwrap();
}

#[test]
fn settings_are_checked() {
    let wrong = RouterConfig {
        max_running: 0,
        ..RouterConfig::default()
    };
    let error = Router::new(
        wrong,
        MODEL.served.clone(),
        Membership::embedded(),
        Dialer::plain(),
    )
    .unwrap_err();
    let ConfigError::OutOfRange { field, .. } = error else {
        panic!("{error}");
    };
    assert_eq!(field, "max_running");
}
