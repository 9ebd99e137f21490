//! What the next step runs: decode rows first, then chunks, within one token budget.
//!
//! Neither starves the other: while chunks wait, an eighth of the budget and one slice are theirs, and
//! decode rows take turns, least recently served first. It must not know engines or clocks.

use baton_engine::{LogitRows, SequenceSlice};
use baton_kv_cache::PageIndex;

use crate::SequenceId;
use crate::group::Group;
use crate::scheduler::Scheduler;
use crate::sequence::Phase;

/// One slice of the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedSlice {
    pub(crate) id: SequenceId,
    /// The choice whose lane it runs on; `None`: the trunk.
    pub(crate) choice: Option<usize>,
    /// First token.
    pub(crate) from: u32,
    /// Tokens, at least one.
    pub(crate) len: u32,
    /// Whose logits are wanted.
    pub(crate) logits: LogitRows,
}

/// Pages to copy before the step, for one group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlannedCopy {
    pub(crate) id: SequenceId,
    pub(crate) from: PageIndex,
    pub(crate) to: PageIndex,
}

/// The next step.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) slices: Vec<PlannedSlice>,
    pub(crate) copies: Vec<PlannedCopy>,
}

impl Plan {
    pub(crate) fn contains(&self, id: SequenceId) -> bool {
        self.slices.iter().any(|slice| slice.id == id)
    }

    /// Tokens that the step runs.
    pub(crate) fn tokens(&self) -> usize {
        self.slices.iter().map(|slice| slice.len as usize).sum()
    }

    /// Takes a group out of the step.
    pub(crate) fn remove(&mut self, id: SequenceId) {
        self.slices.retain(|slice| slice.id != id);
        self.copies.retain(|copy| copy.id != id);
    }

    /// Groups in the step, ascending.
    pub(crate) fn ids(&self) -> Vec<SequenceId> {
        let mut ids: Vec<_> = self.slices.iter().map(|slice| slice.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// What is left of a step.
struct Room {
    tokens: usize,
    slices: usize,
    /// Rows of logits for prompts' log-probabilities.
    prompt_rows: usize,
}

impl Room {
    fn is_left(&self) -> bool {
        self.tokens > 0 && self.slices > 0
    }
}

impl Scheduler {
    /// Decides what the next step runs, preempting and admitting as needed. Empty: nothing can run
    /// until something from outside happens.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        let mut room = Room {
            tokens: self.config.token_budget,
            slices: self.config.max_batch,
            prompt_rows: self.config.max_prompt_rows,
        };
        let most_rows = self.decode_rows();
        self.plan_decode_rows(&mut plan, &mut room, most_rows);
        let before_chunks = plan.slices.len();
        for (id, choice) in self.chunk_lanes() {
            self.plan_chunk(&mut plan, &mut room, id, choice);
        }
        while room.is_left()
            && let Some(id) = self.admit_head(room.prompt_rows > 0)
        {
            self.plan_chunk(&mut plan, &mut room, id, None);
        }
        self.chunks_ran = plan.slices.len() > before_chunks;
        if !self.chunks_ran && most_rows < self.config.rows() {
            // No chunk could run after all: its share is for decode rows.
            let rest = self.config.rows() - plan.slices.len();
            self.plan_decode_rows(&mut plan, &mut room, rest);
        }
        if !plan.slices.is_empty() {
            self.step += 1;
        }
        plan
    }

    /// Takes out of a plan what has ended since it was made (a reader that left while it was told).
    pub(crate) fn prune(&self, plan: &mut Plan) {
        let is_there = |slice: &PlannedSlice| {
            let group = self.groups.get(&slice.id);
            group.is_some_and(|group| group.lane(slice.choice).is_some())
        };
        let gone: Vec<_> = plan
            .slices
            .iter()
            .filter(|slice| !is_there(slice))
            .map(|s| s.id)
            .collect();
        for id in gone {
            plan.remove(id);
        }
    }

    /// The slices of a plan as the engine takes them, one for each of the plan's: nothing in it has
    /// ended since ([`prune`](Self::prune)).
    pub(crate) fn slices<'a>(&'a self, plan: &Plan) -> Vec<SequenceSlice<'a>> {
        let slice = |slice: &PlannedSlice| {
            let group = self.groups.get(&slice.id)?;
            let choice = slice.choice.or(group.trunk_choice);
            Some(SequenceSlice {
                token_ids: group.tokens(choice, slice.from, slice.len),
                position: slice.from,
                pages: group.lane(slice.choice)?.table.pages(),
                logits: slice.logits,
            })
        };
        let slices: Vec<_> = plan.slices.iter().filter_map(slice).collect();
        debug_assert_eq!(slices.len(), plan.slices.len(), "the plan is pruned");
        slices
    }

    /// Most decode rows of this step.
    fn decode_rows(&mut self) -> usize {
        let rows = self.config.rows();
        if self.chunk_lanes().is_empty() && !self.head_fits() {
            rows
        } else if rows > 1 {
            self.config.decode_rows_beside_chunks().min(rows - 1)
        } else {
            // One slice per step: the two kinds alternate.
            usize::from(self.chunks_ran)
        }
    }

    fn plan_decode_rows(&mut self, plan: &mut Plan, room: &mut Room, most: usize) {
        let mut lanes = Vec::new();
        for group in self.groups.values().filter(|group| !group.paused) {
            for at in group.alive() {
                let choice = &group.choices[at];
                let computed = choice.lane.as_ref().map(|lane| lane.computed);
                if computed.is_some_and(|computed| group.choice_len(at) - computed == 1) {
                    lanes.push((choice.served_at, group.id, at));
                }
            }
        }
        lanes.sort_unstable();
        let mut planned = 0;
        for (_, id, at) in lanes {
            if planned == most || !room.is_left() {
                break;
            }
            let is_planned = |slice: &PlannedSlice| slice.id == id && slice.choice == Some(at);
            if !plan.slices.iter().any(is_planned) && self.plan_lane(plan, room, id, Some(at), 1) {
                planned += 1;
            }
        }
    }

    /// Lanes with more than one token to compute, in order of arrival.
    fn chunk_lanes(&self) -> Vec<(SequenceId, Option<usize>)> {
        let mut lanes = Vec::new();
        for group in self.groups.values().filter(|group| !group.paused) {
            if let Phase::Prompt(_) = group.phase {
                lanes.push((group.id, None));
            }
            for at in group.alive() {
                let computed = group.choices[at].lane.as_ref().map(|lane| lane.computed);
                if computed.is_some_and(|computed| group.choice_len(at) - computed > 1) {
                    lanes.push((group.id, Some(at)));
                }
            }
        }
        lanes
    }

    fn plan_chunk(
        &mut self,
        plan: &mut Plan,
        room: &mut Room,
        id: SequenceId,
        choice: Option<usize>,
    ) {
        let most = self.config.max_chunk.min(room.tokens);
        self.plan_lane(plan, room, id, choice, most);
    }

    /// Adds up to `most` tokens of a lane, as many as pages can be had for.
    fn plan_lane(
        &mut self,
        plan: &mut Plan,
        room: &mut Room,
        id: SequenceId,
        choice: Option<usize>,
        most: usize,
    ) -> bool {
        if !room.is_left() {
            return false;
        }
        let Some((from, mut len)) = self
            .groups
            .get(&id)
            .and_then(|group| extent(group, choice, most))
        else {
            return false;
        };
        if let Some(at) = choice {
            len = self.secure_pages(plan, id, at, from, len);
        }
        if len == 0 {
            return false;
        }
        let Some(group) = self.groups.get_mut(&id) else {
            return false;
        };
        let tells_prompt = match group.first_owed_row().filter(|_| choice.is_none()) {
            // A chunk ends where the rows that are owed begin, so that it owes all of its rows or none.
            Some(owed) if from < owed => {
                len = len.min(owed - from);
                false
            }
            Some(_) => {
                len = len.min(room.prompt_rows.min(u32::MAX as usize) as u32);
                room.prompt_rows -= len as usize;
                true
            }
            None => false,
        };
        if len == 0 {
            return false;
        }
        let is_sampled = match choice {
            Some(at) => from + len == group.choice_len(at),
            None => {
                from + len == group.trunk_len && group.alive().any(|at| group.continues_trunk(at))
            }
        };
        let logits = match (tells_prompt, is_sampled) {
            (true, _) => LogitRows::All,
            (false, true) => LogitRows::Last,
            (false, false) => LogitRows::None,
        };
        if let Some(at) = choice {
            group.choices[at].served_at = self.step + 1;
        }
        room.tokens -= len as usize;
        room.slices -= 1;
        plan.slices.push(PlannedSlice {
            id,
            choice,
            from,
            len,
            logits,
        });
        true
    }
}

/// Where the next chunk of a lane begins and how long it is.
fn extent(group: &Group, choice: Option<usize>, most: usize) -> Option<(u32, u32)> {
    let most = most.min(u32::MAX as usize) as u32;
    let from = group.lane(choice)?.computed;
    let tokens_of = choice.or(group.trunk_choice);
    let len = group.tokens(tokens_of, from, most).len() as u32;
    (len > 0).then_some((from, len))
}
