//! A fixed list of workers: the router asks each who it is and watches its load.
//!
//! The list is TOML: `workers = ["host:port", …]`. It must not know where the file lies.

use std::sync::Arc;
use std::time::Duration;

use tonic::{Code, Status};

use crate::ClusterError;
use crate::backoff::Backoff;
use crate::connection::Connection;
use crate::dialer::Dialer;
use crate::http2;
use crate::membership::CheckWorker;
use crate::table::{Entry, TableWriter};

/// Most workers of a list.
pub const MAX_STATIC_WORKERS: usize = 1024;

/// Addresses, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StaticList {
    addresses: Vec<String>,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    workers: Vec<String>,
}

impl StaticList {
    /// Reads the TOML text of a list.
    ///
    /// # Errors
    /// Syntax, an unknown key, no or too many workers, or an address that is not `host:port`.
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let file: File = toml::from_str(text)?;
        Self::new(file.workers)
    }

    /// A list of `host:port`.
    ///
    /// # Errors
    /// No or too many workers, or an address that is not `host:port`.
    pub fn new(mut addresses: Vec<String>) -> Result<Self, ClusterError> {
        addresses.sort();
        addresses.dedup();
        if addresses.is_empty() {
            return Err(ClusterError::Empty);
        }
        if addresses.len() > MAX_STATIC_WORKERS {
            let got = addresses.len();
            return Err(ClusterError::TooMany {
                got,
                limit: MAX_STATIC_WORKERS,
            });
        }
        for address in &addresses {
            http2::endpoint(address)?;
        }
        Ok(Self { addresses })
    }

    pub(crate) fn into_addresses(self) -> Vec<String> {
        self.addresses
    }
}

/// Keeps one worker of the list in the table while it answers.
pub(crate) async fn watch_worker(
    address: String,
    dialer: Dialer,
    writer: Arc<TableWriter>,
    check: CheckWorker,
) {
    let Ok(channel) = dialer.channel(&address) else {
        return;
    };
    let mut connection = Connection::new(&address, channel);
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        match introduce(&mut connection, &writer, &check).await {
            Ok((entry, differing_fields)) => {
                let status = connection.follow(&entry, differing_fields).await;
                // Two watchers of one worker do not take turns in a hurry.
                if status.code() != Code::Aborted {
                    backoff.reset();
                }
                tracing::info!(worker = %entry.key().0, reason = status.message(), "worker gone");
            }
            Err(status) => tracing::debug!(address, error = %status, "worker does not answer"),
        }
        tokio::time::sleep(backoff.delay()).await;
    }
}

async fn introduce(
    connection: &mut Connection,
    writer: &Arc<TableWriter>,
    check: &CheckWorker,
) -> Result<(Entry, Vec<String>), Status> {
    let (info, load) = connection.ask().await?;
    let differing_fields = check(&info);
    Ok((connection.enter(info, load, writer)?, differing_fields))
}
