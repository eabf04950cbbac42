//! `evenkeel health`: the troubles of a server or an agent, for people and for monitoring systems.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use evenkeel_net::http::Place;
use evenkeel_policy::health::{Health, Level, Trouble};

use crate::control::{Reach, first};
use crate::history::wrapped;
use crate::output;

/// Time limit for each part of an answer; monitoring systems give up after 10 s.
const PATIENCE: Duration = Duration::from_secs(5);
/// Exit status when the health is not known: no server or agent answers, or the command line cannot be used.
const UNKNOWN: u8 = 3;

/// Arguments of `health`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    reach: Reach,

    /// Print the troubles as JSON, as /api/v1/health does
    #[arg(long)]
    json: bool,
}

/// Prints the troubles of a server or an agent, worst first. Returns the exit status: 0 to 2 for the worst trouble, 3 if
/// there is no answer.
pub(crate) fn run(args: &Args) -> ExitCode {
    let printed = ask(args).and_then(|(health, from)| {
        output::show(args.json, &health, |health| text(health, &from))?;
        Ok(status(health.level))
    });
    printed.map_or_else(|error| unknown(&format!("{error:#}")), ExitCode::from)
}

/// Says why the health is not known, for monitoring systems, which show the first line of standard output and expect figures
/// behind a `|`. Returns the exit status.
pub(crate) fn unknown(why: &str) -> ExitCode {
    output::say(&format!("EVENKEEL UNKNOWN: {}\n", why.trim_end().replace('|', " ")));
    ExitCode::from(UNKNOWN)
}

/// True if the words of a command line name the command `health`, also if the command line cannot be used.
pub(crate) fn is_named(words: &[OsString]) -> bool {
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        match word.to_str() {
            Some("--log") => {
                words.next();
            }
            Some(option) if option.starts_with('-') => {}
            other => return other == Some("health"),
        }
    }
    false
}

/// A text as a part of the first line for monitoring systems: behind a `|` they expect figures.
fn in_a_line(text: &str) -> String {
    text.replace(['\n', '|'], " ")
}

/// The health, and the place that has answered, for the first line.
fn ask(args: &Args) -> anyhow::Result<(Health, String)> {
    let places = args.reach.places()?;
    let (place, text) = first(&places, "/api/v1/health", PATIENCE)?;
    let health = serde_json::from_str::<Health>(&text);
    let health =
        health.context("the server speaks another version of the API: use the server's version of evenkeel")?;
    Ok((health, answered(place, places.len())))
}

/// The words that name the place that has answered, if it is one of several: the health may be that of an agent beside a server
/// that has ended.
fn answered(place: &Place, places: usize) -> String {
    if places > 1 { format!(" [{place}]") } else { String::new() }
}

/// The exit status for a level, as plugins of Nagios and similar monitoring systems have it.
const fn status(level: Level) -> u8 {
    match level {
        Level::Ok => 0,
        Level::Warning => 1,
        Level::Critical => 2,
    }
}

/// The output as text: a first line with the worst trouble, for monitoring systems, then all troubles with their cures. `from`:
/// words for the end of the first line.
fn text(health: &Health, from: &str) -> String {
    let worst = health.troubles.first().map_or_else(|| "no troubles".to_owned(), |worst| in_a_line(&worst.sentence()));
    let more = match health.troubles.len() {
        0 | 1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let mut text = format!("EVENKEEL {}: {worst}{more}{}\n", health.level.word(), in_a_line(from));
    for trouble in &health.troubles {
        let _ = write!(text, "\n{}: {}\n", trouble.level.word(), trouble.sentence());
        if !trouble.cure.is_empty() {
            let _ = writeln!(text, "  what to do: {}", trouble.cure);
        }
    }
    text
}

/// Troubles as text for a terminal of 80 columns, each with its level and its cure.
pub(crate) fn with_cures(troubles: &[Trouble]) -> String {
    let mut out = String::new();
    for trouble in troubles {
        out += &wrapped("", &format!("{}: {}", trouble.level.word(), trouble.sentence()), 2);
        if !trouble.cure.is_empty() {
            out += &wrapped("  what to do: ", &trouble.cure, 4);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_for_monitoring_systems_and_the_others_are_for_people() {
        assert_eq!(text(&Health::default(), ""), "EVENKEEL OK: no troubles\n");
        let health = Health::of(vec![
            Trouble::warning("draining", "", "the server is stopping", ""),
            Trouble::new(Level::Critical, "io_errors", "volume db", "12 requests failed", "make room"),
        ]);
        assert_eq!(
            text(&health, ""),
            "EVENKEEL CRITICAL: volume db: 12 requests failed (and 1 more)\n\
             \nCRITICAL: volume db: 12 requests failed\n  what to do: make room\n\
             \nWARNING: the server is stopping\n"
        );
    }

    #[test]
    fn troubles_with_cures_fit_a_terminal() {
        let cure = "make room on the file system of /srv/db.img, or raise the quota or size limit: `df /srv/db.img`";
        let full = Trouble::new(Level::Critical, "io_errors", "volume db", "12 requests failed", cure);
        let text = with_cures(&[full, Trouble::warning("note", "", "it is late", "")]);
        assert!(text.starts_with("CRITICAL: volume db: 12 requests failed\n  what to do: make room on "), "{text}");
        assert!(text.ends_with("\nWARNING: it is late\n"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }

    #[test]
    fn the_first_line_is_one_line_without_figures() {
        let broken = Trouble::new(Level::Critical, "io_errors", "volume db", "read: a | b\nc", "");
        let text = text(&Health::of(vec![broken]), "");
        assert_eq!(text.lines().next(), Some("EVENKEEL CRITICAL: volume db: read: a   b c"));
    }

    #[test]
    fn the_first_line_names_the_place_unless_the_options_do() {
        let agent = Place::Plain("127.0.0.1".into(), 9810);
        let text = |places| text(&Health::default(), &answered(&agent, places));
        assert_eq!(text(3), "EVENKEEL OK: no troubles [http://127.0.0.1:9810]\n");
        assert_eq!(text(1), "EVENKEEL OK: no troubles\n");
    }

    #[test]
    fn a_command_line_that_cannot_be_used_is_still_one_of_health() {
        let is_named = |line: &str| is_named(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in ["evenkeel health --stats", "evenkeel --log info health", "evenkeel --log=info health -x"] {
            assert!(is_named(line), "{line}");
        }
        for line in ["evenkeel", "evenkeel --log health", "evenkeel tenant show health", "evenkeel top"] {
            assert!(!is_named(line), "{line}");
        }
    }

    #[test]
    fn exit_statuses_are_those_of_plugins() {
        assert_eq!([Level::Ok, Level::Warning, Level::Critical].map(status), [0, 1, 2]);
    }
}
