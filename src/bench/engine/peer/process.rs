//! One peer process: a line of JSON to it, a line of JSON back, each wait bounded. It ends when it is
//! dropped, or by itself when its standard input ends.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::bench::engine::rounds::Contender;
use crate::bench::engine::work::{STEPS, Work};
use crate::exit::Failure;

/// Longest time until a model is loaded.
const STARTING: Duration = Duration::from_mins(10);
/// Longest time of one piece of work.
const WORKING: Duration = Duration::from_mins(10);
/// Longest line of an answer.
const MAX_LINE: u64 = 64 << 10;

/// A running peer.
#[derive(Debug)]
pub(in crate::bench::engine) struct PeerProcess {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
    /// Name and version, as it calls itself.
    name: String,
}

impl PeerProcess {
    /// Name and version, as it calls itself.
    pub(in crate::bench::engine) fn name(&self) -> &str {
        &self.name
    }

    /// Starts `script` and waits until it is ready.
    pub(super) fn start(
        python: &Path,
        script: &str,
        arguments: &[&OsStr],
    ) -> Result<Self, Failure> {
        let mut process = Self::spawn(python, script, arguments)?;
        let ready = process.answer(STARTING)?;
        let name = ready["ready"].as_str().map(str::to_owned);
        process.name = name.ok_or_else(|| process.unexpected(&ready.to_string()))?;
        Ok(process)
    }

    /// Runs `script` to its one answer.
    pub(super) fn run(
        python: &Path,
        script: &str,
        arguments: &[&OsStr],
        limit: Duration,
    ) -> Result<(), Failure> {
        Self::spawn(python, script, arguments)?
            .answer(limit)
            .map(|_| ())
    }

    fn spawn(python: &Path, script: &str, arguments: &[&OsStr]) -> Result<Self, Failure> {
        let mut child = Command::new(python)
            .args(["-c", script])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| Failure::failed(format!("{}: {error}", python.display())))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::failed("the peer has no pipes"));
        };
        let (sender, answers) = mpsc::sync_channel(1);
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            loop {
                let mut line = String::new();
                // Whatever ends reading, broken text included, ends the answers.
                let read = output.by_ref().take(MAX_LINE).read_line(&mut line);
                if read.unwrap_or(0) == 0 || sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self {
            child,
            input,
            answers,
            name: "the peer".to_owned(),
        })
    }

    fn answer(&mut self, limit: Duration) -> Result<Value, Failure> {
        let line = self.answers.recv_timeout(limit).map_err(|error| {
            Failure::failed(match error {
                RecvTimeoutError::Timeout => {
                    format!("{} has not answered for {} s", self.name, limit.as_secs())
                }
                RecvTimeoutError::Disconnected => {
                    format!("{} has ended without an answer", self.name)
                }
            })
        })?;
        let answer: Value = serde_json::from_str(&line).map_err(|_| self.unexpected(&line))?;
        match answer["error"].as_str() {
            Some(error) => Err(Failure::failed(format!("{}: {error}", self.name))),
            None => Ok(answer),
        }
    }

    fn unexpected(&self, answer: &str) -> Failure {
        let start: String = answer.trim().chars().take(200).collect();
        Failure::failed(format!("{} answered {start:?}", self.name))
    }
}

impl Contender for PeerProcess {
    fn tokens_per_second(&mut self, work: Work) -> Result<f64, Failure> {
        let command = match work {
            Work::Prefill { tokens } => json!({ "prefill": { "tokens": tokens } }),
            Work::Decode { streams, context } => {
                json!({ "decode": { "streams": streams, "context": context, "steps": STEPS } })
            }
        };
        writeln!(self.input, "{command}")
            .and_then(|()| self.input.flush())
            .map_err(|error| Failure::failed(format!("{}: {error}", self.name)))?;
        let answer = self.answer(WORKING)?;
        answer["tok_s"]
            .as_f64()
            .filter(|rate| *rate > 0.0)
            .ok_or_else(|| self.unexpected(&answer.to_string()))
    }
}

impl Drop for PeerProcess {
    fn drop(&mut self) {
        // It holds nothing that needs an orderly end; one that has ended already is only waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
