//! One supervised child: started, waited for, restarted, ended. Must not know which roles there are.

use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::sync::{oneshot, watch};

use crate::exit::{FAILED, Failure, USAGE};

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
            let end = match self.live(&mut told, &mut stopping).await {
                End::Stopped => return Ok(()),
                End::Ended(end) => end,
            };
            if told.is_some() {
                return Err(end.of_first_start(&self.name));
            }
            if started.elapsed() > RECOVERED {
                wait = RESTART_WAIT.0;
            }
            end.tell(&self.name, wait);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stopped(&mut stopping) => return Ok(()),
            }
            wait = (wait * 2).min(RESTART_WAIT.1);
        }
    }

    /// One life of the child, until it ends or is ended.
    async fn live(
        &mut self,
        told: &mut Option<oneshot::Sender<Ready>>,
        stopping: &mut watch::Receiver<bool>,
    ) -> End {
        let mut process = match self.spawn() {
            Ok(process) => process,
            Err(error) => return End::Ended(Why::NotStarted(error)),
        };
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
            ready = tokio::time::timeout(START_LIMIT, ready) => ready,
            () = stopped(stopping) => {
                self.end(process, stdin).await;
                return End::Stopped;
            }
        };
        match ready {
            Ok(Some(ready)) => self.first_ready(ready, told),
            // It ends without having become ready, which its exit code explains.
            Ok(None) => {}
            Err(_) => {
                self.end(process, stdin).await;
                return End::Ended(Why::NotReady);
            }
        }
        tokio::select! {
            status = process.wait() => End::Ended(match status {
                Ok(status) => Why::Exited(status),
                Err(error) => Why::Lost(error),
            }),
            () = stopped(stopping) => {
                self.end(process, stdin).await;
                End::Stopped
            }
        }
    }

    /// A restart listens where this start does, as far as it should.
    fn first_ready(&mut self, ready: Ready, told: &mut Option<oneshot::Sender<Ready>>) {
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

    fn spawn(&self) -> std::io::Result<tokio::process::Child> {
        // The running program itself, also once an upgrade has replaced or removed its file.
        let program = Path::new("/proc/self/exe");
        let mut command = if program.exists() {
            Command::new(program)
        } else {
            Command::new(std::env::current_exe()?)
        };
        command
            .arg0(std::env::args_os().next().unwrap_or_else(|| "baton".into()))
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
        command.spawn()
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
    ) {
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
    }
}

/// How a life of a child went.
#[derive(Debug)]
enum End {
    /// The supervisor stops; the child has been ended.
    Stopped,
    /// By itself, if it began at all.
    Ended(Why),
}

#[derive(Debug)]
enum Why {
    /// The system would not start it: out of processes or memory, perhaps for a moment.
    NotStarted(std::io::Error),
    /// It was ended, as it had not become ready in time.
    NotReady,
    Exited(ExitStatus),
    /// Nobody can tell.
    Lost(std::io::Error),
}

impl Why {
    /// What the user learns if the child was never ready.
    fn of_first_start(&self, name: &str) -> Failure {
        match self {
            Self::NotStarted(error) => Failure::failed(format!("cannot start {name}: {error}")),
            Self::NotReady => {
                Failure::failed(format!("{name} was not ready within {START_LIMIT:?}"))
            }
            Self::Exited(status) => {
                let message = format!("{name} did not start: {}", describe(*status));
                match status.code() {
                    // The child itself has told what is wrong, with a flag or else.
                    Some(USAGE) => Failure::usage(message).told(),
                    Some(FAILED) => Failure::failed(message).told(),
                    _ => Failure::failed(message),
                }
            }
            Self::Lost(error) => Failure::failed(format!("{name} did not start: {error}")),
        }
    }

    /// What the log says of a later end.
    fn tell(&self, name: &str, wait: Duration) {
        match self {
            Self::Exited(status) if status.success() => {
                tracing::info!("{name} has drained; starting it again in {wait:?}");
            }
            Self::Exited(status) => {
                let how = describe(*status);
                tracing::warn!("{name} ended: {how}; starting it again in {wait:?}");
            }
            Self::NotStarted(error) => {
                tracing::warn!("cannot start {name}: {error}; trying again in {wait:?}");
            }
            Self::NotReady => tracing::warn!(
                "{name} was not ready within {START_LIMIT:?}; starting it again in {wait:?}"
            ),
            Self::Lost(error) => {
                tracing::warn!("{name} is lost: {error}; starting it again in {wait:?}");
            }
        }
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

    fn child(arguments: &[&str]) -> Child {
        Child {
            name: "decode-0".into(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
            keeps_address: false,
        }
    }

    #[tokio::test]
    async fn a_start_that_the_system_refuses_fails_at_first_and_is_tried_again_later() {
        let mut unstartable = child(&["an\0argument"]);
        let (stop, stopping) = watch::channel(false);
        let (told, _ready) = oneshot::channel();
        let first = unstartable.clone().supervise(told, stopping.clone()).await;
        let failure = first.expect_err("a failure");
        assert!(failure.message().starts_with("cannot start decode-0: "));
        let later = unstartable.live(&mut None, &mut stopping.clone()).await;
        assert!(matches!(later, End::Ended(Why::NotStarted(_))), "{later:?}");
        drop(stop);
    }

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
