//! Figures 4 to 9 of the SlowFast CoDel paper, simulated on a batching store.

use std::collections::BTreeMap;

use evenkeel_control::Duration;
use evenkeel_control::admission::{Config, SlowFastConfig};
use evenkeel_control::mclock::Qos;
use evenkeel_control::units::{Kind, Rates};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::store::StoreParams;

use super::scene::{GRID_KIB, Method, estimate, estimates, mean, p99_ms, paired_rows, rows, seconds, setup};
use crate::experiment::batch::Batch;
use crate::experiment::oracle::{oracles, with};
use crate::experiment::paired::{self, Figures};
use crate::experiment::{Better, Claim, Digest, Execute, Options, Row, Section};
use crate::report::{Axis, Plot, Series, Style};
use crate::statistics::Estimate;
use crate::workload::{Requests, Spec};
use crate::world::{Client, Setup, Tenant};

const SPAN: u64 = 64 << 30;
/// Payload of a recovery write, in bytes. The paper leaves it open; Ceph recovers objects in pieces of this order and larger.
const RECOVERY_BYTES: u32 = 64 << 10;
/// Queue depth of recovery: its writes in flight. The paper leaves it open.
const RECOVERY_DEPTH: u32 = 64;
/// Time from the start of one burst of the client to the start of the next. The paper leaves it open.
const BURST_EVERY: Duration = Duration::from_millis(100);
/// Trade-offs of figures 8 and 9: slope of the throughput-latency curve at SlowFast CoDel's target, in MiB/s per ms.
const TRADEOFFS: [f64; 4] = [0.1, 1.0, 2.0, 5.0];

/// Bursts of figures 4 and 5: size of a request in KiB, and requests in a burst.
const BURSTS: [(u32, u32); 2] = [(4, 64), (32, 32)];
/// Request sizes of figures 6 to 9, in KiB.
const SIZES_KIB: [u32; 3] = [4, 32, 64];

/// The paper's policy: the client has a reservation of 1,000 requests/s and weight 2, recovery 1 request/s and weight 1.
fn tenants() -> Vec<Tenant> {
    let tenant = |name: &str, iops, weight| {
        Tenant::new(name, Qos { reservation: Rates { iops, bytes_per_s: 0 }, weight, ..Qos::default() })
    };
    vec![tenant("client", 1_000, 2), tenant("recovery", 1, 1)]
}

fn store() -> DeviceParams {
    DeviceParams::Store(StoreParams::ssd())
}

fn writes(kib: u32) -> Requests {
    Requests::random(Kind::Write, kib << 10, SPAN)
}

/// A setup with a bursty client (`burst`: size of a request in KiB, and requests of a burst), with recovery, or with both.
fn bursty(burst: Option<(u32, u32)>, recovery: bool, duration: Duration) -> Setup {
    let mut clients = Vec::new();
    if let Some((kib, requests)) = burst {
        clients.push(Client::always(0, Spec::bursts(requests, BURST_EVERY, writes(kib))));
    }
    if recovery {
        let requests = Requests::random(Kind::Write, RECOVERY_BYTES, SPAN);
        clients.push(Client::always(1, Spec::closed(RECOVERY_DEPTH, requests)));
    }
    let mut setup = setup(store(), tenants(), clients, duration);
    // SlowFast CoDel has its first fit after 50 s; it counts as it then is, as do the others.
    setup.warmup = seconds(60.0);
    setup
}

/// The tenants of a run of figures 4 and 5: the client alone, or the client and recovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum With {
    ClientAlone,
    Both,
}

/// Runs figures 4 and 5: the client's latency with and without recovery under each method.
pub(super) fn recovery<E>(
    options: &Options,
    execute: &mut Execute<'_, E>,
    claims: &mut Vec<Claim>,
) -> Result<Section, E> {
    let duration = seconds(if options.quick { 60.0 } else { 120.0 });
    let seeds: Vec<u64> = (options.seed..).take(options.count(10, 2)).collect();
    let recovery_alone = [(bursty(None, true, duration), &seeds[..1])];
    let oracle = oracles("recovery oracle", &recovery_alone, execute)?.remove(0);
    let mut batch = Batch::new();
    for burst in BURSTS {
        for method in Method::all() {
            for (with_what, recovers) in [(With::ClientAlone, false), (With::Both, true)] {
                let setup = with(&bursty(Some(burst), recovers, duration), method.config(false));
                batch.add(&Some((burst, with_what, method)), &setup, &seeds);
            }
        }
    }
    let fixed = Config::Fixed { budget_bytes: oracle.budget_bytes };
    batch.add(&None, &with(&recovery_alone[0].0, fixed), &seeds);
    let mut digests = batch.execute("recovery", execute)?;
    let alone = digests.remove(&None).unwrap_or_default();
    let batch_ms = mean(&alone, |run| run.tenants[1].device.mean_ms);
    let mut section = Section::new(
        "Figures 4 and 5: a bursty client and recovery",
        [format!(
            "The client (1,000 requests/s reserved, weight 2) writes in bursts every {} ms; recovery (1 request/s reserved, weight \
             1) keeps {RECOVERY_DEPTH} writes of {} KiB in flight. Baseline: no admission control. The service time of one recovery \
             batch is the mean device latency of recovery alone with the oracle's budget ({:.0} KiB): {batch_ms:.2} ms.",
            BURST_EVERY.as_millis_f64(),
            RECOVERY_BYTES >> 10,
            oracle.budget_bytes as f64 / 1024.0,
        )],
    );
    section
        .rows
        .push(Row { baseline: Some(batch_ms), ..Row::new("recovery alone", "recovery_batch_ms", "ms", Better::Lower) });
    for burst in BURSTS {
        let name = format!("bursts of {} x {} KiB", burst.1, burst.0);
        let runs = |with_what, method| &digests[&Some((burst, with_what, method))][..];
        let values = |figure: &dyn Fn(Method) -> Estimate| -> BTreeMap<Method, Estimate> {
            Method::all().into_iter().map(|method| (method, figure(method))).collect()
        };
        let by_seed = |with_what, figure: &dyn Fn(&Digest) -> f64| -> BTreeMap<Method, Figures> {
            let of = |method| runs(with_what, method).iter().map(figure).collect();
            Method::all().into_iter().map(|method| (method, of(method))).collect()
        };
        let tails = by_seed(With::Both, &client_p99_ms);
        let alone = by_seed(With::ClientAlone, &client_p99_ms);
        let (without, both) = (estimates(&alone), estimates(&tails));
        let row = |metric, unit, better, bar| Row { bar, ..Row::new(&name, metric, unit, better) };
        let mut add = |made: Vec<Row>| section.rows.extend(made);
        add(rows(&row("client_p99_without_recovery_ms", "ms", Better::Lower, None), Method::None, &without));
        let tail = row("client_p99_with_recovery_ms", "ms", Better::Lower, None);
        add(paired_rows(&tail, Method::None, &tails));
        let speeds = by_seed(With::Both, &|run| run.bytes_per_s);
        let percent = |speed: &Figures| -> Figures {
            paired::ratios(speed, &speeds[&Method::None]).into_iter().map(|ratio| 100.0 * ratio).collect()
        };
        let throughput: BTreeMap<Method, Figures> =
            speeds.iter().map(|(&method, speed)| (method, percent(speed))).collect();
        let kept = row("throughput_vs_none_percent", "%", Better::Higher, Some(97.0));
        let bound = values(&|method| {
            let allowed: Figures = alone[&method].iter().map(|ms| ms + batch_ms).collect();
            Estimate::of(&paired::ratios(&tails[&method], &allowed))
        });
        add(rows(&row("client_p99_vs_alone_plus_batch_ratio", "", Better::Lower, Some(1.1)), Method::None, &bound));
        add(paired_rows(&kept, Method::None, &throughput));
        let inversion = values(&|method| estimate(runs(With::Both, method), |run| run.tenants[0].inversion_s));
        add(rows(&row("priority_inversion_s", "s", Better::Lower, None), Method::None, &inversion));
        let deficit =
            values(&|method| estimate(runs(With::Both, method), |run| run.tenants[0].deficit.requests as f64));
        add(rows(&row("reservation_deficit_requests", "", Better::Lower, None), Method::None, &deficit));
        section.figures.push(bars(
            &format!("Client p99, {name}"),
            "client p99, ms",
            &[("without recovery", &without), ("with recovery", &both)],
        ));
        claim_recovery(claims, &name, &without, &both);
    }
    Ok(section)
}

fn claim_recovery(
    claims: &mut Vec<Claim>,
    name: &str,
    without: &BTreeMap<Method, Estimate>,
    both: &BTreeMap<Method, Estimate>,
) {
    let at = |values: &BTreeMap<Method, Estimate>, method: Method| values[&method].mean;
    let p99 = |method| at(both, method);
    let (fixed_256, fixed_512) = (p99(Method::Fixed(256)), p99(Method::Fixed(512)));
    let best = fixed_256.min(fixed_512);
    let list = Method::all()
        .into_iter()
        .filter(|method| matches!(method, Method::None | Method::Fixed(_) | Method::Published));
    let list: Vec<String> = list.map(|method| format!("{} {:.2}", method.name(), p99(method))).collect();
    let numbers = format!("{name}, client p99 with recovery, ms: {}", list.join(", "));
    claims.push(Claim {
        source: "fig. 4",
        text: format!("Without admission control, recovery raises the client's p99 substantially ({name})."),
        reproduced: p99(Method::None) > 1.5 * at(without, Method::None),
        numbers: format!("{:.2} ms without recovery, {:.2} ms with", at(without, Method::None), p99(Method::None)),
    });
    claims.push(Claim {
        source: "fig. 5",
        text: format!("With admission control (256 or 512 KiB, SlowFast) the client's p99 rises much less ({name})."),
        reproduced: [fixed_256, fixed_512, p99(Method::Published)].iter().all(|&ms| ms < 0.7 * p99(Method::None)),
        numbers: numbers.clone(),
    });
    claims.push(Claim {
        source: "fig. 5",
        text: format!("A budget of 128 KiB starves the back end: slightly higher tails than 256 and 512 KiB ({name})."),
        reproduced: p99(Method::Fixed(128)) > fixed_256.max(fixed_512),
        numbers: numbers.clone(),
    });
    claims.push(Claim {
        source: "fig. 5",
        text: format!("1024 KiB bloats again: higher tails than 256 and 512 KiB ({name})."),
        reproduced: p99(Method::Fixed(1024)) > fixed_256.max(fixed_512),
        numbers: numbers.clone(),
    });
    claims.push(Claim {
        source: "fig. 5",
        text: format!("SlowFast is among the best: below 128 and 1024 KiB ({name})."),
        reproduced: p99(Method::Published) < p99(Method::Fixed(128)).min(p99(Method::Fixed(1024))),
        numbers: format!("SlowFast {:.2} ms, best fixed {best:.2} ms; {numbers}", p99(Method::Published)),
    });
}

fn client_p99_ms(run: &Digest) -> f64 {
    p99_ms(run, 0)
}

/// An arm of figures 6 to 9: a method, or SlowFast CoDel as published with the trade-off at this index of [`TRADEOFFS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Arm {
    Method(Method),
    TradeOff(usize),
}

/// Runs figures 6 to 9: continuous writes of several sizes, under each method and each trade-off.
pub(super) fn continuous<E>(
    options: &Options,
    execute: &mut Execute<'_, E>,
    claims: &mut Vec<Claim>,
) -> Result<[Section; 2], E> {
    let duration = seconds(if options.quick { 60.0 } else { 300.0 });
    let seeds: Vec<u64> = (options.seed..).take(options.count(1, 1)).collect();
    let methods: Vec<Method> = std::iter::once(Method::None)
        .chain(GRID_KIB.map(Method::Fixed))
        .chain([Method::Published, Method::Repaired, Method::Elastic])
        .collect();
    let mut batch = Batch::new();
    for kib in SIZES_KIB {
        let setup = setup(store(), tenants(), vec![Client::always(0, Spec::closed(64, writes(kib)))], duration);
        for &method in &methods {
            batch.add(&(kib, Arm::Method(method)), &with(&setup, method.config(false)), &seeds);
        }
        for (place, &tradeoff_mib_per_s_per_ms) in TRADEOFFS.iter().enumerate().skip(1) {
            let config = SlowFastConfig { tradeoff_mib_per_s_per_ms, ..SlowFastConfig::PUBLISHED };
            batch.add(&(kib, Arm::TradeOff(place)), &with(&setup, Config::SlowFast(config)), &seeds);
        }
    }
    let digests = batch.execute("figures 6 to 9", execute)?;
    let runs = |kib: u32, arm: Arm| &digests[&(kib, arm)][..];
    let throughput = |run: &Digest| run.bytes_per_s / 1e6;
    let mut six = Section::new(
        "Figures 6 and 7: continuous writes, queue depth 64",
        ["300 s (60 in a quick run) from a cold start, no recovery. Baseline: no admission control."],
    );
    let mut eight = Section::new(
        "Figures 8 and 9: the trade-off parameter of SlowFast",
        ["As published, with trade-offs of 0.1, 1, 2 and 5 MB/s per ms."],
    );
    let mut by_tradeoff: [Vec<Series>; 2] = [Vec::new(), Vec::new()];
    for kib in SIZES_KIB {
        let name = format!("{kib} KiB writes");
        let by_seed = |figure: &dyn Fn(&Digest) -> f64| -> BTreeMap<Method, Figures> {
            let of = |method| runs(kib, Arm::Method(method)).iter().map(figure).collect();
            methods.iter().map(|&method| (method, of(method))).collect()
        };
        let (tails, speeds) = (by_seed(&client_p99_ms), by_seed(&throughput));
        let (p99, speed) = (estimates(&tails), estimates(&speeds));
        let budget: BTreeMap<Method, Estimate> = estimates(&by_seed(&|run| run.budget.mean_bytes / 1024.0))
            .into_iter()
            .filter(|(method, _)| method.adapts())
            .collect();
        let device = estimates(&by_seed(&|run| run.tenants[0].device.p99_ms));
        let row = |metric, unit, better| Row::new(&name, metric, unit, better);
        six.rows.extend(paired_rows(&row("client_p99_ms", "ms", Better::Lower), Method::None, &tails));
        six.rows.extend(rows(&row("device_p99_ms", "ms", Better::Lower), Method::None, &device));
        six.rows.extend(paired_rows(&row("throughput_mb_per_s", "MB/s", Better::Higher), Method::None, &speeds));
        six.rows.extend(rows(&row("mean_budget_kib", "KiB", Better::Lower), Method::None, &budget));
        six.figures.push(bars(&format!("Fig. 6: client p99, {name}"), "client p99, ms", &[("p99", &p99)]));
        six.figures.push(bars(&format!("Fig. 7: throughput, {name}"), "MB/s", &[("throughput", &speed)]));
        claim_continuous(claims, kib, &p99, &speed, budget[&Method::Published].mean);

        let mut curves = [Vec::new(), Vec::new()];
        for (place, tradeoff) in TRADEOFFS.into_iter().enumerate() {
            let arm = if place == 0 { Arm::Method(Method::Published) } else { Arm::TradeOff(place) };
            let figures = [mean(runs(kib, arm), client_p99_ms), mean(runs(kib, arm), throughput)];
            let metrics = [("client_p99_ms", "ms", Better::Lower), ("throughput_mb_per_s", "MB/s", Better::Higher)];
            for ((value, curve), (metric, unit, better)) in figures.into_iter().zip(&mut curves).zip(metrics) {
                curve.push((tradeoff, value));
                let row = Row::new(&name, &format!("{metric}_tradeoff_{tradeoff}"), unit, better);
                eight.rows.push(Row { faithful: Some(value), ..row });
            }
        }
        claim_tradeoff(claims, &name, &curves);
        for (all, curve) in by_tradeoff.iter_mut().zip(curves) {
            all.push(Series::new(&name, Style::Dotted, curve));
        }
    }
    let titles = [("Fig. 8: client p99", "client p99, ms"), ("Fig. 9: throughput", "MB/s")];
    for ((title, label), series) in titles.into_iter().zip(by_tradeoff) {
        let (x, y) = (Axis::log("trade-off, MB/s per ms"), Axis::linear(label));
        eight.figures.push(Plot::new(format!("{title} by trade-off"), "", x, y, series));
    }
    Ok([six, eight])
}

fn claim_continuous(
    claims: &mut Vec<Claim>,
    kib: u32,
    p99: &BTreeMap<Method, Estimate>,
    speed: &BTreeMap<Method, Estimate>,
    budget_kib: f64,
) {
    let list = |values: &BTreeMap<Method, Estimate>| {
        let shown = values.iter().filter(|(method, _)| matches!(method, Method::Fixed(_) | Method::Published));
        shown.map(|(method, value)| format!("{} {:.2}", method.name(), value.mean)).collect::<Vec<_>>().join(", ")
    };
    let at = |values: &BTreeMap<Method, Estimate>, method| values[&method].mean;
    let fixed = |values: &BTreeMap<Method, Estimate>| GRID_KIB.map(|kib| at(values, Method::Fixed(kib)));
    let tails = fixed(p99);
    claims.push(Claim {
        source: "fig. 6",
        text: format!("Without recovery the largest fixed budget, 1024 KiB, has the best tails ({kib} KiB)."),
        reproduced: tails.iter().all(|&ms| tails[3] <= ms * 1.01),
        numbers: format!("client p99, ms: {}", list(p99)),
    });
    if kib == 4 {
        claims.push(Claim {
            source: "fig. 6, unfavourable",
            text: "At 4 KiB SlowFast's tails are worse than those of 512 and 1024 KiB.".to_owned(),
            reproduced: at(p99, Method::Published) > tails[2].max(tails[3]),
            numbers: format!("client p99, ms: {}", list(p99)),
        });
    }
    let (low, high) = if kib == 4 { (256.0, 512.0) } else { (512.0, 1024.0) };
    claims.push(Claim {
        source: "fig. 6",
        text: format!("SlowFast keeps the mean budget between {low} and {high} KiB ({kib} KiB)."),
        reproduced: (low..=high).contains(&budget_kib),
        numbers: format!("{budget_kib:.0} KiB"),
    });
    if kib > 4 {
        let best = fixed(speed).into_iter().fold(0.0, f64::max);
        claims.push(Claim {
            source: "fig. 7",
            text: format!("SlowFast's throughput is above that of every fixed budget ({kib} KiB)."),
            reproduced: at(speed, Method::Published) > best,
            numbers: format!("MB/s: {}", list(speed)),
        });
    }
}

fn claim_tradeoff(claims: &mut Vec<Claim>, name: &str, [p99, speed]: &[Vec<(f64, f64)>; 2]) {
    let values = |curve: &[(f64, f64)]| curve.iter().map(|point| point.1).collect::<Vec<f64>>();
    let list = |curve: &[(f64, f64)]| curve.iter().map(|(x, y)| format!("{x}: {y:.2}")).collect::<Vec<_>>().join(", ");
    let (first, last) = (values(speed)[0], values(speed)[3]);
    claims.push(Claim {
        source: "fig. 9",
        text: format!("A higher trade-off costs throughput ({name})."),
        reproduced: values(speed).windows(2).all(|pair| pair[1] <= pair[0] * 1.01) && last < 0.99 * first,
        numbers: format!("MB/s by trade-off: {}", list(speed)),
    });
    let (first, last) = (values(p99)[0], values(p99)[3]);
    claims.push(Claim {
        source: "fig. 8",
        text: format!("A higher trade-off raises the client's tail latency ({name})."),
        reproduced: last > 1.01 * first,
        numbers: format!("client p99, ms, by trade-off: {}", list(p99)),
    });
}

/// A plot of one figure (`label`) over the methods, with one series for each of `groups`.
fn bars(title: &str, label: &str, groups: &[(&str, &BTreeMap<Method, Estimate>)]) -> Plot {
    let series = groups.iter().map(|&(name, values)| {
        let points = (1u32..).zip(values).map(|(n, (method, value))| (f64::from(n), value.mean, method.name()));
        Series::named(name, Style::Dots, points)
    });
    let order = groups.first().map(|(_, values)| values.keys().map(|method| method.name()).collect::<Vec<_>>());
    let note = format!("From left to right: {}.", order.unwrap_or_default().join(", "));
    Plot::new(title, note, Axis::linear("method"), Axis::linear(label), series)
}
