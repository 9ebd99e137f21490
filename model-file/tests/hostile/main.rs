//! Hostile bytes. This binary reads nothing large, so that its own peak memory is the evidence that
//! no test made the readers allocate what a file merely declares.

mod mutations;
mod sizes;

/// Peak resident memory of this process, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmHWM:"))
        .unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib / 1024
}

/// Above the programs' own needs and far below what hostile files declare.
const PEAK_LIMIT_MIB: u64 = 50;
