//! A worker in this process: arguments become options, stages become a progress bar and a ready line.

use std::path::PathBuf;
use std::time::Duration;

use baton_decode_worker::DecodeWorker;
use baton_engine::Isa;
use baton_kv_cache::KvDtype;
use baton_kv_transfer::TransportChoice;
use baton_prefill_worker::PrefillWorker;
use baton_proto::domain::WorkerRole;
use baton_proto::ids::WorkerId;
use baton_worker::{BoundWorker, Membership, PoolSize, Role, Stage, WorkerError, WorkerOptions};

use crate::args::{TransportArg, WorkerArgs};
use crate::exit::Failure;
use crate::{progress, security, traces};

use super::metrics::MetricsPort;
use super::{membership, shutdown, socket_address, tell_ready};

/// Runs a prefill worker until it is told to end.
pub(crate) async fn prefill(args: WorkerArgs) -> Result<(), Failure> {
    serve::<PrefillWorker>("prefill", args).await
}

/// Runs a decode worker until it is told to end.
pub(crate) async fn decode(args: WorkerArgs) -> Result<(), Failure> {
    serve::<DecodeWorker>("decode", args).await
}

async fn serve<R: Role>(name: &'static str, args: WorkerArgs) -> Result<(), Failure> {
    let supervised = args.exit_with_stdin.unwrap_or(false);
    let membership = membership::of_worker(&args).await?;
    let metrics = args.metrics.clone();
    let mut options = options(args, membership, R::ROLE)?;
    let metrics = MetricsPort::bind(&metrics).await?;
    let (tracer, exporter) = traces::start(name)?;
    options.tracer = tracer;
    let worker = BoundWorker::bind(options);
    let worker = worker.await.map_err(|error| failure(&error))?;
    let observer = observer(name, supervised, metrics.words());
    let _metrics = metrics.serve(worker.metrics());
    let ran = worker.run_model::<R>(observer, end(supervised)).await;
    exporter.finish().await;
    ran.map_err(|error| failure(&error))
}

async fn end(supervised: bool) {
    if let Err(failure) = shutdown(supervised).await {
        tracing::error!("{failure:?}");
    }
}

fn failure(error: &WorkerError) -> Failure {
    match error {
        WorkerError::Option { .. } => Failure::usage(format!("--{error}")),
        _ => Failure::failed(error.to_string()),
    }
}

/// Supervised workers load beside each other: their bars would overwrite one another.
fn observer(role: &'static str, supervised: bool, metrics: String) -> impl FnMut(Stage) + Send {
    let bar = progress::bytes("loading", !supervised);
    let mut told = false;
    move |stage| match stage {
        Stage::Listening(address) => tracing::info!("{role} worker listens on {address}"),
        Stage::Loading {
            done_bytes,
            total_bytes,
        } => {
            bar.set_length(total_bytes);
            bar.set_position(done_bytes);
        }
        Stage::Ready(info) => {
            bar.finish_and_clear();
            if !told {
                told = true;
                tell_ready(&format!(
                    "role={role} grpc={} worker={}{metrics}",
                    info.address, info.worker_id
                ));
            }
        }
        Stage::Draining { legs } => {
            tracing::info!("{role} worker drains, {legs} requests still run");
        }
    }
}

fn options(
    mut args: WorkerArgs,
    membership: Membership,
    role: WorkerRole,
) -> Result<WorkerOptions, Failure> {
    let (name, default_budget) = match role {
        WorkerRole::Prefill => ("prefill", 256),
        WorkerRole::Decode => ("decode", 128),
    };
    let model = args.model.take().ok_or_else(|| {
        Failure::usage("--model PATH is needed: a GGUF file or a Hugging Face directory")
    })?;
    let worker_id = args.worker_id.take().unwrap_or_else(|| default_id(name));
    let worker_id = WorkerId::new(&worker_id).ok_or_else(|| {
        Failure::usage(format!(
            "--worker-id is {worker_id:?}, allowed: 1 to 64 of A-Z a-z 0-9 . _ -"
        ))
    })?;
    let mut options = WorkerOptions::new(model, worker_id);
    listen(&args, role, &mut options)?;
    options.membership = membership;
    options.pool = args.pages.map_or(PoolSize::Auto, PoolSize::Pages);
    options.page_size = args.page_size.unwrap_or(options.page_size);
    options.kv_dtype = args.kv_dtype.map_or(KvDtype::Bf16, Into::into);
    options.isa = args.isa.as_deref().map(instruction_set).transpose()?;
    options.threads = args.threads.unwrap_or_else(default_threads);
    options.cpus = args
        .cpus
        .as_deref()
        .map(parse_cpus)
        .transpose()?
        .unwrap_or_default();
    options.token_budget = args.token_budget.unwrap_or(default_budget);
    options.max_chunk = options.token_budget;
    options.max_batch = args
        .max_batch
        .unwrap_or(options.max_batch.min(options.token_budget));
    options.transports = match args.transport.unwrap_or(TransportArg::Auto) {
        TransportArg::Auto => TransportChoice::Auto,
        TransportArg::Shm => TransportChoice::Shm,
        TransportArg::Tcp => TransportChoice::Tcp,
    };
    options.drain_limit = args
        .drain_limit_ms
        .map_or(options.drain_limit, Duration::from_millis);
    options.runtime_dir =
        std::env::var_os("XDG_RUNTIME_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
    Ok(options)
}

/// Where the worker listens and is reached, and how its connections are secured.
fn listen(args: &WorkerArgs, role: WorkerRole, options: &mut WorkerOptions) -> Result<(), Failure> {
    if let Some(listen) = &args.listen {
        options.listen = socket_address("--listen", listen)?;
        options.transfer_listen.set_ip(options.listen.ip());
    }
    if let Some(port) = args.transfer_port {
        if role == WorkerRole::Prefill {
            return Err(Failure::usage(format!(
                "--transfer-port {port}: pages arrive at decode workers alone"
            )));
        }
        options.transfer_listen.set_port(port);
    }
    let all_interfaces = options.listen.ip().is_unspecified();
    if all_interfaces && args.advertise.is_none() {
        return Err(Failure::usage(format!(
            "--listen {} takes every interface, so --advertise HOST must say which one others use",
            options.listen
        )));
    }
    if let Some(advertise) = &args.advertise {
        options.transfer_advertise = Some(host_of(advertise)?.to_owned());
        options.advertise = Some(advertise.clone());
    }
    let tls = security::worker_tls(&args.security)?;
    security::check_listen("--listen", options.listen, tls.is_some(), &args.security)?;
    if let Some(tls) = tls {
        options.secure(tls);
    }
    Ok(())
}

/// HOST of `HOST` or `HOST:PORT`; an IPv6 address stands in brackets.
fn host_of(advertise: &str) -> Result<&str, Failure> {
    let (host, port) = match advertise.rsplit_once(':') {
        Some((host, port)) if !advertise.ends_with(']') => (host, Some(port)),
        _ => (advertise, None),
    };
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    let letters = |b: u8| b.is_ascii_alphanumeric() || b".-:_".contains(&b);
    let bracketed = bare.len() != host.len();
    let port_fits = port.is_none_or(|port| port.parse::<u16>().is_ok());
    if bare.is_empty()
        || !bare.bytes().all(letters)
        || bare.contains(':') != bracketed
        || !port_fits
    {
        return Err(Failure::usage(format!(
            "--advertise is {advertise:?}, expected HOST or HOST:PORT, IPv6 in brackets"
        )));
    }
    Ok(host)
}

/// An instruction set by name, if this machine has it.
fn instruction_set(name: &str) -> Result<Isa, Failure> {
    let here = Isa::available();
    here.iter()
        .copied()
        .find(|isa| isa.name() == name)
        .ok_or_else(|| {
            let names: Vec<_> = here.iter().map(|isa| isa.name()).collect();
            Failure::usage(format!(
                "--isa is {name:?}, this machine has: {}",
                names.join(", ")
            ))
        })
}

fn default_id(role: &str) -> String {
    let host: String = std::fs::read_to_string("/proc/sys/kernel/hostname")
        .unwrap_or_default()
        .chars()
        .filter(|c| c.is_ascii_alphanumeric() || *c == '-')
        .take(32)
        .collect();
    format!("{role}-{host}-{}", std::process::id())
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// `0,2,4-7`
fn parse_cpus(text: &str) -> Result<Vec<usize>, Failure> {
    const MAX_CPU: usize = 4095;
    let wrong = || {
        Failure::usage(format!(
            "--cpus is {text:?}, expected numbers and ranges up to {MAX_CPU}, e.g. 0,2,4-7"
        ))
    };
    let number = |part: &str| {
        part.trim()
            .parse::<usize>()
            .ok()
            .filter(|cpu| *cpu <= MAX_CPU)
            .ok_or_else(wrong)
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = match part.split_once('-') {
            Some((first, last)) => (number(first)?, number(last)?),
            None => (number(part)?, number(part)?),
        };
        if first > last {
            return Err(wrong());
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_numbers_and_ranges() {
        assert_eq!(parse_cpus("0,2,4-6").ok(), Some(vec![0, 2, 4, 5, 6]));
        for wrong in ["", "a", "3-1", "0-99999", "-1"] {
            assert!(parse_cpus(wrong).is_err(), "{wrong:?} must be refused");
        }
    }

    #[test]
    fn advertised_hosts_are_checked() {
        let cases = [
            ("a.b:1", "a.b"),
            ("[::1]", "[::1]"),
            ("[::1]:70", "[::1]"),
            ("h", "h"),
        ];
        for (text, host) in cases {
            assert_eq!(host_of(text).ok(), Some(host), "{text}");
        }
        for wrong in ["", ":1", "h:x", "::1", "h:99999", "a b", "[h]:1"] {
            assert!(host_of(wrong).is_err(), "{wrong:?} must be refused");
        }
    }

    #[test]
    fn the_port_of_pages_is_of_decode_workers() {
        let args = WorkerArgs {
            model: Some("m".into()),
            transfer_port: Some(7072),
            ..WorkerArgs::default()
        };
        let decode = options(args.clone(), Membership::Static, WorkerRole::Decode);
        assert_eq!(decode.expect("valid").transfer_listen.port(), 7072);
        let prefill = options(args, Membership::Static, WorkerRole::Prefill).map(|_| ());
        let failure = prefill.expect_err("nothing arrives there");
        assert!(failure.message().contains("7072"), "{failure:?}");
    }

    #[test]
    fn listening_everywhere_needs_an_address_to_tell() {
        let args = WorkerArgs {
            model: Some("m".into()),
            listen: Some("0.0.0.0:0".into()),
            ..WorkerArgs::default()
        };
        assert!(options(args.clone(), Membership::Static, WorkerRole::Decode).is_err());
        let told = WorkerArgs {
            advertise: Some("host-1:7071".into()),
            ..args
        };
        let without = options(told.clone(), Membership::Static, WorkerRole::Decode);
        assert!(without.is_err(), "no TLS");
        let mut told = told;
        told.security.insecure_listen = Some(true);
        let options = options(told, Membership::Static, WorkerRole::Decode).expect("valid");
        assert_eq!(options.transfer_advertise.as_deref(), Some("host-1"));
    }
}
