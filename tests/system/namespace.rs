//! A small network of its own: hosts (network namespaces) on one bridge, whose links can be cut, made lossy
//! or slow with `tc`, or be long ones. The test itself stands at the bridge.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// The kernel's answer to "drop it" from a classifier.
const SHOT: u32 = 2;
/// Where a classifier finds a random number.
const RANDOM: u32 = 0xffff_f000 + 56;
/// The kernel's answer for "nothing to say".
const UNSPECIFIED: u32 = u32::MAX;

/// Where tests that need one are not ignored, there was one; see `build.rs`.
pub(crate) const PROBED: &str =
    "it went when this was built (touch build.rs and build again if it no longer does)";

/// One network. Dropping it removes it.
pub(crate) struct Lan {
    bridge: String,
    hosts: Vec<Host>,
    /// What makes the links long, if they are. Not by `netem`, which not every kernel has.
    wires: Option<Child>,
}

/// One host of it.
#[derive(Clone)]
pub(crate) struct Host {
    namespace: String,
    /// Its link's end at the bridge.
    port: String,
    address: String,
}

impl Lan {
    /// A network of so many hosts, each so many milliseconds away from the bridge. Fails with the reason
    /// where there are no means for it.
    pub(crate) fn new(count: usize, milliseconds: u32) -> Result<Self, String> {
        let bits = random_bits();
        let tag = format!("bt{:04x}", bits & 0xffff);
        // One of the small networks in the range for benchmarks.
        let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + (bits % 16_384) * 8;
        let address = |index: u32| Ipv4Addr::from(network + 1 + index).to_string();
        let mut lan = Self {
            bridge: format!("{tag}br"),
            hosts: Vec::new(),
            wires: None,
        };
        let bridge = lan.bridge.clone();
        ip(&format!("link add {bridge} type bridge"))?;
        ip(&format!("addr add {}/29 dev {bridge}", address(0)))?;
        ip(&format!("link set {bridge} up"))?;
        let far = |index: usize| format!("{tag}f{index}");
        let port = |index: usize| format!("{tag}p{index}");
        if milliseconds > 0 {
            let names = (0..count).flat_map(|index| [far(index), port(index)]);
            lan.wires = Some(wires(milliseconds, names)?);
        }
        for index in 0..count {
            let host = Host {
                namespace: format!("{tag}n{index}"),
                port: port(index),
                address: address(index as u32 + 1),
            };
            ip(&format!("netns add {}", host.namespace))?;
            lan.hosts.push(host.clone());
            let far = lan.wires.is_some().then(|| far(index));
            host.join(&bridge, far.as_deref())?;
        }
        Ok(lan)
    }

    /// Its hosts.
    pub(crate) fn hosts(&self) -> &[Host] {
        &self.hosts
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        for host in &self.hosts {
            // Its link goes with it.
            let _ = ip(&format!("netns del {}", host.namespace));
        }
        if let Some(mut wires) = self.wires.take() {
            let _ = wires.kill();
            let _ = wires.wait();
        }
        let _ = ip(&format!("link del {}", self.bridge));
    }
}

impl Host {
    /// Joins the bridge, by a wire's end that is there already or by a new link.
    fn join(&self, bridge: &str, far: Option<&str>) -> Result<(), String> {
        let Self {
            namespace,
            port,
            address,
        } = self;
        match far {
            Some(far) => ip(&format!("link set {far} netns {namespace} name eth0"))?,
            None => ip(&format!(
                "link add {port} type veth peer name eth0 netns {namespace}"
            ))?,
        }
        ip(&format!("link set {port} master {bridge} up"))?;
        ip(&format!("-n {namespace} addr add {address}/29 dev eth0"))?;
        ip(&format!("-n {namespace} link set eth0 up"))?;
        ip(&format!("-n {namespace} link set lo up"))?;
        // Whether the kernel can do what is asked for later.
        self.try_lose(0.0)?;
        self.heal();
        Ok(())
    }

    /// Its IP address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Its network namespace.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// From now on nothing goes in or out, and nobody is told.
    pub(crate) fn cut(&self) {
        self.lose(1.0);
    }

    /// This share of packets is lost, each way.
    pub(crate) fn lose(&self, share: f64) {
        self.try_lose(share)
            .expect("it could when the host was made");
    }

    /// By a classifier rather than by `netem`, which not every kernel has.
    fn try_lose(&self, share: f64) -> Result<(), String> {
        let port = &self.port;
        self.heal();
        tc(&format!("qdisc add dev {port} clsact"))?;
        for way in ["ingress", "egress"] {
            tc(&format!(
                "filter add dev {port} {way} bpf da bytecode {}",
                drops(share)
            ))?;
        }
        Ok(())
    }

    /// Nothing is lost any more.
    pub(crate) fn heal(&self) {
        let _ = tc(&format!("qdisc del dev {} clsact", self.port));
    }

    /// What it sends goes at this rate.
    pub(crate) fn slow_down(&self, kilobits: u32) -> Result<(), String> {
        let namespace = &self.namespace;
        tc(&format!(
            "-n {namespace} qdisc replace dev eth0 root tbf rate {kilobits}kbit burst 16kb latency 400ms"
        ))
    }

    /// Runs something that uses the network as this host sees it, on a thread of its own.
    pub(crate) fn inside<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> std::thread::JoinHandle<T> {
        let namespace = self.namespace.clone();
        std::thread::spawn(move || {
            let file = File::open(format!("/run/netns/{namespace}")).expect("a namespace");
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("it can be entered");
            tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime")
                .block_on(work)
        })
    }
}

/// Starts wires between pairs of devices, which it makes.
fn wires(milliseconds: u32, names: impl Iterator<Item = String>) -> Result<Child, String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/late_wires.py");
    let mut child = Command::new("python3")
        .args([script, &milliseconds.to_string()])
        .args(names)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("python3: {error}"))?;
    let mut line = String::new();
    let out = child.stdout.take().expect("piped");
    // One line comes, or the end.
    let read = BufReader::new(out).read_line(&mut line);
    if read.is_ok() && line.trim() == "ready" {
        return Ok(child);
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(format!("no TAP devices: {script} did not start"))
}

/// A classifier that drops this share of packets by the kernel's random numbers.
fn drops(share: f64) -> String {
    if share >= 1.0 {
        return format!("1,6 0 0 {SHOT}");
    }
    let below = (share * f64::from(u32::MAX)) as u32;
    format!("4,32 0 0 {RANDOM},53 1 0 {below},6 0 0 {SHOT},6 0 0 {UNSPECIFIED}")
}

fn random_bits() -> u32 {
    let bytes = RandomState::new().build_hasher().finish().to_be_bytes();
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn ip(arguments: &str) -> Result<(), String> {
    call("ip", &arguments.split_whitespace().collect::<Vec<_>>())
}

fn tc(arguments: &str) -> Result<(), String> {
    let mut all: Vec<&str> = arguments.split_whitespace().collect();
    // Bytecode is one argument with blanks in it.
    if let Some((before, code)) = arguments.split_once(" bytecode ") {
        all = before.split_whitespace().collect();
        all.extend(["bytecode", code]);
    }
    call("tc", &all)
}

fn call(program: &str, arguments: &[&str]) -> Result<(), String> {
    let told = |why: &dyn std::fmt::Display| format!("`{program} {}`: {why}", arguments.join(" "));
    let ended = Command::new(program).args(arguments).output();
    let ended = ended.map_err(|error| told(&error))?;
    if ended.status.success() {
        return Ok(());
    }
    Err(told(&String::from_utf8_lossy(&ended.stderr).trim()))
}
