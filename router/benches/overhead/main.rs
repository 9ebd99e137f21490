//! What a router adds to a request's time, and how many it can take: Baton's beside `smg` in its split mode, both
//! in front of workers that answer at once. Every part is a process of its own, as for those who use them:
//!
//! - the router: the `baton` binary, or `smg`, as they are installed,
//! - the backend: this program's workers and servers, on one thread,
//! - the client: this program's callers, on one thread, started for each run.
//!
//! Runs alternate in rounds, and figures are medians of the rounds.

mod arguments;
mod backend;
mod client;
mod openai;
mod processes;
mod report;
mod rounds;
mod worker;

use clap::Parser as _;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

use arguments::{Arguments, Role};

/// Whatever went wrong: this program is for people who read it.
type Failure = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    match Arguments::parse().role {
        Role::Run(args) => rounds::run(&args),
        Role::Backend(args) => runtime.block_on(backend::run(&args.model, &args.router)),
        Role::Client(args) => LocalSet::new().block_on(&runtime, client::run(&args)),
    }
}
