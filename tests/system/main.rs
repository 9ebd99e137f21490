//! Whole-system tests: the shipped binary, real processes, real sockets, real models.
//!
//! Each test starts its own service and takes turns with the others, for two cores serve them all.

mod clients;
mod command_line;
mod exact;
mod faults;
mod random_requests;
mod real_model;
mod service;
