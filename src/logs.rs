//! Logs go to standard error; standard output belongs to the command's result. Must not
//! know what is logged.

use tracing_subscriber::EnvFilter;

use crate::output;

/// Starts logging with a filter such as `info` or `baton_router=debug,warn`.
pub(crate) fn start(filter: Option<&str>) {
    let filter = EnvFilter::try_new(filter.unwrap_or("warn,baton=info")).unwrap_or_else(|error| {
        output::remark(&format!("baton: log filter ignored: {error}\n"));
        EnvFilter::new("warn")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}
