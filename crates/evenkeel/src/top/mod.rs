//! `evenkeel top`: shows the state of a server or an agent in a terminal.
//!
//! ```text
//!  source ─ answers ─▶ model ─▶ view ─▶ terminal
//!    ▲                  ▲
//!    └── more about ────┴── keys
//! ```
//!
//! One thread sends requests, one reads keys, one waits for signals. All three send events through one channel to the main
//! loop, which owns the model. Model and view use neither clock nor terminal.

use std::io::{self, IsTerminal};
use std::panic::resume_unwind;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use clap::builder::PossibleValuesParser;
use evenkeel_net::http::Place;
use evenkeel_policy::units::UnitError;
use evenkeel_policy::{figures, units};
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event;
use ratatui::crossterm::terminal::size;
use ratatui::layout::Rect;
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

mod canvas;
mod detail;
mod detail_view;
mod guard;
mod json;
mod keys;
mod model;
mod past;
mod row;
mod serve;
mod source;
#[cfg(test)]
mod tests;
mod view;

use crate::control::Reach;
use crate::health::with_cures;
use crate::history::{self, zone};
use crate::output;
use canvas::{Drawn, Look};
use keys::After;
use model::{Link, Model, Sort};
use past::Recalled;
use row::Column;
pub(crate) use serve::{is_used, totals_by_host};
use source::{Answer, More, Source, Wanted};
use view::FRAME_LINES;

/// Shortest and longest interval between two samples. People see no faster changes, and each sample costs the server CPU time.
const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(3600)];
/// Upper bound on the time between the first two samples: rates need two samples and should be shown soon.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// Time in which each worker of a server updates its counts of connections at least once; workers do so every second.
const ONE_COUNT: Duration = Duration::from_millis(1_200);
/// Width of a frame for `--once` in columns, if neither `COLUMNS` nor a terminal gives a width.
const ONCE_WIDTH: u16 = 120;
/// Tenants of a server up to which `top` begins with the last minute of its history.
const RECALLED_TENANTS: usize = 200;
/// Names of views for the option `--view`.
const VIEWS: [&str; 7] = ["pools", "tenants", "volumes", "clients", "groups", "queues", "osds"];

/// Arguments of `top`.
#[derive(clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,

    /// Time between two samples, 100ms to 1h
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = sampled)]
    interval: units::Duration,

    /// The view to begin with
    #[arg(long, value_name = "VIEW", value_parser = PossibleValuesParser::new(VIEWS), ignore_case = true)]
    view: Option<String>,

    /// Show this moment of the past: 02:40, 2026-11-28T02:40:00Z, -2h
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    at: Option<String>,

    /// The column to sort by: names from A on, targets that are missed and what is throttled first, figures from the largest on.
    /// Without it, what is in trouble is first, then the busiest
    #[arg(long, value_name = "COLUMN", value_parser = PossibleValuesParser::new(Column::ALL.map(|(_, _, key)| key)))]
    sort: Option<String>,

    /// Show only rows whose name, pool, tenant, target or throttle contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Print one frame as text, after two samples, and end: for pipes and scripts
    #[arg(long)]
    once: bool,

    /// Print the rows as JSON, one line in every interval, with --once one line
    ///
    /// A line has `servers`, `pools`, `tenants`, `volumes` and `health`, with the figures of the screen; units are last in the
    /// keys. A server that does not answer has `error` and no rows. Needs no terminal; --sort and --filter apply.
    #[arg(long, conflicts_with = "view")]
    json: bool,
}

const AFTER_HELP: &str = "\
Keys: q quit, Tab next view, arrows or jk select, Enter detail, Right down to what belongs to the row, Esc back,
s sort, S reverse order, / filter, p pause, o next server, ? all keys.

Colours are the terminal's sixteen, none with NO_COLOR; what matters is also said in words.";

/// An event that a thread sends to the main loop.
enum Event {
    /// A key was pressed, or the terminal's size has changed.
    Input(event::Event),
    /// The newest state of the server or agent with this index, or the error of the request for it.
    Told(usize, anyhow::Result<Answer>),
    /// Index of the server or agent, the row in the detail view and, if there are any, further figures about the row.
    More(usize, Wanted, Option<More>),
    /// A signal ends the program.
    Stop,
    /// The terminal can no longer be read.
    Broken(io::Error),
}

/// Parses an interval between samples, which must lie within [`INTERVALS`].
fn sampled(text: &str) -> Result<units::Duration, String> {
    let interval: units::Duration = text.parse().map_err(|error: UnitError| error.to_string())?;
    let fits = (INTERVALS[0]..=INTERVALS[1]).contains(&Duration::from(interval));
    if fits { Ok(interval) } else { Err("out of range; use 100ms to 1h".to_owned()) }
}

/// Runs `evenkeel top` until the user or a signal ends it; with `--once` prints one frame.
///
/// # Errors
/// When no server or agent answers the first request, or the terminal is missing or lost.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let interval = Duration::from(args.interval);
    let on_terminal = io::stdout().is_terminal() && io::stdin().is_terminal();
    if !(args.once || args.json || on_terminal) {
        bail!("top needs a terminal for input and output; --once prints one frame as text, --json lines for programs");
    }
    let all = args.reach.each()?;
    let is_one_of_several = all.len() > 1;
    let mut shown = begin_all(all, args.at.as_deref())?;
    for (model, _) in &mut shown {
        model.is_one_of_several = is_one_of_several;
        model.filter.clone_from(&args.filter);
        if let Some((by, ..)) = Column::ALL.into_iter().find(|(_, _, key)| args.sort.as_deref() == Some(*key)) {
            model.sort = Sort::by(by);
        }
    }
    if let Some(name) = &args.view {
        show_each(shown.iter_mut().map(|(model, _)| model), name)?;
    }
    if args.once {
        if args.at.is_none() {
            thread::sleep(interval.max(ONE_COUNT));
        }
        renew_all(&mut shown, is_one_of_several)?;
        if args.json {
            return output::print(&json::line(shown.iter().map(|(model, _)| model), moment(args)?)?);
        }
        let frames: Vec<String> = shown.iter().map(|(model, _)| once(model)).collect();
        return output::print(&frames.join("\n"));
    }
    if args.json {
        return lines(args, &mut shown, interval);
    }
    let (models, sources): (Vec<Model>, Vec<Option<Source>>) = shown.into_iter().unzip();
    let mut terminal = ratatui::try_init().context("cannot use the terminal; --once and --json need none")?;
    let screen = Screen { models, focus: 0, look: look(), drawn: Drawn::default() };
    let ended = screen.run(&mut terminal, sources, interval);
    ratatui::restore();
    ended
}

/// The models and sources of all servers and agents, each reached at its places. With `at` the models are of that moment and have
/// no sources. All servers and agents are asked at the same time; one of several that does not answer has a model, too.
fn begin_all(all: Vec<Vec<Place>>, at: Option<&str>) -> anyhow::Result<Vec<(Model, Option<Source>)>> {
    let several = all.len() > 1;
    let one = |places: Vec<Place>| -> anyhow::Result<(Model, Option<Source>)> {
        let Some(at) = at else {
            let mut source = Source::new(places);
            let model = begin(&mut source, several)?;
            return Ok((model, Some(source)));
        };
        match past(&places, at) {
            Err(error) if several && !error.is::<output::Usage>() => {
                let mut model = Model::new(Source::new(places).place());
                model.lose(format!("{error:#}"));
                Ok((model, None))
            }
            model => Ok((model?, None)),
        }
    };
    let one = &one;
    thread::scope(|scope| {
        let asking: Vec<_> = all.into_iter().map(|places| scope.spawn(move || one(places))).collect();
        asking.into_iter().map(|asked| asked.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

/// The model of a moment of the past, from the history of the first of `places` that answers.
fn past(places: &[Place], at: &str) -> anyhow::Result<Model> {
    let at = history::moment_of("--at", at, history::now())?;
    let recalled = Recalled::ask(places, at)?;
    let mut model = Model::of_past(Source::new(places.to_vec()).place(), recalled.sample(zone::local));
    model.recall(recalled.minute());
    Ok(model)
}

/// The model of a server or agent with its first answer and, if it records one, with the last minute of its history. One of
/// `several` that does not answer has a model, too.
fn begin(source: &mut Source, several: bool) -> anyhow::Result<Model> {
    let first = source.ask();
    let mut model = Model::new(source.place());
    match first {
        Ok(first) => {
            if has_few(&first)
                && let Ok(recalled) = Recalled::ask(source.places(), history::now())
            {
                model.recall(recalled.minute());
            }
            model.take(first);
        }
        Err(error) if several => model.lose(format!("{error:#}")),
        Err(error) => return Err(error),
    }
    Ok(model)
}

/// True for a server with so few tenants that the last minute of its history is soon read.
fn has_few(answer: &Answer) -> bool {
    let Answer::Serve(state, _) = answer else { return false };
    state.pools.iter().map(|pool| pool.tenants.len()).sum::<usize>() <= RECALLED_TENANTS
}

/// Requests the newest state for the model. An error is returned only for a single server or agent; the model of one of `several`
/// shows the error.
fn renew(model: &mut Model, source: &mut Source, several: bool) -> anyhow::Result<()> {
    match source.ask() {
        Ok(answer) => model.take(answer),
        Err(error) if several => model.lose(format!("{error:#}")),
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Asks all at the same time, so that one that does not answer delays no other. Errors as of [`renew`].
fn renew_all(shown: &mut [(Model, Option<Source>)], several: bool) -> anyhow::Result<()> {
    thread::scope(|scope| {
        let asked = shown.iter_mut().filter_map(|(model, source)| Some((model, source.as_mut()?)));
        let asking: Vec<_> = asked.map(|(model, source)| scope.spawn(move || renew(model, source, several))).collect();
        asking.into_iter().try_for_each(|one| one.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// Prints a line of JSON in every interval, until the reader of the lines ends; with `--at` one line only.
fn lines(args: &Args, shown: &mut [(Model, Option<Source>)], interval: Duration) -> anyhow::Result<()> {
    let mut next = Instant::now();
    loop {
        let line = json::line(shown.iter().map(|(model, _)| model), moment(args)?)?;
        if !output::print_to_reader(&line)? || args.at.is_some() {
            return Ok(());
        }
        // Late by more than an interval, none is made up for.
        next = (next + interval).max(Instant::now());
        thread::sleep(next.saturating_duration_since(Instant::now()));
        // A server that goes away shows in the lines, and may come back.
        renew_all(shown, true)?;
    }
}

/// The moment that is shown, Unix time in seconds: now, or that of `--at`.
fn moment(args: &Args) -> anyhow::Result<f64> {
    match &args.at {
        Some(at) => Ok(history::moment_of("--at", at, history::now())? as f64),
        None => Ok(json::now()),
    }
}

/// Shows the view `name` of all models that have it; an error if none has. An agent has other views than a server.
fn show_each<'m>(models: impl Iterator<Item = &'m mut Model>, name: &str) -> anyhow::Result<()> {
    let shown: Vec<anyhow::Result<()>> = models.map(|model| show(model, name)).collect();
    if shown.iter().any(Result::is_ok) { Ok(()) } else { shown.into_iter().collect() }
}

/// Shows the view `name`; an error if this server or agent has no such view.
fn show(model: &mut Model, name: &str) -> anyhow::Result<()> {
    if model.sample.tables.is_empty() {
        // It has not answered.
        return Ok(());
    }
    let mut tabs = model.sample.tables.iter().map(|table| table.tab);
    let Some(tab) = tabs.find(|tab| tab.about().title.eq_ignore_ascii_case(name)) else {
        let there: Vec<String> =
            model.sample.tables.iter().map(|table| table.tab.about().title.to_lowercase()).collect();
        bail!("--view {name}: this server or agent has no such view; it has {}", there.join(", "));
    };
    model.show(tab);
    Ok(())
}

/// The terminal's abilities, from the environment: `NO_COLOR`, and the character set in `LC_ALL`, `LC_CTYPE` or `LANG`.
fn look() -> Look {
    let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let charset = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set).unwrap_or_default().to_lowercase();
    let unicode = charset.contains("utf-8") || charset.contains("utf8");
    Look { colour: set("NO_COLOR").is_none(), unicode, once: false }
}

/// One frame with all rows of the view, as text for `--once`, and below it all troubles with their cures.
fn once(model: &Model) -> String {
    let width = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let of_terminal = || io::stdout().is_terminal().then(|| size().ok()).flatten().map(|(columns, _)| columns);
    let width = width.or_else(of_terminal).unwrap_or(ONCE_WIDTH).clamp(40, 500);
    let rows = u16::try_from(model.rows().len().max(1)).unwrap_or(u16::MAX).min(u16::MAX - FRAME_LINES);
    let area = Rect::new(0, 0, width, rows + FRAME_LINES);
    let mut buffer = Buffer::empty(area);
    view::draw(model, Look { once: true, colour: false, ..look() }, area, &mut buffer);
    let troubles = match model.link {
        Link::Live | Link::Past => with_cures(model.troubles()),
        Link::Waiting | Link::Lost { .. } => String::new(),
    };
    let gap = if troubles.is_empty() { "" } else { "\n" };
    format!("{}{gap}{troubles}", text(&buffer))
}

/// The characters of a frame as text, each line without blanks at its end.
fn text(buffer: &Buffer) -> String {
    let lines = buffer.content().chunks(usize::from(buffer.area.width));
    let line = |cells: &[ratatui::buffer::Cell]| {
        let line: String = cells.iter().map(ratatui::buffer::Cell::symbol).collect();
        format!("{}\n", line.trim_end())
    };
    lines.map(line).collect()
}

/// The state of the main loop: a model of each server or agent, the index of the one that gets the keys, the terminal's
/// abilities, and facts about the drawn screen.
struct Screen {
    models: Vec<Model>,
    focus: usize,
    look: Look,
    drawn: Drawn,
}

impl Screen {
    /// Starts the threads, then draws the screen and handles events until one of them ends the program. `sources`: those of the
    /// models, `None` for the past; `interval`: time between two samples.
    fn run(
        mut self,
        terminal: &mut DefaultTerminal,
        sources: Vec<Option<Source>>,
        interval: Duration,
    ) -> anyhow::Result<()> {
        let (events, told) = mpsc::channel();
        let mut asking = Vec::new();
        let mut wants: Vec<(Sender<Option<Wanted>>, Option<Wanted>)> = Vec::new();
        for (index, source) in sources.into_iter().enumerate() {
            let (sender, wanted) = mpsc::channel();
            wants.push((sender, None));
            if let Some(source) = source {
                let events = events.clone();
                asking.push(spawn("top-source", move || ask(index, source, interval, &wanted, &events))?);
            }
        }
        watch_signals(events.clone())?;
        spawn("top-keys", move || read_keys(&events))?;
        loop {
            self.draw(terminal)?;
            let first = told.recv().map_err(|_| anyhow!("the threads of top have ended; report this as a bug"))?;
            // What has come in the meantime is drawn once.
            for event in std::iter::once(first).chain(told.try_iter()) {
                if !self.take(event, terminal)? {
                    return Ok(());
                }
            }
            if asking.iter().any(thread::JoinHandle::is_finished) {
                bail!("the thread that asks the server has failed; report what it said above as a bug");
            }
            for (model, (sender, want)) in self.models.iter().zip(&mut wants) {
                let now = model.wanted();
                if now != *want {
                    want.clone_from(&now);
                    // The receiver has gone only if it failed, which the branch above reports; the past needs no answer.
                    let _ = sender.send(now);
                }
            }
        }
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
        let (models, focus, look, drawn) = (&self.models, self.focus, self.look, &mut self.drawn);
        let shown = terminal.draw(|frame| {
            let area = frame.area();
            *drawn = view::sections(models, focus, look, area, frame.buffer_mut());
        });
        shown.context("cannot draw on the terminal, which may have been closed")?;
        let model = &mut self.models[self.focus];
        model.clamp_detail(self.drawn.last_line);
        model.is_wide = self.drawn.is_wide;
        Ok(())
    }

    /// Handles an event. Returns false if the event ends the program.
    fn take(&mut self, event: Event, terminal: &mut DefaultTerminal) -> anyhow::Result<bool> {
        match event {
            Event::Told(index, Ok(answer)) => self.models[index].take(answer),
            Event::Told(index, Err(error)) => self.models[index].lose(format!("{error:#}")),
            Event::More(index, about, more) => self.models[index].take_more(about, more),
            Event::Input(event::Event::Key(key)) => {
                let model = &mut self.models[self.focus];
                match keys::press(model, key, self.drawn.page) {
                    After::Go => {}
                    After::Other => self.focus = (self.focus + 1) % self.models.len(),
                    After::Quit => return Ok(false),
                    After::Suspend => suspend(terminal)?,
                    After::Redraw => terminal.clear().context("cannot clear the terminal")?,
                }
            }
            // The next frame has the new size.
            Event::Input(_) => {}
            Event::Stop => return Ok(false),
            Event::Broken(error) => return Err(error).context("cannot read keys from the terminal"),
        }
        Ok(true)
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<thread::JoinHandle<()>> {
    let started = thread::Builder::new().name(name.into()).spawn(work);
    started.context("cannot start a thread; raise the limit of threads (ulimit -u)")
}

/// Releases the terminal and stops this process as Ctrl-Z does; takes the terminal again when the process is continued.
fn suspend(terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
    ratatui::restore();
    kill_process(getpid(), Signal::TSTP).context("cannot suspend evenkeel top")?;
    *terminal = ratatui::try_init().context("cannot use the terminal; --once and --json need none")?;
    Ok(())
}

/// Requests the state of the server or agent `index` in every interval, and further figures about the row that `wanted` names.
/// Sends the answers through `events`. Ends with the main loop.
fn ask(
    index: usize,
    mut source: Source,
    interval: Duration,
    wanted: &Receiver<Option<Wanted>>,
    events: &Sender<Event>,
) {
    let mut want: Option<Wanted> = None;
    let mut next = Instant::now() + interval.min(SECOND_LOOK);
    loop {
        match wanted.recv_timeout(next.saturating_duration_since(Instant::now())) {
            Ok(new) => want = new,
            Err(RecvTimeoutError::Timeout) => {
                // Late by more than an interval, none is made up for.
                next = (next + interval).max(Instant::now());
                if events.send(Event::Told(index, source.ask())).is_err() {
                    return;
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // That something has vanished meanwhile shows in the state; that no answer comes, too.
        if let Some(about) = &want
            && let Ok(more) = source.more(about)
            && events.send(Event::More(index, about.clone(), more)).is_err()
        {
            return;
        }
    }
}

fn read_keys(events: &Sender<Event>) {
    loop {
        let (event, ended) = match event::read() {
            Ok(event) => (Event::Input(event), false),
            Err(error) => (Event::Broken(error), true),
        };
        if events.send(event).is_err() || ended {
            return;
        }
    }
}

fn watch_signals(events: Sender<Event>) -> anyhow::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).context("cannot watch for signals")?;
    spawn("top-signals", move || {
        for _ in signals.forever() {
            if events.send(Event::Stop).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

#[cfg(test)]
mod view_tests {
    use super::row::{Sample, Tab, Table};
    use super::*;

    #[test]
    fn of_several_those_without_the_view_keep_their_own() {
        let with = |tab| {
            let tables = vec![Table { tab: Tab::Osds, rows: Vec::new() }, Table { tab, rows: Vec::new() }];
            Model::of_past(String::new(), Sample { tables, ..Sample::default() })
        };
        let mut both = [with(Tab::Groups), with(Tab::Tenants)];
        show_each(both.iter_mut(), "tenants").expect("one has it");
        assert_eq!(both.each_ref().map(Model::tab), [Tab::Osds, Tab::Tenants]);
        let error = show_each([with(Tab::Groups)].iter_mut(), "tenants").expect_err("none has it").to_string();
        assert!(error.contains("it has osds, groups"), "{error}");
    }
}
