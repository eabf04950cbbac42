//! Scenarios: a setup to simulate and bounds on its outcome, written as a text.
//!
//! `docs/guide/sim.md` explains every key. Reading has no side effects but opening traces: the input is a text, assignments
//! and a function that opens a trace; the result is a [`Scenario`], or every [`Problem`] with line and key.

mod form;
pub mod metric;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use evenkeel_control::pool::Config as PoolConfig;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_policy::check::Problem;
use evenkeel_policy::config::{self, DEFAULT_POOL, Pool, Tenant};
use evenkeel_policy::document::Document;
use evenkeel_policy::figures::counted;
use evenkeel_policy::{Config, Severity, simulated};

use crate::world::{self, Change, Run, Setup};
use form::{BoundForm, ChangeForm, ClientForm, File, WorkersForm};
use metric::Metric;

/// A function that opens a trace by the name that a scenario gives.
pub type Open<'a> = &'a mut dyn FnMut(&str) -> io::Result<Box<dyn BufRead>>;

/// The most identical clients that one table `[[client]]` may create (its key `count`).
const MAX_COUNT: u32 = 10_000;
/// The most workers of a scenario: more than a server has.
const MAX_WORKERS: u32 = 1_024;
/// The most connections of all clients of a scenario together: more than a server has.
const MAX_CONNECTIONS: u64 = 100_000;
/// The shortest and the longest CPU time of a request in a scenario: less than any server needs, and more than any user
/// accepts.
const REQUEST_TIMES: (Duration, Duration) = (Duration::from_nanos(100), Duration::from_secs(1));
/// The most samples of a time series: more than a plot resolves.
const MAX_SAMPLES: u64 = 1_000_000;
/// The most seeds of one scenario.
pub const MAX_SEEDS: u32 = 10_000;

/// The setup of a simulation, and the bounds on its outcome.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Title, a few words.
    pub title: String,
    /// The purpose, paragraphs separated by empty lines.
    pub description: String,
    /// The first seed.
    pub seed: u64,
    /// Number of consecutive seeds, from `seed` on; each gives one run.
    pub seeds: u32,
    /// The setup of a run.
    pub setup: Setup,
    /// Descriptions of the changes in mid-run, each with its instant, for plots.
    pub marks: Vec<(Instant, String)>,
    /// The bounds that a run must meet.
    pub bounds: Vec<Bound>,
}

/// A bound that a run must meet.
#[derive(Clone, Debug)]
pub struct Bound {
    /// The metric that the bound limits.
    pub metric: Metric,
    /// Start and end of the window in which the metric is measured, from the start of the run; `None`: the counted time.
    pub window: Option<(Instant, Instant)>,
    /// Smallest value that meets the bound, in the metric's unit; `None`: no lower bound.
    pub min: Option<f64>,
    /// Largest value that meets the bound, in the metric's unit; `None`: no upper bound.
    pub max: Option<f64>,
    /// Reason for the bound; may be empty.
    pub why: String,
}

impl Bound {
    /// The metric's value in a run, within the bound's window; NaN if no request completed.
    pub fn measure(&self, run: &Run) -> f64 {
        self.metric.measure(run, self.window)
    }

    /// True if a measured value meets the bound; NaN never does.
    pub fn is_met_by(&self, value: f64) -> bool {
        !value.is_nan() && self.min.is_none_or(|min| value >= min) && self.max.is_none_or(|max| value <= max)
    }
}

/// A scenario that was read, with warnings about its settings.
#[derive(Clone, Debug)]
pub struct Parsed {
    /// The scenario.
    pub scenario: Scenario,
    /// Doubtful settings, which do not prevent a run.
    pub warnings: Vec<Problem>,
}

/// Reads a scenario from `text`, which errors call `origin`; `assignments` (`KEY=VALUE`) override its keys, in order.
///
/// # Errors
/// Every problem of the scenario, each with place, key and remedy.
pub fn parse(text: &str, origin: &str, assignments: &[String], open: Open<'_>) -> Result<Parsed, Vec<Problem>> {
    let (mut document, mut errors) = Document::parse(text, origin);
    for assignment in assignments {
        errors.extend(document.assign(assignment).err());
    }
    let (file, mut more) = document.read::<File>();
    if document.has(&["volumes"]) {
        let message = "a scenario has no volumes, and enforces no limits of volumes; write the limit on the tenant of its clients";
        // Keys of an assignment are at fault one after the other.
        more.retain(|problem| problem.key != "volumes" && !problem.key.starts_with("volumes."));
        errors.push(document.complain(&["volumes"], message));
    }
    errors.extend(more);
    // Rules about what was not read would complain about what is there.
    let (Some(file), true) = (file, errors.is_empty()) else { return Err(errors) };
    let mut reader = Reader { document: &document, errors, warnings: Vec::new() };
    let scenario = reader.scenario(&file, open);
    if !reader.errors.is_empty() {
        reader.errors.sort_by_key(|problem| problem.position);
        return Err(reader.errors);
    }
    Ok(Parsed { scenario, warnings: reader.warnings })
}

struct Reader<'d> {
    document: &'d Document<'d>,
    errors: Vec<Problem>,
    warnings: Vec<Problem>,
}

impl Reader<'_> {
    fn error(&mut self, path: &[&str], message: impl Into<String>) {
        self.errors.push(self.document.complain(path, message));
    }

    fn range(&mut self, path: &[&str], count: u32, most: u32) {
        if !(1..=most).contains(&count) {
            self.error(path, format!("{count} is out of range; use 1 to {most}"));
        }
    }

    fn scenario(&mut self, file: &File, open: Open<'_>) -> Scenario {
        let (warmup, duration) = (file.warmup, file.duration);
        let end = Instant::ZERO + warmup + duration;
        if duration == Duration::ZERO {
            self.error(&["duration"], "0 would count nothing; give a length of time, for example \"10s\"");
        }
        let sample_every = self.sample_every(file, duration);
        self.range(&["seeds"], file.seeds, MAX_SEEDS);
        self.rules("pool", &file.pool, &file.tenants, &["pool"]);
        if file.pool.emulate.is_some() {
            self.error(&["pool", "emulate"], "the device of a scenario is in [device]; move these keys there");
        }
        for (name, tenant) in &file.tenants {
            if !tenant.matches.is_empty() {
                self.error(
                    &["tenants", name, "match"],
                    "clients of a scenario say themselves whose they are; write [[client]] with tenant",
                );
            }
            if tenant.each {
                self.error(&["tenants", name, "each"], "a scenario has no volumes; write a table for each tenant");
            }
            if tenant.limit.when.is_some() {
                let message = "a scenario has no time of day; write [[change]] at the times of the limit";
                self.error(&["tenants", name, "limit", "when"], message);
            }
            if tenant.weight_at.is_some() {
                let message = "a scenario has no time of day; write [[change]] at the times of the weight";
                self.error(&["tenants", name, "weight_at"], message);
            }
        }
        self.device(&file.device, &["device"]);
        let names: Vec<&String> = file.tenants.keys().collect();
        // The one pool of a scenario is the one that configurations have if they name none.
        let on_pool = file.tenants.iter().map(|(name, tenant)| (name, tenant.on(DEFAULT_POOL)));
        let tenants = on_pool.map(|(name, tenant)| world::Tenant {
            name: name.clone(),
            qos: (&tenant).into(),
            throttle: tenant.throttle,
            guarantee: tenant.guarantee.control(),
            latency_target: tenant.latency_target(),
        });
        let clients = self.clients(&file.client, &names, end, open);
        if let Some(workers) = &file.workers {
            self.workers(workers, clients.len());
        }
        let (changes, marks) = self.changes(file, end);
        let bounds =
            file.bound.iter().enumerate().filter_map(|(i, bound)| self.bound(i, bound, &names, file, end)).collect();
        Scenario {
            title: file.title.clone(),
            description: file.description.clone(),
            seed: file.seed,
            seeds: file.seeds,
            setup: Setup {
                workers: file.workers.as_ref().map(WorkersForm::setup),
                device: file.device.clone(),
                pool: (&file.pool).into(),
                tenants: tenants.collect(),
                clients,
                changes,
                warmup,
                duration,
                sample_every,
                divides: file.divide,
            },
            marks,
            bounds,
        }
    }

    fn workers(&mut self, form: &WorkersForm, clients: usize) {
        self.range(&["workers", "count"], form.count, MAX_WORKERS);
        let (least, most) = REQUEST_TIMES;
        for (key, time, least) in
            [("time_per_request", form.time_per_request, least), ("time_per_kib", form.time_per_kib, Duration::ZERO)]
        {
            if time < least || time > most {
                self.error(&["workers", key], format!("{time} is out of range; use {least:?} to {most:?}"));
            }
        }
        let connections = u64::from(form.connections) * clients as u64;
        if form.connections == 0 || connections > MAX_CONNECTIONS {
            let message = format!(
                "{} for each of {}; use 1 to {MAX_CONNECTIONS} of all",
                form.connections,
                counted(clients as u64, "client")
            );
            self.error(&["workers", "connections"], message);
        }
    }

    /// The interval between samples: as the scenario states, or else 1/200 of `duration`, but at least a millisecond.
    fn sample_every(&mut self, file: &File, duration: Duration) -> Duration {
        let every = match file.sample_every {
            Some(every) => every,
            None => Duration::from_nanos(duration.as_nanos() / 200).max(Duration::from_millis(1)).min(duration),
        };
        if every == Duration::ZERO || duration.as_nanos() / every.as_nanos() > MAX_SAMPLES {
            let message =
                format!("makes more than {MAX_SAMPLES} samples in {duration:?}; remove this key or use a longer time");
            self.error(&["sample_every"], message);
        }
        every
    }

    /// Checks a pool and its tenants by the rules for configurations. `table` is the path in the scenario to which problems
    /// refer.
    fn rules(&mut self, what: &str, pool: &Pool, tenants: &BTreeMap<String, Tenant>, table: &[&str]) {
        let mut config = Config::default();
        // A scenario has clients and no volumes: rules about whose volumes are have nothing to say.
        config.volumes.clear();
        config.pools.insert(DEFAULT_POOL.into(), pool.clone());
        config.tenants.extend(tenants.iter().map(|(name, tenant)| (name.clone(), tenant.clone())));
        for finding in simulated(&config) {
            let path: Vec<&str> = finding.path.iter().map(String::as_str).collect();
            let path = match path[..] {
                ["pools", _, ref rest @ ..] if what == "pool" => [table, rest].concat(),
                ["tenants", name, ref rest @ ..] if what == "tenant" => [table, &[name], rest].concat(),
                ["tenants", ..] if what == "pool" => path,
                _ => continue,
            };
            if path.ends_with(&["enforce"]) {
                self.error(&path, "has no effect here: the policy is enforced in the one queue of a scenario");
                continue;
            }
            let problem = self.document.complain(&path, finding.message);
            match finding.severity {
                // Clients of a scenario say themselves whose they are, which is told already.
                Severity::Elsewhere if path.ends_with(&["match"]) => {}
                Severity::Error | Severity::Elsewhere => self.errors.push(problem),
                Severity::Hangs | Severity::Warning => self.warnings.push(problem),
            }
        }
    }

    fn device(&mut self, device: &DeviceParams, path: &[&str]) {
        if let Err(invalid) = device.validate() {
            self.error(path, invalid.to_string());
        }
    }

    /// The number of the tenant with the name `name`; an unknown name becomes an error about the key at `path`.
    fn tenant(&mut self, path: &[&str], name: &str, names: &[&String]) -> Option<usize> {
        let place = names.iter().position(|&known| known == name);
        if place.is_none() {
            self.error(path, metric::unknown("tenant", name, names.iter().map(|name| name.as_str())));
        }
        place
    }

    /// Start and end of a window of virtual time. A window that does not lie within the run becomes an error about `path`.
    fn window(&mut self, path: &[&str], from: Duration, until: Option<Duration>, end: Instant) -> (Instant, Instant) {
        let start = Instant::ZERO + from;
        let stop = until.map_or(end, |until| Instant::ZERO + until);
        if start >= end {
            let at = [path, &["from"]].concat();
            self.error(&at, format!("is not before the end of the run at {:?}", end.since(Instant::ZERO)));
        } else if start >= stop {
            self.error(&[path, &["until"]].concat(), "is not after from; write a later time");
        }
        (start, stop)
    }

    fn clients(&mut self, forms: &[ClientForm], names: &[&String], end: Instant, open: Open<'_>) -> Vec<world::Client> {
        let mut clients = Vec::new();
        if forms.is_empty() {
            self.error(&["client"], "no client sends anything; add a [[client]] with tenant and workload");
        }
        for (index, form) in forms.iter().enumerate() {
            let index = index.to_string();
            let path = ["client", index.as_str()];
            let tenant = self.tenant(&["client", &index, "tenant"], &form.tenant, names);
            let (from, until) = self.window(&path, form.from, form.until, end);
            self.range(&["client", &index, "count"], form.count, MAX_COUNT);
            let built = form.workload.build(open);
            let mut place = |problem: crate::workload::form::Problem| {
                let key: Vec<&str> = problem.key.split('.').collect();
                self.document.complain(&[&["client", &index, "workload"], &key[..]].concat(), problem.message)
            };
            match built {
                Ok(built) => {
                    self.warnings.extend(built.warnings.into_iter().map(&mut place));
                    let client =
                        world::Client { tenant: tenant.unwrap_or_default(), workload: built.spec, from, until };
                    clients.extend(std::iter::repeat_n(client, form.count.min(MAX_COUNT) as usize));
                }
                Err(problems) => self.errors.extend(problems.into_iter().map(&mut place)),
            }
        }
        clients
    }

    /// The changes in order of time, each including the effects of earlier changes; and their descriptions for plots.
    #[expect(clippy::type_complexity, reason = "two lists, side by side")]
    fn changes(&mut self, file: &File, end: Instant) -> (Vec<(Instant, Change)>, Vec<(Instant, String)>) {
        let (mut changes, mut marks) = (Vec::new(), Vec::new());
        let mut order: Vec<usize> = (0..file.change.len()).collect();
        order.sort_by_key(|&index| file.change[index].at);
        // Which changes came before, by what they change: layers over the table of the scenario.
        let mut before: BTreeMap<Vec<String>, Vec<Vec<String>>> = BTreeMap::new();
        for index in order {
            let form = &file.change[index];
            let place = index.to_string();
            let at = Instant::ZERO + form.at;
            if at > end {
                self.error(
                    &["change", &place, "at"],
                    "is after the end of the run; use an earlier time or raise duration",
                );
            }
            if form.is_empty() {
                let message = "changes nothing; give stall, device, pool or tenants";
                self.error(&["change", &place], message);
            }
            let mut layers = |base: &[&str]| {
                let own = |path: &[&str]| path.iter().map(|&key| key.to_owned()).collect::<Vec<_>>();
                let stack = before.entry(own(base)).or_insert_with(|| vec![own(base)]);
                stack.push([vec!["change".to_owned(), place.clone()], own(base)].concat());
                stack.clone()
            };
            let mut words = Vec::new();
            if let Some(stall) = form.stall {
                changes.push((at, Change::Stall(stall)));
                words.push(format!("stall {stall}"));
            }
            if let Some(table) = &form.device {
                let stack = layers(&["device"]);
                if let Some(params) = self.layered::<DeviceParams>(&stack) {
                    self.device(&params, &["change", &place, "device"]);
                    if std::mem::discriminant(&file.device) != std::mem::discriminant(&params) {
                        self.error(&["change", &place, "device"], "a device does not turn into one of another kind");
                    }
                    changes.push((at, Change::Device(params)));
                }
                words.push(ChangeForm::words("device", table));
            }
            if let Some(table) = &form.pool {
                let stack = layers(&["pool"]);
                if let Some(pool) = self.layered::<Pool>(&stack) {
                    self.rules("pool", &pool, &BTreeMap::new(), &["change", &place, "pool"]);
                    changes.push((at, Change::Pool(Box::new(PoolConfig::from(&pool)))));
                }
                words.push(ChangeForm::words("pool", table));
            }
            for (name, table) in &form.tenants {
                let names: Vec<&String> = file.tenants.keys().collect();
                let path = ["change", place.as_str(), "tenants", name.as_str()];
                let Some(tenant) = self.tenant(&path, name, &names) else { continue };
                let stack = layers(&["tenants", name]);
                if let Some(settings) = self.layered::<config::Tenant>(&stack) {
                    let one = BTreeMap::from([(name.clone(), settings.clone())]);
                    self.rules("tenant", &file.pool, &one, &["change", &place, "tenants"]);
                    let settings = settings.on(DEFAULT_POOL);
                    let target = settings.latency_target();
                    changes
                        .push((at, Change::Tenant(tenant, (&settings).into(), settings.guarantee.control(), target)));
                }
                words.push(ChangeForm::words(name, table));
            }
            marks.push((at, words.join("; ")));
        }
        (changes, marks)
    }

    /// The value read from several tables of the scenario, given by their paths; entries of a later table replace those of
    /// earlier ones. `None` after an error.
    fn layered<T: serde::de::DeserializeOwned>(&mut self, layers: &[Vec<String>]) -> Option<T> {
        let layers: Vec<Vec<&str>> = layers.iter().map(|path| path.iter().map(String::as_str).collect()).collect();
        let layers: Vec<&[&str]> = layers.iter().map(Vec::as_slice).collect();
        let (value, errors) = self.document.read_layers(&layers);
        let sound = errors.is_empty();
        self.errors.extend(errors);
        value.filter(|_| sound)
    }

    fn bound(&mut self, index: usize, form: &BoundForm, names: &[&String], file: &File, end: Instant) -> Option<Bound> {
        let index = index.to_string();
        let path = ["bound", index.as_str()];
        let at = |key: &'static str| ["bound", index.as_str(), key];
        let metric = match Metric::parse(&form.metric, names) {
            Ok(metric) => metric,
            Err(message) => {
                self.error(&at("metric"), message);
                return None;
            }
        };
        let mut limit = |key: &'static str, limit: &Option<form::Limit>| {
            let value = limit.as_ref().map(|limit| limit.value(metric.name()))?;
            value.map_err(|message| self.error(&["bound", &index, key], message)).ok()
        };
        let (min, max) = (limit("min", &form.min), limit("max", &form.max));
        if form.min.is_none() && form.max.is_none() {
            self.error(&path, "bounds nothing; give min, max or both");
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            self.error(&at("min"), "is more than max: no run can meet both");
        }
        let windowed = form.from.is_some() || form.until.is_some();
        let from = form.from.map_or(file.warmup, |from| from);
        let window = self.window(&path, from, form.until, end);
        if windowed && !metric.has_windows() {
            self.error(
                &at("metric"),
                format!(
                    "{} is known for the whole run only; leave from and until out, or use one of {}",
                    metric.name(),
                    metric::WINDOWED
                ),
            );
        }
        if windowed && form.from.is_some() && from < file.warmup {
            self.error(
                &at("from"),
                format!("is before the end of the warm-up at {}, where counting begins", file.warmup),
            );
        }
        Some(Bound { metric, window: windowed.then_some(window), min, max, why: form.why.clone() })
    }
}
