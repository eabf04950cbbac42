//! Figures 5 to 11 of the packet-delay paper: the effect of delayed packets on throughput and request times.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::jitter::Jitter;
use evenkeel_model::link::{Delayed, LinkParams};

use super::hosts::{READER, at, ms, reader, writers};
use super::world::{Control, Host, Outcome, Setup, TICK, read_ms};
use super::{Execute, Options};
use crate::experiment::{Better, Claim, Row, Section};
use crate::report::{Axis, Plot, Series, Style};
use crate::statistics::Estimate;

/// Delays of figures 8 and 9, in ms. The paper's delay classes are 0.5 ms apart; its text names 9.6 ms where 9.5 ms is
/// used here.
const DELAYS_MS: [f64; 20] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 5.5, 6.0, 6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5];
/// Payload of a request, in bytes.
const BYTES: u32 = 64 << 10;

fn host(id: u64, kind: Kind, duration: Duration) -> Host {
    let active = vec![(Instant::ZERO, Instant::ZERO + duration)];
    Host { id, kind, bytes: BYTES, streams: 1, pace: Duration::ZERO, active }
}

/// The two kinds of request: its name, the kind, and the packets whose delay throttles it.
const KINDS: [(&str, Kind, Delayed); 2] =
    [("reads", Kind::Read, Delayed::Payload), ("writes", Kind::Write, Delayed::Acknowledgements)];

/// Payload read and written by the host with index `host` between `from` and `until`, in MB/s.
fn mb_per_s(outcome: &Outcome, host: usize, from: Instant, until: Instant) -> f64 {
    let ticks = outcome.between(from, until);
    let bytes: u64 = ticks.iter().map(|tick| tick.read_bytes[host] + tick.written_bytes[host]).sum();
    bytes as f64 / 1e6 / (ticks.len().max(1) as f64 * TICK.as_secs_f64())
}

/// Slope, intercept and R² of the least-squares line through (x, y) points.
fn line(points: &[(f64, f64)]) -> (f64, f64, f64) {
    let mean = |f: &dyn Fn(&(f64, f64)) -> f64| points.iter().map(f).sum::<f64>() / points.len() as f64;
    let (x, y) = (mean(&|p| p.0), mean(&|p| p.1));
    let xx = mean(&|p| (p.0 - x) * (p.0 - x));
    let xy = mean(&|p| (p.0 - x) * (p.1 - y));
    let yy = mean(&|p| (p.1 - y) * (p.1 - y));
    (xy / xx, y - xy / xx * x, xy * xy / (xx * yy))
}

/// Runs figures 8 and 9: the time per request of one client at queue depth 1, as a function of the delay.
pub(super) fn request_time<E>(
    options: &Options,
    execute: &mut Execute<'_, E>,
    claims: &mut Vec<Claim>,
) -> Result<Section, E> {
    let duration = Duration::from_secs(if options.quick { 2 } else { 10 });
    let mut runs = Vec::new();
    for (_, kind, on) in KINDS {
        for delay_ms in DELAYS_MS {
            let control = Control::Schedule(vec![(Instant::ZERO, READER, ms(delay_ms))]);
            let hosts = vec![host(READER, kind, duration)];
            runs.push((Setup { link: LinkParams::one_client(), hosts, on, control, duration }, options.seed));
        }
    }
    let outcomes = execute("request time", &runs)?;
    let mut section = Section::new(
        "Figures 8 and 9: time per request, as a function of the delay",
        [
            "One client, one request of 64 KiB after the other. Time per request is linear in the delay, so throughput is \
             hyperbolic in it; over a small range that looks close to linear too. The paper's figures are for its largest \
             delay of 9.6 ms, on other hardware.",
        ],
    );
    let paper = [[22.0, 5.0], [15.0, 2.5]];
    for (place, (name, ..)) in KINDS.into_iter().enumerate() {
        let outcomes = &outcomes[place * DELAYS_MS.len()..][..DELAYS_MS.len()];
        let rate = |outcome: &Outcome| mb_per_s(outcome, 0, at(0) + TICK, at(0) + duration);
        let points: Vec<(f64, f64)> = DELAYS_MS
            .into_iter()
            .zip(outcomes)
            .map(|(delay_ms, outcome)| (delay_ms, f64::from(BYTES) / 1e3 / rate(outcome)))
            .collect();
        let (slope, intercept, r2) = line(&points);
        for (which, delay_ms, outcome) in [(0, 0.0, outcomes.first()), (1, 9.5, outcomes.last())] {
            section.rows.push(Row {
                paper: Some(paper[place][which]),
                baseline: outcome.map(rate),
                ..Row::new(&format!("{name}, delay {delay_ms} ms"), "mb_per_s", "MB/s", Better::Higher)
            });
        }
        let row = |metric, unit, value| Row { baseline: Some(value), ..Row::new(name, metric, unit, Better::Higher) };
        section.rows.push(row("request_ms_for_each_ms_of_delay", "", slope));
        section.rows.push(row("request_ms_without_delay", "ms", intercept));
        section.rows.push(row("request_time_r2", "", r2));
        let (free, slow) = (rate(&outcomes[0]), rate(&outcomes[DELAYS_MS.len() - 1]));
        claims.push(Claim {
            source: if place == 0 { "fig. 8" } else { "fig. 9" },
            text: format!(
                "A delay of 0 to 9.6 ms takes {name} from {} to {} MB/s, predictably.",
                paper[place][0], paper[place][1]
            ),
            reproduced: free / slow > 4.0 && r2 > 0.99,
            numbers: format!(
                "{free:.1} to {slow:.1} MB/s; time per request {intercept:.2} ms + {slope:.2} × the delay, R² {r2:.4}"
            ),
        });
        let speeds = points.iter().map(|&(delay, ms)| (delay, f64::from(BYTES) / 1e3 / ms));
        section.figures.push(Plot::new(
            format!("Delay and {name}"),
            "",
            Axis::linear("delay, ms"),
            Axis::linear("MB/s"),
            [Series::new(name, Style::Dotted, speeds)],
        ));
    }
    Ok(section)
}

/// Throttled hosts of figures 5 to 7: id of the host, start and end of its delay in seconds of the run.
const HELD: [(u64, u64, u64); 3] = [(2, 20, 60), (3, 40, 80), (4, 40, 100)];
/// Duration of a run of figures 5 to 7 and 10, in seconds.
const COMPETITION_S: u64 = 120;

/// Runs figures 5 to 7 (four hosts, three of which are throttled for a while) and 10 (a reader beside ever more writers).
pub(super) fn competition<E>(
    options: &Options,
    execute: &mut Execute<'_, E>,
    claims: &mut Vec<Claim>,
) -> Result<Section, E> {
    let duration = Duration::from_secs(COMPETITION_S);
    let link = LinkParams { jitter: Jitter::LogNormal { sigma: 0.25 }, ..LinkParams::one_client() };
    let held = |&(id, from, until): &(u64, u64, u64)| [(at(from), id, ms(9.5)), (at(until), id, Duration::ZERO)];
    let mut schedule: Vec<_> = HELD.iter().flat_map(held).collect();
    schedule.sort_by_key(|&(at, ..)| at);
    let mut runs = Vec::new();
    for (_, kind, on) in KINDS {
        let hosts = (2..=5).map(|id| host(id, kind, duration)).collect();
        let control = Control::Schedule(schedule.clone());
        runs.push((Setup { link, hosts, on, control, duration }, options.seed));
    }
    let interference = Duration::from_secs(if options.quick { 10 } else { 60 });
    for hosts in [0, 1, 3] {
        let active = [(Instant::ZERO, Instant::ZERO + interference)];
        let hosts = std::iter::once(reader(interference)).chain(writers(hosts, &active)).collect();
        let control = Control::Schedule(Vec::new());
        let on = Delayed::Acknowledgements;
        runs.push((Setup { link: LinkParams::shared(), hosts, on, control, duration: interference }, options.seed));
    }
    let outcomes = execute("competition", &runs)?;
    let mut section = Section::new(
        "Figures 5 to 7 and 10: competition",
        [format!(
            "Four hosts with one stream of 64 KiB each; hosts 2, 3 and 4 are delayed by 9.5 ms from {}, {} and {} s to {}, \
             {} and {} s. Then a reader of 256 KiB/s beside 0, 4 and 12 writers.",
            HELD[0].1, HELD[1].1, HELD[2].1, HELD[0].2, HELD[1].2, HELD[2].2
        )],
    );
    for ((name, ..), outcome) in KINDS.into_iter().zip(&outcomes) {
        let rate = |host, from, until| mb_per_s(outcome, host, at(from), at(until));
        let equal: Vec<f64> = (0..4).map(|host| rate(host, 5, 20)).collect();
        let mean = Estimate::of(&equal).mean;
        let spread = equal.iter().map(|each| (each / mean - 1.0).abs()).fold(0.0, f64::max);
        claims.push(Claim {
            source: "fig. 5",
            text: format!("Four equal hosts share the throughput of {name} equally without control."),
            reproduced: spread < 0.05,
            numbers: format!("{mean:.2} MB/s each, within {:.1} %", 100.0 * spread),
        });
        // Hosts 3 to 5 are not delayed when host 2 is.
        let before: f64 = (1..4).map(|host| rate(host, 10, 20)).sum();
        let worst = (200..250).map(|tenth| {
            let from = Instant::ZERO + Duration::from_millis(100 * tenth);
            (1..4).map(|host| mb_per_s(outcome, host, from, from + Duration::from_millis(500))).sum::<f64>()
        });
        let drop = 100.0 * (1.0 - worst.fold(f64::INFINITY, f64::min) / before);
        let gain = 100.0 * ((1..4).map(|host| rate(host, 25, 40)).sum::<f64>() / before - 1.0);
        let row = |metric, better, value| Row { baseline: Some(value), ..Row::new(name, metric, "%", better) };
        section.rows.push(row("others_gain_percent", Better::Higher, gain));
        section.rows.push(row("others_worst_half_second_loss_percent", Better::Lower, drop));
        claims.push(Claim {
            source: "fig. 6, 7",
            text: format!("Throttling host 2 frees throughput of {name} for the others."),
            reproduced: gain > 5.0,
            numbers: format!("the other three together gain {gain:.1} %"),
        });
        claims.push(Claim {
            source: "fig. 6, 7, unfavourable",
            text: format!("Hosts without a delay are slower after host 2 gets one, for no stated reason ({name})."),
            reproduced: drop > 5.0,
            numbers: format!("their worst half second in the 5 s after is {drop:.1} % below what they had before"),
        });
        let series = (0..4).map(|host| {
            let points = (0..COMPETITION_S).map(|s| (s as f64, rate(host, s, s + 1)));
            Series::new(format!("host {}", host + 2), Style::Dotted, points)
        });
        let (x, y) = (Axis::linear("s"), Axis::linear("MB/s"));
        section.figures.push(Plot::new(format!("Four hosts, {name}"), "Means over 1 s.", x, y, series));
    }
    let waits: Vec<f64> = outcomes[2..].iter().map(|outcome| read_ms(&outcome.ticks).unwrap_or(f64::NAN)).collect();
    for (hosts, &wait) in [0, 1, 3].into_iter().zip(&waits) {
        let case = format!("{hosts} hosts write");
        section.rows.push(Row { baseline: Some(wait), ..Row::new(&case, "read_wait_ms", "ms", Better::Lower) });
    }
    claims.push(Claim {
        source: "fig. 10",
        text: "A small reader's latency grows with the number of hosts that write.".to_owned(),
        reproduced: waits.windows(2).all(|pair| pair[1] > 1.5 * pair[0]),
        numbers: format!("{:.1}, {:.1} and {:.1} ms beside 0, 1 and 3 hosts", waits[0], waits[1], waits[2]),
    });
    Ok(section)
}
