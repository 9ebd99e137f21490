//! A scheduler with an oracle engine and a clock, stepped by hand; and what its readers have heard.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use baton_engine::{Batch, EngineError, LogitRows, StepEngine};
use baton_kv_cache::{Blake3Hasher, PageHasher};
use baton_sampling::{PlainSampler, SamplingParams, TokenLogprobs};

use super::oracle::{EOS, Memory, Oracle, VOCABULARY, expected, expected_prompt};
use crate::plan::Plan;
use crate::scheduler::{ModelFacts, Scheduler};
use crate::{
    AfterPrompt, FinishReason, ReservedPages, SchedulerConfig, SequenceError, SequenceEvent,
    SequenceId, SequenceSpec, Token,
};

pub(crate) const CONTEXT: u32 = 512;

/// splitmix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % u64::from(n)) as u32
    }
}

pub(crate) fn config(pages: u32, page_size: u32) -> SchedulerConfig {
    SchedulerConfig {
        pages,
        page_size,
        token_budget: 64,
        max_chunk: 64,
        max_batch: 16,
        max_prompt_rows: 24,
        max_queued: 1000,
        headroom_percent: 0,
        decode_every: 4,
        fingerprint_digest: [7; 32],
        prefix_cache: true,
        eos_ids: vec![EOS],
        write_deadline: Duration::from_secs(5),
        max_pages_awaiting_grant: 1000,
    }
}

pub(crate) fn params(max_tokens: u32) -> SamplingParams {
    SamplingParams {
        max_tokens,
        ignore_eos: true,
        ..SamplingParams::default()
    }
}

pub(crate) fn sampled(max_tokens: u32, seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 0.9,
        seed,
        ..params(max_tokens)
    }
}

/// Tokens 1 to 29, different for different `seed`s.
pub(crate) fn prompt(seed: u64, tokens: u32) -> Vec<u32> {
    let mut rng = Rng(seed);
    (0..tokens).map(|_| 1 + rng.below(29)).collect()
}

pub(crate) fn spec(now: Instant, prompt: &[u32], params: SamplingParams) -> SequenceSpec {
    SequenceSpec {
        request_id: "test".into(),
        prompt: prompt.into(),
        completions: Vec::new(),
        params: Arc::new(params),
        cache_salt: Arc::from(&b""[..]),
        deadline: now + Duration::from_secs(5_000),
    }
}

/// What a reader has heard.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Heard {
    pub(crate) completions: BTreeMap<u32, Vec<u32>>,
    pub(crate) finish: BTreeMap<u32, FinishReason>,
    pub(crate) tokens: Vec<Token>,
    /// Of the prompt's tokens from the second on.
    pub(crate) prompt: Vec<TokenLogprobs>,
    pub(crate) cached_tokens: Option<u32>,
    pub(crate) scheduled: Option<Vec<baton_kv_cache::PageIndex>>,
    pub(crate) prompt_done: Option<Vec<u32>>,
    pub(crate) first_step: bool,
    /// Chunks told of.
    pub(crate) chunks: u32,
    pub(crate) done: Option<u32>,
    pub(crate) failed: Option<SequenceError>,
    /// Steps (of the rig) in which a token came.
    pub(crate) at: Vec<u64>,
}

pub(crate) struct Rig {
    pub(crate) scheduler: Scheduler,
    pub(crate) engine: Oracle,
    pub(crate) memory: Memory,
    pub(crate) now: Instant,
    pub(crate) heard: BTreeMap<SequenceId, Heard>,
    pub(crate) steps: u64,
    next_id: u64,
}

impl Rig {
    pub(crate) fn new(config: SchedulerConfig) -> Self {
        Self::with_hasher(config, Box::new(Blake3Hasher))
    }

    pub(crate) fn with_hasher(config: SchedulerConfig, hasher: Box<dyn PageHasher>) -> Self {
        let memory = Memory::new(config.pages, config.page_size);
        let engine = Oracle::new(memory.clone(), config.page_size, CONTEXT);
        let model = ModelFacts {
            vocabulary: VOCABULARY,
            sampler: &PlainSampler,
            context: CONTEXT,
        };
        Self {
            scheduler: Scheduler::new(config, model, hasher).expect("valid"),
            engine,
            memory,
            now: Instant::now(),
            heard: BTreeMap::new(),
            steps: 0,
            next_id: 1,
        }
    }

    pub(crate) fn new_id(&mut self) -> SequenceId {
        self.next_id += 1;
        SequenceId(self.next_id - 1)
    }

    pub(crate) fn try_submit(
        &mut self,
        spec: SequenceSpec,
        after: AfterPrompt,
    ) -> Result<SequenceId, SequenceError> {
        let id = self.new_id();
        self.scheduler.submit(self.now, id, spec, after, None)?;
        self.heard.insert(id, Heard::default());
        Ok(id)
    }

    pub(crate) fn submit(&mut self, prompt: &[u32], params: SamplingParams) -> SequenceId {
        let spec = spec(self.now, prompt, params);
        self.try_submit(spec, AfterPrompt::Decode)
            .expect("accepted")
    }

    pub(crate) fn try_reserve(
        &mut self,
        spec: SequenceSpec,
    ) -> Result<ReservedPages, SequenceError> {
        let id = self.new_id();
        let reserved = self.scheduler.reserve(self.now, id, spec)?;
        self.heard.insert(id, Heard::default());
        Ok(reserved)
    }

    /// One step; false if there is nothing to run.
    pub(crate) fn step(&mut self) -> bool {
        let Some(plan) = self.plan() else {
            return false;
        };
        self.run(plan);
        true
    }

    pub(crate) fn plan(&mut self) -> Option<Plan> {
        self.scheduler.expire(self.now);
        let plan = self.scheduler.plan();
        self.check();
        self.listen();
        (!plan.slices.is_empty()).then_some(plan)
    }

    pub(crate) fn run(&mut self, mut plan: Plan) {
        self.steps += 1;
        let budget = self.scheduler.config.token_budget;
        assert!(plan.slices.len() <= self.scheduler.config.max_batch);
        let tokens: usize = plan.slices.iter().map(|slice| slice.len as usize).sum();
        assert!(tokens <= budget, "{tokens} tokens in a step");
        let all = plan.slices.iter().filter(|s| s.logits == LogitRows::All);
        let rows: usize = all.map(|slice| slice.len as usize).sum();
        assert!(rows <= self.scheduler.config.max_prompt_rows, "{rows} rows");
        while !plan.slices.is_empty() {
            let slices = self.scheduler.slices(&plan);
            assert_eq!(slices.len(), plan.slices.len());
            let copies: Vec<_> = plan
                .copies
                .iter()
                .map(|copy| (copy.from, copy.to))
                .collect();
            let batch = Batch {
                copies: &copies,
                slices: &slices,
            };
            match self.engine.step(&batch, &mut |_| {}) {
                Ok(logits) => {
                    self.scheduler.complete(&plan, &logits);
                    break;
                }
                Err(EngineError::BadSlice { slice, reason }) => {
                    let id = plan.slices[slice].id;
                    self.scheduler.refuse(&mut plan, id, reason);
                }
                Err(error) => panic!("{error}"),
            }
        }
        self.check();
        self.listen();
    }

    pub(crate) fn run_to_end(&mut self) {
        for _ in 0..200_000 {
            if !self.step() {
                return;
            }
        }
        panic!("no end");
    }

    /// The ledger adds up, and what it says is what sequences hold.
    pub(crate) fn check(&self) {
        let ledger = self.scheduler.pool.ledger();
        assert!(ledger.is_balanced(), "{ledger:?}");
        let holds_pages = self
            .scheduler
            .groups
            .values()
            .any(|g| g.tables().iter().any(|table| !table.is_empty()));
        assert_eq!(ledger.is_idle(), !holds_pages, "{ledger:?}");
    }

    pub(crate) fn listen(&mut self) {
        for (id, event) in self.scheduler.take_events() {
            let heard = self.heard.entry(id).or_default();
            assert!(
                heard.done.is_none() && heard.failed.is_none(),
                "after the end: {event:?}"
            );
            match event {
                SequenceEvent::Scheduled {
                    cached_tokens,
                    pages,
                } => {
                    assert!(heard.scheduled.is_none(), "scheduled twice");
                    heard.cached_tokens = Some(cached_tokens);
                    heard.scheduled = Some(pages);
                }
                SequenceEvent::PromptLogprobs { position, entries } => {
                    assert!(heard.tokens.is_empty(), "after the first token");
                    assert_eq!(position as usize, heard.prompt.len() + 1, "in order");
                    assert!(!entries.is_empty());
                    heard.prompt.extend(entries);
                }
                SequenceEvent::Token(token) => {
                    heard.at.push(self.steps);
                    let completion = heard.completions.entry(token.choice).or_default();
                    completion.push(token.token_id);
                    assert!(!heard.finish.contains_key(&token.choice), "after its end");
                    if let Some(finish) = token.finish {
                        heard.finish.insert(token.choice, finish);
                    }
                    heard.tokens.push(token);
                }
                SequenceEvent::PromptDone { running_choices } => {
                    assert!(heard.prompt_done.is_none(), "prompt done twice");
                    heard.prompt_done = Some(running_choices);
                }
                SequenceEvent::ChunkDone { .. } => heard.chunks += 1,
                SequenceEvent::FirstStep => heard.first_step = true,
                SequenceEvent::Done { preemptions } => heard.done = Some(preemptions),
                SequenceEvent::Failed(error) => heard.failed = Some(error),
            }
        }
    }

    pub(crate) fn completions(&self, id: SequenceId) -> Vec<Vec<u32>> {
        self.heard[&id].completions.values().cloned().collect()
    }

    /// The sequence has ended well with exactly the model's tokens.
    pub(crate) fn assert_exact(&self, id: SequenceId, prompt: &[u32], params: &SamplingParams) {
        let heard = &self.heard[&id];
        assert!(heard.done.is_some(), "{id:?}: {heard:?}");
        let limit = params.max_tokens.min(CONTEXT - prompt.len() as u32);
        assert_eq!(
            self.completions(id),
            expected(prompt, params, limit, &[]),
            "{id:?}"
        );
        for (at, token) in heard.tokens.iter().enumerate() {
            let before = heard.tokens[..at]
                .iter()
                .filter(|t| t.choice == token.choice);
            assert_eq!(before.count() as u32, token.position);
        }
        assert_eq!(heard.finish.len() as u32, params.choices);
        assert_eq!(heard.prompt, expected_prompt(prompt, params), "{id:?}");
    }

    pub(crate) fn assert_idle(&self) {
        self.check();
        assert!(self.scheduler.pool.ledger().is_idle());
        assert!(self.scheduler.groups.is_empty() && self.scheduler.queue.is_empty());
    }
}
