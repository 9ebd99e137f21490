//! The OpenAI-compatible door: HTTP/1.1 on a port of its own, translated into the same requests that gRPC
//! brings, and answered from the same stream of events.
//!
//! - `server`, `connections`, `patience`: connections under limits.
//! - `routes`, `body`, `room`: who calls what, and what it sent.
//! - `fields`, `schema`, `values`, `prompts`, `glimpse`, `generate`, `chat`, `completion`, `texts`: what clients may say, and what of it is refused.
//! - `answer`, `events`, `pieces`, `collect`, `sse`, `logprobs`, `replies`: what clients are told.
//! - `accepts`, `error`, `openapi`: the same for everything.
//! - `ui`: the page of operators.
//!
//! It must not know workers, legs or how a request is served.

mod accepts;
mod answer;
mod body;
mod chat;
mod collect;
mod completion;
mod connections;
mod error;
mod events;
mod fields;
mod generate;
mod glimpse;
mod logprobs;
mod openapi;
mod patience;
mod pieces;
mod prompts;
mod replies;
mod room;
mod routes;
mod schema;
mod server;
mod sse;
mod texts;
mod ui;
mod values;
mod whole;

#[cfg(test)]
mod tests;

pub use accepts::HttpBody;
pub(crate) use routes::routes;
pub(crate) use server::HttpServer;
