//! How many pages a pool gets. It must not know what is in a page.

use crate::options::MAX_PAGES;
use crate::{PoolSize, WorkerError};

/// Most bytes that the automatic size takes.
const AUTO_LIMIT: u64 = 4 << 30;

/// Pages for the pool, never more than the machine can hold.
///
/// # Errors
/// A pool that exceeds what is available, or holds not even one page.
pub(crate) fn pages(size: PoolSize, page_bytes: usize, available: u64) -> Result<u32, WorkerError> {
    let fitting = |bytes: u64| (bytes / page_bytes as u64).min(MAX_PAGES as u64) as u32;
    let pages = match size {
        PoolSize::Pages(pages) => pages,
        PoolSize::Bytes(bytes) => fitting(bytes),
        PoolSize::Auto => fitting((available / 4).min(AUTO_LIMIT)),
    };
    let needed = pages as u64 * page_bytes as u64;
    if pages == 0 || needed > available {
        return Err(WorkerError::Memory {
            pages,
            page_bytes,
            needed,
            available,
        });
    }
    Ok(pages)
}

/// Bytes that a process may still take: `MemAvailable`, and no more than its control group allows.
pub fn available_memory() -> u64 {
    let group = |name: &str| -> Option<u64> {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}"))
            .ok()?
            .trim()
            .parse()
            .ok()
    };
    let in_group = group("memory.max")
        .zip(group("memory.current"))
        .map_or(u64::MAX, |(most, used)| most.saturating_sub(used));
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available_in(&text))
        // Not Linux as we know it: do not refuse what cannot be judged.
        .unwrap_or(u64::MAX);
    machine.min(in_group)
}

/// `MemAvailable` of a `/proc/meminfo` text, in bytes.
fn available_in(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_memory() {
        assert_eq!(pages(PoolSize::Pages(7), 1000, 7000).unwrap(), 7);
        assert_eq!(pages(PoolSize::Bytes(7999), 1000, 8000).unwrap(), 7);
        assert_eq!(pages(PoolSize::Auto, 1000, 8000).unwrap(), 2);
        assert_eq!(pages(PoolSize::Auto, 1 << 20, 1 << 40).unwrap(), 4096);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_numbers() {
        let error = pages(PoolSize::Pages(8), 1000, 7999).unwrap_err();
        assert_eq!(
            error.to_string(),
            "8 pages of 1000 bytes need 8000 bytes, 7999 are available"
        );
        assert!(
            pages(PoolSize::Auto, 1000, 3999).is_err(),
            "not even one page"
        );
    }

    #[test]
    fn meminfo_is_read_in_kib() {
        let text = "MemTotal:       100 kB\nMemAvailable:   24 kB\n";
        assert_eq!(available_in(text), Some(24 * 1024));
        assert_eq!(available_in("MemAvailable: many\n"), None);
    }
}
