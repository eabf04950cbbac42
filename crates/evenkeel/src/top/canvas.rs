//! Styles of the screen of `evenkeel top`, and drawing of text at a position.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Abilities of the terminal, by which the screen's look is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// True if the screen uses colours: the sixteen that every terminal has.
    pub(super) colour: bool,
    /// True if the screen may have characters beyond ASCII.
    pub(super) unicode: bool,
    /// True if one frame is printed as text (`--once`), in which no row is selected and no keys are shown.
    pub(super) once: bool,
}

impl Look {
    fn with(self, style: Style, colour: Color) -> Style {
        if self.colour { style.fg(colour) } else { style }
    }

    /// Style of good news, such as a met target.
    pub(super) fn good(self) -> Style {
        self.with(Style::new(), Color::Green)
    }

    /// Style of bad news, such as a missed target; bold, to be seen without colours too.
    pub(super) fn bad(self) -> Style {
        self.with(Style::new().add_modifier(Modifier::BOLD), Color::Red)
    }

    /// Style of texts about throttling and of other notices, such as a filter.
    pub(super) fn held(self) -> Style {
        self.with(Style::new(), Color::Yellow)
    }

    /// Style of names and headings.
    pub(super) fn head(self) -> Style {
        self.with(Style::new().add_modifier(Modifier::BOLD), Color::Cyan)
    }

    /// Style of less important text, such as hints.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// Text that separates the parts of a line.
    pub(super) const fn dot(self) -> &'static str {
        if self.unicode { " · " } else { " - " }
    }
}

/// Facts about the drawn screen that the next keys need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    /// Number of a table's rows, or of a detail view's lines, that the screen shows at a time.
    pub(super) page: usize,
    /// Index of the detail view's line that is the first visible one when the view is scrolled to its end.
    pub(super) last_line: usize,
    /// True if the screen has room for the columns of wide terminals.
    pub(super) is_wide: bool,
}

/// Writes as much of `text` as fits into `area`, at column `x` and line `y` of the area. Returns the column after the text's end.
pub(super) fn put(buf: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) -> u16 {
    if y >= area.height || x >= area.width {
        return x;
    }
    let room = usize::from(area.width - x);
    buf.set_stringn(area.x + x, area.y + y, text, room, style).0 - area.x
}

/// Writes `text` into line `y` of `area` so that it ends before column `right` of the area.
pub(super) fn put_right(buf: &mut Buffer, area: Rect, right: u16, y: u16, text: &str, style: Style) {
    let width = text.chars().count() as u16;
    put(buf, area, right.saturating_sub(width), y, text, style);
}

/// `text` in lines of at most `width` characters, broken between words if possible.
pub(super) fn wrap(text: &str, width: usize) -> Vec<String> {
    let width = width.max(1);
    let mut lines = Vec::new();
    let mut line = String::new();
    let mut used = 0;
    for word in text.split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if used > 0 && used + length > width {
            lines.push(std::mem::take(&mut line));
            used = 0;
        }
        for character in word.chars() {
            if used == width && character != ' ' {
                lines.push(std::mem::take(&mut line));
                used = 0;
            }
            if used < width {
                line.push(character);
                used += 1;
            }
        }
    }
    lines.push(line);
    lines
}
