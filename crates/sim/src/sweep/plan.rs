//! The plan of a sweep: the scenarios to run, one for each combination of swept values, each with every seed.

use std::io::{self, BufRead};
use std::str::FromStr;

use crate::scenario::metric::Metric;
use crate::scenario::{self, MAX_SEEDS, Scenario};
use crate::world::{Run, Setup};
use evenkeel_policy::check::{Errors, Problem};

/// The most combinations of swept values. More would make a table too long to read.
const MAX_POINTS: usize = 10_000;

/// A swept key of the scenario and the values that it takes, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sweep {
    key: String,
    values: Vec<String>,
}

impl FromStr for Sweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, values) = text
            .split_once('=')
            .ok_or("write KEY=A,B,..., for example pool.tuning.admission.budget=64KiB,256KiB,1MiB")?;
        let values = split(values);
        if values.iter().any(String::is_empty) {
            return Err("a value between the commas is missing".into());
        }
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// Splits a text at the commas that are outside of brackets and strings.
fn split(text: &str) -> Vec<String> {
    let (mut depth, mut quote, mut parts) = (0i32, None, vec![String::new()]);
    for c in text.chars() {
        match (c, quote) {
            ('"' | '\'', None) => quote = Some(c),
            (_, Some(open)) if c == open => quote = None,
            ('{' | '[', None) => depth += 1,
            ('}' | ']', None) => depth -= 1,
            (',', None) if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts.iter().map(|part| part.trim().to_owned()).collect()
}

/// Changes to a scenario from the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Choice<'a> {
    /// Assignments `KEY=VALUE` that override the scenario's keys.
    pub set: &'a [String],
    /// Swept keys. Every combination of their values is run.
    pub sweeps: &'a [Sweep],
    /// Number of seeds with which every point is run; `None`: as the scenario states.
    pub seeds: Option<u32>,
    /// The first of consecutive seeds; `None`: as the scenario states.
    pub seed: Option<u64>,
}

/// The reason why no plan can be made.
#[derive(Debug, thiserror::Error)]
pub enum Invalid {
    /// The sweeps have too many combinations, namely this number.
    #[error("--sweep: {0} combinations are more than {MAX_POINTS}; sweep fewer values")]
    Combinations(usize),
    /// The scenario has errors.
    #[error("{0}")]
    Scenario(Errors),
    /// There is no combination of swept values to run.
    #[error("the sweeps leave nothing to run; give each --sweep a value")]
    Nothing,
    /// The number of seeds is too large or 0.
    #[error("--seeds {0} is out of range; use 1 to {MAX_SEEDS}")]
    Seeds(u32),
}

/// One combination of swept values, with its scenario.
#[derive(Debug)]
pub struct Point {
    /// A value for each of [`Plan::keys`], as written.
    pub(super) values: Vec<String>,
    /// The scenario with these values.
    pub(super) scenario: Scenario,
}

/// All runs to be made: the points, and the seeds of each.
#[derive(Debug)]
pub struct Plan {
    /// The scenario's title, or the name of its file if it has no title.
    pub(super) title: String,
    /// The swept keys.
    pub(super) keys: Vec<String>,
    /// The combinations of swept values; at least one.
    pub(super) points: Vec<Point>,
    /// The first seed.
    pub(super) seed: u64,
    /// Number of seeds.
    pub(super) seeds: u32,
    /// Names of the tenants, the same in every point.
    pub(super) tenants: Vec<String>,
    /// The metrics of every run.
    pub(super) metrics: Vec<Metric>,
}

/// The part of a run that is kept for the outcome.
#[derive(Debug)]
pub struct Kept {
    /// A value for each of [`Plan::metrics`].
    pub(super) metrics: Vec<f64>,
    /// The measured value for each bound of the scenario.
    pub(super) bounds: Vec<f64>,
    /// Number of events that the event queue handled.
    pub(super) events: u64,
    /// The whole run of a point's first seed, if a page is to be written.
    pub(super) run: Option<Run>,
}

impl Plan {
    /// Reads the scenario `text` once for every combination of values. `origin` names it in errors; `open` opens its traces;
    /// `warn` receives warnings.
    ///
    /// # Errors
    /// A scenario that cannot be used, or too many runs.
    pub fn new(
        choice: &Choice<'_>,
        text: &str,
        origin: &str,
        open: &mut dyn FnMut(&str) -> io::Result<Box<dyn BufRead>>,
        warn: &mut dyn FnMut(&Problem),
    ) -> Result<Self, Invalid> {
        let &Choice { set, sweeps, seeds, seed } = choice;
        let combinations: usize = sweeps.iter().map(|sweep| sweep.values.len()).product();
        if combinations > MAX_POINTS {
            return Err(Invalid::Combinations(combinations));
        }
        let mut points = Vec::with_capacity(combinations);
        for values in product(sweeps) {
            let swept = sweeps.iter().zip(&values).map(|(sweep, value)| format!("{}={value}", sweep.key));
            let assignments: Vec<String> = set.iter().cloned().chain(swept).collect();
            let parsed = scenario::parse(text, origin, &assignments, open)
                .map_err(|errors| Invalid::Scenario(Errors(errors)))?;
            if points.is_empty() {
                parsed.warnings.iter().for_each(&mut *warn);
            }
            points.push(Point { values, scenario: parsed.scenario });
        }
        // A product has at least one combination, the empty one.
        let Some(first) = points.first().map(|point| &point.scenario) else { return Err(Invalid::Nothing) };
        let seeds = seeds.unwrap_or(first.seeds);
        if !(1..=MAX_SEEDS).contains(&seeds) {
            return Err(Invalid::Seeds(seeds));
        }
        let tenants: Vec<String> = first.setup.tenants.iter().map(|tenant| tenant.name.clone()).collect();
        Ok(Self {
            title: if first.title.is_empty() { origin.to_owned() } else { first.title.clone() },
            keys: sweeps.iter().map(|sweep| sweep.key.clone()).collect(),
            seed: seed.unwrap_or(first.seed),
            seeds,
            metrics: Metric::all(&tenants),
            tenants,
            points,
        })
    }

    /// Setup and seed of every run, ordered by point, then by seed.
    pub fn runs(&self) -> Vec<(&Setup, u64)> {
        let seeds = || (0..u64::from(self.seeds)).map(|n| self.seed.wrapping_add(n));
        self.points.iter().flat_map(|point| seeds().map(move |seed| (&point.scenario.setup, seed))).collect()
    }

    /// The part to keep of the run with index `place` in [`Plan::runs`]. With `all`, the whole run is kept if it is that of a
    /// point's first seed.
    pub fn keep(&self, place: usize, run: Run, all: bool) -> Kept {
        let seeds = self.seeds as usize;
        let bounds = &self.points[place / seeds].scenario.bounds;
        Kept {
            metrics: self.metrics.iter().map(|metric| metric.measure(&run, None)).collect(),
            bounds: bounds.iter().map(|bound| bound.measure(&run)).collect(),
            events: run.events,
            run: (all && place.is_multiple_of(seeds)).then_some(run),
        }
    }

    /// The name of the run with index `place` in [`Plan::runs`]: its swept values and seed.
    pub fn name(&self, place: usize) -> String {
        let seeds = self.seeds as usize;
        let point = &self.points[place / seeds];
        let seed = self.seed.wrapping_add((place % seeds) as u64);
        format!("{}seed {seed}", self.label(point).map_or_else(String::new, |label| label + ", "))
    }

    /// The swept values of a point as a label; `None` without a sweep.
    pub(super) fn label(&self, point: &Point) -> Option<String> {
        (!self.keys.is_empty()).then(|| describe(&self.keys, &point.values))
    }
}

/// A label of the form `key = value, key = value`, with the last part of each dotted key.
pub(super) fn describe(keys: &[String], values: &[String]) -> String {
    let parts = keys.iter().zip(values).map(|(key, value)| format!("{} = {value}", short(key)));
    parts.collect::<Vec<_>>().join(", ")
}

/// The last part of a dotted key.
pub(super) fn short(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// Every combination of the sweeps' values. From one combination to the next the last sweep's value changes first.
fn product(sweeps: &[Sweep]) -> Vec<Vec<String>> {
    let extend = |combinations: Vec<Vec<String>>, sweep: &Sweep| {
        let with = |values: Vec<String>| {
            sweep.values.iter().map(move |value| [values.as_slice(), std::slice::from_ref(value)].concat()).collect()
        };
        combinations.into_iter().flat_map(|values| -> Vec<_> { with(values) }).collect()
    };
    sweeps.iter().fold(vec![Vec::new()], extend)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sweeps_split_outside_of_brackets_and_strings() {
        let values = |text: &str| text.parse::<Sweep>().map(|sweep| sweep.values);
        assert_eq!(values("a.b=1, 2,3").unwrap(), ["1", "2", "3"]);
        let tables =
            values("pool.tuning.admission=none,{ kind = \"fixed\", budget = \"1MiB\" },\"a,b\",[1,[2,3]]").unwrap();
        assert_eq!(tables, ["none", "{ kind = \"fixed\", budget = \"1MiB\" }", "\"a,b\"", "[1,[2,3]]"]);
        assert!(values("a").is_err() && values("a=").is_err() && values("a=1,,2").is_err());
    }

    #[test]
    fn every_combination_once() {
        let sweep = |text: &str| text.parse::<Sweep>().unwrap();
        assert_eq!(product(&[]), [Vec::<String>::new()]);
        let all = product(&[sweep("a=1,2"), sweep("b=x,y,z")]);
        assert_eq!(all.len(), 6);
        assert_eq!((all[0].join(""), all[1].join(""), all[5].join("")), ("1x".into(), "1y".into(), "2z".into()));
    }
}
