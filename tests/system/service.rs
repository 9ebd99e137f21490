//! A running `baton up` and what a client sees of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

use baton_model_file::TensorType;
use baton_model_file::fixtures::TinyModel;
use baton_proto::v1::admin_service_client::AdminServiceClient;
use baton_proto::v1::generate_request::Input;
use baton_proto::v1::generate_response::Event;
use baton_proto::v1::inference_service_client::InferenceServiceClient;
use baton_proto::v1::{
    FinishReason, GenerateRequest, ListWorkersRequest, ListWorkersResponse, Receipt,
    SamplingOptions, TokenInput, Usage,
};
use tonic::transport::Channel;

/// Bound on every wait for a state that must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// One service at a time: they are measured against each other's results, not against each other.
static TURN: Mutex<()> = Mutex::new(());

/// How to start a service.
#[derive(Clone)]
pub(crate) struct Setup {
    model: PathBuf,
    flags: Vec<String>,
}

impl Setup {
    /// With the model at `model`.
    pub(crate) fn new(model: &Path) -> Self {
        Self {
            model: model.to_owned(),
            flags: Vec::new(),
        }
    }

    /// One more flag of `baton up`.
    pub(crate) fn flag(mut self, name: &str, value: impl ToString) -> Self {
        self.flags.extend([name.to_owned(), value.to_string()]);
        self
    }

    /// Starts it and waits until it is ready.
    pub(crate) async fn start(&self) -> Service {
        let turn = TURN
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut process = Command::new(env!("CARGO_BIN_EXE_baton"))
            .args(["up", "--listen", "127.0.0.1:0", "--model"])
            .arg(&self.model)
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the binary starts");
        let log = collect(process.stderr.take().expect("piped"));
        let (lines, ready) = mpsc::channel();
        let out = BufReader::new(process.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let Ok(line) = ready.recv_timeout(PATIENCE) else {
            let _ = process.kill();
            panic!(
                "the service is not ready; flags {:?}; its log:\n{}",
                self.flags,
                text(&log)
            );
        };
        let address = line
            .split(' ')
            .find_map(|part| part.strip_prefix("grpc="))
            .unwrap_or_else(|| panic!("no address in the ready line {line:?}"))
            .to_owned();
        let channel = Channel::from_shared(format!("http://{address}"))
            .expect("an address")
            .connect()
            .await
            .expect("the router answers");
        Service {
            process,
            address,
            channel,
            log,
            _turn: turn,
        }
    }
}

type Log = std::sync::Arc<Mutex<Vec<u8>>>;

fn collect(mut source: impl Read + Send + 'static) -> Log {
    let log = Log::default();
    let sink = log.clone();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = source.read(&mut bytes) {
            sink.lock()
                .expect("not poisoned")
                .extend_from_slice(&bytes[..count]);
        }
    });
    log
}

fn text(log: &Log) -> String {
    String::from_utf8_lossy(&log.lock().expect("not poisoned")).into_owned()
}

/// A running service; dropping it ends it.
pub(crate) struct Service {
    process: Child,
    /// The router's `host:port`.
    pub(crate) address: String,
    channel: Channel,
    log: Log,
    _turn: MutexGuard<'static, ()>,
}

impl Service {
    /// For calls of the client API.
    pub(crate) fn inference(&self) -> InferenceServiceClient<Channel> {
        InferenceServiceClient::new(self.channel.clone())
    }

    /// Sends one request and waits for all of its answer.
    pub(crate) async fn generate(&self, request: GenerateRequest) -> Result<Answer, tonic::Status> {
        let call = async {
            let mut events = self.inference().generate(request).await?.into_inner();
            let mut answer = Answer::default();
            while let Some(response) = events.message().await? {
                answer.take(response.event.expect("every response has an event"));
            }
            assert!(
                answer.receipt.is_some(),
                "a stream ended well without its final event"
            );
            Ok(answer)
        };
        tokio::time::timeout(PATIENCE, call)
            .await
            .expect("an answer comes in time")
    }

    /// The router's view of its workers.
    pub(crate) async fn status(&self) -> ListWorkersResponse {
        AdminServiceClient::new(self.channel.clone())
            .list_workers(ListWorkersRequest {})
            .await
            .expect("status answers")
            .into_inner()
    }

    /// Waits until no worker holds anything for a request, then checks every ledger.
    pub(crate) async fn assert_idle(&self) {
        let begin = Instant::now();
        loop {
            let workers = self.status().await.workers;
            let ledgers: Vec<_> = workers
                .iter()
                .map(|worker| {
                    worker
                        .load
                        .as_ref()
                        .and_then(|load| load.pages)
                        .unwrap_or_default()
                })
                .collect();
            for pages in &ledgers {
                let sum =
                    pages.free + pages.cached + pages.live + pages.granted + pages.quarantined;
                assert_eq!(sum, pages.total, "pages are conserved: {pages:?}");
            }
            let idle = |pages: &baton_proto::v1::PageLedger| {
                pages.live + pages.granted + pages.quarantined == 0
            };
            let quiet = workers.iter().all(|worker| {
                worker.in_flight == 0
                    && worker
                        .load
                        .as_ref()
                        .is_some_and(|load| load.running + load.queued == 0)
            });
            if quiet && !ledgers.is_empty() && ledgers.iter().all(idle) {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "pages are still held: {workers:#?}\n{}",
                self.log()
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Process ids of the workers, by name.
    pub(crate) async fn pids(&self) -> BTreeMap<String, u32> {
        let infos = self
            .status()
            .await
            .workers
            .into_iter()
            .filter_map(|worker| worker.info);
        infos.map(|info| (info.worker_id, info.pid)).collect()
    }

    /// What the service has logged.
    pub(crate) fn log(&self) -> String {
        text(&self.log)
    }

    /// Process id of the supervisor.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits, bounded, for the supervisor's own end.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        let begin = Instant::now();
        loop {
            if let Some(status) = self
                .process
                .try_wait()
                .expect("the child can be waited for")
            {
                return status;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "the service does not end; its log:\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        signal(self.process.id(), "TERM");
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(30) {
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        if std::thread::panicking() {
            eprintln!("--- log of the service\n{}", self.log());
        }
    }
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let raw = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .expect("a process id");
    let signal = match name {
        "TERM" => rustix::process::Signal::TERM,
        "KILL" => rustix::process::Signal::KILL,
        "STOP" => rustix::process::Signal::STOP,
        "CONT" => rustix::process::Signal::CONT,
        "INT" => rustix::process::Signal::INT,
        _ => panic!("unknown signal {name}"),
    };
    // The process may be gone already, which some tests want.
    let _ = rustix::process::kill_process(raw, signal);
}

/// Everything one request got.
#[derive(Debug, Clone, Default)]
pub(crate) struct Answer {
    /// By choice.
    pub(crate) choices: BTreeMap<u32, Choice>,
    pub(crate) usage: Usage,
    pub(crate) receipt: Option<Receipt>,
}

/// What one choice got.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Choice {
    pub(crate) token_ids: Vec<u32>,
    pub(crate) text: String,
    /// Log-probabilities of the chosen tokens, as bits.
    pub(crate) logprobs: Vec<u32>,
    pub(crate) finish: Option<FinishReason>,
}

impl Answer {
    fn take(&mut self, event: Event) {
        match event {
            Event::Token(token) => {
                let choice = self.choices.entry(token.choice).or_default();
                assert!(
                    choice.finish.is_none(),
                    "a token after the choice has finished: {token:?}"
                );
                assert_eq!(
                    token.position as usize,
                    choice.token_ids.len(),
                    "a position is missing or repeated"
                );
                choice.token_ids.extend(token.token_ids);
                choice.text.push_str(&token.text);
                choice
                    .logprobs
                    .extend(token.logprobs.iter().map(|entry| entry.chosen.to_bits()));
            }
            Event::Finished(finished) => {
                let choice = self.choices.entry(finished.choice).or_default();
                assert!(choice.finish.is_none(), "a choice finished twice");
                choice.finish = Some(finished.finish_reason());
            }
            Event::Done(done) => {
                assert!(self.choices.values().all(|choice| choice.finish.is_some()));
                self.usage = done.usage.expect("usage");
                self.receipt = Some(done.receipt.expect("receipt"));
            }
        }
    }

    /// Token ids of choice 0.
    pub(crate) fn ids(&self) -> &[u32] {
        &self.choices[&0].token_ids
    }

    /// Text of choice 0.
    pub(crate) fn text(&self) -> &str {
        &self.choices[&0].text
    }

    /// The receipt.
    pub(crate) fn receipt(&self) -> &Receipt {
        self.receipt
            .as_ref()
            .expect("a finished answer has a receipt")
    }
}

/// A greedy request by token ids.
pub(crate) fn by_ids(token_ids: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    GenerateRequest {
        input: Some(Input::Tokens(TokenInput { token_ids })),
        sampling: Some(SamplingOptions {
            temperature: Some(0.0),
            max_tokens: Some(max_tokens),
            ..SamplingOptions::default()
        }),
        ..GenerateRequest::default()
    }
}

/// A tiny random model in a folder of its own.
pub(crate) fn tiny_model(folder: &Path) -> PathBuf {
    let path = folder.join("tiny.gguf");
    let weights = vec![TensorType::Q4_1, TensorType::Q8_0, TensorType::F16];
    TinyModel {
        weights,
        ..TinyModel::default()
    }
    .write_gguf(&path)
    .expect("the folder is writable");
    path
}

/// The default model, which `make test` has fetched.
pub(crate) fn default_model() -> PathBuf {
    let folder = std::env::var_os("BATON_MODEL_DIR").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache/baton"),
        PathBuf::from,
    );
    let path = folder.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(
        path.exists(),
        "{} is missing; `make test` fetches it",
        path.display()
    );
    path
}
