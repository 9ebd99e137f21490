//! Elements of an SVG document. Where they stand is not decided here.

use std::fmt::Write;

use super::Colour;

/// Colours and fonts: light by default, dark where the reader's system asks for it. The background is drawn,
/// so that text stays legible wherever the file is embedded.
const STYLE: &str = "\
text{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;font-size:12px;fill:#3d444d}\
.head{font-size:17px;font-weight:600;fill:#1f2328}.title{font-size:13px;font-weight:600;fill:#1f2328}\
.page{fill:#ffffff;stroke:#d1d9e0}.grid{stroke:#e4e8ec}.axis{stroke:#818b98}\
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.limit{stroke-dasharray:2 5}\
.dots{fill:none;stroke-width:2.4;stroke-linecap:round;stroke-opacity:.55}.events{fill:none;stroke-width:1.5}\
.blue{stroke:#0969da}.orange{stroke:#c2510a}.green{stroke:#1a7f37}.purple{stroke:#9a3d98}.grey{stroke:#6e7781}\
circle.dot{stroke:none}.blue.dot{fill:#0969da}.orange.dot{fill:#c2510a}.green.dot{fill:#1a7f37}\
.purple.dot{fill:#9a3d98}.grey.dot{fill:#6e7781}\
@media(prefers-color-scheme:dark){text{fill:#b7bdc8}.head,.title{fill:#f0f6fc}\
.page{fill:#0d1117;stroke:#3d444d}.grid{stroke:#262c36}.axis{stroke:#7d8590}\
.blue{stroke:#58a6ff}.orange{stroke:#f0883e}.green{stroke:#3fb950}.purple{stroke:#d2a8ff}.grey{stroke:#9198a1}\
.blue.dot{fill:#58a6ff}.orange.dot{fill:#f0883e}.green.dot{fill:#3fb950}.purple.dot{fill:#d2a8ff}.grey.dot{fill:#9198a1}}";

/// A document being written.
#[derive(Debug)]
pub(super) struct Svg(String);

/// Where a text is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

// Writing to a String cannot fail.
impl Svg {
    /// A page of this size in pixels with its heading.
    pub(super) fn new(width: f64, height: f64, title: &str, subtitle: &str) -> Self {
        let mut svg = Self(String::new());
        let _ = write!(
            svg.0,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" role=\"img\">\n<title>{}</title>\n<desc>{}</desc>\n\
             <style>{STYLE}</style>\n",
            escaped(title),
            escaped(subtitle),
        );
        let _ = writeln!(
            svg.0,
            "<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>",
            width - 1.0,
            height - 1.0
        );
        svg.text((20.0, 30.0), Anchor::Start, "head", title);
        svg.text((20.0, 50.0), Anchor::Start, "", subtitle);
        svg
    }

    /// The document.
    pub(super) fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }

    pub(super) fn text(&mut self, (x, y): (f64, f64), anchor: Anchor, class: &str, text: &str) {
        self.text_with(&format!("x=\"{x:.1}\" y=\"{y:.1}\""), anchor, class, text);
    }

    /// Bottom to top, its middle at the place.
    pub(super) fn text_upwards(&mut self, (x, y): (f64, f64), text: &str) {
        self.text_with(
            &format!("transform=\"translate({x:.1} {y:.1}) rotate(-90)\""),
            Anchor::Middle,
            "",
            text,
        );
    }

    fn text_with(&mut self, place: &str, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let class = if class.is_empty() {
            String::new()
        } else {
            format!(" class=\"{class}\"")
        };
        let _ = writeln!(
            self.0,
            "<text {place} text-anchor=\"{anchor}\"{class}>{}</text>",
            escaped(text)
        );
    }

    /// A straight line of the page's own: `grid` or `axis`.
    pub(super) fn rule(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let _ = writeln!(
            self.0,
            "<path class=\"{class}\" d=\"M{:.1} {:.1}L{:.1} {:.1}\"/>",
            from.0, from.1, to.0, to.1
        );
    }

    /// A line through all points.
    pub(super) fn line(&mut self, class: &str, colour: Colour, points: &[(f64, f64)]) {
        self.path(class, colour, points, |path, (x, y), first| {
            let _ = write!(path, "{}{x:.1} {y:.1}", if first { 'M' } else { 'L' });
        });
    }

    /// A dot at each point: strokes of no length with round ends.
    pub(super) fn dots(&mut self, colour: Colour, points: &[(f64, f64)]) {
        self.path("dots", colour, points, |path, (x, y), _| {
            let _ = write!(path, "M{x:.1} {y:.1}h0");
        });
    }

    /// A short line upwards from each point.
    pub(super) fn events(&mut self, colour: Colour, points: &[(f64, f64)]) {
        self.path("events", colour, points, |path, (x, y), _| {
            let _ = write!(path, "M{x:.1} {y:.1}v-7");
        });
    }

    pub(super) fn circle(&mut self, colour: Colour, (x, y): (f64, f64), radius: f64) {
        let colour = name(colour);
        let _ = writeln!(
            self.0,
            "<circle class=\"dot {colour}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\"/>"
        );
    }

    fn path(
        &mut self,
        class: &str,
        colour: Colour,
        points: &[(f64, f64)],
        mut add: impl FnMut(&mut String, (f64, f64), bool),
    ) {
        if points.is_empty() {
            return;
        }
        let _ = write!(self.0, "<path class=\"{class} {}\" d=\"", name(colour));
        for (index, point) in points.iter().enumerate() {
            add(&mut self.0, *point, index == 0);
        }
        self.0.push_str("\"/>\n");
    }
}

fn name(colour: Colour) -> &'static str {
    match colour {
        Colour::Blue => "blue",
        Colour::Orange => "orange",
        Colour::Green => "green",
        Colour::Purple => "purple",
        Colour::Grey => "grey",
    }
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            // No document may hold other control characters.
            c if c.is_control() => safe.push(' '),
            c => safe.push(c),
        }
    }
    safe
}
