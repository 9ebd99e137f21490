//! What the owner of a sequence asks for, between steps: land, quarantine, release, cancel. It must not
//! know who the owner is.

use baton_kv_cache::Hold;

use crate::group::Group;
use crate::outcome::share_trunk;
use crate::scheduler::Scheduler;
use crate::sequence::{Landing, Lane, Phase, Told};
use crate::{AfterPrompt, SequenceError, SequenceEvent, SequenceId, Token};

impl Scheduler {
    /// The transfer is committed: the sequence stands as if computed here up to its first tokens.
    pub(crate) fn land(
        &mut self,
        id: SequenceId,
        first_tokens: &[Token],
        running_choices: &[u32],
    ) -> Result<(), SequenceError> {
        let group = self
            .groups
            .get_mut(&id)
            .filter(|group| matches!(group.phase, Phase::Reserved { .. }))
            .ok_or(SequenceError::UnknownSequence)?;
        check_landing(group, first_tokens, running_choices, self.model.vocabulary)
            .map_err(SequenceError::BadSpec)?;
        let Phase::Reserved {
            mut table, cursor, ..
        } = std::mem::replace(&mut group.phase, Phase::Running)
        else {
            return Err(SequenceError::UnknownSequence);
        };
        table.convert(Hold::Sequence);
        for token in first_tokens {
            let choice = &mut group.choices[token.choice as usize];
            if !choice.ended {
                choice.completion.push(token.token_id);
            }
        }
        let limit = group.limit as usize;
        for (at, choice) in group.choices.iter_mut().enumerate() {
            let runs = running_choices.contains(&(at as u32));
            choice.ended |= !runs || choice.completion.len() >= limit;
        }
        group.landing = Landing::Waiting;
        group.told = Told::PromptDone;
        let lane = Lane {
            table,
            computed: group.trunk_len,
            cursor,
        };
        share_trunk(group, lane, self.step);
        let first = group.alive().next();
        if let Some(first) = first {
            self.index_pages(id, Some(first));
        }
        self.end_if_over(id);
        Ok(())
    }

    /// Broken transfer: what the peer may still write becomes quarantined.
    pub(crate) fn quarantine(&mut self, id: SequenceId) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let phase = std::mem::replace(&mut group.phase, Phase::Queued);
        group.phase = match phase {
            Phase::Reserved {
                table,
                reused_pages,
                ..
            }
            | Phase::Parked {
                table,
                reused_pages,
            } if table.hold() == Hold::Grant => {
                let mut table = table;
                table.release_front(reused_pages);
                table.convert(Hold::Quarantine);
                group.told = Told::End;
                Phase::Quarantined { _table: table }
            }
            other => other,
        };
    }

    /// Gives back everything of a sequence, in whatever state.
    pub(crate) fn release(&mut self, id: SequenceId) {
        self.queue.remove(&id);
        if let Some(group) = self.groups.remove(&id)
            && !group.is_closed()
            && !(group.after == AfterPrompt::HandOff && group.told == Told::PromptDone)
        {
            self.counters.cancelled += 1;
        }
    }

    /// The reader has gone: cancel, but leave the pages that a transfer may touch.
    pub(crate) fn reader_gone(&mut self, id: SequenceId) {
        match self.groups.get_mut(&id) {
            Some(group) if group.is_pinned() => {
                if !group.is_closed() && !matches!(group.phase, Phase::Parked { .. }) {
                    self.counters.cancelled += 1;
                }
                park(group);
            }
            Some(_) => self.release(id),
            None => {}
        }
    }

    /// Ends a sequence by an error.
    pub(crate) fn fail(&mut self, id: SequenceId, error: SequenceError) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        if group.is_closed() {
            return;
        }
        self.events.push((id, SequenceEvent::Failed(error)));
        if group.is_pinned() {
            park(group);
        } else {
            self.queue.remove(&id);
            self.groups.remove(&id);
        }
    }

    /// Ends one choice.
    pub(crate) fn cancel_choice(&mut self, id: SequenceId, choice: u32) {
        let Some(group) = self.groups.get_mut(&id) else {
            return;
        };
        let Some(choice) = group.choices.get_mut(choice as usize) else {
            return;
        };
        choice.ended = true;
        choice.lane = None;
        // If it waits, it needs fewer pages now.
        self.blocked = None;
        if group.alive().next().is_none() && group.is_pinned() {
            // Nothing is left to compute; the pages wait for the end of the transfer.
            if group.after == AfterPrompt::Decode && !group.is_closed() {
                let done = SequenceEvent::Done { preemptions: 0 };
                self.events.push((id, done));
            }
            park(group);
        }
        self.end_if_over(id);
    }

    /// The hand-off's pages no longer wait for a grant, or do so again.
    pub(crate) fn set_granted(&mut self, id: SequenceId, granted: bool) {
        if let Some(group) = self.groups.get_mut(&id) {
            let may_wait = group.after == AfterPrompt::HandOff && group.told != Told::End;
            group.awaits_grant = !granted && may_wait;
        }
    }

    /// The reader of a sequence is behind, or has caught up.
    pub(crate) fn set_paused(&mut self, id: SequenceId, paused: bool) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.paused = paused;
        }
    }

    /// Refuse new work from now on.
    pub(crate) fn drain(&mut self) {
        self.draining = true;
    }
}

/// Stops a pinned group; its pages stay until `release`.
fn park(group: &mut Group) {
    group.told = Told::End;
    group.awaits_grant = false;
    let phase = std::mem::replace(&mut group.phase, Phase::Queued);
    group.phase = match phase {
        Phase::Prompt(trunk) => Phase::Parked {
            table: trunk.table,
            reused_pages: 0,
        },
        Phase::Reserved {
            table,
            reused_pages,
            ..
        } => Phase::Parked {
            table,
            reused_pages,
        },
        other => other,
    };
}

fn check_landing(
    group: &Group,
    first_tokens: &[Token],
    running_choices: &[u32],
    vocabulary: u32,
) -> Result<(), String> {
    for token in first_tokens {
        let Some(choice) = group.choices.get(token.choice as usize) else {
            return Err(format!("first token of choice {}", token.choice));
        };
        let expected = choice.completion.len() as u32;
        if token.position != expected || token.token_id >= vocabulary {
            return Err(format!(
                "first token {} at position {} of choice {}, expected position {expected}",
                token.token_id, token.position, token.choice
            ));
        }
    }
    for choice in 0..group.choices.len() as u32 {
        let given = first_tokens.iter().filter(|t| t.choice == choice).count();
        let runs = running_choices.contains(&choice);
        let continues = group.continues_trunk(choice as usize);
        if given > 1 || (runs && continues && given == 0) || (!continues && given > 0) {
            return Err(format!("{given} first tokens for choice {choice}"));
        }
    }
    match running_choices
        .iter()
        .find(|at| **at as usize >= group.choices.len())
    {
        Some(at) => Err(format!(
            "choice {at} runs, there are {}",
            group.choices.len()
        )),
        None => Ok(()),
    }
}
