//! Looks what this machine lets tests do, so that those that need more are reported as ignored, by name and with
//! the reason, and never as passed. What is built is the same everywhere.

use std::process::{Command, Stdio};

/// Inside of namespaces that go with it, so that nothing of a probe stays.
struct Probe {
    /// Set where it fails.
    cfg: &'static str,
    what: &'static str,
    /// `unshare` is given these, and a shell this.
    namespaces: &'static [&'static str],
    script: &'static str,
}

const PROBES: [Probe; 4] = [
    Probe {
        cfg: "no_networks",
        what: "networks of their own",
        namespaces: &["--net", "--mount"],
        script: "
            mount --make-rprivate /
            mount -t tmpfs tmpfs /run
            ip link add probe0 type bridge
            ip addr add 198.18.0.1/29 dev probe0
            ip netns add probe
            ip link add probe1 type veth peer name eth0 netns probe
            ip link set probe1 master probe0 up
            tc qdisc add dev probe1 clsact
            tc filter add dev probe1 ingress bpf da bytecode '1,6 0 0 2'",
    },
    Probe {
        cfg: "no_slow_links",
        what: "links of a given rate",
        namespaces: &["--net"],
        script: "
            ip link add probe1 type veth peer name probe2
            tc qdisc replace dev probe1 root tbf rate 11000kbit burst 16kb latency 400ms",
    },
    Probe {
        cfg: "no_long_links",
        what: "links that take their time",
        namespaces: &["--net"],
        script: "python3 tests/python/late_wires.py 50 probe1 probe2",
    },
    Probe {
        cfg: "no_images",
        what: "a place as an image makes it",
        namespaces: &["--mount"],
        script: "
            mount --make-rprivate /
            mount -t tmpfs -o size=16m,mode=1777 tmpfs /tmp
            mount -o remount,bind,ro /
            setpriv --reuid=65532 --regid=65532 --clear-groups --no-new-privs --bounding-set=-all \
                --inh-caps=-all sh -c '! touch /written && touch /tmp/written'",
    },
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=tests/python/late_wires.py");
    for probe in PROBES {
        let cfg = probe.cfg;
        println!("cargo::rustc-check-cfg=cfg({cfg})");
        if let Err(why) = probe.run() {
            println!("cargo::rustc-cfg={cfg}");
            let what = probe.what;
            println!("cargo::warning=tests that need {what} are ignored: {why}");
        }
    }
}

impl Probe {
    fn run(&self) -> Result<(), String> {
        let mut unshare = Command::new("unshare");
        unshare
            .args(self.namespaces)
            .args(["sh", "-ec", self.script]);
        let ended = unshare.stdin(Stdio::null()).output();
        let ended = ended.map_err(|error| format!("unshare: {error}"))?;
        if ended.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&ended.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty());
        Err(last.unwrap_or("it failed without a word").to_owned())
    }
}
