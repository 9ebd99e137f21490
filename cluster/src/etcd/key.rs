//! Names of keys: `PREFIX/workers/ROLE/WORKER_ID/INCARNATION`.
//!
//! Every part has a strict pattern without `/`, so that no name can reach into another's place. It
//! must not know what is stored there.

use baton_proto::domain::{WorkerInfo, WorkerRole};
use baton_proto::ids::{Incarnation, WorkerId};

use crate::ClusterError;
use crate::table::MemberKey;

/// Longest prefix, in bytes.
const MAX_PREFIX_BYTES: usize = 128;
/// Longest part of a prefix, in bytes.
const MAX_PART_BYTES: usize = 64;

/// What a key names: one start of one worker, in its role.
pub(super) type Name = (WorkerRole, MemberKey);

/// Where the keys of one service lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Prefix(String);

impl Prefix {
    /// Parts of `[A-Za-z0-9._-]{1,64}` between single `/`, none of them `.` or `..`.
    pub(super) fn new(prefix: &str) -> Result<Self, ClusterError> {
        let parts = prefix.strip_prefix('/').unwrap_or(prefix).split('/');
        let fits = prefix.len() <= MAX_PREFIX_BYTES && parts.into_iter().all(part_fits);
        if fits {
            Ok(Self(prefix.to_owned()))
        } else {
            Err(ClusterError::Prefix {
                prefix: prefix.chars().take(MAX_PART_BYTES).collect(),
            })
        }
    }

    /// What the keys of all workers begin with.
    pub(super) fn workers(&self) -> String {
        format!("{}/workers/", self.0)
    }

    /// The key of one worker incarnation.
    pub(super) fn worker(&self, info: &WorkerInfo) -> String {
        let (role, id, incarnation) = (role_name(info.role), &info.worker_id, info.incarnation);
        format!("{}{role}/{id}/{incarnation}", self.workers())
    }

    /// Which worker a key names; nothing if it is not of the one form that [`Self::worker`] writes.
    pub(super) fn parse(&self, key: &[u8]) -> Option<Name> {
        let key = std::str::from_utf8(key).ok()?;
        let mut parts = key.strip_prefix(&self.workers())?.split('/');
        let role = match parts.next()? {
            "prefill" => WorkerRole::Prefill,
            "decode" => WorkerRole::Decode,
            _ => return None,
        };
        let id = WorkerId::new(parts.next()?)?;
        let digits = parts.next()?;
        let incarnation = Incarnation(u64::from_str_radix(digits, 16).ok()?);
        let plain = incarnation.0 != 0 && incarnation.to_string() == digits;
        (plain && parts.next().is_none()).then_some((role, (id, incarnation)))
    }
}

fn part_fits(part: &str) -> bool {
    let letters = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=MAX_PART_BYTES).contains(&part.len())
        && part.bytes().all(letters)
        && part != "."
        && part != ".."
}

fn role_name(role: WorkerRole) -> &'static str {
    match role {
        WorkerRole::Prefill => "prefill",
        WorkerRole::Decode => "decode",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sec_07_prefixes_match_a_strict_pattern() {
        for right in ["baton", "/baton", "team-a/baton.v1", "/a/b/c_d"] {
            assert!(Prefix::new(right).is_ok(), "{right:?}");
        }
        let long = "x".repeat(65);
        let longer = ["abcdefgh"; 20].join("/");
        let wrong = [
            "", "/", "//a", "a/", "a//b", "..", "../a", "a/../b", "a/./b", "a b", "a\0b", "%2e%2e",
            "ä", "a\n", &long, &longer,
        ];
        for wrong in wrong {
            let refused = Prefix::new(wrong);
            assert!(
                matches!(refused, Err(ClusterError::Prefix { .. })),
                "{wrong:?} must be refused"
            );
        }
    }

    #[test]
    fn sec_07_only_keys_of_the_one_form_name_a_worker() {
        let prefix = Prefix::new("/baton").expect("a prefix");
        let parsed = prefix.parse(b"/baton/workers/decode/d-0/00000000000000ff");
        let id = WorkerId::new("d-0").expect("a name");
        assert_eq!(parsed, Some((WorkerRole::Decode, (id, Incarnation(255)))));
        let wrong: [&[u8]; 14] = [
            b"",
            b"/baton/workers/",
            b"/baton/workers/decode/d-0",
            b"/baton/workers/decode/d-0/",
            b"/baton/workers/decode/d-0/ff",
            b"/baton/workers/decode/d-0/00000000000000FF",
            b"/baton/workers/decode/d-0/+0000000000000ff",
            b"/baton/workers/decode/d-0/0000000000000000",
            b"/baton/workers/decode/d-0/00000000000000ff/x",
            b"/baton/workers/router/d-0/00000000000000ff",
            b"/baton/workers/decode/a/b/00000000000000ff",
            b"/baton/workers/decode/a b/00000000000000ff",
            b"/baton/workers/decode/\xff/00000000000000ff",
            b"/baton2/workers/decode/d-0/00000000000000ff",
        ];
        for wrong in wrong {
            let shown = String::from_utf8_lossy(wrong);
            assert_eq!(prefix.parse(wrong), None, "{shown} must be skipped");
        }
    }
}
