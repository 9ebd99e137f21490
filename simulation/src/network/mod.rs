//! A network in memory, in virtual time: connections with latency between processes that can be killed,
//! stopped and cut off.
//!
//! Time passes on the way and nowhere else. What a link holds up is not lost but late, as with TCP. It must
//! not know what is said, nor who runs in a process.

mod host;
mod listener;
mod pipe;
mod planes;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

use crate::chance::Random;
pub use host::Host;
pub use listener::Listener;
use pipe::Pipe;
pub use stream::Stream;

/// A machine, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Machine(pub u8);

impl Machine {
    /// Its only address.
    pub fn ip(self) -> IpAddr {
        IpAddr::V4(Ipv4Addr::new(127, 0, 0, self.0))
    }

    fn of(address: SocketAddr) -> Option<Self> {
        match address.ip() {
            IpAddr::V4(ip) if ip.octets()[..3] == [127, 0, 0] => Some(Self(ip.octets()[3])),
            _ => None,
        }
    }
}

/// One start of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProcessId(usize);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct PipeId(usize);

/// How a process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Death {
    /// Its system lives on and closes its connections.
    Killed,
    /// The machine goes: nobody is told anything.
    Silent,
}

/// The network.
#[derive(Clone)]
pub struct Network {
    net: Arc<Mutex<Net>>,
    /// Links or processes have changed.
    changed: Arc<Notify>,
}

struct Net {
    random: Random,
    /// Latencies to draw from, in milliseconds.
    latencies: Vec<u64>,
    processes: Vec<Process>,
    pipes: Vec<(Pipe, Way)>,
    listeners: BTreeMap<SocketAddr, (ProcessId, mpsc::UnboundedSender<Stream>)>,
    /// Directed: what the first sends does not reach the second.
    held: BTreeSet<(Machine, Machine)>,
    slow: BTreeMap<(Machine, Machine), Duration>,
    /// Machines that are gone: nobody there even refuses.
    gone: BTreeSet<Machine>,
    next_port: u16,
    /// Attempts of a process to connect to an address, by second.
    dials: BTreeMap<(ProcessId, SocketAddr, u64), u64>,
    started: Instant,
}

struct Process {
    machine: Machine,
    dead: bool,
    frozen: bool,
}

#[derive(Clone, Copy)]
struct Way {
    from: ProcessId,
    to: ProcessId,
}

impl Network {
    /// An empty network whose latencies are drawn from a list, in milliseconds.
    pub fn new(random: Random, latencies: Vec<u64>) -> Self {
        let net = Net {
            random,
            latencies,
            processes: Vec::new(),
            pipes: Vec::new(),
            listeners: BTreeMap::new(),
            held: BTreeSet::new(),
            slow: BTreeMap::new(),
            gone: BTreeSet::new(),
            next_port: 20_000,
            dials: BTreeMap::new(),
            started: Instant::now(),
        };
        Self {
            net: Arc::new(Mutex::new(net)),
            changed: Arc::default(),
        }
    }

    /// A new process.
    pub fn start(&self, machine: Machine) -> Host {
        let id = self.with(|net| {
            net.gone.remove(&machine);
            net.processes.push(Process {
                machine,
                dead: false,
                frozen: false,
            });
            ProcessId(net.processes.len() - 1)
        });
        self.changed.notify_waiters();
        Host {
            network: self.clone(),
            id,
        }
    }

    /// Ends a process: from now on nothing of it is heard.
    pub fn kill(&self, id: ProcessId, death: Death) {
        self.with(|net| net.kill(id, death));
        self.changed.notify_waiters();
    }

    /// Stops a process, or lets it go on.
    pub fn freeze(&self, id: ProcessId, frozen: bool) {
        self.with(|net| {
            net.processes[id.0].frozen = frozen;
            net.wake(|way| way.from == id || way.to == id);
        });
        self.changed.notify_waiters();
    }

    /// Holds up what `from` sends to `to`, or lets it through.
    pub fn hold(&self, from: Machine, to: Machine, held: bool) {
        self.with(|net| {
            if held {
                net.held.insert((from, to));
            } else {
                net.held.remove(&(from, to));
            }
            net.resend(from, to);
        });
        self.changed.notify_waiters();
    }

    /// Adds so much to the latency of what `from` sends to `to`.
    pub fn slow(&self, from: Machine, to: Machine, by: Duration) {
        self.with(|net| {
            net.slow.insert((from, to), by);
        });
    }

    /// Breaks all connections between two machines.
    pub fn reset(&self, one: Machine, other: Machine) {
        self.with(|net| {
            let now = Instant::now();
            for at in 0..net.pipes.len() {
                let (from, to) = net.ends(PipeId(at));
                if (from, to) == (one, other) || (from, to) == (other, one) {
                    net.pipes[at].0.reset(now);
                    net.pipes[at].0.deserted = true;
                }
            }
        });
    }

    /// Most attempts of one process to connect to an address within a second.
    pub fn most_dials(&self, address: SocketAddr) -> u64 {
        self.with(|net| {
            let of_it = net.dials.iter().filter(|((_, to, _), _)| *to == address);
            of_it.map(|(_, count)| *count).max().unwrap_or(0)
        })
    }

    fn with<R>(&self, change: impl FnOnce(&mut Net) -> R) -> R {
        change(&mut self.net.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits until `holds`.
    async fn until(&self, holds: impl Fn(&Net) -> bool) {
        loop {
            let changed = self.changed.notified();
            if self.with(|net| holds(net)) {
                return;
            }
            changed.await;
        }
    }
}

impl Net {
    fn is_dead(&self, id: ProcessId) -> bool {
        self.processes[id.0].dead
    }

    fn is_frozen(&self, id: ProcessId) -> bool {
        self.processes[id.0].frozen
    }

    fn pipe(&mut self, id: PipeId) -> &mut Pipe {
        &mut self.pipes[id.0].0
    }

    fn ends(&self, id: PipeId) -> (Machine, Machine) {
        let way = self.pipes[id.0].1;
        let machine = |id: ProcessId| self.processes[id.0].machine;
        (machine(way.from), machine(way.to))
    }

    /// Whether a pipe's reader gets nothing now: it is stopped, or the link holds.
    fn is_held(&self, id: PipeId) -> bool {
        let (pipe, way) = &self.pipes[id.0];
        pipe.swallowed || self.is_frozen(way.to) || self.held.contains(&self.ends(id))
    }

    fn latency(&mut self, from: Machine, to: Machine) -> Duration {
        let drawn = Duration::from_millis(*self.random.pick(&self.latencies));
        drawn + self.slow.get(&(from, to)).copied().unwrap_or_default()
    }

    /// When something that leaves now arrives.
    fn due(&mut self, id: PipeId) -> Instant {
        let (from, to) = self.ends(id);
        Instant::now() + self.latency(from, to)
    }

    fn end(&mut self, id: PipeId) {
        let due = self.due(id);
        self.pipe(id).end(due);
    }

    /// One side lets go of a connection: it reads no more, and says so to the other.
    fn hang_up(&mut self, from: PipeId, to: PipeId) {
        if !self.is_dead(self.pipes[to.0].1.from) {
            self.end(to);
        }
        let pipe = self.pipe(from);
        pipe.deserted = true;
        pipe.wake_writer();
    }

    fn kill(&mut self, id: ProcessId, death: Death) {
        self.processes[id.0].dead = true;
        if death == Death::Silent {
            self.gone.insert(self.processes[id.0].machine);
        }
        self.listeners.retain(|_, (owner, _)| *owner != id);
        for at in 0..self.pipes.len() {
            let way = self.pipes[at].1;
            if way.from != id && way.to != id {
                continue;
            }
            match death {
                Death::Silent => self.pipe(PipeId(at)).swallowed = true,
                Death::Killed if way.from == id => {
                    let due = self.due(PipeId(at));
                    if self.random.one_in(2) {
                        self.pipe(PipeId(at)).reset(due);
                    } else {
                        self.pipe(PipeId(at)).end(due);
                    }
                }
                Death::Killed => self.pipe(PipeId(at)).deserted = true,
            }
        }
        self.wake(|way| way.from == id || way.to == id);
    }

    fn wake(&mut self, whose: impl Fn(&Way) -> bool) {
        for (pipe, way) in &mut self.pipes {
            if whose(way) {
                pipe.wake_reader();
                pipe.wake_writer();
            }
        }
    }

    fn resend(&mut self, from: Machine, to: Machine) {
        for at in 0..self.pipes.len() {
            if self.ends(PipeId(at)) == (from, to) {
                let latency = self.latency(from, to);
                self.pipes[at].0.resend(Instant::now(), latency);
            }
        }
    }

    fn new_pipe(&mut self, from: ProcessId, to: ProcessId) -> PipeId {
        self.pipes.push((Pipe::default(), Way { from, to }));
        PipeId(self.pipes.len() - 1)
    }
}
