//! The record of drawn sets: which constants were judged on which cases.
//!
//! Once its results are known, a set is used up, because controllers may be fitted to it. The record lists the used sets.

use std::collections::BTreeSet;

use super::{Controller, constants};
use crate::experiment::Report;

/// The text of an empty record.
const HEAD: &str = "\
# Sets of drawn cases

`evenkeel reproduce harm --record` adds a line: the hash of the controllers' constants, the seed of the set that follows \
from it, what came of admission control, and where it ran. Another hash draws another set \
([sets](../guide/reproduce.md#sets)).

| constants | seed | cases | harmed | gravely | helped | date | commit | machine |
|---|---|---|---|---|---|---|---|---|
";
const COLUMNS: usize = 9;

/// The hash of this program's constants, and the record of the sets that were drawn.
#[derive(Debug, PartialEq)]
pub struct Sets {
    /// The hash of the constants, in hexadecimal.
    pub constants: String,
    /// The hashes whose sets were used, including `constants` if this run uses its set; `None` if there was no record.
    used: Option<BTreeSet<String>>,
    /// The whole text of the record.
    text: String,
}

impl Sets {
    /// Reads the record of earlier sets from `text`; `text` is `None` if there is no record. `drawn` is true if this run uses
    /// the set that belongs to the program's constants, so that the set counts as used.
    ///
    /// # Errors
    /// A message that names the first wrong line by its number.
    pub fn read(text: Option<String>, drawn: bool) -> Result<Self, String> {
        let constants = format!("{:016x}", constants::hash());
        let is_there = text.is_some();
        let text = text.unwrap_or_else(|| HEAD.to_owned());
        let mut used = BTreeSet::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')).skip(2) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let is_hash = |text: &str| text.len() == 16 && text.chars().all(|c| c.is_ascii_hexdigit());
            if cells.len() != COLUMNS || !is_hash(cells[0]) {
                return Err(format!(
                    "line {}: a row of drawn sets needs {COLUMNS} cells, the first a hash of 16 hexadecimal digits; \
                     repair the line, or name another file with --sets",
                    number + 1
                ));
            }
            used.insert(cells[0].to_owned());
        }
        if drawn {
            used.insert(constants.clone());
        }
        Ok(Self { constants, used: is_there.then_some(used), text })
    }

    /// The number of used sets; `None` if there was no record.
    pub fn used(&self) -> Option<usize> {
        self.used.as_ref().map(BTreeSet::len)
    }

    /// Adds a line about this run to the record. Returns the record's new text. `origin`: date, commit and machine of the run.
    pub fn record(&mut self, report: &Report, origin: [&str; 3]) -> &str {
        let admission = report.sections.iter().find(|section| section.title == Controller::Admission.name());
        let rows = admission.map_or(&[][..], |section| &section.rows);
        let of = |metric: &str| {
            let row = rows.iter().find(|row| row.metric == metric && row.method.is_none());
            row.and_then(|row| row.evenkeel).map_or_else(|| "-".to_owned(), |count| count.to_string())
        };
        let drawn = rows.first().and_then(|row| row.case.split(' ').nth(1)).unwrap_or("-");
        let cells = [
            self.constants.clone(),
            report.seed.to_string(),
            drawn.to_owned(),
            of("harmed"),
            of("harmed_gravely"),
            of("helped"),
        ];
        let cells: Vec<String> = cells.into_iter().chain(origin.map(|text| text.replace('|', "/"))).collect();
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text.push_str(&format!("| {} |\n", cells.join(" | ")));
        self.used.get_or_insert_default().insert(self.constants.clone());
        &self.text
    }

    /// One sentence with the hash of the constants, and one with the number of used sets. `file`: path of the record.
    pub fn words(&self, file: &str) -> String {
        let used = match self.used() {
            Some(1) => format!("1 set of drawn cases used so far (record: {file})."),
            Some(used) => format!("{used} sets of drawn cases used so far (record: {file})."),
            None => format!("Number of sets used so far: unknown, as the record {file} does not exist; set --sets."),
        };
        format!("Hash of the controllers' constants: {}. {used}", self.constants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Better, Row, Section};

    fn report() -> Report {
        let row = |metric: &str, count| Row {
            evenkeel: Some(count),
            ..Row::new("admission, 40 drawn cases", metric, "cases", Better::Lower)
        };
        let rows = vec![row("harmed", 3.0), row("harmed_gravely", 1.0), row("helped", 12.0)];
        Report {
            experiment: "harm",
            seed: 7,
            intro: Vec::new(),
            sections: vec![Section { title: "admission".into(), rows, ..Section::default() }],
            claims: Vec::new(),
        }
    }

    #[test]
    fn each_hash_counts_once_and_lines_that_are_none_are_refused() {
        let mut sets = Sets::read(None, true).expect("no record is no error");
        assert!(sets.used().is_none() && sets.words("sets.md").contains("--sets"), "{}", sets.words("sets.md"));
        let line = format!("| {} | 7 | 40 | 3 | 1 | 12 | 2026-01-02 | abc | M/N, 2 cores |\n", sets.constants);
        let origin = ["2026-01-02", "abc", "M|N, 2 cores"];
        sets.record(&report(), origin);
        let text = sets.record(&report(), origin).to_owned();
        assert_eq!(text, format!("{HEAD}{line}{line}"));
        // A set of other constants.
        let other = "| 0123456789abcdef | 1 | 60 | 0 | 0 | 1 | 2026-01-01 | abc | M |\n";
        let used = |text: String, drawn| Sets::read(Some(text), drawn).expect("a record").used();
        assert_eq!(used(text + other, true), Some(2));
        assert_eq!(used(format!("{HEAD}{other}"), false), Some(1));
        assert_eq!(used(format!("{HEAD}{other}"), true), Some(2));
        let error = Sets::read(Some(format!("{HEAD}| none | 1 |\n")), true).expect_err("no record");
        assert!(error.contains("line 7") && error.contains("--sets"), "{error}");
    }

    #[test]
    fn the_record_of_the_project_is_one() {
        let text = include_str!("../../../../../docs/results/harm-sets.md").to_owned();
        assert!(Sets::read(Some(text), false).expect("a record").used().is_some());
    }
}
