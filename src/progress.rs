//! Progress bars on a terminal, silence elsewhere. Must not know what progresses.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of bytes, e.g. while a model loads; hidden unless `shown`.
pub(crate) fn bytes(what: &str, shown: bool) -> ProgressBar {
    let bar = bar(
        "{msg} [{bar:32}] {bytes}/{total_bytes} {bytes_per_sec}",
        what,
    );
    if !shown {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

/// A bar of requests.
pub(crate) fn requests(what: &str, total: u64) -> ProgressBar {
    let bar = bar("{msg} [{bar:32}] {pos}/{len} {elapsed}", what);
    bar.set_length(total);
    bar
}

fn bar(template: &str, what: &str) -> ProgressBar {
    let bar = ProgressBar::new(0);
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style = ProgressStyle::with_template(template).expect("the templates above are valid");
    bar.set_style(style.progress_chars("=> "));
    bar.set_message(what.to_owned());
    bar
}
