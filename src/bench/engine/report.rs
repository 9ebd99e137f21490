//! Figures as text for people and as JSON for programs.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::bench::statistics::Median;

use super::figures::{Figures, Speed};
use super::machine::READ_MIB;
use super::peer::AS_SHIPPED;

/// For programs. Rates are tokens per second, shares parts of one.
pub(super) fn json(figures: &Figures) -> Value {
    let Figures {
        header,
        footprint,
        ceilings,
        prefill,
        decode,
    } = figures;
    let prefill = prefill.iter().map(|figure| {
        let own = json!({
            "tokens": figure.tokens,
            "share_of_ceiling": figure.share,
            "products_share_of_ceiling": figure.products_share,
        });
        with_speed(own, &figure.speed)
    });
    let decode = decode.iter().map(|figure| {
        let own = json!({
            "streams": figure.streams,
            "context": figure.context,
            "share_of_ceiling": figure.share,
        });
        with_speed(own, &figure.speed)
    });
    let mut limits = json!({
        "f32_gflop_s": ceilings.f32 / 1e9,
        "bf16_gflop_s": ceilings.bf16 / 1e9,
        "int8_gop_s": ceilings.int8 / 1e9,
    });
    for (mib, rate) in READ_MIB.iter().zip(ceilings.read) {
        limits[format!("read_{mib}_mib_gb_s")] = (rate / 1e9).into();
    }
    json!({
        "model": header.model,
        "threads": header.threads,
        "isa": header.isa,
        "kv_dtype": header.kv_dtype,
        "rounds": header.rounds,
        "peer": header.peer,
        "prefill": prefill.collect::<Vec<_>>(),
        "decode": decode.collect::<Vec<_>>(),
        "ceilings": limits,
        "rss_mb": footprint.resident_bytes as f64 / 1e6,
        "kv_mb": footprint.kv_bytes as f64 / 1e6,
        "weights_file_mb": footprint.file_bytes as f64 / 1e6,
        "rss_without_kv_of_file": footprint.besides_of_file(),
        "load_ms": footprint.load_ms,
    })
}

fn with_speed(mut figure: Value, speed: &Speed) -> Value {
    figure["tok_s"] = speed.tokens.value.into();
    figure["tok_s_range"] = range(speed.tokens);
    figure["limit_tok_s"] = speed.limit.into();
    if let Some(peer) = speed.same_file() {
        figure["vs_same_file"] = peer.ratio.value.into();
        figure["vs_same_file_range"] = range(peer.ratio);
    }
    if let Some(peer) = speed.best_format() {
        figure["vs_best_format"] = peer.ratio.value.into();
        figure["vs_best_format_range"] = range(peer.ratio);
        figure["best_format"] = peer.format.into();
    }
    for peer in &speed.peers {
        figure["peer_tok_s"][peer.format] = peer.tokens.value.into();
    }
    figure
}

fn range(median: Median) -> Value {
    json!([median.least, median.most])
}

/// For people.
pub(super) fn text(figures: &Figures) -> String {
    let mut text = String::new();
    head(&mut text, figures);
    prefill(&mut text, figures);
    decode(&mut text, figures);
    text
}

// Writing to a String cannot fail.

fn head(text: &mut String, figures: &Figures) {
    let Figures {
        header,
        footprint,
        ceilings,
        ..
    } = figures;
    let _ = writeln!(
        text,
        "{}\n{} threads, {}, {} KV; medians of {} rounds",
        header.model, header.threads, header.isa, header.kv_dtype, header.rounds,
    );
    if let Some(peer) = &header.peer {
        let _ = writeln!(
            text,
            "peer: {peer}, in turn with ours; ratios are medians of each round's"
        );
    }
    let _ = writeln!(
        text,
        "loaded in {:.0} ms; resident {:.0} MB, of it {:.0} MB KV pages; the rest is {:.2} × the weights in the file ({:.0} MB)",
        footprint.load_ms,
        footprint.resident_bytes as f64 / 1e6,
        footprint.kv_bytes as f64 / 1e6,
        footprint.besides_of_file(),
        footprint.file_bytes as f64 / 1e6,
    );
    let _ = writeln!(
        text,
        "ceilings: f32 {:.0} GFLOP/s, bf16 {:.0} GFLOP/s, int8 {:.0} GOP/s",
        ceilings.f32 / 1e9,
        ceilings.bf16 / 1e9,
        ceilings.int8 / 1e9,
    );
    let read: Vec<_> = READ_MIB
        .iter()
        .zip(ceilings.read)
        .map(|(mib, rate)| format!("{mib} MiB {:.1} GB/s", rate / 1e9))
        .collect();
    let _ = writeln!(text, "          read of {}", read.join(", "));
}

fn prefill(text: &mut String, figures: &Figures) {
    if figures.prefill.is_empty() {
        return;
    }
    let _ = write!(
        text,
        "\n{:<22}{:>9}{:>9}{:>12}{:>16}",
        "prefill", "tok/s", "limit", "of int8", "products alone"
    );
    peer_titles(text, figures);
    for figure in &figures.prefill {
        let _ = write!(
            text,
            "{:<22}{:>9.0}{:>9.0}{:>11.0}%{:>15.0}%",
            format!("{} tokens", figure.tokens),
            figure.speed.tokens.value,
            figure.speed.limit,
            figure.share * 100.0,
            figure.products_share * 100.0,
        );
        peer_columns(text, &figure.speed);
    }
}

fn decode(text: &mut String, figures: &Figures) {
    if figures.decode.is_empty() {
        return;
    }
    let _ = write!(
        text,
        "\n{:<22}{:>9}{:>9}{:>12}",
        "decode", "tok/s", "limit", "of reading"
    );
    peer_titles(text, figures);
    for figure in &figures.decode {
        let plural = if figure.streams == 1 { "" } else { "s" };
        let _ = write!(
            text,
            "{:<22}{:>9.0}{:>9.0}{:>11.0}%",
            format!("{} stream{plural} at {}", figure.streams, figure.context),
            figure.speed.tokens.value,
            figure.speed.limit,
            figure.share * 100.0,
        );
        peer_columns(text, &figure.speed);
    }
}

/// Ends a line of titles: the peer's speeds by form of the model, then how many times as fast ours is.
fn peer_titles(text: &mut String, figures: &Figures) {
    for format in &figures.header.formats {
        let _ = write!(text, "{:>12}", format!("peer {}", short(format)));
    }
    if figures.header.peer.is_some() {
        let _ = write!(text, "{:>11}{:>11}", "same file", "best");
    }
    text.push('\n');
}

fn peer_columns(text: &mut String, speed: &Speed) {
    for peer in &speed.peers {
        let _ = write!(text, "{:>12.0}", peer.tokens.value);
    }
    if !speed.peers.is_empty() {
        for peer in [speed.same_file(), speed.best_format()] {
            let ratio =
                peer.map_or_else(|| "-".into(), |peer| format!("{:.1} ×", peer.ratio.value));
            let _ = write!(text, "{ratio:>11}");
        }
    }
    text.push('\n');
}

fn short(format: &str) -> &str {
    if format == AS_SHIPPED { "file" } else { format }
}
