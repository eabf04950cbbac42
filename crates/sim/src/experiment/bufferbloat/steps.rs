//! Changes of load or device in mid-run.

use std::collections::BTreeMap;

use evenkeel_control::admission::Config;
use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::ssd::SsdParams;
use evenkeel_model::store::StoreParams;
use evenkeel_policy::explain;

use super::scene::{Judged, Method, estimates, few, mean, paired_rows, rows, seconds, setup, tenant};
use crate::experiment::batch::Batch;
use crate::experiment::oracle::{oracles, with};
use crate::experiment::paired::Figures;
use crate::experiment::{Better, Digest, Execute, Options, Row, Section};
use crate::report::{Axis, Plot, Series, Style};
use crate::statistics::Estimate;
use crate::workload::{Requests, Spec};
use crate::world::{Change, Client, Setup, Window};

const SPAN: u64 = 64 << 30;
/// Length of the windows in which throughput and latency are judged.
const WINDOW: Duration = Duration::from_millis(500);
/// Bar: the lowest throughput of a window, as a fraction of the oracle's in the steady state after the step.
const THROUGHPUT_BAR: f64 = 0.9;
/// Bar: the largest mean latency of the light tenant in a window, as a multiple of the oracle's after the step.
const LATENCY_BAR: f64 = 1.2;
/// A run counts as settled from the first window that meets the bars if this share of that window and all later ones meets
/// them. Not all: windows are short, and by chance a few miss the bars even under the oracle's budget.
const SETTLED_SHARE: f64 = 0.95;
/// Bar: the longest time from the step until a run is settled, in seconds.
const SETTLE_BAR_S: f64 = 2.0;
/// Bar: the share of the judged steps that settle within [`SETTLE_BAR_S`], in per cent.
const STEPS_BAR_PERCENT: f64 = 90.0;
/// Runs (seeds) of each method other than `elastic`, the project's own.
const OTHERS_SEEDS: usize = 3;
/// Length of the part before the step that plots show.
const LEAD: Duration = Duration::from_secs(2);

/// The first part of a run, which precedes the load that the step changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Prelude {
    /// No prelude: the run begins with the load before the step, which lasts for [`Bed::fresh_s`].
    Fresh,
    /// Two hours without a request.
    Idle,
    /// Two hours with ten small requests a second.
    LowLoad,
}

evenkeel_control::named!(Prelude: Fresh "", Idle ", after 2 h idle", LowLoad ", after 2 h at low load");

impl Prelude {
    /// Durations of the prelude, and of the load between prelude and step. `fresh_s` is [`Bed::fresh_s`].
    fn lengths(self, fresh_s: f64) -> (Duration, Duration) {
        match self {
            Self::Fresh => (Duration::ZERO, seconds(fresh_s)),
            Self::Idle | Self::LowLoad => (seconds(7_200.0), seconds(10.0)),
        }
    }
}

/// A device on which steps are made.
struct Bed {
    name: &'static str,
    device: DeviceParams,
    light_per_s: f64,
    /// Seconds of load before the step in a run without a prelude: a minute on the store, so that SlowFast CoDel has made
    /// its first fit (15 s in a quick run).
    fresh_s: f64,
}

fn beds(quick: bool) -> [Bed; 2] {
    // A fast region that never fills up: the steps are those that are taken here, not those of its own.
    let sata = SsdParams { slc_bytes: 1 << 50, ..SsdParams::sata() };
    [
        Bed {
            name: "store",
            device: DeviceParams::Store(StoreParams::ssd()),
            light_per_s: 200.0,
            fresh_s: if quick { 15.0 } else { 60.0 },
        },
        Bed { name: "sata", device: DeviceParams::Ssd(sata), light_per_s: 400.0, fresh_s: 15.0 },
    ]
}

/// The parameters of `device` with its speed multiplied by `speed`.
fn scaled(device: &DeviceParams, speed: f64) -> DeviceParams {
    match device {
        DeviceParams::Store(store) => DeviceParams::Store(store.scaled(speed)),
        DeviceParams::Ssd(ssd) => DeviceParams::Ssd(ssd.scaled(speed)),
        other => other.clone(),
    }
}

/// A change of load or device in mid-run.
struct Step {
    name: &'static str,
    /// Bulk load that ends at the step.
    before: Option<Spec>,
    /// Bulk load of the whole run.
    throughout: Option<Spec>,
    /// Bulk load that begins at the step.
    after: Option<Spec>,
    /// Speed of the device after the step, as a multiple of its speed before.
    speed: f64,
    /// Duration for which the device serves no request, from the step on.
    stall: Duration,
    /// Kind of the light tenant's requests.
    light: Kind,
}

fn steps() -> Vec<Step> {
    let bulk = |kind, kib: u32| Some(Spec::closed(64, Requests::random(kind, kib << 10, SPAN)));
    let (read, write) = (Kind::Read, Kind::Write);
    let step = |name, before, after| Step {
        name,
        before,
        throughout: None,
        after,
        speed: 1.0,
        stall: Duration::ZERO,
        light: Kind::Write,
    };
    let steady = |name| Step { throughout: bulk(write, 64), ..step(name, None, None) };
    let trickle = Some(Spec::closed(2, Requests::random(write, 4 << 10, SPAN)));
    vec![
        step("4 to 64 KiB", bulk(write, 4), bulk(write, 64)),
        step("64 KiB reads to writes", bulk(read, 64), bulk(write, 64)),
        step("64 KiB writes to reads", bulk(write, 64), bulk(read, 64)),
        Step { speed: 0.3, ..steady("device 0.3 times as fast") },
        Step { speed: 3.0, ..steady("device 3 times as fast") },
        Step { stall: seconds(1.0), ..steady("stall of 1 s") },
        Step { throughout: trickle, ..step("bulk client arrives", None, bulk(write, 64)) },
    ]
}

/// A step on a device after a prelude, with the runs that it needs.
struct Case {
    name: String,
    prelude: Prelude,
    setup: Setup,
    /// The steady state before the step, for which an oracle (the best fixed budget) is sought.
    before: Setup,
    /// The steady state after the step, for which an oracle is sought.
    after: Setup,
    stall: Duration,
}

fn light(bed: &Bed, step: &Step) -> Spec {
    Spec::open(bed.light_per_s, Requests::random(step.light, 4 << 10, SPAN))
}

fn case(bed: &Bed, step: &Step, prelude: Prelude, after_s: f64) -> Case {
    let tenants = || vec![tenant("bulk", 1), tenant("light", 10)];
    let device = scaled(&bed.device, step.speed);
    let steady = |device: &DeviceParams, bulk: [&Option<Spec>; 2]| {
        let bulk = bulk.into_iter().flatten().map(|spec| Client::always(0, spec.clone()));
        let clients = bulk.chain([Client::always(1, light(bed, step))]).collect();
        Setup { warmup: seconds(1.0), ..setup(device.clone(), tenants(), clients, seconds(5.0)) }
    };
    let (idle, approach) = prelude.lengths(bed.fresh_s);
    let from = Instant::ZERO + idle;
    let at = from + approach;
    let during = |tenant, spec: &Option<Spec>, from, until| {
        spec.as_ref().map(|workload| Client { tenant, workload: workload.clone(), from, until })
    };
    let low = (prelude == Prelude::LowLoad).then(|| Spec::open(10.0, Requests::random(step.light, 4 << 10, SPAN)));
    let clients = [
        during(0, &low, Instant::ZERO, from),
        during(0, &step.before, from, at),
        during(0, &step.throughout, from, Instant::FAR_FUTURE),
        during(0, &step.after, at, Instant::FAR_FUTURE),
        during(1, &Some(light(bed, step)), from, Instant::FAR_FUTURE),
    ];
    let mut whole = setup(bed.device.clone(), tenants(), clients.into_iter().flatten().collect(), seconds(after_s));
    if step.speed != 1.0 {
        whole.changes.push((at, Change::Device(device.clone())));
    }
    if step.stall > Duration::ZERO {
        whole.changes.push((at, Change::Stall(step.stall)));
    }
    whole.warmup = at.since(Instant::ZERO) - LEAD;
    whole.duration = LEAD + step.stall + seconds(after_s);
    whole.sample_every = WINDOW;
    Case {
        name: format!("{}, {}{}", bed.name, step.name, prelude.name()),
        prelude,
        setup: whole,
        before: steady(&bed.device, [&step.before, &step.throughout]),
        after: steady(&device, [&step.after, &step.throughout]),
        stall: step.stall,
    }
}

/// A run's figures after a step.
#[derive(Clone, Copy, Debug)]
struct Settling {
    /// Seconds from the step, or from the end of its stall, until the run is settled (see [`SETTLED_SHARE`]); the whole
    /// observed time if it never settles.
    settle_s: f64,
    /// The largest mean latency of the light tenant in any window, divided by the oracle's mean.
    overshoot_ratio: f64,
    /// Per cent of the windows later than [`SETTLE_BAR_S`] after the step that miss the throughput bar or the latency bar.
    missed_percent: f64,
}

/// Figures under the oracle (the best fixed budget) in the steady state after the step.
struct Reference {
    bytes_per_s: f64,
    light_ms: f64,
}

impl Reference {
    fn light_ratio(&self, window: &Window) -> Option<f64> {
        Some(window.tenants[1].mean_response()?.as_millis_f64() / self.light_ms)
    }

    fn is_met(&self, window: &Window) -> bool {
        window.bytes_per_s() >= THROUGHPUT_BAR * self.bytes_per_s
            && self.light_ratio(window).is_some_and(|ratio| ratio <= LATENCY_BAR)
    }

    /// Judges a run by its `windows`, of which the first begins at the step or at the end of the stall.
    fn judge(&self, windows: &[Window]) -> Settling {
        let met: Vec<bool> = windows.iter().map(|window| self.is_met(window)).collect();
        let settled_from = |&place: &usize| {
            let rest = &met[place..];
            rest[0] && rest.iter().filter(|&&met| met).count() as f64 >= SETTLED_SHARE * rest.len() as f64
        };
        // A single good window at the very end is no proof.
        let place = (0..windows.len().saturating_sub(4)).find(settled_from).unwrap_or(windows.len());
        let worst = windows.iter().filter_map(|window| self.light_ratio(window)).fold(0.0, f64::max);
        let late = met.get((SETTLE_BAR_S / WINDOW.as_secs_f64()) as usize..).unwrap_or_default();
        let missed = late.iter().filter(|&&met| !met).count();
        Settling {
            settle_s: place as f64 * WINDOW.as_secs_f64(),
            overshoot_ratio: worst,
            missed_percent: 100.0 * missed as f64 / late.len().max(1) as f64,
        }
    }
}

/// Runs all methods and oracles on all steps.
pub(super) fn run<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Section, E> {
    let after_s = if options.quick { 10.0 } else { 20.0 };
    let (beds, steps) = (beds(options.quick), steps());
    let mut cases = Vec::new();
    for bed in &beds {
        for step in &steps {
            let preludes = Prelude::ALL.iter().filter(|&&prelude| !options.quick || prelude != Prelude::LowLoad);
            cases.extend(preludes.map(|&prelude| case(bed, step, prelude, after_s)));
        }
    }
    let seeds: Vec<u64> = (options.seed..).take(options.count(6, 1)).collect();
    // Many cases begin or end in the same state.
    let mut states: Vec<Setup> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut place_of = |state: &Setup| {
        *known.entry(format!("{state:?}")).or_insert_with(|| {
            states.push(state.clone());
            states.len() - 1
        })
    };
    let places: Vec<[usize; 2]> = cases.iter().map(|case| [place_of(&case.before), place_of(&case.after)]).collect();
    let sweep_seed = [options.seed + 2_000_000];
    let states: Vec<(Setup, &[u64])> = states.into_iter().map(|state| (state, &sweep_seed[..])).collect();
    let oracles = oracles("oracles of the steps", &states, execute)?;
    let fixed = |place: usize| Method::Fixed(oracles[place].budget_bytes.div_ceil(1 << 10) as u32);
    let shown = |method: &Method| matches!(method, Method::Published | Method::Repaired | Method::Elastic);
    let adaptive = Method::all().into_iter().filter(|method| method.adapts() && (!options.quick || shown(method)));
    let adaptive: Vec<Method> = adaptive.collect();
    let methods = |[before, after]: [usize; 2]| {
        let mut methods = vec![fixed(before), fixed(after)];
        methods.dedup();
        methods.push(Method::None);
        methods.into_iter().chain(adaptive.iter().copied())
    };
    let mut batch = Batch::new();
    for (number, (case, &place)) in cases.iter().zip(&places).enumerate() {
        let best = Config::Fixed { budget_bytes: oracles[place[1]].budget_bytes };
        batch.add(&(number, None), &with(&case.after, best), &seeds);
        for method in methods(place) {
            let seeds = if method == Method::Elastic { &seeds[..] } else { few(options, &seeds, OTHERS_SEEDS) };
            batch.add(&(number, Some(method)), &with(&case.setup, method.config(false)), seeds);
        }
    }
    let digests = batch.execute("steps", execute)?;
    let mut section = Section::new(
        "Steps: load or device change in mid-run",
        [
            "Bulk load at queue depth 64 beside a light tenant of ten times its weight. A run is settled from the first \
             window of 0.5 s on from which 95 % of all windows have at least 0.9 times the throughput and at most 1.2 times \
             the mean light latency of the oracle of the new state. settle_s: time until then from the step, or from the end \
             of a stall; all the time observed for a run that never settles. overshoot_ratio: largest mean light latency of \
             a window, divided by that oracle's mean. windows_missed_percent: windows later than 2 s beyond one of the two \
             bounds. Baseline: the oracle's budget of the old state, kept; that of the new state, in force all the time, is \
             judged in the same way and stands among the other methods.",
            "Before the step the load lasts for 60 s on the store and 15 s on the drive (15 s on both in a quick run), or \
             for 10 s after two hours of idleness or low load.",
        ],
    );
    let mut judged = Judged::default();
    for (number, (case, &place)) in cases.iter().zip(&places).enumerate() {
        let reference = &digests[&(number, None)];
        let reference = Reference {
            bytes_per_s: mean(reference, |run| run.bytes_per_s),
            light_ms: mean(reference, |run| run.tenants[1].response.mean_ms),
        };
        let skipped = ((LEAD + case.stall).as_nanos() / WINDOW.as_nanos()) as usize;
        let judge = |run: &Digest| reference.judge(run.windows(WINDOW).get(skipped..).unwrap_or_default());
        let row = |metric, unit, bar| Row { bar, ..Row::new(&case.name, metric, unit, Better::Lower) };
        let by_seed = |figure: &dyn Fn(&Settling) -> f64| -> BTreeMap<Method, Figures> {
            let of = |method| digests[&(number, Some(method))].iter().map(|run| figure(&judge(run))).collect();
            methods(place).map(|method| (method, of(method))).collect()
        };
        let settle = by_seed(&|settling| settling.settle_s);
        let overshoot = estimates(&by_seed(&|settling| settling.overshoot_ratio));
        let settles = |method: Method| Estimate::of(&settle[&method]).mean <= SETTLE_BAR_S;
        let is_idle = settles(fixed(place[0])) || settles(Method::None);
        judged.count(&case.name, is_idle, settles(Method::Elastic));
        let bar = Some(SETTLE_BAR_S).filter(|_| !is_idle);
        section.rows.extend(paired_rows(&row("settle_s", "s", bar), fixed(place[0]), &settle));
        section.rows.extend(rows(&row("overshoot_ratio", "", None), fixed(place[0]), &overshoot));
        let missed = by_seed(&|settling| settling.missed_percent);
        section.rows.extend(paired_rows(&row("windows_missed_percent", "%", None), fixed(place[0]), &missed));
        if case.prelude == Prelude::Fresh {
            let shown = [fixed(place[0]), Method::Published, Method::Repaired, Method::Elastic];
            let runs = shown.map(|method| (method.name(), &digests[&(number, Some(method))][0]));
            section.figures.extend(figures(case, &reference, &runs));
        }
    }
    let metric = ("all steps with bars", "steps_settled_percent");
    let why = "Without a bar, because a kept budget or no control settles as well";
    judged.report(&mut section, metric, STEPS_BAR_PERCENT, why);
    Ok(section)
}

/// Plots over time, with one run of each method.
fn figures(case: &Case, reference: &Reference, runs: &[(String, &Digest)]) -> [Plot; 3] {
    let at = case.setup.warmup + LEAD;
    let since = |instant: Instant| instant.as_nanos() as f64 / 1e9 - at.as_secs_f64();
    let over_time = |figure: &dyn Fn(&Window) -> f64| -> Vec<Series> {
        let series = runs.iter().map(|(name, run)| {
            let windows = run.windows(WINDOW);
            Series::new(name, Style::Dotted, windows.iter().map(|window| (since(window.until), figure(window))))
        });
        series.collect()
    };
    let kib = |bytes: u64| if bytes == u64::MAX { f64::NAN } else { bytes as f64 / 1024.0 };
    let budgets = runs.iter().map(|(name, run)| {
        let points = run.series.iter();
        let points =
            points.map(|sample| (since(sample.at), kib(sample.budget_bytes), explain::admission(&sample.reason)));
        Series::named(name, Style::Dotted, points)
    });
    let plot = |what: &str, note: String, y, series: Vec<Series>| {
        Plot::new(format!("{}: {what}", case.name), note, Axis::linear("s since the step"), y, series)
    };
    let light_ms = |window: &Window| window.tenants[1].mean_response().map_or(f64::NAN, Duration::as_millis_f64);
    [
        plot(
            "light latency",
            format!("Mean of windows of 0.5 s. New oracle: {:.2} ms.", reference.light_ms),
            Axis::log("mean light latency, ms"),
            over_time(&light_ms),
        ),
        plot(
            "throughput",
            format!("New oracle: {:.1} MB/s.", reference.bytes_per_s / 1e6),
            Axis::linear("MB/s"),
            over_time(&|window| window.bytes_per_s() / 1e6),
        ),
        plot("budget", String::new(), Axis::log("KiB"), budgets.collect()),
    ]
}
