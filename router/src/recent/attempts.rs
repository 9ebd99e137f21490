//! The attempts of one request: the first ones and the last ones, with their times. It must not know what
//! they are about.

use baton_proto::v1;

use super::record::shortened;

/// Attempts kept of the first and of the last ones.
const KEPT: usize = 8;

/// Attempts in order.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    kept: Vec<v1::RequestAttempt>,
    left_out: u32,
}

impl Attempts {
    /// Another attempt takes the place of the last one.
    pub(super) fn begin(&mut self, placement: &v1::PlacementAttempt, now_us: u64) {
        self.end(now_us);
        if self.kept.len() >= 2 * KEPT {
            self.kept.remove(KEPT);
            self.left_out += 1;
        }
        let mut placement = placement.clone();
        shortened(&mut placement.reason);
        self.kept.push(v1::RequestAttempt {
            placement: Some(placement),
            begun_us: now_us,
            ..v1::RequestAttempt::default()
        });
    }

    /// The last one, if any has begun.
    pub(super) fn last_mut(&mut self) -> Option<&mut v1::RequestAttempt> {
        self.kept.last_mut()
    }

    pub(super) fn last(&self) -> Option<&v1::RequestAttempt> {
        self.kept.last()
    }

    /// The last one is over.
    pub(super) fn end(&mut self, now_us: u64) {
        if let Some(last) = self.kept.last_mut() {
            last.ended_us.get_or_insert(now_us);
        }
    }

    pub(super) fn told(&self) -> (Vec<v1::RequestAttempt>, u32) {
        (self.kept.clone(), self.left_out)
    }
}
