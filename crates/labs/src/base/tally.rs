//! Counts passed, failed and skipped checks from the output of test programs and labs.

use std::collections::BTreeMap;

/// The checks of one step of a test run, or of several steps together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of checks that passed.
    pub passed: u64,
    /// Names of the checks that failed.
    pub failed: Vec<String>,
    /// Checks that did not run: name, and reason.
    pub skipped: BTreeMap<String, String>,
}

impl Tally {
    /// The result of one passed check.
    pub fn one_passed() -> Self {
        Self { passed: 1, ..Self::default() }
    }

    /// The result of one failed check.
    pub fn one_failed(name: impl Into<String>) -> Self {
        Self { failed: vec![name.into()], ..Self::default() }
    }

    /// The result of one skipped check.
    pub fn one_skipped(name: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { skipped: BTreeMap::from([(name.into(), reason.into())]), ..Self::default() }
    }

    /// Adds the results of another step.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
    }

    /// Counts as skipped those tests of `program` that passed only because something they need is missing. The tests wrote
    /// `log`, whose lines have the form `name: reason`.
    pub fn apply_skip_log(&mut self, program: &str, log: &str) {
        for line in log.lines() {
            let (name, reason) = line.split_once(": ").unwrap_or((line, "no reason given"));
            // A test that skipped a part of itself and then failed has failed.
            let failed = self.failed.iter().any(|failed| failed == name);
            if !failed && self.skipped.insert(format!("{program} {name}"), reason.to_owned()).is_none() {
                self.passed = self.passed.saturating_sub(1);
            }
        }
    }
}

/// Parser of the output of a test program, or of `cargo test --doc`.
///
/// Totals come from the summary line of each test program, not from the lines of single tests, as a child process of a test
/// may write into these. A program that announces more tests than its summary counts has died.
#[derive(Debug, Default)]
pub struct Harness {
    tally: Tally,
    announced: Option<u64>,
    named_failures: Vec<String>,
    program: String,
    /// True if the summary line of the present program was read.
    summed_up: bool,
}

impl Harness {
    /// A parser of the output of the test program with this name; the output does not contain the name.
    pub fn of(program: &str) -> Self {
        Self { program: program.to_owned(), ..Self::default() }
    }

    /// Parses one line.
    pub fn line(&mut self, line: &str) {
        let text = line.trim_start();
        if let Some(package) = text.strip_prefix("Doc-tests ") {
            self.close();
            self.program = format!("doc-tests of {package}");
        } else if let Some(count) = announced(text) {
            self.close();
            self.announced = Some(count);
        } else if let Some(counts) = summary(text) {
            self.sum_up(counts);
        } else if let Some(name) = text.strip_prefix("test ") {
            if let Some(name) = name.strip_suffix(" ... FAILED") {
                self.named_failures.push(name.to_owned());
            } else if let Some((name, reason)) = name.split_once(" ... ignored") {
                let reason = reason.trim_start_matches(", ");
                let reason = if reason.is_empty() { "ignored" } else { reason };
                self.tally.skipped.insert(format!("{} {name}", self.program), reason.to_owned());
            }
        }
    }

    /// The result after the last line of output. `success`: the program's exit status was success.
    pub fn finish(mut self, success: bool) -> Tally {
        self.close();
        if self.tally.failed.is_empty() && !(success && self.summed_up) {
            let how = if success { "without a summary of its tests" } else { "with an error, and no test failed" };
            self.tally.failed.push(format!("{} ended {how}", self.program));
        }
        self.tally
    }

    fn sum_up(&mut self, [passed, failed, ignored]: [u64; 3]) {
        self.summed_up = true;
        let announced = self.announced.take().unwrap_or(0);
        self.tally.passed += passed;
        let named = std::mem::take(&mut self.named_failures);
        let unnamed = failed.saturating_sub(named.len() as u64);
        self.tally.failed.extend(named);
        for _ in 0..unnamed {
            self.tally.failed.push(format!("a test of {} (its name was lost)", self.program));
        }
        for _ in passed + failed + ignored..announced {
            self.tally.failed.push(format!("a test of {} without a result", self.program));
        }
    }

    /// Handles the end of a program's output. A program without a summary counts as one more failure.
    fn close(&mut self) {
        if let Some(count) = self.announced.take() {
            self.tally.failed.append(&mut self.named_failures);
            self.tally.failed.push(format!("{} died with {count} tests announced", self.program));
        }
    }
}

/// Parser of the output of a lab, which has a line for each check.
#[derive(Debug, Default)]
pub struct Lines(Tally);

impl Lines {
    /// Parses one line.
    pub fn line(&mut self, line: &str) {
        let Some(check) = line.strip_prefix("test lab::") else { return };
        if check.ends_with(" ... ok") {
            self.0.passed += 1;
        } else if let Some(name) = check.strip_suffix(" ... FAILED") {
            self.0.failed.push(format!("lab::{name}"));
        }
    }

    /// The result after the last line of output. `success`: the lab's exit status was success. A lab without checks has failed.
    pub fn finish(mut self, name: &str, success: bool) -> Tally {
        if self.0.failed.is_empty() && (!success || self.0.passed == 0) {
            self.0.failed.push(format!("{name} ended without a verdict"));
        }
        self.0
    }
}

/// The number in a line like `running 12 tests`.
fn announced(line: &str) -> Option<u64> {
    let count = line.strip_prefix("running ")?;
    count.strip_suffix(" tests").or_else(|| count.strip_suffix(" test"))?.parse().ok()
}

/// The numbers of passed, failed and ignored tests in a summary line: `test result: ok. 5 passed; 0 failed; 1 ignored; ...`.
fn summary(line: &str) -> Option<[u64; 3]> {
    let counts = line.split_once("test result: ")?.1.split_once(". ")?.1;
    let mut counts = counts.split("; ");
    let mut next = |word: &str| counts.next()?.trim().strip_suffix(word)?.trim().parse().ok();
    Some([next("passed")?, next("failed")?, next("ignored")?])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, success: bool) -> Tally {
        let mut harness = Harness::of("x");
        text.lines().for_each(|l| harness.line(l));
        harness.finish(success)
    }

    #[test]
    fn passed_failed_and_ignored_are_counted() {
        let tally = read(
            "running 4 tests\ntest a ... ok\n\
             test b ... FAILED\ntest c ... ignored, needs root\ntest d server said: listening\nok\n\
             test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.1s\n",
            false,
        );
        assert_eq!(tally.passed, 2);
        assert_eq!(tally.failed, ["b"]);
        assert_eq!(tally.skipped["x c"], "needs root");
    }

    #[test]
    fn a_test_program_that_dies_is_a_failure() {
        let text = "   Doc-tests a\nrunning 3 tests\ntest b ... FAILED\n   Doc-tests c\n\
                    running 1 test\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let tally = read(text, true);
        assert_eq!(tally.passed, 1);
        assert_eq!(tally.failed, ["b", "doc-tests of a died with 3 tests announced"]);
    }

    #[test]
    fn a_program_that_names_no_failure_and_no_summary_has_failed() {
        let failed = |text, success| read(text, success).failed.join("; ");
        assert_eq!(failed("error: could not compile\n", false), "x ended with an error, and no test failed");
        assert_eq!(failed("", true), "x ended without a summary of its tests");
        // A line that a test prints is not one of the harness.
        assert_eq!(failed("     Running tests/y.rs (t)\n", true), "x ended without a summary of its tests");
        let none = "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        assert_eq!(failed(none, true), "");
    }

    #[test]
    fn a_lab_is_counted_by_its_checks() {
        let read = |text: &str, success: bool| {
            let mut lines = Lines::default();
            text.lines().for_each(|line| lines.line(line));
            lines.finish("slots", success)
        };
        let one = "lab: told\ntest lab::slots::a ... ok\n";
        assert_eq!(read(one, true), Tally::one_passed());
        let two = read(&format!("{one}test lab::slots::b ... FAILED\n"), false);
        assert_eq!((two.passed, two.failed), (1, vec!["lab::slots::b".to_owned()]));
        assert_eq!(read(one, false).failed.len(), 1);
        assert_eq!(read("", true).failed.len(), 1);
    }

    #[test]
    fn tests_without_their_peer_are_skipped_not_passed() {
        let mut tally = Tally { passed: 3, ..Tally::default() };
        tally.failed.push("a::failed".into());
        tally.apply_skip_log("x", "a::with_fio: no fio: 2\na::with_fio: no fio: 2\na::failed: no fio\n");
        assert_eq!((tally.passed, tally.skipped.len()), (2, 1));
        assert_eq!(tally.skipped["x a::with_fio"], "no fio: 2");
    }
}
