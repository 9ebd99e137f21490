//! `baton top` on a real terminal, and without one.

use std::io::{Read as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::models::tiny_model;
use crate::process::{PATIENCE, assert_refused};
use crate::service::Roles;

/// Enters and leaves the other screen of a terminal.
const OTHER_SCREEN: &str = "\u{1b}[?1049h";
const OWN_SCREEN: &str = "\u{1b}[?1049l";

#[test]
fn without_a_terminal_it_names_the_command_to_use() {
    assert_refused(&["top"], 2, &["needs a terminal", "`baton status`"]);
}

#[test]
fn on_a_terminal_it_shows_the_service_and_gives_the_terminal_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let roles = Roles::new(&tiny_model(folder.path()));
    let router = roles.router(&[]);
    let program = env!("CARGO_BIN_EXE_baton");
    let top = format!(
        "stty cols 120 rows 40 && exec {program} top --connect {}",
        router.address()
    );
    let mut child = Command::new("script")
        .args([
            "--quiet",
            "--return",
            "--flush",
            "--command",
            &top,
            "/dev/null",
        ])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("script(1) of util-linux gives a command a terminal");
    let mut out = child.stdout.take().expect("piped");
    let (sender, read) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = out.read(&mut bytes) {
            let _ = sender.send(bytes[..count].to_vec());
        }
    });
    let mut seen = Vec::new();
    let mut keys = child.stdin.take().expect("piped");
    let begin = Instant::now();
    while !String::from_utf8_lossy(&seen).contains("no request yet") {
        assert!(
            begin.elapsed() < PATIENCE,
            "{:?}",
            String::from_utf8_lossy(&seen)
        );
        if let Ok(more) = read.recv_timeout(Duration::from_millis(100)) {
            seen.extend(more);
        }
    }
    keys.write_all(b"q").expect("it reads keys");
    keys.flush().expect("it reads keys");
    // The channel ends with the terminal.
    while let Ok(more) = read.recv_timeout(PATIENCE) {
        seen.extend(more);
    }
    let status = child.wait().expect("it has ended");
    let text = String::from_utf8_lossy(&seen);
    assert!(status.success(), "{status}: {text:?}");
    for part in [OTHER_SCREEN, "no worker yet", router.address()] {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
    let left = text.rfind(OWN_SCREEN).expect("it leaves the other screen");
    assert!(
        left > text.rfind(OTHER_SCREEN).expect("it was there"),
        "{text:?}"
    );
}
