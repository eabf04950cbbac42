//! `evenkeel history`: figures, decisions and troubles of the past, from a running server or agent or from its folder.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use evenkeel_net::http::Place;
use evenkeel_policy::history::{Event, EventKind, History};
use evenkeel_policy::moment;
use evenkeel_policy::units::Duration as Step;
use evenkeel_web::history::{Query, answer};

use crate::control::{Reach, first, get, path};
use crate::output::{self, Usage};

mod csv;
mod text;
pub(crate) mod zone;

pub(crate) use text::{event_text, wrapped};

/// Time limit for each part of an answer: a busy machine reads an hour of thousands of tenants in seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Answers of a whole time at most: 2 million rows.
const MAX_ANSWERS: usize = 100;

/// Arguments of `history`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Begin: 02:40, 2026-11-28T02:40, 2026-11-28T02:40:00Z, -2h; without a zone, clocks of this machine
    #[arg(long, value_name = "TIME", default_value = "-10m", allow_hyphen_values = true)]
    from: String,

    /// End, likewise, or now
    #[arg(long, value_name = "TIME", default_value = "now", allow_hyphen_values = true)]
    to: String,

    /// Only this tenant; without it, a table has whole pools, JSON and CSV have all
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,

    /// Only this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,

    /// Length of a step: 1s, 10s, 1m or 10m; without it, the shortest with some 600 steps
    #[arg(long, value_name = "TIME")]
    step: Option<Step>,

    /// Print figures, gaps and events as JSON, as /api/v1/history does
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print the figures as CSV
    #[arg(long)]
    csv: bool,

    /// Read this folder (DATA_DIR/history) instead of asking a server or an agent, which need not run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["status", "control", "config", "data_dir"])]
    dir: Option<PathBuf>,

    #[command(flatten)]
    reach: Reach,
}

/// Unix time now, in seconds.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The moment that an option names, Unix time in seconds.
///
/// # Errors
/// A text that names none; the message names the option and the forms.
pub(crate) fn moment_of(option: &str, text: &str, now: u64) -> anyhow::Result<u64> {
    moment::parse(text, now, zone::local).map_err(|error| Usage(format!("{option}: {error}")).into())
}

/// Prints a part of the history.
///
/// # Errors
/// A time that cannot be read, or a server, an agent or a folder that does not answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let now = now();
    let [from, to] = [("--from", &args.from), ("--to", &args.to)].map(|(option, text)| moment_of(option, text, now));
    // The present second too.
    let (from, to) = (from?, if args.to == "now" { now + 1 } else { to? });
    ensure!(from < to, Usage("--from is not before --to: give a later --to".into()));
    // A table of thousands of tenants is of no use.
    let tenant = args.tenant.clone().or_else(|| (!args.json && !args.csv).then(String::new));
    let step = args.step.map(|step| step.as_nanos() / 1_000_000_000);
    let query = Query { from, to, step, pool: args.pool.clone(), tenant };
    let mut history = fetch(args.dir.as_deref(), &args.reach, query)?;
    history.problems.extend(unknown(&history, args.pool.as_deref(), args.tenant.as_deref()));
    if args.csv {
        // The figures have no place for them, and may be incomplete.
        let gaps = history.gaps.iter().map(|gap| {
            let [from, to] = [gap.from_s, gap.to_s].map(|at| moment::text(at, moment::utc));
            format!("no record from {from} to {to}: {}", gap.because)
        });
        let warnings = gaps.chain(history.problems.iter().cloned());
        warnings.for_each(|warning| output::complain(&format!("evenkeel: warning: {warning}\n")));
        return output::print(&csv::of(&history));
    }
    output::show(args.json, &history, |history| text::of(history, zone::local))
}

/// The warning that nothing of the pool or tenant that was asked for is in `history`: its name may be mistyped, and the table
/// would show it as idle. `None` if there are figures or events of it, or all were asked for.
fn unknown(history: &History, pool: Option<&str>, tenant: Option<&str>) -> Option<String> {
    let name = |kind: &str, name: &str| format!("{kind} {name:?}");
    let asked = match (tenant, pool) {
        (Some(tenant), Some(pool)) => format!("{} in {}", name("tenant", tenant), name("pool", pool)),
        (Some(tenant), None) => name("tenant", tenant),
        (None, Some(pool)) => name("pool", pool),
        (None, None) => return None,
    };
    let is_asked =
        |of: &str, name: &str| pool.is_none_or(|pool| pool == of) && tenant.is_none_or(|tenant| tenant == name);
    let mut series = history.steps.iter().flat_map(|step| &step.series);
    let mut events = history.events.iter();
    let is_there = series.any(|series| is_asked(&series.pool, &series.tenant))
        || events.any(|event| event.kind == EventKind::Decision && is_asked(&event.pool, &event.tenant));
    (!is_there).then(|| {
        format!("there is no record of {asked} in this time: no request came, or the name is wrong; `evenkeel history --csv` lists all names")
    })
}

/// The troubles that begin and do not end in these events, in the order in which they begin.
pub(crate) fn open_troubles<'h>(events: impl Iterator<Item = &'h Event>) -> Vec<&'h Event> {
    // By object, reason and level, as there may be thousands. Two errors of one object may have different levels.
    let mut open: BTreeMap<(&str, &str, &str), (usize, &Event)> = BTreeMap::new();
    for (place, event) in events.enumerate() {
        let key = (event.about.as_str(), event.reason.as_str(), event.level.as_str());
        match event.kind {
            // One that goes on is recorded again.
            EventKind::TroubleBegins => {
                open.insert(key, (place, event));
            }
            EventKind::TroubleEnds => {
                open.remove(&key);
            }
            // A program that was ended records no end of its troubles; those that go on begin anew.
            EventKind::Started => open.clear(),
            EventKind::Decision | EventKind::Stopped => {}
        }
    }
    let mut open: Vec<(usize, &Event)> = open.into_values().collect();
    open.sort_unstable_by_key(|(place, _)| *place);
    open.into_iter().map(|(_, event)| event).collect()
}

/// The answer to a question, made of as many as it takes: from the folder `dir`, else from the program that `reach` names.
///
/// # Errors
/// A server, an agent or a folder that does not answer.
pub(crate) fn fetch(dir: Option<&Path>, reach: &Reach, query: Query) -> anyhow::Result<History> {
    let places = if dir.is_some() { Vec::new() } else { reach.places()? };
    fetch_from(dir, &places, query)
}

/// The message that the history in a folder was not read, with the cure.
fn unread(folder: &Path) -> String {
    let folder_name = folder.display();
    match std::fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => format!(
            "the history in {folder_name} belongs to another user; run this command as the user that runs the server or agent, or ask the program itself with --status"
        ),
        _ => {
            format!("no history in {folder_name}; name the folder `history` in the data folder of a server or an agent")
        }
    }
}

/// As [`fetch`], from the first of `places` that answers if there is no folder.
///
/// # Errors
/// As [`fetch`].
pub(crate) fn fetch_from(dir: Option<&Path>, places: &[Place], mut query: Query) -> anyhow::Result<History> {
    let mut place: Option<&Place> = None;
    let mut ask = |query: &Query| -> anyhow::Result<History> {
        if let Some(folder) = dir {
            return answer(folder, query).with_context(|| unread(folder));
        }
        let path = asked(query);
        let text = match place {
            Some(place) => get(place, &path, PATIENCE)?,
            None => {
                let (answering, text) = first(places, &path, PATIENCE).context(
                    "the history was not read; --dir DATA_DIR/history reads it without a running server or agent",
                )?;
                place = Some(answering);
                text
            }
        };
        serde_json::from_str(&text)
            .context("the server or agent speaks another version of the API: use that version of evenkeel")
    };
    let mut history = ask(&query)?;
    // The same steps throughout.
    query.step = Some(history.step_s);
    for _ in 1..MAX_ANSWERS {
        let Some(next) = history.next_s.take() else { return Ok(history) };
        query.from = next;
        let more = ask(&query)?;
        history.steps.extend(more.steps);
        history.gaps.extend(more.gaps);
        history.events.extend(more.events);
        history.problems.extend(more.problems);
        history.next_s = more.next_s;
    }
    history.problems.dedup();
    if let Some(next) = history.next_s {
        let until = moment::text(next, zone::local);
        history
            .problems
            .push(format!("the answer ends at {until}, as it is long: give --tenant, --step or a later --from"));
    }
    Ok(history)
}

/// The path of the API for a question.
pub(crate) fn asked(query: &Query) -> String {
    let mut asked = format!("/api/v1/history?from={}&to={}", query.from, query.to);
    if let Some(step) = query.step {
        asked += &format!("&step={step}");
    }
    for (key, name) in [("&pool=", &query.pool), ("&tenant=", &query.tenant)] {
        if let Some(name) = name {
            asked += &path(key, name);
        }
    }
    asked
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use evenkeel_policy::history::{Event, Series, Step};

    use super::*;

    #[test]
    fn a_question_is_a_path() {
        let query = Query { from: 5, to: 9, step: Some(1), pool: Some("a b".into()), tenant: Some(String::new()) };
        assert_eq!(asked(&query), "/api/v1/history?from=5&to=9&step=1&pool=a%20b&tenant=");
        assert_eq!(asked(&Query { from: 5, to: 9, ..Query::default() }), "/api/v1/history?from=5&to=9");
    }

    #[test]
    fn a_name_without_any_record_is_no_idle_tenant() {
        let series = Series { pool: "main".into(), tenant: "shop".into(), ..Series::default() };
        let decision = Event { pool: "main".into(), tenant: "web".into(), ..Event::default() };
        let step = Step { at_s: 0, seconds: 1, recorded_s: 1, series: vec![series] };
        let history = History { steps: vec![step], events: vec![decision], ..History::default() };
        for (pool, tenant) in [(None, None), (None, Some("shop")), (Some("main"), Some("web")), (Some("main"), None)] {
            assert_eq!(unknown(&history, pool, tenant), None, "{pool:?} {tenant:?}");
        }
        for (pool, tenant, name) in [
            (None, Some("shopp"), "no record of tenant \"shopp\" in this time"),
            (Some("fast"), None, "no record of pool \"fast\" in"),
            (Some("fast"), Some("shop"), "no record of tenant \"shop\" in pool \"fast\" in"),
        ] {
            let warning = unknown(&history, pool, tenant).expect("a warning");
            assert!(warning.contains(name) && warning.contains("--csv"), "{warning}");
        }
    }

    #[test]
    fn open_troubles_are_in_the_order_in_which_they_began_last() {
        use EventKind::{Decision, Started, Stopped, TroubleBegins, TroubleEnds};
        let event = |(kind, about, level): (EventKind, &str, &str)| Event {
            kind,
            about: about.into(),
            level: level.into(),
            ..Event::default()
        };
        let all = [
            (TroubleBegins, "z", "warning"),
            (Started, "", ""),
            (TroubleBegins, "c", "warning"),
            (TroubleBegins, "b", "critical"),
            (TroubleBegins, "b", "warning"),
            (TroubleBegins, "a", "warning"),
            (Decision, "a", "warning"),
            (TroubleBegins, "c", "warning"),
            (TroubleEnds, "b", "warning"),
            (Stopped, "", ""),
        ];
        let all: Vec<Event> = all.into_iter().map(event).collect();
        let open = open_troubles(all.iter());
        let names: Vec<(&str, &str)> = open.iter().map(|one| (one.about.as_str(), one.level.as_str())).collect();
        assert_eq!(names, [("b", "critical"), ("a", "warning"), ("c", "warning")]);
        assert!(std::ptr::eq(open[2], &all[7]), "the newest record of it");
    }

    #[test]
    fn a_folder_that_is_not_read_has_a_cure() {
        assert!(unread(Path::new("/evenkeel-none")).contains("name the folder `history`"));
        let path = std::env::temp_dir().join(format!("evenkeel-unread-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o000)).expect("its owner may");
        let is_refused = std::fs::read_dir(&path).is_err();
        let message = unread(&path);
        std::fs::remove_dir(&path).expect("removed");
        // Root may read every folder.
        assert_eq!(message.contains("run this command as the user"), is_refused, "{message}");
    }

    #[test]
    fn a_time_that_cannot_be_read_names_its_option() {
        let error = moment_of("--from", "noon", 0).expect_err("no time");
        assert!(error.is::<Usage>() && error.to_string().starts_with("--from: \"noon\" is not a time"), "{error}");
    }
}
