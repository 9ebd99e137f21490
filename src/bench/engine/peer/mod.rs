//! Another engine that does the same work, as a child process: which there are, and the forms of a model
//! that each is measured with.
//!
//! A peer is a Python script that is part of this program, run by a Python that has the peer's library
//! ([`process`]). What its speed is compared with is not known here.

mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::args::PeerArg;
use crate::exit::Failure;

pub(super) use process::PeerProcess;

/// Longest time to convert a model.
const CONVERTING: Duration = Duration::from_mins(30);

/// A peer that is to be measured.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    kind: &'static Kind,
    python: PathBuf,
    cache: PathBuf,
}

/// What is particular to a peer.
#[derive(Debug)]
struct Kind {
    script: &'static str,
    /// Folder of its virtual environment below the cache.
    environment: &'static str,
    /// What makes that.
    target: &'static str,
    /// Forms that it is measured with.
    formats: &'static [Format],
    /// Ending of the names of converted models.
    ending: &'static str,
}

/// A form of a model.
#[derive(Debug)]
enum Format {
    /// The file itself.
    AsShipped,
    /// Converted to this type first.
    Converted(&'static str),
}

const LLAMA_CPP: Kind = Kind {
    script: include_str!("../../../../scripts/bench-llama-cpp.py"),
    environment: "peers",
    target: "bench-peers",
    formats: &[
        Format::AsShipped,
        Format::Converted("Q4_0"),
        Format::Converted("BF16"),
    ],
    ending: "gguf",
};

const VLLM: Kind = Kind {
    script: include_str!("../../../../scripts/bench-vllm.py"),
    environment: "peers-vllm",
    target: "bench-vllm",
    formats: &[Format::Converted("BF16")],
    ending: "hf",
};

/// Name of the form that is the file itself.
pub(super) const AS_SHIPPED: &str = "as shipped";

/// A started peer with the form it runs.
pub(super) struct Started {
    /// [`AS_SHIPPED`], or a type.
    pub(super) format: &'static str,
    pub(super) process: PeerProcess,
}

impl Peer {
    /// The peer of this name; `python` overrides where its Python is.
    ///
    /// # Errors
    /// There is none; the message says what makes one.
    pub(super) fn find(peer: PeerArg, python: Option<&Path>) -> Result<Self, Failure> {
        let kind = match peer {
            PeerArg::LlamaCpp => &LLAMA_CPP,
            PeerArg::Vllm => &VLLM,
        };
        let cache = cache_folder();
        let python = python.map_or_else(
            || cache.join(kind.environment).join("bin/python"),
            Path::to_path_buf,
        );
        if !python.is_file() {
            return Err(Failure::usage(format!(
                "--peer needs {}, which is not there: `make {}` makes it, or --peer-python names another",
                python.display(),
                kind.target,
            )));
        }
        Ok(Self {
            kind,
            python,
            cache,
        })
    }

    /// Number of processes that will run beside each other.
    pub(super) fn formats(&self) -> usize {
        self.kind.formats.len()
    }

    /// Starts a process for each form of `model`, converting what is not there yet. `identity` tells models
    /// of one name apart. `tell` learns what takes long, and which form cannot be had.
    ///
    /// # Errors
    /// The file as shipped cannot be run, or nothing can.
    pub(super) fn start(
        &self,
        model: &Path,
        identity: &str,
        threads: usize,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Vec<Started>, Failure> {
        let mut started = Vec::new();
        for format in self.kind.formats {
            let (format, path) = match format {
                Format::AsShipped => (AS_SHIPPED, model.to_path_buf()),
                Format::Converted(kind) => match self.convert(model, identity, kind, tell) {
                    Ok(path) => (*kind, path),
                    Err(failure) => {
                        tell(&format!(
                            "left out: peer with {kind}: {}",
                            failure.message()
                        ));
                        continue;
                    }
                },
            };
            let threads = threads.to_string();
            let arguments = [
                "serve".as_ref(),
                path.as_os_str(),
                "--threads".as_ref(),
                threads.as_ref(),
            ];
            let process = PeerProcess::start(&self.python, self.kind.script, &arguments)?;
            started.push(Started { format, process });
        }
        if started.is_empty() {
            return Err(Failure::failed(
                "no form of the model can be run by the peer",
            ));
        }
        Ok(started)
    }

    /// The model as `kind`, made once and kept in the cache.
    fn convert(
        &self,
        model: &Path,
        identity: &str,
        kind: &str,
        tell: &mut dyn FnMut(&str),
    ) -> Result<PathBuf, Failure> {
        let stem = model
            .file_stem()
            .unwrap_or(model.as_os_str())
            .to_string_lossy();
        let folder = self.cache.join("peer-models");
        let out = folder.join(format!("{stem}.{identity}.{kind}.{}", self.kind.ending));
        if out.exists() {
            return Ok(out);
        }
        tell(&format!("converting the model to {kind} for the peer"));
        std::fs::create_dir_all(&folder)
            .map_err(|error| Failure::failed(format!("{}: {error}", folder.display())))?;
        let arguments = [
            "convert".as_ref(),
            model.as_os_str(),
            kind.as_ref(),
            out.as_os_str(),
        ];
        PeerProcess::run(&self.python, self.kind.script, &arguments, CONVERTING)?;
        Ok(out)
    }
}

/// Where `make` keeps what it fetches and makes.
fn cache_folder() -> PathBuf {
    let of = |name: &str| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    of("BATON_CACHE").unwrap_or_else(|| {
        of("XDG_CACHE_HOME")
            .or_else(|| of("HOME").map(|home| home.join(".cache")))
            .unwrap_or_default()
            .join("baton")
    })
}
