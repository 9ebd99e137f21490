//! Starting the parts, ending them, and how much of the processor a router has used. It must not know what is
//! measured.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Failure;
use crate::arguments::{Call, RunArgs};
use crate::client::Seen;
use crate::openai::MODEL;

/// Time for a part to become ready.
const START: Duration = Duration::from_mins(1);

/// A part, ended when it is dropped.
pub(crate) struct Part(Child);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Part {
    /// Starts a part that says on a line when it is ready; the line.
    fn start(command: &mut Command) -> Result<(Self, String), Failure> {
        let mut part = Self(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .spawn()?,
        );
        let out = part.0.stdout.take().ok_or("no standard output")?;
        let mut line = String::new();
        BufReader::new(out).read_line(&mut line)?;
        if line.starts_with("ready ") {
            Ok((part, line))
        } else {
            Err(format!("{command:?} did not become ready").into())
        }
    }

    /// Time on processors, of all threads that there are now.
    pub(crate) fn processor_time(&self) -> Result<Duration, Failure> {
        let mut nanoseconds = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            let told = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
            let on_processor = told.split_whitespace().next().unwrap_or("0");
            nanoseconds += on_processor.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(nanoseconds))
    }
}

/// A router and where it listens.
pub(crate) struct Router {
    pub(crate) part: Part,
    pub(crate) grpc: String,
    pub(crate) http: String,
    /// What requests call the model, over HTTP.
    pub(crate) model: &'static str,
}

/// Where the backend listens.
pub(crate) struct Backend {
    _part: Part,
    pub(crate) decode: String,
    pub(crate) http_prefill: String,
    pub(crate) http_decode: String,
}

/// `baton router` as it is shipped, but for prompts of any length going to two workers.
pub(crate) fn baton(args: &RunArgs) -> Result<Router, Failure> {
    let mut command = Command::new(&args.baton);
    command.args(["--log", "warn", "router", "--local-prefill-tokens", "0"]);
    command.args(["--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0"]);
    let (part, line) = Part::start(command.arg("--model").arg(&args.model))?;
    Ok(Router {
        part,
        grpc: named(&line, "grpc")?,
        http: named(&line, "http")?,
        // The only one.
        model: "",
    })
}

pub(crate) fn backend(model: &Path, router: &str) -> Result<Backend, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["backend", "--router", router, "--model"]);
    let (part, line) = Part::start(command.arg(model))?;
    Ok(Backend {
        _part: part,
        decode: named(&line, "decode")?,
        http_prefill: named(&line, "http-prefill")?,
        http_decode: named(&line, "http-decode")?,
    })
}

/// `smg` in its split mode, with what costs it time switched off.
pub(crate) fn smg(binary: &Path, backend: &Backend) -> Result<Router, Failure> {
    let (http, metrics) = (free_port()?, free_port()?);
    let mut command = Command::new(binary);
    command.args(["launch", "--pd-disaggregation", "--policy", "round_robin"]);
    command.args(["--host", "127.0.0.1", "--port", &http.to_string()]);
    command.args(["--prometheus-host", "127.0.0.1"]);
    command.args(["--prometheus-port", &metrics.to_string()]);
    command.args(["--prefill", &format!("http://{}", backend.http_prefill)]);
    command.args(["--decode", &format!("http://{}", backend.http_decode)]);
    command.args([
        "--log-level",
        "error",
        "--worker-startup-check-interval",
        "1",
    ]);
    command.args(["--disable-retries", "--disable-circuit-breaker"]);
    command.args(["--disable-load-monitoring", "--disable-tokenizer-autoload"]);
    command.args([
        "--max-concurrent-requests",
        "-1",
        "--history-backend",
        "none",
    ]);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let router = Router {
        part: Part(command.spawn()?),
        grpc: String::new(),
        http: format!("127.0.0.1:{http}"),
        model: MODEL,
    };
    let until = Instant::now() + START;
    while let Err(error) = client(Call::Stream, &router.http, MODEL, 1, 0.01) {
        if Instant::now() >= until {
            return Err(format!("smg does not answer: {error}").into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(router)
}

/// Runs so many callers for a while.
pub(crate) fn client(
    call: Call,
    address: &str,
    model: &str,
    callers: usize,
    seconds: f64,
) -> Result<Seen, Failure> {
    let call = clap::ValueEnum::to_possible_value(&call).ok_or("no such call")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["client", "--call", call.get_name(), "--address", address]);
    command.args(["--model-name", model]);
    command.args(["--callers", &callers.to_string()]);
    command.args(["--seconds", &seconds.to_string()]);
    let output = command.output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What stands after a name in a line of names and values.
fn named(line: &str, name: &str) -> Result<String, Failure> {
    let value = |word: &str| Some(word.strip_prefix(name)?.strip_prefix('=')?.to_owned());
    let found = line.split_whitespace().find_map(value);
    found.ok_or_else(|| format!("no {name} in: {line}").into())
}

/// One that was free a moment ago.
fn free_port() -> Result<u16, Failure> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
