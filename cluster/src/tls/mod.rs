//! TLS on every plane: who this process is, whom it trusts, and streams made from both.
//!
//! Certificates are read again when their files change: new connections use the new ones, open ones live
//! on. It must not know what is said on a connection.

mod explain;
mod files;
mod load;
mod reload;
#[cfg(test)]
mod tests;

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::ClusterError;
use crate::replay::part;
use crate::stream::{BoxStream, ByteStream};

use files::Contents;
pub use files::TlsFiles;

use explain::{Explained, explain_handshake};
use load::Loaded;

/// What a connection is for; the two sides agree on it in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plane {
    /// gRPC.
    Calls,
    /// HTTP/1.1, for clients alone.
    Web,
    /// Pages between workers.
    Pages,
}

/// What a server does with those who show no certificate. A wrong one is always refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strangers {
    /// Lets them in; services ask [`Shown`].
    Admitted,
    /// Refuses them in the handshake, if there is a CA to tell them by.
    Refused,
}

/// Whose certificate the other side has shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shown {
    /// One of the CA of this service's own processes.
    pub peer: bool,
    /// One of the clients' CA.
    pub client: bool,
}

/// The certificates of a process, as they are now.
#[derive(Debug, Clone)]
pub struct Tls {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    files: TlsFiles,
    /// Name that certificates of dialled peers must have, instead of the host of their address.
    name: Option<ServerName<'static>>,
    loaded: RwLock<Arc<Loaded>>,
}

impl Tls {
    /// Reads the files, and again whenever they change. Needs a tokio runtime.
    ///
    /// # Errors
    /// A file that cannot be read or understood, a key that does not fit its certificate.
    pub fn load(files: TlsFiles) -> Result<Self, ClusterError> {
        let name = files.name.as_deref().map(server_name).transpose()?;
        let contents = files.read()?;
        let loaded = RwLock::new(Arc::new(Loaded::new(&files, &contents)?));
        let inner = Arc::new(Inner {
            files,
            name,
            loaded,
        });
        tokio::spawn(reload::follow(Arc::downgrade(&inner), contents));
        Ok(Self { inner })
    }

    /// Whether this process can serve TLS: it has a certificate.
    pub fn serves(&self) -> bool {
        self.inner.files.cert.is_some()
    }

    /// Whether peers must show a certificate; also whether they are dialled under TLS.
    pub fn knows_peers(&self) -> bool {
        self.inner.files.ca.is_some()
    }

    /// Whether clients must show a certificate.
    pub fn knows_clients(&self) -> bool {
        self.inner.files.client_ca.is_some()
    }

    /// Opens TLS as the client of `host`.
    ///
    /// # Errors
    /// The handshake failed, in words that say what to do.
    pub async fn connect(
        &self,
        plane: Plane,
        host: &str,
        stream: impl ByteStream,
    ) -> io::Result<BoxStream> {
        let name = match &self.inner.name {
            Some(name) => name.clone(),
            None => server_name(host).map_err(io::Error::other)?,
        };
        let config = self.inner.loaded().client(plane)?;
        let connecting = TlsConnector::from(config).connect(name, stream);
        let stream = connecting.await.map_err(explain_handshake)?;
        Ok(Box::new(Explained(stream)))
    }

    /// Opens TLS as the server, and tells what certificate the client has shown.
    ///
    /// # Errors
    /// The handshake failed, in words that say what to do.
    pub async fn accept(
        &self,
        plane: Plane,
        strangers: Strangers,
        stream: impl ByteStream,
    ) -> io::Result<(BoxStream, Shown)> {
        let loaded = self.inner.loaded();
        let config = loaded.server(plane, strangers)?;
        let accepting = TlsAcceptor::from(config).accept(stream).into_fallible();
        let stream = match accepting.await {
            Ok(stream) => stream,
            Err((error, stream)) => {
                // The alert that tells the other side is on its way.
                part(stream).await;
                return Err(explain_handshake(error));
            }
        };
        let shown = match stream.get_ref().1.peer_certificates() {
            Some(chain) => loaded.shown(chain),
            None => Shown::default(),
        };
        Ok((Box::new(Explained(stream)), shown))
    }
}

impl Inner {
    /// Reads the files and uses what they say, if it is not what was `used` so far.
    fn look(&self, used: &Contents) -> Result<Option<Contents>, ClusterError> {
        let contents = self.files.read()?;
        if contents == *used {
            return Ok(None);
        }
        let loaded = Arc::new(Loaded::new(&self.files, &contents)?);
        *self.loaded.write().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(Some(contents))
    }

    fn loaded(&self) -> Arc<Loaded> {
        Arc::clone(&self.loaded.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Loaded {
    fn shown(&self, chain: &[CertificateDer<'_>]) -> Shown {
        let Some((own, between)) = chain.split_first() else {
            return Shown::default();
        };
        let now = UnixTime::now();
        let verified = |verifier: &Option<load::Verifier>| {
            verifier
                .as_ref()
                .is_some_and(|ca| ca.verify_client_cert(own, between, now).is_ok())
        };
        Shown {
            peer: verified(&self.peers),
            client: verified(&self.clients),
        }
    }
}

/// The name in a certificate that a host must have: a DNS name or an address, in brackets or not.
fn server_name(host: &str) -> Result<ServerName<'static>, ClusterError> {
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(ServerName::IpAddress(address.into()));
    }
    ServerName::try_from(bare.to_owned()).map_err(|_| ClusterError::Tls {
        what: "name of the peer".to_owned(),
        detail: format!("{bare:?} is neither a DNS name nor an address"),
    })
}
