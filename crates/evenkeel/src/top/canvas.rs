//! Styles, and text at a place of the screen.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

/// The abilities of the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Look {
    /// Colours, of the sixteen that every terminal has.
    pub(super) colour: bool,
    /// More than ASCII.
    pub(super) unicode: bool,
    /// One frame for a pipe: nothing is selected, and no key does anything.
    pub(super) once: bool,
}

impl Look {
    fn with(self, style: Style, colour: Color) -> Style {
        if self.colour { style.fg(colour) } else { style }
    }

    /// Style of figures that are as they should be.
    pub(super) fn good(self) -> Style {
        self.with(Style::new(), Color::Green)
    }

    /// Style of figures that are not; bold, so that it stands out without colour, too.
    pub(super) fn bad(self) -> Style {
        self.with(Style::new().add_modifier(Modifier::BOLD), Color::Red)
    }

    /// Style of throttled rows.
    pub(super) fn held(self) -> Style {
        self.with(Style::new(), Color::Yellow)
    }

    /// Names of things.
    pub(super) fn head(self) -> Style {
        self.with(Style::new().add_modifier(Modifier::BOLD), Color::Cyan)
    }

    /// Style of text that matters less.
    pub(super) fn faint(self) -> Style {
        Style::new().add_modifier(Modifier::DIM)
    }

    /// The separator within a line.
    pub(super) const fn dot(self) -> &'static str {
        if self.unicode { " · " } else { " - " }
    }
}

/// The facts about the screen that keys need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Drawn {
    /// Rows on a page.
    pub(super) page: usize,
    /// The last line that a detail can begin with.
    pub(super) last_line: usize,
}

/// Writes at a place of an area, as much as fits; where it ends.
pub(super) fn put(buf: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) -> u16 {
    if y >= area.height || x >= area.width {
        return x;
    }
    let room = usize::from(area.width - x);
    buf.set_stringn(area.x + x, area.y + y, text, room, style).0 - area.x
}

/// The same, so that it ends at `right`.
pub(super) fn put_right(buf: &mut Buffer, area: Rect, right: u16, y: u16, text: &str, style: Style) {
    let width = text.chars().count() as u16;
    put(buf, area, right.saturating_sub(width), y, text, style);
}

/// Lines of at most `width` characters, broken between words where that is possible.
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
