//! A timeline in a terminal: a line per phase, bars under one another on one axis. It must not know where the phases
//! come from.

use std::fmt::Write as _;
use std::io::IsTerminal;

use super::{Phase, Timeline};

/// Columns where nobody says how many there are.
const DEFAULT_COLUMNS: usize = 100;
/// Fewest columns of the bars: a narrower terminal wraps.
const LEAST_BAR: usize = 16;
/// Longest worker's name that is shown whole.
const MOST_NAME: usize = 20;
const PHASE: usize = 11;
const TIME: usize = 11;

/// Where it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Canvas {
    columns: usize,
    colour: bool,
}

impl Canvas {
    /// As wide as the terminal, and in colour if it is one and nobody minds (`NO_COLOR`).
    pub(crate) fn of(stream: &impl IsTerminal) -> Self {
        let is_terminal = stream.is_terminal();
        let size = is_terminal.then(ratatui::crossterm::terminal::size);
        let columns = match size {
            Some(Ok((columns, _))) if columns > 0 => usize::from(columns),
            _ => DEFAULT_COLUMNS,
        };
        let minds = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self {
            columns,
            colour: is_terminal && !minds,
        }
    }

    #[cfg(test)]
    pub(super) fn plain(columns: usize) -> Self {
        Self {
            columns,
            colour: false,
        }
    }

    #[cfg(test)]
    pub(super) fn coloured(columns: usize) -> Self {
        Self {
            columns,
            colour: true,
        }
    }

    /// The timeline as lines.
    pub(crate) fn draw(self, timeline: &Timeline) -> String {
        let phases = timeline.attempts.iter().flat_map(|attempt| &attempt.phases);
        let longest = phases.map(|phase| phase.worker.chars().count()).max();
        let name = longest.unwrap_or(0).min(MOST_NAME);
        let around = 2 + PHASE + name + 2 + TIME;
        let axis = Axis {
            end_us: timeline.end_us.max(1),
            cells: self.columns.saturating_sub(around).max(LEAST_BAR),
        };
        let indent = " ".repeat(2 + PHASE + name + 1);
        let mut text = format!("request {}: {}\n", timeline.request, timeline.outcome);
        for attempt in &timeline.attempts {
            if !attempt.title.is_empty() {
                let _ = writeln!(text, "{}", attempt.title);
            }
            for phase in &attempt.phases {
                self.line(&mut text, phase, axis, name);
            }
        }
        if let Some(first) = timeline.first_token_us {
            let place = axis.cell(first).min(axis.cells - 1);
            let told = shown(first);
            let _ = writeln!(text, "{indent}{}^ first token, {told}", " ".repeat(place));
        }
        let _ = writeln!(text, "{indent}{}", axis.ruler());
        if let Some(note) = &timeline.note {
            let _ = writeln!(text, "{note}");
        }
        text
    }

    fn line(self, text: &mut String, phase: &Phase, axis: Axis, name: usize) {
        let worker: String = phase.worker.chars().take(MOST_NAME).collect();
        let (before, bar) = axis.bar(phase.from_us, phase.to_us);
        let after = axis.cells - before - bar.chars().count();
        let bar = if self.colour {
            format!("\x1b[{}m{bar}\x1b[0m", colour(phase.name))
        } else {
            bar
        };
        let _ = writeln!(
            text,
            "  {:<PHASE$}{worker:<name$} {}{bar}{} {:>TIME$}",
            phase.name,
            " ".repeat(before),
            " ".repeat(after),
            shown(phase.to_us - phase.from_us),
        );
    }
}

/// Time from left to right.
#[derive(Debug, Clone, Copy)]
struct Axis {
    end_us: u64,
    cells: usize,
}

impl Axis {
    fn cell(self, at_us: u64) -> usize {
        let cell = u128::from(at_us) * self.cells as u128 / u128::from(self.end_us);
        cell.min(self.cells as u128) as usize
    }

    /// Cells before a bar, and the bar: never outside, and never nothing.
    fn bar(self, from_us: u64, to_us: u64) -> (usize, String) {
        let before = self.cell(from_us).min(self.cells - 1);
        let cells = self.cell(to_us).saturating_sub(before);
        match cells {
            0 => (before, "▏".to_owned()),
            cells => (before, "█".repeat(cells)),
        }
    }

    /// `0          5 ms          10 ms`
    fn ruler(self) -> String {
        let marks = (self.cells / 20).clamp(1, 5);
        let mut ruler = String::from("0");
        for mark in 1..=marks {
            let at_us = self.end_us / marks as u64 * mark as u64;
            let label = shown(if mark == marks { self.end_us } else { at_us });
            // Each label ends where its time is.
            let end = self.cells * mark / marks;
            let length = ruler.chars().count();
            let room = end.saturating_sub(length);
            let _ = write!(ruler, "{label:>room$}");
        }
        ruler
    }
}

/// A time with three digits.
fn shown(us: u64) -> String {
    let us = us as f64;
    match us {
        ..1e3 => format!("{us} us"),
        1e3..1e4 => format!("{:.2} ms", us / 1e3),
        1e4..1e5 => format!("{:.1} ms", us / 1e3),
        1e5..1e6 => format!("{:.0} ms", us / 1e3),
        1e6..1e7 => format!("{:.2} s", us / 1e6),
        _ => format!("{:.1} s", us / 1e6),
    }
}

/// SGR codes that are told apart on light and dark.
fn colour(phase: &str) -> u8 {
    match phase {
        "queued" | "grant wait" => 33,
        "prefill" => 34,
        "transfer" => 35,
        "landing" => 36,
        "decode" => 32,
        _ => 90,
    }
}
