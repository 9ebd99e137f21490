//! What the system says of this process. It must not know what the process does.

use std::fs;
use std::sync::OnceLock;

use super::names::{BUILD_INFO, CPU_SECONDS, MAX_FDS, OPEN_FDS, RESIDENT_MEMORY, START_TIME};
use super::registry::Scrape;

/// Clock ticks of `/proc` in a second, whatever the kernel's own clock.
const TICKS_PER_SECOND: u64 = 100;

/// This process.
#[derive(Debug, Default)]
pub(super) struct Process {
    role: OnceLock<&'static str>,
}

/// What `/proc/self/stat` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stat {
    cpu_ticks: u64,
    /// Since the system's start.
    started_ticks: u64,
}

impl Process {
    pub(super) fn set_role(&self, role: &'static str) {
        // The first word counts.
        let _ = self.role.set(role);
    }

    /// Tells what can be read; what cannot is left out.
    pub(super) fn tell(&self, scrape: &Scrape<'_>) {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        if let Some(role) = self.role.get() {
            scrape.gauge(&BUILD_INFO, [env!("CARGO_PKG_VERSION"), role], 1.0);
        }
        if let Some(bytes) = resident_bytes() {
            scrape.gauge(&RESIDENT_MEMORY, [], bytes as f64);
        }
        if let Some(stat) = stat(&read("/proc/self/stat")) {
            scrape.count(&CPU_SECONDS, [], stat.cpu_ticks / TICKS_PER_SECOND);
            if let Some(boot) = field(&read("/proc/stat"), "btime ") {
                let since_boot = stat.started_ticks as f64 / TICKS_PER_SECOND as f64;
                scrape.gauge(&START_TIME, [], boot as f64 + since_boot);
            }
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // The folder itself is open meanwhile.
            scrape.gauge(&OPEN_FDS, [], open.count().saturating_sub(1) as f64);
        }
        if let Some(most) = field(&read("/proc/self/limits"), "Max open files") {
            scrape.gauge(&MAX_FDS, [], most as f64);
        }
    }
}

/// Resident bytes of this process; nothing where the system does not say.
pub fn resident_bytes() -> Option<u64> {
    resident(&fs::read_to_string("/proc/self/status").ok()?)
}

fn resident(status: &str) -> Option<u64> {
    field(status, "VmRSS:").map(|kib| kib * 1024)
}

/// The number after the beginning of a line.
fn field(text: &str, begin: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(begin))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// The name of the program may hold anything, so fields are counted from its closing bracket.
fn stat(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit(')').next()?.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    Some(Stat {
        cpu_ticks: number(11)? + number(12)?,
        started_ticks: number(19)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_whatever_the_program_is_called() {
        let text = "7 (a) b) R 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 4242 1 1";
        let found = Stat {
            cpu_ticks: 200,
            started_ticks: 4242,
        };
        assert_eq!(stat(text), Some(found));
        assert_eq!(stat("7 (x) R 1"), None);
        assert_eq!(resident("VmPeak: 9 kB\nVmRSS:\t 12 kB\n"), Some(12 << 10));
        assert_eq!(
            field("Max open files  1024  4096 files", "Max open files"),
            Some(1024)
        );
    }
}
