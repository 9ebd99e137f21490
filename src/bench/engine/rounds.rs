//! Rounds: every kind of work once, by everyone who is measured, directly after each other.
//!
//! What a machine allows changes within minutes; neighbours in time see the same. What the figures mean is
//! not known here.

use crate::exit::Failure;

use super::work::Work;

/// Somebody who can do the work.
pub(super) trait Contender {
    /// Does `work` and says how fast: tokens per second.
    ///
    /// # Errors
    /// The work could not be done; the run ends.
    fn tokens_per_second(&mut self, work: Work) -> Result<f64, Failure>;
}

/// Tokens per second by kind of work, contender and round.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Rates(Vec<Vec<Vec<f64>>>);

impl Rates {
    /// None yet.
    pub(super) fn new(work: usize, contenders: usize) -> Self {
        Self(vec![vec![Vec::new(); contenders]; work])
    }

    /// Has every contender do `work` (the `index`-th), one after the other.
    pub(super) fn measure(
        &mut self,
        index: usize,
        work: Work,
        contenders: &mut [&mut dyn Contender],
    ) -> Result<(), Failure> {
        for (contender, rates) in contenders.iter_mut().zip(&mut self.0[index]) {
            rates.push(contender.tokens_per_second(work)?);
        }
        Ok(())
    }

    /// Of the `index`-th work: each contender's rates by round.
    pub(super) fn of(&self, index: usize) -> &[Vec<f64>] {
        &self.0[index]
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    struct Scripted<'a> {
        name: &'a str,
        calls: &'a RefCell<Vec<String>>,
        fails: bool,
    }

    impl Contender for Scripted<'_> {
        fn tokens_per_second(&mut self, work: Work) -> Result<f64, Failure> {
            self.calls
                .borrow_mut()
                .push(format!("{}: {work}", self.name));
            if self.fails {
                return Err(Failure::failed("broken"));
            }
            Ok(self.calls.borrow().len() as f64)
        }
    }

    #[test]
    fn contenders_take_turns_within_each_work() {
        let calls = RefCell::new(Vec::new());
        let scripted = |name, fails| Scripted {
            name,
            calls: &calls,
            fails,
        };
        let (mut ours, mut peer) = (scripted("ours", false), scripted("peer", false));
        let work = [
            Work::Prefill { tokens: 8 },
            Work::Decode {
                streams: 2,
                context: 4,
            },
        ];
        let mut rates = Rates::new(2, 2);
        for _ in 0..2 {
            for (index, work) in work.into_iter().enumerate() {
                rates
                    .measure(index, work, &mut [&mut ours, &mut peer])
                    .expect("both work");
            }
        }
        let names: Vec<String> = calls
            .borrow()
            .iter()
            .map(|call| call[..4].to_owned())
            .collect();
        assert_eq!(names, ["ours", "peer"].repeat(4));
        assert_eq!(rates.of(0), [vec![1.0, 5.0], vec![2.0, 6.0]]);
        assert_eq!(rates.of(1), [vec![3.0, 7.0], vec![4.0, 8.0]]);
    }

    #[test]
    fn a_contender_that_fails_ends_the_run() {
        let calls = RefCell::new(Vec::new());
        let scripted = |name, fails| Scripted {
            name,
            calls: &calls,
            fails,
        };
        let (mut broken, mut unasked) = (scripted("broken", true), scripted("unasked", false));
        let failed = Rates::new(1, 2).measure(
            0,
            Work::Prefill { tokens: 8 },
            &mut [&mut broken, &mut unasked],
        );
        assert_eq!(failed.expect_err("it is broken").message(), "broken");
        assert_eq!(calls.borrow().len(), 1);
    }
}
