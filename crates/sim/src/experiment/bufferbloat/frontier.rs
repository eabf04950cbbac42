//! Throughput and latency on four devices under three workloads, compared with each case's oracle, its best fixed budget.

use std::collections::BTreeMap;

use evenkeel_control::units::Kind;
use evenkeel_model::device::DeviceParams;
use evenkeel_model::disk::DiskParams;
use evenkeel_model::ssd::SsdParams;
use evenkeel_model::store::StoreParams;

use super::scene::{Judged, Method, estimates, few, mean, p99_ms, paired_rows, rows, seconds, setup, tenant};
use crate::experiment::batch::Batch;
use crate::experiment::oracle::{oracles, with};
use crate::experiment::paired::{self, Figures};
use crate::experiment::{Better, Digest, Execute, Options, Row, Section};
use crate::report::{Axis, Plot, Series, Style};
use crate::statistics::Estimate;
use crate::workload::{Requests, SizeShare, Spec};
use crate::world::{Client, Setup};

/// Bar: the largest loss of throughput that a method may have, in per cent of the oracle's throughput.
const LOSS_BAR_PERCENT: f64 = 3.0;
/// Bar: the lowest throughput, in per cent of that of the best fixed budget by throughput.
const KEPT_BAR_PERCENT: f64 = 97.0;
/// Bar: the share of the judged cases that meet [`KEPT_BAR_PERCENT`] and [`P99_BAR`], in per cent.
const CASES_BAR_PERCENT: f64 = 90.0;
/// Bar: the largest p99 latency of the light tenant, as a multiple of its p99 under the oracle's budget.
const P99_BAR: f64 = 1.2;
/// Bar: the largest coefficient of variation of the admission budget over a run (standard deviation divided by mean).
const CV_BAR: f64 = 0.1;

const SMALL_READS: &str = "4 KiB reads";
const MIXTURE: &str = "4 KiB to 4 MiB, 70 % reads";
/// Seeds with which an oracle's sweep runs each budget.
const SWEEPS: usize = 2;
/// Seeds per budget of a sweep under the mixture of sizes, whose throughput scatters by more than the oracle may lose.
const MIXTURE_SWEEPS: usize = 6;
/// Warm-up of adaptive methods and of the oracle, in seconds of virtual time: as long as the paper's runs.
const LEARNING_S: f64 = 300.0;
/// Shorter warm-up, in seconds of virtual time, for the fastest device and for small reads of solid-state devices: a long
/// run would have too many requests. SlowFast CoDel makes its first fit after 50 s.
const QUICK_LEARNING_S: f64 = 60.0;
/// The device and workload that run without the long warm-up, which would take 30 million reads. Their latency lies below
/// SlowFast CoDel's smallest target, so its fit would change nothing.
const NO_FIT_NEEDED: (&str, &str) = ("nvme", SMALL_READS);
/// Runs (seeds) of each method other than `elastic`, the project's own.
const OTHERS_SEEDS: usize = 4;

/// A device under a workload.
pub(super) struct Case {
    pub(super) device: &'static str,
    workload: &'static str,
    rotational: bool,
    pub(super) setup: Setup,
}

impl Case {
    fn name(&self) -> String {
        format!("{}, {}", self.device, self.workload)
    }
}

/// A device with its load, warm-up and duration, chosen so that a run has some thousand requests of the light tenant and not
/// too many of the bulk tenant.
struct Bench {
    name: &'static str,
    device: DeviceParams,
    rotational: bool,
    queue_depth: u32,
    light_per_s: f64,
    warmup_s: f64,
    duration_s: f64,
}

fn benches() -> [Bench; 4] {
    // Beyond the fast region and with garbage everywhere: what a drive does all day, not what it does for 20 s.
    let sata = SsdParams::sata();
    let sata = SsdParams {
        slc_bytes: 0,
        geometry: evenkeel_model::ssd::Geometry { used: 1.0, aged: true, ..sata.geometry },
        ..sata
    };
    let bench = |name, device, rotational, queue_depth, light_per_s, warmup_s, duration_s| Bench {
        name,
        device,
        rotational,
        queue_depth,
        light_per_s,
        warmup_s,
        duration_s,
    };
    [
        bench("disk", DeviceParams::Disk(DiskParams::nearline()), true, 128, 15.0, 10.0, 60.0),
        bench("sata", DeviceParams::Ssd(sata), false, 256, 400.0, 2.0, 4.0),
        bench("nvme", DeviceParams::Ssd(SsdParams::nvme()), false, 256, 1_500.0, 0.6, 1.2),
        bench("store", DeviceParams::Store(StoreParams::ssd()), false, 256, 200.0, 3.0, 20.0),
    ]
}

/// Bytes of the device that requests go to: 64 GiB, far beyond any cache, within every device.
const SPAN: u64 = 64 << 30;

/// For each workload: its name, the bulk tenant's requests, the kind of the light tenant's requests, and a factor on the
/// run's duration, because larger requests are fewer per second.
fn workloads() -> [(&'static str, Requests, Kind, f64); 3] {
    let sizes = [(4 << 10, 70), (64 << 10, 25), (1 << 20, 4), (4 << 20, 1)];
    let mixed = Requests {
        read_percent: 70.0,
        sizes: sizes.map(|(bytes, weight)| SizeShare { bytes, weight }).to_vec(),
        ..Requests::random(Kind::Read, 4 << 10, SPAN)
    };
    [
        (SMALL_READS, Requests::random(Kind::Read, 4 << 10, SPAN), Kind::Read, 1.0),
        ("64 KiB writes", Requests::random(Kind::Write, 64 << 10, SPAN), Kind::Write, 4.0),
        (MIXTURE, mixed, Kind::Read, 20.0),
    ]
}

pub(super) fn cases(quick: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for bench in benches() {
        for (workload, requests, light, longer) in workloads() {
            let longer = if bench.rotational { 1.0 } else { longer };
            let shorter = longer * if quick { 0.5 } else { 1.0 };
            let light = Spec::open(bench.light_per_s, Requests::random(light, 4 << 10, SPAN));
            let bulk = Spec::closed(bench.queue_depth, requests);
            let clients = vec![Client::always(0, bulk), Client::always(1, light)];
            let tenants = vec![tenant("bulk", 1), tenant("light", 10)];
            let mut setup = setup(bench.device.clone(), tenants, clients, seconds(bench.duration_s * shorter));
            setup.warmup = seconds(bench.warmup_s);
            cases.push(Case { device: bench.name, workload, rotational: bench.rotational, setup });
        }
    }
    cases
}

/// Runs all methods and oracles on all cases.
pub(super) fn run<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Section, E> {
    let cases = cases(options.quick);
    let sweep_seeds: Vec<u64> = (options.seed + 1_000_000..).take(MIXTURE_SWEEPS).collect();
    let setups: Vec<(Setup, &[u64])> = cases
        .iter()
        .map(|case| {
            let seeds = match case.workload {
                _ if options.quick => 1,
                MIXTURE => MIXTURE_SWEEPS,
                _ => SWEEPS,
            };
            (case.setup.clone(), &sweep_seeds[..seeds])
        })
        .collect();
    let oracles = oracles("oracles", &setups, execute)?;
    let seeds: Vec<u64> = (options.seed..).take(options.count(10, 1)).collect();
    let mut batch = Batch::new();
    // Keys of the best fixed budgets by throughput, behind those of the cases.
    let fastest = |place: usize| (cases.len() + place, None);
    for (place, (case, oracle)) in cases.iter().zip(&oracles).enumerate() {
        let fixed = |budget_bytes| evenkeel_control::admission::Config::Fixed { budget_bytes };
        let many = case.workload == SMALL_READS && !case.rotational;
        let learning = if many || case.device == "nvme" { QUICK_LEARNING_S } else { LEARNING_S };
        let learnt = |needed: bool| {
            let warmup = if needed && !options.quick { seconds(learning) } else { case.setup.warmup };
            Setup { warmup, ..case.setup.clone() }
        };
        // Thousands of small requests a second tell ours enough in less time than its warm-up is anyway.
        let ours = learnt(!many);
        batch.add(&(place, None), &with(&ours, fixed(oracle.budget_bytes)), &seeds);
        let most = oracle.points.iter().max_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s));
        let most = fixed(most.map_or(oracle.budget_bytes, |point| point.budget_bytes));
        batch.add(&fastest(place), &with(&ours, most), &seeds);
        for method in Method::all() {
            let others = few(options, &seeds, OTHERS_SEEDS);
            let (setup, seeds) = match method {
                Method::Elastic => (ours.clone(), &seeds[..]),
                Method::Published | Method::Repaired => {
                    (learnt((case.device, case.workload) != NO_FIT_NEEDED), few(options, &seeds, 2))
                }
                _ => (case.setup.clone(), others),
            };
            batch.add(&(place, Some(method)), &with(&setup, method.config(case.rotational)), seeds);
        }
    }
    let digests = batch.execute("frontier", execute)?;
    let mut section = Section::new(
        "Frontier: four devices, three workloads",
        [
            "A bulk tenant with a deep queue beside a light one of ten times its weight that sends 4 KiB requests at a low \
             rate. The oracle is the smallest fixed budget that keeps 97 % of the peak throughput, the best fixed budget the \
             one with the highest throughput; both are found by a sweep with other seeds. Baseline: no admission control.",
            "Before the measurement SlowFast, elastic and the oracle run for 300 s (60 s on NVMe), so that their budgets \
             settle. On small reads of solid-state devices SlowFast runs for 60 s, elastic and the oracle for some thousands \
             of requests, like the other methods. In a quick run no method gets extra time. budget_cv: standard deviation of \
             the budget over time, divided by its mean.",
        ],
    );
    let mut points: BTreeMap<Method, Vec<_>> = BTreeMap::new();
    let mut judged = Judged::default();
    for (place, (case, oracle)) in cases.iter().zip(&oracles).enumerate() {
        let reference = &digests[&(place, None)];
        let (full, tail) = (mean(reference, |run| run.bytes_per_s), mean(reference, light_p99_ms));
        let name = case.name();
        let by_seed = |figure: &dyn Fn(&Digest) -> f64| -> BTreeMap<Method, Figures> {
            let runs = |method| digests[&(place, Some(method))].iter().map(figure).collect();
            Method::all().into_iter().map(|method| (method, runs(method))).collect()
        };
        let adaptive = |figure: &dyn Fn(&Digest) -> f64| -> BTreeMap<Method, Estimate> {
            estimates(&by_seed(figure)).into_iter().filter(|(method, _)| method.adapts()).collect()
        };
        let relative = |reference: &[Digest], figure: &dyn Fn(&Digest) -> f64, of: fn(f64) -> f64| {
            let reference: Figures = reference.iter().map(figure).collect();
            let each =
                |figures: Figures| -> Figures { paired::ratios(&figures, &reference).into_iter().map(of).collect() };
            let all = by_seed(figure).into_iter().map(|(method, figures)| (method, each(figures)));
            all.collect::<BTreeMap<Method, Figures>>()
        };
        let losses = relative(reference, &|run| run.bytes_per_s, |ratio| 100.0 * (1.0 - ratio));
        let tails = relative(reference, &light_p99_ms, |ratio| ratio);
        let kept = relative(&digests[&fastest(place)], &|run| run.bytes_per_s, |ratio| 100.0 * ratio);
        let ratios = estimates(&tails);
        for (&method, loss) in &estimates(&losses) {
            points.entry(method).or_default().push((loss.mean, ratios[&method].mean, name.clone()));
        }
        let row = |metric, unit, bar| Row { bar, ..Row::new(&name, metric, unit, Better::Lower) };
        let of_kept = estimates(&kept);
        let meets_both = |method: Method| of_kept[&method].mean >= KEPT_BAR_PERCENT && ratios[&method].mean <= P99_BAR;
        let none_meets = meets_both(Method::None) && estimates(&losses)[&Method::None].mean <= LOSS_BAR_PERCENT;
        judged.count(&name, none_meets, meets_both(Method::Elastic));
        let bar = |bar: f64| Some(bar).filter(|_| !none_meets);
        let loss = row("throughput_loss_vs_oracle_percent", "%", bar(LOSS_BAR_PERCENT));
        section.rows.extend(paired_rows(&loss, Method::None, &losses));
        let metric = "throughput_vs_best_fixed_percent";
        let kept_row = Row { bar: bar(KEPT_BAR_PERCENT), ..Row::new(&name, metric, "%", Better::Higher) };
        section.rows.extend(paired_rows(&kept_row, Method::None, &kept));
        let ratio = row("light_p99_vs_oracle_ratio", "", bar(P99_BAR));
        section.rows.extend(paired_rows(&ratio, Method::None, &tails));
        let mut add =
            |row: Row, values: &BTreeMap<Method, Estimate>| section.rows.extend(rows(&row, Method::None, values));
        add(row("budget_cv", "", Some(CV_BAR)), &adaptive(&|run| run.budget.cv));
        add(row("budget_kib", "KiB", None), &adaptive(&|run| run.budget.mean_bytes / 1024.0));
        add(row("priority_inversion_ms_per_request", "ms", None), &estimates(&by_seed(&inversion_ms_per_request)));
        for (metric, unit, value) in [
            ("oracle_budget_kib", "KiB", oracle.budget_bytes as f64 / 1024.0),
            ("oracle_throughput_mb_per_s", "MB/s", full / 1e6),
            ("oracle_light_p99_ms", "ms", tail),
        ] {
            section.rows.push(Row { baseline: Some(value), ..row(metric, unit, None) });
        }
    }
    let metric = ("all cases with bars on loss and p99", "cases_within_both_bars_percent");
    let why = "Without bars on loss and p99, because no control meets both as well";
    judged.report(&mut section, metric, CASES_BAR_PERCENT, why);
    section.figures.push(Plot::new(
        "Loss of each method against the oracle",
        "Each point is a case; the oracle is at (0, 1). Down and to the left is better.",
        Axis::linear("throughput lost, %"),
        Axis::log("light p99 / oracle's light p99"),
        points.into_iter().map(|(method, points)| Series::named(method.name(), Style::Dots, points)),
    ));
    Ok(section)
}

fn light_p99_ms(run: &Digest) -> f64 {
    p99_ms(run, 1)
}

fn inversion_ms_per_request(run: &Digest) -> f64 {
    1e3 * run.tenants[1].inversion_s / run.tenants[1].requests.max(1) as f64
}
