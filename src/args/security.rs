//! Arguments about certificates and keys: who a process is, and whom it trusts.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

/// Of the serving commands.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
pub(crate) struct ServingSecurityArgs {
    /// PEM certificate of this process, with those between it and its CA; serves TLS.
    #[arg(long, env = "BATON_TLS_CERT", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its PEM private key.
    #[arg(long, env = "BATON_TLS_KEY", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_key: Option<PathBuf>,
    /// PEM CA of router and workers: they reach each other under TLS and must show certificates of it.
    #[arg(long, env = "BATON_TLS_CA", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// Name that certificates of router and workers have [default: the host of the address dialled].
    #[arg(long, env = "BATON_TLS_NAME", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_name: Option<String>,
    /// Listen beyond this machine without TLS: everyone on the network reads and may say everything.
    #[arg(long, env = "BATON_INSECURE_LISTEN", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) insecure_listen: Option<bool>,
}

/// Of the router's port for clients.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
pub(crate) struct ClientDoorArgs {
    /// PEM CA of clients: they must show certificates of it.
    #[arg(long, env = "BATON_CLIENT_CA", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_ca: Option<PathBuf>,
    /// TOML list of API keys by hash, see `baton keys new`: clients must present one.
    #[arg(long, env = "BATON_API_KEYS", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_keys: Option<PathBuf>,
}

/// Of the commands that talk to a router. An API key can also stand in `BATON_API_KEY`.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
pub(crate) struct AskingSecurityArgs {
    /// PEM CA of the router; asks under TLS.
    #[arg(long, env = "BATON_TLS_CA", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// PEM certificate to show to the router.
    #[arg(long, env = "BATON_TLS_CERT", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its PEM private key.
    #[arg(long, env = "BATON_TLS_KEY", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Name that the router's certificate has [default: the host of the address].
    #[arg(long, env = "BATON_TLS_NAME", value_name = "NAME")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) tls_name: Option<String>,
    /// File with the API key [default: `BATON_API_KEY` of the environment].
    #[arg(long, env = "BATON_API_KEY_FILE", value_name = "FILE")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) api_key_file: Option<PathBuf>,
}

/// Keys for clients.
#[derive(Debug, Args)]
pub(crate) struct KeysArgs {
    #[command(subcommand)]
    pub(crate) command: KeysCommand,
}

/// What to do with keys.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key: prints it once, with the lines for the file of --api-keys.
    New(NewKeyArgs),
}

/// A new key.
#[derive(Debug, Args)]
pub(crate) struct NewKeyArgs {
    /// Whose key it is, [A-Za-z0-9._-]{1,64}.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Most requests at once [default: no limit of its own].
    #[arg(long, value_name = "N")]
    pub(crate) max_concurrent: Option<u64>,
    /// Most prompt and completion tokens per minute [default: no limit].
    #[arg(long, value_name = "N")]
    pub(crate) tokens_per_minute: Option<u64>,
    /// Also for `baton status` and `baton drain`.
    #[arg(long)]
    pub(crate) admin: bool,
}
