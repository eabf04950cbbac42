use std::path::Path;

use evenkeel_sim::experiment::{Better, Claim, Report, Row, Section};

use super::sets::Sets;
use super::{page, rows, table};

fn report() -> Report {
    let main = Row {
        baseline: Some(40.0),
        faithful: Some(8.0),
        evenkeel: Some(4.5),
        half_width: Some(0.25),
        bar: Some(4.0),
        ..Row::new("store, <4 KiB>", "light_p99_ms", "ms", Better::Lower)
    };
    let other = Row { method: Some("theta".to_owned()), baseline: Some(6.0), bar: None, ..main.clone() };
    let unknown = Row { baseline: Some(f64::INFINITY), ..Row::new("store", "budget_kib", "KiB", Better::Lower) };
    Report {
        experiment: "bufferbloat",
        seed: 7,
        intro: vec!["About it.".to_owned()],
        sections: vec![Section { title: "Part".to_owned(), rows: vec![main, other, unknown], ..Section::default() }],
        claims: vec![Claim {
            source: "fig. 5",
            text: "Something rises.".to_owned(),
            reproduced: false,
            numbers: "one two three four five six seven eight ".repeat(4),
        }],
    }
}

#[test]
fn rows_are_written_as_described() {
    let document = serde_json::to_value(rows::document(&report(), None)).unwrap();
    assert_eq!((&document["experiment"], &document["seed"]), (&"bufferbloat".into(), &7.into()));
    let rows = document["rows"].as_array().unwrap();
    let keys = ["case", "metric", "unit", "better", "paper", "baseline", "faithful", "evenkeel"];
    assert!(rows.iter().all(|row| keys.iter().all(|key| row.get(key).is_some())));
    assert_eq!(rows[0]["metric"], "light_p99_ms");
    assert_eq!((rows[0]["better"].as_str(), rows[0]["paper"].is_null()), (Some("lower"), true));
    assert_eq!((rows[1]["metric"].as_str(), rows[1]["baseline"].as_f64()), (Some("light_p99_ms_theta"), Some(6.0)));
    assert!(rows[2]["baseline"].is_null(), "JSON has no infinity");
    assert!(document.get("constants").is_none(), "no set was drawn");
    let sets = Sets::read(Path::new("/nowhere/sets.md"), true).unwrap();
    let document = serde_json::to_value(rows::document(&report(), Some(&sets))).unwrap();
    assert_eq!(document["constants"], sets.constants.as_str());
    assert!(document.get("sets_used").is_none(), "not known");
}

#[test]
fn text_names_what_was_missed_and_what_was_not_reproduced() {
    let text = table::text(&report());
    assert!(text.contains("BARS: 0 of 1 met"), "{text}");
    assert!(text.contains("missed: store, <4 KiB>: light_p99_ms 4.5 ms, bar 4"), "{text}");
    assert!(text.contains("0 of 1 reproduced") && text.contains("NO   Something rises. (fig. 5)"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn a_page_shows_every_method() {
    let html = page::page(&report(), true).html();
    for expected in ["theta", "evenkeel reproduce bufferbloat --seed 7 --quick", "Something rises."] {
        assert!(html.contains(expected), "{expected}");
    }
    assert!(!html.contains("<4 KiB>"));
}

/// The parser is asked as the program asks it: names of options and their groups are checked with it.
#[test]
fn options_for_harm_are_read_and_others_are_refused() {
    use clap::{Args as _, FromArgMatches as _};
    let parse = |words: &[&str]| {
        let command = super::Args::augment_args(clap::Command::new("reproduce"));
        let matches = command.try_get_matches_from([&["reproduce"], words].concat())?;
        super::Args::from_arg_matches(&matches)
    };
    let args =
        parse(&["harm", "--cases", "40", "--controller", "slots", "--write-failures", "failures", "--record"]).unwrap();
    assert_eq!((args.seed, args.harm.given()), (None, Some("--cases")));
    for refused in
        [&["harm", "--cases", "1001"][..], &["harm", "--cases", "9", "--quick"], &["harm", "--seed", "1", "--record"]]
    {
        assert!(parse(refused).is_err(), "{refused:?}");
    }
    let error = super::show(&parse(&["drg", "--record"]).unwrap()).unwrap_err();
    assert!(error.to_string().contains("--record is for harm"), "{error}");
}
