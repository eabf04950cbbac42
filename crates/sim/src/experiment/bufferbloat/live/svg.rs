//! The result as one picture, for a page without scripts: the light client's p99 and the bulk writer's throughput.
//!
//! The picture brings its own background, in a light and a dark version, as it cannot know the colour of the page
//! around it.

use std::fmt::Write as _;

use super::Measured;
use crate::report::escape;

/// Width of the picture, in pixels.
const WIDTH: f64 = 760.0;
/// Left edge of the rows' labels, in pixels.
const LABELS: f64 = 24.0;
/// Left edges of the two columns of bars (latency, throughput), in pixels.
const BARS: [f64; 2] = [178.0, 462.0];
/// Length of the longest bar, in pixels; the bar's value is written to its right.
const LONGEST: f64 = 180.0;
/// Distance from one row to the next, in pixels.
const ROW: f64 = 32.0;
/// Top of the first row, in pixels.
const TOP: f64 = 116.0;
/// Height of a bar, in pixels.
const BAR: f64 = 18.0;

/// The style sheet of the picture, in the colours of the report pages.
const STYLE: &str = "\
text{font:15px system-ui,sans-serif;fill:#1c2128}.h{font-size:19px;font-weight:600}.q{fill:#5b6470;font-size:13px}\
.p{fill:#fff;stroke:#d5dae1}.b{fill:#eaf2fc}.f{fill:#a9b2bd}.w{fill:#c02a1d}.e{fill:#0b62c4}.s{font-weight:600}\
@media(prefers-color-scheme:dark){text{fill:#e4e8ee}.q{fill:#98a3b1}.p{fill:#14181d;stroke:#343d48}.b{fill:#1a2a3e}\
.f{fill:#66717e}.w{fill:#ff7b6e}.e{fill:#6cb0ff}}";

/// A self-contained SVG file with a row for each measurement: first the settings with a fixed bound or none, from the
/// largest bound to the smallest, then the adaptive settings. `command` is the command line that repeats the measurement.
pub fn svg(measured: &[Measured], command: &str) -> String {
    let mut rows: Vec<&Measured> = measured.iter().collect();
    rows.sort_by_key(|m| (m.adapts(), std::cmp::Reverse(m.budget_bytes.unwrap_or(u64::MAX))));
    let most = |of: fn(&Measured) -> f64| rows.iter().map(|m| of(m)).fold(0.0, f64::max);
    let figures: [fn(&Measured) -> f64; 2] = [|m| m.light_p99_ms, |m| m.bulk_bytes_per_s / 1e6];
    let (units, longest) = (["ms", "MB/s"], figures.map(most));
    let height = TOP + ROW * rows.len() as f64 + 40.0;
    let mut body = format!(
        "<rect class=\"p\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\
         <text class=\"h\" x=\"{LABELS}\" y=\"40\">Bufferbloat: a light client with priority waits behind a bulk writer</text>",
        WIDTH - 1.0,
        height - 1.0
    );
    let headings = [
        (LABELS, "in flight,", "at most"),
        (BARS[0], "how long the light client waits", "99th percentile; shorter is better"),
        (BARS[1], "throughput of the bulk writer", "longer is better"),
    ];
    for (x, first, second) in headings {
        // Writing to a String cannot fail.
        let _ =
            write!(body, "<text x=\"{x}\" y=\"76\">{first}</text><text class=\"q\" x=\"{x}\" y=\"95\">{second}</text>");
    }
    let mut told = Vec::new();
    for (place, m) in rows.iter().enumerate() {
        let y = TOP + ROW * place as f64;
        let elastic = m.setting == "elastic";
        if elastic {
            let _ = write!(
                body,
                "<rect class=\"b\" x=\"12\" y=\"{}\" width=\"{}\" height=\"{ROW}\" rx=\"5\"/>",
                y - 7.0,
                WIDTH - 24.0
            );
        }
        let (label, weight) = (label(m), if elastic { " class=\"s\"" } else { "" });
        let _ = write!(body, "<text{weight} x=\"{LABELS}\" y=\"{}\">{}</text>", y + 14.0, escape(&label));
        let mut sentence = label;
        for (column, figure) in figures.iter().enumerate() {
            let (value, x) = (figure(m), BARS[column]);
            let share = if longest[column] > 0.0 { (value / longest[column]).clamp(0.0, 1.0) } else { 0.0 };
            // Something there is never shown as nothing.
            let (width, text) = ((share * LONGEST).max(2.0), format!("{value:.1} {}", units[column]));
            let class = if elastic {
                "e"
            } else if worse_half(column, share) {
                "w"
            } else {
                "f"
            };
            let _ = write!(
                body,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" rx=\"2\"/>\
                 <text{weight} x=\"{:.1}\" y=\"{}\">{text}</text>",
                x + width + 8.0,
                y + 14.0
            );
            sentence += if column == 0 { ": the light client waits " } else { ", the bulk writer gets " };
            sentence += &text;
        }
        told.push(sentence);
    }
    let description = told.join("; ") + ".";
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"t d\">\n\
         <title id=\"t\">How long a light client waits beside a bulk writer, by what may be in flight</title>\n\
         <desc id=\"d\">{}</desc>\n<style>{STYLE}</style>\n{body}\
         <text class=\"q\" x=\"{LABELS}\" y=\"{}\">{}</text>\n</svg>\n",
        escape(&description),
        height - 16.0,
        escape(command)
    )
}

/// True if a bar is drawn in the colour of a bad value: in column 0 a latency above half of the largest latency, in
/// column 1 a throughput below half of the highest throughput. `share` is the value divided by its column's largest, 0 to 1.
fn worse_half(column: usize, share: f64) -> bool {
    (share > 0.5) == (column == 0)
}

/// A row's label: the setting's bound, followed by the device's speed and the bulk writer's load where these differ from
/// the defaults.
fn label(m: &Measured) -> String {
    let bound = match m.budget_bytes {
        None if m.adapts() => m.setting.to_owned(),
        None => "no bound".to_owned(),
        Some(budget) if m.adapts() => format!("{}: {} KiB", m.setting, budget >> 10),
        Some(budget) if budget % (1 << 20) == 0 => format!("{} MiB", budget >> 20),
        Some(budget) => format!("{} KiB", budget >> 10),
    };
    m.label().replacen(m.setting, &bound, 1)
}

#[cfg(test)]
mod tests {
    use roxmltree::{Document, Node};

    use super::super::Bulk;
    use super::*;

    fn row(setting: &'static str, budget_kib: Option<u64>, light_p99_ms: f64, mb_per_s: f64) -> Measured {
        let (budget_bytes, bulk_bytes_per_s) = (budget_kib.map(|kib| kib << 10), mb_per_s * 1e6);
        Measured { budget_bytes, light_p99_ms, bulk_bytes_per_s, ..Measured::usual(setting) }
    }

    fn all() -> Vec<Measured> {
        vec![
            row("elastic", Some(304), 6.0, 97.3),
            row("64K", Some(64), 5.0, 28.7),
            row("none", None, 40.0, 100.0),
            row("1M", Some(1024), 11.6, 99.2),
        ]
    }

    fn texts<'a>(document: &'a Document<'a>) -> Vec<&'a str> {
        document.descendants().filter(|node| node.has_tag_name("text")).filter_map(|node| node.text()).collect()
    }

    fn bars<'a>(document: &'a Document<'a>) -> Vec<(&'a str, f64)> {
        let bar = |node: Node<'a, 'a>| {
            let class = node.attribute("class").filter(|class| ["f", "w", "e"].contains(class))?;
            Some((class, node.attribute("width")?.parse().unwrap()))
        };
        document.descendants().filter_map(bar).collect()
    }

    #[test]
    fn every_setting_has_two_bars_from_the_largest_bound_to_the_one_that_is_found() {
        let text = svg(&all(), "evenkeel demo bufferbloat");
        let document = Document::parse(&text).unwrap();
        let labels = ["no bound", "1 MiB", "64 KiB", "elastic: 304 KiB"];
        let shown: Vec<&str> = texts(&document).into_iter().filter(|text| labels.contains(text)).collect();
        assert_eq!(shown, labels);
        let bars = bars(&document);
        let classes: String = bars.iter().map(|bar| bar.0).collect();
        assert_eq!(classes, "wffffwee", "long waits and little throughput stand out, and so does elastic");
        assert_eq!((bars[0].1, bars[1].1), (LONGEST, LONGEST));
        assert!((bars[6].1 - 0.15 * LONGEST).abs() < 0.1 && (bars[7].1 - 0.973 * LONGEST).abs() < 0.1, "{bars:?}");
        for figure in ["40.0 ms", "100.0 MB/s", "6.0 ms", "97.3 MB/s"] {
            assert!(texts(&document).contains(&figure), "{figure}: {text}");
        }
    }

    #[test]
    fn readers_that_cannot_see_it_get_the_figures() {
        let text = svg(&all(), "a command");
        let document = Document::parse(&text).unwrap();
        let root = document.root_element();
        let named: Vec<&str> = root.attribute("aria-labelledby").unwrap().split(' ').collect();
        let of = |id| document.descendants().find(|node| node.attribute("id") == Some(id)).unwrap();
        assert_eq!((of(named[0]).tag_name().name(), of(named[1]).tag_name().name()), ("title", "desc"));
        let told = of(named[1]).text().unwrap();
        assert!(told.contains("1 MiB: the light client waits 11.6 ms, the bulk writer gets 99.2 MB/s;"), "{told}");
        assert!(told.ends_with("elastic: 304 KiB: the light client waits 6.0 ms, the bulk writer gets 97.3 MB/s."));
    }

    #[test]
    fn it_needs_nothing_and_stays_small_and_sound() {
        let nothing = [row("none", None, 0.0, 0.0)];
        let twice: Vec<Measured> = all().into_iter().chain(all()).collect();
        for measured in [&[][..], &nothing, &twice] {
            let text = svg(measured, "a < b && c > d");
            let document = Document::parse(&text).unwrap();
            assert!(texts(&document).contains(&"a < b && c > d"), "{text}");
            assert!(bars(&document).iter().all(|bar| bar.1.is_finite() && bar.1 > 0.0), "{text}");
            assert_eq!(text.matches("http").count(), 1, "the name space alone");
            assert!(text.len() < 15_000 && !text.contains("<script"), "{} bytes", text.len());
        }
    }

    #[test]
    fn what_is_not_as_usual_is_part_of_the_label() {
        let slow = Measured { speed: 0.4, ..row("elastic", Some(100), 1.0, 1.0) };
        assert_eq!(label(&slow), "elastic: 100 KiB x0.4");
        let large = Measured { bulk: Bulk { block_kib: 256, depth: 32 }, ..row("none", None, 1.0, 1.0) };
        assert_eq!(label(&large), "no bound 256Kx32");
    }
}
