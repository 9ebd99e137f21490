//! Carries out a scenario's faults, and remembers who was disturbed when. It must not know what is asked.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::etcd::process::ETCD;
use crate::etcd_faults;
use crate::fleet::{Fleet, ROUTER, end, machine, name};
use crate::network::{Death, Machine};
use crate::scenario::{Fault, FaultKind};

/// A machine that could not be relied on for a while.
#[derive(Debug, Clone, Copy)]
pub struct Disturbance {
    /// Which.
    pub machine: Machine,
    /// Since when.
    pub from: Instant,
    /// Until when; `None`: still.
    pub until: Option<Instant>,
}

/// All of them.
#[derive(Debug, Default, Clone)]
pub struct Disturbances(Arc<Mutex<Vec<Disturbance>>>);

impl Disturbances {
    /// Whether a machine was disturbed at any time from `from` to `to`, or so shortly before that others
    /// may still shun it.
    pub fn touch(&self, machine: Machine, from: Instant, to: Instant, aftermath: Duration) -> bool {
        self.lock().iter().any(|disturbance| {
            disturbance.machine == machine
                && disturbance.from <= to
                && disturbance
                    .until
                    .is_none_or(|until| until + aftermath >= from)
        })
    }

    /// Whether anything has ever been done to a machine before `to`.
    pub fn touched_before(&self, machine: Machine, to: Instant) -> bool {
        let mut all = self.lock().clone().into_iter();
        all.any(|disturbance| disturbance.machine == machine && disturbance.from <= to)
    }

    /// Notes one of each machine; which they are.
    pub(crate) fn begin(&self, machines: &[Machine]) -> Range<usize> {
        let (from, until) = (Instant::now(), None);
        let mut all = self.lock();
        let first = all.len();
        all.extend(machines.iter().map(|&machine| Disturbance {
            machine,
            from,
            until,
        }));
        first..all.len()
    }

    pub(crate) fn end(&self, which: Range<usize>) {
        for disturbance in &mut self.lock()[which] {
            disturbance.until = Some(Instant::now());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Disturbance>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does what a fault says, to its end.
pub async fn carry_out(fleet: Arc<Fleet>, disturbed: Disturbances, fault: Fault) {
    match fault.kind {
        FaultKind::Kill {
            worker,
            death,
            restart_after,
        } => kill(&fleet, &disturbed, worker, death, restart_after).await,
        FaultKind::Freeze { worker, lasts } => {
            let Some(host) = fleet.host(worker) else {
                return;
            };
            let which = disturbed.begin(&[machine(worker)]);
            fleet.log.note(format_args!("{} stops", name(worker)));
            fleet.network.freeze(host.id(), true);
            tokio::time::sleep(lasts).await;
            fleet.network.freeze(host.id(), false);
            fleet.log.note(format_args!("{} goes on", name(worker)));
            disturbed.end(which);
        }
        FaultKind::Cut {
            one,
            other,
            one_way,
            lasts,
        } => {
            let ends = [end(one), end(other)];
            let hold = |held: bool| {
                fleet.network.hold(ends[0], ends[1], held);
                if !one_way {
                    fleet.network.hold(ends[1], ends[0], held);
                }
            };
            let which = disturbed.begin(&others(&ends));
            fleet
                .log
                .note(format_args!("cut {ends:?}, one way: {one_way}"));
            hold(true);
            tokio::time::sleep(lasts).await;
            hold(false);
            fleet.log.note(format_args!("healed {ends:?}"));
            disturbed.end(which);
        }
        FaultKind::Slow { one, other, by } => {
            let (one, other) = (end(one), end(other));
            fleet
                .log
                .note(format_args!("slow {one:?} {other:?} by {by:?}"));
            fleet.network.slow(one, other, by);
            fleet.network.slow(other, one, by);
        }
        FaultKind::Reset { one, other } => {
            let ends = [end(one), end(other)];
            let which = disturbed.begin(&others(&ends));
            fleet.log.note(format_args!("reset {ends:?}"));
            fleet.network.reset(ends[0], ends[1]);
            disturbed.end(which);
        }
        FaultKind::KillRouter {
            death,
            restart_after,
        } => {
            let which = disturbed.begin(&[ROUTER]);
            if fleet.kill_router(death) {
                tokio::time::sleep(restart_after).await;
                if let Err(error) = fleet.start_router() {
                    fleet
                        .log
                        .note(format_args!("the router cannot start: {error}"));
                }
            }
            disturbed.end(which);
        }
        FaultKind::Drain { worker } => {
            let which = disturbed.begin(&[machine(worker)]);
            if fleet.drain_worker(worker).await {
                start(&fleet, worker);
            }
            disturbed.end(which);
        }
        FaultKind::Etcd(fault) => etcd_faults::carry_out(&fleet, &disturbed, fault).await,
    }
}

async fn kill(
    fleet: &Arc<Fleet>,
    disturbed: &Disturbances,
    worker: usize,
    death: Death,
    restart_after: Option<Duration>,
) {
    let which = disturbed.begin(&[machine(worker)]);
    if !fleet.kill_worker(worker, death) {
        return disturbed.end(which);
    }
    if let Some(after) = restart_after {
        tokio::time::sleep(after).await;
        start(fleet, worker);
        disturbed.end(which);
    }
}

fn start(fleet: &Arc<Fleet>, worker: usize) {
    if let Err(error) = fleet.start_worker(worker) {
        fleet
            .log
            .note(format_args!("{} cannot start: {error}", name(worker)));
    }
}

/// The router is the one that all others are seen from: workers that do not reach each other serve alone.
/// A worker that etcd is not seen from serves on.
fn others(ends: &[Machine]) -> Vec<Machine> {
    if ends.contains(&ETCD) {
        return vec![ETCD];
    }
    if !ends.contains(&ROUTER) {
        return Vec::new();
    }
    ends.iter().copied().filter(|&end| end != ROUTER).collect()
}
