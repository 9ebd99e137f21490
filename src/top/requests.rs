//! Requests with bars on the time of the last half minute. It must not know workers' load.

use std::time::Instant;

use baton_proto::v1::{RequestAttempt, RequestRecord};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::draw::{DIM, framed, name_of};
use super::latency::time;
use super::screen::{Panel, Screen};

/// Time of the bars.
const SPAN_US: u64 = 30_000_000;
/// Columns before the bars.
const TEXT: usize = 62;

/// What a column of a bar shows; later ones cover earlier ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Queued,
    Prefill,
    Transfer,
    Decode,
}

impl Phase {
    fn sign(self) -> (&'static str, Color) {
        match self {
            Self::Queued => ("·", Color::Gray),
            Self::Prefill => ("▒", Color::Blue),
            Self::Transfer => ("▓", Color::Yellow),
            Self::Decode => ("█", Color::Green),
        }
    }
}

/// Draws the list, with the selected request in sight.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, screen: &Screen, now: Instant) {
    let requests = &screen.known.requests.requests;
    let has_keys = screen.panel == Panel::Requests;
    let block = framed("Requests, newest first; bars are the last 30 s", has_keys);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    if requests.is_empty() {
        let words = "no request yet: they appear here while they run";
        frame.render_widget(Paragraph::new(words).style(DIM), inner);
        return;
    }
    let since = now.saturating_duration_since(screen.known.at);
    let now_us = screen.known.requests.now_us + since.as_micros() as u64;
    let rows = (inner.height as usize).saturating_sub(1).max(1);
    let selected = screen.request_at();
    let first = if has_keys {
        (selected + 1).saturating_sub(rows)
    } else {
        0
    };
    let mut lines = vec![Line::styled(heading(), DIM)];
    let shown = requests.iter().enumerate().skip(first).take(rows);
    lines.extend(shown.map(|(at, request)| {
        let columns = (inner.width as usize).saturating_sub(TEXT);
        row(request, has_keys && at == selected, now_us, columns)
    }));
    frame.render_widget(Paragraph::new(lines), inner);
}

fn heading() -> String {
    let [name, state, ttft, tokens, took] = ["request", "state", "TTFT", "tokens", "time"];
    format!("  {name:<18} {state:<11} {ttft:>8} {tokens:>9} {took:>8}")
}

fn row(request: &RequestRecord, is_selected: bool, now_us: u64, columns: usize) -> Line<'static> {
    let name: String = name_of(request).chars().take(18).collect();
    let is_running = request.outcome.is_empty();
    let (state, style) = match request.outcome.as_str() {
        "" => (&request.phase, Style::new().fg(Color::Cyan)),
        "ok" => (&request.outcome, Style::new().fg(Color::Green)),
        _ => (&request.outcome, Style::new().fg(Color::Red)),
    };
    let age = now_us.saturating_sub(request.received_us);
    let ttft = request.first_token_us.map_or_else(|| "–".to_owned(), time);
    let tokens = format!("{}+{}", request.prompt_tokens, request.completion_tokens);
    let mark = if is_selected { "▶ " } else { "  " };
    let name = format!("{mark}{name:<18} ");
    let mut spans = vec![
        if is_selected {
            name.bold().cyan()
        } else {
            name.into()
        },
        Span::styled(format!("{state:<11} "), style),
        format!("{ttft:>8} {tokens:>9} ").into(),
        format!("{:>8}  ", time(request.finished_us.unwrap_or(age))).into(),
    ];
    spans.extend(bar(request, now_us, columns));
    if !is_running && request.outcome != "ok" {
        let end = column(
            request.received_us + request.finished_us.unwrap_or(0),
            now_us,
            columns,
        );
        spans.extend(end.map(|_| "x".red()));
    }
    Line::from(spans)
}

/// Where a time stands among the columns, if it does.
fn column(at_us: u64, now_us: u64, columns: usize) -> Option<usize> {
    let ago = now_us.saturating_sub(at_us);
    let from_left = SPAN_US.checked_sub(ago)?;
    Some((u128::from(from_left) * columns as u128 / u128::from(SPAN_US)) as usize)
}

fn bar(request: &RequestRecord, now_us: u64, columns: usize) -> Vec<Span<'static>> {
    let mut signs: Vec<Option<Phase>> = vec![None; columns];
    let age = now_us.saturating_sub(request.received_us);
    for attempt in &request.attempts {
        for (phase, from, to) in phases(request, attempt, age) {
            let at = |time: u64| column(request.received_us + time, now_us, columns);
            // What ended before the first column is not seen; what began before it begins there.
            let Some(end) = at(to) else { continue };
            let begin = at(from).unwrap_or(0);
            let end = end.max(begin + 1).min(columns);
            for sign in signs.iter_mut().take(end).skip(begin) {
                *sign = Some(phase);
            }
        }
    }
    let used = signs
        .iter()
        .rposition(Option::is_some)
        .map_or(0, |last| last + 1);
    let spans = signs[..used]
        .chunk_by(|a, b| a == b)
        .map(|same| match same[0] {
            None => Span::raw(" ".repeat(same.len())),
            Some(phase) => {
                let (sign, colour) = phase.sign();
                Span::styled(sign.repeat(same.len()), Style::new().fg(colour))
            }
        });
    spans.collect()
}

/// Phases of an attempt in microseconds since the request's receipt.
pub(super) fn phases(
    request: &RequestRecord,
    attempt: &RequestAttempt,
    age_us: u64,
) -> Vec<(Phase, u64, u64)> {
    let placement = attempt.placement.as_ref();
    let is_split = placement.is_some_and(|placement| !placement.prefill_worker.is_empty());
    let is_first = placement.is_some_and(|placement| placement.attempt == 1);
    let end = attempt.ended_us.or(request.finished_us).unwrap_or(age_us);
    let begin = if is_first { 0 } else { attempt.begun_us };
    let mut phases = vec![(Phase::Queued, begin, attempt.scheduled_us.unwrap_or(end))];
    let Some(scheduled) = attempt.scheduled_us else {
        return phases;
    };
    let landed = attempt.landed_us;
    let computed = attempt.first_token_us.or(landed).unwrap_or(end);
    phases.push((Phase::Prefill, scheduled, computed));
    if is_split {
        if attempt.granted_us.is_some() {
            let sent = attempt.transfer_us.unwrap_or(computed).max(computed);
            phases.push((Phase::Transfer, sent, landed.unwrap_or(end)));
        }
        if let Some(landed) = landed {
            phases.push((Phase::Decode, landed, end));
        }
    } else if let Some(first) = attempt.first_token_us {
        phases.push((Phase::Decode, first, end));
    }
    phases.retain(|(_, from, to)| from < to);
    phases
}
