//! Which children there are and with which flags: `up`'s arguments, validated once.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use baton_proto::ids::WorkerId;
use baton_worker::{PoolSize, WorkerError, WorkerOptions};

use crate::args::{OFF, UpArgs};
use crate::client::DEFAULT_ROUTER;
use crate::exit::Failure;

use super::Inherited;
use super::child::Child;

/// Most workers of one role on one machine.
const MAX_WORKERS: u32 = 64;

/// Where HTTP clients look unless told otherwise.
const DEFAULT_HTTP: &str = "127.0.0.1:8000";

/// Where the router's metrics are unless told otherwise; the workers' are at the ports that follow.
const DEFAULT_METRICS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);

/// A validated plan.
pub(crate) struct Plan {
    /// Prefill workers.
    pub(crate) prefill: u32,
    /// Decode workers.
    pub(crate) decode: u32,
    args: UpArgs,
    model: PathBuf,
    inherited: Inherited,
    metrics: Option<MetricsPorts>,
    prefill_threads: usize,
    decode_threads: usize,
    /// CPUs for each worker in order, prefill first; empty when they cannot be disjoint.
    cpus: Vec<Vec<usize>>,
}

impl Plan {
    /// Checks the arguments and shares out the CPUs.
    pub(crate) fn new(args: UpArgs, inherited: Inherited) -> Result<Self, Failure> {
        let model = args.model.clone().ok_or_else(|| {
            Failure::usage("--model PATH is needed: a GGUF file or a Hugging Face directory")
        })?;
        if !model.exists() {
            return Err(Failure::usage(format!(
                "--model {}: no such file or directory",
                model.display()
            )));
        }
        match args.membership.as_deref() {
            None | Some("embedded") => {}
            Some(how) if how.starts_with("etcd:") => {}
            Some(how) => {
                return Err(Failure::usage(format!(
                    "--membership is {how:?}, expected embedded or etcd:HOST:PORT,…"
                )));
            }
        }
        let prefill = args.prefill.unwrap_or(1);
        let decode = args.decode.unwrap_or(1);
        for (flag, count, least) in [("--prefill", prefill, 0), ("--decode", decode, 1)] {
            if !(least..=MAX_WORKERS).contains(&count) {
                return Err(Failure::usage(format!(
                    "{flag} is {count}, allowed: {least} to {MAX_WORKERS}"
                )));
            }
        }
        check_workers(&args, &model)?;
        let metrics = MetricsPorts::new(args.metrics_listen.as_deref(), prefill + decode)?;
        let available = available_cpus();
        let share = |workers: u32| (available.len() / 2 / workers.max(1) as usize).max(1);
        let prefill_threads = args.prefill_threads.unwrap_or_else(|| share(prefill));
        let decode_threads = args.decode_threads.unwrap_or_else(|| share(decode));
        for (flag, threads) in [
            ("--prefill-threads", prefill_threads),
            ("--decode-threads", decode_threads),
        ] {
            if !(1..=1024).contains(&threads) {
                return Err(Failure::usage(format!(
                    "{flag} is {threads}, allowed: 1 to 1024"
                )));
            }
        }
        let wanted = [(prefill, prefill_threads), (decode, decode_threads)];
        let cpus = share_out(&available, &wanted);
        Ok(Self {
            prefill,
            decode,
            args,
            model,
            inherited,
            metrics,
            prefill_threads,
            decode_threads,
            cpus,
        })
    }

    /// The router.
    pub(crate) fn router(&self) -> Child {
        let mut arguments = self.common("router");
        let membership = self.etcd().unwrap_or("embedded");
        push(&mut arguments, "--membership", Some(membership));
        let listen = self
            .args
            .listen
            .clone()
            .unwrap_or_else(|| DEFAULT_ROUTER.to_owned());
        push(&mut arguments, "--listen", Some(listen));
        let http = self.args.http_listen.as_deref();
        push(
            &mut arguments,
            "--http-listen",
            Some(http.unwrap_or(DEFAULT_HTTP)),
        );
        self.show_metrics(&mut arguments, 0);
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let door = &self.args.door;
        push(&mut arguments, "--client-ca", path(&door.client_ca));
        push(&mut arguments, "--api-keys", path(&door.api_keys));
        let insecure = self.args.security.insecure_listen;
        push(&mut arguments, "--insecure-listen", insecure);
        push(
            &mut arguments,
            "--local-prefill-tokens",
            self.args.local_prefill_tokens,
        );
        Child {
            name: "router".into(),
            arguments,
            keeps_address: true,
        }
    }

    /// All workers, registering at `router` unless there is etcd.
    pub(crate) fn workers(&self, router: &str) -> Vec<Child> {
        let router = &reachable(router);
        let prefill = (0..self.prefill).map(|index| {
            (
                "prefill",
                index,
                self.prefill_threads,
                self.args.prefill_token_budget,
            )
        });
        let decode = (0..self.decode).map(|index| {
            (
                "decode",
                index,
                self.decode_threads,
                self.args.decode_token_budget,
            )
        });
        prefill
            .chain(decode)
            .enumerate()
            .map(|(place, (role, index, threads, budget))| {
                let name = format!("{role}-{index}");
                let mut arguments = self.common(role);
                push(&mut arguments, "--listen", Some("127.0.0.1:0"));
                match self.etcd() {
                    Some(etcd) => push(&mut arguments, "--membership", Some(etcd)),
                    None => push(&mut arguments, "--router", Some(router)),
                }
                push(&mut arguments, "--worker-id", Some(&name));
                self.show_metrics(&mut arguments, place as u16 + 1);
                push(&mut arguments, "--threads", Some(threads));
                push(&mut arguments, "--pages", self.args.pages);
                push(&mut arguments, "--page-size", self.args.page_size);
                push(&mut arguments, "--token-budget", budget);
                push(
                    &mut arguments,
                    "--transport",
                    self.args.transport.as_ref().map(value_name),
                );
                push(
                    &mut arguments,
                    "--kv-dtype",
                    self.args.kv_dtype.as_ref().map(value_name),
                );
                let cpus = self.cpus.get(place).map(|cpus| {
                    cpus.iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(",")
                });
                push(&mut arguments, "--cpus", cpus);
                Child {
                    name,
                    arguments,
                    keeps_address: false,
                }
            })
            .collect()
    }

    /// `etcd:ENDPOINTS`, if asked for.
    fn etcd(&self) -> Option<&str> {
        let membership = self.args.membership.as_deref();
        membership.filter(|how| how.starts_with("etcd:"))
    }

    /// Where the child at this place shows its metrics; the router's is the first.
    fn show_metrics(&self, arguments: &mut Vec<String>, place: u16) {
        let address = self.metrics.as_ref().map(|ports| ports.of(place));
        let address = address.map_or_else(|| OFF.to_owned(), |address| address.to_string());
        push(arguments, "--metrics-listen", Some(address));
        let any_port = self.metrics.as_ref().is_some_and(|ports| ports.or_any);
        push(arguments, "--metrics-any-port", Some(any_port));
    }

    fn common(&self, role: &str) -> Vec<String> {
        let mut arguments = vec![
            role.to_owned(),
            "--exit-with-stdin".to_owned(),
            "true".to_owned(),
        ];
        push(&mut arguments, "--model", Some(self.model.display()));
        let config = self.inherited.config.as_ref().map(|path| path.display());
        push(&mut arguments, "--config", config);
        push(&mut arguments, "--log", self.inherited.log.as_ref());
        let security = &self.args.security;
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        push(&mut arguments, "--tls-cert", path(&security.tls_cert));
        push(&mut arguments, "--tls-key", path(&security.tls_key));
        push(&mut arguments, "--tls-ca", path(&security.tls_ca));
        push(&mut arguments, "--tls-name", security.tls_name.as_ref());
        arguments
    }
}

/// What every worker would refuse is refused here, once.
fn check_workers(args: &UpArgs, model: &Path) -> Result<(), Failure> {
    let budgets = [
        ("--prefill-token-budget", args.prefill_token_budget),
        ("--decode-token-budget", args.decode_token_budget),
    ];
    for (flag, budget) in budgets {
        let worker_id = WorkerId::new("up").ok_or_else(|| Failure::failed("no name"))?;
        let mut options = WorkerOptions::new(model.to_owned(), worker_id);
        options.pool = args.pages.map_or(PoolSize::Auto, PoolSize::Pages);
        options.page_size = args.page_size.unwrap_or(options.page_size);
        if let Some(budget) = budget {
            (options.token_budget, options.max_chunk) = (budget, budget);
            options.max_batch = options.max_batch.min(budget);
        }
        options.validate().map_err(|error| match error {
            WorkerError::Option {
                option: "token-budget",
                value,
                allowed,
            } => Failure::usage(format!("{flag} is {value}, must be {allowed}")),
            other => Failure::usage(format!("--{other}")),
        })?;
    }
    Ok(())
}

/// Ports for metrics, one after another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MetricsPorts {
    first: SocketAddr,
    /// Nobody asked for these ports, so others will do.
    or_any: bool,
}

impl MetricsPorts {
    /// For a router and so many workers.
    fn new(listen: Option<&str>, workers: u32) -> Result<Option<Self>, Failure> {
        let Some(listen) = listen else {
            return Ok(Some(Self {
                first: DEFAULT_METRICS,
                or_any: true,
            }));
        };
        if listen == OFF {
            return Ok(None);
        }
        let first: SocketAddr = listen.parse().map_err(|_| {
            Failure::usage(format!(
                "--metrics-listen is {listen:?}, expected IP:PORT, e.g. {DEFAULT_METRICS}, or {OFF}"
            ))
        })?;
        let last = u32::from(first.port()) + workers;
        if first.port() != 0 && last > u32::from(u16::MAX) {
            return Err(Failure::usage(format!(
                "--metrics-listen is {listen}: {workers} workers need the ports that follow, up to {last}"
            )));
        }
        let or_any = false;
        Ok(Some(Self { first, or_any }))
    }

    fn of(&self, place: u16) -> SocketAddr {
        let mut address = self.first;
        if address.port() != 0 {
            address.set_port(address.port() + place);
        }
        address
    }
}

fn push(arguments: &mut Vec<String>, flag: &str, value: Option<impl ToString>) {
    if let Some(value) = value {
        arguments.extend([flag.to_owned(), value.to_string()]);
    }
}

/// The address under which this machine reaches a listener: one on every interface is on loopback too.
fn reachable(address: &str) -> String {
    match address.parse::<SocketAddr>() {
        Ok(mut socket) if socket.ip().is_unspecified() => {
            socket.set_ip(if socket.is_ipv4() {
                Ipv4Addr::LOCALHOST.into()
            } else {
                Ipv6Addr::LOCALHOST.into()
            });
            socket.to_string()
        }
        _ => address.to_owned(),
    }
}

/// A value as its own flag spells it.
fn value_name(value: &impl clap::ValueEnum) -> String {
    value
        .to_possible_value()
        .map(|name| name.get_name().to_owned())
        .unwrap_or_default()
}

/// CPUs this process may run on.
fn available_cpus() -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(None) else {
        return vec![0];
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|cpu| set.is_set(*cpu))
        .collect()
}

/// Disjoint CPUs for each worker, or none at all when there are too few.
fn share_out(available: &[usize], wanted: &[(u32, usize)]) -> Vec<Vec<usize>> {
    let total: usize = wanted
        .iter()
        .map(|(workers, threads)| *workers as usize * threads)
        .sum();
    if total > available.len() {
        return Vec::new();
    }
    let mut rest = available.iter().copied();
    let sizes = wanted
        .iter()
        .flat_map(|(workers, threads)| (0..*workers).map(move |_| *threads));
    sizes
        .map(|threads| rest.by_ref().take(threads).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_ports_one_after_another() {
        let ports = |listen| MetricsPorts::new(listen, 3).expect("valid");
        let default = ports(None).expect("on by default");
        assert!(default.or_any);
        assert_eq!(default.of(0).to_string(), "127.0.0.1:9464");
        assert_eq!(default.of(3).to_string(), "127.0.0.1:9467");
        let told = ports(Some("0.0.0.0:65532")).expect("on");
        assert!(!told.or_any);
        assert_eq!(told.of(3).to_string(), "0.0.0.0:65535");
        assert_eq!(ports(Some("127.0.0.1:0")).expect("on").of(2).port(), 0);
        assert_eq!(ports(Some("off")), None);
        for wrong in ["9464", "127.0.0.1", "127.0.0.1:65533"] {
            assert!(MetricsPorts::new(Some(wrong), 3).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cpus_are_disjoint_or_not_assigned() {
        assert_eq!(
            share_out(&[0, 1, 4, 5], &[(1, 2), (2, 1)]),
            [vec![0, 1], vec![4], vec![5]]
        );
        assert!(share_out(&[0, 1], &[(1, 2), (1, 1)]).is_empty());
    }
}
