//! A router on port 0, its clients, and bounded waits.

use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use baton_cluster::{Dialer, Membership};
use baton_model_file::ModelFile;
use baton_model_file::fixtures::{GgufFile, TinyModel};
use baton_proto::v1;
use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::generate_response::Event;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use baton_router::{ApiKeys, Lanes, Router, RouterConfig, ServedModel};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tonic::transport::Channel;
use tonic::{Status, Streaming};

use crate::fake::{Board, FakeWorker, Script, prefill_and_decode};

/// The model all tests share: a tiny file and what the router makes of it.
pub(crate) static MODEL: LazyLock<TestModel> =
    LazyLock::new(|| TestModel::write(&TinyModel::default()));

/// One with room for long texts.
pub(crate) static ROOMY_MODEL: LazyLock<TestModel> = LazyLock::new(|| {
    TestModel::write(&TinyModel {
        context_length: 1 << 17,
        ..TinyModel::default()
    })
});

pub(crate) struct TestModel {
    pub(crate) file: ModelFile,
    pub(crate) served: ServedModel,
    pub(crate) text: Arc<baton_text::TextModel>,
    _path: PathBuf,
}

impl TestModel {
    fn write(model: &TinyModel) -> Self {
        Self::of(&model.gguf())
    }

    /// What is made of a file.
    pub(crate) fn of(gguf: &GgufFile) -> Self {
        let directory = tempfile::tempdir().unwrap().keep();
        let path = directory.join("tiny.gguf");
        std::fs::write(&path, gguf.bytes()).unwrap();
        let file = ModelFile::open(&path).unwrap();
        let served = ServedModel::new(&file).unwrap();
        let text = Arc::new(baton_text::TextModel::new(file.text(), file.config()).unwrap());
        std::fs::remove_dir_all(directory).unwrap();
        Self {
            file,
            served,
            text,
            _path: path,
        }
    }
}

/// Ids of a text, without BOS.
pub(crate) fn ids(text: &str) -> Vec<u32> {
    MODEL.text.encode(text, false).unwrap()
}

/// A prompt of this many tokens (none of them special).
pub(crate) fn prompt_of(tokens: usize) -> Vec<u32> {
    ids(&"x y z ".repeat(tokens))
        .into_iter()
        .take(tokens)
        .collect()
}

pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(15), future)
        .await
        .unwrap_or_else(|_| panic!("not within 15 s: {what}"))
}

/// Polls a condition that nothing announces.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    soon(what, async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    })
    .await;
}

/// A process: its tasks and connections end with it.
pub(crate) struct Process(Option<Runtime>);

impl Process {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        Self(Some(runtime))
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.as_ref().unwrap().spawn(task);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A router, its workers and a client.
pub(crate) struct Harness {
    pub(crate) address: String,
    /// Of its HTTP.
    pub(crate) http: String,
    pub(crate) board: Board,
    channel: Channel,
    /// Tells the router to end.
    stop: Option<oneshot::Sender<()>>,
    /// Says that it has.
    ended: Option<oneshot::Receiver<()>>,
    _process: Process,
}

/// Short waits, so that tests of failures are.
pub(crate) fn config() -> RouterConfig {
    RouterConfig {
        leg_open_timeout: Duration::from_millis(700),
        grant_wait: Duration::from_millis(900),
        progress_timeout: Duration::from_secs(5),
        ..RouterConfig::default()
    }
}

impl Harness {
    pub(crate) async fn start(config: RouterConfig) -> Self {
        Self::start_with(config, Membership::embedded).await
    }

    pub(crate) async fn start_with(
        config: RouterConfig,
        membership: impl FnOnce() -> Membership + Send + 'static,
    ) -> Self {
        Self::serving(&MODEL, config, membership).await
    }

    pub(crate) async fn serving(
        model: &TestModel,
        config: RouterConfig,
        membership: impl FnOnce() -> Membership + Send + 'static,
    ) -> Self {
        Self::serving_under(None, model, config, membership).await
    }

    /// A router that asks for keys.
    pub(crate) async fn under(keys: ApiKeys) -> Self {
        Self::serving_under(Some(keys), &MODEL, config(), Membership::embedded).await
    }

    async fn serving_under(
        keys: Option<ApiKeys>,
        model: &TestModel,
        config: RouterConfig,
        membership: impl FnOnce() -> Membership + Send + 'static,
    ) -> Self {
        let model = model.served.clone();
        let bind = || async {
            let bound = TcpListener::bind("127.0.0.1:0").await.unwrap();
            bound.into_std().unwrap()
        };
        let (listener, http) = (bind().await, bind().await);
        let address = listener.local_addr().unwrap().to_string();
        let http_address = http.local_addr().unwrap().to_string();
        let process = Process::new();
        let ((stop, stopping), (ending, ended)) = (oneshot::channel(), oneshot::channel());
        process.spawn(async move {
            let router = Router::new(config, model, membership(), Dialer::plain()).unwrap();
            let listener = TcpListener::from_std(listener).unwrap();
            let http = TcpListener::from_std(http).unwrap();
            // As it is shipped, on threads of its own.
            let lanes = Lanes::start(2).unwrap();
            router
                .with_keys(keys)
                .serve_on(&lanes, listener, Some(http), async {
                    stopping.await.unwrap_or_default();
                })
                .await
                .unwrap();
            let _ = ending.send(());
        });
        let channel = Dialer::plain().channel(&address).unwrap();
        Self {
            address,
            http: http_address,
            board: Board::default(),
            channel,
            stop: Some(stop),
            ended: Some(ended),
            _process: process,
        }
    }

    /// Tells the router to end, and gives what says that it has.
    pub(crate) fn end(&mut self) -> oneshot::Receiver<()> {
        self.stop.take().unwrap().send(()).unwrap();
        self.ended.take().unwrap()
    }

    /// A router with one worker of each kind that behave.
    pub(crate) async fn pair(script: Script) -> (Self, FakeWorker, FakeWorker) {
        let harness = Self::start(config()).await;
        let (prefill, decode) = prefill_and_decode(script);
        let prefill = harness.add(prefill).await;
        let decode = harness.add(decode).await;
        (harness, prefill, decode)
    }

    /// Starts a worker and waits until the router lists it.
    pub(crate) async fn add(&self, worker: crate::fake::Setup) -> FakeWorker {
        let (name, incarnation) = (worker.name.clone(), worker.incarnation);
        let worker = worker.start(&self.address, &self.board).await;
        self.until_listed(&name, incarnation).await;
        worker
    }

    /// Waits until the router lists this worker and knows its load.
    pub(crate) async fn until_listed(&self, name: &str, incarnation: u64) {
        soon("the worker is listed", async {
            loop {
                let listed = self.list().await.workers;
                let known = |w: &v1::WorkerStatus| {
                    let info = w.info.as_ref().unwrap();
                    info.worker_id == name
                        && info.incarnation == incarnation
                        && w.load_age_ms < 10_000
                };
                if listed.iter().any(known) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }

    pub(crate) fn client(&self) -> InferenceServiceClient<Channel> {
        InferenceServiceClient::new(self.channel.clone())
    }

    /// A client with a connection of its own.
    pub(crate) fn new_client(&self) -> InferenceServiceClient<Channel> {
        InferenceServiceClient::new(Dialer::plain().channel(&self.address).unwrap())
    }

    pub(crate) fn admin(&self) -> AdminServiceClient<Channel> {
        AdminServiceClient::new(self.channel.clone())
    }

    pub(crate) fn channel(&self) -> Channel {
        self.channel.clone()
    }

    pub(crate) async fn list(&self) -> v1::ListWorkersResponse {
        let mut admin = self.admin();
        soon("the list", admin.list_workers(v1::ListWorkersRequest {}))
            .await
            .unwrap()
            .into_inner()
    }

    pub(crate) async fn counter(&self, name: &str) -> u64 {
        self.list().await.router.unwrap().counters[name]
    }

    /// Waits for a counter's value.
    pub(crate) async fn until_counter(&self, name: &str, value: u64) {
        soon(name, async {
            while self.counter(name).await != value {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// Waits until the router counts no request of its own anywhere.
    pub(crate) async fn until_idle(&self) {
        soon("the router is idle", async {
            loop {
                let list = self.list().await;
                let router = list.router.unwrap();
                let in_flight: u32 = list.workers.iter().map(|worker| worker.in_flight).sum();
                if in_flight + router.requests_running + router.requests_waiting == 0 {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }

    /// A whole call.
    pub(crate) async fn generate(&self, request: v1::GenerateRequest) -> Result<Answer, Status> {
        Answer::of(&mut self.client(), request).await
    }
}

/// A request by token ids.
pub(crate) fn by_ids(ids: Vec<u32>, max_tokens: u32) -> v1::GenerateRequest {
    let input = v1::generate_request::Input::Tokens(v1::TokenInput { token_ids: ids });
    v1::GenerateRequest {
        input: Some(input),
        sampling: Some(v1::SamplingOptions {
            max_tokens: Some(max_tokens),
            ..v1::SamplingOptions::default()
        }),
        ..v1::GenerateRequest::default()
    }
}

/// A request long enough to be split. It shares no prefix with any other.
pub(crate) fn long(max_tokens: u32) -> v1::GenerateRequest {
    let cache_salt = rand::random::<u64>().to_string();
    v1::GenerateRequest {
        cache_salt,
        ..by_ids(prompt_of(100), max_tokens)
    }
}

pub(crate) fn with(
    mut request: v1::GenerateRequest,
    change: impl FnOnce(&mut v1::SamplingOptions),
) -> v1::GenerateRequest {
    change(request.sampling.get_or_insert_default());
    request
}

/// Everything a call said.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// Of the prompt's tokens from the second on.
    pub(crate) prompt_ids: Vec<u32>,
    pub(crate) prompt_logprobs: Vec<v1::TokenLogprobs>,
    pub(crate) choices: Vec<Choice>,
    pub(crate) done: Option<v1::DoneEvent>,
    pub(crate) error: Option<Status>,
    /// Arrival of the first token.
    pub(crate) first_token_after: Duration,
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Choice {
    pub(crate) ids: Vec<u32>,
    pub(crate) texts: Vec<String>,
    pub(crate) logprobs: Vec<v1::TokenLogprobs>,
    pub(crate) finished: Option<v1::FinishedEvent>,
}

impl Choice {
    pub(crate) fn text(&self) -> String {
        self.texts.concat()
    }
}

impl Answer {
    pub(crate) async fn of(
        client: &mut InferenceServiceClient<Channel>,
        request: v1::GenerateRequest,
    ) -> Result<Self, Status> {
        let started = Instant::now();
        let mut stream = soon("the call", client.generate(request))
            .await?
            .into_inner();
        let mut answer = Self::default();
        loop {
            match soon("an event", stream.message()).await {
                Ok(Some(response)) => answer.take(response.event.unwrap(), started),
                Ok(None) => break,
                Err(status) => {
                    answer.error = Some(status);
                    break;
                }
            }
        }
        Ok(answer)
    }

    pub(crate) fn take(&mut self, event: Event, started: Instant) {
        assert!(self.done.is_none(), "nothing follows Done");
        match event {
            Event::Prompt(prompt) => {
                assert!(self.choices.is_empty(), "before the first token");
                let next = self.prompt_ids.len() + 1;
                assert_eq!(prompt.position as usize, next, "in order, once");
                assert!(!prompt.token_ids.is_empty());
                assert_eq!(prompt.token_ids.len(), prompt.logprobs.len());
                self.prompt_ids.extend(prompt.token_ids);
                self.prompt_logprobs.extend(prompt.logprobs);
            }
            Event::Token(token) => {
                if self.choices.iter().all(|choice| choice.ids.is_empty()) {
                    self.first_token_after = started.elapsed();
                }
                let choice = self.choice(token.choice);
                assert_eq!(choice.ids.len(), token.position as usize, "in order, once");
                assert!(choice.finished.is_none(), "nothing follows Finished");
                choice.ids.extend(token.token_ids);
                choice.texts.push(token.text);
                choice.logprobs.extend(token.logprobs);
            }
            Event::Finished(finished) => {
                let choice = self.choice(finished.choice);
                assert_eq!(finished.completion_tokens as usize, choice.ids.len());
                choice.finished = Some(finished);
            }
            Event::Done(done) => self.done = Some(done),
        }
    }

    fn choice(&mut self, at: u32) -> &mut Choice {
        let at = at as usize;
        if self.choices.len() <= at {
            self.choices.resize(at + 1, Choice::default());
        }
        &mut self.choices[at]
    }

    /// The answer is whole.
    pub(crate) fn whole(self) -> Self {
        assert!(self.error.is_none(), "{:?}", self.error);
        assert!(self.done.is_some());
        assert!(self.choices.iter().all(|choice| choice.finished.is_some()));
        self
    }

    pub(crate) fn only(&self) -> &Choice {
        assert_eq!(self.choices.len(), 1);
        &self.choices[0]
    }

    pub(crate) fn receipt(&self) -> &v1::Receipt {
        self.done.as_ref().unwrap().receipt.as_ref().unwrap()
    }

    pub(crate) fn usage(&self) -> &v1::Usage {
        self.done.as_ref().unwrap().usage.as_ref().unwrap()
    }

    /// The status that ended it, which must be an error.
    pub(crate) fn status(self) -> Status {
        assert!(self.done.is_none(), "an error is not followed by success");
        self.error.expect("an error")
    }
}

/// Reads until the first token.
pub(crate) async fn first_token(stream: &mut Streaming<v1::GenerateResponse>) -> v1::TokenEvent {
    match soon("a token", stream.message())
        .await
        .unwrap()
        .unwrap()
        .event
        .unwrap()
    {
        Event::Token(token) => token,
        other => panic!("{other:?}"),
    }
}

/// The status of a refused or failed call, wherever it came.
pub(crate) fn status_of(result: Result<Answer, Status>) -> Status {
    match result {
        Ok(answer) => answer.status(),
        Err(status) => status,
    }
}
