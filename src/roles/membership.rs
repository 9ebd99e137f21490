//! `--membership`, one vocabulary for router and workers: `embedded`, `static:FILE`, `etcd:ENDPOINTS`.

use std::path::Path;
use std::time::Duration;

use baton_cluster::{CheckWorker, Dialer, EtcdOptions, EtcdPassword, Membership, StaticList};

use crate::args::{EtcdArgs, RouterArgs, WorkerArgs};
use crate::exit::Failure;
use crate::small_file;

/// Largest static list.
const MAX_LIST_BYTES: u64 = 1 << 20;
/// Where keys lie unless said otherwise.
const DEFAULT_PREFIX: &str = "baton";
/// How long a registration outlives its worker unless said otherwise.
const DEFAULT_LEASE: Duration = Duration::from_secs(10);
/// The password of the user of etcd; no flag has it.
const PASSWORD_VARIABLE: &str = "BATON_ETCD_PASSWORD";

/// What was asked for.
enum How<'a> {
    Embedded,
    Static(&'a str),
    Etcd(&'a str),
}

impl<'a> How<'a> {
    fn parse(how: &'a str) -> Result<Self, Failure> {
        match how.split_once(':') {
            None if how == "embedded" => Ok(Self::Embedded),
            Some(("static", file)) if !file.is_empty() => Ok(Self::Static(file)),
            Some(("etcd", endpoints)) => Ok(Self::Etcd(endpoints)),
            _ => Err(Failure::usage(format!(
                "--membership is {how:?}, expected embedded, static:FILE or etcd:HOST:PORT,…"
            ))),
        }
    }
}

/// Whether workers register at the router's own port.
pub(super) fn is_embedded(args: &RouterArgs) -> bool {
    args.membership
        .as_deref()
        .is_none_or(|how| how == "embedded")
}

/// The router's membership.
pub(super) async fn of_router(
    args: &RouterArgs,
    dialer: &Dialer,
    check: CheckWorker,
) -> Result<Membership, Failure> {
    let how = args.membership.as_deref().unwrap_or("embedded");
    match How::parse(how)? {
        How::Embedded => Ok(Membership::embedded()),
        How::Static(path) => {
            let wrong = |error: String| Failure::usage(format!("--membership {how}: {error}"));
            let text = small_file::read(Path::new(path), MAX_LIST_BYTES).map_err(wrong)?;
            let list = StaticList::parse(&text).map_err(|error| wrong(error.to_string()))?;
            Ok(Membership::static_list(list, dialer, &check))
        }
        How::Etcd(endpoints) => {
            let options = etcd(endpoints, &args.etcd).await?;
            Ok(Membership::etcd(options, dialer, check))
        }
    }
}

/// A worker's membership.
pub(super) async fn of_worker(args: &WorkerArgs) -> Result<baton_worker::Membership, Failure> {
    let router = args.router.as_ref();
    let Some(how) = args.membership.as_deref() else {
        return Ok(router.cloned().map_or(
            baton_worker::Membership::Static,
            baton_worker::Membership::Router,
        ));
    };
    let how_parsed = How::parse(how)?;
    if let (How::Static(_) | How::Etcd(_), Some(router)) = (&how_parsed, router) {
        return Err(Failure::usage(format!(
            "--router {router} is for --membership embedded, which is {how}"
        )));
    }
    match how_parsed {
        How::Embedded => router
            .cloned()
            .map(baton_worker::Membership::Router)
            .ok_or_else(|| Failure::usage("--membership embedded needs --router HOST:PORT")),
        How::Static(_) => Ok(baton_worker::Membership::Static),
        How::Etcd(endpoints) => Ok(baton_worker::Membership::Etcd {
            options: etcd(endpoints, &args.etcd).await?,
            lease: args.etcd_lease_s.map_or(DEFAULT_LEASE, Duration::from_secs),
        }),
    }
}

async fn etcd(endpoints: &str, args: &EtcdArgs) -> Result<EtcdOptions, Failure> {
    let wrong = |error: baton_cluster::ClusterError| {
        Failure::usage(format!("--membership etcd:{endpoints}: {error}"))
    };
    let prefix = args.etcd_prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
    let mut options = EtcdOptions::new(endpoints, prefix).map_err(wrong)?;
    let password = match (&args.etcd_password_file, std::env::var(PASSWORD_VARIABLE)) {
        (Some(file), _) => Some(EtcdPassword::File(file.clone())),
        (None, Ok(text)) => Some(EtcdPassword::Text(text)),
        (None, Err(_)) => None,
    };
    match (&args.etcd_user, password) {
        (None, _) if args.etcd_password_file.is_some() => {
            return Err(Failure::usage("--etcd-password-file needs --etcd-user"));
        }
        (None, _) => {}
        (Some(user), Some(password)) => options = options.with_user(user.clone(), password),
        (Some(user), None) => {
            return Err(Failure::usage(format!(
                "--etcd-user {user} needs --etcd-password-file or {PASSWORD_VARIABLE}"
            )));
        }
    }
    if let Some(ca) = &args.etcd_ca {
        options = options.with_ca(ca.clone());
    }
    match (&args.etcd_cert, &args.etcd_key) {
        (Some(certificate), Some(key)) => {
            options = options.with_identity(certificate.clone(), key.clone());
        }
        (None, None) => {}
        _ => return Err(Failure::usage("--etcd-cert and --etcd-key go together")),
    }
    options.validate().await.map_err(wrong)
}
