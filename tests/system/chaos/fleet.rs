//! The fleet: routers, workers and etcd as processes that can be taken away and put back. It knows nothing
//! of when and why that is done.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::etcd_server::EtcdServer;
use crate::process::{PATIENCE, Process};

/// Longest wait for one answer of a process that may be gone.
const ASK: Duration = Duration::from_secs(1);
/// Violations told in full.
const MOST_TOLD: usize = 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Role {
    Router,
    Prefill,
    Decode,
}

impl Role {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Router => "router",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// A place in the fleet, held by one process after the other.
pub(super) struct Member {
    pub(super) role: Role,
    pub(super) name: String,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// None while it is dead.
    process: Option<Process>,
    address: String,
    history: History,
}

/// What was done to a member so far; two that are equal have nothing between them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct History {
    pub(super) kills: u32,
    pub(super) drains: u32,
    pub(super) stops: u32,
    /// Something is being done to it.
    pub(super) disturbed: bool,
}

impl Member {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn history(&self) -> History {
        self.state().history
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut History)) {
        change(&mut self.state().history);
    }

    pub(super) fn address(&self) -> String {
        self.state().address.clone()
    }

    /// Process id, while there is a process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.state().process.as_ref().map(Process::pid)
    }

    pub(super) fn signal(&self, name: &str) {
        if let Some(process) = &self.state().process {
            process.signal(name);
        }
    }
}

pub(super) struct Fleet {
    pub(super) members: Vec<Member>,
    pub(super) etcd: Mutex<EtcdServer>,
    pub(super) etcd_disturbed: AtomicBool,
    model: PathBuf,
    membership: String,
    /// Where logs of processes that have ended are.
    logs: PathBuf,
    violations: Mutex<Vec<String>>,
    begin: Instant,
}

impl Fleet {
    /// Starts all of it and waits until each router knows each worker.
    pub(super) async fn start(model: &Path, logs: &Path) -> Arc<Self> {
        let etcd = EtcdServer::start(&[]);
        let roles = [(Role::Router, 2), (Role::Prefill, 2), (Role::Decode, 3)];
        let members = roles.iter().flat_map(|(role, count)| {
            (0..*count).map(|number| Member {
                role: *role,
                name: format!("{}-{number}", role.name()),
                state: Mutex::default(),
            })
        });
        let fleet = Arc::new(Self {
            members: members.collect(),
            membership: format!("etcd:{}", etcd.endpoint()),
            etcd: Mutex::new(etcd),
            etcd_disturbed: AtomicBool::new(false),
            model: model.to_owned(),
            logs: logs.to_owned(),
            violations: Mutex::default(),
            begin: Instant::now(),
        });
        let starts: Vec<_> = (0..fleet.members.len())
            .map(|member| {
                let fleet = fleet.clone();
                tokio::task::spawn_blocking(move || fleet.launch(member, "127.0.0.1:0"))
            })
            .collect();
        for start in starts {
            start.await.expect("every process starts");
        }
        for member in 0..fleet.members.len() {
            fleet.until_known(member).await;
        }
        fleet
    }

    /// Starts a member's next process and waits until it says that it is ready.
    pub(super) fn launch(&self, member: usize, listen: &str) {
        let member = &self.members[member];
        let model = self.model.display().to_string();
        let mut arguments = vec![member.role.name(), "--model", &model];
        arguments.extend(["--listen", listen, "--membership", &self.membership]);
        if member.role != Role::Router {
            arguments.extend(["--worker-id", &member.name]);
            arguments.extend(["--threads", "1", "--pages", "1024"]);
        }
        if member.name == "prefill-1" {
            arguments.extend(["--transport", "tcp"]);
        }
        let arguments: Vec<_> = arguments.iter().map(ToString::to_string).collect();
        let process = Process::start(&arguments);
        let mut state = member.state();
        process.address().clone_into(&mut state.address);
        state.process = Some(process);
    }

    /// Waits for the end of a member's process, which a signal has caused.
    pub(super) fn bury(&self, member: usize, must_succeed: bool) {
        let member = &self.members[member];
        let Some(mut process) = member.state().process.take() else {
            return self.violated(format!("{} is not there to end", member.name));
        };
        let status = process.wait();
        let log = process.log();
        if must_succeed && !status.success() {
            self.violated(format!("{} ended with {status}", member.name));
        }
        if log.contains("panicked") {
            self.violated(format!("{} panicked", member.name));
        }
        let name = format!(
            "{}-{:06}ms-{}.log",
            member.name,
            self.begin.elapsed().as_millis(),
            process.pid()
        );
        std::fs::write(self.logs.join(name), log).expect("the folder is writable");
    }

    /// Members of a role.
    pub(super) fn of(&self, role: Role) -> impl Iterator<Item = usize> {
        (0..self.members.len()).filter(move |member| self.members[*member].role == role)
    }

    /// Whether nothing is being done to this member.
    pub(super) fn is_calm(&self, member: usize) -> bool {
        !self.members[member].history().disturbed
    }

    pub(super) fn etcd_is_calm(&self) -> bool {
        !self.etcd_disturbed.load(Ordering::Relaxed)
    }

    /// Waits until every undisturbed router can place requests on this worker; for a router, until it can
    /// place requests on every undisturbed worker.
    pub(super) async fn until_known(&self, member: usize) {
        let begin = Instant::now();
        loop {
            let of_a_router = self.members[member].role == Role::Router;
            let (routers, workers): (Vec<_>, Vec<_>) = (0..self.members.len())
                .filter(|one| *one == member || self.is_calm(*one))
                .partition(|one| self.members[*one].role == Role::Router);
            let (routers, workers) = if of_a_router {
                (vec![member], workers)
            } else {
                (routers, vec![member])
            };
            let mut known = true;
            for router in routers {
                known &= self.knows(router, &workers).await;
            }
            if known {
                return;
            }
            assert!(
                begin.elapsed() < PATIENCE,
                "{} is not known to its peers within {PATIENCE:?}",
                self.members[member].name
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    async fn knows(&self, router: usize, workers: &[usize]) -> bool {
        let address = self.members[router].address();
        let asked = tokio::time::timeout(ASK, Client::try_connect(&address)).await;
        let Ok(Some((_, status))) = asked else {
            return false;
        };
        workers.iter().all(|worker| {
            let pid = self.members[*worker].pid();
            status.workers.iter().any(|one| {
                let same = one.info.as_ref().is_some_and(|info| Some(info.pid) == pid);
                same && one.state == "ready"
            })
        })
    }

    /// Checks the ledgers of all workers as an undisturbed router has last heard of them.
    pub(super) async fn check_ledgers(&self) {
        for router in self.of(Role::Router).filter(|router| self.is_calm(*router)) {
            let address = self.members[router].address();
            let asked = tokio::time::timeout(ASK, Client::try_connect(&address)).await;
            let Ok(Some((_, status))) = asked else {
                continue;
            };
            for worker in &status.workers {
                let Some(pages) = worker.load.as_ref().and_then(|load| load.pages) else {
                    continue;
                };
                let sum = pages.free + pages.cached + pages.live + pages.granted;
                if sum + pages.quarantined != pages.total {
                    self.violated(format!("pages are not conserved: {worker:?}"));
                }
            }
        }
    }

    /// Something that was promised did not hold.
    pub(super) fn violated(&self, what: String) {
        let mut violations = self
            .violations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if violations.len() < MOST_TOLD {
            println!("VIOLATION at {:?}: {what}", self.begin.elapsed());
        }
        violations.push(what);
    }

    pub(super) fn violations(&self) -> usize {
        let violations = self
            .violations
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        violations.len()
    }

    /// Ends all of it, workers first.
    pub(super) fn end(&self) {
        for member in (0..self.members.len()).rev() {
            self.members[member].signal("TERM");
        }
        for member in (0..self.members.len()).rev() {
            self.bury(member, true);
        }
    }
}
