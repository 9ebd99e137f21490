//! Real sockets on port 0; every wait is bounded by [`soon`].

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_proto::domain::{Fingerprint, Ledger, WorkerInfo, WorkerLoad, WorkerRole};
use baton_proto::ids::{Incarnation, WorkerId};
use baton_proto::v1;
use baton_proto::v1::register_request::Message;
use baton_proto::v1::registry_service_client::RegistryServiceClient;
use baton_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Response, Status};

use crate::{
    Announcer, CheckWorker, ClusterError, MemberTable, Membership, Registration, StaticList, http2,
    incoming,
};

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future)
        .await
        .unwrap_or_else(|_| panic!("not within 10 s: {what}"))
}

fn info(id: &str, incarnation: u64, address: &str) -> WorkerInfo {
    WorkerInfo {
        worker_id: WorkerId::new(id).unwrap(),
        incarnation: Incarnation(incarnation),
        role: WorkerRole::Decode,
        address: address.into(),
        fingerprint: Fingerprint {
            protocol_version: 1,
            weights_digest: [1; 32],
            metadata_digest: [2; 32],
            tokenizer_digest: [3; 32],
            kv_dtype: "bf16".into(),
            page_size: 16,
            layers: 1,
            kv_heads: 1,
            head_dim: 8,
            layout: "l".into(),
            rope: "r".into(),
            numerics: "n".into(),
        },
        model: "tiny".into(),
        pages_total: 8,
        max_batch: 4,
        context_length: 64,
        pid: 1,
        host_id: "h".into(),
        version: "0".into(),
    }
}

fn load(queued: u32) -> WorkerLoad {
    let pages = Ledger {
        total: 8,
        free: 8,
        ..Ledger::default()
    };
    WorkerLoad {
        queued,
        pages,
        ..WorkerLoad::default()
    }
}

/// A process: its tasks and connections end with it.
struct Process(Option<Runtime>);

impl Process {
    fn start(
        serving: impl Future<Output = Result<(), tonic::transport::Error>> + Send + 'static,
    ) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(serving);
        Self(Some(runtime))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A socket bound again at an address that was in use a moment ago.
async fn bind_again(address: &str) -> std::net::TcpListener {
    soon("the port is free", async {
        loop {
            match TcpListener::bind(address).await {
                Ok(listener) => break listener.into_std().unwrap(),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    })
    .await
}

async fn bind() -> std::net::TcpListener {
    TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .into_std()
        .unwrap()
}

/// A router with nothing but a registry.
struct FakeRouter {
    address: String,
    membership: Membership,
    _process: Process,
}

impl FakeRouter {
    fn at(listener: std::net::TcpListener, check: CheckWorker) -> Self {
        let address = listener.local_addr().unwrap().to_string();
        let membership = Membership::embedded();
        let service = membership.registry().unwrap().service(check);
        let process = Process::start(async move {
            let incoming = incoming(TcpListener::from_std(listener).unwrap(), 64);
            http2::server()
                .add_service(service)
                .serve_with_incoming(incoming)
                .await
        });
        Self {
            address,
            membership,
            _process: process,
        }
    }

    async fn start(check: CheckWorker) -> Self {
        Self::at(bind().await, check)
    }

    async fn fits_all() -> Self {
        Self::start(Arc::new(|_| Vec::new())).await
    }

    async fn until(&self, what: &str, wanted: impl Fn(&MemberTable) -> bool) {
        let mut table = self.membership.table();
        soon(what, table.wait_for(|table| wanted(table)))
            .await
            .unwrap();
    }
}

/// An announcer whose load can be changed.
fn announce(router: &str, info: &WorkerInfo) -> (Announcer, watch::Sender<WorkerLoad>) {
    let (load, receiver) = watch::channel(load(0));
    (
        Announcer::start(&[router.to_owned()], info, &receiver).unwrap(),
        load,
    )
}

fn has(table: &MemberTable, id: &str, incarnation: u64) -> bool {
    table
        .get(&(WorkerId::new(id).unwrap(), Incarnation(incarnation)))
        .is_some()
}

#[tokio::test]
async fn a_registration_lives_as_long_as_its_stream() {
    let router = FakeRouter::fits_all().await;
    let (announcer, load_sender) = announce(&router.address, &info("d-0", 1, "h:1"));
    let mut state = announcer.states()[0].clone();
    soon(
        "accepted",
        state.wait_for(|state| *state == Registration::Accepted),
    )
    .await
    .unwrap();
    load_sender.send_replace(load(7));
    let busy = |table: &MemberTable| table.iter().any(|(_, member)| member.load.queued == 7);
    router.until("the load", busy).await;
    drop(announcer);
    router.until("the end", MemberTable::is_empty).await;
}

#[tokio::test]
async fn a_worker_that_does_not_fit_is_told_why() {
    let router = FakeRouter::start(Arc::new(|_| vec!["tokenizer_digest".into()])).await;
    let (announcer, _load) = announce(&router.address, &info("d-0", 1, "h:1"));
    let wanted = Registration::Incompatible {
        differing_fields: vec!["tokenizer_digest".into()],
    };
    let mut state = announcer.states()[0].clone();
    soon("told", state.wait_for(|state| *state == wanted))
        .await
        .unwrap();
    router
        .until("it is listed", |table| has(table, "d-0", 1))
        .await;
}

#[tokio::test]
async fn drain_reaches_the_worker_over_its_registration() {
    let router = FakeRouter::fits_all().await;
    let (announcer, _load) = announce(&router.address, &info("d-0", 1, "h:1"));
    router
        .until("registered", |table| has(table, "d-0", 1))
        .await;
    let key = (WorkerId::new("d-0").unwrap(), Incarnation(1));
    // The entry is in the table a moment before its stream is known.
    while !router.membership.request_drain(&key) {
        tokio::task::yield_now().await;
    }
    let mut drain = announcer.drain_requested();
    soon("drain", drain.wait_for(|drain| *drain)).await.unwrap();
}

#[tokio::test]
async fn dsc_01_a_worker_comes_back_to_a_router_that_was_away() {
    let router = FakeRouter::fits_all().await;
    let address = router.address.clone();
    let (announcer, _load) = announce(&address, &info("d-0", 1, "h:1"));
    router
        .until("registered", |table| has(table, "d-0", 1))
        .await;
    let mut state = announcer.states()[0].clone();
    drop(router);
    let gone = |state: &Registration| matches!(state, Registration::Connecting { .. });
    soon("noticed", state.wait_for(gone)).await.unwrap();
    let router = FakeRouter::at(bind_again(&address).await, Arc::new(|_| Vec::new()));
    router.until("back", |table| has(table, "d-0", 1)).await;
}

#[tokio::test]
async fn dsc_06_a_new_incarnation_takes_over_its_address() {
    let router = FakeRouter::fits_all().await;
    let (old, _old_load) = announce(&router.address, &info("d-0", 1, "h:1"));
    router.until("old", |table| has(table, "d-0", 1)).await;
    let (_new, _new_load) = announce(&router.address, &info("d-0", 2, "h:1"));
    router
        .until("new only", |table| has(table, "d-0", 2) && table.len() == 1)
        .await;
    // The end of the old registration does not touch the new one.
    drop(old);
    let (_other, _other_load) = announce(&router.address, &info("d-9", 3, "h:9"));
    router.until("another", |table| has(table, "d-9", 3)).await;
    router
        .until("still there", |table| has(table, "d-0", 2))
        .await;
}

#[tokio::test]
async fn dsc_09_workers_of_one_name_coexist() {
    let router = FakeRouter::fits_all().await;
    let (first, _load) = announce(&router.address, &info("d-0", 1, "h:1"));
    let (_second, _load2) = announce(&router.address, &info("d-0", 2, "h:2"));
    router.until("both", |table| table.len() == 2).await;
    drop(first);
    router
        .until("the other", |table| {
            table.len() == 1 && has(table, "d-0", 2)
        })
        .await;
}

#[tokio::test]
async fn dsc_09_a_registration_opened_again_survives_the_end_of_the_one_before() {
    let router = FakeRouter::fits_all().await;
    let (first, _load) = announce(&router.address, &info("d-0", 1, "h:1"));
    router.until("first", |table| has(table, "d-0", 1)).await;
    let (_again, again_load) = announce(&router.address, &info("d-0", 1, "h:1"));
    again_load.send_replace(load(3));
    let again = |table: &MemberTable| table.iter().any(|(_, member)| member.load.queued == 3);
    router.until("again", again).await;
    drop(first);
    again_load.send_replace(load(4));
    let later = |table: &MemberTable| table.iter().any(|(_, member)| member.load.queued == 4);
    router.until("still reporting", later).await;
}

#[tokio::test]
async fn sec_07_forged_registrations_are_refused() {
    let router = FakeRouter::fits_all().await;
    let mut client = RegistryServiceClient::new(http2::channel(&router.address).unwrap());
    for id in ["../x", "a/b", ""] {
        let forged = v1::WorkerInfo {
            worker_id: id.into(),
            ..info("d-0", 1, "h:1").into()
        };
        let message = v1::RegisterRequest {
            message: Some(Message::Info(forged)),
        };
        let refused = client
            .register(tokio_stream::iter([message]))
            .await
            .unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("worker_id"), "{refused}");
    }
    let early = v1::RegisterRequest {
        message: Some(Message::Load(load(1).into())),
    };
    let refused = client
        .register(tokio_stream::iter([early]))
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(router.membership.table().borrow().is_empty());
}

#[tokio::test]
async fn rte_08_absurd_load_is_counted_and_the_last_good_one_kept() {
    let router = FakeRouter::fits_all().await;
    let mut client = RegistryServiceClient::new(http2::channel(&router.address).unwrap());
    let absurd = v1::WorkerLoad {
        queued: u32::MAX,
        ..load(1).into()
    };
    let (messages, stream) = tokio::sync::mpsc::channel(8);
    for message in [
        Message::Info(info("d-0", 1, "h:1").into()),
        Message::Load(load(5).into()),
        Message::Load(absurd),
    ] {
        messages
            .send(v1::RegisterRequest {
                message: Some(message),
            })
            .await
            .unwrap();
    }
    let _replies = client.register(ReceiverStream::new(stream)).await.unwrap();
    router
        .until("counted", |table| {
            table
                .iter()
                .any(|(_, m)| m.refused_loads == 1 && m.load.queued == 5)
        })
        .await;
}

/// Forwards bytes until told to go silent, which keeps the connections open.
async fn silent_proxy(to: String) -> (String, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (silence, silent) = watch::channel(false);
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = TcpStream::connect(&to).await.unwrap();
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            for (mut from, mut into) in [(near_in, far_out), (far_in, near_out)] {
                let silent = silent.clone();
                tokio::spawn(async move {
                    let mut buffer = [0; 4096];
                    while let Ok(count @ 1..) = from.read(&mut buffer).await {
                        if !*silent.borrow() && into.write_all(&buffer[..count]).await.is_err() {
                            break;
                        }
                    }
                    // A silent connection stays open.
                    if *silent.borrow() {
                        std::future::pending::<()>().await;
                    }
                });
            }
        }
    });
    (address, silence)
}

#[tokio::test]
async fn silence_is_a_dropped_stream_on_both_sides() {
    let router = FakeRouter::fits_all().await;
    let (proxy, silence) = silent_proxy(router.address.clone()).await;
    let (announcer, _load) = announce(&proxy, &info("d-0", 1, "h:1"));
    let mut state = announcer.states()[0].clone();
    soon(
        "accepted",
        state.wait_for(|state| *state == Registration::Accepted),
    )
    .await
    .unwrap();
    let started = Instant::now();
    silence.send_replace(true);
    router
        .until("the router notices", MemberTable::is_empty)
        .await;
    let gone = |state: &Registration| matches!(state, Registration::Connecting { .. });
    soon("the worker notices", state.wait_for(gone))
        .await
        .unwrap();
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "noticed after {took:?}");
}

struct FakeWorker {
    info: WorkerInfo,
    load: watch::Receiver<WorkerLoad>,
}

#[tonic::async_trait]
impl WorkerService for FakeWorker {
    type WatchLoadStream = ReceiverStream<Result<v1::WatchLoadResponse, Status>>;

    async fn get_worker(
        &self,
        _: Request<v1::GetWorkerRequest>,
    ) -> Result<Response<v1::GetWorkerResponse>, Status> {
        let (info, load) = (self.info.clone().into(), self.load.borrow().clone().into());
        Ok(Response::new(v1::GetWorkerResponse {
            info: Some(info),
            load: Some(load),
        }))
    }

    async fn watch_load(
        &self,
        request: Request<v1::WatchLoadRequest>,
    ) -> Result<Response<Self::WatchLoadStream>, Status> {
        if request.into_inner().incarnation != self.info.incarnation.0 {
            return Err(Status::failed_precondition("another incarnation"));
        }
        let (sender, stream) = tokio::sync::mpsc::channel(1);
        let mut load = self.load.clone();
        tokio::spawn(async move {
            while load.changed().await.is_ok() {
                let report = load.borrow_and_update().clone().into();
                let _ = sender
                    .send(Ok(v1::WatchLoadResponse { load: Some(report) }))
                    .await;
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn drain_worker(
        &self,
        _: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        Ok(Response::new(v1::DrainWorkerResponse { running: 0 }))
    }
}

fn serve_worker(
    listener: std::net::TcpListener,
    incarnation: u64,
) -> (Process, watch::Sender<WorkerLoad>) {
    let (load, receiver) = watch::channel(load(1));
    let worker = FakeWorker {
        info: info("d-0", incarnation, "elsewhere:1"),
        load: receiver,
    };
    let process = Process::start(async move {
        let incoming = incoming(TcpListener::from_std(listener).unwrap(), 8);
        let service = WorkerServiceServer::new(worker);
        http2::server()
            .add_service(service)
            .serve_with_incoming(incoming)
            .await
    });
    (process, load)
}

#[tokio::test]
async fn dsc_07_a_listed_worker_is_known_by_what_answers_now() {
    let listener = bind().await;
    let address = listener.local_addr().unwrap().to_string();
    let (process, load_sender) = serve_worker(listener, 1);
    let membership = Membership::static_list(StaticList::new(vec![address.clone()]).unwrap());
    let mut table = membership.table();
    soon("found", table.wait_for(|table| has(table, "d-0", 1)))
        .await
        .unwrap();
    load_sender.send_replace(load(9));
    let busy = |table: &Arc<MemberTable>| table.iter().all(|(_, m)| m.load.queued == 9);
    let seen = soon("load", table.wait_for(busy)).await.unwrap().clone();
    assert!(
        seen.iter()
            .all(|(_, member)| member.info.address == address)
    );
    drop(process);
    soon("gone", table.wait_for(|table| table.is_empty()))
        .await
        .unwrap();
    let (_process, _load) = serve_worker(bind_again(&address).await, 2);
    soon("the next one", table.wait_for(|table| has(table, "d-0", 2)))
        .await
        .unwrap();
}

#[test]
fn static_lists_are_checked() {
    let list = StaticList::parse("workers = [\"b:2\", \"a:1\", \"a:1\"]").unwrap();
    assert_eq!(
        list,
        StaticList::new(vec!["a:1".into(), "b:2".into()]).unwrap()
    );
    assert!(matches!(
        StaticList::parse("workers = []"),
        Err(ClusterError::Empty)
    ));
    assert!(matches!(
        StaticList::parse("worker = []"),
        Err(ClusterError::Syntax(_))
    ));
    for address in ["nowhere", "a:b", "a:99999", "a b:1"] {
        let parsed = StaticList::new(vec![address.into()]);
        assert!(
            matches!(parsed, Err(ClusterError::Address { .. })),
            "{address}: {parsed:?}"
        );
    }
    let many = (0..1025).map(|n| format!("h:{n}")).collect();
    assert!(matches!(
        StaticList::new(many),
        Err(ClusterError::TooMany { got: 1025, .. })
    ));
}

async fn closed_by_peer(address: SocketAddr, bytes: &[u8]) -> bool {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = [0; 64];
    matches!(
        soon("an answer or the end", stream.read(&mut answer)).await,
        Ok(0) | Err(_)
    )
}

#[tokio::test]
async fn sec_05_connections_are_limited_and_must_speak_http2() {
    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    let membership = Membership::embedded();
    let service = membership
        .registry()
        .unwrap()
        .service(Arc::new(|_| Vec::new()));
    let _process = Process::start(async move {
        let incoming = incoming(TcpListener::from_std(listener).unwrap(), 2);
        http2::server()
            .add_service(service)
            .serve_with_incoming(incoming)
            .await
    });
    assert!(closed_by_peer(address, b"GET / HTTP/1.1\r\n\r\n").await);
    // Two that say nothing hold both places, until their time is up.
    let silent = [
        TcpStream::connect(address).await.unwrap(),
        TcpStream::connect(address).await.unwrap(),
    ];
    let mut refused = false;
    for _ in 0..200 {
        refused = refused || closed_by_peer(address, b"").await;
        if refused {
            break;
        }
    }
    assert!(refused, "a third connection is closed at once");
    soon("places return after the preface's time", async {
        loop {
            let (announcer, _load) = announce(&address.to_string(), &info("d-0", 1, "h:1"));
            let mut state = announcer.states()[0].clone();
            let accepted = state.wait_for(|state| *state == Registration::Accepted);
            if tokio::time::timeout(Duration::from_millis(300), accepted)
                .await
                .is_ok()
            {
                break;
            }
        }
    })
    .await;
    drop(silent);
}

#[test]
fn xfr_20_unread_streams_leave_room_on_their_connection() {
    let (streams, stream) = (
        u64::from(http2::MAX_STREAMS),
        u64::from(http2::STREAM_WINDOW),
    );
    let connection = u64::from(http2::CONNECTION_WINDOW);
    assert!(streams * stream < connection);
    // Room for at least one more full stream, within what HTTP/2 can state (RFC 9113, 6.9.1).
    assert!(connection - streams * stream >= stream);
    assert!(connection < 1 << 31);
}
