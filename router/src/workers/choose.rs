//! The cheaper of two workers drawn at random (and of the one that holds most of the prompt).
//!
//! Drawing two keeps several routers with the same stale view from running to the same worker; ties
//! fall at random because the draw does. Pure. It must not know where loads come from.

use rand::Rng;
use rand::seq::index;

/// One worker that could be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    /// Work in front of the request there, in prompt tokens.
    pub(super) work: u64,
    /// Whether that is known from this router's own requests only.
    pub(super) stale: bool,
    /// Whether free and evictable pages would do.
    pub(super) fits_now: bool,
    /// Prompt tokens it holds already.
    pub(super) held: u32,
}

/// Work that not knowing counts for.
const STALE_WORK: u64 = 1024;
/// Work that a full pool counts for.
const FULL_WORK: u64 = 1 << 14;

impl Candidate {
    fn cost(&self, prompt_tokens: u32) -> u64 {
        let uncached = u64::from(prompt_tokens.saturating_sub(self.held));
        let stale = if self.stale {
            self.work + STALE_WORK
        } else {
            0
        };
        let full = if self.fits_now { 0 } else { FULL_WORK };
        self.work + uncached + stale + full
    }
}

/// Index of the chosen one; `None` if there is none.
pub(super) fn choose(
    candidates: &[Candidate],
    prompt_tokens: u32,
    rng: &mut impl Rng,
) -> Option<usize> {
    let drawn = index::sample(rng, candidates.len(), candidates.len().min(2));
    let holder = (0..candidates.len())
        .filter(|&at| candidates[at].held > 0)
        .max_by_key(|&at| candidates[at].held);
    // The first of equals is kept, so the draw decides.
    drawn
        .into_iter()
        .chain(holder)
        .min_by_key(|&at| candidates[at].cost(prompt_tokens))
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    const IDLE: Candidate = Candidate {
        work: 0,
        stale: false,
        fits_now: true,
        held: 0,
    };

    #[test]
    fn rte_04_a_burst_is_spread() {
        for seed in 0..50 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut workers = [IDLE; 8];
            let mut taken = [0; 8];
            for _ in 0..64 {
                let at = choose(&workers, 100, &mut rng).unwrap();
                workers[at].work += 100;
                taken[at] += 1;
            }
            assert!(
                taken.iter().all(|&count| count <= 16),
                "seed {seed}: {taken:?}"
            );
        }
    }

    /// Routers that know nothing of each other's requests, and whose reports of load are old.
    #[test]
    fn rte_04_four_routers_do_not_run_to_the_same_workers() {
        for seed in 0..50 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut routers = [[IDLE; 8]; 4];
            let mut taken = [0; 8];
            for number in 0..256 {
                let workers = &mut routers[number % 4];
                let at = choose(workers, 100, &mut rng).unwrap();
                workers[at].work += 100;
                taken[at] += 1;
            }
            assert!(
                taken.iter().all(|&count| count <= 64),
                "seed {seed}: {taken:?}"
            );
        }
    }

    #[test]
    fn rte_04_a_held_prefix_attracts_until_the_load_outweighs_it() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut workers = [IDLE; 8];
        let mut taken = [0; 8];
        workers[3].held = 512;
        for _ in 0..64 {
            let at = choose(&workers, 600, &mut rng).unwrap();
            workers[at].work += u64::from(600 - workers[at].held);
            taken[at] += 1;
        }
        assert!(taken[3] > 8, "{taken:?}");
        assert!(
            taken.iter().filter(|&&count| count > 0).count() > 4,
            "{taken:?}"
        );
    }

    #[test]
    fn rte_08_not_knowing_lowers_preference_but_leaves_the_last_one() {
        let mut rng = StdRng::seed_from_u64(2);
        let stale = Candidate {
            stale: true,
            ..IDLE
        };
        assert_eq!(choose(&[stale], 10, &mut rng), Some(0));
        for _ in 0..20 {
            assert_eq!(choose(&[stale, IDLE], 10, &mut rng), Some(1));
            let loaded = Candidate { work: 5000, ..IDLE };
            assert_eq!(choose(&[stale, loaded], 10, &mut rng), Some(0));
            let full = Candidate {
                fits_now: false,
                ..IDLE
            };
            assert_eq!(choose(&[full, IDLE], 10, &mut rng), Some(1));
        }
        assert_eq!(choose(&[], 10, &mut rng), None);
    }
}
