//! Certificates of the tests: an authority, and what it signs.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// Who signs.
pub(crate) struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    /// Its PEM certificate.
    pub(crate) ca: String,
}

/// Paths of a signed certificate and its key.
#[derive(Clone)]
pub(crate) struct Signed {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    /// A new one, whose files lie in `folder` under its name.
    pub(crate) fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("a CA");
        let ca = folder.join(format!("{name}.pem"));
        std::fs::write(&ca, issuer.pem()).expect("writable");
        Self {
            issuer,
            folder: folder.to_owned(),
            ca: ca.display().to_string(),
        }
    }

    /// Signs a certificate for this machine's loopback, in files of this name (perhaps over former ones).
    pub(crate) fn sign(&self, name: &str) -> Signed {
        self.sign_for(name, &["localhost", "127.0.0.1"])
    }

    /// Signs a certificate for these hosts.
    pub(crate) fn sign_for(&self, name: &str, hosts: &[&str]) -> Signed {
        let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let signed = params.signed_by(&key, &self.issuer).expect("signed");
        let path = |end: &str| self.folder.join(format!("{name}.{end}"));
        std::fs::write(path("crt"), signed.pem()).expect("writable");
        std::fs::write(path("key"), key.serialize_pem()).expect("writable");
        Signed {
            cert: path("crt").display().to_string(),
            key: path("key").display().to_string(),
        }
    }
}

impl Signed {
    /// The three flags of a process that shows this certificate and trusts that CA.
    pub(crate) fn flags<'a>(&'a self, ca: &'a str) -> [&'a str; 6] {
        [
            "--tls-cert",
            &self.cert,
            "--tls-key",
            &self.key,
            "--tls-ca",
            ca,
        ]
    }
}
