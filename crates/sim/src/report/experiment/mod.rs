//! The report of an experiment as text, as rows of JSON and as an HTML page.

mod page;
mod rows;
mod table;

pub use page::page;
pub use rows::{Document, document};
pub use table::text;

/// The distinct names in `names`, in the order of their first appearance.
fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut seen = Vec::new();
    for name in names {
        if !seen.contains(&name) {
            seen.push(name);
        }
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::page;
    use crate::experiment::{Better, Claim, End, Report, Row, Section};

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
            sections: vec![Section {
                title: "Part".to_owned(),
                rows: vec![main, other, unknown],
                ..Section::default()
            }],
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
        let document = serde_json::to_value(super::document(&report(), None, None)).unwrap();
        assert_eq!((&document["experiment"], &document["seed"]), (&"bufferbloat".into(), &7.into()));
        let rows = document["rows"].as_array().unwrap();
        let keys = ["case", "metric", "unit", "better", "paper", "baseline", "faithful", "evenkeel"];
        assert!(rows.iter().all(|row| keys.iter().all(|key| row.get(key).is_some())));
        assert_eq!(rows[0]["metric"], "light_p99_ms");
        assert_eq!((rows[0]["better"].as_str(), rows[0]["paper"].is_null()), (Some("lower"), true));
        assert_eq!((rows[1]["metric"].as_str(), rows[1]["baseline"].as_f64()), (Some("light_p99_ms_theta"), Some(6.0)));
        assert!(rows[2]["baseline"].is_null(), "JSON has no infinity");
        assert!(document.get("constants").is_none(), "no set was drawn");
        let document = serde_json::to_value(super::document(&report(), Some("0123456789abcdef"), None)).unwrap();
        assert_eq!(document["constants"], "0123456789abcdef");
        assert!(document.get("sets_used").is_none(), "not known");
    }

    #[test]
    fn text_names_what_was_missed_and_what_was_not_reproduced() {
        let text = super::text(&report());
        assert!(text.contains("BARS: 0 of 1 met"), "{text}");
        assert!(text.contains("missed: store, <4 KiB>: light_p99_ms 4.5 ms, bar 4"), "{text}");
        assert!(text.contains("0 of 1 reproduced") && text.contains("NO   Something rises. (fig. 5)"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }

    #[test]
    fn text_has_what_sections_say_and_methods_without_a_column_and_the_limits() {
        let mut report = report();
        report.sections[0].text = vec!["Without a bar: the store.".to_owned()];
        let text = super::text(&report);
        let all = ["About it.", "Without a bar: the store.", "  others  store, <4 KiB>: theta 6", "\nLIMITS\n  - "];
        let places = all.map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}")));
        assert!(places.is_sorted(), "{places:?}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        assert!(page(&report, false, None).html().contains("\"Limits\""));
        report.experiment = crate::experiment::harm::NAME;
        let text = super::text(&report);
        assert!(all.iter().all(|part| !text.contains(part)), "{text}");
    }

    #[test]
    fn ends_of_intervals_have_a_table_of_their_own_and_suffixes_in_json() {
        let mut report = report();
        let ends = [(End::Low, -36.5, -4.25), (End::High, -34.5, -2.75)];
        let rows = &mut report.sections[0].rows;
        let row = rows[0].clone();
        rows.extend(ends.map(|(end, baseline, faithful)| Row {
            baseline: Some(baseline),
            faithful: Some(faithful),
            end: Some(end),
            bar: None,
            ..row.clone()
        }));
        let text = super::text(&report);
        let of = |number: f64| crate::report::short(number);
        let differences = [(-36.5, -34.5), (-4.25, -2.75)].map(|(low, high)| format!("{} to {}", of(low), of(high)));
        let line = text.lines().find(|line| line.contains(&differences[0])).expect("a line");
        assert!(line.starts_with("  store, <4 KiB>") && line.ends_with(&differences[1]), "{line}");
        assert_eq!(text.matches("store, <4 KiB>: light_p99_ms").count(), 1, "ends miss no bar: {text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
        let html = page(&report, false, None).html();
        assert!(html.contains("paired by seed") && differences.iter().all(|each| html.contains(each)));
        let document = serde_json::to_value(super::document(&report, None, None)).unwrap();
        let rows = document["rows"].as_array().unwrap();
        let low = rows.iter().find(|row| row["metric"] == "light_p99_ms_low").expect("a row");
        assert_eq!((low["baseline"].as_f64(), low["faithful"].as_f64()), (Some(-36.5), Some(-4.25)));
        assert!(rows.iter().any(|row| row["metric"] == "light_p99_ms_high"));
    }

    #[test]
    fn a_page_shows_every_method() {
        let html = page(&report(), true, Some(3)).html();
        for expected in ["theta", "evenkeel reproduce bufferbloat --seed 7 --quick --seeds 3", "Something rises."] {
            assert!(html.contains(expected), "{expected}");
        }
        assert!(!html.contains("<4 KiB>"));
    }
}
