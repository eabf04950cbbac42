//! Drawing of the detail view of one row, as lines that can be scrolled.

use evenkeel_policy::decision::DecisionRecord;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::Style;

use super::canvas::{Drawn, Look, put, wrap};
use super::model::{History, Model};
use super::row::Column;

/// Column of the detail view at which the text beside a name begins.
const INDENT: u16 = 12;
/// Characters for the eight heights of a bar, lowest first, on terminals with Unicode.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Characters for the eight heights of a bar, lowest first, on terminals with ASCII only.
const ASCII_BARS: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];

/// A line of the detail view: its name, its text, and the text's style.
type Line = (String, String, Style);

/// Draws the detail view of the model's selected row. `from`: index of the first visible line.
pub(super) fn draw(model: &Model, look: Look, from: usize, area: Rect, buf: &mut Buffer) -> Drawn {
    let Some((wanted, row, detail)) = model.detail() else { return Drawn::default() };
    let of = wanted.tab.about().owner.map(|owner| format!(" of {owner} {}", wanted.id.of)).unwrap_or_default();
    let gone = if row.is_none() { " (GONE)" } else { "" };
    let title = format!("{} {}{of}{gone}", wanted.tab.about().one, wanted.id.name);
    put(buf, area, 1, 0, &title, look.head());
    let room = usize::from(area.width.saturating_sub(INDENT + 1));
    let mut lines = Vec::new();
    if let Some(row) = row {
        let target = row.target.as_ref().map(|target| {
            let style = if target.verdict.is_missed() { look.bad() } else { look.good() };
            ("target", format!("{}, {}", target.what, target.verdict.word()), style)
        });
        let hold = row.hold.as_ref().map(|hold| ("throttled", format!("by {}: {}", hold.by, hold.how), look.held()));
        let trouble = row.trouble.as_ref().map(|trouble| ("TROUBLE", trouble.clone(), look.bad()));
        let why = ("now", row.why.clone(), Style::new());
        for (name, text, style) in trouble.into_iter().chain(target).chain(hold).chain([why]) {
            add(&mut lines, name, &text, style, room);
        }
    }
    if let Some(history) = model.history(wanted.tab, &wanted.id) {
        lines.extend(Column::FIGURES.into_iter().filter_map(|figure| spark_line(history, figure, look, room)));
    }
    for (name, text) in &detail.facts {
        add(&mut lines, name, text, Style::new(), room);
    }
    if !detail.decisions.is_empty() {
        lines.push(("decisions".into(), "newest first".into(), look.faint()));
    }
    for told in &detail.decisions {
        let text = format!("{}: {}", when(told, model.sample.uptime_s), told.because);
        add(&mut lines, "", &text, Style::new(), room);
    }
    let height = usize::from(area.height.saturating_sub(2));
    let last_line = lines.len().saturating_sub(height);
    for (n, (name, text, style)) in lines.iter().skip(from.min(last_line)).take(height).enumerate() {
        put(buf, area, 1, 1 + n as u16, name, look.head());
        put(buf, area, INDENT, 1 + n as u16, text, *style);
    }
    if from < last_line {
        put(buf, area, 1, area.height - 2, "more below", look.faint());
    }
    Drawn { page: height, last_line, ..Drawn::default() }
}

fn add(lines: &mut Vec<Line>, name: &str, text: &str, style: Style, room: usize) {
    for (n, line) in wrap(text, room).into_iter().enumerate() {
        lines.push((if n == 0 { name.to_owned() } else { String::new() }, line, style));
    }
}

/// The times of a repeated decision as text: how long ago it was made for the last time, how often it was made, and the time
/// between the first and the last time. `uptime_s`: the present moment on the clock of the record, in seconds.
fn when(told: &DecisionRecord, uptime_s: f64) -> String {
    let ago = (uptime_s - told.until_s).max(0.0);
    let lasted = told.until_s - told.from_s;
    let times = if told.times > 1 { format!(", {} times in {lasted:.1} s", told.times) } else { String::new() };
    if ago < 1.5 { format!("now{times}") } else { format!("{ago:.0} s ago{times}") }
}

/// A line that shows a figure of a row over time as bars, with its newest and its largest value; `None` if the row never had
/// the figure.
fn spark_line(history: &History, figure: Column, look: Look, room: usize) -> Option<Line> {
    let known = history.of(figure).flatten();
    let most = known.clone().reduce(f32::max)?;
    if figure == Column::Errors && most == 0.0 {
        return None;
    }
    let now = history.of(figure).next_back().flatten();
    let name = match figure {
        Column::Response => "latency",
        Column::P99 => "p99",
        _ => figure.title(),
    };
    let unit = if matches!(figure, Column::Iops | Column::Bytes | Column::Errors) { "" } else { " ms" };
    let now = now.map_or_else(|| "-".into(), |now| figure.shown(now.into()));
    let text = format!("  {now:>6}{unit}, largest {}{unit}", figure.shown(most.into()));
    let bars = sparkline(history.of(figure), most, look.unicode, room.saturating_sub(text.chars().count()));
    Some((name.into(), bars + &text, Style::new()))
}

/// One bar for each of the newest values, at most `width` bars, as high as the value's part of `most`; an unknown value is blank.
pub(super) fn sparkline(
    values: impl DoubleEndedIterator<Item = Option<f32>>,
    most: f32,
    unicode: bool,
    width: usize,
) -> String {
    let bars = if unicode { BARS } else { ASCII_BARS };
    let bar = |value: f32| {
        let part = if most > 0.0 { value / most } else { 0.0 };
        bars[((part * 8.0).ceil() as usize).clamp(1, 8) - 1]
    };
    let newest_first: Vec<char> = values.rev().take(width).map(|value| value.map_or(' ', bar)).collect();
    newest_first.into_iter().rev().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_high_as_their_part_of_the_largest() {
        let values = [Some(0.0), None, Some(1.0), Some(4.0), Some(8.0)];
        assert_eq!(sparkline(values.into_iter(), 8.0, true, 9), "▁ ▁▄█");
        assert_eq!(sparkline(values.into_iter(), 8.0, false, 3), "_-#", "the newest ones");
        assert_eq!(sparkline([Some(0.0)].into_iter(), 0.0, true, 3), "▁", "nothing at all");
    }

    #[test]
    fn times_of_decisions_count_back_from_now() {
        let told = DecisionRecord { from_s: 10.0, until_s: 14.0, times: 40, ..DecisionRecord::default() };
        assert_eq!(when(&told, 20.0), "6 s ago, 40 times in 4.0 s");
        assert_eq!(when(&DecisionRecord { times: 1, ..told.clone() }, 15.0), "now");
    }
}
