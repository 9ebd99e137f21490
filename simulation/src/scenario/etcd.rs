//! What happens to etcd, in the seeds that have one. It must not know what else happens.

use std::time::Duration;

use super::{End, Fault, FaultKind, Known};
use crate::chance::Random;
use crate::network::Death;

/// One seed in so many has etcd.
const ONE_IN: u64 = 3;
/// Most of its faults.
const MOST_FAULTS: u64 = 5;
/// How long a registration outlives its worker, in seconds.
const LEASES_S: [u64; 3] = [1, 3, 5];

/// What goes wrong with etcd.
#[derive(Debug, Clone, Copy)]
pub enum EtcdFault {
    /// It dies and starts again.
    Kill {
        /// Whether anybody is told.
        death: Death,
        /// When it starts again.
        restart_after: Duration,
        /// Whether all that it kept is lost.
        forgets: bool,
    },
    /// It stops, then goes on.
    Freeze {
        /// For how long.
        lasts: Duration,
    },
    /// Watches that are open say nothing more, and are not closed.
    Deafen,
    /// Answers are late.
    Late {
        /// By how much.
        by: Duration,
        /// For how long.
        lasts: Duration,
    },
    /// Every lease ends.
    Revoke,
    /// Its history is dropped.
    Compact,
    /// Entries appear that are none.
    Junk,
    /// Entries of workers at which something else is written.
    Spoil,
    /// Entries of workers are deleted.
    Delete,
    /// An entry appears for each worker that names an earlier start of it at the same address.
    Ghosts,
}

/// Whether a seed has etcd; if so, what happens to it is added.
pub(super) fn scenario(
    mut random: Random,
    workers: usize,
    busy_ms: u64,
    faults: &mut Vec<Fault>,
) -> Option<Known> {
    let lease = random
        .one_in(ONE_IN)
        .then(|| Duration::from_secs(*random.pick(&LEASES_S)))?;
    let count = random.between(0, MOST_FAULTS);
    faults.extend((0..count).map(|_| fault(&mut random, workers, busy_ms)));
    Some(Known::Etcd { lease })
}

fn fault(random: &mut Random, workers: usize, busy_ms: u64) -> Fault {
    let at = Duration::from_millis(random.below(2 * busy_ms));
    let lasts = Duration::from_millis(*random.pick(&[100, 1000, 4000, 8000, 20_000]));
    let other = match random.below(workers as u64 + 2) as usize {
        other if other < workers => End::Worker(other),
        _ => End::Router,
    };
    let one = End::Etcd;
    let kind = match random.below(17) {
        0..3 => FaultKind::Etcd(EtcdFault::Kill {
            death: *random.pick(&[Death::Killed, Death::Silent]),
            restart_after: lasts,
            forgets: random.one_in(3),
        }),
        3 | 4 => FaultKind::Etcd(EtcdFault::Freeze { lasts }),
        5 | 6 => FaultKind::Cut {
            one,
            other,
            one_way: false,
            lasts,
        },
        7 => FaultKind::Reset { one, other },
        8 => FaultKind::Slow {
            one,
            other,
            by: Duration::from_millis(random.between(5, 400)),
        },
        9 => FaultKind::Etcd(EtcdFault::Deafen),
        10 => FaultKind::Etcd(EtcdFault::Late {
            by: Duration::from_millis(*random.pick(&[200, 1000, 2500, 4000])),
            lasts,
        }),
        11 => FaultKind::Etcd(EtcdFault::Revoke),
        12 => FaultKind::Etcd(EtcdFault::Compact),
        13 => FaultKind::Etcd(EtcdFault::Junk),
        14 => FaultKind::Etcd(EtcdFault::Spoil),
        15 => FaultKind::Etcd(EtcdFault::Delete),
        _ => FaultKind::Etcd(EtcdFault::Ghosts),
    };
    Fault { at, kind }
}
