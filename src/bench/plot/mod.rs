//! Charts of measurements as SVG files that need nothing else to be looked at, on light and on dark.
//!
//! A [`Chart`] says what is to be seen; [`panel`] places it, [`scale`] maps values to pixels, [`svg`] writes
//! elements. What was measured is not known here.

mod panel;
mod scale;
mod svg;

use std::path::Path;

use crate::exit::Failure;

use svg::Svg;

/// Opens the file that a result will be written to, so that a wrong path is told before the work is done.
///
/// # Errors
/// It cannot be written.
pub(super) fn check_writable(path: &Path) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    options
        .append(true)
        .create(true)
        .open(path)
        .map(|_| ())
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Panels below or beside each other, under one title.
#[derive(Debug, Clone)]
pub(super) struct Chart {
    pub(super) title: String,
    /// What the panels have in common: model, machine, settings.
    pub(super) subtitle: String,
    /// Panels of a row; where there are several, all panels have the same series.
    pub(super) columns: usize,
    pub(super) panels: Vec<Panel>,
}

/// One pair of axes.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) x: Axis,
    pub(super) y: Axis,
    pub(super) series: Vec<Series>,
}

/// An axis from its least to its greatest value, both drawn.
#[derive(Debug, Clone)]
pub(super) struct Axis {
    /// With the unit.
    pub(super) label: String,
    pub(super) least: f64,
    pub(super) most: f64,
    pub(super) scale: Scale,
    /// Where lines and numbers stand; empty: where they are round.
    pub(super) ticks: Vec<f64>,
}

/// How values become places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// Equal ratios take equal room. Values must be positive.
    Logarithmic,
}

/// Values of one kind.
#[derive(Debug, Clone)]
pub(super) struct Series {
    /// In the legend; empty: not there.
    pub(super) name: String,
    pub(super) colour: Colour,
    pub(super) look: Look,
    pub(super) points: Vec<(f64, f64)>,
}

/// How values are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Connected, each value with a dot.
    Line,
    /// Connected by dashes, without dots: a limit.
    Limit,
    /// One small dot each.
    Dots,
    /// A tick at the bottom of the panel for each x: events.
    Events,
}

/// Colours that differ for everyone, on light and on dark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Colour {
    Blue,
    Orange,
    Green,
    Purple,
    Grey,
}

impl Chart {
    /// The chart as an SVG document.
    pub(super) fn svg(&self) -> String {
        let columns = self.columns.clamp(1, self.panels.len().max(1));
        let rows = self.panels.len().div_ceil(columns);
        let size = panel::size(columns);
        // Narrow panels show the same series and share one legend.
        let own_legend = columns == 1;
        let head = panel::HEAD + if own_legend { 0.0 } else { panel::LEGEND };
        let height = head + rows as f64 * size.1;
        let mut svg = Svg::new(panel::WIDTH, height, &self.title, &self.subtitle);
        if let (false, Some(first)) = (own_legend, self.panels.first()) {
            panel::legend(&mut svg, first, (20.0, panel::HEAD + 12.0));
        }
        for (index, panel) in self.panels.iter().enumerate() {
            let (column, row) = (index % columns, index / columns);
            let corner = (column as f64 * size.0, head + row as f64 * size.1);
            panel::draw(&mut svg, panel, corner, size, own_legend);
        }
        svg.end()
    }

    /// Writes the document to the file of `--plot`.
    pub(super) fn write(&self, path: &Path) -> Result<(), Failure> {
        std::fs::write(path, self.svg())
            .map_err(|error| Failure::failed(format!("--plot {}: {error}", path.display())))
    }
}

impl Axis {
    /// From zero to a little more than the greatest of `values`.
    pub(super) fn from_zero(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let most = values.fold(0.0, f64::max);
        Self {
            label: label.to_owned(),
            least: 0.0,
            most: if most > 0.0 { most * 1.05 } else { 1.0 },
            scale: Scale::Linear,
            ticks: Vec::new(),
        }
    }

    /// Logarithmic, with these ticks, which are in order and positive.
    pub(super) fn of_ticks(label: &str, ticks: Vec<f64>) -> Self {
        let least = ticks.first().copied().unwrap_or(1.0);
        let most = ticks.last().copied().unwrap_or(1.0);
        Self {
            label: label.to_owned(),
            // One value alone stands in the middle.
            least: if most > least { least } else { least / 2.0 },
            most: if most > least { most } else { most * 2.0 },
            scale: Scale::Logarithmic,
            ticks,
        }
    }

    /// Logarithmic, from and to a power of ten times 1, 2 or 5 around all positive `values`.
    pub(super) fn around(label: &str, values: impl Iterator<Item = f64>) -> Self {
        let (least, most) = values
            .filter(|value| *value > 0.0)
            .fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        let (least, most) = if most > 0.0 {
            (least, most)
        } else {
            (1.0, 10.0)
        };
        Self {
            label: label.to_owned(),
            least: scale::round_down(least),
            most: scale::round_up(most),
            scale: Scale::Logarithmic,
            ticks: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(points: &[(f64, f64)]) -> Chart {
        let series = |name: &str, look, colour| Series {
            name: name.into(),
            colour,
            look,
            points: points.to_vec(),
        };
        let panel = |title: &str| Panel {
            title: title.into(),
            x: Axis::of_ticks("streams", vec![1.0, 2.0, 4.0]),
            y: Axis::around("gap, ms", points.iter().map(|(_, y)| *y)),
            series: vec![
                series("ours & <theirs>", Look::Line, Colour::Blue),
                series("limit", Look::Limit, Colour::Grey),
                series("every \"gap\"", Look::Dots, Colour::Orange),
                series("", Look::Events, Colour::Green),
            ],
        };
        Chart {
            title: "A & B < C".into(),
            subtitle: "model \"m\"".into(),
            columns: 2,
            panels: vec![panel("one"), panel("two"), panel("three")],
        }
    }

    /// Tags of a document that is balanced and has no bare `&` or `<` in text, by name; panics otherwise.
    fn tags(document: &str) -> Vec<String> {
        let (mut open, mut all) = (Vec::new(), Vec::new());
        for piece in document.split('<').skip(1) {
            let (tag, text) = piece.split_once('>').expect("a tag ends");
            assert!(!text.contains('>'), "bare > in {text:?}");
            for entity in text.split('&').skip(1) {
                assert!(
                    ["amp;", "lt;", "gt;", "quot;"]
                        .iter()
                        .any(|e| entity.starts_with(e)),
                    "{text:?}"
                );
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "quotes of {tag:?}");
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name));
                continue;
            }
            let name = tag.split([' ', '/']).next().unwrap_or_default().to_owned();
            if !tag.ends_with('/') {
                open.push(name.clone());
            }
            all.push(name);
        }
        assert!(open.is_empty(), "{open:?}");
        all
    }

    #[test]
    fn documents_are_well_formed_and_show_everything() {
        let points = vec![(1.0, 3.0), (2.0, 30.0), (4.0, 200.0)];
        let svg = chart(&points).svg();
        let tags = tags(&svg);
        let count = |name: &str| tags.iter().filter(|tag| *tag == name).count();
        assert_eq!(count("svg"), 1);
        assert_eq!(
            count("circle"),
            3 * 3 + 1,
            "a dot per value of the line and one in the legend"
        );
        assert!(svg.contains("A &amp; B &lt; C") && svg.contains("ours &amp; &lt;theirs&gt;"));
        for label in [
            ">1<",
            ">2<",
            ">4<",
            ">gap, ms<",
            ">streams<",
            ">200<",
            ">three<",
        ] {
            assert!(svg.contains(label), "no {label}");
        }
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn strange_values_leave_a_document() {
        for points in [
            vec![],
            vec![(1.0, 0.0)],
            vec![(f64::NAN, 1.0), (1.0, f64::INFINITY), (2.0, 5.0)],
            vec![(0.0, -1.0), (1e300, 1e-300)],
        ] {
            let svg = chart(&points).svg();
            tags(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
