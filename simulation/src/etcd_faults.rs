//! Carries out what happens to etcd and to what it keeps. It must not know why.

use std::time::Duration;

use baton_proto::v1;
use prost::Message as _;

use crate::etcd::process::{ETCD, Etcd};
use crate::etcd::store::Store;
use crate::faults::Disturbances;
use crate::fleet::{Fleet, key, keys};
use crate::scenario::EtcdFault;

/// Entries that are none: more than are read at a time.
const JUNK: usize = 40;

/// Does what a fault says, to its end.
pub async fn carry_out(fleet: &Fleet, disturbed: &Disturbances, fault: EtcdFault) {
    let Some(etcd) = &fleet.etcd else {
        return;
    };
    let which = disturbed.begin(&[ETCD]);
    fleet.log.note(format_args!("to etcd: {fault:?}"));
    match fault {
        EtcdFault::Kill {
            death,
            restart_after,
            forgets,
        } => {
            if etcd.kill(death) {
                if forgets {
                    etcd.with(Store::forget);
                }
                tokio::time::sleep(restart_after).await;
                if let Err(error) = etcd.start() {
                    fleet.log.note(format_args!("etcd cannot start: {error}"));
                }
            }
        }
        EtcdFault::Freeze { lasts } => {
            etcd.freeze(true);
            tokio::time::sleep(lasts).await;
            etcd.freeze(false);
        }
        EtcdFault::Deafen => etcd.deafen(),
        EtcdFault::Late { by, lasts } => {
            etcd.answer_late(by);
            tokio::time::sleep(lasts).await;
            etcd.answer_late(Duration::ZERO);
        }
        EtcdFault::Revoke => {
            etcd.with(Store::revoke_all);
        }
        EtcdFault::Compact => etcd.with(Store::compact),
        EtcdFault::Junk => junk(etcd),
        EtcdFault::Spoil => {
            for (key, _) in etcd.with(|store| store.leased()) {
                etcd.with(|store| store.put(key, b"spoiled".to_vec()));
            }
        }
        EtcdFault::Delete => {
            for (key, _) in etcd.with(|store| store.leased()) {
                etcd.with(|store| store.remove(&key));
            }
        }
        EtcdFault::Ghosts => ghosts(etcd),
    }
    disturbed.end(which);
}

/// Keys that name nobody, and values that say nothing.
fn junk(etcd: &Etcd) {
    for number in 0..JUNK {
        let key = match number % 4 {
            0 => format!("{}decode/junk/{:016x}", keys(), number + 1),
            1 => format!("{}prefill/{number}", keys()),
            2 => format!("{}../{number}/x", keys()),
            _ => format!("{}decode/a b/{:016x}", keys(), number + 1),
        };
        let value = vec![number as u8; number * 50];
        etcd.with(|store| store.put(key.into_bytes(), value));
    }
}

/// For each worker another start of it, at its address.
fn ghosts(etcd: &Etcd) {
    for (_, value) in etcd.with(|store| store.leased()) {
        let Ok(mut record) = v1::WorkerRecord::decode(&*value) else {
            continue;
        };
        let Some(info) = &mut record.info else {
            continue;
        };
        info.incarnation ^= 1;
        let key = key(info);
        let value = record.encode_to_vec();
        etcd.with(|store| store.put(key.into_bytes(), value));
    }
}
