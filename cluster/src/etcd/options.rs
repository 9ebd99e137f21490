//! How to reach etcd, validated once. Files are read again for each connection, so that a changed
//! certificate or password needs no restart.
//!
//! It must not know what is kept in etcd.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};
use tokio::io::AsyncReadExt as _;
use tonic::transport::Endpoint;

use super::key::Prefix;
use crate::ClusterError;

/// Most endpoints.
const MAX_ENDPOINTS: usize = 16;
/// Largest certificate, key or password file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// A silent connection is pinged after this long; etcd by default takes pings more often than every
/// 5 s for an attack.
const PING_INTERVAL: Duration = Duration::from_millis(5500);
/// A ping must be answered within this.
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where the password of the user is.
#[derive(Clone, PartialEq, Eq)]
pub enum EtcdPassword {
    /// Here.
    Text(String),
    /// In this file, without a line end.
    File(PathBuf),
}

impl fmt::Debug for EtcdPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("Text(…)"),
            Self::File(path) => f.debug_tuple("File").field(path).finish(),
        }
    }
}

/// How to reach etcd, and where in it the service lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// With scheme.
    endpoints: Vec<String>,
    prefix: Prefix,
    user: Option<(String, EtcdPassword)>,
    ca: Option<PathBuf>,
    /// Client certificate and its key.
    identity: Option<(PathBuf, PathBuf)>,
}

impl EtcdOptions {
    /// Endpoints between commas: `host:port`, with `http://` or `https://` before it or not. Keys lie
    /// under `prefix`.
    ///
    /// # Errors
    /// No or too many endpoints, one that is none, or a prefix outside its pattern.
    pub fn new(endpoints: &str, prefix: &str) -> Result<Self, ClusterError> {
        let endpoints: Vec<String> = endpoints.split(',').map(str::to_owned).collect();
        if endpoints.len() > MAX_ENDPOINTS {
            return Err(ClusterError::TooManyEndpoints {
                got: endpoints.len(),
                limit: MAX_ENDPOINTS,
            });
        }
        for endpoint in &endpoints {
            check_endpoint(endpoint)?;
        }
        Ok(Self {
            endpoints,
            prefix: Prefix::new(prefix)?,
            user: None,
            ca: None,
            identity: None,
        })
    }

    /// Logs in.
    #[must_use]
    pub fn with_user(mut self, name: String, password: EtcdPassword) -> Self {
        self.user = Some((name, password));
        self
    }

    /// Trusts servers that this CA (PEM) has signed, and connects by TLS only.
    #[must_use]
    pub fn with_ca(mut self, path: PathBuf) -> Self {
        self.ca = Some(path);
        self
    }

    /// Shows a client certificate (PEM).
    #[must_use]
    pub fn with_identity(mut self, certificate: PathBuf, key: PathBuf) -> Self {
        self.identity = Some((certificate, key));
        self
    }

    /// Checks that the settings fit together and that all files can be read now.
    ///
    /// # Errors
    /// TLS settings without TLS or the other way round, or a file that cannot be read.
    pub async fn validate(mut self) -> Result<Self, ClusterError> {
        if self.identity.is_some() && self.ca.is_none() {
            return Err(ClusterError::EtcdTls("a client certificate needs a CA too"));
        }
        let tls = self.ca.is_some();
        for endpoint in &mut self.endpoints {
            if endpoint.starts_with("http://") && tls {
                return Err(ClusterError::EtcdTls("with a CA, endpoints are https://"));
            }
            if endpoint.starts_with("https://") && !tls {
                return Err(ClusterError::EtcdTls("https:// endpoints need a CA"));
            }
            if !endpoint.contains("://") {
                let scheme = if tls { "https" } else { "http" };
                *endpoint = format!("{scheme}://{endpoint}");
            }
        }
        self.login().await?;
        self.connection(0).await?;
        Ok(self)
    }

    pub(super) fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The endpoint of the `attempt`th connection: each in turn.
    pub(super) fn endpoint(&self, attempt: usize) -> &str {
        &self.endpoints[attempt % self.endpoints.len()]
    }

    /// The `attempt`th connection, with certificates as their files have them now.
    pub(super) async fn connection(&self, attempt: usize) -> Result<Endpoint, ClusterError> {
        let address = self.endpoint(attempt);
        let endpoint = Endpoint::from_shared(address.to_owned())
            .map_err(|_| not_an_address(address))?
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true);
        let Some(ca) = &self.ca else {
            return Ok(endpoint);
        };
        let mut tls = TlsOptions::new().ca_certificate(Certificate::from_pem(read(ca).await?));
        if let Some((certificate, key)) = &self.identity {
            let (certificate, key) = (read(certificate).await?, read(key).await?);
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        endpoint
            .tls_config(tls)
            .map_err(|error| unreadable(ca, &error.to_string()))
    }

    /// Who logs in, with the password as its file has it now.
    pub(super) async fn login(&self) -> Result<ConnectOptions, ClusterError> {
        let mut options = ConnectOptions::new()
            .with_require_leader(true)
            .with_auto_token_refresh(true);
        if let Some((name, password)) = &self.user {
            let password = match password {
                EtcdPassword::Text(text) => text.clone(),
                EtcdPassword::File(path) => password_of(path).await?,
            };
            options = options.with_user(name, password);
        }
        Ok(options)
    }
}

fn check_endpoint(endpoint: &str) -> Result<(), ClusterError> {
    let bare = ["http://", "https://"]
        .iter()
        .find_map(|scheme| endpoint.strip_prefix(scheme))
        .unwrap_or(endpoint);
    let letters = |b: u8| b.is_ascii_alphanumeric() || b"._-:[]".contains(&b);
    let fits = bare.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let host_fits = !host.is_empty() && host.bytes().all(letters);
        host_fits && host.contains(':') == bracketed && port.parse::<u16>().is_ok_and(|p| p > 0)
    });
    if fits {
        return Ok(());
    }
    Err(not_an_address(endpoint))
}

fn not_an_address(endpoint: &str) -> ClusterError {
    ClusterError::Address {
        address: endpoint.chars().take(64).collect(),
    }
}

async fn password_of(path: &Path) -> Result<String, ClusterError> {
    let bytes = read(path).await?;
    let text = String::from_utf8(bytes)
        .map_err(|_| unreadable(path, "is not UTF-8 text"))?
        .trim_end_matches(['\r', '\n'])
        .to_owned();
    if text.is_empty() {
        return Err(unreadable(path, "is empty"));
    }
    Ok(text)
}

async fn read(path: &Path) -> Result<Vec<u8>, ClusterError> {
    let failed = |error: std::io::Error| unreadable(path, &error.to_string());
    // Opening a pipe would wait for a writer.
    if !tokio::fs::metadata(path).await.map_err(failed)?.is_file() {
        return Err(unreadable(path, "is not a regular file"));
    }
    let file = tokio::fs::File::open(path).await.map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .await
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        let what = format!("has more than {MAX_FILE_BYTES} bytes");
        return Err(unreadable(path, &what));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, error: &str) -> ClusterError {
    ClusterError::File {
        path: path.to_owned(),
        error: error.to_owned(),
    }
}
