//! Scripted workers. A script plays one leg; the board stands for the data plane.

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use baton_cluster::{Announcer, Dialer, http2, incoming};
use baton_proto::domain::{
    Fingerprint, FinishReason, GeneratedToken, Grant, Ledger, PROTOCOL_VERSION, PageSlot,
    PromptLogprobs, SequenceSpec, TransferEndpoint, Transport, WorkerInfo, WorkerLoad, WorkerRole,
};
use baton_proto::ids::{Incarnation, TransferId, TransferSecret, WorkerId};
use baton_proto::legs::{
    DecodeCommand, DecodeEvent, DecodeReport, PrefillCommand, PrefillEvent, PrefillReport,
    Scheduled,
};
use baton_proto::v1::decode_service_server::{DecodeService, DecodeServiceServer};
use baton_proto::v1::prefill_service_server::{PrefillService, PrefillServiceServer};
use baton_proto::v1::worker_service_server::{WorkerService, WorkerServiceServer};
use baton_proto::{SequenceLimits, v1};
use baton_sampling::TokenLogprobs;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::harness::{MODEL, Process, TestModel, until};

pub(crate) const PAGE_SIZE: u32 = 16;
/// Workers speak this often of a leg that waits.
const SIGN_OF_LIFE: Duration = Duration::from_millis(250);

/// Token and end of (choice, position).
pub(crate) type Script = Arc<dyn Fn(u32, u32) -> (u32, Option<FinishReason>) + Send + Sync>;

/// The same ids for every choice; after the last one comes end-of-sequence.
pub(crate) fn says(ids: &[u32]) -> Script {
    let ids = ids.to_vec();
    Arc::new(move |_, position| match ids.get(position as usize) {
        Some(&id) => (id, None),
        None => (MODEL.served_eos(), Some(FinishReason::Stop)),
    })
}

/// Ids that differ by choice and position and never end.
pub(crate) fn endless() -> Script {
    Arc::new(|choice, position| (10 + (choice * 31 + position * 7) % 200, None))
}

impl TestModel {
    pub(crate) fn served_eos(&self) -> u32 {
        self.file.config().eos_ids[0]
    }
}

/// Commits by transfer id.
#[derive(Clone, Default)]
pub(crate) struct Board(Arc<Mutex<HashMap<[u8; 16], Expected>>>);

/// Where the first tokens of a commit go.
type Expected = oneshot::Sender<Vec<GeneratedToken>>;

impl Board {
    fn expect(&self, transfer: TransferId) -> oneshot::Receiver<Vec<GeneratedToken>> {
        let (sender, receiver) = oneshot::channel();
        self.0.lock().unwrap().insert(transfer.0, sender);
        receiver
    }

    fn commit(&self, transfer: TransferId, tokens: Vec<GeneratedToken>) -> bool {
        let expected = self.0.lock().unwrap().remove(&transfer.0);
        expected.is_some_and(|sender| sender.send(tokens).is_ok())
    }
}

pub(crate) type PrefillScript =
    Arc<dyn Fn(PrefillFake) -> BoxFuture<'static, Result<(), Status>> + Send + Sync>;
pub(crate) type DecodeScript =
    Arc<dyn Fn(DecodeFake) -> BoxFuture<'static, Result<(), Status>> + Send + Sync>;

pub(crate) fn prefill_script<F>(
    script: impl Fn(PrefillFake) -> F + Send + Sync + 'static,
) -> PrefillScript
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    Arc::new(move |leg| Box::pin(script(leg)))
}

pub(crate) fn decode_script<F>(
    script: impl Fn(DecodeFake) -> F + Send + Sync + 'static,
) -> DecodeScript
where
    F: Future<Output = Result<(), Status>> + Send + 'static,
{
    Arc::new(move |leg| Box::pin(script(leg)))
}

/// What a worker will be.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) name: String,
    pub(crate) incarnation: u64,
    pub(crate) role: WorkerRole,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) pages: u32,
    pub(crate) context: u32,
    pub(crate) prefill: PrefillScript,
    pub(crate) decode: DecodeScript,
    pub(crate) announce: bool,
    /// Closes every connection as soon as it is accepted.
    pub(crate) hangs_up: bool,
}

pub(crate) fn fingerprint() -> Fingerprint {
    Fingerprint {
        protocol_version: PROTOCOL_VERSION,
        weights_digest: [1; 32],
        metadata_digest: MODEL.file.metadata_digest(),
        tokenizer_digest: MODEL.text.digest(),
        kv_dtype: "bf16".into(),
        page_size: PAGE_SIZE,
        layers: 2,
        kv_heads: 2,
        head_dim: 16,
        layout: "layout".into(),
        rope: "rope".into(),
        numerics: "numerics".into(),
    }
}

impl Setup {
    pub(crate) fn new(name: &str, role: WorkerRole, script: Script) -> Self {
        let for_decode = Arc::clone(&script);
        Self {
            name: name.into(),
            incarnation: rand::random_range(1..=u64::MAX),
            role,
            fingerprint: fingerprint(),
            pages: 1000,
            context: MODEL.file.config().context_length,
            prefill: prefill_script(move |leg| leg.behave(Arc::clone(&script))),
            decode: decode_script(move |leg| leg.behave(Arc::clone(&for_decode))),
            announce: true,
            hangs_up: false,
        }
    }

    pub(crate) fn prefill(name: &str, script: Script) -> Self {
        Self::new(name, WorkerRole::Prefill, script)
    }

    pub(crate) fn decode(name: &str, script: Script) -> Self {
        Self::new(name, WorkerRole::Decode, script)
    }

    /// Of this model instead of the one that all share.
    pub(crate) fn of(mut self, model: &TestModel) -> Self {
        self.fingerprint.metadata_digest = model.file.metadata_digest();
        self.fingerprint.tokenizer_digest = model.text.digest();
        self
    }

    pub(crate) fn plays<F>(
        mut self,
        script: impl Fn(PrefillFake) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.prefill = prefill_script(script);
        self
    }

    pub(crate) fn plays_decode<F>(
        mut self,
        script: impl Fn(DecodeFake) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Status>> + Send + 'static,
    {
        self.decode = decode_script(script);
        self
    }

    pub(crate) async fn start(self, router: &str, board: &Board) -> FakeWorker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        self.start_at(listener.into_std().unwrap(), router, board)
    }

    pub(crate) fn start_at(
        self,
        listener: std::net::TcpListener,
        router: &str,
        board: &Board,
    ) -> FakeWorker {
        let address = listener.local_addr().unwrap().to_string();
        let info = WorkerInfo {
            worker_id: WorkerId::new(&self.name).unwrap(),
            incarnation: Incarnation(self.incarnation),
            role: self.role,
            address: address.clone(),
            fingerprint: self.fingerprint.clone(),
            model: "tiny".into(),
            pages_total: self.pages,
            max_batch: 32,
            context_length: self.context,
            pid: std::process::id(),
            host_id: "host".into(),
            version: "0.1.0".into(),
        };
        let pages = Ledger {
            total: self.pages,
            free: self.pages,
            ..Ledger::default()
        };
        let (load, load_receiver) = watch::channel(WorkerLoad {
            pages,
            ..WorkerLoad::default()
        });
        let state = Arc::new(State {
            info: info.clone(),
            load: load_receiver.clone(),
            setup: self.clone(),
            board: board.clone(),
            refuse: Mutex::new(None),
            hang: Mutex::new(false),
            started: AtomicUsize::new(0),
            open: AtomicUsize::new(0),
            cancelled: AtomicUsize::new(0),
        });
        let process = Process::new();
        let service = Service(Arc::clone(&state));
        let (routers, announce) = (vec![router.to_owned()], self.announce);
        let hangs_up = self.hangs_up;
        process.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            let _announcer = announce.then(|| {
                Announcer::start(&Dialer::plain(), &routers, &info, &load_receiver).unwrap()
            });
            if hangs_up {
                loop {
                    drop(listener.accept().await);
                }
            }
            http2::server()
                .add_service(PrefillServiceServer::new(service.clone()))
                .add_service(DecodeServiceServer::new(service.clone()))
                .add_service(WorkerServiceServer::new(service))
                .serve_with_incoming(incoming(listener, 1000))
                .await
                .unwrap();
        });
        FakeWorker {
            state,
            load,
            address,
            process: Some(process),
        }
    }
}

/// One of each, playing the same script.
pub(crate) fn prefill_and_decode(script: Script) -> (Setup, Setup) {
    (
        Setup::prefill("prefill-0", Arc::clone(&script)),
        Setup::decode("decode-0", script),
    )
}

struct State {
    info: WorkerInfo,
    load: watch::Receiver<WorkerLoad>,
    setup: Setup,
    board: Board,
    refuse: Mutex<Option<Status>>,
    hang: Mutex<bool>,
    started: AtomicUsize,
    open: AtomicUsize,
    cancelled: AtomicUsize,
}

/// A running worker.
pub(crate) struct FakeWorker {
    state: Arc<State>,
    pub(crate) load: watch::Sender<WorkerLoad>,
    pub(crate) address: String,
    process: Option<Process>,
}

impl FakeWorker {
    /// Legs that have ever begun.
    pub(crate) fn started(&self) -> usize {
        self.state.started.load(Ordering::SeqCst)
    }

    /// Legs that the router dropped.
    pub(crate) fn cancelled(&self) -> usize {
        self.state.cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) -> usize {
        self.state.open.load(Ordering::SeqCst)
    }

    pub(crate) fn info(&self) -> &WorkerInfo {
        &self.state.info
    }

    pub(crate) async fn until_idle(&self) {
        until("the worker is idle", || self.open() == 0).await;
    }

    pub(crate) async fn until_started(&self, legs: usize) {
        until("legs have begun", || self.started() >= legs).await;
    }

    /// Refuses legs, and to say who it is, with this status.
    pub(crate) fn refuse(&self, status: Option<Status>) {
        *self.state.refuse.lock().unwrap() = status;
    }

    /// Takes calls and answers nothing.
    pub(crate) fn hang(&self, hang: bool) {
        *self.state.hang.lock().unwrap() = hang;
    }

    /// The end of the process.
    pub(crate) fn kill(&mut self) {
        self.process = None;
    }

    pub(crate) fn report(&self, change: impl FnOnce(&mut WorkerLoad)) {
        self.load.send_modify(change);
    }
}

#[derive(Clone)]
struct Service(Arc<State>);

/// Counts a leg as open.
struct OpenLeg(Arc<State>);

impl OpenLeg {
    fn new(state: &Arc<State>) -> Self {
        state.started.fetch_add(1, Ordering::SeqCst);
        state.open.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(state))
    }
}

impl Drop for OpenLeg {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Service {
    async fn door(&self) -> Result<OpenLeg, Status> {
        let leg = OpenLeg::new(&self.0);
        if *self.0.hang.lock().unwrap() {
            std::future::pending::<()>().await;
        }
        match self.0.refuse.lock().unwrap().clone() {
            Some(status) => Err(status),
            None => Ok(leg),
        }
    }

    fn limits(&self) -> SequenceLimits {
        SequenceLimits {
            vocabulary: MODEL.file.config().vocabulary,
            context_length: self.0.info.context_length,
        }
    }

    fn check(&self, spec: &SequenceSpec) -> Result<(), Status> {
        let fits = spec.incarnation == self.0.info.incarnation
            && spec.fingerprint_digest == self.0.info.fingerprint.digest();
        fits.then_some(())
            .ok_or_else(|| Status::failed_precondition("another incarnation"))
    }

    /// Runs a script until it or the router ends the leg.
    fn play<T: Send + 'static>(
        &self,
        leg: OpenLeg,
        events: mpsc::Sender<Result<T, Status>>,
        script: BoxFuture<'static, Result<(), Status>>,
    ) {
        let state = Arc::clone(&self.0);
        tokio::spawn(async move {
            let _leg = leg;
            tokio::select! {
                result = script => if let Err(status) = result {
                    let _ = events.send(Err(status)).await;
                },
                () = events.closed() => {
                    state.cancelled.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
    }
}

#[tonic::async_trait]
impl PrefillService for Service {
    type PrefillStream = ReceiverStream<Result<v1::PrefillResponse, Status>>;

    async fn prefill(
        &self,
        request: Request<Streaming<v1::PrefillRequest>>,
    ) -> Result<Response<Self::PrefillStream>, Status> {
        let leg = self.door().await?;
        let mut commands = request.into_inner();
        let first = commands
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("no start"))?;
        let PrefillCommand::Start { spec, hand_off } =
            PrefillCommand::from_wire(first, &self.limits())?
        else {
            return Err(Status::invalid_argument("start first"));
        };
        self.check(&spec)?;
        let (events, stream) = mpsc::channel(1000);
        let number = self.0.started.load(Ordering::SeqCst);
        let fake = PrefillFake {
            spec: *spec,
            hand_off,
            number,
            commands,
            events: events.clone(),
            limits: self.limits(),
            board: self.0.board.clone(),
        };
        self.play(leg, events, (self.0.setup.prefill)(fake));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[tonic::async_trait]
impl DecodeService for Service {
    type DecodeStream = ReceiverStream<Result<v1::DecodeResponse, Status>>;

    async fn decode(
        &self,
        request: Request<Streaming<v1::DecodeRequest>>,
    ) -> Result<Response<Self::DecodeStream>, Status> {
        let leg = self.door().await?;
        let mut commands = request.into_inner();
        let first = commands
            .message()
            .await?
            .ok_or_else(|| Status::invalid_argument("no start"))?;
        let DecodeCommand::Start {
            spec,
            local_prefill,
        } = DecodeCommand::from_wire(first, &self.limits())?
        else {
            return Err(Status::invalid_argument("start first"));
        };
        self.check(&spec)?;
        let (events, stream) = mpsc::channel(100_000);
        let fake = DecodeFake {
            spec: *spec,
            local_prefill,
            commands,
            events: events.clone(),
            limits: self.limits(),
            board: self.0.board.clone(),
            info: self.0.info.clone(),
        };
        self.play(leg, events, (self.0.setup.decode)(fake));
        Ok(Response::new(ReceiverStream::new(stream)))
    }
}

#[tonic::async_trait]
impl WorkerService for Service {
    type WatchLoadStream = ReceiverStream<Result<v1::WatchLoadResponse, Status>>;

    async fn get_worker(
        &self,
        _: Request<v1::GetWorkerRequest>,
    ) -> Result<Response<v1::GetWorkerResponse>, Status> {
        if *self.0.hang.lock().unwrap() {
            std::future::pending::<()>().await;
        }
        let refusal = self.0.refuse.lock().unwrap().clone();
        if let Some(status) = refusal {
            return Err(status);
        }
        let load = self.0.load.borrow().clone().into();
        let info = self.0.info.clone().into();
        Ok(Response::new(v1::GetWorkerResponse {
            info: Some(info),
            load: Some(load),
        }))
    }

    async fn watch_load(
        &self,
        _: Request<v1::WatchLoadRequest>,
    ) -> Result<Response<Self::WatchLoadStream>, Status> {
        let (sender, stream) = mpsc::channel(1);
        tokio::spawn(async move { sender.closed().await });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn drain_worker(
        &self,
        _: Request<v1::DrainWorkerRequest>,
    ) -> Result<Response<v1::DrainWorkerResponse>, Status> {
        let running = self.0.open.load(Ordering::SeqCst) as u32;
        Ok(Response::new(v1::DrainWorkerResponse { running }))
    }
}

/// A token of a script.
pub(crate) fn token(
    script: &Script,
    spec: &SequenceSpec,
    choice: u32,
    position: u32,
) -> GeneratedToken {
    let (token_id, mut finish) = script(choice, position);
    if finish.is_none() && position + 1 == spec.params.max_tokens {
        finish = Some(FinishReason::Length);
    }
    let logprobs = spec.params.logprobs.map(|count| TokenLogprobs {
        chosen: -0.25,
        top: (0..count)
            .map(|rank| (token_id + rank, -0.25 - rank as f32))
            .collect(),
    });
    GeneratedToken {
        attempt: spec.attempt,
        choice,
        position,
        token_id,
        logprobs,
        finish,
    }
}

/// Completion tokens that a choice has already, unless it has ended.
pub(crate) fn begun(spec: &SequenceSpec, choice: u32) -> Option<u32> {
    let so_far = spec.completions.get(choice as usize);
    match so_far {
        Some(completion) if completion.ended => None,
        Some(completion) => Some(completion.token_ids.len() as u32),
        None => Some(0),
    }
}

/// Choices that go on, and the completion tokens that each has already.
pub(crate) fn open_choices(spec: &SequenceSpec) -> Vec<(u32, u32)> {
    let choices = 0..spec.params.choices;
    choices
        .filter_map(|choice| begun(spec, choice).map(|tokens| (choice, tokens)))
        .collect()
}

/// Log-probabilities of the prompt from `position` on, if the request asks for them, a few at a time.
pub(crate) fn prompt_logprobs(spec: &SequenceSpec, position: u32) -> Vec<PromptLogprobs> {
    let Some(count) = spec.params.prompt_logprobs else {
        return Vec::new();
    };
    let entry = |at: u32| TokenLogprobs {
        chosen: -0.001 * at as f32,
        top: (0..count)
            .map(|rank| (1 + (at + rank) % 200, -(rank as f32)))
            .collect(),
    };
    let positions: Vec<u32> = (position..spec.prompt_ids.len() as u32).collect();
    let some = |some: &[u32]| PromptLogprobs {
        attempt: spec.attempt,
        position: some[0],
        entries: some.iter().copied().map(entry).collect(),
    };
    positions.chunks(37).map(some).collect()
}

/// One prefill leg, from the worker's side.
pub(crate) struct PrefillFake {
    pub(crate) spec: SequenceSpec,
    pub(crate) hand_off: bool,
    /// Which leg of this worker it is, from 1.
    pub(crate) number: usize,
    pub(crate) commands: Streaming<v1::PrefillRequest>,
    events: mpsc::Sender<Result<v1::PrefillResponse, Status>>,
    limits: SequenceLimits,
    board: Board,
}

impl PrefillFake {
    pub(crate) async fn send(&self, event: PrefillEvent) {
        let _ = self.events.send(Ok(event.into())).await;
    }

    pub(crate) async fn scheduled(&self) {
        let scheduled = Scheduled {
            cached_tokens: 16,
            queue: Duration::from_micros(70),
        };
        self.send(PrefillEvent::Scheduled(scheduled)).await;
    }

    pub(crate) async fn grant(&mut self) -> Grant {
        loop {
            match self.commands.message().await {
                Ok(Some(message)) => {
                    match PrefillCommand::from_wire(message, &self.limits).unwrap() {
                        PrefillCommand::Grant(grant) => return *grant,
                        PrefillCommand::Start { .. } => panic!("a second start"),
                    }
                }
                // The router is gone: the leg is about to be cancelled.
                _ => std::future::pending().await,
            }
        }
    }

    pub(crate) fn first_tokens(&self, script: &Script) -> Vec<GeneratedToken> {
        // Pages hold the prompt and the completion of a choice that goes on alone; of several, those that
        // have begun are computed where they are decoded.
        let open = open_choices(&self.spec);
        let alone = open.len() == 1;
        open.into_iter()
            .filter(|&(_, tokens)| alone || tokens == 0 || !self.hand_off)
            .map(|(choice, tokens)| token(script, &self.spec, choice, tokens))
            .collect()
    }

    /// Lands the pages; false if the decode worker no longer waits for them.
    pub(crate) fn commit(&self, grant: &Grant, tokens: &[GeneratedToken]) -> bool {
        let of_attempt = |token: &GeneratedToken| GeneratedToken {
            attempt: grant.attempt,
            ..token.clone()
        };
        self.board
            .commit(grant.transfer_id, tokens.iter().map(of_attempt).collect())
    }

    pub(crate) fn report(committed: bool) -> PrefillEvent {
        let bytes = if committed { 1000 } else { 0 };
        PrefillEvent::Done(PrefillReport {
            prefill: Duration::from_micros(500),
            grant_wait: Duration::from_micros(20),
            transfer: Duration::from_micros(30),
            transfer_bytes: bytes,
            bytes_before_last_step: bytes * 9 / 10,
            transport: committed.then_some(Transport::Tcp),
            committed,
            attempt: None,
        })
    }

    /// As a worker should.
    pub(crate) async fn behave(mut self, script: Script) -> Result<(), Status> {
        self.scheduled().await;
        for some in prompt_logprobs(&self.spec, 1) {
            self.send(PrefillEvent::PromptLogprobs(some)).await;
        }
        let tokens = self.first_tokens(&script);
        for token in &tokens {
            self.send(PrefillEvent::FirstToken(token.clone())).await;
        }
        let ended = tokens.iter().filter(|token| token.finish.is_some()).count();
        let goes_on = ended < open_choices(&self.spec).len();
        if self.hand_off && goes_on {
            loop {
                let grant = self.grant().await;
                if self.commit(&grant, &tokens) {
                    break;
                }
                let reason = "nobody there".into();
                let failed = PrefillEvent::TransferFailed {
                    attempt: grant.attempt,
                    reason,
                };
                self.send(failed).await;
            }
        }
        self.send(Self::report(self.hand_off && goes_on)).await;
        Ok(())
    }
}

/// One decode leg, from the worker's side.
pub(crate) struct DecodeFake {
    pub(crate) spec: SequenceSpec,
    pub(crate) local_prefill: bool,
    pub(crate) commands: Streaming<v1::DecodeRequest>,
    events: mpsc::Sender<Result<v1::DecodeResponse, Status>>,
    limits: SequenceLimits,
    board: Board,
    info: WorkerInfo,
}

impl DecodeFake {
    pub(crate) async fn send(&self, event: DecodeEvent) {
        let _ = self.events.send(Ok(event.into())).await;
    }

    pub(crate) fn make_grant(&self) -> Grant {
        let pages = (self.spec.prompt_ids.len() as u32).div_ceil(PAGE_SIZE);
        Grant {
            transfer_id: TransferId(rand::random()),
            attempt: self.spec.attempt,
            incarnation: self.info.incarnation,
            slots: (1..pages)
                .map(|page| PageSlot {
                    page,
                    generation: 1,
                })
                .collect(),
            fingerprint: self.info.fingerprint.clone(),
            reused_pages: 1,
            endpoints: vec![TransferEndpoint {
                transport: Transport::Tcp,
                address: "127.0.0.1:1".into(),
                host_id: "host".into(),
            }],
            secret: TransferSecret(rand::random()),
            lease: Duration::from_secs(5),
            span: None,
        }
    }

    /// Grants and returns the commit to wait for.
    pub(crate) async fn grants(&self) -> oneshot::Receiver<Vec<GeneratedToken>> {
        let grant = self.make_grant();
        let commit = self.board.expect(grant.transfer_id);
        self.send(DecodeEvent::Grant(Box::new(grant))).await;
        commit
    }

    pub(crate) async fn landed(&self, first_tokens: Vec<GeneratedToken>) {
        self.send(DecodeEvent::Landed {
            attempt: self.spec.attempt,
            first_tokens,
        })
        .await;
    }

    /// The next choice to end.
    pub(crate) async fn cancel_choice(&mut self) -> u32 {
        match self.commands.message().await {
            Ok(Some(message)) => match DecodeCommand::from_wire(message, &self.limits).unwrap() {
                DecodeCommand::CancelChoice(choice) => choice,
                DecodeCommand::Start { .. } => panic!("a second start"),
            },
            _ => std::future::pending().await,
        }
    }

    pub(crate) async fn done(&self) {
        let report = DecodeReport {
            landing: Duration::from_micros(40),
            preemptions: 0,
            prefill: Duration::from_micros(if self.local_prefill { 300 } else { 0 }),
            cached_tokens: 0,
        };
        self.send(DecodeEvent::Done(report)).await;
    }

    /// As a worker should.
    pub(crate) async fn behave(mut self, script: Script) -> Result<(), Status> {
        let mut running = open_choices(&self.spec);
        if self.local_prefill {
            let queue = Duration::from_micros(60);
            self.send(DecodeEvent::Scheduled(Scheduled {
                cached_tokens: 0,
                queue,
            }))
            .await;
            for some in prompt_logprobs(&self.spec, 1) {
                self.send(DecodeEvent::PromptLogprobs(some)).await;
            }
        } else {
            let mut commit = self.grants().await;
            let first = loop {
                tokio::select! {
                    first = &mut commit => break first,
                    () = tokio::time::sleep(SIGN_OF_LIFE) => self.send(DecodeEvent::Alive).await,
                }
            };
            // A sender that is gone ends with the leg.
            let Ok(first) = first else {
                std::future::pending().await
            };
            for token in &first {
                running.retain(|&(choice, _)| choice != token.choice || token.finish.is_none());
            }
            for (choice, position) in &mut running {
                *position += u32::from(first.iter().any(|token| token.choice == *choice));
            }
            self.landed(first).await;
        }
        while !running.is_empty() {
            for (choice, position) in std::mem::take(&mut running) {
                let token = token(&script, &self.spec, choice, position);
                if token.finish.is_none() {
                    running.push((choice, position + 1));
                }
                self.send(DecodeEvent::Token(token)).await;
            }
            let pause = tokio::time::sleep(Duration::from_millis(1));
            tokio::select! {
                cancelled = self.cancel_choice() => running.retain(|&(choice, _)| choice != cancelled),
                () = pause => {}
            }
        }
        self.done().await;
        Ok(())
    }
}
