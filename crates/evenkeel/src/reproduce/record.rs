//! `evenkeel reproduce NAME --record`: writes the experiment's section of `docs/results/papers.md`.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use evenkeel_record::Origin;

use super::Experiment;

/// The file of recorded results, relative to the root of a checkout of Evenkeel.
pub(super) const FILE: &str = "docs/results/papers.md";

/// The text of the file above the sections.
const HEAD: &str = "\
# Reproduced papers: output

`evenkeel reproduce NAME --record` writes the section of an experiment. [README](../../README.md#the-five-papers) quotes \
them. Figures are in virtual time and the same on every machine; running times are not.
";

/// The facts about one run that the heading of its section names.
pub(super) struct Section {
    pub(super) experiment: Experiment,
    pub(super) seed: u64,
    pub(super) quick: bool,
    /// Number of seeds, if it is not the experiment's own.
    pub(super) seeds: Option<u16>,
    /// Running time of the experiment and number of threads, as text such as `90 s on 2 threads`.
    pub(super) took: String,
}

impl Section {
    /// The command line that repeats the run.
    fn command(&self) -> String {
        let mut command = format!("evenkeel reproduce {}", name(self.experiment));
        if self.seed != 1 {
            let _ = write!(command, " --seed {}", self.seed);
        }
        if let Some(seeds) = self.seeds {
            let _ = write!(command, " --seeds {seeds}");
        }
        command + if self.quick { " --quick --record" } else { " --record" }
    }

    /// The section as Markdown: the experiment's name as heading, the line about the run, and the output.
    fn text(&self, origin: &Origin, output: &str) -> String {
        let line = origin.line(&self.command(), Some(self.seed), &self.took);
        format!("## {}\n\n{line}\n\n```\n{}\n```\n", name(self.experiment), output.trim_end())
    }
}

/// Date, commit of the checkout in the current folder, and machine.
///
/// # Errors
/// When the current folder is not the root of a checkout with [`FILE`].
pub(super) fn origin() -> anyhow::Result<Origin> {
    let cure = "results are written into docs/results of Evenkeel's sources: run it in their root folder";
    anyhow::ensure!(Path::new(FILE).exists(), "{FILE} is not in this folder; {cure}");
    Origin::now(Path::new(".")).context(cure)
}

/// Replaces the experiment's section in [`FILE`], or adds it.
///
/// # Errors
/// When the file cannot be read or written.
pub(super) fn write(section: &Section, origin: &Origin, output: &str) -> anyhow::Result<()> {
    let page = std::fs::read_to_string(FILE).with_context(|| format!("cannot read {FILE}"))?;
    let page = replaced(&page, section.experiment, &section.text(origin, output));
    std::fs::write(FILE, page).with_context(|| format!("cannot write {FILE}"))
}

/// `page` with `section` in place of the experiment's old section. The sections come in the order of [`Experiment`]; [`HEAD`]
/// replaces all text outside of sections.
fn replaced(page: &str, experiment: Experiment, section: &str) -> String {
    let mut text = HEAD.to_owned();
    for each in Experiment::value_variants() {
        let kept = if *each == experiment { Some(section.to_owned()) } else { of(page, *each) };
        if let Some(kept) = kept {
            text = text + "\n" + kept.trim_end() + "\n";
        }
    }
    text
}

/// The section of an experiment in `page`; `None` if there is none.
fn of(page: &str, experiment: Experiment) -> Option<String> {
    let heading = format!("## {}", name(experiment));
    let mut lines = page.lines().skip_while(|line| *line != heading);
    let first = lines.next()?;
    let rest = lines.take_while(|line| !line.starts_with("## "));
    Some(std::iter::once(first).chain(rest).collect::<Vec<_>>().join("\n"))
}

/// Name of the experiment on the command line.
pub(super) fn name(experiment: Experiment) -> String {
    experiment.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTION: Section =
        Section { experiment: Experiment::Saat, seed: 7, quick: true, seeds: Some(30), took: String::new() };

    #[test]
    fn a_section_replaces_its_own_alone_and_takes_its_place_in_order() {
        let origin = Origin { date: "2026-01-02".into(), commit: "abc".into(), machine: "M".into() };
        let section = |took: &str| Section { took: took.into(), ..SECTION }.text(&origin, "ROWS\n  1\n");
        let expected = "## saat\n\n`evenkeel reproduce saat --seed 7 --seeds 30 --quick --record`: seed 7, 2026-01-02, \
                        commit abc, 3 s. Machine: M.\n\n```\nROWS\n  1\n```\n";
        assert_eq!(section("3 s"), expected);
        let others = ["## iscsi\n\none\n", "## drg\n\ntwo\n"];
        let page = format!("text\n\n{}\n{}", others[1], others[0]);
        let once = replaced(&page, Experiment::Saat, &section("1 s"));
        let twice = replaced(&once, Experiment::Saat, &section("3 s"));
        assert_eq!(twice, format!("{HEAD}\n{}\n{expected}\n{}", others[0], others[1]));
    }

    #[test]
    fn the_page_of_the_project_stays_as_it_is_when_a_section_is_written_again() {
        let page = include_str!("../../../../docs/results/papers.md");
        let sections = Experiment::value_variants().iter().filter_map(|each| Some((*each, of(page, *each)?)));
        let mut found = 0;
        for (experiment, section) in sections {
            let command = format!("\n\n`evenkeel reproduce {}", name(experiment));
            assert!(section.contains(&command) && section.contains("`: seed "), "{section:.200}");
            assert_eq!(replaced(page, experiment, &section), page, "{experiment:?}");
            found += 1;
        }
        assert!(found >= 4, "{found} sections");
    }
}
