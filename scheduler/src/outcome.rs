//! What a step gave: computed tokens are booked, new tokens sampled, full pages indexed, and what has
//! ended is ended. It must not know how the step was chosen.

use baton_engine::{LogitRows, Logits};
use baton_kv_cache::Indexed;
use baton_sampling::SampleInput;

use crate::group::Group;
use crate::plan::{Plan, PlannedSlice};
use crate::scheduler::Scheduler;
use crate::sequence::{Landing, Lane, Phase, Told};
use crate::{AfterPrompt, SequenceError, SequenceEvent, SequenceId, Token};

impl Scheduler {
    /// Books a finished step.
    pub(crate) fn complete(&mut self, plan: &Plan, logits: &Logits<'_>) {
        let mut next_row = 0;
        for slice in &plan.slices {
            let count = slice.logits.count(slice.len as usize);
            let rows: Vec<&[f32]> = (next_row..next_row + count)
                .map(|row| logits.row(row))
                .collect();
            next_row += count;
            // A choice whose sampler failed has ended its whole group.
            if self.groups.contains_key(&slice.id)
                && let Err(error) = self.complete_slice(slice, &rows)
            {
                self.fail(slice.id, error);
            }
        }
        for id in plan.ids() {
            self.end_if_over(id);
        }
    }

    /// Ends a group whose choices all have ended.
    pub(crate) fn end_if_over(&mut self, id: SequenceId) {
        let Some(group) = self.groups.get(&id) else {
            return;
        };
        if group.alive().next().is_some() || group.is_pinned() {
            return;
        }
        let done = SequenceEvent::Done {
            preemptions: group.preemptions,
        };
        self.events.push((id, done));
        self.queue.remove(&id);
        self.groups.remove(&id);
    }

    fn complete_slice(
        &mut self,
        slice: &PlannedSlice,
        rows: &[&[f32]],
    ) -> Result<(), SequenceError> {
        let Some(group) = self.groups.get_mut(&slice.id) else {
            return Ok(());
        };
        if group.is_closed() {
            return Ok(());
        }
        if group.landing == Landing::Waiting {
            group.landing = Landing::Stepped;
            self.events.push((slice.id, SequenceEvent::FirstStep));
        }
        match slice.choice {
            None => self.complete_trunk(slice, rows),
            Some(at) => {
                if let Some(lane) = group.choices[at].lane.as_mut() {
                    lane.computed = slice.from + slice.len;
                }
                self.index_pages(slice.id, Some(at));
                if let Some(row) = rows.last() {
                    return self.sample_choice(slice.id, at, row);
                }
                self.tell_chunk(slice);
                Ok(())
            }
        }
    }

    fn complete_trunk(
        &mut self,
        slice: &PlannedSlice,
        rows: &[&[f32]],
    ) -> Result<(), SequenceError> {
        let Some(group) = self.groups.get_mut(&slice.id) else {
            return Ok(());
        };
        let Phase::Prompt(trunk) = &mut group.phase else {
            return Ok(());
        };
        trunk.computed = slice.from + slice.len;
        let is_over = trunk.computed == group.trunk_len;
        if slice.logits == LogitRows::All {
            self.tell_prompt(slice, rows)?;
        }
        self.index_pages(slice.id, None);
        if !is_over {
            self.tell_chunk(slice);
            return Ok(());
        }
        let group = &self.groups[&slice.id];
        let next: Vec<usize> = group
            .alive()
            .filter(|at| group.continues_trunk(*at))
            .collect();
        if let Some(row) = rows.last() {
            for at in next {
                self.sample_choice(slice.id, at, row)?;
            }
        }
        self.leave_trunk(slice.id);
        Ok(())
    }

    /// The trunk is computed: its pages go to the choices, or stay for the transfer.
    fn leave_trunk(&mut self, id: SequenceId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Phase::Prompt(trunk) = std::mem::replace(&mut group.phase, Phase::Running) else {
            return;
        };
        match group.after {
            AfterPrompt::HandOff => {
                group.phase = Phase::Parked {
                    table: trunk.table,
                    reused_pages: 0,
                };
            }
            AfterPrompt::Decode => share_trunk(group, trunk, self.step),
        }
        if group.told < Told::PromptDone {
            group.told = Told::PromptDone;
            let event = SequenceEvent::PromptDone {
                running_choices: group.alive_indices(),
            };
            self.events.push((id, event));
        }
    }

    fn tell_chunk(&mut self, slice: &PlannedSlice) {
        let computed_tokens = slice.from + slice.len;
        let event = SequenceEvent::ChunkDone { computed_tokens };
        self.events.push((slice.id, event));
    }

    /// Tells the log-probabilities of the prompt tokens that come after the slice's.
    fn tell_prompt(&mut self, slice: &PlannedSlice, rows: &[&[f32]]) -> Result<(), SequenceError> {
        let sampler = self.model.sampler;
        let Some(group) = self.groups.get_mut(&slice.id) else {
            return Ok(());
        };
        let count = group.params.prompt_logprobs.unwrap_or(0);
        let position = slice.from + 1;
        let mut entries = Vec::with_capacity(rows.len());
        // The row of the prompt's last token is for the first token of the completion.
        for (row, &token) in rows.iter().zip(&group.prompt[position as usize..]) {
            let entry = sampler.log_probabilities(row, token, count);
            let position = position - 1 + entries.len() as u32;
            entries.push(entry.ok_or(SequenceError::PromptLogits { position })?);
        }
        group.next_prompt_logprob = position + entries.len() as u32;
        let event = SequenceEvent::PromptLogprobs { position, entries };
        self.events.push((slice.id, event));
        Ok(())
    }

    fn sample_choice(
        &mut self,
        id: SequenceId,
        at: usize,
        row: &[f32],
    ) -> Result<(), SequenceError> {
        let Some(group) = self.groups.get_mut(&id) else {
            return Ok(());
        };
        let input = SampleInput {
            logits: row,
            prompt: &group.prompt,
            completion: &group.choices[at].completion,
            choice: at as u32,
            eos_ids: &self.config.eos_ids,
        };
        let sampler = self.model.sampler;
        let sampled = sampler.sample(&group.params, &input)?;
        let position = group.choices[at].completion.len() as u32;
        group.choices[at].completion.push(sampled.token_id);
        let finish = group.finish(at, sampled.token_id, &self.config.eos_ids);
        if finish.is_some() {
            group.choices[at].ended = true;
            group.choices[at].lane = None;
        }
        self.counters.tokens += 1;
        let token = Token {
            choice: at as u32,
            position,
            token_id: sampled.token_id,
            logprobs: sampled.logprobs,
            finish,
        };
        self.events.push((id, SequenceEvent::Token(token)));
        Ok(())
    }

    /// Offers the pages that have become full to the prefix index.
    pub(crate) fn index_pages(&mut self, id: SequenceId, choice: Option<usize>) {
        let page_size = self.config.page_size;
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let cursor = group.lane_mut(choice).and_then(|lane| lane.cursor.take());
        let (Some(mut cursor), Some(lane)) = (cursor, group.lane(choice)) else {
            return;
        };
        let tokens_of = choice.or(group.trunk_choice);
        // The cursor starts over at most once: the root of a prefix is always there.
        while !cursor.is_stopped() && (cursor.pages() + 1) * page_size <= lane.computed {
            let from = cursor.pages() * page_size;
            let mut tokens = group.tokens(tokens_of, from, page_size).to_vec();
            let rest = page_size - tokens.len() as u32;
            tokens.extend_from_slice(group.tokens(tokens_of, from + page_size - rest, rest));
            let page = lane.table.pages()[cursor.pages() as usize];
            if self.pool.index_page(&mut cursor, &tokens, page) == Indexed::Stopped {
                break;
            }
        }
        if let Some(lane) = group.lane_mut(choice) {
            lane.cursor = Some(cursor);
        }
    }
}

/// Gives every choice that goes on a lane with the trunk's pages; the last takes the trunk itself.
pub(crate) fn share_trunk(group: &mut Group, trunk: Lane, step: u64) {
    let mut choices: Vec<_> = group.choices.iter_mut().filter(|c| !c.ended).collect();
    let Some(last) = choices.pop() else {
        return;
    };
    for choice in choices {
        choice.lane = Some(trunk.fork());
        choice.served_at = step;
    }
    last.lane = Some(trunk);
    last.served_at = step;
}
