//! One supervised child: started, waited for, restarted, ended.

use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::{oneshot, watch};

use crate::exit::{Failure, USAGE};

/// Longest time to become ready: a large model loads from a slow disk.
const START_LIMIT: Duration = Duration::from_mins(10);
/// Time to end after SIGTERM: more than any role gives its running requests and itself.
const STOP_LIMIT: Duration = Duration::from_secs(40);
/// First and longest wait before a restart.
const RESTART_WAIT: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));
/// A child that ran this long has recovered: its next restart is quick again.
const RECOVERED: Duration = Duration::from_secs(30);

/// What a child's ready line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ready {
    /// `host:port` of its gRPC services.
    pub(crate) address: String,
    /// `host:port` of its HTTP, if it serves that.
    pub(crate) http: Option<String>,
    /// `host:port` of its metrics, if it shows them.
    pub(crate) metrics: Option<String>,
}

/// How to start one child, again and again.
#[derive(Debug, Clone)]
pub(crate) struct Child {
    /// Name for messages, e.g. `decode-0`.
    pub(crate) name: String,
    /// Command-line arguments of this same binary.
    pub(crate) arguments: Vec<String>,
    /// Whether a restart listens on the first start's address, so that peers find the child again.
    pub(crate) keeps_address: bool,
}

impl Child {
    /// Runs the child until `stopping`. `told` hears of the first readiness; a child that ends before
    /// it was ever ready is a failure, a later end is told and mended.
    pub(crate) async fn supervise(
        mut self,
        told: oneshot::Sender<Ready>,
        mut stopping: watch::Receiver<bool>,
    ) -> Result<(), Failure> {
        let mut told = Some(told);
        let mut wait = RESTART_WAIT.0;
        loop {
            let started = Instant::now();
            let mut process = self.spawn()?;
            // Held open for the child's lifetime: its end is the child's signal to end.
            let stdin = process.stdin.take();
            let lines = process.stdout.take().map(|out| BufReader::new(out).lines());
            let ready = async {
                let mut lines = lines?;
                let line = lines.next_line().await.ok()??;
                let ready = parse_ready(&line);
                // Later output would block the child if nobody read it.
                tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
                ready
            };
            let ready = tokio::select! {
                ready = tokio::time::timeout(START_LIMIT, ready) => ready.ok().flatten(),
                () = stopped(&mut stopping) => return self.end(process, stdin).await,
            };
            if ready.is_none() && started.elapsed() >= START_LIMIT {
                let message = format!("{} was not ready within {START_LIMIT:?}", self.name);
                self.end(process, stdin).await?;
                if told.is_some() {
                    return Err(Failure::failed(message));
                }
                tracing::warn!("{message}; starting it again");
                continue;
            }
            if let Some(ready) = ready {
                if let Some(metrics) = &ready.metrics {
                    self.listen_on("--metrics-listen", metrics);
                }
                if self.keeps_address {
                    self.listen_on("--listen", &ready.address);
                    if let Some(http) = &ready.http {
                        self.listen_on("--http-listen", http);
                    }
                }
                if let Some(told) = told.take() {
                    let _ = told.send(ready);
                }
            }
            let status = tokio::select! {
                status = process.wait() => status,
                () = stopped(&mut stopping) => return self.end(process, stdin).await,
            };
            let how = status
                .as_ref()
                .map_or_else(ToString::to_string, |status| describe(*status));
            if told.is_some() {
                let message = format!("{} did not start: {how}", self.name);
                // The child has told which flag is wrong; it was this command's.
                let usage = status.is_ok_and(|status| status.code() == Some(USAGE));
                return Err(if usage {
                    Failure::usage(message)
                } else {
                    Failure::failed(message)
                });
            }
            if started.elapsed() > RECOVERED {
                wait = RESTART_WAIT.0;
            }
            if status.is_ok_and(|status| status.success()) {
                tracing::info!("{} has drained; starting it again in {wait:?}", self.name);
            } else {
                tracing::warn!("{} ended: {how}; starting it again in {wait:?}", self.name);
            }
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopped(&mut stopping) => return Ok(()),
            }
            wait = (wait * 2).min(RESTART_WAIT.1);
        }
    }

    fn spawn(&self) -> Result<tokio::process::Child, Failure> {
        let cannot =
            |error: std::io::Error| Failure::failed(format!("cannot start {}: {error}", self.name));
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            // A terminal's Ctrl-C is for the supervisor, which ends its children in order.
            .process_group(0);
        // The supervisor has resolved the environment into flags; only the log filter goes on.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("BATON_") && name != "BATON_LOG" {
                command.env_remove(name);
            }
        }
        command.spawn().map_err(cannot)
    }

    fn listen_on(&mut self, flag: &str, address: &str) {
        if let Some(flag) = self.arguments.iter().position(|argument| argument == flag) {
            address.clone_into(&mut self.arguments[flag + 1]);
        }
    }

    async fn end(
        &self,
        mut process: tokio::process::Child,
        stdin: Option<tokio::process::ChildStdin>,
    ) -> Result<(), Failure> {
        let pid = process
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(rustix::process::Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself in between, which is what is wanted.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(STOP_LIMIT, process.wait())
            .await
            .is_err()
        {
            tracing::warn!(
                "{} did not end within {STOP_LIMIT:?} and is killed",
                self.name
            );
            let _ = process.kill().await;
        }
        drop(stdin);
        Ok(())
    }
}

async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // A supervisor that is gone stops its children too.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// `ready … grpc=ADDR http=ADDR metrics=ADDR …`
fn parse_ready(line: &str) -> Option<Ready> {
    let rest = line.strip_prefix("ready ")?;
    let part = |name: &str| {
        let value = rest.split(' ').find_map(|part| part.strip_prefix(name));
        value.map(str::to_owned)
    };
    Some(Ready {
        address: part("grpc=")?,
        http: part("http="),
        metrics: part("metrics="),
    })
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_lines_are_understood_and_others_are_not() {
        let ready = parse_ready("ready role=router grpc=127.0.0.1:7070");
        assert_eq!(
            ready,
            Some(Ready {
                address: "127.0.0.1:7070".into(),
                http: None,
                metrics: None,
            })
        );
        let all =
            "ready role=router grpc=127.0.0.1:7070 http=127.0.0.1:8000 metrics=127.0.0.1:9464";
        let all = parse_ready(all).expect("a ready line");
        assert_eq!(all.http.as_deref(), Some("127.0.0.1:8000"));
        assert_eq!(all.metrics.as_deref(), Some("127.0.0.1:9464"));
        assert_eq!(parse_ready("already grpc=x"), None);
        assert_eq!(parse_ready("ready role=router"), None);
    }
}
