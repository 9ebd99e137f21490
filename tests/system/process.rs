//! Processes of the shipped binary: started, looked at, signalled, always ended, never waited for without
//! a bound.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::time::{Duration, Instant};

/// Bound on every wait for a state that must come.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

/// One service at a time: they are measured against each other's results, not against each other.
static TURN: Mutex<()> = Mutex::new(());

/// Leave to run a service; held as long as it runs.
pub(crate) struct Turn(#[expect(dead_code, reason = "held, not used")] MutexGuard<'static, ()>);

impl Turn {
    /// Waits for the services of other tests to end.
    pub(crate) fn take() -> Self {
        Self(
            TURN.lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        )
    }
}

/// Whether the loops run in full.
pub(crate) fn soak() -> bool {
    std::env::var_os("BATON_SOAK").is_some()
}

/// What a command that ends by itself left.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs `baton` to its end.
pub(crate) fn baton(arguments: &[&str]) -> Ended {
    baton_with(arguments, &[])
}

/// Runs `baton` to its end with more environment.
pub(crate) fn baton_with(arguments: &[&str], environment: &[(&str, &str)]) -> Ended {
    let mut process = spawn(arguments.iter().map(ToString::to_string), environment);
    let out = collect(process.stdout.take().expect("piped"));
    let err = collect(process.stderr.take().expect("piped"));
    let status = wait(&mut process).unwrap_or_else(|| {
        let _ = process.kill();
        panic!("baton {arguments:?} does not end; so far:\n{}", err.text());
    });
    Ended {
        code: status.code(),
        stdout: out.whole(),
        stderr: err.whole(),
    }
}

/// Runs `baton` to its end, which must be this refusal, by name and without panic or claim to be ready.
pub(crate) fn assert_refused(arguments: &[&str], code: i32, parts: &[&str]) {
    let ended = baton(arguments);
    let context = || format!("baton {arguments:?}: {ended:#?}");
    assert_eq!(ended.code, Some(code), "{}", context());
    assert!(!ended.stdout.contains("ready"), "{}", context());
    for part in parts {
        assert!(ended.stderr.contains(part), "no {part:?}; {}", context());
    }
    assert!(!ended.stderr.contains("panicked"), "{}", context());
    assert!(ended.stderr.len() < 4000, "{}", context());
    let told = ended.stderr.lines();
    let told = told.filter(|line| line.starts_with("baton: ")).count();
    assert!(told <= 1, "told {told} times; {}", context());
}

/// A long-running process that has said that it is ready.
pub(crate) struct Process {
    child: Child,
    /// The ready line, without that word.
    ready: String,
    log: Log,
}

impl Process {
    /// Starts `baton` with these arguments and waits for its ready line.
    pub(crate) fn start(arguments: &[String]) -> Self {
        Self::started(Command::new(env!("CARGO_BIN_EXE_baton")).args(arguments))
    }

    /// The same with more environment.
    pub(crate) fn start_with(arguments: &[String], environment: &BTreeMap<String, String>) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
        Self::started(command.args(arguments).envs(environment))
    }

    /// The same inside a network namespace.
    pub(crate) fn start_in(namespace: &str, arguments: &[String]) -> Self {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_baton")]);
        Self::started(command.args(arguments))
    }

    /// Starts any command that becomes `baton`, and waits for the ready line.
    pub(crate) fn started(command: &mut Command) -> Self {
        let mut child = piped(command);
        let log = collect(child.stderr.take().expect("piped"));
        let (lines, ready) = mpsc::channel();
        let out = BufReader::new(child.stdout.take().expect("piped"));
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let line = ready.recv_timeout(PATIENCE);
        let Some(ready) = line.as_ref().ok().and_then(|l| l.strip_prefix("ready ")) else {
            let _ = child.kill();
            panic!("{command:?} is not ready; its log:\n{}", log.text());
        };
        Self {
            child,
            ready: ready.to_owned(),
            log,
        }
    }

    /// Starts `baton` with these arguments and waits for nothing.
    pub(crate) fn start_unready(arguments: &[String]) -> Self {
        let mut child = spawn(arguments.iter().cloned(), &[]);
        let log = collect(child.stderr.take().expect("piped"));
        Self {
            child,
            ready: format!("not waited for: {arguments:?}"),
            log,
        }
    }

    /// `host:port` of its gRPC services.
    pub(crate) fn address(&self) -> &str {
        self.told("grpc=")
    }

    /// `host:port` of its HTTP.
    pub(crate) fn http(&self) -> &str {
        self.told("http=")
    }

    /// Where its metrics are: `host:port`, of `baton up` several between commas.
    pub(crate) fn metrics(&self) -> &str {
        self.told("metrics=")
    }

    /// Whether the ready line has these words.
    pub(crate) fn says(&self, words: &str) -> bool {
        self.ready.contains(words)
    }

    /// What the ready line says under this name.
    fn told(&self, name: &str) -> &str {
        self.ready
            .split(' ')
            .find_map(|part| part.strip_prefix(name))
            .unwrap_or_else(|| panic!("no {name} in the ready line {:?}", self.ready))
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        self.log.text()
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for its own end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
            .unwrap_or_else(|| panic!("the process does not end; its log:\n{}", self.log()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.signal("TERM");
            // A stopped process takes its signal only when it goes on.
            self.signal("CONT");
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_secs(30) {
                if !matches!(self.child.try_wait(), Ok(None)) {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log of `{}`\n{}", self.ready, self.log());
        }
    }
}

fn spawn(arguments: impl Iterator<Item = String>, environment: &[(&str, &str)]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_baton"));
    command.args(arguments).envs(environment.iter().copied());
    piped(&mut command)
}

fn piped(command: &mut Command) -> Child {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

fn wait(child: &mut Child) -> Option<ExitStatus> {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            return Some(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    None
}

/// What a pipe has brought so far.
struct Log {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: std::thread::JoinHandle<()>,
}

fn collect(mut source: impl Read + Send + 'static) -> Log {
    let bytes = Arc::<Mutex<Vec<u8>>>::default();
    let sink = bytes.clone();
    let reader = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = source.read(&mut bytes) {
            sink.lock()
                .expect("not poisoned")
                .extend_from_slice(&bytes[..count]);
        }
    });
    Log { bytes, reader }
}

impl Log {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().expect("not poisoned")).into_owned()
    }

    /// All of it: the process has ended.
    fn whole(self) -> String {
        self.reader.join().expect("reading does not fail");
        let bytes = self.bytes.lock().expect("not poisoned");
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Sends a signal by name.
pub(crate) fn signal(pid: u32, name: &str) {
    let raw = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw)
        .expect("a process id");
    let signal = match name {
        "TERM" => rustix::process::Signal::TERM,
        "KILL" => rustix::process::Signal::KILL,
        "STOP" => rustix::process::Signal::STOP,
        "CONT" => rustix::process::Signal::CONT,
        _ => panic!("unknown signal {name}"),
    };
    // The process may be gone already, which some tests want.
    let _ = rustix::process::kill_process(raw, signal);
}

/// Whether a process still runs (a zombie does not).
pub(crate) fn runs(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .is_some_and(|rest| rest.trim_start().starts_with('Z'))
    })
}

/// Resident memory of a process in MiB.
pub(crate) fn resident_mib(pid: u32) -> u64 {
    try_resident_mib(pid).expect("a running process")
}

/// The same, if the process still runs.
pub(crate) fn try_resident_mib(pid: u32) -> Option<u64> {
    memory_mib(pid, "VmRSS:")
}

/// The most resident memory that a process has ever had, in MiB.
pub(crate) fn peak_resident_mib(pid: u32) -> u64 {
    memory_mib(pid, "VmHWM:").expect("a running process")
}

/// One of the kinds of memory that the kernel tells.
fn memory_mib(pid: u32, kind: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix(kind))
        .and_then(|rest| rest.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse::<u64>().ok())?;
    Some(kib / 1024)
}

/// TCP ports on which a process listens.
pub(crate) fn listening_ports(pid: u32) -> BTreeSet<u16> {
    let sockets = sockets(pid);
    let table = std::fs::read_to_string("/proc/net/tcp").expect("readable");
    let ports: BTreeSet<u16> = table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = *fields.get(3)? == "0A" && sockets.contains(*fields.get(9)?);
            let port = fields.get(1)?.rsplit_once(':')?.1;
            listens
                .then(|| u16::from_str_radix(port, 16).ok())
                .flatten()
        })
        .collect();
    assert!(!ports.is_empty(), "process {pid} listens nowhere");
    ports
}

/// Paths of the Unix sockets on which a process listens.
pub(crate) fn listening_paths(pid: u32) -> BTreeSet<PathBuf> {
    /// `__SO_ACCEPTCON`: the socket listens.
    const LISTENS: &str = "00010000";
    let sockets = sockets(pid);
    let table = std::fs::read_to_string("/proc/net/unix").expect("readable");
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            let listens = *fields.get(3)? == LISTENS && sockets.contains(*fields.get(6)?);
            listens.then(|| fields.get(7).map(PathBuf::from)).flatten()
        })
        .collect()
}

/// Inodes of a process's sockets.
fn sockets(pid: u32) -> BTreeSet<String> {
    std::fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("a running process")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| {
            let name = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
            Some(name.to_owned())
        })
        .collect()
}
