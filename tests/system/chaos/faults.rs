//! The killer: a seeded plan of faults and what is done for each. It knows nothing of the load.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use baton_model_file::fixtures::Random;
use tokio::task::JoinSet;

use super::fleet::{Fleet, Role};

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Deed {
    /// SIGKILL; the next process listens elsewhere.
    Kill,
    /// SIGKILL; the next process listens at the same address.
    Replace,
    /// SIGSTOP, later SIGCONT.
    Stop,
    /// SIGTERM; the process must finish what runs and end well.
    Drain,
}

/// To whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Target {
    Member(Role),
    Etcd,
}

pub(super) type Kind = (Target, Deed);

const ROUTER: Target = Target::Member(Role::Router);
const PREFILL: Target = Target::Member(Role::Prefill);
const DECODE: Target = Target::Member(Role::Decode);

/// Every so many faults each of these comes once. Routers always come back at their address, for that is
/// all that clients know of them.
const DECK: [Kind; 15] = [
    (DECODE, Deed::Kill),
    (DECODE, Deed::Kill),
    (DECODE, Deed::Replace),
    (DECODE, Deed::Stop),
    (DECODE, Deed::Stop),
    (DECODE, Deed::Drain),
    (PREFILL, Deed::Kill),
    (PREFILL, Deed::Replace),
    (PREFILL, Deed::Stop),
    (PREFILL, Deed::Drain),
    (Target::Etcd, Deed::Kill),
    (Target::Etcd, Deed::Stop),
    (ROUTER, Deed::Kill),
    (ROUTER, Deed::Stop),
    (ROUTER, Deed::Drain),
];

/// One fault of the plan.
#[derive(Debug, Clone, Copy)]
struct Fault {
    kind: Kind,
    /// Which one of its role.
    number: usize,
    /// After the fault before.
    pause: Duration,
    /// How long it is stopped or, for etcd, dead.
    lasts: Duration,
}

/// Faults without end, a function of the seed.
struct Plan {
    random: Random,
    deck: Vec<Kind>,
}

impl Plan {
    fn next(&mut self) -> Fault {
        if self.deck.is_empty() {
            self.deck.extend(DECK);
        }
        let card = self.random.below(self.deck.len());
        let random = &mut self.random;
        let mut between = |low: usize, high: usize| {
            Duration::from_millis((low + random.below(high - low)) as u64)
        };
        Fault {
            kind: self.deck.swap_remove(card),
            pause: between(200, 1400),
            lasts: between(300, 5000),
            number: self.random.below(6),
        }
    }
}

impl Fleet {
    /// Does one fault after the other until `end`, several at a time; gives how many of each kind have
    /// been survived.
    pub(super) async fn suffer(self: Arc<Self>, seed: u64, end: Instant) -> BTreeMap<Kind, usize> {
        let mut plan = Plan {
            random: Random::named(seed, "faults"),
            deck: Vec::new(),
        };
        let mut under_way = JoinSet::new();
        let mut survived = BTreeMap::new();
        let mut book = |done: Result<Kind, tokio::task::JoinError>| match done {
            Ok(kind) => *survived.entry(kind).or_insert(0) += 1,
            Err(error) => self.violated(format!("a fault was not survived: {error}")),
        };
        'faults: loop {
            let fault = plan.next();
            tokio::time::sleep(fault.pause).await;
            let member = self.member(&fault);
            while !self.bears(fault.kind.0, member) {
                if Instant::now() >= end {
                    break 'faults;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if Instant::now() >= end {
                break;
            }
            match member {
                Some(member) => self.members[member].change(|history| history.disturbed = true),
                None => self.etcd_disturbed.store(true, Ordering::Relaxed),
            }
            under_way.spawn(self.clone().commit(fault, member));
            while let Some(done) = under_way.try_join_next() {
                book(done);
            }
        }
        while let Some(done) = under_way.join_next().await {
            book(done);
        }
        survived
    }

    /// The member that the fault is about; none for etcd.
    fn member(&self, fault: &Fault) -> Option<usize> {
        let Target::Member(role) = fault.kind.0 else {
            return None;
        };
        let all: Vec<_> = self.of(role).collect();
        Some(all[fault.number % all.len()])
    }

    /// Whether enough is left to keep the promises: one decode worker and one router that nothing is done
    /// to, and a router that starts has etcd to learn of workers.
    fn bears(&self, target: Target, member: Option<usize>) -> bool {
        let calm = |role| self.of(role).filter(|one| self.is_calm(*one)).count();
        let itself = member.is_none_or(|member| self.is_calm(member));
        let others = match target {
            PREFILL => true,
            DECODE => calm(Role::Decode) > 1,
            _ => calm(Role::Router) > 1 && self.etcd_is_calm(),
        };
        itself && others
    }

    async fn commit(self: Arc<Self>, fault: Fault, member: Option<usize>) -> Kind {
        println!(
            "{:?} {:?} {:?}",
            fault.kind.1,
            member.map_or("etcd", |member| &self.members[member].name),
            fault.lasts
        );
        if let Some(member) = member {
            self.disturb(member, fault).await;
            self.until_known(member).await;
            self.members[member].change(|history| history.disturbed = false);
        } else {
            self.disturb_etcd(fault).await;
            self.etcd_disturbed.store(false, Ordering::Relaxed);
        }
        fault.kind
    }

    async fn disturb(self: &Arc<Self>, number: usize, fault: Fault) {
        let member = &self.members[number];
        let deed = fault.kind.1;
        match deed {
            Deed::Stop => {
                member.change(|history| history.stops += 1);
                member.signal("STOP");
                tokio::time::sleep(fault.lasts).await;
                member.signal("CONT");
                return;
            }
            Deed::Kill | Deed::Replace => {
                member.change(|history| history.kills += 1);
                member.signal("KILL");
            }
            Deed::Drain => {
                member.change(|history| history.drains += 1);
                member.signal("TERM");
            }
        }
        let keeps_address = member.role == Role::Router || deed == Deed::Replace;
        let listen = if keeps_address {
            member.address()
        } else {
            "127.0.0.1:0".to_owned()
        };
        let fleet = self.clone();
        let replaced = tokio::task::spawn_blocking(move || {
            fleet.bury(number, deed == Deed::Drain);
            fleet.launch(number, &listen);
        });
        replaced.await.expect("another process takes its place");
    }

    async fn disturb_etcd(self: &Arc<Self>, fault: Fault) {
        let etcd = || {
            self.etcd
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        };
        if fault.kind.1 == Deed::Stop {
            etcd().signal("STOP");
            tokio::time::sleep(fault.lasts).await;
            etcd().signal("CONT");
        } else {
            etcd().kill();
            tokio::time::sleep(fault.lasts).await;
            let fleet = self.clone();
            let started = tokio::task::spawn_blocking(move || {
                let mut etcd = fleet.etcd.lock().expect("not poisoned");
                etcd.start_again(true);
            });
            started.await.expect("etcd starts again");
        }
    }
}
