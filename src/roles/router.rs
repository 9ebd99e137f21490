//! The router in this process: arguments become its configuration, model metadata and membership.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use baton_cluster::Dialer;
use baton_model_file::ModelFile;
use baton_router::{Lanes, Router, RouterConfig, ServedModel};
use tokio::net::TcpListener;

use crate::args::{OFF, RouterArgs, ServingSecurityArgs};
use crate::client::DEFAULT_ROUTER;
use crate::exit::Failure;
use crate::{keys, security, traces};

use super::metrics::MetricsPort;
use super::{membership, shutdown, socket_address, tell_ready};

/// Runs a router until it is told to end.
pub(crate) async fn router(args: RouterArgs) -> Result<(), Failure> {
    let config = config(&args)?;
    let threads = threads(&args);
    let model = args.model.as_deref().ok_or_else(|| {
        Failure::usage("--model PATH is needed: the router reads its tokenizer and metadata")
    })?;
    let model = read_model(model)?;
    let client_ca = args.door.client_ca.clone();
    let registering = membership::is_embedded(&args);
    let tls = security::router_tls(&args.security, client_ca, registering)?;
    let dialer = Dialer::plain().with_tls(tls.as_ref());
    let membership = membership::of_router(&args, &dialer, model.check_worker()).await?;
    let keys = args.door.api_keys.map(keys::follow).transpose()?;
    if keys.is_some() && tls.is_none() {
        tracing::warn!(
            "API keys are asked of clients, but without TLS keys can be read on their way and anybody can \
             register as a worker"
        );
    }
    let listen = args.listen.as_deref().unwrap_or(DEFAULT_ROUTER);
    let (listener, address) = bind("--listen", listen, tls.is_some(), &args.security).await?;
    let http = match args.http_listen.as_deref() {
        None | Some(OFF) => None,
        Some(http) => Some(bind("--http-listen", http, tls.is_some(), &args.security).await?),
    };
    let metrics = MetricsPort::bind(&args.metrics).await?;
    let http_address = http.as_ref().map(|(_, address)| *address);
    let name = model.name().to_owned();
    let (tracer, exporter) = traces::start("router")?;
    let router = Router::new(config, model, membership, dialer)
        .map_err(|error| Failure::usage(error.to_string()))?
        .with_traces(tracer)
        .with_tls(tls)
        .with_keys(keys);
    let lanes = Lanes::start(threads)
        .map_err(|error| Failure::failed(format!("cannot start threads: {error}")))?;
    tracing::info!("router for {name} listens on {address}");
    let web = http.map(|(listener, _)| listener);
    let http = http_address.map_or_else(String::new, |address| format!(" http={address}"));
    let words = metrics.words();
    let _metrics = metrics.serve(router.metrics());
    tell_ready(&format!("role=router grpc={address}{http}{words}"));
    let supervised = args.exit_with_stdin.unwrap_or(false);
    let end = async move {
        if let Err(failure) = shutdown(supervised).await {
            tracing::error!("{failure:?}");
        }
    };
    let served = router.serve_on(&lanes, listener, web, end).await;
    exporter.finish().await;
    served.map_err(|error| Failure::failed(error.to_string()))
}

/// Threads that serve connections. A router's work is messages, and it has the machine's processors for them.
fn threads(args: &RouterArgs) -> usize {
    let processors = std::thread::available_parallelism().map_or(2, |count| count.get().max(2));
    (args.async_threads).map_or(processors, |threads| threads.get().into())
}

/// Listens, if that may be done there.
async fn bind(
    flag: &str,
    address: &str,
    has_tls: bool,
    args: &ServingSecurityArgs,
) -> Result<(TcpListener, SocketAddr), Failure> {
    let address = socket_address(flag, address)?;
    security::check_listen(flag, address, has_tls, args)?;
    let wrong = |error: std::io::Error| {
        Failure::failed(format!("{flag}: cannot listen on {address}: {error}"))
    };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    Ok((listener, address))
}

fn config(args: &RouterArgs) -> Result<RouterConfig, Failure> {
    let defaults = RouterConfig::default();
    let config = RouterConfig {
        local_prefill_tokens: args
            .local_prefill_tokens
            .unwrap_or(defaults.local_prefill_tokens),
        max_running: args.max_running.unwrap_or(defaults.max_running),
        max_waiting: args.max_waiting.unwrap_or(defaults.max_waiting),
        max_per_client: args.max_per_client.unwrap_or(defaults.max_per_client),
        max_body_bytes: args.max_body_bytes.unwrap_or(defaults.max_body_bytes),
        grant_wait: args
            .grant_wait_ms
            .map_or(defaults.grant_wait, Duration::from_millis),
        progress_timeout: args
            .progress_timeout_ms
            .map_or(defaults.progress_timeout, Duration::from_millis),
        drain_notice: args
            .drain_notice_ms
            .map_or(defaults.drain_notice, Duration::from_millis),
        drain_timeout: args
            .drain_limit_ms
            .map_or(defaults.drain_timeout, Duration::from_millis),
        ..defaults
    };
    config
        .validate()
        .map_err(|error| Failure::usage(error.to_string()))
}

fn read_model(path: &Path) -> Result<ServedModel, Failure> {
    let wrong = |error: String| Failure::failed(format!("--model {}: {error}", path.display()));
    let file = ModelFile::open(path).map_err(|error| wrong(error.to_string()))?;
    for warning in file.warnings() {
        tracing::warn!("{}: {warning}", path.display());
    }
    ServedModel::new(&file).map_err(|error| wrong(error.to_string()))
}
