//! Styles, and drawing of text at a position.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// Abilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// True for colours, of the sixteen that every terminal has.
    pub(super) colour: bool,
    /// True for characters beyond ASCII.
    pub(super) unicode: bool,
    /// True for a single frame, for a pipe: no row is selected and no keys are shown.
    pub(super) once: bool,
}

impl Look {
    fn with(self, style: Style, colour: Color) -> Style {
        if self.colour { style.fg(colour) } else { style }
    }

    /// Style of figures that are good.
    pub(super) fn good(self) -> Style {
        self.with(Style::new(), Color::Green)
    }

    /// Style of figures that are bad; bold, so that they stand out without colour, too.
    pub(super) fn bad(self) -> Style {
        self.with(Style::new().add_modifier(Modifier::BOLD), Color::Red)
    }

    /// Style of throttled rows.
    pub(super) fn held(self) -> Style {
        self.with(Style::new(), Color::Yellow)
    }

    /// Style of names and headings.
    pub(super) fn head(self) -> Style {
        self.with(Style::new().add_modifier(Modifier::BOLD), Color::Cyan)
    }

    /// Style of less important text.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The separator between parts of a line.
    pub(super) const fn dot(self) -> &'static str {
        if self.unicode { " · " } else { " - " }
    }
}

/// Facts about the drawn screen that the handling of keys needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    /// Number of rows on a page.
    pub(super) page: usize,
    /// The last line of a detail view that can be its first visible line.
    pub(super) last_line: usize,
}

/// Writes as much of a text as fits, at a position in an area; the column after its end.
pub(super) fn put(buf: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) -> u16 {
    if y >= area.height || x >= area.width {
        return x;
    }
    let room = usize::from(area.width - x);
    buf.set_stringn(area.x + x, area.y + y, text, room, style).0 - area.x
}

/// Writes a text that ends at column `right`.
pub(super) fn put_right(buf: &mut Buffer, area: Rect, right: u16, y: u16, text: &str, style: Style) {
    let width = text.chars().count() as u16;
    put(buf, area, right.saturating_sub(width), y, text, style);
}

/// Lines of at most `width` characters, broken between words if possible.
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
