//! Growth of running sequences, and whom it costs: out of pages, the latest arrival whose pages become
//! free now is preempted and recomputed later.
//!
//! Only later arrivals than the one in need are preempted, so the oldest always advances; one that finds
//! no victim waits with its pages. It must not know why pages are short.

use crate::SequenceId;
use crate::group::Group;
use crate::plan::{Plan, PlannedCopy};
use crate::scheduler::Scheduler;
use crate::sequence::{Landing, Phase};

impl Scheduler {
    /// Makes the pages for tokens `from..from + len` of a choice exist and be its own. False: not now.
    pub(crate) fn secure_pages(
        &mut self,
        plan: &mut Plan,
        id: SequenceId,
        choice: usize,
        from: u32,
        len: u32,
    ) -> bool {
        let page_size = self.config.page_size;
        let lane_of = |group: &Group| {
            let table = &group.choices[choice].lane.as_ref()?.table;
            let at = from / page_size;
            let missing = (from + len).div_ceil(page_size).saturating_sub(table.len());
            let copies = at < table.len() && table.is_shared(at);
            Some((at, missing, copies))
        };
        let Some((at, missing, copies)) = self.groups.get(&id).and_then(lane_of) else {
            return false;
        };
        if missing == 0 && !copies {
            return true;
        }
        if !self.make_room(plan, id, missing + u32::from(copies)) {
            return false;
        }
        let group = self.groups.get_mut(&id);
        let Some(lane) = group.and_then(|group| group.choices[choice].lane.as_mut()) else {
            return false;
        };
        if copies {
            match lane.table.unshare(at) {
                Ok(Some((from, to))) => plan.copies.push(PlannedCopy { id, from, to }),
                Ok(None) => {}
                Err(_) => return false,
            }
        }
        lane.table.grow(missing).is_ok()
    }

    /// Preempts until `needed` pages are available, or nobody if that cannot be reached.
    fn make_room(&mut self, plan: &Plan, id: SequenceId, needed: u32) -> bool {
        let available = self.pool.ledger().available();
        if needed <= available {
            return true;
        }
        let mut victims: Vec<(bool, SequenceId, u32)> = self
            .groups
            .range((std::ops::Bound::Excluded(id), std::ops::Bound::Unbounded))
            .map(|(_, group)| group)
            .filter(|group| is_preemptible(group) && !plan.contains(group.id))
            .map(|group| {
                (
                    group.landing == Landing::Waiting,
                    group.id,
                    self.freeable(group),
                )
            })
            .filter(|(_, _, freeable)| *freeable > 0)
            .collect();
        let within_reach: u32 = victims.iter().map(|(_, _, freeable)| freeable).sum();
        if available + within_reach < needed {
            return false;
        }
        // Latest arrival first; what has just landed and never ran comes last.
        victims.sort_unstable_by_key(|(landed, id, _)| (*landed, std::cmp::Reverse(*id)));
        for (_, victim, _) in victims {
            self.preempt(victim);
            if needed <= self.pool.ledger().available() {
                return true;
            }
        }
        false
    }

    /// Pages that preempting the group would free now; those that a transfer or another sequence
    /// shares stay.
    fn freeable(&self, group: &Group) -> u32 {
        self.pool.freeable(group.tables())
    }

    /// Takes a group's pages and puts it back into the queue, at its place by arrival.
    fn preempt(&mut self, id: SequenceId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        tracing::debug!(sequence = id.0, "preempted");
        for choice in &mut group.choices {
            choice.lane = None;
        }
        group.phase = Phase::Queued;
        group.preemptions += 1;
        self.queue.insert(id);
        self.counters.preemptions += 1;
    }
}

fn is_preemptible(group: &Group) -> bool {
    !group.is_pinned() && matches!(group.phase, Phase::Prompt(_) | Phase::Running)
}
