//! Tests of the crate: whole transfers over both transports, scripted peers, random schedules.

mod corruption;
mod deadlines;
mod faults;
mod frames;
mod handshake;
mod hostile;
mod network;
mod progress;
mod quarantine;
mod raw;
mod schedule;
mod sockets;
mod support;
mod whole;
