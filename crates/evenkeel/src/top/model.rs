//! The model of the screen: the newest sample, those before it, and where the user is. Pure: answers and keys go in.

use std::collections::{HashMap, VecDeque};

use super::detail::{self, Detail};
use super::row::{Column, Id, Row, Sample, Tab};
use super::source::{Answer, More, Wanted};
use super::{guard, serve};

/// Points of a history: two minutes at the usual interval, and more than fit on a screen.
pub(super) const HISTORY: usize = 120;
/// A history of what is gone is kept for so many samples: a client may be away for a moment.
const FORGET_AFTER: u64 = 60;
/// A filter may be so long, in characters.
const MAX_FILTER: usize = 64;

/// Figures of one row over time, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    points: VecDeque<[Option<f32>; Column::FIGURES.len()]>,
    seen: u64,
}

impl History {
    fn add(&mut self, row: &Row, sample: u64) {
        if self.points.len() == HISTORY {
            self.points.pop_front();
        }
        self.points.push_back(Column::FIGURES.map(|column| row.figure(column).map(|value| value as f32)));
        self.seen = sample;
    }

    /// One figure, oldest first.
    pub(super) fn of(&self, figure: Column) -> impl DoubleEndedIterator<Item = Option<f32>> + Clone {
        let at = Column::FIGURES.iter().position(|column| *column == figure);
        self.points.iter().map(move |point| point[at?])
    }
}

/// The state of the connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    /// Not yet.
    #[default]
    Waiting,
    /// They do.
    Live,
    /// They did.
    Lost {
        /// How often it was tried again.
        tries: u32,
        /// The error of the last time.
        error: String,
    },
}

/// How many targets are met, and how much is throttled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Targets by [verdict](evenkeel_policy::verdict::Verdict): missed, unachievable, met, idle.
    pub(super) verdicts: [usize; 4],
    /// Things throttled, pools as a whole not counted.
    pub(super) throttled: usize,
}

/// The pane over or in place of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    /// The table.
    #[default]
    Table,
    /// All about the row that is selected, from this line on.
    Detail(usize),
    /// The meaning of keys and columns.
    Help,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// Where the answers come from.
    pub(super) place: String,
    /// The state of the connection.
    pub(super) link: Link,
    /// The newest.
    pub(super) sample: Sample,
    /// The pane in place of the table.
    pub(super) pane: Pane,
    /// New answers are not taken.
    pub(super) paused: bool,
    /// Only rows that contain this are shown.
    pub(super) filter: String,
    /// The filter is being written.
    pub(super) editing: bool,
    /// The column by which rows are sorted.
    pub(super) sort: Sort,
    /// The newest answer, and what the connections of a server did lately.
    answer: Option<Answer>,
    paces: serve::Paces,
    samples: u64,
    history: HashMap<(Tab, Id), History>,
    tab: Option<Tab>,
    selected: HashMap<Tab, Id>,
    /// The rows whose parts are shown alone, and where each was chosen; the innermost last.
    scope: Vec<(Tab, Id)>,
    /// About what is shown in detail: the newest answer and the one before.
    more: Option<(Wanted, Option<More>, Option<More>)>,
}

/// An order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    /// By what.
    pub(super) by: Column,
    /// The other way round.
    pub(super) reversed: bool,
}

impl Default for Sort {
    /// The busiest first.
    fn default() -> Self {
        Self { by: Column::Iops, reversed: false }
    }
}

impl Model {
    /// Nothing known yet about what is at `place`.
    pub(super) fn new(place: String) -> Self {
        Self { place, ..Self::default() }
    }

    /// Takes an answer.
    pub(super) fn take(&mut self, answer: Answer) {
        self.link = Link::Live;
        if self.paused {
            return;
        }
        let uptime_s = match &answer {
            Answer::Serve(state, _) => state.uptime_s,
            Answer::Guard(state) => state.uptime_s,
        };
        if uptime_s < self.sample.uptime_s {
            // Started anew: what was measured before says nothing about it.
            (self.history, self.paces, self.more, self.answer) = Default::default();
        }
        self.sample = match (&answer, &self.answer) {
            (Answer::Serve(state, clients), _) => serve::sample(state, &clients.clients, &mut self.paces),
            (Answer::Guard(state), Some(Answer::Guard(before))) => guard::sample(state, before),
            (Answer::Guard(state), _) => guard::sample(state, state),
        };
        self.answer = Some(answer);
        self.samples += 1;
        for table in &self.sample.tables {
            for row in &table.rows {
                self.history.entry((table.tab, row.id())).or_default().add(row, self.samples);
            }
        }
        let samples = self.samples;
        self.history.retain(|_, history| samples - history.seen < FORGET_AFTER);
    }

    /// Takes more about one thing, if that is still wanted.
    pub(super) fn take_more(&mut self, about: Wanted, more: Option<More>) {
        let known = self.more.as_ref().is_some_and(|(wanted, ..)| *wanted == about);
        if self.wanted().as_ref() != Some(&about) || self.paused && known {
            return;
        }
        let before = self.more.take().filter(|_| known).and_then(|(_, newest, _)| newest);
        self.more = Some((about, more, before));
    }

    /// No answer has come.
    pub(super) fn lose(&mut self, error: String) {
        let tries = if let Link::Lost { tries, .. } = self.link { tries + 1 } else { 1 };
        self.link = Link::Lost { tries, error };
    }

    /// The view that is shown.
    pub(super) fn tab(&self) -> Tab {
        let first = self.sample.tables.first().map_or(Tab::Pools, |table| table.tab);
        self.tab.filter(|tab| self.sample.tables.iter().any(|table| table.tab == *tab)).unwrap_or(first)
    }

    /// Shows a view from now on, with all of its rows.
    pub(super) fn show(&mut self, tab: Tab) {
        self.tab = Some(tab);
        self.scope.clear();
        self.pane = Pane::Table;
    }

    /// Shows the view `by` places on.
    pub(super) fn turn(&mut self, by: isize) {
        let tabs: Vec<Tab> = self.sample.tables.iter().map(|table| table.tab).collect();
        let at = tabs.iter().position(|tab| *tab == self.tab()).unwrap_or(0);
        let to = (at as isize + by).rem_euclid(tabs.len().max(1) as isize) as usize;
        if let Some(&tab) = tabs.get(to) {
            self.show(tab);
        }
    }

    /// The row whose parts are shown alone.
    pub(super) fn scope(&self) -> Option<&(Tab, Id)> {
        self.scope.last()
    }

    /// The rows of the view that pass the filter, in order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let tab = self.tab();
        let all = self.sample.tables.iter().filter(|table| table.tab == tab).flat_map(|table| &table.rows);
        let filter = self.filter.to_lowercase();
        let found = |row: &Row| {
            let words = [&row.name, &row.of, &row.tenant];
            let by = row.hold.as_ref().map(|hold| &hold.by);
            words.into_iter().chain(by).any(|word| word.to_lowercase().contains(&filter))
        };
        let passes =
            |row: &&Row| (filter.is_empty() || found(row)) && self.scope().is_none_or(|(tab, one)| tab.holds(one, row));
        let mut rows: Vec<&Row> = all.filter(passes).collect();
        rows.sort_by(|a, b| {
            let order = self.sort.by.order(a, b);
            if self.sort.reversed { order.reverse() } else { order }
        });
        rows
    }

    /// Which of these rows is selected: the first, until the user chooses.
    pub(super) fn selected(&self, rows: &[&Row]) -> usize {
        let chosen = self.selected.get(&self.tab());
        chosen.and_then(|id| rows.iter().position(|row| row.is(id))).unwrap_or(0)
    }

    /// Selects the row `by` places on, or in a detail shows what is `by` lines on.
    pub(super) fn step(&mut self, by: isize) {
        if let Pane::Detail(line) = self.pane {
            self.pane = Pane::Detail(line.saturating_add_signed(by));
            return;
        }
        let rows = self.rows();
        let to = self.selected(&rows).saturating_add_signed(by).min(rows.len().saturating_sub(1));
        let Some(id) = rows.get(to).map(|row| row.id()) else { return };
        self.selected.insert(self.tab(), id);
    }

    /// Shows no more lines of a detail than there are: `most` is the last one to begin with.
    pub(super) fn clamp_detail(&mut self, most: usize) {
        if let Pane::Detail(line) = self.pane {
            self.pane = Pane::Detail(line.min(most));
        }
    }

    /// Shows all about the selected row.
    pub(super) fn open(&mut self) {
        let rows = self.rows();
        if let Some(id) = rows.get(self.selected(&rows)).map(|row| row.id()) {
            // What is looked at stays what it is when the order changes.
            self.selected.insert(self.tab(), id);
            self.pane = Pane::Detail(0);
        }
    }

    /// Shows what belongs to the selected row, in the view below.
    pub(super) fn down(&mut self) {
        let rows = self.rows();
        let (tab, id) = (self.tab(), rows.get(self.selected(&rows)).map(|row| row.id()));
        let below = tab.about().below.filter(|below| self.sample.tables.iter().any(|table| table.tab == *below));
        if let (Some(below), Some(id)) = (below, id) {
            self.selected.insert(tab, id.clone());
            self.scope.push((tab, id));
            self.tab = Some(below);
            self.pane = Pane::Table;
        }
    }

    /// One step back: out of a pane, a filter, or a scope.
    pub(super) fn back(&mut self) {
        if self.pane != Pane::Table {
            self.pane = Pane::Table;
        } else if !self.filter.is_empty() {
            self.filter.clear();
        } else if let Some((tab, _)) = self.scope.pop() {
            self.tab = Some(tab);
        }
    }

    /// Sorts by the next column that is shown.
    pub(super) fn sort_by_next(&mut self) {
        let columns = self.tab().about().columns;
        let at = columns.iter().position(|column| *column == self.sort.by);
        let next = at.map_or(0, |at| (at + 1) % columns.len());
        self.sort = Sort { by: columns[next], reversed: false };
    }

    /// Adds a character to the filter; control characters are none.
    pub(super) fn write(&mut self, character: char) {
        if !character.is_control() && self.filter.chars().count() < MAX_FILTER {
            self.filter.push(character);
        }
    }

    /// The further request to the server.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        let id = self.selected.get(&self.tab())?.clone();
        matches!(self.pane, Pane::Detail(_)).then(|| Wanted { tab: self.tab(), id })
    }

    /// The row that is shown in detail, if it is there, and all about it.
    pub(super) fn detail(&self) -> Option<(Wanted, Option<&Row>, Detail)> {
        let wanted = self.wanted()?;
        let table = self.sample.tables.iter().find(|table| table.tab == wanted.tab);
        let row = table.and_then(|table| table.rows.iter().find(|row| row.is(&wanted.id)));
        let more = self.more.as_ref().filter(|(about, ..)| *about == wanted);
        let more = more.map_or((None, None), |(_, newest, before)| (newest.as_ref(), before.as_ref()));
        let detail = self.answer.as_ref().map(|answer| detail::of(answer, &wanted, more)).unwrap_or_default();
        Some((wanted, row, detail))
    }

    /// The history of a row.
    pub(super) fn history(&self, tab: Tab, id: &Id) -> Option<&History> {
        self.history.get(&(tab, id.clone()))
    }

    /// Targets and holds of everything.
    pub(super) fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        for table in &self.sample.tables {
            let whole = matches!(table.tab, Tab::Pools | Tab::Guarded);
            for row in &table.rows {
                if let Some(target) = &row.target {
                    tally.verdicts[target.verdict as usize] += 1;
                }
                tally.throttled += usize::from(!whole && row.hold.is_some());
            }
        }
        tally
    }
}
