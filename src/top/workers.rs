//! Workers with their load and pages, two lines each. It must not know requests.

use baton_proto::v1::{PageLedger, WorkerRole, WorkerStatus};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::draw::{DIM, framed};
use super::screen::{Panel, Screen, id_of};

/// Lines of a worker.
const LINES: usize = 2;
/// Columns of the longest ledger.
const LEDGER: usize = 48;

/// Draws the list, with the selected worker in sight.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, screen: &Screen) {
    let workers = &screen.known.workers.workers;
    let has_keys = screen.panel == Panel::Workers;
    let block = framed(&format!("Workers {}", workers.len()), has_keys);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if workers.is_empty() {
        let words =
            "no worker yet: start `baton decode` and `baton prefill` with --router, or `baton up`";
        frame.render_widget(Paragraph::new(words).style(DIM), inner);
        return;
    }
    let room = (inner.height as usize / LINES).max(1);
    let selected = screen.worker_at();
    let first = (selected + 1).saturating_sub(room);
    let shown = workers.iter().enumerate().skip(first).take(room);
    let lines = shown.flat_map(|(at, worker)| {
        let is_selected = has_keys && at == selected;
        [load(worker, is_selected), pages(worker, inner.width)]
    });
    frame.render_widget(Paragraph::new(lines.collect::<Vec<_>>()), inner);
}

fn load(worker: &WorkerStatus, is_selected: bool) -> Line<'static> {
    let info = worker.info.clone().unwrap_or_default();
    let load = worker.load.clone().unwrap_or_default();
    let role = match info.role() {
        WorkerRole::Prefill => "prefill",
        WorkerRole::Decode => "decode",
        WorkerRole::Unspecified => "unknown",
    };
    let state = match worker.state.as_str() {
        "ready" => Style::new().fg(Color::Green),
        "draining" => Style::new().fg(Color::Yellow),
        _ => Style::new().fg(Color::Red),
    };
    let mark = if is_selected { "▶ " } else { "  " };
    let name = format!("{mark}{:<14} ", id_of(worker));
    let name = if is_selected {
        name.bold().cyan()
    } else {
        name.bold()
    };
    Line::from(vec![
        name,
        format!("{role:<8}").into(),
        Span::styled(format!("{:<10} ", worker.state), state),
        format!(
            "{:>3} running {:>3} queued {:>3} of this router  step {:.1} ms  ",
            load.running,
            load.queued,
            worker.in_flight,
            f64::from(load.step_us) / 1000.0
        )
        .into(),
        Span::styled(format!("{} {:016x}", info.address, info.incarnation), DIM),
    ])
}

fn pages(worker: &WorkerStatus, width: u16) -> Line<'static> {
    let pages = worker
        .load
        .as_ref()
        .and_then(|load| load.pages)
        .unwrap_or_default();
    let columns = (width as usize).saturating_sub(60).clamp(10, LEDGER);
    let mut spans = vec![Span::raw("  ")];
    spans.extend(ledger(&pages, columns));
    let figures = [
        (pages.live, "live"),
        (pages.granted, "granted"),
        (pages.cached, "cached"),
        (pages.quarantined, "quarantined"),
        (pages.free, "free"),
    ];
    let told = figures
        .iter()
        .filter(|(count, name)| *count > 0 || *name != "quarantined");
    let told: Vec<_> = told
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    spans.push(format!("  {}", told.join("  ")).into());
    Line::from(spans)
}

/// The ledger as one bar; whatever has a page has a column, so that nothing hides.
fn ledger(pages: &PageLedger, columns: usize) -> Vec<Span<'static>> {
    let parts = [
        (pages.live, "█", Color::Blue),
        (pages.granted, "▓", Color::Yellow),
        (pages.cached, "▒", Color::Cyan),
        (pages.quarantined, "!", Color::Red),
    ];
    let mut left = columns;
    let mut spans = Vec::new();
    for (count, sign, colour) in parts {
        if count == 0 || pages.total == 0 {
            continue;
        }
        let share = u64::from(count) * columns as u64 / u64::from(pages.total);
        let taken = (share as usize).max(1).min(left);
        left -= taken;
        spans.push(Span::styled(sign.repeat(taken), Style::new().fg(colour)));
    }
    spans.push(Span::styled("·".repeat(left), DIM));
    spans
}
