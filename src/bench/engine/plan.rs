//! What was asked for, validated once; then what of it this model and machine can do.

use std::path::PathBuf;

use baton_kv_cache::KvDtype;

use crate::args::{BenchEngineArgs, EnginePart, Format};
use crate::exit::Failure;

use super::peer::Peer;
use super::work::Work;

/// Rounds that figures may be medians of.
const MAX_ROUNDS: u32 = 1000;
/// Most bytes of pages, as a part of what is available: weights and buffers need room beside them.
const POOL_PART: u64 = 2;

/// A validated plan of measurement.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) model: PathBuf,
    pub(super) threads: usize,
    pub(super) kv_dtype: KvDtype,
    pub(super) rounds: u32,
    pub(super) format: Format,
    pub(super) peer: Option<Peer>,
    only: Option<EnginePart>,
}

impl Plan {
    /// Checks the arguments.
    pub(super) fn new(args: &BenchEngineArgs) -> Result<Self, Failure> {
        let model = args.model.clone().ok_or_else(|| {
            Failure::usage("--model PATH is needed: a GGUF file or a Hugging Face directory")
        })?;
        let rounds = args.rounds.unwrap_or(5);
        if !(1..=MAX_ROUNDS).contains(&rounds) {
            return Err(Failure::usage(format!(
                "--rounds is {rounds}, allowed: 1 to {MAX_ROUNDS}"
            )));
        }
        let python = args.peer_python.as_deref();
        let peer = args.peer.map(|peer| Peer::find(peer, python)).transpose()?;
        let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
        let format = if args.json {
            Some(Format::Json)
        } else {
            args.format
        };
        Ok(Self {
            model,
            threads: args.threads.unwrap_or_else(cpus),
            kv_dtype: args.kv_dtype.map_or(KvDtype::Bf16, Into::into),
            rounds,
            format: format.unwrap_or(Format::Text),
            peer,
            only: args.only,
        })
    }

    /// The work that fits into the model's context and into memory; `leave_out` learns what does not,
    /// and why.
    pub(super) fn work(
        &self,
        context_length: u32,
        token_bytes: u64,
        available: u64,
        mut leave_out: impl FnMut(Work, String),
    ) -> Vec<Work> {
        let wanted = Work::all().filter(|work| match self.only {
            None => true,
            Some(EnginePart::Prefill) => matches!(work, Work::Prefill { .. }),
            Some(EnginePart::Decode) => matches!(work, Work::Decode { .. }),
        });
        // Each process of the peer holds as many tokens.
        let pools = 1 + self.peer.as_ref().map_or(0, Peer::formats) as u64;
        let room = available / POOL_PART / pools;
        let fits = |work: &Work| {
            let needed = work.held().saturating_mul(token_bytes);
            let reason = if work.longest() > context_length {
                format!("the model's context is {context_length} tokens")
            } else if needed > room {
                format!(
                    "its pages take {} MB, there is room for {}",
                    needed >> 20,
                    room >> 20
                )
            } else {
                return true;
            };
            leave_out(*work, reason);
            false
        };
        wanted.filter(fits).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(only: Option<EnginePart>) -> Plan {
        let args = BenchEngineArgs {
            model: Some("m.gguf".into()),
            only,
            ..BenchEngineArgs::default()
        };
        Plan::new(&args).expect("valid")
    }

    #[test]
    fn what_does_not_fit_is_left_out_with_the_reason() {
        let all = |context, bytes, available| {
            let mut out = Vec::new();
            let work =
                plan(None).work(context, bytes, available, |work, why| out.push((work, why)));
            (work, out)
        };
        assert_eq!(all(4096, 1, u64::MAX), (Work::all().collect(), Vec::new()));
        let (work, out) = all(2048, 1, u64::MAX);
        assert_eq!(
            (work.len(), out.len()),
            (3 + 6, 6),
            "2,048 tokens cannot grow"
        );
        assert!(out[0].1.contains("2048"), "{out:?}");
        // Sixteen streams at 2,048 fit, thirty-two do not.
        let (work, out) = all(4096, 1 << 20, (16 * 2064 * 2) << 20);
        assert_eq!(work.len(), 3 + 6 + 5);
        assert_eq!(
            out[0].0,
            Work::Decode {
                streams: 32,
                context: 2048
            }
        );
        assert!(
            out[0].1.contains("66048 MB") && out[0].1.contains("33024"),
            "{out:?}"
        );
    }

    #[test]
    fn a_part_alone_is_that_part() {
        for (part, count) in [(EnginePart::Prefill, 3), (EnginePart::Decode, 12)] {
            let work = plan(Some(part)).work(4096, 1, u64::MAX, |work, _| panic!("{work}"));
            assert_eq!(work.len(), count);
        }
    }
}
