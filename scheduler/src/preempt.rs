//! Growth of running sequences, and whom it costs: out of pages, the latest arrival whose pages become
//! free now is preempted and recomputed later.
//!
//! A chunk is shortened to the pages there are; only if not a single token has a page is somebody
//! preempted, and never an earlier arrival than the one in need nor one that this step runs already. So
//! the oldest always advances: those that the step runs are out of pages themselves a page's tokens
//! later. One that finds no victim waits with its pages. It must not know why pages are short.

use std::cmp::Reverse;
use std::ops::Bound;

use crate::SequenceId;
use crate::group::Group;
use crate::plan::{Plan, PlannedCopy};
use crate::scheduler::Scheduler;
use crate::sequence::{Landing, Phase};

impl Scheduler {
    /// Makes the pages for up to `len` tokens of a choice from `from` on exist and be its own. Returns
    /// for how many tokens; 0: not now.
    pub(crate) fn secure_pages(
        &mut self,
        plan: &mut Plan,
        id: SequenceId,
        choice: usize,
        from: u32,
        len: u32,
    ) -> u32 {
        let page_size = self.config.page_size;
        let at = from / page_size;
        let lane_of = |group: &Group| {
            let table = &group.choices[choice].lane.as_ref()?.table;
            Some((table.len(), at < table.len() && table.is_shared(at)))
        };
        let Some((held, copies)) = self.groups.get(&id).and_then(lane_of) else {
            return 0;
        };
        let fitting = |available: u32| match available.checked_sub(u32::from(copies)) {
            Some(more) => {
                let tokens = held.saturating_add(more).saturating_mul(page_size);
                len.min(tokens.saturating_sub(from))
            }
            None => 0,
        };
        let mut fits = fitting(self.pool.ledger().available());
        if fits == 0 && self.preempt_later(plan, id) {
            fits = fitting(self.pool.ledger().available());
        }
        let group = self.groups.get_mut(&id);
        let Some(lane) = group.and_then(|group| group.choices[choice].lane.as_mut()) else {
            return 0;
        };
        if fits == 0 {
            return 0;
        }
        if copies {
            match lane.table.unshare(at) {
                Ok(Some((from, to))) => plan.copies.push(PlannedCopy { id, from, to }),
                Ok(None) => {}
                Err(_) => return 0,
            }
        }
        let missing = (from + fits).div_ceil(page_size).saturating_sub(held);
        lane.table.grow(missing).map_or(0, |()| fits)
    }

    /// Preempts the latest of the arrivals after `id` whose pages become free now. False: there is none.
    fn preempt_later(&mut self, plan: &Plan, id: SequenceId) -> bool {
        let later = self.groups.range((Bound::Excluded(id), Bound::Unbounded));
        let mut victims: Vec<_> = later
            .map(|(_, group)| group)
            .filter(|group| is_preemptible(group) && !plan.contains(group.id))
            .collect();
        // What has just landed and never ran comes last. Looking at each alone misses nobody: of those that
        // share pages, the longest has its last page for itself.
        victims
            .sort_unstable_by_key(|group| (group.landing == Landing::Waiting, Reverse(group.id)));
        let victim = victims.into_iter().find(|group| self.freeable(group) > 0);
        let Some(victim) = victim.map(|group| group.id) else {
            return false;
        };
        self.preempt(victim);
        true
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
