//! The files that TLS is made of, and what is in them now. It must not know certificates.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::ClusterError;

/// Largest file.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// PEM files. What is absent is not used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// This process's certificate, with those between it and its CA behind it.
    pub cert: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// CAs of the other processes.
    pub ca: Option<PathBuf>,
    /// CAs of clients.
    pub client_ca: Option<PathBuf>,
    /// Name that certificates of dialled peers must have, instead of the host of their address.
    pub name: Option<String>,
}

/// What the files say, in the order cert, key, ca, client CA.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Contents(pub(super) [Option<Vec<u8>>; 4]);

impl TlsFiles {
    /// All files, in the order of [`Contents`].
    pub(super) fn paths(&self) -> [Option<&Path>; 4] {
        [&self.cert, &self.key, &self.ca, &self.client_ca].map(|path| path.as_deref())
    }

    /// Reads them all.
    pub(super) fn read(&self) -> Result<Contents, ClusterError> {
        let mut contents = [const { None }; 4];
        for (content, path) in contents.iter_mut().zip(self.paths()) {
            *content = path.map(read).transpose()?;
        }
        Ok(Contents(contents))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ClusterError> {
    let wrong = |detail: String| ClusterError::Tls {
        what: path.display().to_string(),
        detail,
    };
    let failed = |error: std::io::Error| wrong(error.to_string());
    // Opening a pipe would wait for its writer.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(wrong("is not a regular file".to_owned()));
    }
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(format!("is larger than {MAX_FILE_BYTES} bytes")));
    }
    Ok(bytes)
}
