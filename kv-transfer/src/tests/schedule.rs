//! Both state machines under random schedules: frames are reordered, doubled, lost or late, sides are
//! killed, pages change hands. No sockets, no clock: a model of memory tells whether anything wrong
//! could ever be committed or written.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use baton_kv_cache::{KvLayout, PageIndex};
use baton_proto::domain::{Grant, PageSlot, Transport};
use baton_proto::ids::{Attempt, Incarnation, TransferId, TransferSecret};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::progress::{PACE, grant};
use super::support::layout;
use crate::error::TransferError;
use crate::frame::{AttemptKey, Frame};
use crate::progress::PageProgress;
use crate::receive::attempt::{Peer, ReceiveAttempt, Verdict};
use crate::receive::ending::Ending;
use crate::send::attempt::{Action, SendAttempt};
use crate::send::run::Run;

const PAGES: u32 = 6;
const LEASE: Duration = Duration::from_secs(2);

/// Content of a piece: whose it is, and which. Its checksum in the model is itself.
type Content = (u32, u32, u32);

fn checksum((attempt, layer, position): Content) -> u32 {
    attempt << 16 | layer << 8 | position
}

#[allow(clippy::struct_excessive_bools)] // Marks of what has happened, all independent.
/// One attempt: both machines and what is between them.
struct Pair {
    number: u32,
    grant: Grant,
    progress: std::sync::Arc<PageProgress>,
    sender: SendAttempt,
    receiver: ReceiveAttempt,
    to_receiver: Vec<(Frame, Vec<Content>)>,
    to_sender: Vec<Frame>,
    sender_alive: bool,
    /// A copy that the sender has begun and not ended (shm).
    copying: Option<Run>,
    said_commit: bool,
    ending: Option<Ending>,
    told: bool,
    /// The pool has taken the pages back.
    released: bool,
}

struct World {
    random: StdRng,
    now: Instant,
    transport: Transport,
    layout: KvLayout,
    /// Generation and owner (attempt number) of each page.
    owners: Vec<(u32, Option<u32>)>,
    memory: HashMap<(u32, u32), Content>,
    pairs: Vec<Pair>,
    committed: u32,
    rough: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let transport = if random.random() {
            Transport::Shm
        } else {
            Transport::Tcp
        };
        let rough = random.random_range(0..4) > 0;
        Self {
            random,
            now: Instant::now(),
            transport,
            layout: layout(PAGES),
            owners: vec![(0, None); PAGES as usize],
            memory: HashMap::new(),
            pairs: Vec::new(),
            committed: 0,
            rough,
        }
    }

    /// A new attempt over whatever pages are free.
    fn begin(&mut self) {
        let number = self.pairs.len() as u32 + 1;
        let free: Vec<u32> = (0..PAGES)
            .filter(|page| self.owners[*page as usize].1.is_none())
            .collect();
        if free.is_empty() || number > 4 {
            return;
        }
        let take = self.random.random_range(1..=free.len());
        let slots: Vec<PageSlot> = free[..take]
            .iter()
            .map(|page| {
                let owner = &mut self.owners[*page as usize];
                *owner = (owner.0 + 1, Some(number));
                PageSlot {
                    page: *page,
                    generation: owner.0,
                }
            })
            .collect();
        let mut grant = grant(&self.layout, &[], 0);
        grant.transfer_id = TransferId([number as u8; 16]);
        grant.attempt = Attempt(number);
        grant.slots = slots.clone();
        let tokens = take as u32 * 16 - self.random.random_range(0..16);
        let local = (0..take as u32).map(PageIndex).collect();
        let progress = PageProgress::new(self.layout.layers, 16, tokens, local);
        let piece_bytes = self.layout.piece_bytes();
        let sender = SendAttempt::new(self.now, grant.clone(), &progress, piece_bytes, PACE)
            .expect("sender");
        let key = AttemptKey {
            transfer_id: grant.transfer_id,
            attempt: grant.attempt,
        };
        let secret = TransferSecret([1; 32]);
        let mut receiver = ReceiveAttempt::new(self.now, key, secret, slots, 0, self.layout, LEASE);
        let peer = Peer {
            incarnation: Incarnation(2),
            transport: self.transport,
        };
        receiver.connect(self.now, peer).expect("connect");
        self.pairs.push(Pair {
            number,
            grant,
            progress,
            sender,
            receiver,
            to_receiver: Vec::new(),
            to_sender: Vec::new(),
            sender_alive: true,
            copying: None,
            said_commit: false,
            ending: None,
            told: false,
            released: false,
        });
    }

    fn write(&mut self, number: u32, layer: u32, page: u32, content: Content) {
        let owner = self.owners[page as usize].1;
        assert_eq!(
            owner,
            Some(number),
            "attempt {number} writes page {page} of {owner:?}"
        );
        self.memory.insert((layer, page), content);
    }

    fn sender_turn(&mut self, at: usize) {
        let now = self.now;
        let pair = &mut self.pairs[at];
        if !pair.sender_alive {
            return;
        }
        // A copy ends before anything else is looked at: one task does both.
        if let Some(run) = pair.copying.take() {
            return self.end_copy(at, run);
        }
        match self.random.random_range(0..10) {
            0..4 => {
                let layer = self.random.random_range(0..self.layout.layers);
                let tokens = self.random.random_range(0..=pair.progress.prompt_tokens());
                pair.progress.advance(layer, tokens);
            }
            4 => {
                for layer in 0..self.layout.layers {
                    pair.progress.advance(layer, u32::MAX);
                }
                pair.sender.commit(vec![pair.number as u8]);
            }
            5 if self.rough && self.random.random_range(0..30) == 0 => pair.sender.revoke(),
            _ => {}
        }
        pair.sender.expire(now);
        let credit = self.random.random_range(0..10) * self.layout.piece_bytes() as u64;
        match pair.sender.next(now, &pair.progress, credit) {
            None => {}
            Some(Action::Frame(frame)) => {
                if matches!(frame, Frame::Commit(..)) {
                    assert!(!pair.said_commit, "commit twice");
                    pair.said_commit = true;
                }
                pair.to_receiver.push((frame, Vec::new()));
            }
            Some(Action::Pages(run)) => {
                assert!(
                    !pair.said_commit && pair.sender.ending().is_none(),
                    "writes after the end"
                );
                pair.copying = Some(run);
            }
        }
    }

    fn end_copy(&mut self, at: usize, run: Run) {
        let number = self.pairs[at].number;
        let contents: Vec<Content> = (run.index..run.index + run.count)
            .map(|position| (number, run.layer, position))
            .collect();
        if self.transport == Transport::Shm {
            for (step, content) in (0u32..).zip(&contents) {
                self.write(number, run.layer, run.slot_page + step, *content);
            }
        }
        let pair = &mut self.pairs[at];
        let sums: Vec<u32> = contents.iter().map(|content| checksum(*content)).collect();
        let head = pair.sender.run_sent(self.now, &run, &sums);
        pair.to_receiver.push((Frame::Pages(head), contents));
    }

    /// One frame of `from` reaches the receiver's machine of `to` (usually its own).
    fn deliver(&mut self, from: usize, to: usize, at: usize) {
        let keep = self.rough && self.random.random_range(0..12) == 0;
        let (frame, contents) = if keep {
            self.pairs[from].to_receiver[at].clone()
        } else {
            self.pairs[from].to_receiver.remove(at)
        };
        let now = self.now;
        let pair = &mut self.pairs[to];
        let own = frame_key(&frame)
            == Some(AttemptKey {
                transfer_id: pair.grant.transfer_id,
                attempt: pair.grant.attempt,
            });
        match frame {
            Frame::Pages(head) => {
                let payload = match self.transport {
                    Transport::Shm => 0,
                    Transport::Tcp => contents.len() * self.layout.piece_bytes(),
                };
                let verdict = pair.receiver.pages_arrive(now, &head, payload);
                let Verdict::Land { run, landed_before } = verdict else {
                    return;
                };
                assert!(own, "a foreign frame was let in");
                for (step, before) in (0..run.count).zip(landed_before) {
                    let content = contents[step as usize];
                    let number = self.pairs[to].number;
                    if self.transport == Transport::Tcp && !before {
                        self.write(number, run.layer, run.page + step, content);
                    }
                    let found = self.memory.get(&(run.layer, run.page + step)).copied();
                    let stated = head.marks[step as usize].checksum;
                    self.pairs[to].receiver.landed(
                        run.layer,
                        head.position + step,
                        stated,
                        found.map_or(0, checksum),
                    );
                }
            }
            Frame::Open(_, manifest) if own => pair.receiver.open(now, &manifest),
            Frame::KeepAlive(key) if own => {
                pair.receiver.renew(now);
                pair.to_sender.push(Frame::KeepAlive(key));
            }
            Frame::Commit(_, commit) if own => pair.receiver.commit(commit),
            Frame::Revoke(_) if own => pair.receiver.revoke(),
            Frame::RevokeAck(_) if own => pair.receiver.acknowledged(),
            _ => {}
        }
    }

    /// Books what the receivers have decided; checks that they never change their mind.
    fn settle(&mut self) {
        for at in 0..self.pairs.len() {
            let pair = &mut self.pairs[at];
            let Some(ending) = pair.receiver.ending().cloned() else {
                continue;
            };
            if let Some(before) = &pair.ending {
                assert_eq!(*before, ending, "two outcomes");
            } else {
                pair.ending = Some(ending.clone());
                if matches!(ending, Ending::Committed(_)) {
                    self.check_commit(at);
                }
            }
            let pair = &mut self.pairs[at];
            let key = pair.receiver.key();
            if !std::mem::replace(&mut pair.told, true) {
                pair.to_sender.push(match &ending {
                    Ending::Committed(_) => Frame::CommitAck(key),
                    Ending::Revoked => Frame::RevokeAck(key),
                    Ending::Failed(_) => Frame::Closed(key, ending.reason()),
                });
            }
            // The pool takes pages back the moment it may.
            if pair.receiver.is_fenced() && !std::mem::replace(&mut pair.released, true) {
                let number = pair.number;
                for owner in self
                    .owners
                    .iter_mut()
                    .filter(|(_, owner)| *owner == Some(number))
                {
                    owner.1 = None;
                }
            }
        }
    }

    fn check_commit(&mut self, at: usize) {
        let pair = &self.pairs[at];
        self.committed += 1;
        assert!(pair.said_commit);
        for (position, slot) in (0u32..).zip(&pair.grant.slots) {
            for layer in 0..self.layout.layers {
                let found = self.memory.get(&(layer, slot.page)).copied();
                assert_eq!(
                    found,
                    Some((pair.number, layer, position)),
                    "committed wrong bytes"
                );
            }
        }
    }

    fn turn(&mut self) {
        if self.pairs.is_empty() || self.random.random_range(0..40) == 0 {
            self.begin();
        }
        let at = self.random.random_range(0..self.pairs.len());
        let waiting = self.pairs[at].to_receiver.len();
        match self.random.random_range(0..100) {
            0..45 => self.sender_turn(at),
            45..80 if waiting > 0 => {
                let which = if self.rough && self.random.random_range(0..6) == 0 {
                    self.random.random_range(0..waiting)
                } else {
                    0
                };
                let astray = self.rough && self.random.random_range(0..20) == 0;
                let to = if astray {
                    self.random.random_range(0..self.pairs.len())
                } else {
                    at
                };
                self.deliver(at, to, which);
            }
            80..92 => {
                let pair = &mut self.pairs[at];
                if pair.sender_alive && pair.copying.is_none() && !pair.to_sender.is_empty() {
                    let frame = pair.to_sender.remove(0);
                    pair.sender.heard(self.now, &frame);
                }
            }
            92..95 => self.now += Duration::from_millis(self.random.random_range(0..400)),
            95 if self.rough && waiting > 0 => {
                let lost = self.random.random_range(0..waiting);
                self.pairs[at].to_receiver.remove(lost);
            }
            96 if self.rough && self.random.random_range(0..4) == 0 => {
                // Killed: a copy in progress dies with it, and its end of the socket closes.
                let pair = &mut self.pairs[at];
                pair.sender_alive = false;
                pair.copying = None;
                pair.receiver.disconnected("killed");
            }
            97 if self.rough && self.random.random_range(0..6) == 0 => {
                self.pairs[at].receiver.fail(TransferError::Revoked);
            }
            _ => {
                let now = self.now;
                self.pairs[at].receiver.expire(now);
            }
        }
        self.settle();
    }
}

fn frame_key(frame: &Frame) -> Option<AttemptKey> {
    match frame {
        Frame::Pages(head) => Some(head.key),
        Frame::Open(key, _)
        | Frame::KeepAlive(key)
        | Frame::Commit(key, _)
        | Frame::Revoke(key)
        | Frame::RevokeAck(key) => Some(*key),
        _ => None,
    }
}

#[test]
fn xfr_02_no_schedule_commits_or_writes_anything_wrong() {
    let (mut committed, mut failed) = (0, 0);
    for seed in 0..3000 {
        let mut world = World::new(seed);
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..600 {
                world.turn();
            }
        }));
        assert!(result.is_ok(), "seed {seed}");
        committed += world.committed;
        failed += world
            .pairs
            .iter()
            .filter(|pair| matches!(pair.ending, Some(Ending::Failed(_))))
            .count();
    }
    println!("{committed} committed, {failed} failed");
    assert!(
        committed > 1000 && failed > 1000,
        "{committed} committed, {failed} failed"
    );
}
