//! Where a request goes: decided once per attempt, before any leg opens.
//!
//! It must not know how legs run.

use std::collections::HashMap;
use std::time::Duration;

use baton_cluster::MemberKey;
use baton_proto::domain::WorkerRole;
use tokio::time::Instant;

use super::choose::{Candidate, choose};
use super::directory::{Directory, State, WorkerView};
use super::excluded::Excluded;
use super::slot::{Slot, Worker};
use super::wanted::Wanted;
use super::why::{Reason, Why};
use crate::error::{RequestError, role_name};

/// Work that a running sequence counts for when decode workers are compared, in prompt tokens.
const SEQUENCE_WORK: u64 = 256;

/// The chosen way, with the first worker claimed and the reason for the receipt.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Prefill there, then a decode worker chosen late.
    Split(Slot, Reason),
    /// One token only: no decode leg follows.
    PrefillOnly(Slot, Reason),
    /// The decode worker prefills.
    Local(Slot, Reason),
}

impl Plan {
    /// The worker that begins.
    pub(crate) fn worker(&self) -> &Worker {
        let (Self::Split(slot, _) | Self::PrefillOnly(slot, _) | Self::Local(slot, _)) = self;
        slot.worker()
    }

    /// The class of its reason.
    pub(crate) fn why(&self) -> Why {
        let (Self::Split(_, reason) | Self::PrefillOnly(_, reason) | Self::Local(_, reason)) = self;
        reason.why
    }
}

/// Why no worker could be claimed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotPlaced {
    pub(crate) role: WorkerRole,
    /// Excluded workers that could be asked again.
    pub(crate) refused: bool,
    /// Longest hint of those that refused for now.
    pub(crate) busy_hint: Option<Duration>,
    /// Until the first quarantine ends.
    pub(crate) quarantined: Option<Duration>,
    /// Pages needed and pages of the largest pool, if no pool could ever hold the request.
    pub(crate) never_fits: Option<(u64, u32)>,
    /// Nobody of the role and fingerprint takes requests.
    pub(crate) nobody: bool,
    /// Somebody of another fingerprint could be claimed.
    pub(crate) elsewhere: bool,
}

impl From<NotPlaced> for RequestError {
    fn from(not: NotPlaced) -> Self {
        let role = not.role;
        if let Some((needed, largest)) = not.never_fits {
            return Self::NeverFits { needed, largest };
        }
        if let Some(retry_after) = not.busy_hint {
            let what = format!("all {} workers refuse for now", role_name(role));
            return Self::Overloaded { what, retry_after };
        }
        let why = match (not.quarantined, not.refused) {
            (Some(_), _) => ": all are quarantined after failures",
            (None, true) => ": all failed or went away",
            (None, false) => "",
        };
        Self::NoWorker {
            role,
            why: why.into(),
            retry_after: not.quarantined,
        }
    }
}

impl Directory {
    /// Decides between split and local and claims the first worker.
    pub(crate) fn plan(&self, wanted: &Wanted, excluded: &Excluded) -> Result<Plan, NotPlaced> {
        // Hashing a long prompt takes its time: not while everyone waits for the lock.
        self.views()
            .iter()
            .for_each(|view| drop(wanted.prefixes(&view.worker)));
        let state = self.lock();
        let pool = Pool::new(&state, wanted, excluded);
        let prefill_usable = pool.usable(WorkerRole::Prefill, None);
        if wanted.tokens_left == 1 && !prefill_usable.is_empty() {
            let slot = pool.claim(&prefill_usable)?;
            let reason = Why::OneToken.because("prefill only: one token");
            return Ok(Plan::PrefillOnly(slot, reason));
        }
        let decode_usable = pool.usable(WorkerRole::Decode, None);
        if decode_usable.is_empty() {
            return Err(pool.why_not(WorkerRole::Decode, None));
        }
        if let Some(reason) = pool.short_prompt() {
            return Ok(Plan::Local(pool.claim(&decode_usable)?, reason));
        }
        if excluded.shuns_hand_offs() {
            let words = format!("local: {} hand-offs failed", excluded.hand_offs);
            let reason = Why::HandOffsFailed.because(words);
            return Ok(Plan::Local(pool.claim(&decode_usable)?, reason));
        }
        if let Some((worker, reason)) = pool.holder(&decode_usable) {
            return Ok(Plan::Local(pool.claim(&[worker])?, reason));
        }
        let paired: Vec<&Offer> = prefill_usable
            .iter()
            .copied()
            .filter(|prefill| {
                decode_usable
                    .iter()
                    .any(|decode| decode.digest() == prefill.digest())
            })
            .collect();
        if !paired.is_empty() {
            return Ok(Plan::Split(
                pool.claim(&paired)?,
                Why::LeastLoaded.because("split: least loaded"),
            ));
        }
        let why_not = pool.why_not(WorkerRole::Prefill, None);
        if why_not.busy_hint.is_some() {
            return Err(why_not);
        }
        let slot = pool.claim(&decode_usable)?;
        let reason = unpaired(slot.worker(), &prefill_usable);
        Ok(Plan::Local(slot, reason))
    }

    /// Claims a decode worker that can be paired with a prefill worker of this digest.
    pub(crate) fn place_decode(
        &self,
        wanted: &Wanted,
        digest: &[u8; 32],
        excluded: &Excluded,
    ) -> Result<Slot, NotPlaced> {
        let state = self.lock();
        let pool = Pool::new(&state, wanted, excluded);
        let usable = pool.usable(WorkerRole::Decode, Some(digest));
        if usable.is_empty() {
            let why_not = pool.why_not(WorkerRole::Decode, Some(digest));
            let elsewhere = !pool.usable(WorkerRole::Decode, None).is_empty();
            return Err(NotPlaced {
                elsewhere,
                ..why_not
            });
        }
        pool.claim(&usable)
    }

    /// Most completion tokens per choice that the largest decode pool can hold beside this prompt.
    pub(crate) fn room(&self, prompt_tokens: u32, choices: u32) -> Option<u32> {
        let state = self.lock();
        let rooms = state.members().filter(|view| {
            view.worker.info.role == WorkerRole::Decode && view.worker.differing.is_empty()
        });
        let room = |view: WorkerView| {
            let page = u64::from(view.worker.info.fingerprint.page_size);
            let prompt = u64::from(prompt_tokens);
            let pages = u64::from(view.worker.info.pages_total).saturating_sub(prompt / page);
            let own = pages / u64::from(choices.max(1)) * page;
            u32::try_from((own + 1).saturating_sub(prompt % page)).unwrap_or(u32::MAX)
        };
        rooms.map(room).max()
    }
}

/// One member and what this router remembers that it holds.
struct Offer {
    view: WorkerView,
    held: u32,
}

impl Offer {
    fn digest(&self) -> [u8; 32] {
        self.view.worker.digest
    }
}

/// Why a decode worker has to prefill by itself, where these are the prefill workers to be had.
fn unpaired(decode: &Worker, prefill_usable: &[&Offer]) -> Reason {
    let own = &decode.info.fingerprint;
    let nearest = prefill_usable
        .iter()
        .map(|offer| own.differing_fields(&offer.view.worker.info.fingerprint))
        .min_by_key(Vec::len);
    nearest.map_or_else(
        || Why::NoPrefillWorker.because("local: no prefill worker is usable"),
        |differing| {
            let fields = differing.join(", ");
            Why::NoMatchingPrefillWorker.because(format!(
                "local: no prefill worker matches this decode worker (differs in: {fields})"
            ))
        },
    )
}

/// Everyone who could be asked, for one request.
struct Pool<'a> {
    wanted: &'a Wanted,
    excluded: &'a Excluded,
    now: Instant,
    offers: Vec<Offer>,
}

impl<'a> Pool<'a> {
    fn new(state: &State, wanted: &'a Wanted, excluded: &'a Excluded) -> Self {
        // Workers of one fingerprint share the hashes of the prompt.
        let mut held: HashMap<[u8; 32], HashMap<MemberKey, u32>> = HashMap::new();
        let offers = state
            .members()
            .map(|view| {
                let worker = &view.worker;
                let holders = held
                    .entry(worker.digest)
                    .or_insert_with(|| state.prefixes.lookup(&wanted.prefixes(worker)));
                let held = holders.get(&worker.key).copied().unwrap_or(0);
                let held = if wanted.from_start { 0 } else { held };
                Offer { view, held }
            })
            .collect();
        Self {
            wanted,
            excluded,
            now: Instant::now(),
            offers,
        }
    }

    /// Members of a role that fit the model, and the pair.
    fn of(&self, role: WorkerRole, digest: Option<&[u8; 32]>) -> impl Iterator<Item = &Offer> {
        let digest = digest.copied();
        self.offers.iter().filter(move |offer| {
            offer.view.worker.info.role == role
                && offer.view.is_open()
                && (self.wanted.answers.get()).is_none_or(|one| *one == offer.view.worker.answers)
                && digest.is_none_or(|digest| digest == offer.digest())
        })
    }

    /// Of them, those that can be claimed now. Quarantine never takes the last decode worker away:
    /// when it holds all of them, the one whose quarantine ends first is tried. Nobody depends on
    /// prefill workers like that. A request that has been let down goes to those that were heard of lately,
    /// if it can: it has waited long enough for one that says nothing.
    fn usable(&self, role: WorkerRole, digest: Option<&[u8; 32]>) -> Vec<&Offer> {
        let able: Vec<&Offer> = self
            .of(role, digest)
            .filter(|offer| {
                let worker = &offer.view.worker;
                self.needed(offer) <= u64::from(worker.info.pages_total)
                    && !self.excluded.has(&worker.key)
            })
            .collect();
        let mut trusted = able.clone();
        trusted.retain(|offer| offer.view.worker.breaker().is_usable(self.now));
        if self.excluded.is_let_down() {
            let mut heard = trusted.clone();
            heard.retain(|offer| !offer.view.is_stale(self.now));
            let can_do_without = role == WorkerRole::Prefill || !heard.is_empty();
            return if can_do_without { heard } else { trusted };
        }
        if !trusted.is_empty() || role != WorkerRole::Decode {
            return trusted;
        }
        let end = |offer: &&Offer| {
            let breaker = offer.view.worker.breaker();
            breaker.quarantine().map(|(until, _)| until)
        };
        able.into_iter().min_by_key(end).into_iter().collect()
    }

    /// Pages that the request may come to need there.
    fn needed(&self, offer: &Offer) -> u64 {
        let page_size = offer.view.worker.info.fingerprint.page_size;
        match offer.view.worker.info.role {
            WorkerRole::Decode => self.wanted.pages(page_size),
            WorkerRole::Prefill => u64::from(self.trunk_pages(offer)),
        }
    }

    fn trunk_pages(&self, offer: &Offer) -> u32 {
        self.wanted
            .trunk_tokens()
            .div_ceil(offer.view.worker.info.fingerprint.page_size.max(1))
    }

    fn short_prompt(&self) -> Option<Reason> {
        let (tokens, limit) = (self.wanted.trunk_tokens(), self.wanted.local_tokens);
        let words = || format!("local: short prompt ({tokens} <= {limit})");
        (tokens <= limit).then(|| Why::ShortPrompt.because(words()))
    }

    /// The decode worker that holds nearly all of the prompt, unless it is far busier than another.
    fn holder<'o>(&self, usable: &[&'o Offer]) -> Option<(&'o Offer, Reason)> {
        let tokens = self.wanted.trunk_tokens();
        let holder = usable.iter().max_by_key(|offer| offer.held)?;
        let work = self.candidate(holder).work;
        let least = usable
            .iter()
            .map(|offer| self.candidate(offer).work)
            .min()?;
        let worth = holder.held > 0 && tokens - holder.held.min(tokens) <= self.wanted.local_tokens;
        let overloaded = work > 2 * least + 8 * SEQUENCE_WORK;
        let (name, held) = (&holder.view.worker.key.0, holder.held);
        let words = format!("local: {name} holds {held} of {tokens} prompt tokens");
        let reason = Why::HoldsPrefix.because(words);
        (worth && !overloaded).then_some((*holder, reason))
    }

    fn candidate(&self, offer: &Offer) -> Candidate {
        let (worker, load) = (&offer.view.worker, &offer.view.load);
        let stale = offer.view.is_stale(self.now);
        let reported = match worker.info.role {
            WorkerRole::Prefill => load.queued_tokens,
            WorkerRole::Decode => u64::from(load.queued + load.running) * SEQUENCE_WORK,
        };
        let available = u64::from(load.pages.free) + u64::from(load.pages.cached);
        Candidate {
            // A report knows other routers' requests but is late; the own count is neither.
            work: worker.work().max(if stale { 0 } else { reported }),
            stale,
            fits_now: stale || u64::from(self.trunk_pages(offer)) <= available,
            held: offer.held,
        }
    }

    fn claim(&self, offers: &[&Offer]) -> Result<Slot, NotPlaced> {
        let candidates: Vec<Candidate> = offers.iter().map(|offer| self.candidate(offer)).collect();
        let tokens = self.wanted.trunk_tokens();
        let role = offers
            .first()
            .map_or(WorkerRole::Decode, |o| o.view.worker.info.role);
        let chosen = choose(&candidates, tokens, &mut rand::rng())
            .ok_or_else(|| self.why_not(role, None))?;
        let offer = offers[chosen];
        let work = match role {
            WorkerRole::Prefill => u64::from(tokens.saturating_sub(offer.held)),
            WorkerRole::Decode => u64::from(self.wanted.choices) * SEQUENCE_WORK,
        };
        Ok(Slot::claim(&offer.view.worker, work))
    }

    fn why_not(&self, role: WorkerRole, digest: Option<&[u8; 32]>) -> NotPlaced {
        let all: Vec<&Offer> = self.of(role, digest).collect();
        let too_small =
            |offer: &&&Offer| self.needed(offer) > u64::from(offer.view.worker.info.pages_total);
        let never_fits = match all.iter().filter(too_small).count() {
            0 => None,
            small if small < all.len() => None,
            _ => {
                let needed = all.iter().map(|offer| self.needed(offer)).min();
                let largest = all
                    .iter()
                    .map(|offer| offer.view.worker.info.pages_total)
                    .max();
                needed.zip(largest)
            }
        };
        let hints = all
            .iter()
            .filter_map(|o| self.excluded.busy.get(&o.view.worker.key));
        let ends = all.iter().filter_map(|offer| {
            let breaker = offer.view.worker.breaker();
            breaker
                .quarantine()
                .map(|(until, _)| until.saturating_duration_since(self.now))
        });
        NotPlaced {
            role,
            refused: all
                .iter()
                .any(|offer| self.excluded.has(&offer.view.worker.key)),
            busy_hint: hints
                .map(|hint| hint.unwrap_or(Duration::from_millis(500)))
                .max(),
            quarantined: ends.min(),
            never_fits,
            nobody: all.is_empty(),
            elsewhere: false,
        }
    }
}
