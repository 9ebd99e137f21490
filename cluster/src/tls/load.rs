//! From the bytes of files to configurations that can be used. It must not know when files change.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ServerConfig, WebPkiClientVerifier};

use super::files::{Contents, TlsFiles};
use super::{Plane, Strangers};
use crate::ClusterError;

pub(super) type Verifier = Arc<dyn ClientCertVerifier>;

/// Configurations made of one state of the files.
pub(super) struct Loaded {
    client: Option<[Arc<ClientConfig>; 2]>,
    /// gRPC for everyone, gRPC for peers, pages for peers, HTTP/1.1 for everyone.
    server: Option<[Arc<ServerConfig>; 4]>,
    /// Tells certificates of peers.
    pub(super) peers: Option<Verifier>,
    /// Tells certificates of clients.
    pub(super) clients: Option<Verifier>,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").finish_non_exhaustive()
    }
}

struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Loaded {
    pub(super) fn new(files: &TlsFiles, contents: &Contents) -> Result<Self, ClusterError> {
        let [cert_path, key_path, ca_path, client_ca_path] = files.paths();
        let [cert, key, ca, client_ca] = &contents.0;
        let identity = match ((cert_path, cert), (key_path, key)) {
            ((Some(cert_path), Some(cert)), (Some(key_path), Some(key))) => {
                Some(Identity::new((cert_path, cert), (key_path, key))?)
            }
            _ => None,
        };
        let roots = |path: Option<&Path>, pem: &Option<Vec<u8>>| match (path, pem) {
            (Some(path), Some(pem)) => roots(path, pem).map(Some),
            _ => Ok(None),
        };
        let (peers, clients) = (roots(ca_path, ca)?, roots(client_ca_path, client_ca)?);
        let client = match &peers {
            Some(peers) => Some(client_configs(peers, identity.as_ref())?),
            None => None,
        };
        let server = match &identity {
            Some(identity) => Some(server_configs(identity, peers.as_ref(), clients.as_ref())?),
            None => None,
        };
        let verifier =
            |roots: Option<RootCertStore>| roots.map(|it| verifier(it, Strangers::Refused));
        Ok(Self {
            client,
            server,
            peers: verifier(peers).transpose()?,
            clients: verifier(clients).transpose()?,
        })
    }

    pub(super) fn client(&self, plane: Plane) -> io::Result<Arc<ClientConfig>> {
        let configs = self.client.as_ref();
        let [calls, pages] = configs.ok_or_else(|| io::Error::other("no CA to verify peers by"))?;
        Ok(Arc::clone(match plane {
            Plane::Calls => calls,
            Plane::Pages => pages,
            Plane::Web => return Err(io::Error::other("no process is a client of HTTP/1.1")),
        }))
    }

    pub(super) fn server(
        &self,
        plane: Plane,
        strangers: Strangers,
    ) -> io::Result<Arc<ServerConfig>> {
        let configs = self.server.as_ref();
        let [open, calls, pages, web] =
            configs.ok_or_else(|| io::Error::other("no certificate to serve with"))?;
        Ok(Arc::clone(match (plane, strangers) {
            (Plane::Calls, Strangers::Admitted) => open,
            (Plane::Calls, Strangers::Refused) => calls,
            (Plane::Pages, _) => pages,
            (Plane::Web, _) => web,
        }))
    }
}

impl Plane {
    fn protocols(self) -> Vec<Vec<u8>> {
        vec![match self {
            Self::Calls => b"h2".to_vec(),
            Self::Pages => b"baton-kv".to_vec(),
            Self::Web => b"http/1.1".to_vec(),
        }]
    }
}

impl Identity {
    fn new(cert: (&Path, &[u8]), key: (&Path, &[u8])) -> Result<Self, ClusterError> {
        let chain = certificates(cert.0, cert.1)?;
        let wrong = |path: &Path, detail: String| ClusterError::Tls {
            what: path.display().to_string(),
            detail,
        };
        let private = PrivateKeyDer::from_pem_slice(key.1)
            .map_err(|_| wrong(key.0, "holds no PEM private key".to_owned()))?;
        let identity = Self {
            chain,
            key: private,
        };
        // Tells at once whether the two belong together.
        let provider = provider();
        rustls::sign::CertifiedKey::from_der(
            identity.chain.clone(),
            identity.key.clone_key(),
            &provider,
        )
        .map_err(|error| {
            let detail = format!("does not fit {}: {error}", cert.0.display());
            wrong(key.0, detail)
        })?;
        Ok(identity)
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ClusterError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let wrong = |detail: String| ClusterError::Tls {
        what: path.display().to_string(),
        detail,
    };
    match read {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(wrong("holds no PEM certificate".to_owned())),
        Err(error) => Err(wrong(format!("is not PEM: {error}"))),
    }
}

fn roots(path: &Path, pem: &[u8]) -> Result<RootCertStore, ClusterError> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path, pem)? {
        roots.add(certificate).map_err(|error| ClusterError::Tls {
            what: path.display().to_string(),
            detail: format!("holds a certificate that is no CA: {error}"),
        })?;
    }
    Ok(roots)
}

fn verifier(roots: RootCertStore, strangers: Strangers) -> Result<Verifier, ClusterError> {
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    let builder = match strangers {
        Strangers::Admitted => builder.allow_unauthenticated(),
        Strangers::Refused => builder,
    };
    builder.build().map_err(unusable)
}

fn unusable(error: impl fmt::Display) -> ClusterError {
    ClusterError::Tls {
        what: "certificates".to_owned(),
        detail: error.to_string(),
    }
}

fn client_configs(
    peers: &RootCertStore,
    identity: Option<&Identity>,
) -> Result<[Arc<ClientConfig>; 2], ClusterError> {
    let config = |plane: Plane| {
        let builder = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_root_certificates(peers.clone());
        let mut config = match identity {
            Some(own) => builder
                .with_client_auth_cert(own.chain.clone(), own.key.clone_key())
                .map_err(unusable)?,
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = plane.protocols();
        // A resumed session would still show the certificate of its first handshake.
        config.resumption = Resumption::disabled();
        Ok::<_, ClusterError>(Arc::new(config))
    };
    Ok([config(Plane::Calls)?, config(Plane::Pages)?])
}

fn server_configs(
    identity: &Identity,
    peers: Option<&RootCertStore>,
    clients: Option<&RootCertStore>,
) -> Result<[Arc<ServerConfig>; 4], ClusterError> {
    let config = |plane: Plane, cas: &[Option<&RootCertStore>], strangers: Strangers| {
        let mut trusted = RootCertStore::empty();
        for ca in cas.iter().flatten() {
            trusted.extend(ca.roots.iter().cloned());
        }
        let auth = if trusted.is_empty() {
            WebPkiClientVerifier::no_client_auth()
        } else {
            verifier(trusted, strangers)?
        };
        let mut config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(unusable)?
            .with_client_cert_verifier(auth)
            .with_single_cert(identity.chain.clone(), identity.key.clone_key())
            .map_err(unusable)?;
        config.alpn_protocols = plane.protocols();
        config.send_tls13_tickets = 0;
        Ok::<_, ClusterError>(Arc::new(config))
    };
    Ok([
        config(Plane::Calls, &[peers, clients], Strangers::Admitted)?,
        config(Plane::Calls, &[peers], Strangers::Refused)?,
        config(Plane::Pages, &[peers], Strangers::Refused)?,
        config(Plane::Web, &[peers, clients], Strangers::Admitted)?,
    ])
}
