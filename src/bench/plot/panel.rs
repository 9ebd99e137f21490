//! Where the parts of a panel stand: title, legend, axes, values.

use std::collections::HashSet;

use super::scale::{number, place, ticks};
use super::svg::{Anchor, Svg};
use super::{Look, Panel};

/// Width of a page in pixels.
pub(super) const WIDTH: f64 = 960.0;
/// Height of the heading without a legend.
pub(super) const HEAD: f64 = 62.0;
/// Height of a legend of the whole page.
pub(super) const LEGEND: f64 = 26.0;

/// Around the area of values: numbers and label of each axis, title and legend.
const LEFT: f64 = 74.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 56.0;
/// The same without a legend.
const BARE_TOP: f64 = 34.0;
const BOTTOM: f64 = 50.0;

/// Width of an average character of 12 pixels.
const CHARACTER: f64 = 6.6;

/// Width and height of a panel, `columns` of them beside each other.
pub(super) fn size(columns: usize) -> (f64, f64) {
    (
        WIDTH / columns as f64,
        if columns > 1 { 350.0 } else { 310.0 },
    )
}

/// Draws a panel whose upper left corner is `corner`, with a legend of its own or without.
pub(super) fn draw(
    svg: &mut Svg,
    panel: &Panel,
    corner: (f64, f64),
    size: (f64, f64),
    own_legend: bool,
) {
    let area = Area {
        left: corner.0 + LEFT,
        right: corner.0 + size.0 - RIGHT,
        top: corner.1 + if own_legend { TOP } else { BARE_TOP },
        bottom: corner.1 + size.1 - BOTTOM,
    };
    let above = if own_legend { 32.0 } else { 14.0 };
    svg.text(
        (area.left, area.top - above),
        Anchor::Start,
        "title",
        &panel.title,
    );
    if own_legend {
        legend(svg, panel, (area.left, area.top - 14.0));
    }
    axes(svg, panel, &area);
    for series in &panel.series {
        let places = series
            .points
            .iter()
            .filter_map(|point| area.place(panel, *point));
        match series.look {
            Look::Line => {
                let places: Vec<_> = places.collect();
                svg.line("line", series.colour, &places);
                for place in places {
                    svg.circle(series.colour, place, 3.2);
                }
            }
            Look::Limit => svg.line("line limit", series.colour, &places.collect::<Vec<_>>()),
            Look::Dots => {
                // What falls on the same half pixel is seen once, and written once.
                let mut seen = HashSet::new();
                let half =
                    |(x, y): (f64, f64)| ((x * 2.0).round() as i64, (y * 2.0).round() as i64);
                let places: Vec<_> = places.filter(|place| seen.insert(half(*place))).collect();
                svg.dots(series.colour, &places);
            }
            Look::Events => {
                let xs = series.points.iter().filter_map(|(x, _)| area.x(panel, *x));
                svg.events(
                    series.colour,
                    &xs.map(|x| (x, area.bottom)).collect::<Vec<_>>(),
                );
            }
        }
    }
}

/// The rectangle of values, in pixels.
struct Area {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

impl Area {
    fn x(&self, panel: &Panel, value: f64) -> Option<f64> {
        let share = place(&panel.x, value).filter(|share| (0.0..=1.0).contains(share))?;
        Some(self.left + share * (self.right - self.left))
    }

    /// What is above or below the axis stands on its end: a long gap is never left out.
    fn place(&self, panel: &Panel, (x, y): (f64, f64)) -> Option<(f64, f64)> {
        let share = place(&panel.y, y)?.clamp(0.0, 1.0);
        Some((
            self.x(panel, x)?,
            self.bottom - share * (self.bottom - self.top),
        ))
    }
}

/// Names of the panel's series in a line that begins at the place.
pub(super) fn legend(svg: &mut Svg, panel: &Panel, (mut x, y): (f64, f64)) {
    for series in panel.series.iter().filter(|series| !series.name.is_empty()) {
        match series.look {
            Look::Line => {
                svg.line("line", series.colour, &[(x, y - 4.0), (x + 18.0, y - 4.0)]);
                svg.circle(series.colour, (x + 9.0, y - 4.0), 3.2);
            }
            Look::Limit => svg.line(
                "line limit",
                series.colour,
                &[(x, y - 4.0), (x + 18.0, y - 4.0)],
            ),
            Look::Dots => svg.dots(series.colour, &[(x + 5.0, y - 4.0), (x + 13.0, y - 4.0)]),
            Look::Events => svg.events(series.colour, &[(x + 9.0, y)]),
        }
        svg.text((x + 24.0, y), Anchor::Start, "", &series.name);
        x += 24.0 + series.name.chars().count() as f64 * CHARACTER + 18.0;
    }
}

fn axes(svg: &mut Svg, panel: &Panel, area: &Area) {
    for tick in ticks(&panel.y) {
        if let Some(share) = place(&panel.y, tick) {
            let y = area.bottom - share * (area.bottom - area.top);
            svg.rule("grid", (area.left, y), (area.right, y));
            svg.text((area.left - 8.0, y + 4.0), Anchor::End, "", &number(tick));
        }
    }
    svg.rule("axis", (area.left, area.bottom), (area.right, area.bottom));
    for tick in ticks(&panel.x) {
        if let Some(x) = area.x(panel, tick) {
            svg.rule("axis", (x, area.bottom), (x, area.bottom + 4.0));
            svg.text((x, area.bottom + 18.0), Anchor::Middle, "", &number(tick));
        }
    }
    let middle = f64::midpoint(area.left, area.right);
    svg.text(
        (middle, area.bottom + 38.0),
        Anchor::Middle,
        "",
        &panel.x.label,
    );
    let middle = f64::midpoint(area.top, area.bottom);
    svg.text_upwards((area.left - 54.0, middle), &panel.y.label);
}
