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
    Announcer, CheckWorker, ClusterError, Dialer, MemberTable, Membership, Registration,
    StaticList, http2, incoming,
};

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future)
        .await
        .unwrap_or_else(|_| panic!("not within 10 s: {what}"))
}

pub(crate) fn info(id: &str, incarnation: u64, address: &str) -> WorkerInfo {
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

pub(crate) fn load(queued: u32) -> WorkerLoad {
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
pub(crate) struct Process(Option<Runtime>);

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

pub(crate) async fn bind() -> std::net::TcpListener {
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
        Announcer::start(&Dialer::plain(), &[router.to_owned()], info, &receiver).unwrap(),
        load,
    )
}

pub(crate) fn has(table: &MemberTable, id: &str, incarnation: u64) -> bool {
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

/// Waits for a failed attempt whose error says all of this.
async fn until_error(what: &str, announcer: &Announcer, parts: &[&str]) {
    let mut state = announcer.states()[0].clone();
    let says = |state: &Registration| match state {
        Registration::Connecting {
            last_error: Some(error),
        } => parts.iter().all(|part| error.contains(part)),
        _ => false,
    };
    soon(what, state.wait_for(says)).await.unwrap();
}

#[tokio::test]
async fn dsc_06_an_address_belongs_to_the_worker_that_is_alive_there() {
    let router = FakeRouter::fits_all().await;
    let (old, old_load) = announce(&router.address, &info("d-0", 1, "h:1"));
    router.until("old", |table| has(table, "d-0", 1)).await;
    let (new, _new_load) = announce(&router.address, &info("d-1", 2, "h:1"));
    let parts = ["h:1", "d-0", &Incarnation(1).to_string()];
    until_error("the newcomer is told", &new, &parts).await;
    // The one that is there is still heard.
    old_load.send_replace(load(7));
    let heard = |table: &MemberTable| {
        table.len() == 1
            && has(table, "d-0", 1)
            && table.iter().all(|(_, member)| member.load.queued == 7)
    };
    router.until("the old one's load", heard).await;
    assert_eq!(*old.states()[0].borrow(), Registration::Accepted);
    drop(old);
    router
        .until("new only", |table| has(table, "d-1", 2) && table.len() == 1)
        .await;
}

#[tokio::test]
async fn dsc_06_a_worker_restarted_before_its_end_is_noticed_comes_back() {
    let router = FakeRouter::fits_all().await;
    let (proxy, silence) = silent_proxy(router.address.clone()).await;
    let (_old, _old_load) = announce(&proxy, &info("d-0", 1, "h:1"));
    router.until("old", |table| has(table, "d-0", 1)).await;
    let started = Instant::now();
    // Its connection stays open, as when its machine has lost power.
    silence.send_replace(true);
    let (_new, _new_load) = announce(&router.address, &info("d-0", 2, "h:1"));
    router
        .until("new only", |table| has(table, "d-0", 2) && table.len() == 1)
        .await;
    let took = started.elapsed();
    assert!(took < Duration::from_secs(5), "back after {took:?}");
}

#[tokio::test]
async fn dsc_06_a_worker_that_lost_its_address_is_told_who_has_it() {
    let router = FakeRouter::fits_all().await;
    let mut client = RegistryServiceClient::new(Dialer::plain().channel(&router.address).unwrap());
    let (messages, stream) = tokio::sync::mpsc::channel(8);
    let first = v1::RegisterRequest {
        message: Some(Message::Info(info("d-0", 1, "h:1").into())),
    };
    messages.send(first).await.unwrap();
    let mut replies = client
        .register(ReceiverStream::new(stream))
        .await
        .unwrap()
        .into_inner();
    assert!(replies.message().await.unwrap().unwrap().accepted);
    // It reports no load, so that a newcomer gets the address in the end.
    let (_new, _new_load) = announce(&router.address, &info("d-1", 2, "h:1"));
    let status = soon("the stream ends", replies.message())
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    for part in ["d-1", &Incarnation(2).to_string()] {
        assert!(status.message().contains(part), "{status}");
    }
    router
        .until("new only", |table| has(table, "d-1", 2) && table.len() == 1)
        .await;
    // Its own next attempt is refused while the newcomer lives.
    let (again, _again_load) = announce(&router.address, &info("d-0", 1, "h:1"));
    until_error("refused", &again, &["h:1", "d-1"]).await;
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
    let mut client = RegistryServiceClient::new(Dialer::plain().channel(&router.address).unwrap());
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
    let mut client = RegistryServiceClient::new(Dialer::plain().channel(&router.address).unwrap());
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

/// Forwards bytes until told to go silent, which keeps the connections open. Those that come after
/// the silence are forwarded again.
pub(crate) async fn silent_proxy(to: String) -> (String, watch::Sender<bool>) {
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
                        if *silent.borrow() {
                            break;
                        }
                        if into.write_all(&buffer[..count]).await.is_err() {
                            return;
                        }
                    }
                    // A connection that has been silent stays open and silent: TCP loses no bytes.
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

pub(crate) fn serve_worker(
    listener: std::net::TcpListener,
    info: WorkerInfo,
) -> (Process, watch::Sender<WorkerLoad>) {
    serve_workers(vec![(listener, info)])
}

/// Workers of one load in one process.
pub(crate) fn serve_workers(
    workers: Vec<(std::net::TcpListener, WorkerInfo)>,
) -> (Process, watch::Sender<WorkerLoad>) {
    let (load, receiver) = watch::channel(load(1));
    let process = Process::start(async move {
        let serving = workers.into_iter().map(|(listener, info)| {
            let load = receiver.clone();
            let incoming = incoming(TcpListener::from_std(listener).unwrap(), 8);
            let service = WorkerServiceServer::new(FakeWorker { info, load });
            http2::server()
                .add_service(service)
                .serve_with_incoming(incoming)
        });
        futures::future::try_join_all(serving).await.map(|_| ())
    });
    (process, load)
}

#[tokio::test]
async fn dsc_07_a_listed_worker_is_known_by_what_answers_now() {
    let listener = bind().await;
    let address = listener.local_addr().unwrap().to_string();
    let (process, load_sender) = serve_worker(listener, info("d-0", 1, "elsewhere:1"));
    let list = StaticList::new(vec![address.clone()]).unwrap();
    let check: CheckWorker = Arc::new(|_| Vec::new());
    let membership = Membership::static_list(list, &Dialer::plain(), &check);
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
    let next = info("d-0", 2, "elsewhere:1");
    let (_process, _load) = serve_worker(bind_again(&address).await, next);
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
    ends(&mut stream).await
}

async fn ends(stream: &mut TcpStream) -> bool {
    let mut answer = [0; 64];
    matches!(
        soon("an answer or the end", stream.read(&mut answer)).await,
        Ok(0) | Err(_)
    )
}

/// A registry behind this many places.
async fn limited_registry(limit: usize) -> (SocketAddr, Process) {
    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    let service = Membership::embedded()
        .registry()
        .unwrap()
        .service(Arc::new(|_| Vec::new()));
    let process = Process::start(async move {
        let incoming = incoming(TcpListener::from_std(listener).unwrap(), limit);
        http2::server()
            .add_service(service)
            .serve_with_incoming(incoming)
            .await
    });
    (address, process)
}

async fn registered(address: SocketAddr, id: &str) -> (Announcer, watch::Sender<WorkerLoad>) {
    let (announcer, load) = announce(&address.to_string(), &info(id, 1, &format!("{id}:1")));
    let mut state = announcer.states()[0].clone();
    let accepted = state.wait_for(|state| *state == Registration::Accepted);
    soon("accepted", accepted).await.unwrap();
    (announcer, load)
}

#[tokio::test]
async fn sec_05_connections_are_limited_and_must_speak_http2() {
    let (address, _process) = limited_registry(2).await;
    assert!(closed_by_peer(address, b"GET / HTTP/1.1\r\n\r\n").await);
    let first = registered(address, "d-0").await;
    let _second = registered(address, "d-1").await;
    // The preface and empty settings, which a server answers.
    let hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    assert!(closed_by_peer(address, hello).await, "a third one");
    drop(first);
    registered(address, "d-2").await;
}

#[tokio::test]
async fn sec_05_connections_that_say_nothing_shut_nobody_out() {
    let (address, _process) = limited_registry(4).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let started = Instant::now();
    // All four places are left, and the oldest silent ones made room.
    let mut speaking = Vec::new();
    for id in ["d-0", "d-1", "d-2", "d-3"] {
        speaking.push(registered(address, id).await);
    }
    assert!(ends(&mut silent[0]).await);
    let took = started.elapsed();
    assert!(took < Duration::from_secs(4), "accepted after {took:?}");
    // The newest silent one is dropped when its time is up.
    let newest = silent.last_mut().unwrap();
    assert!(ends(newest).await);
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
