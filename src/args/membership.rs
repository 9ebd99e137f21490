//! Arguments that say how workers become known, of router and workers alike.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// How to reach etcd. The password is in a file or in `BATON_ETCD_PASSWORD`: a command line can be read by
/// everybody on the machine.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[expect(
    clippy::struct_field_names,
    reason = "fields are flags, which stand beside those of other things"
)]
pub(crate) struct EtcdArgs {
    /// What the keys of this service begin with [default: baton].
    #[arg(long, env = "BATON_ETCD_PREFIX", value_name = "PREFIX")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_prefix: Option<String>,
    /// User of etcd; the password comes from --etcd-password-file or the environment.
    #[arg(long, env = "BATON_ETCD_USER", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_user: Option<String>,
    /// File with the password of --etcd-user.
    #[arg(long, env = "BATON_ETCD_PASSWORD_FILE", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_password_file: Option<PathBuf>,
    /// Certificates (PEM) that sign etcd's; connects by TLS.
    #[arg(long, env = "BATON_ETCD_CA", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_ca: Option<PathBuf>,
    /// Client certificate (PEM) to show etcd.
    #[arg(long, env = "BATON_ETCD_CERT", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Key (PEM) of --etcd-cert.
    #[arg(long, env = "BATON_ETCD_KEY", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) etcd_key: Option<PathBuf>,
}
