//! Tests of scheduler and step loop with an oracle engine.

mod cases;
mod oracle;
mod rig;
