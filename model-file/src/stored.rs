//! Where tensors lie: the open files of a model and positional reads from them.
//!
//! Files are read, never mapped: a file that shrinks or changes while a process uses it gives a
//! typed error instead of a fatal signal. It must not know file formats.

use std::fs::File;
use std::io::{ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::{FileError, Tensor, TensorInfo};

/// Bytes per read when a whole file is hashed.
const HASH_BYTES: usize = 1 << 20;

/// Bytes per place in a tensor's sample.
const SAMPLE_BYTES: usize = 512;

/// A tensor's place. `start + info.bytes()` lies inside the source.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Name as the file spells it.
    pub(crate) native: String,
    pub(crate) info: TensorInfo,
    /// Index of the [`Source`].
    pub(crate) source: usize,
    /// Absolute offset in the source.
    pub(crate) start: u64,
}

/// One open file and what it was when it was opened.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) path: PathBuf,
    file: File,
    stamp: Stamp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    length: u64,
    modified: (i64, i64),
}

impl Source {
    /// Opens a regular file for reading.
    pub(crate) fn open(path: &Path) -> Result<Self, FileError> {
        Self::open_inner(path).map_err(|error| error.at(path))
    }

    fn open_inner(path: &Path) -> Result<Self, FileError> {
        // Before opening: to open a pipe would wait for its writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(FileError::NotRegularFile);
        }
        let file = File::open(path)?;
        if !file.metadata()?.is_file() {
            return Err(FileError::NotRegularFile);
        }
        let stamp = stamp(&file)?;
        Ok(Self {
            path: path.into(),
            file,
            stamp,
        })
    }

    pub(crate) fn length(&self) -> u64 {
        self.stamp.length
    }

    /// Name of the file within its directory.
    pub(crate) fn name(&self) -> &str {
        self.path
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default()
    }

    /// A reader from the start of the file.
    pub(crate) fn reader(&self) -> Result<&File, FileError> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(0))
            .map_err(|error| FileError::Io(error).at(&self.path))?;
        Ok(file)
    }

    /// The whole file, if it is no longer than `limit`.
    pub(crate) fn read_all(&self, limit: u64) -> Result<Vec<u8>, FileError> {
        let value = self.length();
        if value > limit {
            let what = "file size".into();
            return Err(FileError::Limit {
                what,
                offset: 0,
                value,
                limit,
            }
            .at(&self.path));
        }
        self.read_at(0, value as usize)
    }

    /// `count` bytes from `start`; the caller has checked that they lie inside the file.
    pub(crate) fn read_at(&self, start: u64, count: usize) -> Result<Vec<u8>, FileError> {
        self.check_unchanged()?;
        let mut bytes = vec![0; count];
        self.file
            .read_exact_at(&mut bytes, start)
            .map_err(|error| self.failed(error))?;
        self.check_unchanged()?;
        Ok(bytes)
    }

    pub(crate) fn read_tensor(&self, stored: &Stored) -> Result<Tensor, FileError> {
        let info = &stored.info;
        let data = self.read_at(stored.start, info.bytes())?;
        let TensorInfo {
            name,
            kind,
            rows,
            columns,
        } = info.clone();
        Ok(Tensor {
            name,
            kind,
            rows,
            columns,
            data,
        })
    }

    /// Feeds the whole file to `hasher`.
    pub(crate) fn hash(&self, hasher: &mut blake3::Hasher) -> Result<(), FileError> {
        self.check_unchanged()?;
        let mut buffer = vec![0; HASH_BYTES];
        let mut at = 0;
        while at < self.length() {
            let count = (self.length() - at).min(HASH_BYTES as u64) as usize;
            let piece = &mut buffer[..count];
            self.file
                .read_exact_at(piece, at)
                .map_err(|error| self.failed(error))?;
            hasher.update(piece);
            at += count as u64;
        }
        self.check_unchanged()
    }

    /// Feeds some bytes of a tensor's beginning, middle and end to `hasher`, or all of a small one.
    pub(crate) fn hash_sample(
        &self,
        stored: &Stored,
        hasher: &mut blake3::Hasher,
    ) -> Result<(), FileError> {
        let bytes = stored.info.bytes();
        let rest = bytes.saturating_sub(SAMPLE_BYTES);
        let places = if bytes > 3 * SAMPLE_BYTES {
            vec![
                (0, SAMPLE_BYTES),
                (rest / 2, SAMPLE_BYTES),
                (rest, SAMPLE_BYTES),
            ]
        } else {
            vec![(0, bytes)]
        };
        let mut sample = [0; 3 * SAMPLE_BYTES];
        for (from, count) in places {
            let piece = &mut sample[..count];
            self.file
                .read_exact_at(piece, stored.start + from as u64)
                .map_err(|error| self.failed(error))?;
            hasher.update(piece);
        }
        Ok(())
    }

    fn check_unchanged(&self) -> Result<(), FileError> {
        let now = stamp(&self.file).map_err(|error| error.at(&self.path))?;
        if now == self.stamp {
            return Ok(());
        }
        let (was, is) = (self.stamp.length, now.length);
        let text = if was == is {
            "it was written to".into()
        } else {
            format!("it had {was} bytes and has {is}")
        };
        Err(FileError::Changed(text).at(&self.path))
    }

    fn failed(&self, error: std::io::Error) -> FileError {
        let error = match error.kind() {
            ErrorKind::UnexpectedEof => FileError::Changed("it became shorter".into()),
            _ => FileError::Io(error),
        };
        error.at(&self.path)
    }
}

/// Refuses tensors of one source that share bytes.
pub(crate) fn check_overlaps(tensors: &[Stored]) -> Result<(), FileError> {
    let mut order: Vec<&Stored> = tensors.iter().collect();
    order.sort_by_key(|stored| stored.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].info.bytes() as u64 > pair[1].start {
            return Err(FileError::Overlap {
                first: pair[0].native.clone(),
                second: pair[1].native.clone(),
                offset: pair[1].start,
            });
        }
    }
    Ok(())
}

fn stamp(file: &File) -> Result<Stamp, FileError> {
    let metadata = file.metadata()?;
    let modified = (metadata.mtime(), metadata.mtime_nsec());
    Ok(Stamp {
        length: metadata.len(),
        modified,
    })
}
