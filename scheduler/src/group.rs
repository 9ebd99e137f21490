//! One request at this worker: its choices, its trunk, the pages that it needs. It must not know of
//! other requests or of the step loop.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use baton_kv_cache::{PageTable, PrefixDomain};
use baton_sampling::SamplingParams;

use crate::sequence::{Choice, Landing, Lane, Phase, Progress, Told};
use crate::{AfterPrompt, FinishReason, SequenceId, SequenceSpec};

/// One request at this worker.
pub(crate) struct Group {
    pub(crate) id: SequenceId,
    pub(crate) prompt: Arc<[u32]>,
    pub(crate) params: Arc<SamplingParams>,
    pub(crate) domain: PrefixDomain,
    pub(crate) deadline: Instant,
    pub(crate) after: AfterPrompt,
    pub(crate) progress: Progress,
    pub(crate) choices: Vec<Choice>,
    /// Most completion tokens per choice, the context considered.
    pub(crate) limit: u32,
    pub(crate) phase: Phase,
    /// Tokens of the trunk, fixed when its pages are reserved.
    pub(crate) trunk_len: u32,
    /// The choice whose completion belongs to the trunk.
    pub(crate) trunk_choice: Option<usize>,
    pub(crate) told: Told,
    /// Prompt index of the token whose log-probability is told next; the prompt's length when all have
    /// been told here or elsewhere, or none is asked for.
    pub(crate) next_prompt_logprob: u32,
    pub(crate) landing: Landing,
    /// Its pages have not been granted a place elsewhere yet.
    pub(crate) awaits_grant: bool,
    /// Its reader is behind.
    pub(crate) paused: bool,
    pub(crate) preemptions: u32,
}

impl Group {
    /// A validated spec, waiting.
    pub(crate) fn new(
        id: SequenceId,
        spec: SequenceSpec,
        after: AfterPrompt,
        limit: u32,
        fingerprint_digest: [u8; 32],
    ) -> Self {
        let mut choices: Vec<Choice> = spec
            .completions
            .into_iter()
            .map(|so_far| Choice {
                completion: so_far.token_ids,
                ended: so_far.ended,
                ..Choice::default()
            })
            .collect();
        let asks = spec.params.prompt_logprobs.is_some();
        choices.resize_with(spec.params.choices as usize, Choice::default);
        Self {
            id,
            next_prompt_logprob: if asks { 1 } else { spec.prompt.len() as u32 },
            prompt: spec.prompt,
            params: spec.params,
            domain: PrefixDomain {
                fingerprint_digest,
                salt: spec.cache_salt,
            },
            deadline: spec.deadline,
            after,
            progress: Progress::Nobody,
            choices,
            limit,
            phase: Phase::Queued,
            trunk_len: 0,
            trunk_choice: None,
            told: Told::Nothing,
            landing: Landing::Local,
            awaits_grant: false,
            paused: false,
            preemptions: 0,
        }
    }

    pub(crate) fn prompt_len(&self) -> u32 {
        self.prompt.len() as u32
    }

    /// First token whose row of logits is still owed to the prompt's log-probabilities, if any is: its
    /// K and V must be computed here.
    pub(crate) fn first_owed_row(&self) -> Option<u32> {
        let is_owed = self.next_prompt_logprob < self.prompt_len();
        is_owed.then(|| self.next_prompt_logprob - 1)
    }

    /// Indices of the choices that go on, ascending.
    pub(crate) fn alive(&self) -> impl Iterator<Item = usize> + '_ {
        let choices = self.choices.iter().enumerate();
        choices
            .filter(|(_, choice)| !choice.ended)
            .map(|(at, _)| at)
    }

    pub(crate) fn alive_indices(&self) -> Vec<u32> {
        self.alive().map(|at| at as u32).collect()
    }

    /// Fixes what the trunk is: the prompt and, if one choice goes on alone, its completion so far.
    pub(crate) fn define_trunk(&mut self) {
        let alive: Vec<usize> = self.alive().collect();
        self.trunk_choice = match alive[..] {
            [only] => Some(only),
            _ => None,
        };
        let completion = self
            .trunk_choice
            .map_or(0, |at| self.choices[at].completion.len());
        self.trunk_len = self.prompt_len() + completion as u32;
    }

    /// The lane of a choice, or the trunk.
    pub(crate) fn lane(&self, choice: Option<usize>) -> Option<&Lane> {
        match (choice, &self.phase) {
            (Some(at), _) => self.choices[at].lane.as_ref(),
            (None, Phase::Prompt(trunk)) => Some(trunk),
            (None, _) => None,
        }
    }

    pub(crate) fn lane_mut(&mut self, choice: Option<usize>) -> Option<&mut Lane> {
        match (choice, &mut self.phase) {
            (Some(at), _) => self.choices[at].lane.as_mut(),
            (None, Phase::Prompt(trunk)) => Some(trunk),
            (None, _) => None,
        }
    }

    /// Tokens of a choice so far, prompt included.
    pub(crate) fn choice_len(&self, choice: usize) -> u32 {
        self.prompt_len() + self.choices[choice].completion.len() as u32
    }

    /// Whether the trunk's last logits are those of the choice's next token.
    pub(crate) fn continues_trunk(&self, choice: usize) -> bool {
        self.choice_len(choice) == self.trunk_len
            && (self.trunk_choice == Some(choice) || self.trunk_len == self.prompt_len())
    }

    /// Up to `most` tokens from position `from` on, of the prompt followed by the completion of
    /// `choice`. They end where the prompt does, so that they lie in one piece.
    pub(crate) fn tokens(&self, choice: Option<usize>, from: u32, most: u32) -> &[u32] {
        let (piece, from) = match from.checked_sub(self.prompt_len()) {
            None => (&self.prompt[..], from),
            Some(from) => (
                choice.map_or(&[][..], |at| &self.choices[at].completion),
                from,
            ),
        };
        let end = (from as usize)
            .saturating_add(most as usize)
            .min(piece.len());
        &piece[from as usize..end]
    }

    /// Why a choice ends with the token it just got, if it does.
    pub(crate) fn finish(
        &self,
        choice: usize,
        token: u32,
        eos_ids: &[u32],
    ) -> Option<FinishReason> {
        let is_eos = !self.params.ignore_eos && eos_ids.contains(&token);
        if is_eos || self.params.stop_token_ids.contains(&token) {
            Some(FinishReason::Stop)
        } else if self.choices[choice].completion.len() >= self.limit as usize {
            Some(FinishReason::Length)
        } else {
            None
        }
    }

    /// Pages for the tokens so far, each choice's own tail and its first page to write included.
    pub(crate) fn pages_now(&self, page_size: u32) -> u32 {
        self.pages(page_size, |completion| completion)
    }

    /// Most pages that the group can come to hold.
    pub(crate) fn pages_at_worst(&self, page_size: u32) -> u32 {
        match self.after {
            AfterPrompt::HandOff => self.pages_now(page_size),
            // The last token of a choice is never computed.
            AfterPrompt::Decode => self.pages(page_size, |_| self.limit - 1),
        }
    }

    /// Pages for the tokens so far that the group does not hold yet: the tails of several choices come
    /// after the trunk.
    pub(crate) fn pages_missing(&self, page_size: u32) -> u32 {
        let held = match self.tables()[..] {
            [] => 0,
            [only] => only.len(),
            ref several => {
                let pages = several.iter().flat_map(|table| table.pages());
                pages.collect::<HashSet<_>>().len() as u32
            }
        };
        self.pages_now(page_size).saturating_sub(held)
    }

    fn pages(&self, page_size: u32, completion: impl Fn(u32) -> u32) -> u32 {
        let prompt = self.prompt_len();
        let alive: Vec<u32> = self
            .alive()
            .map(|at| self.choices[at].completion.len() as u32)
            .collect();
        if let [only] = alive[..] {
            return (prompt + completion(only)).div_ceil(page_size);
        }
        if self.after == AfterPrompt::HandOff {
            return prompt.div_ceil(page_size);
        }
        // Full prompt pages are shared. A choice that goes beyond the prompt writes its own copy of the
        // last, partial page and what follows.
        let shared = prompt / page_size;
        let own = |tokens: u32| match completion(tokens) {
            0 => 0,
            more => u64::from((prompt + more).div_ceil(page_size) - shared),
        };
        let total = u64::from(shared) + alive.into_iter().map(own).sum::<u64>();
        let total = total.max(u64::from(prompt.div_ceil(page_size)));
        total.min(u64::from(u32::MAX)) as u32
    }

    /// Every table that belongs to the group.
    pub(crate) fn tables(&self) -> Vec<&PageTable> {
        match &self.phase {
            Phase::Queued => Vec::new(),
            Phase::Prompt(trunk) => vec![&trunk.table],
            Phase::Running => {
                let lanes = self
                    .choices
                    .iter()
                    .filter_map(|choice| choice.lane.as_ref());
                lanes.map(|lane| &lane.table).collect()
            }
            Phase::Reserved { table, .. }
            | Phase::Quarantined { _table: table }
            | Phase::Parked { table, .. } => vec![table],
        }
    }

    /// Whether its choices run here or will.
    pub(crate) fn claims_choices(&self) -> bool {
        match self.phase {
            Phase::Prompt(_) => self.after == AfterPrompt::Decode,
            Phase::Running | Phase::Reserved { .. } => true,
            Phase::Queued | Phase::Quarantined { .. } | Phase::Parked { .. } => false,
        }
    }

    /// Whether nothing is left to tell or to compute; pinned pages may be left to release.
    pub(crate) fn is_closed(&self) -> bool {
        self.told == Told::End
    }

    /// Whether a transfer may touch the pages, so that only `release` gives them back.
    pub(crate) fn is_pinned(&self) -> bool {
        match self.phase {
            Phase::Queued | Phase::Running => false,
            Phase::Prompt(_) => self.after == AfterPrompt::HandOff,
            Phase::Reserved { .. } | Phase::Quarantined { .. } | Phase::Parked { .. } => true,
        }
    }
}
