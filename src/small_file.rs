//! Reading a configuration file whole: regular files only, and never more than a limit.
//!
//! It must not know what the file says.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Text of the regular file at `path`, at most `limit` bytes of UTF-8.
///
/// # Errors
/// What is wrong with the file, without its name. Devices and pipes are refused: they state no length,
/// and reading them may never end.
pub(crate) fn read(path: &Path, limit: u64) -> Result<String, String> {
    // Opening a pipe would wait for a writer, and the file that was looked at is the one that is read.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .map_err(|error| error.to_string())?;
    let metadata = file.metadata().map_err(|error| error.to_string())?;
    let kind = metadata.file_type();
    if !kind.is_file() {
        return Err(format!("is {}, expected a regular file", name(kind)));
    }
    let mut bytes = Vec::new();
    // One more than the limit tells a file that is too long, whatever its metadata says.
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| error.to_string())?;
    if bytes.len() as u64 > limit {
        let length = metadata.len().max(limit + 1);
        return Err(format!("has {length} bytes, at most {limit} are read"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let place = error.utf8_error().valid_up_to();
        format!("is not UTF-8 text from byte {place} on")
    })
}

fn name(kind: std::fs::FileType) -> &'static str {
    if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a pipe"
    } else if kind.is_char_device() || kind.is_block_device() {
        "a device"
    } else {
        "no file"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_up_to_the_limit() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "twelve bytes").expect("writable");
        assert_eq!(read(&path, 12).as_deref(), Ok("twelve bytes"));
        let refused = read(&path, 11).expect_err("too long");
        assert_eq!(refused, "has 12 bytes, at most 11 are read");
        std::fs::write(&path, b"ab\xff").expect("writable");
        assert_eq!(
            read(&path, 12).expect_err("not text"),
            "is not UTF-8 text from byte 2 on"
        );
    }

    #[test]
    fn what_never_ends_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).expect("a pipe");
        for (path, what) in [
            (Path::new("/dev/zero"), "a device"),
            (&pipe, "a pipe"),
            (folder.path(), "a directory"),
        ] {
            let refused = read(path, 10).expect_err(what);
            assert_eq!(refused, format!("is {what}, expected a regular file"));
        }
    }
}
