//! The process behind the routers: instant workers, registered with Baton's router, and instant `OpenAI` servers for
//! the other one and for clients that come without a router. One thread runs them all.

use std::path::Path;
use std::sync::Arc;

use baton_cluster::http2::server;
use baton_cluster::{Announcer, Dialer, incoming};
use baton_model_file::ModelFile;
use baton_proto::domain::{
    Fingerprint, Ledger, PROTOCOL_VERSION, WorkerInfo, WorkerLoad, WorkerRole,
};
use baton_proto::ids::{Incarnation, WorkerId};
use baton_proto::v1::decode_service_server::DecodeServiceServer;
use baton_proto::v1::prefill_service_server::PrefillServiceServer;
use baton_proto::v1::worker_service_server::WorkerServiceServer;
use baton_text::TextModel;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Failure;
use crate::openai;
use crate::worker::{HandOffs, Worker};

/// Pages of each worker.
const PAGES: u32 = 1 << 16;
/// Connections of each worker.
const MAX_CONNECTIONS: usize = 1024;
/// What every token says.
const WORD: &str = " word";

/// Serves until it is ended.
pub(crate) async fn run(model: &Path, router: &str) -> Result<(), Failure> {
    let file = ModelFile::open(model)?;
    let text = TextModel::new(file.text(), file.config())?;
    let token_id = text.encode(WORD, false)?.first().copied().unwrap_or(0);
    let fingerprint = Fingerprint {
        protocol_version: PROTOCOL_VERSION,
        weights_digest: [1; 32],
        metadata_digest: file.metadata_digest(),
        tokenizer_digest: text.digest(),
        kv_dtype: "bf16".to_owned(),
        page_size: 16,
        layers: 30,
        kv_heads: 3,
        head_dim: 64,
        layout: "layer-major/k-then-v/1".to_owned(),
        rope: "none".to_owned(),
        numerics: "none".to_owned(),
    };
    let hand_offs = Arc::default();
    let context = file.config().context_length;
    let start = |role| start(role, &fingerprint, context, token_id, &hand_offs, router);
    let prefill = start(WorkerRole::Prefill).await?;
    let decode = start(WorkerRole::Decode).await?;
    let first_only = openai::start(true).await?;
    let whole = openai::start(false).await?;
    println!(
        "ready prefill={prefill} decode={decode} http-prefill={first_only} http-decode={whole}"
    );
    std::future::pending().await
}

/// A worker; its address.
async fn start(
    role: WorkerRole,
    fingerprint: &Fingerprint,
    context_length: u32,
    token_id: u32,
    hand_offs: &Arc<HandOffs>,
    router: &str,
) -> Result<String, Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let name = match role {
        WorkerRole::Prefill => "prefill-0",
        WorkerRole::Decode => "decode-0",
    };
    let info = WorkerInfo {
        worker_id: WorkerId::new(name).ok_or("no name")?,
        incarnation: Incarnation(u64::from(std::process::id())),
        role,
        address: address.clone(),
        fingerprint: fingerprint.clone(),
        model: "instant".to_owned(),
        pages_total: PAGES,
        max_batch: 1024,
        context_length,
        pid: std::process::id(),
        host_id: "host".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let pages = Ledger {
        total: PAGES,
        free: PAGES,
        ..Ledger::default()
    };
    let (sender, load) = watch::channel(WorkerLoad {
        pages,
        ..WorkerLoad::default()
    });
    let announcer = Announcer::start(&Dialer::plain(), &[router.to_owned()], &info, &load)?;
    let worker = Worker {
        info: Arc::new(info),
        load,
        hand_offs: Arc::clone(hand_offs),
        token_id,
    };
    tokio::spawn(async move {
        let _registered = (announcer, sender);
        let served = server()
            .add_service(PrefillServiceServer::new(worker.clone()))
            .add_service(DecodeServiceServer::new(worker.clone()))
            .add_service(WorkerServiceServer::new(worker))
            .serve_with_incoming(incoming(listener, MAX_CONNECTIONS));
        if let Err(error) = served.await {
            eprintln!("a worker has ended: {error}");
        }
    });
    Ok(address)
}
