//! From arguments to certificates, and whether a process may listen where it is told to.

use std::net::SocketAddr;
use std::path::PathBuf;

use baton_cluster::{Tls, TlsFiles};

use crate::args::{AskingSecurityArgs, ServingSecurityArgs};
use crate::exit::Failure;

/// Certificates of a router. With `registering`, workers come to the same port.
pub(crate) fn router_tls(
    args: &ServingSecurityArgs,
    client_ca: Option<PathBuf>,
    registering: bool,
) -> Result<Option<Tls>, Failure> {
    let has_cert = pair(args.tls_cert.is_some(), args.tls_key.is_some())?;
    for (flag, given) in [
        ("--tls-ca", args.tls_ca.is_some()),
        ("--client-ca", client_ca.is_some()),
    ] {
        if given && !has_cert {
            return Err(Failure::usage(format!(
                "{flag} needs --tls-cert and --tls-key: a router that asks for certificates shows one"
            )));
        }
    }
    if has_cert && registering && args.tls_ca.is_none() {
        return Err(Failure::usage(
            "--tls-cert needs --tls-ca here: workers register at the port of clients, and are known by \
             certificates of that CA",
        ));
    }
    load(args, client_ca)
}

/// Certificates of a worker: all or none, since it is both server and client of its peers.
pub(crate) fn worker_tls(args: &ServingSecurityArgs) -> Result<Option<Tls>, Failure> {
    let has_cert = pair(args.tls_cert.is_some(), args.tls_key.is_some())?;
    if has_cert != args.tls_ca.is_some() {
        return Err(Failure::usage(
            "a worker needs --tls-cert, --tls-key and --tls-ca together, or none of them",
        ));
    }
    load(args, None)
}

fn load(args: &ServingSecurityArgs, client_ca: Option<PathBuf>) -> Result<Option<Tls>, Failure> {
    if args.tls_cert.is_none() {
        return match args.tls_name {
            Some(_) => Err(Failure::usage("--tls-name needs --tls-ca")),
            None => Ok(None),
        };
    }
    let files = TlsFiles {
        cert: args.tls_cert.clone(),
        key: args.tls_key.clone(),
        ca: args.tls_ca.clone(),
        client_ca,
        name: args.tls_name.clone(),
    };
    Tls::load(files)
        .map(Some)
        .map_err(|error| Failure::usage(error.to_string()))
}

/// Certificates of a client.
pub(crate) fn client_tls(args: &AskingSecurityArgs) -> Result<Option<Tls>, Failure> {
    let has_cert = pair(args.tls_cert.is_some(), args.tls_key.is_some())?;
    if args.tls_ca.is_none() {
        return if has_cert || args.tls_name.is_some() {
            Err(Failure::usage(
                "--tls-cert and --tls-name need --tls-ca: without it nothing is asked under TLS",
            ))
        } else {
            Ok(None)
        };
    }
    let files = TlsFiles {
        cert: args.tls_cert.clone(),
        key: args.tls_key.clone(),
        ca: args.tls_ca.clone(),
        client_ca: None,
        name: args.tls_name.clone(),
    };
    Tls::load(files)
        .map(Some)
        .map_err(|error| Failure::usage(error.to_string()))
}

fn pair(cert: bool, key: bool) -> Result<bool, Failure> {
    if cert == key {
        return Ok(cert);
    }
    Err(Failure::usage(
        "--tls-cert and --tls-key are needed together",
    ))
}

/// Whether a process may listen there: under TLS, on this machine alone, or because it was told to.
pub(crate) fn check_listen(
    flag: &str,
    address: SocketAddr,
    has_tls: bool,
    args: &ServingSecurityArgs,
) -> Result<(), Failure> {
    if has_tls || address.ip().is_loopback() {
        return Ok(());
    }
    if args.insecure_listen != Some(true) {
        return Err(Failure::usage(format!(
            "{flag} {address} is reached from other machines and nothing is encrypted: give \
             --tls-cert, --tls-key and --tls-ca, or --insecure-listen if the network can be trusted"
        )));
    }
    tracing::warn!(
        "listening on {address} without TLS: everyone on that network reads and may say everything"
    );
    Ok(())
}
