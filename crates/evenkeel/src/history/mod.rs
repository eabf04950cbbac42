//! `evenkeel history`: figures, decisions and troubles of the past, from a running server or agent or from its folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use evenkeel_net::http::Place;
use evenkeel_policy::history::History;
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
    let history = fetch(args.dir.as_deref(), &args.reach, query)?;
    if args.csv {
        return output::print(&csv::of(&history));
    }
    output::show(args.json, &history, |history| text::of(history, zone::local))
}

/// The answer to a question, made of as many as it takes: from the folder `dir`, else from the program that `reach` names.
///
/// # Errors
/// A server, an agent or a folder that does not answer.
pub(crate) fn fetch(dir: Option<&Path>, reach: &Reach, query: Query) -> anyhow::Result<History> {
    let places = if dir.is_some() { Vec::new() } else { reach.places()? };
    fetch_from(dir, &places, query)
}

/// As [`fetch`], from the first of `places` that answers if there is no folder.
///
/// # Errors
/// As [`fetch`].
pub(crate) fn fetch_from(dir: Option<&Path>, places: &[Place], mut query: Query) -> anyhow::Result<History> {
    let mut place: Option<&Place> = None;
    let mut ask = |query: &Query| -> anyhow::Result<History> {
        if let Some(folder) = dir {
            return answer(folder, query).with_context(|| {
                format!(
                    "no history in {}; name the folder `history` in the data folder of a server or an agent",
                    folder.display()
                )
            });
        }
        let path = asked(query);
        let text = match place {
            Some(place) => get(place, &path, PATIENCE)?,
            None => {
                let (answering, text) = first(places, &path, PATIENCE).context(
                    "the history was not read; --dir DATA_DIR/history reads that of a program that does not run",
                )?;
                place = Some(answering);
                text
            }
        };
        serde_json::from_str(&text)
            .context("the program speaks another version of the API: use its version of evenkeel")
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
    use super::*;

    #[test]
    fn a_question_is_a_path() {
        let query = Query { from: 5, to: 9, step: Some(1), pool: Some("a b".into()), tenant: Some(String::new()) };
        assert_eq!(asked(&query), "/api/v1/history?from=5&to=9&step=1&pool=a%20b&tenant=");
        assert_eq!(asked(&Query { from: 5, to: 9, ..Query::default() }), "/api/v1/history?from=5&to=9");
    }

    #[test]
    fn a_time_that_cannot_be_read_names_its_option() {
        let error = moment_of("--from", "noon", 0).expect_err("no time");
        assert!(error.is::<Usage>() && error.to_string().starts_with("--from: \"noon\" is no time"), "{error}");
    }
}
