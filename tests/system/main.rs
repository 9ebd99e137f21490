//! Whole-system tests: the shipped binary, real processes, real sockets, real models.
//!
//! Each test starts its own service and takes turns with the others, for two cores serve them all.

mod answer;
mod bad_files;
mod bad_input;
mod bad_numbers;
mod bench_engine;
mod cancel_time;
mod cancels;
mod certificates;
mod chaos;
mod client;
mod clients;
mod cluster;
mod command_line;
mod deploy;
mod deploy_run;
mod drain;
mod etcd;
mod etcd_server;
mod exact;
mod garbage;
mod health;
mod http;
mod keys;
mod killed_routers;
mod killed_workers;
mod matrix;
mod membership;
mod models;
mod namespace;
mod network;
mod pressure;
mod process;
mod random_requests;
mod real_model;
mod resume;
mod rolling;
mod security;
mod service;
mod static_membership;
mod supervision;
mod tls;
mod top;
mod traffic;
