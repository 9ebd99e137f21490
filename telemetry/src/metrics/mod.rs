//! Metrics of one process, as Prometheus reads them.
//!
//! - `names`: every metric there is, with its labels, its kind and its words.
//! - `label`: which values a label may have, so that no client can make series.
//! - `registry`: handles to record with, figures that are read when somebody asks, and the text.
//! - `process`: what the system says of this process.
//! - `server`: the small port where the text is read.
//!
//! Whatever is counted elsewhere is read there at each scrape and not counted again; only distributions are
//! recorded as they come, over handles that are taken once. It must not know what the figures mean.

mod label;
pub mod names;
mod process;
mod registry;
mod server;
#[cfg(test)]
mod tests;

pub use label::{Label, Values};
pub use names::{Kind, Row, Shown};
pub use process::resident_bytes;
pub use registry::{Metrics, Scrape, Size, Timing};
pub use server::{CONTENT_TYPE, serve};
