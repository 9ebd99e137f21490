//! The whole view: a head, workers, latencies, requests, a foot, and what lies over them. It must not know
//! where any of it comes from.

use std::time::Instant;

use baton_proto::v1::{DoneEvent, RequestRecord, Usage};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

use super::latency::{self, last_seconds};
use super::screen::{Over, Screen};
use super::{requests, workers};
use crate::receipt::receipt_text;

/// Seconds that rates are of.
const RATE_SECONDS: usize = 10;
/// Lines of the latencies.
const LATENCY_LINES: u16 = 5;
/// Lines that requests keep, however many workers there are.
const LEAST_REQUESTS: u16 = 6;

pub(super) const DIM: Style = Style::new().fg(Color::DarkGray);

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, screen: &Screen, now: Instant) {
    let area = frame.area();
    let all = screen.known.workers.workers.len() as u16;
    let room = area
        .height
        .saturating_sub(2 + LATENCY_LINES + LEAST_REQUESTS);
    let most = (2 * all.max(1) + 2).min(room.max(4));
    let [head, top, middle, bottom, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(most),
        Constraint::Length(LATENCY_LINES),
        Constraint::Min(3),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(heading(screen), head);
    workers::draw(frame, top, screen);
    latency::draw(frame, middle, &screen.known.history);
    requests::draw(frame, bottom, screen, now);
    frame.render_widget(footing(screen, now), foot);
    if let Some(over) = &screen.over {
        draw_over(frame, over);
    }
}

fn heading(screen: &Screen) -> Line<'static> {
    let known = &screen.known;
    let router = known.workers.router.clone().unwrap_or_default();
    let seconds = last_seconds(&known.history, RATE_SECONDS);
    let rate = |sum: u64| sum as f64 / seconds.len().max(1) as f64;
    let received = rate(
        seconds
            .iter()
            .map(|second| u64::from(second.received))
            .sum(),
    );
    let tokens = rate(seconds.iter().map(|second| second.completion_tokens).sum());
    let badly: u32 = seconds.iter().map(|second| second.ended_badly).sum();
    let mut spans = vec![
        "Baton ".bold(),
        Span::styled(format!("{}  ", screen.address), DIM),
        format!(
            "{} running, {} waiting  {received:.1} requests/s  {tokens:.0} tokens/s  ",
            router.requests_running, router.requests_waiting
        )
        .into(),
    ];
    if badly > 0 {
        spans.push(format!("{badly} not ended well in {RATE_SECONDS} s").red());
    }
    Line::from(spans)
}

fn footing(screen: &Screen, now: Instant) -> Line<'static> {
    if let Some((since, why)) = &screen.missed {
        let seconds = now.saturating_duration_since(*since).as_secs();
        let words = format!(" the router has not answered for {seconds} s: {why}; trying again ");
        return Line::from(words.black().on_yellow());
    }
    if let Some(said) = screen.said(now) {
        return Line::from(format!(" {said} ").black().on_cyan());
    }
    let keys = [
        ("q", "quit"),
        ("↑↓", "select"),
        ("tab", "other list"),
        ("d", "drain"),
        ("enter", "receipt"),
        ("?", "help"),
    ];
    let spans = keys
        .iter()
        .flat_map(|(key, words)| [(*key).bold(), Span::styled(format!(" {words}  "), DIM)]);
    Line::from(spans.collect::<Vec<_>>())
}

/// A frame around a list; brighter where keys go.
pub(super) fn framed(title: &str, has_keys: bool) -> Block<'static> {
    let style = if has_keys {
        Style::new().fg(Color::Cyan)
    } else {
        DIM
    };
    let title = Line::from(format!(" {title} ")).add_modifier(Modifier::BOLD);
    Block::bordered().border_style(style).title(title)
}

fn draw_over(frame: &mut Frame<'_>, over: &Over) {
    let (title, lines) = match over {
        Over::Drain(worker) => (
            format!("Drain {worker}?"),
            vec![
                Line::from("It takes no new requests, finishes those that run and ends."),
                Line::from("Below `baton up` it is started again."),
                Line::default(),
                Line::from(vec![
                    "y".bold(),
                    " drains it, any other key does not".into(),
                ]),
            ],
        ),
        Over::Receipt(record) => (format!("Request {}", name_of(record)), receipt(record)),
        Over::Help => ("Help".to_owned(), help()),
    };
    let widest = lines
        .iter()
        .map(Line::width)
        .max()
        .unwrap_or(0)
        .max(title.len() + 2);
    let area = centred(frame.area(), widest as u16 + 4, lines.len() as u16 + 2);
    frame.render_widget(Clear, area);
    let text = Paragraph::new(lines).wrap(Wrap { trim: false });
    let block = framed(&title, true).padding(ratatui::widgets::Padding::horizontal(1));
    frame.render_widget(text.block(block), area);
}

fn centred(area: Rect, width: u16, height: u16) -> Rect {
    let (width, height) = (width.min(area.width), height.min(area.height));
    Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    }
}

/// What a request is called.
pub(super) fn name_of(record: &RequestRecord) -> &str {
    if record.request_label.is_empty() {
        record.request_id.get(..12).unwrap_or(&record.request_id)
    } else {
        &record.request_label
    }
}

fn receipt(record: &RequestRecord) -> Vec<Line<'static>> {
    let state = if record.outcome.is_empty() {
        format!("runs: {}", record.phase)
    } else {
        record.outcome.clone()
    };
    let mut lines = vec![Line::from(format!("{}  {state}", record.request_id))];
    if !record.error.is_empty() {
        lines.push(Line::from(record.error.clone().red()));
    }
    if let Some(receipt) = &record.receipt {
        let done = DoneEvent {
            usage: Some(Usage {
                prompt_tokens: record.prompt_tokens,
                completion_tokens: record.completion_tokens as u32,
                cached_tokens: receipt.cached_tokens,
            }),
            receipt: Some(receipt.clone()),
        };
        let text = receipt_text(&done);
        lines.extend(text.lines().skip(1).map(|line| Line::from(line.to_owned())));
    } else {
        for attempt in &record.attempts {
            let placement = attempt.placement.clone().unwrap_or_default();
            lines.push(Line::from(format!(
                "  attempt {}: {} {} {}",
                placement.attempt,
                placement.prefill_worker,
                placement.decode_worker,
                placement.reason
            )));
        }
    }
    lines
}

fn help() -> Vec<Line<'static>> {
    [
        "pages of a worker's pool:",
        "  █ live   ▓ granted   ▒ cached   ! quarantined   · free",
        "a request on the time of the last half minute:",
        "  · queued   ▒ prefill   ▓ transfer   █ decode   x did not end well",
        "TTFT: receipt by the router to the first token; ITL: every gap between tokens;",
        "their small bars are the medians of each second.",
        "",
        "↑ ↓ or k j  select        tab  the other list      enter  a request's receipt",
        "d  drain the worker       q or Esc  quit",
    ]
    .map(Line::from)
    .to_vec()
}
