//! A worker as a process would be: on a runtime of its own, that can be killed.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use baton_cluster::Dialer;
use baton_kv_transfer::TransportChoice;
use baton_model_file::fixtures::TinyModel;
use baton_proto::domain::{WorkerInfo, WorkerLoad};
use baton_proto::ids::WorkerId;
use baton_proto::v1;
use baton_proto::v1::worker_service_client::WorkerServiceClient;
use baton_worker::{
    BoundWorker, Loading, Membership, PoolSize, Role, Source, Stage, WorkerError, WorkerOptions,
    load_model,
};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use super::gate::{Gate, Gated};
use super::{soon, until};

/// What a test wants of a node.
#[derive(Clone)]
pub(crate) struct Wish {
    pub(crate) name: &'static str,
    pub(crate) model: TinyModel,
    pub(crate) pages: u32,
    pub(crate) page_size: u32,
    pub(crate) chunk: usize,
    pub(crate) max_batch: usize,
    pub(crate) transports: TransportChoice,
    pub(crate) lease: Duration,
    pub(crate) write_deadline: Duration,
    pub(crate) stuck_after: Duration,
    pub(crate) prefix_cache: bool,
    pub(crate) listen: SocketAddr,
    pub(crate) membership: Membership,
    pub(crate) drain_limit: Duration,
    pub(crate) gate: Arc<Gate>,
    /// The model appears only when this gate has let a step through.
    pub(crate) load_gate: Option<Arc<Gate>>,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            name: "w",
            model: TinyModel::default(),
            pages: 128,
            page_size: 16,
            chunk: 32,
            max_batch: 16,
            transports: TransportChoice::Tcp,
            lease: Duration::from_secs(5),
            write_deadline: Duration::from_secs(20),
            stuck_after: Duration::from_mins(1),
            prefix_cache: true,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            membership: Membership::Static,
            drain_limit: Duration::from_secs(20),
            gate: Gate::open(),
            load_gate: None,
        }
    }
}

impl Wish {
    pub(crate) fn over(transports: TransportChoice) -> Self {
        Self {
            transports,
            ..Self::default()
        }
    }

    fn options(&self, folder: &Path) -> WorkerOptions {
        let path = folder.join("tiny.gguf");
        self.model.write_gguf(&path).expect("the model is written");
        let id = WorkerId::new(self.name).expect("a valid name");
        let mut options = WorkerOptions::new(path, id);
        options.listen = self.listen;
        options.membership = self.membership.clone();
        options.pool = PoolSize::Pages(self.pages);
        options.page_size = self.page_size;
        options.token_budget = 64.max(self.chunk);
        options.max_chunk = self.chunk;
        options.max_batch = self.max_batch;
        options.transports = self.transports;
        options.transfer_lease = self.lease;
        options.write_deadline = self.write_deadline;
        options.stuck_after = self.stuck_after;
        options.prefix_cache = self.prefix_cache;
        options.runtime_dir = folder.to_path_buf();
        options.drain_limit = self.drain_limit;
        options
    }
}

/// A running worker.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) channel: Channel,
    pub(crate) gate: Arc<Gate>,
    stages: mpsc::UnboundedReceiver<Stage>,
    info: Option<WorkerInfo>,
    shutdown: Option<oneshot::Sender<()>>,
    running: Option<JoinHandle<Result<(), WorkerError>>>,
    runtime: Option<Runtime>,
    _folder: tempfile::TempDir,
}

impl Node {
    /// Starts a node and waits until it is ready.
    pub(crate) async fn start<R: Role>(wish: Wish) -> Self {
        let mut node = Self::bind::<R>(wish).await;
        node.until_ready().await;
        node
    }

    /// Starts a node; it answers, but may still load.
    pub(crate) async fn bind<R: Role>(wish: Wish) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let options = wish.options(temporary.path());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let (gate, load_gate) = (wish.gate.clone(), wish.load_gate.clone());
        let load_options = options.clone();
        let source: Loading = Box::new(move |progress: &mut dyn FnMut(u64, u64)| {
            let mut equipment = load_model(&load_options, R::ROLE, progress)?;
            if let Some(gate) = load_gate {
                gate.pass();
            }
            equipment.engine = Box::new(Gated {
                engine: equipment.engine,
                gate,
            });
            Ok(equipment)
        });
        let (tell, stages) = mpsc::unbounded_channel();
        let (shutdown, asked) = oneshot::channel::<()>();
        let (bound, address) = oneshot::channel();
        let running = runtime.spawn(async move {
            let worker = BoundWorker::bind(options).await?;
            let _ = bound.send(worker.address());
            let observer = move |stage| {
                let _ = tell.send(stage);
            };
            let shutdown = async {
                let _ = asked.await;
            };
            worker
                .run::<R>(Source::Loading(source), observer, shutdown)
                .await
        });
        let Ok(address) = soon("the node's address", address).await else {
            panic!("the node did not bind: {:?}", running.await);
        };
        Self {
            address,
            channel: Dialer::plain()
                .channel(&address.to_string())
                .expect("an address"),
            gate: wish.gate,
            stages,
            info: None,
            shutdown: Some(shutdown),
            running: Some(running),
            runtime: Some(runtime),
            _folder: temporary,
        }
    }

    /// Waits until the worker says that it is ready.
    pub(crate) async fn until_ready(&mut self) {
        loop {
            match soon("a ready node", self.stages.recv()).await {
                Some(Stage::Ready(info)) => {
                    self.info = Some(*info);
                    return;
                }
                Some(_) => {}
                None => {
                    let ended = self.running.take().expect("a running node").await;
                    panic!("the node ended: {ended:?}");
                }
            }
        }
    }

    pub(crate) fn info(&self) -> &WorkerInfo {
        self.info.as_ref().expect("a ready node")
    }

    pub(crate) fn client(&self) -> WorkerServiceClient<Channel> {
        WorkerServiceClient::new(self.channel.clone())
    }

    pub(crate) async fn load(&self) -> WorkerLoad {
        let mut client = self.client();
        let reply = soon("a load report", client.get_worker(v1::GetWorkerRequest {}));
        let load = reply
            .await
            .expect("GetWorker")
            .into_inner()
            .load
            .expect("a load");
        // The conversion checks that the ledger adds up.
        load.try_into().expect("a consistent load")
    }

    pub(crate) async fn counter(&self, name: &str) -> u64 {
        let load = self.load().await;
        load.counters
            .iter()
            .find(|(key, _)| key == name)
            .map_or(0, |(_, value)| *value)
    }

    /// Waits until every leg has ended, every page is free or cached and nothing runs.
    pub(crate) async fn until_idle(&self) {
        until("an idle node", async || {
            let load = self.load().await;
            let pages = load.pages;
            let legs = load
                .counters
                .iter()
                .filter_map(|(name, count)| name.strip_prefix("legs_").map(|how| (how, *count)));
            let (started, ended): (Vec<_>, Vec<_>) = legs.partition(|(how, _)| *how == "started");
            let sum = |legs: Vec<(&str, u64)>| legs.into_iter().map(|(_, n)| n).sum::<u64>();
            sum(started) == sum(ended)
                && (load.queued, load.running, load.queued_tokens) == (0, 0, 0)
                && (pages.live, pages.granted, pages.quarantined) == (0, 0, 0)
                && pages.free + pages.cached == pages.total
        })
        .await;
    }

    /// Asks for the end and waits for it.
    pub(crate) async fn shut_down(mut self) -> Result<(), WorkerError> {
        self.ask_to_end();
        self.ended().await
    }

    pub(crate) fn ask_to_end(&mut self) {
        if let Some(shutdown) = self.shutdown.take() {
            let _ = shutdown.send(());
        }
    }

    pub(crate) async fn ended(&mut self) -> Result<(), WorkerError> {
        let running = self.running.take().expect("a running node");
        soon("the node's end", running).await.expect("no panic")
    }

    /// Ends it as SIGKILL would: no goodbye on any connection.
    pub(crate) fn kill(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // A step thread that waits at the gate can end now.
        self.gate.let_all();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop();
    }
}
