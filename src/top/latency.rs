//! TTFT and ITL of the last minute: figures and small bars. It must not know requests.

use baton_proto::v1::{GetHistoryResponse, HistorySecond, LatencyBins};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize as _};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Sparkline};

use super::draw::framed;

/// Seconds that figures are of.
const SECONDS: usize = 60;

/// The last whole seconds, newest last; the one that goes on is left out.
pub(super) fn last_seconds(history: &GetHistoryResponse, count: usize) -> &[HistorySecond] {
    let whole = history
        .seconds
        .split_last()
        .map_or(&[][..], |(_, whole)| whole);
    &whole[whole.len().saturating_sub(count)..]
}

/// Draws both.
pub(super) fn draw(frame: &mut Frame<'_>, area: Rect, history: &GetHistoryResponse) {
    let [left, right] = Layout::horizontal([Constraint::Ratio(1, 2); 2]).areas(area);
    let of_ttft = |second: &HistorySecond| second.ttft.clone().unwrap_or_default();
    let of_itl = |second: &HistorySecond| second.itl.clone().unwrap_or_default();
    draw_one(frame, left, history, "TTFT", of_ttft);
    draw_one(frame, right, history, "ITL", of_itl);
}

fn draw_one(
    frame: &mut Frame<'_>,
    area: Rect,
    history: &GetHistoryResponse,
    name: &str,
    of: impl Fn(&HistorySecond) -> LatencyBins,
) {
    let block = framed(&format!("{name}, one minute"), false);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let seconds: Vec<LatencyBins> = last_seconds(history, SECONDS).iter().map(of).collect();
    let [words, bars] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(inner);
    let quantiles = [0.5, 0.9, 0.99].map(|share| quantile(&seconds, share, &history.bin_ends_us));
    let line = match quantiles {
        [Some(p50), Some(p90), Some(p99)] => Line::from(vec![
            "p50 ".into(),
            time(p50).bold(),
            format!("  p90 {}  p99 {}", time(p90), time(p99)).into(),
        ]),
        _ => Line::from(format!("no {name} in a minute")),
    };
    frame.render_widget(Paragraph::new(line), words);
    let medians = seconds.iter().map(|second| {
        let one = std::slice::from_ref(second);
        quantile(one, 0.5, &history.bin_ends_us)
    });
    let fitting = seconds.len().saturating_sub(bars.width as usize);
    let medians: Vec<u64> = medians
        .skip(fitting)
        .map(Option::unwrap_or_default)
        .collect();
    let style = Style::new().fg(Color::Cyan);
    frame.render_widget(Sparkline::default().data(medians).style(style), bars);
}

/// Latency in microseconds below which this share lies, between the ends of its bin.
pub(super) fn quantile(histograms: &[LatencyBins], share: f64, ends: &[u64]) -> Option<u64> {
    let mut sum = vec![0_u64; ends.len() + 1];
    for histogram in histograms {
        let own = sum.iter_mut().skip(histogram.first_bin as usize);
        for (all, count) in own.zip(&histogram.counts) {
            *all += u64::from(*count);
        }
    }
    let total: u64 = sum.iter().sum();
    let mut left = share * total as f64;
    for (bin, &count) in sum.iter().enumerate() {
        if count > 0 && count as f64 >= left {
            let begin = bin.checked_sub(1).map_or(0, |before| ends[before]);
            let end = ends.get(bin).copied().unwrap_or(begin);
            let within = end.saturating_sub(begin) as f64 * left / count as f64;
            return Some(begin + within as u64);
        }
        left -= count as f64;
    }
    None
}

/// Microseconds in the unit that reads best.
pub(super) fn time(us: u64) -> String {
    let us = us as f64;
    if us < 1e3 {
        format!("{us:.0} µs")
    } else if us < 1e5 {
        format!("{:.1} ms", us / 1e3)
    } else if us < 1e6 {
        format!("{:.0} ms", us / 1e3)
    } else {
        format!("{:.1} s", us / 1e6)
    }
}
