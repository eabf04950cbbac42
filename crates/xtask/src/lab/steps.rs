//! Steps of a lab: taken in the guest, told on its console, counted on the host.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::{Lab, vm};

const PASSED: &str = "lab: passed ";
const FAILED: &str = "lab: failed ";

const REPEATED: &str = "lab: repeated ";

/// A figure out of its bounds: what real programs do together, counted for some seconds, which chance has a part in.
#[derive(Debug)]
struct Figure(String);

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Figure {}

/// Like `ensure!`, for a bound on a measured figure. A step that misses one is taken once more ([`take`]); whatever
/// does not depend on chance, such as what is left after a kill, is for `ensure!`.
///
/// # Errors
///
/// With `detail` if it does not hold.
pub(super) fn figure(holds: bool, detail: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Figure(detail()).into()) }
}

/// In the guest: takes a step, once more if a [`figure`] is out of its bounds, and tells what came of it.
pub(super) fn take(name: &str, step: impl Fn() -> Result<String>) {
    let mut outcome = step();
    if let Err(e) = &outcome
        && e.is::<Figure>()
    {
        println!("{REPEATED}{name} {}", format!("{e:#}").replace('\n', " "));
        outcome = step();
    }
    tell(name, outcome);
}

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
        } else if let Some(text) = line.strip_prefix(REPEATED) {
            let (name, reason) = text.split_once(' ').unwrap_or((text, ""));
            lab.repeated(name, reason);
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::Context;

    use super::*;

    /// How often a step is taken that always ends so.
    fn times(outcome: impl Fn() -> Result<()>) -> u32 {
        let times = Cell::new(0);
        take("step", || {
            times.set(times.get() + 1);
            outcome().context("in the step").map(|()| String::new())
        });
        times.get()
    }

    #[test]
    fn only_a_figure_out_of_its_bounds_is_measured_twice() {
        assert_eq!(times(|| figure(false, || "1.2 is more than 1".to_owned())), 2);
        assert_eq!(times(|| figure(true, String::new)), 1);
        assert_eq!(times(|| anyhow::bail!("a limit was left")), 1);
    }
}
