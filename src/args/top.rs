//! Arguments of the view of a running service.

use clap::Args;
use serde::{Deserialize, Serialize};

use super::security::AskingSecurityArgs;

/// Workers, their pages, requests and latencies, as they change.
#[derive(Debug, Clone, Default, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TopArgs {
    /// Router to ask [default: 127.0.0.1:7070].
    #[arg(long, env = "BATON_CONNECT", value_name = "ADDR")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) connect: Option<String>,
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) security: AskingSecurityArgs,
}
