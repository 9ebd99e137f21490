//! Tests of scheduler and step loop with an oracle engine.

mod cases;
mod collisions;
mod fairness;
mod handoff;
mod lifecycle;
mod oracle;
mod prompt_logprobs;
mod random;
pub(crate) mod rig;
mod shortage;
mod step_loop;
