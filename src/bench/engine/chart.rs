//! Figures as a chart: prefill against length, decode against streams.

use crate::bench::plot::{Axis, Chart, Colour, Look, Panel, Series};

use super::figures::{Figures, PeerSpeed, Speed};

/// One panel for each part that was measured.
pub(super) fn chart(figures: &Figures) -> Chart {
    let header = &figures.header;
    let mut panels = Vec::new();
    if !figures.prefill.is_empty() {
        let entries = figures.prefill.iter();
        let entries = entries.map(|figure| (f64::from(figure.tokens), &figure.speed));
        panels.push(panel(
            "Prefill",
            "prompt, tokens",
            &entries.collect::<Vec<_>>(),
            header.peer.as_deref(),
        ));
    }
    let mut contexts: Vec<u32> = figures.decode.iter().map(|figure| figure.context).collect();
    contexts.dedup();
    for context in contexts {
        let entries = figures
            .decode
            .iter()
            .filter(|figure| figure.context == context);
        let entries = entries.map(|figure| (f64::from(figure.streams), &figure.speed));
        panels.push(panel(
            &format!("Decode at {context} tokens"),
            "streams",
            &entries.collect::<Vec<_>>(),
            header.peer.as_deref(),
        ));
    }
    let model = header.model.rsplit('/').next().unwrap_or(&header.model);
    let threads = if header.threads == 1 {
        "thread"
    } else {
        "threads"
    };
    Chart {
        title: "Engine throughput".to_owned(),
        subtitle: format!(
            "{model}, {} {threads}, {}, {} KV, medians of {} rounds",
            header.threads, header.isa, header.kv_dtype, header.rounds
        ),
        columns: 3,
        panels,
    }
}

fn panel(title: &str, x: &str, entries: &[(f64, &Speed)], peer: Option<&str>) -> Panel {
    let series = |name: String, colour, look, of: &dyn Fn(&Speed) -> Option<f64>| Series {
        name,
        colour,
        look,
        points: entries
            .iter()
            .filter_map(|(x, speed)| Some((*x, of(speed)?)))
            .collect(),
    };
    let rate = |peer: Option<&PeerSpeed>| peer.map(|peer| peer.tokens.value);
    let mut all = vec![series("Baton".into(), Colour::Blue, Look::Line, &|speed| {
        Some(speed.tokens.value)
    })];
    if let Some(peer) = peer {
        // Without its version, which the text has.
        let peer = peer.split(" (").next().unwrap_or(peer);
        let best = format!("{peer}, best form");
        all.push(series(best, Colour::Orange, Look::Line, &|speed| {
            rate(speed.best_format())
        }));
        let same = format!("{peer}, same file");
        all.push(series(same, Colour::Purple, Look::Line, &|speed| {
            rate(speed.same_file())
        }));
    }
    all.push(series(
        "ceilings allow".into(),
        Colour::Grey,
        Look::Limit,
        &|speed| Some(speed.limit),
    ));
    all.retain(|series| !series.points.is_empty());
    // Equal distances are equal ratios, from one stream to many.
    let values = all
        .iter()
        .flat_map(|series| &series.points)
        .map(|(_, y)| *y);
    let y = Axis::around("tokens per second", values);
    Panel {
        title: title.to_owned(),
        x: Axis::of_ticks(x, entries.iter().map(|(x, _)| *x).collect()),
        y,
        series: all,
    }
}
