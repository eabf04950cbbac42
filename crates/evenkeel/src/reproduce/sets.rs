//! The record of drawn sets: which constants were judged on which cases.
//!
//! A set that has been looked at is used up: controllers may be fitted to it. The record says how many were used.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use evenkeel_sim::experiment::Report;
use evenkeel_sim::experiment::harm::{Controller, constants};

/// Where the record is, from the root of the project.
pub(super) const FILE: &str = "docs/results/harm-sets.md";
/// What stands above the lines.
const HEAD: &str = "\
# Sets of drawn cases

`evenkeel reproduce harm --record` adds a line: the hash of the controllers' constants, the seed of the set that follows \
from it, and what came of admission control. Another hash draws another set ([reproduce.md](../reproduce.md#sets)).

| constants | seed | cases | harmed | gravely | helped |
|---|---|---|---|---|---|
";
const COLUMNS: usize = 6;

/// The constants of this program, and the sets that were drawn.
#[derive(Debug, PartialEq)]
pub(super) struct Sets {
    /// The hash of the constants, in hexadecimal.
    pub(super) constants: String,
    path: PathBuf,
    /// The hashes whose sets were used, with this one if its set is drawn; `None` without a record.
    used: Option<BTreeSet<String>>,
    /// The text of the record.
    text: String,
}

impl Sets {
    /// Reads the record. `drawn`: this run draws the set that belongs to the constants.
    ///
    /// # Errors
    /// When it cannot be read, or is none. A record that is not there is no error.
    pub(super) fn read(path: &Path, drawn: bool) -> anyhow::Result<Self> {
        let constants = format!("{:016x}", constants::hash());
        let (text, is_there) = match std::fs::read_to_string(path) {
            Ok(text) => (text, true),
            Err(error) if error.kind() == ErrorKind::NotFound => (HEAD.to_owned(), false),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let mut used = BTreeSet::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')).skip(2) {
            let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
            let is_hash = |text: &str| text.len() == 16 && text.chars().all(|c| c.is_ascii_hexdigit());
            ensure!(
                cells.len() == COLUMNS && is_hash(cells[0]),
                "{} line {}: no line of a record of sets, which has {COLUMNS} cells and begins with a hash of 16 digits; \
                 repair the line, or name another file with --sets",
                path.display(),
                number + 1
            );
            used.insert(cells[0].to_owned());
        }
        if drawn {
            used.insert(constants.clone());
        }
        Ok(Self { constants, path: path.to_owned(), used: is_there.then_some(used), text })
    }

    /// How many sets were used, if that is known.
    pub(super) fn used(&self) -> Option<usize> {
        self.used.as_ref().map(BTreeSet::len)
    }

    /// Adds this run to the record and writes it.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(super) fn record(&mut self, report: &Report) -> anyhow::Result<()> {
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
        if !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.text.push_str(&format!("| {} |\n", cells.join(" | ")));
        self.used.get_or_insert_default().insert(self.constants.clone());
        std::fs::write(&self.path, &self.text).with_context(|| {
            format!("cannot write {}; name a file in a folder that is there with --sets", self.path.display())
        })
    }

    /// The hash and the count, in a sentence each.
    pub(super) fn words(&self) -> String {
        let used = match self.used() {
            Some(1) => format!("1 set used so far ({}).", self.path.display()),
            Some(used) => format!("{used} sets used so far ({}).", self.path.display()),
            None => format!("Sets used so far: not known, {} is not there; name it with --sets.", self.path.display()),
        };
        format!("Constants {}. {used}", self.constants)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_sim::experiment::{Better, Row, Section};

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
        let folder = std::env::temp_dir().join(format!("evenkeel-sets-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("made");
        let path = folder.join("sets.md");
        let mut sets = Sets::read(&path, true).expect("no record is no error");
        assert!(sets.used().is_none() && sets.words().contains("--sets"), "{}", sets.words());
        sets.record(&report()).expect("written");
        sets.record(&report()).expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        let line = format!("| {} | 7 | 40 | 3 | 1 | 12 |\n", sets.constants);
        assert_eq!(text, format!("{HEAD}{line}{line}"));
        // A set of other constants.
        std::fs::write(&path, text + "| 0123456789abcdef | 1 | 60 | 0 | 0 | 1 |\n").expect("written");
        assert_eq!(Sets::read(&path, true).expect("a record").used(), Some(2));
        std::fs::write(&path, format!("{HEAD}| 0123456789abcdef | 1 | 60 | 0 | 0 | 1 |\n")).expect("written");
        assert_eq!(Sets::read(&path, false).expect("a record").used(), Some(1));
        assert_eq!(Sets::read(&path, true).expect("a record").used(), Some(2));
        std::fs::write(&path, format!("{HEAD}| none | 1 |\n")).expect("written");
        let error = format!("{:#}", Sets::read(&path, true).expect_err("no record"));
        assert!(error.contains("sets.md line 7") && error.contains("--sets"), "{error}");
        std::fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn the_record_of_the_project_is_one() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FILE);
        assert!(Sets::read(&path, false).expect("a record").used().is_some());
    }
}
