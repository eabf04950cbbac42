//! Steps of a lab: taken in the guest, told on its console, counted on the host.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Lab, vm};

const PASSED: &str = "lab: passed ";
const FAILED: &str = "lab: failed ";

/// In the guest: tells what came of a step.
pub(super) fn tell(name: &str, outcome: Result<String>) {
    match outcome {
        Ok(detail) => println!("{PASSED}{name} {detail}"),
        Err(e) => println!("{FAILED}{name} {}", format!("{e:#}").replace('\n', " ")),
    }
}

/// On the host: counts steps, as lines of a console tell them.
#[derive(Debug)]
pub(super) struct Steps {
    pub(super) taken: usize,
    /// When the last one ended.
    pub(super) since: Instant,
}

impl Steps {
    pub(super) fn new() -> Self {
        Self { taken: 0, since: Instant::now() }
    }

    /// A line of the console: a step, or something else to show.
    pub(super) fn hear(&mut self, lab: &mut Lab, line: &str) {
        let passed = line.strip_prefix(PASSED);
        if let Some(text) = passed.or_else(|| line.strip_prefix(FAILED)) {
            let (name, detail) = text.split_once(' ').unwrap_or((text, ""));
            self.taken += 1;
            lab.check(name, passed.is_some(), detail);
            println!("lab: {name} took {:.0} s", self.since.elapsed().as_secs_f64());
            self.since = Instant::now();
        } else if line.starts_with("lab: ") || line.starts_with("Error") {
            println!("{line}");
        }
    }
}

/// On the host: reports the steps of a guest until it ends, `expected` of them.
pub(super) fn report(lab: &mut Lab, guest: vm::Guest, limit: Duration, expected: usize) -> Result<()> {
    let mut steps = Steps::new();
    guest.finish(limit, |line| steps.hear(lab, line))?;
    ensure!(steps.taken == expected, "{} of {expected} steps were reported", steps.taken);
    Ok(())
}
