//! The model of the screen: the newest sample, figures of earlier samples, and the user's position. Only answers and keys change
//! it.

use std::collections::{HashMap, VecDeque};

use evenkeel_policy::health::Trouble;

use super::detail::{self, Detail};
use super::row::{Column, Id, Row, Sample, Tab, Table};
use super::source::{Answer, More, Wanted};
use super::{guard, serve};

/// Upper bound on the samples in a row's history: two minutes at the default interval, and more than a screen shows.
pub(super) const HISTORY: usize = 120;
/// Number of samples for which the history of a vanished row is kept, as a client may be away for a moment.
const FORGET_AFTER: u64 = 60;
/// Upper bound on the length of the filter, in characters.
const MAX_FILTER: usize = 64;

/// Figures of one row over time: one point for each sample, oldest first.
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

    /// The values of one figure, oldest first; `None` for samples in which the row did not have the figure.
    pub(super) fn of(&self, figure: Column) -> impl DoubleEndedIterator<Item = Option<f32>> + Clone {
        let at = Column::FIGURES.iter().position(|column| *column == figure);
        self.points.iter().map(move |point| point[at?])
    }
}

/// State of the connection to the server or agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Link {
    /// No request has been answered yet.
    #[default]
    Waiting,
    /// The newest request was answered.
    Live,
    /// A moment of the past is shown, and nothing is requested.
    Past,
    /// The newest request was not answered.
    Lost {
        /// Number of failed requests since the last answer.
        tries: u32,
        /// Error of the newest request.
        error: String,
    },
}

/// Counts for the second line of the screen, over all views.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Number of targets with each [verdict](evenkeel_policy::verdict::Verdict): missed, unachievable, met, idle.
    pub(super) verdicts: [usize; 4],
    /// Number of throttled rows in all views but that of pools.
    pub(super) throttled: usize,
}

/// The kind of content on the screen below the first lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pane {
    /// The table of the chosen view.
    #[default]
    Table,
    /// The detail view of the selected row; the number is the index of its first visible line.
    Detail(usize),
    /// The help on keys and columns.
    Help,
}

/// The model of the screen.
#[derive(Debug, Default)]
pub(super) struct Model {
    /// Name of the place that answers requests, for the screen.
    pub(super) place: String,
    /// State of the connection to the server or agent.
    pub(super) link: Link,
    /// The newest answer, converted into rows.
    pub(super) sample: Sample,
    /// The content on the screen: a table, a detail view or the help.
    pub(super) pane: Pane,
    /// True while new answers are ignored.
    pub(super) paused: bool,
    /// Text that a row must contain in name, owner, tenant, target or throttle to be shown; empty without a filter.
    pub(super) filter: String,
    /// True while the user's keys edit the filter.
    pub(super) editing: bool,
    /// The order of the rows.
    pub(super) sort: Sort,
    /// True if the screen shows other servers beside this one.
    pub(super) is_one_of_several: bool,
    /// True if the terminal has room for the columns of wide ones.
    pub(super) is_wide: bool,
    /// The newest answer of the server or agent.
    answer: Option<Answer>,
    /// Recent rates of a server's connections.
    paces: serve::Paces,
    samples: u64,
    history: HashMap<(Tab, Id), History>,
    tab: Option<Tab>,
    selected: HashMap<Tab, Id>,
    /// The rows to whose parts the shown view is restricted, such as a pool and then one of its tenants, each with its view.
    scope: Vec<(Tab, Id)>,
    /// The row in the detail view, the newest answer about this row alone, and the one before it.
    more: Option<(Wanted, Option<More>, Option<More>)>,
}

/// An order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sort {
    /// The column that determines the order.
    pub(super) by: Column,
    /// True for the reverse order.
    pub(super) reversed: bool,
    /// True if rows in trouble are first.
    pub(super) troubles_first: bool,
}

impl Sort {
    /// The usual order by a column.
    pub(super) const fn by(by: Column) -> Self {
        Self { by, reversed: false, troubles_first: false }
    }
}

impl Default for Sort {
    /// Rows in trouble first, then the order by requests per second, busiest row first.
    fn default() -> Self {
        Self { troubles_first: true, ..Self::by(Column::Iops) }
    }
}

impl Model {
    /// A model without any answer. `place`: name of the place that answers requests.
    pub(super) fn new(place: String) -> Self {
        Self { place, ..Self::default() }
    }

    /// A model of a moment of the past, which stays as it is.
    pub(super) fn of_past(place: String, sample: Sample) -> Self {
        Self { place, link: Link::Past, sample, ..Self::default() }
    }

    /// Takes the rows of earlier samples, oldest first, into the histories.
    pub(super) fn recall(&mut self, samples: impl IntoIterator<Item = Vec<Table>>) {
        for tables in samples {
            self.samples += 1;
            self.keep(&tables);
        }
    }

    /// Adds the rows of the newest sample to their histories.
    fn keep(&mut self, tables: &[Table]) {
        for table in tables {
            for row in &table.rows {
                self.history.entry((table.tab, row.id())).or_default().add(row, self.samples);
            }
        }
    }

    /// Takes a new answer. While paused the answer only changes the state of the connection.
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
        self.sample = match &answer {
            Answer::Serve(state, clients) => serve::sample(state, &clients.clients, &mut self.paces),
            Answer::Guard(state) => guard::sample(state),
        };
        self.answer = Some(answer);
        self.samples += 1;
        let tables = std::mem::take(&mut self.sample.tables);
        self.keep(&tables);
        self.sample.tables = tables;
        let samples = self.samples;
        self.history.retain(|_, history| samples - history.seen < FORGET_AFTER);
    }

    /// Takes an answer about the row `about` alone, if the detail view still shows that row.
    pub(super) fn take_more(&mut self, about: Wanted, more: Option<More>) {
        let known = self.more.as_ref().is_some_and(|(wanted, ..)| *wanted == about);
        if self.wanted().as_ref() != Some(&about) || self.paused && known {
            return;
        }
        let before = self.more.take().filter(|_| known).and_then(|(_, newest, _)| newest);
        self.more = Some((about, more, before));
    }

    /// Records that a request has failed with `error`.
    pub(super) fn lose(&mut self, error: String) {
        let tries = if let Link::Lost { tries, .. } = self.link { tries + 1 } else { 1 };
        self.link = Link::Lost { tries, error };
    }

    /// The view that is shown: the chosen one, or the first if the newest sample lacks it.
    pub(super) fn tab(&self) -> Tab {
        let first = self.sample.tables.first().map_or(Tab::Pools, |table| table.tab);
        self.tab.filter(|tab| self.sample.tables.iter().any(|table| table.tab == *tab)).unwrap_or(first)
    }

    /// Shows the whole table of a view, without a restriction to parts of one row.
    pub(super) fn show(&mut self, tab: Tab) {
        self.tab = Some(tab);
        self.scope.clear();
        self.pane = Pane::Table;
    }

    /// Shows the view `by` places after the present one, or before it if `by` is negative; the first follows the last.
    pub(super) fn turn(&mut self, by: isize) {
        let tabs: Vec<Tab> = self.sample.tables.iter().map(|table| table.tab).collect();
        let at = tabs.iter().position(|tab| *tab == self.tab()).unwrap_or(0);
        let to = (at as isize + by).rem_euclid(tabs.len().max(1) as isize) as usize;
        if let Some(&tab) = tabs.get(to) {
            self.show(tab);
        }
    }

    /// The row to whose parts the shown view is restricted, with the row's view; `None` without a restriction.
    pub(super) fn scope(&self) -> Option<&(Tab, Id)> {
        self.scope.last()
    }

    /// The rows of the shown view that pass the restriction and the filter, in the chosen order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        self.rows_of(self.tab())
    }

    /// As [`Self::rows`], of another view.
    pub(super) fn rows_of(&self, tab: Tab) -> Vec<&Row> {
        let all = self.sample.tables.iter().filter(|table| table.tab == tab).flat_map(|table| &table.rows);
        let filter = self.filter.to_lowercase();
        let found = |row: &Row| {
            let names = [row.name.as_str(), row.of.as_str(), row.tenant.as_str()].into_iter();
            let throttle = row.hold.iter().flat_map(|hold| [hold.by.as_str(), hold.how.as_str()]);
            let target = row.target.iter().flat_map(|target| [target.verdict.word(), target.what.as_str()]);
            names.chain(throttle).chain(target).any(|word| word.to_lowercase().contains(&filter))
        };
        let passes =
            |row: &&Row| (filter.is_empty() || found(row)) && self.scope().is_none_or(|(tab, one)| tab.holds(one, row));
        let mut rows: Vec<&Row> = all.filter(passes).collect();
        rows.sort_by(|a, b| {
            let order = self.sort.by.order(a, b);
            let order = if self.sort.reversed { order.reverse() } else { order };
            if self.sort.troubles_first { a.rank().cmp(&b.rank()).then(order) } else { order }
        });
        rows
    }

    /// Index of the selected row in `rows`: 0 until the user selects one.
    pub(super) fn selected(&self, rows: &[&Row]) -> usize {
        let chosen = self.selected.get(&self.tab());
        chosen.and_then(|id| rows.iter().position(|row| row.is(id))).unwrap_or(0)
    }

    /// Selects the row `by` places below the selected one, or above it if `by` is negative. In the detail view scrolls by as
    /// many lines.
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

    /// Limits scrolling in the detail view. `most`: upper bound on the index of the first visible line.
    pub(super) fn clamp_detail(&mut self, most: usize) {
        if let Pane::Detail(line) = self.pane {
            self.pane = Pane::Detail(line.min(most));
        }
    }

    /// Opens the detail view of the selected row.
    pub(super) fn open(&mut self) {
        let rows = self.rows();
        if let Some(id) = rows.get(self.selected(&rows)).map(|row| row.id()) {
            // What is looked at stays what it is when the order changes.
            self.selected.insert(self.tab(), id);
            self.pane = Pane::Detail(0);
        }
    }

    /// Shows the view with the parts of the selected row (such as a pool's tenants), restricted to these parts.
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

    /// Goes one step back: closes the detail view or the help, else clears the filter, else removes the last restriction.
    pub(super) fn back(&mut self) {
        if self.pane != Pane::Table {
            self.pane = Pane::Table;
        } else if !self.filter.is_empty() {
            self.filter.clear();
        } else if let Some((tab, _)) = self.scope.pop() {
            self.tab = Some(tab);
        }
    }

    /// Sorts the rows by the view's next column, in that column's usual order.
    pub(super) fn sort_by_next(&mut self) {
        let all = self.tab().about().columns.iter().copied();
        let shown = |column: &Column| *column != Column::Trend && (self.is_wide || !column.is_wide());
        let columns: Vec<Column> = all.filter(shown).collect();
        let at = columns.iter().position(|column| *column == self.sort.by);
        let next = at.map_or(0, |at| (at + 1) % columns.len());
        self.sort = Sort::by(columns[next]);
    }

    /// Appends a character to the filter; control characters are ignored.
    pub(super) fn write(&mut self, character: char) {
        if !character.is_control() && self.filter.chars().count() < MAX_FILTER {
            self.filter.push(character);
        }
    }

    /// The row in the detail view, about which requests for further figures are needed; `None` in other panes.
    pub(super) fn wanted(&self) -> Option<Wanted> {
        let id = self.selected.get(&self.tab())?.clone();
        matches!(self.pane, Pane::Detail(_)).then(|| Wanted { tab: self.tab(), id })
    }

    /// The detail view's row by name, the row itself if it still exists, and the view's content; `None` in other panes.
    pub(super) fn detail(&self) -> Option<(Wanted, Option<&Row>, Detail)> {
        let wanted = self.wanted()?;
        let table = self.sample.tables.iter().find(|table| table.tab == wanted.tab);
        let row = table.and_then(|table| table.rows.iter().find(|row| row.is(&wanted.id)));
        let more = self.more.as_ref().filter(|(about, ..)| *about == wanted);
        let more = more.map_or((None, None), |(_, newest, before)| (newest.as_ref(), before.as_ref()));
        let detail = self.answer.as_ref().map(|answer| detail::of(answer, &wanted, more)).unwrap_or_default();
        Some((wanted, row, detail))
    }

    /// The history of the row `id` of the view `tab`.
    pub(super) fn history(&self, tab: Tab, id: &Id) -> Option<&History> {
        self.history.get(&(tab, id.clone()))
    }

    /// The troubles of the server or agent, or those of the past, worst first; empty before the first answer.
    pub(super) fn troubles(&self) -> &[Trouble] {
        match &self.answer {
            Some(Answer::Serve(state, _)) => &state.health.troubles,
            Some(Answer::Guard(state)) => &state.health.troubles,
            None => &self.sample.past,
        }
    }

    /// Counts the targets and the throttled rows in all views of the newest sample.
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
