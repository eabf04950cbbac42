//! Handling of keys in `evenkeel top`.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::model::{Model, Pane, Sort};

/// Consequence of a key for the program's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The loop continues as usual.
    Go,
    /// The program ends.
    Quit,
    /// The program is suspended, as Ctrl-Z does to other programs.
    Suspend,
    /// The whole screen is drawn again, because another program may have written on the terminal.
    Redraw,
    /// The next server gets the keys, if there are several.
    Other,
}

/// Keys with their effects, for the help on the screen.
pub(super) const HELP: &[(&str, &str)] = &[
    ("Up Down j k", "select a row; scroll a detail"),
    ("PgUp PgDn Home End", "the same, by page or to the end"),
    ("Tab Shift-Tab 1-9", "next view, the one before, view by number"),
    ("Enter", "all about the row: history, settings, decisions"),
    ("Right l", "down: a pool's tenants, their clients"),
    ("Esc Left h", "back: leave a detail or filter, or go up"),
    ("s S", "sort by the next column; reverse the order"),
    ("/", "filter by name, owner or throttle; Esc clears"),
    ("p", "pause and go on"),
    ("o", "the next server, with --status several times"),
    ("q Ctrl-C", "quit"),
];

/// Changes the model as a key demands. `page`: number of rows by which PgUp and PgDn move.
pub(super) fn press(model: &mut Model, key: KeyEvent, page: usize) -> After {
    if key.kind == KeyEventKind::Release {
        return After::Go;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => After::Quit,
            KeyCode::Char('z') => After::Suspend,
            KeyCode::Char('l') => After::Redraw,
            _ => After::Go,
        };
    }
    if model.editing {
        write(model, key.code);
        return After::Go;
    }
    if model.pane == Pane::Help {
        // Any key leads back; q does not end what one only wanted to read about.
        model.pane = Pane::Table;
        return After::Go;
    }
    let page = page.max(1) as isize;
    match key.code {
        KeyCode::Char('q') => return After::Quit,
        KeyCode::Up | KeyCode::Char('k') => model.step(-1),
        KeyCode::Down | KeyCode::Char('j') => model.step(1),
        KeyCode::PageUp => model.step(-page),
        KeyCode::PageDown | KeyCode::Char(' ') => model.step(page),
        KeyCode::Home | KeyCode::Char('g') => model.step(isize::MIN),
        KeyCode::End | KeyCode::Char('G') => model.step(isize::MAX),
        KeyCode::Tab => model.turn(1),
        KeyCode::BackTab => model.turn(-1),
        KeyCode::Char(digit @ '1'..='9') => {
            let at = digit as usize - '1' as usize;
            if let Some(tab) = model.sample.tables.get(at).map(|table| table.tab) {
                model.show(tab);
            }
        }
        KeyCode::Enter => model.open(),
        KeyCode::Right | KeyCode::Char('l') => model.down(),
        KeyCode::Esc | KeyCode::Left | KeyCode::Backspace | KeyCode::Char('h') => model.back(),
        KeyCode::Char('s') => model.sort_by_next(),
        KeyCode::Char('S') => model.sort = Sort { reversed: !model.sort.reversed, ..model.sort },
        KeyCode::Char('/') => {
            (model.editing, model.pane) = (true, Pane::Table);
            model.filter.clear();
        }
        KeyCode::Char('p') => model.paused = !model.paused,
        KeyCode::Char('o') => return After::Other,
        KeyCode::Char('?') | KeyCode::F(1) => model.pane = Pane::Help,
        _ => {}
    }
    After::Go
}

fn write(model: &mut Model, code: KeyCode) {
    match code {
        KeyCode::Enter => model.editing = false,
        KeyCode::Esc => {
            model.editing = false;
            model.filter.clear();
        }
        KeyCode::Backspace => drop(model.filter.pop()),
        KeyCode::Char(character) => model.write(character),
        // One may choose while one writes.
        KeyCode::Up => model.step(-1),
        KeyCode::Down => model.step(1),
        _ => {}
    }
}
