//! Admission at the door, and starting what waits: refuse at once what can never fit, keep room for
//! growth, and start strictly in order of arrival, so that nobody is overtaken for ever. It must not
//! know who asks.

use std::borrow::Cow;
use std::time::Instant;

use baton_kv_cache::{Hold, PageTable, PrefixCursor};

use crate::group::Group;
use crate::plan::Plan;
use crate::progress::ProgressFactory;
use crate::scheduler::{Blocked, Scheduler};
use crate::sequence::{Lane, Phase, Progress, Told};
use crate::{AfterPrompt, ReservedPages, SequenceError, SequenceEvent, SequenceId, SequenceSpec};

/// Pages found and reserved for the tokens before the first new one.
struct Pages {
    table: PageTable,
    cursor: Option<PrefixCursor>,
    /// Leading pages that were held here already.
    hits: u32,
}

impl Scheduler {
    /// Queues a prompt.
    pub(crate) fn submit(
        &mut self,
        now: Instant,
        id: SequenceId,
        spec: SequenceSpec,
        after: AfterPrompt,
        progress: Option<ProgressFactory>,
    ) -> Result<(), SequenceError> {
        let mut group = self.check(now, id, spec, after)?;
        let is_new = |id: &&SequenceId| self.groups.get(id).is_some_and(|g| g.preemptions == 0);
        if self.queue.iter().filter(is_new).count() >= self.config.max_queued {
            return Err(SequenceError::QueueFull {
                limit: self.config.max_queued,
            });
        }
        if let Some(factory) = progress {
            group.progress = Progress::Factory(factory);
        }
        group.awaits_grant = after == AfterPrompt::HandOff;
        self.queue.insert(id);
        self.groups.insert(id, group);
        Ok(())
    }

    /// Reserves pages for a prompt that another worker computes.
    pub(crate) fn reserve(
        &mut self,
        now: Instant,
        id: SequenceId,
        spec: SequenceSpec,
    ) -> Result<ReservedPages, SequenceError> {
        let mut group = self.check(now, id, spec, AfterPrompt::Decode)?;
        group.define_trunk();
        // Whoever computes the prompt tells its log-probabilities.
        group.next_prompt_logprob = group.prompt_len();
        // What waits here came first: its choices and pages are spoken for.
        let waiting = || self.queue.iter().filter_map(|id| self.groups.get(id));
        let choices: usize = waiting().map(|g| g.alive().count()).sum();
        let claimed = self.claimed_choices() + choices;
        if claimed > 0 && claimed + group.alive().count() > self.config.max_running() {
            return Err(SequenceError::QueueFull {
                limit: self.config.max_running(),
            });
        }
        let spoken_for: u32 = waiting()
            .map(|g| g.pages_now(self.config.page_size))
            .fold(0, u32::saturating_add);
        let margin = self.margin(id).saturating_add(spoken_for);
        let Pages {
            mut table,
            cursor,
            hits,
        } = self.find_prefix(&group, Hold::Grant, margin)?;
        self.grow_to_trunk(&group, &mut table)?;
        let reserved = ReservedPages {
            id,
            slots: table.slots(hits),
            reused_pages: hits,
        };
        self.counters.prefix_hit_tokens += u64::from(hits * self.config.page_size);
        group.phase = Phase::Reserved {
            table,
            cursor,
            reused_pages: hits,
        };
        self.groups.insert(id, group);
        Ok(reserved)
    }

    /// Starts the first of the queue, if it fits now, and if this step has rows for its log-probabilities
    /// should it owe any.
    pub(crate) fn admit_head(&mut self, has_prompt_rows: bool) -> Option<SequenceId> {
        let head = self.groups.get(&self.head()?)?;
        if head.first_owed_row().is_some() && !has_prompt_rows {
            return None;
        }
        let (id, mut pages) = self.find_head()?;
        self.grow_to_trunk(self.groups.get(&id)?, &mut pages.table)
            .ok()?;
        let cached_tokens = pages.hits * self.config.page_size;
        self.counters.prefix_hit_tokens += u64::from(cached_tokens);
        self.queue.remove(&id);
        let group = self.groups.get_mut(&id)?;
        if let Progress::Factory(factory) = std::mem::replace(&mut group.progress, Progress::Nobody)
        {
            group.progress = Progress::Listener(factory(pages.table.pages(), cached_tokens));
        }
        if group.told == Told::Nothing {
            group.told = Told::Scheduled;
            let event = SequenceEvent::Scheduled {
                cached_tokens,
                pages: pages.table.pages().to_vec(),
            };
            self.events.push((id, event));
        }
        group.phase = Phase::Prompt(Lane {
            table: pages.table,
            computed: cached_tokens,
            cursor: pages.cursor,
        });
        Some(id)
    }

    /// Whether the first of the queue fits now.
    pub(crate) fn head_fits(&mut self) -> bool {
        self.find_head().is_some()
    }

    /// The first of the queue and its prefix, if it fits now.
    fn find_head(&mut self) -> Option<(SequenceId, Pages)> {
        let id = self.head()?;
        let margin = self.margin(id);
        let available = self.pool.ledger().available().saturating_sub(margin);
        // Looking up a long prompt in every step for nothing would cost the others time.
        let indexed = self.pool.indexed();
        let prefix_hit_tokens = self.counters.prefix_hit_tokens;
        if self.blocked.is_some_and(|blocked| {
            blocked.head == id
                && available <= blocked.available
                && indexed == blocked.indexed
                && prefix_hit_tokens == blocked.prefix_hit_tokens
        }) {
            return None;
        }
        self.groups.get_mut(&id)?.define_trunk();
        let found = self.find_prefix(self.groups.get(&id)?, Hold::Sequence, margin);
        self.blocked = found.is_err().then_some(Blocked {
            head: id,
            available,
            indexed,
            prefix_hit_tokens,
        });
        Some((id, found.ok()?))
    }

    /// The first of the queue whose reader keeps up, unless something other than pages holds it back.
    fn head(&self) -> Option<SequenceId> {
        let mut queued = self.queue.iter().filter_map(|id| self.groups.get(id));
        let group = queued.find(|group| !group.paused)?;
        match group.after {
            AfterPrompt::HandOff => {
                let waiting = |g: &&Group| g.awaits_grant && g.id != group.id;
                let awaiting: u32 = self
                    .groups
                    .values()
                    .filter(waiting)
                    .flat_map(|g| g.tables().into_iter().map(PageTable::len))
                    .sum();
                (awaiting <= self.config.max_pages_awaiting_grant).then_some(group.id)
            }
            AfterPrompt::Decode => {
                let claimed = self.claimed_choices();
                let fits = claimed + group.alive().count() <= self.config.max_running();
                (claimed == 0 || fits).then_some(group.id)
            }
        }
    }

    /// Pages to leave to others: the configured share, and at least one for each choice that runs and
    /// those for the tokens that it has already. Nothing if nobody else holds pages, so that whatever can
    /// ever fit starts some time.
    fn margin(&self, id: SequenceId) -> u32 {
        let holds = |group: &Group| group.id != id && !group.tables().is_empty();
        if !self.groups.values().any(holds) {
            return 0;
        }
        let owed = |group: &Group| {
            let missing = group.pages_missing(self.config.page_size);
            missing.max(group.alive().count() as u32)
        };
        let claiming = self.groups.values().filter(|group| group.claims_choices());
        let owed = claiming.map(owed).fold(0, u32::saturating_add);
        self.config.headroom_pages().max(owed)
    }

    /// Finds the prefix, if the rest can be had with `margin` pages left available.
    fn find_prefix(&self, group: &Group, hold: Hold, margin: u32) -> Result<Pages, SequenceError> {
        let page_size = self.config.page_size;
        let (table, cursor) = if self.config.prefix_cache {
            let tokens: Cow<'_, [u32]> = match group.trunk_choice {
                Some(at) if !group.choices[at].completion.is_empty() => {
                    Cow::Owned([&group.prompt[..], &group.choices[at].completion].concat())
                }
                _ => Cow::Borrowed(&group.prompt),
            };
            // The last token is always computed: its logits give the next one. So are those whose logits
            // the prompt's log-probabilities come from.
            let first_computed = group.first_owed_row().unwrap_or(group.trunk_len - 1);
            let most_pages = first_computed / page_size;
            let (table, cursor) = self
                .pool
                .prefix_hit(&group.domain, &tokens, most_pages, hold);
            (table, Some(cursor))
        } else {
            (self.pool.table(hold), None)
        };
        let hits = table.len();
        let needed = group.pages_now(page_size).saturating_sub(hits);
        let available = self.pool.ledger().available().saturating_sub(margin);
        if needed > available {
            return Err(SequenceError::NoRoom { needed, available });
        }
        Ok(Pages {
            table,
            cursor,
            hits,
        })
    }

    /// Reserves the trunk's pages after the prefix.
    fn grow_to_trunk(&self, group: &Group, table: &mut PageTable) -> Result<(), SequenceError> {
        let pages = group.trunk_len.div_ceil(self.config.page_size);
        table
            .grow(pages - table.len())
            .map_err(|short| SequenceError::NoRoom {
                needed: short.needed,
                available: short.available,
            })
    }

    /// Turns a spec into a group, or says why it can never run here.
    fn check(
        &self,
        now: Instant,
        id: SequenceId,
        spec: SequenceSpec,
        after: AfterPrompt,
    ) -> Result<Group, SequenceError> {
        if self.draining {
            return Err(SequenceError::Draining);
        }
        if spec.deadline <= now {
            return Err(SequenceError::DeadlineExceeded);
        }
        let tokens = u32::try_from(spec.prompt.len()).unwrap_or(u32::MAX);
        if tokens >= self.model.context {
            return Err(SequenceError::PromptTooLong {
                tokens,
                limit: self.model.context.saturating_sub(1),
            });
        }
        let limit = spec.params.max_tokens.min(self.model.context - tokens);
        check_spec(&spec, limit, self.model.vocabulary).map_err(SequenceError::BadSpec)?;
        let group = Group::new(id, spec, after, limit, self.config.fingerprint_digest);
        let needed = group.pages_at_worst(self.config.page_size);
        if needed > self.config.pages {
            return Err(SequenceError::NeverFits {
                needed,
                total: self.config.pages,
            });
        }
        Ok(group)
    }

    /// Takes what the engine refused out of a plan, and ends it.
    pub(crate) fn refuse(&mut self, plan: &mut Plan, id: SequenceId, reason: String) {
        plan.remove(id);
        self.fail(id, SequenceError::Internal(reason));
    }
}

fn check_spec(spec: &SequenceSpec, limit: u32, vocabulary: u32) -> Result<(), String> {
    let choices = spec.params.choices as usize;
    if spec.prompt.is_empty() {
        return Err("the prompt is empty".into());
    }
    if choices == 0 || spec.params.max_tokens == 0 {
        return Err("no choices or no tokens are asked for".into());
    }
    let given = spec.completions.len();
    if given != 0 && given != choices {
        return Err(format!("{given} completions for {choices} choices"));
    }
    if given != 0 && spec.completions.iter().all(|choice| choice.ended) {
        return Err("all choices have ended".into());
    }
    let open = spec.completions.iter().filter(|choice| !choice.ended);
    if let Some(full) = open
        .map(|choice| choice.token_ids.len())
        .find(|tokens| *tokens >= limit as usize)
    {
        return Err(format!(
            "a choice of {full} tokens goes on, the limit is {limit}"
        ));
    }
    let completions = spec.completions.iter().flat_map(|c| &c.token_ids);
    match spec
        .prompt
        .iter()
        .chain(completions)
        .find(|id| **id >= vocabulary)
    {
        Some(id) => Err(format!("token id {id}, the vocabulary has {vocabulary}")),
        None => Ok(()),
    }
}
