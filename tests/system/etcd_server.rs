//! A real etcd: one process on ports of its own with its data in a temporary folder.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Time for etcd to serve; it elects itself within a second on an idle machine.
const START: Duration = Duration::from_mins(1);
/// Ports may be taken by others between their choice and their use.
const ATTEMPTS: usize = 5;

/// One etcd; dropping it ends it.
pub(crate) struct EtcdServer {
    process: Option<Child>,
    folder: TempDir,
    /// For clients, peers and health.
    ports: [u16; 3],
    flags: Vec<String>,
}

impl EtcdServer {
    /// Starts one and waits until it serves.
    pub(crate) fn start(flags: &[&str]) -> Self {
        for _ in 0..ATTEMPTS {
            let mut server = Self {
                process: None,
                folder: tempfile::tempdir().expect("a folder"),
                ports: free_ports(),
                flags: flags.iter().map(ToString::to_string).collect(),
            };
            if server.launch() {
                return server;
            }
        }
        panic!("etcd does not start; is it installed? `scripts/setup.sh test` does that");
    }

    /// `host:port` for clients.
    pub(crate) fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.ports[0])
    }

    /// Process id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Child::id)
    }

    /// Sends a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.pid().expect("a running etcd");
        let sent = Command::new("kill")
            .args([format!("-{name}"), pid.to_string()])
            .status();
        assert!(sent.expect("kill runs").success(), "SIG{name} was not sent");
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again at its address, with its data or without.
    pub(crate) fn start_again(&mut self, with_data: bool) {
        self.kill();
        if !with_data {
            let _ = std::fs::remove_dir_all(self.folder.path().join("data"));
        }
        assert!(self.launch(), "etcd does not start again");
    }

    /// Whether it serves in the end.
    fn launch(&mut self) -> bool {
        let scheme = if self.flags.iter().any(|flag| flag == "--cert-file") {
            "https"
        } else {
            "http"
        };
        let [clients, peers, health] = self.ports;
        let clients = format!("{scheme}://127.0.0.1:{clients}");
        let peers = format!("http://127.0.0.1:{peers}");
        let mut command = Command::new("etcd");
        command
            .arg("--data-dir")
            .arg(self.folder.path().join("data"))
            .args(["--name", "test", "--log-level", "error", "--logger", "zap"])
            // The shortest lease of an etcd is one and a half election times.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            .args(["--listen-client-urls", &clients])
            .args(["--advertise-client-urls", &clients])
            .args(["--listen-peer-urls", &peers])
            .args(["--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &format!("test={peers}")])
            .args([
                "--listen-metrics-urls",
                &format!("http://127.0.0.1:{health}"),
            ])
            .args(&self.flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let Ok(process) = command.spawn() else {
            return false;
        };
        let process = self.process.insert(process);
        let begin = Instant::now();
        while begin.elapsed() < START {
            if !matches!(process.try_wait(), Ok(None)) {
                return false;
            }
            if is_healthy(health) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        false
    }
}

impl Drop for EtcdServer {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_ports() -> [u16; 3] {
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    listeners
        .each_ref()
        .map(|listener| listener.local_addr().expect("an address").port())
}

fn is_healthy(port: u16) -> bool {
    let asked = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    asked().is_ok_and(|answer| answer.contains("\"health\":\"true\""))
}
