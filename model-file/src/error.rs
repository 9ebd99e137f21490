//! The crate's one error type: every refusal names the value, the place and the limit.
//!
//! It must not know who reads a model or how an error reaches a client.

use std::fmt::{Display, Write as _};
use std::path::PathBuf;

/// Why a model could not be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// Where the inner error happened.
    #[error("{}: {error}", path.display())]
    At {
        /// File or directory.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<FileError>,
    },
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// A pipe, device or directory where a file should be.
    #[error("is not a regular file")]
    NotRegularFile,
    /// Zero bytes.
    #[error("the file is empty")]
    Empty,
    /// Neither a GGUF file nor a Hugging Face directory.
    #[error("is not a model: {0}")]
    NotAModel(String),
    /// Something declared does not fit into what is left of the file.
    #[error(
        "truncated: {what} at offset {offset} needs {needed} bytes, but the file ends at {length}"
    )]
    Truncated {
        /// What was being read.
        what: String,
        /// Where it starts.
        offset: u64,
        /// Its size.
        needed: u64,
        /// Length of the file.
        length: u64,
    },
    /// The file is not what it was when it was opened.
    #[error("the file changed after it was opened: {0}")]
    Changed(String),
    /// A GGUF version that is not read.
    #[error("GGUF version {0} is not supported (2 and 3 are)")]
    UnsupportedVersion(u32),
    /// A big-endian GGUF file.
    #[error("big-endian GGUF files are not supported")]
    BigEndian,
    /// A declared size is above a limit of this reader.
    #[error("{what} at offset {offset} is {value}, above the limit of {limit}")]
    Limit {
        /// What was declared.
        what: String,
        /// Where.
        offset: u64,
        /// Declared value.
        value: u64,
        /// Largest accepted value.
        limit: u64,
    },
    /// Bytes that do not follow the format.
    #[error("{what} at offset {offset}: {problem}")]
    Malformed {
        /// What was being read.
        what: String,
        /// Where.
        offset: u64,
        /// What is wrong.
        problem: String,
    },
    /// A tensor whose storage type is not read.
    #[error("tensor {name:?} has type {kind}, which is not supported")]
    UnsupportedTensorType {
        /// The tensor.
        name: String,
        /// Its type, as the file states it.
        kind: String,
    },
    /// A tensor of the model's own layers that this implementation would ignore.
    #[error("tensor {name:?} changes the result of the model and is not supported here")]
    UnsupportedTensor {
        /// The tensor.
        name: String,
    },
    /// Two tensors share bytes.
    #[error("tensors {first:?} and {second:?} overlap at offset {offset}")]
    Overlap {
        /// The one that starts first.
        first: String,
        /// The one that starts inside it.
        second: String,
        /// Where the second starts.
        offset: u64,
    },
    /// Required metadata is absent.
    #[error("{key:?} is missing")]
    MissingKey {
        /// Key of GGUF metadata or of a JSON file.
        key: String,
    },
    /// Metadata has another type than it must.
    #[error("{key:?} must be {expected}")]
    WrongType {
        /// Key of GGUF metadata or of a JSON file.
        key: String,
        /// What was expected.
        expected: &'static str,
    },
    /// Metadata lies outside its range.
    #[error("{key:?} is {value}, outside {range}")]
    OutOfRange {
        /// Key of GGUF metadata or of a JSON file.
        key: String,
        /// Its value.
        value: String,
        /// What is accepted.
        range: String,
    },
    /// The model asks for something that is not implemented.
    #[error("{key:?} is {value}, which is not supported")]
    Unsupported {
        /// Key of GGUF metadata or of a JSON file.
        key: String,
        /// Its value.
        value: String,
    },
    /// A JSON file that does not parse.
    #[error("invalid JSON: {0}")]
    Json(String),
    /// A file name that leads out of the model's directory.
    #[error("{name:?} leads out of the model directory")]
    PathOutside {
        /// The name, as the index states it.
        name: String,
    },
    /// All that the model lacks, at once.
    #[error("{}", incomplete(missing, misshapen))]
    Incomplete {
        /// Names of missing tensors, as the file format spells them.
        missing: Vec<String>,
        /// Tensors of another shape than the configuration implies.
        misshapen: Vec<Misshapen>,
    },
    /// No tensor has this name.
    #[error("there is no tensor {0:?}")]
    NoSuchTensor(String),
}

/// A tensor whose shape contradicts the configuration (rows × columns).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misshapen {
    /// Name, as the file format spells it.
    pub name: String,
    /// Shape in the file.
    pub found: [usize; 2],
    /// Shape that the configuration implies.
    pub expected: [usize; 2],
}

impl FileError {
    /// The error itself, without the paths around it.
    pub fn reason(&self) -> &Self {
        match self {
            Self::At { error, .. } => error.reason(),
            other => other,
        }
    }

    pub(crate) fn at(self, path: impl Into<PathBuf>) -> Self {
        match self {
            // The innermost path is the one that helps.
            Self::At { .. } => self,
            error => Self::At {
                path: path.into(),
                error: Box::new(error),
            },
        }
    }

    pub(crate) fn missing(key: impl Into<String>) -> Self {
        Self::MissingKey { key: key.into() }
    }

    pub(crate) fn unsupported(key: impl Into<String>, value: impl Display) -> Self {
        Self::Unsupported {
            key: key.into(),
            value: format!("{value}"),
        }
    }

    pub(crate) fn out_of_range(
        key: impl Into<String>,
        value: impl Display,
        range: impl Into<String>,
    ) -> Self {
        Self::OutOfRange {
            key: key.into(),
            value: format!("{value}"),
            range: range.into(),
        }
    }
}

fn incomplete(missing: &[String], misshapen: &[Misshapen]) -> String {
    let mut text = String::from("the model is incomplete:");
    if !missing.is_empty() {
        let _ = write!(
            text,
            " {} missing: {}",
            tensors(missing.len()),
            missing.join(", ")
        );
    }
    if !misshapen.is_empty() {
        let separator = if missing.is_empty() { "" } else { ";" };
        let _ = write!(
            text,
            "{separator} {} of wrong shape: ",
            tensors(misshapen.len())
        );
        for (at, tensor) in misshapen.iter().enumerate() {
            let comma = if at == 0 { "" } else { ", " };
            let [rows, columns] = tensor.found;
            let [want_rows, want_columns] = tensor.expected;
            let _ = write!(
                text,
                "{comma}{} is {rows}x{columns}, must be {want_rows}x{want_columns}",
                tensor.name
            );
        }
    }
    text
}

fn tensors(count: usize) -> String {
    if count == 1 {
        "1 tensor".into()
    } else {
        format!("{count} tensors")
    }
}
