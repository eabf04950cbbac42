//! The result as a table with bars, and as an HTML page with a plot.

use std::fmt::Write as _;

use super::bufferbloat::{Measured, kib};

/// Columns of a full bar on the terminal.
const BAR: usize = 24;

/// A bar of `value` out of `most`, in eighths of a column.
fn bar(value: f64, most: f64, columns: usize) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if most > 0.0 { (value / most).clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * (columns * 8) as f64).round() as usize;
    // Something there is never shown as nothing.
    let eighths = if value > 0.0 { eighths.max(1) } else { eighths };
    let text = "█".repeat(eighths / 8) + EIGHTHS[eighths % 8];
    let width = eighths.div_ceil(8);
    text + &" ".repeat(columns - width)
}

fn most(measured: &[Measured], of: impl Fn(&Measured) -> f64) -> f64 {
    measured.iter().map(of).fold(0.0, f64::max)
}

/// Name, budget, latencies of the light client in ms (p50, p99, p99 of bursts) and MB/s of the bulk writer, as both pictures show them.
fn figures(m: &Measured) -> [String; 6] {
    let [p50, p99, burst, mb_per_s] =
        [m.light_p50_ms, m.light_p99_ms, m.burst_p99_ms, m.bulk_bytes_per_s / 1e6].map(|figure| format!("{figure:.1}"));
    [m.label(), m.budget_bytes.map_or_else(|| "unbounded".into(), kib), p50, p99, burst, mb_per_s]
}

/// A row for each setting: what is inside the device, latencies and throughput.
pub(super) fn text(measured: &[Measured]) -> String {
    let longest = most(measured, |m| m.light_p99_ms);
    let fastest = most(measured, |m| m.bulk_bytes_per_s);
    let name = measured.iter().map(|m| m.label().len()).max().unwrap_or(0).max(13);
    let mut out = format!(
        "{:<name$} {:>10} {:>8} {:>8} {:>8}  {:<BAR$} {:>6}  {}\n",
        "admission", "budget", "p50 ms", "p99 ms", "burst", "light client, p99", "MB/s", "bulk writer"
    );
    for m in measured {
        let [setting, budget, p50, p99, burst, mb_per_s] = figures(m);
        let (late, fast) = (bar(m.light_p99_ms, longest, BAR), bar(m.bulk_bytes_per_s, fastest, BAR));
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "{setting:<name$} {budget:>10} {p50:>8} {p99:>8} {burst:>8}  {late} {mb_per_s:>6}  {}",
            fast.trim_end(),
        );
    }
    out
}

/// Width, height and margin of the plot, in pixels.
const PLOT: (f64, f64, f64) = (640.0, 360.0, 60.0);

/// A page of its own, without anything from elsewhere.
pub(super) fn html(measured: &[Measured], findings: &str) -> String {
    let (width, height, margin) = PLOT;
    let right = most(measured, |m| m.bulk_bytes_per_s) / 1e6 * 1.1;
    // Decades: from 10 ms to 100 ms is as far as from 1 to 10.
    let low = measured.iter().map(|m| m.light_p99_ms).fold(f64::INFINITY, f64::min).max(1e-3).log10().floor();
    let high = most(measured, |m| m.light_p99_ms).max(1e-3).log10().ceil().max(low + 1.0);
    let x = |mb_per_s: f64| margin + mb_per_s / right.max(1e-9) * (width - 2.0 * margin);
    let y = |ms: f64| height - margin - (ms.max(1e-3).log10() - low) / (high - low) * (height - 2.0 * margin);
    let mut plot = String::new();
    for decade in low as i32..=high as i32 {
        let (ms, at) = (10f64.powi(decade), y(10f64.powi(decade)));
        let _ = write!(
            plot,
            "<line class=\"grid\" x1=\"{margin}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{ms} ms</text>",
            width - margin,
            margin - 8.0,
            at + 4.0
        );
    }
    for quarter in 0..=4 {
        let mb_per_s = right * f64::from(quarter) / 4.0;
        let at = x(mb_per_s);
        let _ = write!(
            plot,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{mb_per_s:.0}</text>",
            height - margin + 20.0
        );
    }
    let mut rows = String::new();
    for m in measured {
        let (cx, cy) = (x(m.bulk_bytes_per_s / 1e6), y(m.light_p99_ms));
        let class = if matches!(m.setting, "slowfast" | "elastic") { "adaptive" } else { "fixed" };
        let _ = write!(
            plot,
            "<circle class=\"{class}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"6\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            cx + 10.0,
            cy - 8.0,
            m.label()
        );
        let _ = writeln!(rows, "<tr><td>{}</td></tr>", figures(m).join("</td><td>"));
    }
    let paragraphs: String = findings.lines().map(|line| format!("<p>{line}</p>\n")).collect();
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><title>Bufferbloat</title>\n<style>\n\
         body {{ font: 16px/1.5 sans-serif; max-width: 42rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}\n\
         svg {{ width: 100%; height: auto }} svg text {{ font-size: 13px; fill: #444 }}\n\
         .grid {{ stroke: #ddd }} .fixed {{ fill: #888 }} .adaptive {{ fill: #06c }}\n\
         table {{ border-collapse: collapse; width: 100% }} td, th {{ text-align: right; padding: .2rem .5rem }}\n\
         td:first-child, th:first-child {{ text-align: left }} tr:nth-child(even) {{ background: #f4f4f4 }}\n\
         </style></head><body>\n<h1>Bufferbloat</h1>\n{paragraphs}\
         <svg viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"Latency over throughput\">{plot}\
         <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">bulk writer, MB/s</text>\
         <text x=\"{margin}\" y=\"24\">light client, 99th percentile</text></svg>\n\
         <table><tr><th>admission</th><th>budget</th><th>light p50 ms</th><th>light p99 ms</th><th>burst p99 ms</th>\
         <th>bulk MB/s</th></tr>\n{rows}</table>\n</body></html>\n",
        width / 2.0,
        height - 12.0
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(setting: &'static str, light_p99_ms: f64) -> Measured {
        let (light_p50_ms, burst_p99_ms, bulk_bytes_per_s) = (0.5, 3.0, 50e6);
        Measured {
            setting,
            speed: 1.0,
            bulk: super::super::phase::Bulk::USUAL,
            budget_bytes: None,
            light_p50_ms,
            light_p99_ms,
            burst_p99_ms,
            bulk_bytes_per_s,
        }
    }

    #[test]
    fn bars_are_as_long_as_their_values() {
        assert_eq!(bar(10.0, 10.0, 4), "████");
        assert_eq!(bar(5.0, 10.0, 4), "██  ");
        assert_eq!(bar(0.01, 10.0, 4), "▏   ");
        assert_eq!(bar(0.0, 10.0, 4), "    ");
        assert_eq!(bar(1.0, 0.0, 4), "▏   ");
    }

    #[test]
    fn every_setting_has_a_row_and_a_point() {
        let all = [row("none", 40.0), row("slowfast", 0.0)];
        let table = text(&all);
        assert_eq!(table.lines().count(), 3);
        let columns: Vec<usize> =
            table.lines().map(|line| line.chars().take_while(|&c| c != '█').count()).skip(1).collect();
        assert!(columns[0] < 60, "{table}");
        let page = html(&all, "one\ntwo\n");
        assert_eq!(page.matches("<circle").count(), 2);
        assert_eq!(page.matches("<p>").count(), 2);
        assert!(!page.contains("NaN") && !page.contains("inf") && !page.contains("http"), "{page}");
    }
}
