//! Configuration files, lists of workers and model files that are wrong or endless: blamed by name, read no
//! further than a limit.

use std::path::Path;

use baton_model_file::fixtures::GgufValue;

use crate::models::{tiny, tiny_model};
use crate::process::assert_refused;

#[test]
fn configuration_files_are_bounded_and_blamed_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("writable");
        path.display().to_string()
    };
    let pipe = pipe(folder.path());
    let large = format!("# {}", "x".repeat(1 << 20));
    let here = folder.path().display().to_string();
    let files: &[(String, &[&str])] = &[
        (
            write("syntax.toml", "[status\nconnect = 1"),
            &["syntax.toml", "line 1"],
        ),
        (
            write("key.toml", "[status]\nconect = \"x\""),
            &["key.toml", "[status]", "conect"],
        ),
        (
            write("type.toml", "[status]\nconnect = 1"),
            &["type.toml", "[status]", "string"],
        ),
        (
            write("table.toml", "status = 3"),
            &["table.toml", "[status]", "not a table"],
        ),
        (
            write("large.toml", &large),
            &["large.toml", "1048578 bytes", "at most 1048576"],
        ),
        (write("bytes.toml", "\u{0}"), &["bytes.toml"]),
        ("/no/such/file".into(), &["/no/such/file"]),
        (
            "/dev/zero".into(),
            &["/dev/zero", "a device", "regular file"],
        ),
        (pipe.clone(), &["pipe", "a pipe", "regular file"]),
        (here.clone(), &["a directory", "regular file"]),
    ];
    for (file, parts) in files {
        assert_refused(&["status", "--config", file], 2, parts);
    }
    let negative = write("negative.toml", "[decode]\npages = -1");
    let model = tiny_model(folder.path()).display().to_string();
    let decode = ["decode", "--model", &model, "--config", &negative];
    assert_refused(&decode, 2, &["negative.toml", "[decode]", "-1"]);

    let lists: &[(String, &[&str])] = &[
        (
            write("list.toml", "workers = [\"here\"]"),
            &["list.toml", "here"],
        ),
        (write("none.toml", "workers = []"), &["none.toml"]),
        (
            write("other.toml", "wrokers = []"),
            &["other.toml", "wrokers"],
        ),
        (large_list(folder.path()), &["many.toml", "1024"]),
        (
            write("large.toml", &large),
            &["large.toml", "at most 1048576"],
        ),
        ("/dev/zero".into(), &["/dev/zero", "a device"]),
        (pipe, &["pipe", "a pipe"]),
        (here, &["a directory"]),
        ("/no/such/file".into(), &["/no/such/file"]),
    ];
    for (file, parts) in lists {
        let membership = format!("static:{file}");
        let router = ["router", "--model", &model, "--listen", "127.0.0.1:0"];
        let arguments = [&router[..], &["--membership", &membership]].concat();
        assert_refused(&arguments, 2, &[&["--membership"], *parts].concat());
    }
}

fn pipe(folder: &Path) -> String {
    let path = folder.join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::RUSR).expect("a pipe");
    path.display().to_string()
}

fn large_list(folder: &Path) -> String {
    let workers: Vec<_> = (0..1025)
        .map(|port| format!("\"127.0.0.1:{}\"", port + 1))
        .collect();
    let path = folder.join("many.toml");
    std::fs::write(&path, format!("workers = [{}]", workers.join(","))).expect("writable");
    path.display().to_string()
}

#[test]
fn models_that_are_none_are_refused_by_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let garbage = folder.path().join("garbage.gguf");
    std::fs::write(&garbage, b"<html>not a model</html>").expect("writable");
    let garbage = garbage.display().to_string();
    let pipe = pipe(folder.path());
    for (model, parts) in [
        (garbage.as_str(), ["garbage.gguf", ""]),
        ("/dev/zero", ["/dev/zero", ""]),
        (&pipe, ["pipe", ""]),
    ] {
        for role in ["router", "prefill", "decode", "up"] {
            let arguments = [role, "--listen", "127.0.0.1:0", "--model", model];
            assert_refused(&arguments, 1, &parts);
        }
    }
    let missing = "/no/such/model.gguf";
    assert_refused(&["up", "--model", missing], 2, &[missing]);
    assert_refused(&["decode", "--model", missing], 1, &[missing]);
}

#[test]
fn tok_08_a_file_without_a_known_pre_tokenizer_starts_nobody() {
    const KEY: &str = "tokenizer.ggml.pre";
    let folder = tempfile::tempdir().expect("a folder");
    let mut without = tiny().gguf();
    without.unset(KEY);
    let mut unknown = tiny().gguf();
    unknown.set(KEY, GgufValue::Str("no-such-pre".into()));
    for (name, file, value) in [
        ("without.gguf", without, ""),
        ("unknown.gguf", unknown, "no-such-pre"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, file.bytes()).expect("writable");
        let model = path.display().to_string();
        for role in ["router", "prefill", "decode", "up"] {
            let arguments = [role, "--listen", "127.0.0.1:0", "--model", &model];
            assert_refused(&arguments, 1, &[KEY, value]);
        }
    }
}
