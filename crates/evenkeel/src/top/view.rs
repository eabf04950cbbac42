//! Draws the model of `evenkeel top` as a screen. Parts that do not fit are left out, the least important first.

use evenkeel_policy::health::Trouble;
use evenkeel_policy::verdict::Verdict;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};

use super::canvas::{Drawn, Look, put, put_right, wrap};
use super::detail_view;
use super::keys::HELP;
use super::model::{Link, Model, Pane};
use super::row::{Column, Row};

/// Smallest usable size of the terminal in columns and lines; on a smaller one only a message is shown.
const LEAST: (u16, u16) = (40, 10);
/// Number of lines below the table for the selected row's trouble, throttle and reason.
const WHY_LINES: u16 = 2;
/// Width in columns from which on p99, failed requests and bars of p99 are shown.
const WIDE: u16 = 120;
/// Newest samples that the bars of p99 show; each bar is the largest of the same number of samples.
const TREND_SAMPLES: usize = 60;
/// Most lines of the worst trouble with its cure, on a screen of at least [`TALL`] lines.
const TROUBLE_LINES: usize = 3;
/// Mark at the end of a trouble that is cut.
const CUT: &str = "...";
/// Number of lines from which on the worst trouble may have several.
const TALL: u16 = 20;
/// Fewest lines of a server's section.
const SECTION: u16 = 12;

/// Number of lines of a frame for `--once` besides the rows of its table.
pub(super) const FRAME_LINES: u16 = 5;

/// Draws servers below each other, as many as there is room for, `focus` among them. Only that one has keys and a selected row.
pub(super) fn sections(models: &[Model], focus: usize, look: Look, area: Rect, buf: &mut Buffer) -> Drawn {
    let fit = usize::from(area.height / SECTION).min(models.len()).max(1);
    let height = area.height / fit as u16;
    let first = (focus + 1).saturating_sub(fit);
    let mut drawn = Drawn::default();
    for (n, model) in models.iter().enumerate().skip(first).take(fit) {
        let part = Rect { y: area.y + (n - first) as u16 * height, height, ..area };
        let here = n == focus;
        let shown = draw(model, Look { once: look.once || !here, ..look }, part, buf);
        if here {
            drawn = shown;
        }
    }
    drawn
}

/// Draws the whole screen of a server into `area`.
pub(super) fn draw(model: &Model, look: Look, area: Rect, buf: &mut Buffer) -> Drawn {
    if area.width < LEAST.0 || area.height < LEAST.1 && !look.once {
        let text = format!("terminal {} x {}: enlarge it to {} x {}", area.width, area.height, LEAST.0, LEAST.1);
        put(buf, area, 0, 0, &text, Style::new());
        return Drawn::default();
    }
    title(model, look, area, buf);
    summary(model, look, area, buf);
    let above = 2 + trouble(model, look, area, buf);
    let below = Rect { y: area.y + above, height: area.height - above, ..area };
    let drawn = match model.pane {
        Pane::Help => help(look, below, buf),
        Pane::Detail(from) => detail_view::draw(model, look, from, below, buf),
        Pane::Table => table(model, look, below, buf),
    };
    if !look.once {
        keys(model, look, area, buf);
    }
    drawn
}

fn title(model: &Model, look: Look, area: Rect, buf: &mut Buffer) {
    let (text, style) = match (&model.link, model.paused) {
        (Link::Waiting, _) => ("asking".to_owned(), Style::new()),
        (Link::Lost { tries, .. }, _) => (format!("LOST, try {tries}"), look.bad()),
        (Link::Past, _) => ("PAST".to_owned(), look.held()),
        (Link::Live, true) => ("PAUSED".to_owned(), look.held()),
        (Link::Live, false) => ("live".to_owned(), look.good()),
    };
    let right = area.width - 1;
    let room = right.saturating_sub(text.chars().count() as u16 + 2);
    let mut x = 1;
    let place = model.is_one_of_several.then_some(&model.place);
    for (n, part) in place.into_iter().chain(&model.sample.head).enumerate() {
        let text = if n == 0 { part.clone() } else { format!("{}{part}", look.dot()) };
        // Whole parts or none.
        if n > 0 && x + text.chars().count() as u16 > room {
            break;
        }
        x = put(buf, area, x, 0, &text, if n == 0 { look.head() } else { Style::new() });
    }
    put_right(buf, area, right, 0, &text, style);
}

/// Draws the second line: the number of targets that are met, missed and idle, the number of throttled rows, and the place.
fn summary(model: &Model, look: Look, area: Rect, buf: &mut Buffer) {
    let tally = model.tally();
    let mut x = put(buf, area, 1, 1, "targets: ", Style::new());
    let [missed, unachievable, met, idle] = tally.verdicts;
    if tally.verdicts == [0; 4] {
        // The history has no targets.
        let none = if matches!(model.link, Link::Past) { "not recorded" } else { "none set" };
        x = put(buf, area, x, 1, none, Style::new());
    } else {
        let style = |number: usize, style: Style| if number > 0 { style } else { Style::new() };
        let word = if missed > 0 { "MISSED" } else { "missed" };
        x = put(buf, area, x, 1, &format!("{met} met"), style(met, look.good()));
        x = put(buf, area, x, 1, ", ", Style::new());
        x = put(buf, area, x, 1, &format!("{missed} {word}"), style(missed, look.bad()));
        if unachievable > 0 {
            x = put(buf, area, x, 1, &format!(", {unachievable} UNACHIEVABLE"), look.bad());
        }
        x = put(buf, area, x, 1, &format!(", {idle} idle"), Style::new());
    }
    x = put(buf, area, x, 1, look.dot(), Style::new());
    let style = if tally.throttled > 0 { look.held() } else { Style::new() };
    x = put(buf, area, x, 1, &format!("throttled: {}", tally.throttled), style);
    let from = format!("at {}", model.place);
    if x + 2 + from.chars().count() as u16 <= area.width {
        put_right(buf, area, area.width - 1, 1, &from, look.faint());
    }
}

/// Draws the worst trouble with its cure, and the number of the others. Returns the number of lines for it.
fn trouble(model: &Model, look: Look, area: Rect, buf: &mut Buffer) -> u16 {
    let rows = model.sample.tables.iter().flat_map(|table| &table.rows);
    let of_rows = rows.filter_map(|row| row.trouble.as_ref().map(|trouble| format!("{}: {trouble}", row.name)));
    let lost = match &model.link {
        Link::Lost { error, .. } => Some(error.replace('\n', "; ")),
        Link::Waiting | Link::Live | Link::Past => None,
    };
    let with_cure = |trouble: &Trouble| match trouble.cure.as_str() {
        "" => trouble.sentence(),
        cure => format!("{}; what to do: {cure}", trouble.sentence()),
    };
    let mut all: Vec<String> = lost.into_iter().collect();
    // The health has the troubles of rows, too, in their order.
    match model.troubles() {
        [] => all.extend(model.sample.troubles.iter().cloned().chain(of_rows)),
        troubles => all.extend(troubles.iter().map(with_cure)),
    }
    let Some((first, others)) = all.split_first() else { return 1 };
    let more = if others.is_empty() { String::new() } else { format!(" (+{})", others.len()) };
    let room = usize::from(area.width).saturating_sub(2 + more.chars().count());
    let is_short = look.once || area.height < TALL || model.pane == Pane::Help;
    let most = if is_short { 1 } else { TROUBLE_LINES };
    let mut lines = wrap(first, room);
    if lines.len() > most {
        lines.truncate(most);
        if let Some(last) = lines.last_mut() {
            let kept: String = last.chars().take(room.saturating_sub(CUT.len())).collect();
            *last = format!("{}{CUT}", kept.trim_end());
        }
    }
    let mut y = 2;
    for (n, line) in lines.iter().enumerate() {
        let end = if n + 1 == lines.len() { more.as_str() } else { "" };
        put(buf, area, 1, y, &format!("{line}{end}"), look.bad());
        y += 1;
    }
    y - 2
}

fn tabs(model: &Model, look: Look, area: Rect, buf: &mut Buffer) {
    let mut x = 0;
    for table in &model.sample.tables {
        let here = table.tab == model.tab();
        let text = format!("{} {}", table.tab.about().title, table.rows.len());
        let text = if here { format!("[{text}]") } else { format!(" {text} ") };
        x = put(buf, area, x, 0, &text, if here { look.head() } else { Style::new() });
    }
    let mut notes = Vec::new();
    if let Some((tab, id)) = model.scope() {
        notes.push(format!("of {} {}", tab.about().one, id.name));
    }
    if model.editing {
        notes.push(format!("/{}_", model.filter));
    } else if !model.filter.is_empty() {
        notes.push(format!("/{}", model.filter));
    }
    let notes = notes.join("  ");
    let room = usize::from(area.width.saturating_sub(x + 2));
    // The end of what is being written is what one looks at.
    let skip = notes.chars().count().saturating_sub(room);
    let shown: String = notes.chars().skip(skip).collect();
    put_right(buf, area, area.width - 1, 0, &shown, look.held());
}

fn table(model: &Model, look: Look, area: Rect, buf: &mut Buffer) -> Drawn {
    tabs(model, look, area, buf);
    let rows = model.rows();
    let selected = model.selected(&rows);
    let foot = if look.once { 0 } else { WHY_LINES + 1 };
    let page = area.height.saturating_sub(2 + foot);
    let many = several_owners(model);
    let columns = columns(model, &rows, many, area.width);
    heads(model, look, &columns, Rect { y: area.y + 1, height: 1, ..area }, buf);
    // The selected row is in the middle where there are rows on both sides.
    let most = rows.len().saturating_sub(usize::from(page));
    let from = selected.saturating_sub(usize::from(page) / 2).min(most);
    for (n, row) in rows.iter().enumerate().skip(from).take(usize::from(page)) {
        let here = n == selected && !look.once;
        let line = Rect { y: area.y + 2 + (n - from) as u16, height: 1, ..area };
        line_of(model, row, (here, many), look, &columns, line, buf);
    }
    if rows.is_empty() {
        let text = match (&model.link, model.filter.is_empty() && model.scope().is_none()) {
            (Link::Waiting, _) => "no answer yet",
            (Link::Past, true) => "no requests at this time, or no record of it",
            (_, true) => "this view has no rows",
            (_, false) if look.once => "nothing matches",
            (_, false) => "nothing matches; Esc shows all again",
        };
        put(buf, area, 2, 2, text, look.faint());
    }
    if let Some(row) = rows.get(selected).filter(|_| !look.once) {
        let y = area.height.saturating_sub(WHY_LINES + 1);
        put(buf, area, 0, y, &format!("{}: ", row.name), look.head());
        let trouble = row.trouble.as_ref().map(|trouble| format!("{trouble}; ")).unwrap_or_default();
        let hold = row.hold.as_ref().map(|hold| format!("[{} {}] ", hold.by, hold.how)).unwrap_or_default();
        let indent = row.name.chars().count() + 2;
        let text = format!("{}{trouble}{hold}{}", " ".repeat(indent), row.why);
        for (n, line) in wrap(&text, usize::from(area.width)).iter().take(usize::from(WHY_LINES)).enumerate() {
            let (x, text) = if n == 0 {
                (indent.min(usize::from(area.width)) as u16, line.trim_start())
            } else {
                (0, line.as_str())
            };
            put(buf, area, x, y + n as u16, text, Style::new());
        }
    }
    Drawn { page: usize::from(page), last_line: 0, is_wide: area.width >= WIDE }
}

/// A column with its width in characters.
type Wide = (Column, u16);

/// The shown columns with their widths. Figures get the width that they need, texts share the rest of `width`; columns without
/// room are left out. `owners`: true if names show their owners.
fn columns(model: &Model, rows: &[&Row], owners: bool, width: u16) -> Vec<Wide> {
    let has = |column: Column| width >= WIDE && rows.iter().any(|row| row.figure(column).is_some());
    let fits = |column: &Column| match column {
        Column::P99 | Column::Errors => has(*column),
        Column::Trend => has(Column::P99),
        _ => true,
    };
    let shown: Vec<Column> = model.tab().about().columns.iter().copied().filter(fits).collect();
    let fixed = |column: Column| match column {
        Column::Iops | Column::Bytes | Column::Queue | Column::Device | Column::Errors => Some(6),
        Column::Response | Column::P99 => Some(7),
        Column::Target => Some(16),
        Column::Trend => Some(trend_width(width)),
        Column::Name | Column::Hold | Column::Owner | Column::Tenant => None,
    };
    let taken: u16 = shown.iter().map(|column| fixed(*column).unwrap_or(0) + 1).sum();
    let rest = width.saturating_sub(taken);
    let texts = shown.iter().filter(|column| fixed(**column).is_none()).count().max(1) as u16;
    // Names are told apart by their whole length, reasons can be read below.
    let names = rows.iter().map(|row| name_of(row, owners).chars().count()).max().unwrap_or(0);
    let name = (names as u16).clamp(8, 40).min((rest * 3 / 5).max(8));
    let each = rest.saturating_sub(name) / texts.saturating_sub(1).max(1);
    let mut columns = Vec::new();
    let mut used = 1;
    for column in shown {
        let wanted = fixed(column).unwrap_or(if column == Column::Name { name } else { each });
        // What has no room is left out.
        if wanted < 4 || used + wanted > width {
            continue;
        }
        used += wanted + 1;
        columns.push((column, wanted));
    }
    columns
}

/// Number of bars of p99 on a terminal of this width.
const fn trend_width(width: u16) -> u16 {
    match width {
        ..160 => 20,
        160..200 => 30,
        _ => 60,
    }
}

/// The p99 of a row in its newest samples as bars, the newest at the right.
fn trend(model: &Model, row: &Row, look: Look, width: u16) -> String {
    let Some(history) = model.history(model.tab(), &row.id()) else { return String::new() };
    let width = usize::from(width);
    let newest: Vec<Option<f32>> = history.of(Column::P99).rev().take(TREND_SAMPLES).collect();
    let largest = |part: &[Option<f32>]| part.iter().flatten().copied().reduce(f32::max);
    let bars: Vec<Option<f32>> = newest.chunks((TREND_SAMPLES / width).max(1)).map(largest).collect();
    let most = bars.iter().flatten().copied().fold(0.0, f32::max);
    let bars = detail_view::sparkline(bars.into_iter().rev(), most, look.unicode, width);
    format!("{bars:>width$}")
}

fn heads(model: &Model, look: Look, columns: &[Wide], line: Rect, buf: &mut Buffer) {
    let mut x = 1;
    for &(column, width) in columns {
        let owner = model.tab().about().owner.unwrap_or_default();
        let title = if column == Column::Owner { owner } else { column.title() };
        let arrow = match (look.unicode, model.sort.reversed) {
            (true, false) => "↓",
            (true, true) => "↑",
            (false, false) => "v",
            (false, true) => "^",
        };
        let sorted = column == model.sort.by;
        let title = if sorted { format!("{arrow}{title}") } else { title.to_owned() };
        let style = if sorted { look.head() } else { look.head().remove_modifier(Modifier::BOLD) };
        if Column::FIGURES.contains(&column) {
            // The arrow may stand where columns are apart.
            let over = (title.chars().count() as u16).saturating_sub(width + 1);
            put_right(buf, line, x + width, 0, &title.chars().skip(usize::from(over)).collect::<String>(), style);
        } else {
            put(buf, Rect { width: (x + width).min(line.width), ..line }, x, 0, &title, style);
        }
        x += width + 1;
    }
}

fn line_of(
    model: &Model,
    row: &Row,
    (here, owners): (bool, bool),
    look: Look,
    columns: &[Wide],
    line: Rect,
    buf: &mut Buffer,
) {
    let mut x = 1;
    for &(column, width) in columns {
        let (text, style) = match column {
            Column::Trend => (trend(model, row, look, width), Style::new()),
            _ => cell(row, (column, width), owners, look),
        };
        if Column::FIGURES.contains(&column) {
            put_right(buf, line, x + width, 0, &text, style);
        } else {
            put(buf, Rect { width: (x + width).min(line.width), ..line }, x, 0, &text, style);
        }
        x += width + 1;
    }
    if here {
        put(buf, line, 0, 0, ">", Style::new());
        buf.set_style(line, Style::new().add_modifier(Modifier::REVERSED));
    }
}

/// A word and an amount in a column of `width` characters. Without room for both, the amount keeps its first part, of that the
/// figure with its unit, and the word is shortened: a figure that is cut is a wrong figure.
fn fitted(word: &str, amount: &str, width: u16) -> String {
    let width = usize::from(width);
    let length = |text: &str| text.chars().count();
    let whole = format!("{word} {amount}");
    if length(&whole) <= width {
        return whole;
    }
    let first = amount.split(", ").next().unwrap_or_default();
    let words: Vec<&str> = first.split(' ').collect();
    let at = words.iter().position(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    let figure = words[..at.map_or(words.len(), |at| (at + 2).min(words.len()))].join(" ");
    for part in [first, figure.as_str()] {
        if length(word) + 1 + length(part) <= width {
            return format!("{word} {part}");
        }
    }
    // Two letters and a full stop tell words apart.
    let room = width.saturating_sub(length(&figure) + 1);
    if room < 3 {
        return figure;
    }
    let word: String = word.chars().take(room - 1).collect();
    format!("{word}. {figure}")
}

fn cell(row: &Row, (column, width): Wide, owners: bool, look: Look) -> (String, Style) {
    let plain = Style::new();
    match column {
        Column::Name => (name_of(row, owners), if row.trouble.is_some() { look.bad() } else { plain }),
        Column::Errors => {
            let style = if row.errors.is_some_and(|errors| errors > 0.0) { look.bad() } else { plain };
            (row.errors.map_or_else(|| "-".into(), |errors| column.shown(errors)), style)
        }
        Column::Iops | Column::Bytes | Column::Response | Column::Queue | Column::Device | Column::P99 => {
            (row.figure(column).map_or_else(|| "-".into(), |figure| column.shown(figure)), plain)
        }
        Column::Target => row.target.as_ref().map_or_else(
            || ("-".into(), plain),
            |target| {
                let style = match target.verdict {
                    Verdict::Missed | Verdict::Unachievable => look.bad(),
                    Verdict::Met => look.good(),
                    Verdict::Idle => plain,
                };
                // The column is narrow.
                let what = target.what.replace(" < ", "<").replace(" ms", "ms");
                (fitted(target.verdict.word(), &what, width), style)
            },
        ),
        Column::Hold => match &row.hold {
            Some(hold) => (fitted(&hold.by, &hold.how, width), look.held()),
            None => ("-".into(), plain),
        },
        Column::Owner => (row.of.clone(), plain),
        Column::Tenant => (row.tenant.clone(), plain),
        // Of the model's histories.
        Column::Trend => (String::new(), plain),
    }
}

/// True if the rows of the shown view belong to several owners and no column shows the owners, so that names must show them.
fn several_owners(model: &Model) -> bool {
    let tab = model.tab();
    if tab.about().columns.contains(&Column::Owner) {
        return false;
    }
    let mut rows = model.sample.tables.iter().filter(|table| table.tab == tab).flat_map(|table| &table.rows);
    let first = rows.next().map(|row| &row.of);
    rows.any(|row| Some(&row.of) != first)
}

fn name_of(row: &Row, owners: bool) -> String {
    if owners { format!("{}@{}", row.name, row.of) } else { row.name.clone() }
}

fn keys(model: &Model, look: Look, area: Rect, buf: &mut Buffer) {
    let text = match model.pane {
        _ if model.editing => "type to filter   Enter keep   Esc clear",
        Pane::Help => "any key closes this help",
        Pane::Detail(_) => "Up Down scroll   Esc back   p pause   ? help   q quit",
        Pane::Table => "q quit  Tab view  Enter detail  Right down  s sort  / filter  p pause  ? help",
    };
    let style = look.faint();
    put(buf, area, 1, area.height - 1, text, style);
}

fn help(look: Look, area: Rect, buf: &mut Buffer) -> Drawn {
    put(buf, area, 1, 0, "Keys", look.head());
    let mut y = 1;
    for (keys, what) in HELP {
        put(buf, area, 2, y, keys, Style::new());
        put(buf, area, 22, y, what, Style::new());
        y += 1;
    }
    let columns = [
        "lat ms: mean latency = queue (before the device) + device (in flight)",
        "target: met, MISSED, UNACHIEVABLE, or idle (asked for less than the target)",
        "throttled by: the operator or controller that throttles, and its limit",
    ];
    put(buf, area, 1, y + 1, "Columns: figures between the last two samples", look.head());
    for (n, line) in columns.iter().enumerate() {
        put(buf, area, 2, y + 2 + n as u16, line, Style::new());
    }
    Drawn::default()
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::health::{Health, Level};
    use evenkeel_policy::state::{Clients, State};

    use super::super::source::Answer;
    use super::*;

    /// The screen of a server with this health, on a terminal of 80 columns.
    fn screen(health: Health, height: u16) -> String {
        let mut model = Model::new(String::new());
        model.take(Answer::Serve(Box::new(State { health, ..State::default() }), Clients::default()));
        let area = Rect::new(0, 0, 80, height);
        let mut buffer = Buffer::empty(area);
        draw(&model, Look { colour: false, unicode: false, once: false }, area, &mut buffer);
        crate::top::text(&buffer)
    }

    #[test]
    fn the_worst_trouble_is_shown_with_its_cure() {
        let space = Trouble::warning("space", "", "1.0 GiB of 100.0 GiB are free", "make room there");
        let because = "a sync failed (EIO): data written since the last flush may be lost, and every flush fails";
        let cure = "mend the device, then restart the server";
        let failed = Trouble::new(Level::Critical, "sync_failed", "volume disk", because, cure);
        let health = Health::of(vec![space, failed]);
        let shown = screen(health.clone(), 24);
        let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains(&format!("volume disk: {because}; what to do: {cure} (+1)")), "{shown}");
        let small = screen(health, 12);
        let line = |n: usize| small.lines().nth(n).unwrap_or_default();
        assert!(line(2).starts_with(" volume disk: a sync failed") && line(2).ends_with("... (+1)"), "{small}");
        assert!(line(3).contains("Pools 0"), "{small}");
        // A longer one has three lines, and the mark that there is more.
        let long = Trouble::warning("space", "", "it is so ".repeat(40), "");
        let shown = screen(Health::of(vec![long]), 24);
        let line = |n: usize| shown.lines().nth(n).unwrap_or_default();
        assert!(!line(3).contains("...") && line(4).ends_with("..."), "{shown}");
        assert!(line(5).contains("Pools 0"), "{shown}");
    }
}
