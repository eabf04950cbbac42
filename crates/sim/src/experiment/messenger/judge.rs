//! The results of the runs: differences between workers, throughput, and which claims are reproduced.

use super::cluster::{CONNECTIONS, Load, OSDS, Opening};
use super::world::{Outcome, Spread, WINDOW};
use super::{Arm, Case, NAME, Operation};
use crate::experiment::paired::{self, Figures};
use crate::experiment::{Better, Claim, Options, Report, Row, Section};
use crate::report::{Axis, Plot, Series, Style};
use crate::statistics::Estimate;

/// Bar: the part of the differences between workers that the project's own method must remove, in per cent of the part that
/// the best placement removes.
const REDUCTION_BAR: f64 = 80.0;
/// Bar: the busiest worker's load under the project's own method, divided by the lower bound for the loads of the window.
const BUSIEST_BAR: f64 = 1.02;
/// Messages of the most loaded worker in the paper's figure 2, divided by the mean of all workers.
const PAPER_MOST: f64 = 846_532.0 / PAPER_MEAN;
/// Messages of the least loaded worker in the paper's figure 2, divided by the mean of all workers.
const PAPER_LEAST: f64 = 594.0 / PAPER_MEAN;
/// Mean number of messages per worker in the paper: all messages of randwrite in Table I, divided by 128 workers.
const PAPER_MEAN: f64 = (5_201_621 + 5_641_431 + 6_650_456 + 7_924 + 57_436) as f64 / 128.0;

/// The paper's reduction of the standard deviation of the workers' loads against round robin, in per cent (figures 5 and 7).
const fn paper_sigma(load: Load, operation: Operation) -> f64 {
    match (load, operation) {
        (Load::Equal, Operation::Read) => 60.0,
        (Load::Equal, Operation::Write) => 14.0,
        (Load::Equal, Operation::Mixed) => 40.0,
        (Load::Random, Operation::Read) => 46.0,
        (Load::Random, Operation::Write) => 24.0,
        (Load::Random, Operation::Mixed) => 38.0,
    }
}

/// The reads or the writes of an operation: name, operation, index in [`Outcome::per_s`], and the paper's gain of throughput
/// in per cent, with equal and with random clients (figures 6 and 8).
type Kind = (&'static str, Operation, usize, [f64; 2]);

const KINDS: [Kind; 4] = [
    ("randread", Operation::Read, 0, [8.0, 17.0]),
    ("randwrite", Operation::Write, 1, [12.0, 24.0]),
    ("randrw-r", Operation::Mixed, 0, [10.0, 20.0]),
    ("randrw-w", Operation::Mixed, 1, [8.0, 19.0]),
];

/// The outcomes of all runs, ordered by case, then by arm, then by seed.
pub(super) struct Outcomes<'a> {
    outcomes: &'a [Outcome],
    cases: Vec<Case>,
    arms: Vec<Arm>,
    seeds: usize,
}

impl<'a> Outcomes<'a> {
    pub(super) fn new(outcomes: &'a [Outcome], cases: Vec<Case>, arms: Vec<Arm>, seeds: usize) -> Self {
        Self { outcomes, cases, arms, seeds }
    }

    fn of(&self, case: Case, arm: Arm) -> &'a [Outcome] {
        let arm = self.arms.iter().position(|&other| other == arm).unwrap_or(0);
        let case = self.cases.iter().position(|&other| other == case).unwrap_or(0);
        &self.outcomes[(case * self.arms.len() + arm) * self.seeds..][..self.seeds]
    }

    /// A figure that compares two arms, for each seed: `figure` receives both arms' runs with one seed.
    fn figures(&self, case: Case, arms: (Arm, Arm), figure: Metric<'_>) -> Figures {
        let pairs = self.of(case, arms.0).iter().zip(self.of(case, arms.1));
        pairs.map(|(ours, other)| figure(ours, other)).collect()
    }

    /// Estimate over all seeds of a figure that compares two arms.
    fn against(&self, case: Case, arms: (Arm, Arm), figure: Metric<'_>) -> Estimate {
        Estimate::of(&self.figures(case, arms, figure))
    }

    /// The opening orders, each once.
    fn openings(&self) -> Vec<Opening> {
        let mut openings: Vec<Opening> = self.cases.iter().map(|case| case.opening).collect();
        openings.dedup();
        openings
    }

    /// A plot of the runs of randwrite with equal clients and the first seed: `values` in multiples of their mean, with one
    /// series for each arm that has a column.
    fn first_seed(&self, title: &str, x: &str, y: &str, values: impl Fn(&Outcome) -> Vec<f64>) -> Plot {
        let case = Case { opening: Opening::Random, load: Load::Equal, operation: Operation::Write };
        let series = |(name, arm): (&str, Arm)| {
            let values = self.of(case, arm).first().map_or_else(Vec::new, &values);
            Series::new(name, Style::Dotted, (1u32..).map(f64::from).zip(values))
        };
        let (x, y) = (Axis::linear(x), Axis::linear(format!("{y}, multiples of the mean")));
        Plot::new(title, "randwrite, equal clients, random opening order, the first seed.", x, y, COLUMNS.map(series))
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

/// The 99th percentile of `values`, by nearest rank; 0 without values.
fn percentile_99(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * 99).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
}

/// Mean coefficient of variation of the workers' loads: standard deviation divided by mean, averaged over `spreads`.
fn variation(spreads: &[Spread]) -> f64 {
    mean(spreads.iter().map(|spread| spread.sigma / spread.mean.max(f64::MIN_POSITIVE)))
}

/// Reduction of the workers' variation against round robin, in per cent of the reduction by the best placement.
fn removed(ours: &[Spread], round_robin: &[Spread]) -> f64 {
    let before = variation(round_robin);
    100.0 * (before - variation(ours)) / (before - variation(&best_only(ours))).max(1e-9)
}

/// `spreads` with the standard deviations that the best placement would give.
fn best_only(spreads: &[Spread]) -> Vec<Spread> {
    spreads.iter().map(|spread| Spread { sigma: spread.best, ..*spread }).collect()
}

/// Reduction of the standard deviation of the workers' loads, in per cent of the one under round robin.
fn lower(ours: &[Spread], round_robin: &[Spread]) -> f64 {
    let sigma = |spreads: &[Spread]| mean(spreads.iter().map(|spread| spread.sigma));
    100.0 * (1.0 - sigma(ours) / sigma(round_robin).max(f64::MIN_POSITIVE))
}

/// Mean number of connections moved per [`WINDOW`] seconds, in per cent of all connections.
fn moved(ours: &Outcome, _: &Outcome) -> f64 {
    100.0 * ours.moves as f64 / (OSDS * CONNECTIONS) as f64 * WINDOW as f64 / ours.seconds.len().max(1) as f64
}

fn gain(kind: usize) -> impl Fn(&Outcome, &Outcome) -> f64 {
    move |ours, other| 100.0 * (ours.per_s[kind] / other.per_s[kind].max(f64::MIN_POSITIVE) - 1.0)
}

/// Messages received by one worker, divided by the mean of all workers. `place` gives the worker's rank from the number of
/// workers; rank 0 received the fewest messages.
fn messages(outcome: &Outcome, place: impl Fn(usize) -> usize) -> f64 {
    let mut received = outcome.received.clone();
    received.sort_unstable();
    let mean = received.iter().sum::<u64>() as f64 / received.len().max(1) as f64;
    received.get(place(received.len())).map_or(0.0, |&count| count as f64 / mean)
}

/// A figure that compares an arm's run with round robin's run; both have the same seed.
type Metric<'a> = &'a dyn Fn(&Outcome, &Outcome) -> f64;

struct Sheet<'a> {
    all: &'a Outcomes<'a>,
    rows: Vec<Row>,
}

impl Sheet<'_> {
    /// Adds a metric's row with round robin, the published method and the project's own as columns, and a row for each other arm.
    fn add(&mut self, row: Row, case: Case, metric: Metric<'_>) {
        let of = |arm: Arm| self.all.figures(case, (arm, Arm::RoundRobin), metric);
        let columns = [Arm::RoundRobin, Arm::Genetic, Arm::Waits].map(|arm| Some(of(arm)));
        let others = self.all.arms.iter().filter_map(|&arm| Some((arm.name()?.to_owned(), of(arm))));
        self.rows.extend(paired::columns(&row, columns, others));
    }
}

/// A bar of this value in the main case. Cases with the colliding order have none: it was made for round robin to fail.
fn judged(case: Case, bar: f64) -> Option<f64> {
    (case.opening == Opening::Random).then_some(bar)
}

/// Name of a case in results, in which `what` is done.
fn name(case: Case, what: &str) -> String {
    let opening = if case.opening == Opening::Random { "" } else { ", colliding" };
    format!("{what}, {}{opening}", case.load.name())
}

pub(super) fn report(options: &Options, all: &Outcomes<'_>, seeds: &[u64], seconds: u64) -> Report {
    let intro = vec![
        "A server's connections are divided among a few worker threads. A connection that shares a worker with a heavy \
         connection waits, while other workers are idle. Each connection stays where it was opened in turn (the paper's \
         baseline), a genetic algorithm moves connections every 5 s (the paper), or Evenkeel moves a few connections ten \
         times a second, where it helps."
            .to_owned(),
        format!(
            "Everything happens in virtual time: 16 OSDs with 8 workers and 52 connections each, 8 clients, on modelled \
             workers with the costs of `evenkeel serve`; {} runs of {seconds} s each, with the seeds {}. The same seed gives \
             the same figures on every machine. Three things were fitted: the inequality of connections to figure 2 \
             of the paper; all times, longer by one factor, to the paper's number of messages; and the pauses of \
             clients between two requests, so that round robin's most loaded worker is busy 95 % of the time. \
             The fits were made with the colliding order of opening.",
            seeds.len(),
            seeds.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
        ),
        "Connections are opened in random order. In the cases named colliding, every fourth one carries requests \
         or replicas, until all connections of this kind are open: round robin then puts them on two of eight workers. This \
         is the worst case for round robin."
            .to_owned(),
        options.tuned.text(),
    ];
    let sections = vec![baseline(all), sigma(all), throughput(all), price(all)];
    Report { experiment: NAME, seed: options.seed, intro, sections, claims: claims(all) }
}

/// The report section on figure 2: messages per worker under round robin.
fn baseline(all: &Outcomes<'_>) -> Section {
    let mut sheet = Sheet { all, rows: Vec::new() };
    for opening in all.openings() {
        let case = Case { opening, load: Load::Equal, operation: Operation::Write };
        let name = name(case, "randwrite");
        let most = Row { paper: Some(PAPER_MOST), ..Row::new(&name, "most_messages_ratio", "", Better::Lower) };
        sheet.add(most, case, &|ours, _| messages(ours, |n| n - 1));
        let least = Row { paper: Some(PAPER_LEAST), ..Row::new(&name, "least_messages_ratio", "", Better::Higher) };
        sheet.add(least, case, &|ours, _| messages(ours, |_| 0));
    }
    for &case in &all.cases {
        let row = Row::new(&name(case, case.operation.name()), "busiest_worker_percent", "%", Better::Lower);
        let busiest = |ours: &Outcome, _: &Outcome| 100.0 * ours.busy.iter().copied().fold(0.0, f64::max);
        sheet.add(row, case, &busiest);
    }
    let received = |outcome: &Outcome| (0..outcome.received.len()).map(|place| messages(outcome, |_| place)).collect();
    let plot = all.first_seed("Messages received by each worker, ascending", "worker", "messages", received);
    Section {
        rows: sheet.rows,
        figures: vec![plot],
        ..Section::new(
            "Figure 2: messages of the 128 workers",
            [
                "most_messages_ratio, least_messages_ratio: messages that the most and the least loaded worker received in the \
             whole run, divided by the mean of all workers (in the paper: Table I divided by 128). \
             busiest_worker_percent: part of the time for which the busiest worker was busy.",
            ],
        )
    }
}

const COLUMNS: [(&str, Arm); 3] =
    [("round robin", Arm::RoundRobin), ("genetic", Arm::Genetic), ("Evenkeel", Arm::Waits)];

/// The report section on figures 5 and 7: how much each method reduces the differences between workers.
fn sigma(all: &Outcomes<'_>) -> Section {
    let mut sheet = Sheet { all, rows: Vec::new() };
    for &case in &all.cases {
        let row = |metric: &str| Row::new(&name(case, case.operation.name()), metric, "%", Better::Higher);
        let bar = Row { bar: judged(case, REDUCTION_BAR), ..row("sigma_reduction_percent") };
        sheet.add(bar, case, &|ours, rr| removed(&ours.windows, &rr.windows));
        let paper = Some(paper_sigma(case.load, case.operation));
        let raw = Row { paper, ..row("sigma_reduction_raw_percent") };
        sheet.add(raw, case, &|ours, rr| lower(&ours.windows, &rr.windows));
        let best =
            all.against(case, (Arm::Waits, Arm::RoundRobin), &|ours, rr| lower(&best_only(&ours.windows), &rr.windows));
        sheet.rows.push(Row {
            method: Some("best".to_owned()),
            baseline: Some(best.mean),
            ..row("sigma_reduction_raw_percent")
        });
        sheet.add(row("sigma_reduction_bytes_percent"), case, &|ours, rr| lower(&ours.bytes, &rr.bytes));
        sheet.add(row("sigma_reduction_1s_percent"), case, &|ours, rr| removed(&ours.seconds, &rr.seconds));
        let row = |metric: &str| Row::new(&name(case, case.operation.name()), metric, "", Better::Lower);
        let with_bar = |metric: &str| Row { bar: judged(case, BUSIEST_BAR), ..row(metric) };
        sheet.add(with_bar("busiest_vs_bound_ratio"), case, &|ours, _| mean(ours.busiest.iter().copied()));
        sheet.add(with_bar("busiest_vs_bound_p99_ratio"), case, &|ours, _| percentile_99(&ours.busiest));
        sheet.add(row("busiest_vs_bound_1s_ratio"), case, &|ours, _| mean(ours.busiest_1s.iter().copied()));
        sheet.add(row("busiest_vs_bound_1s_p99_ratio"), case, &|ours, _| percentile_99(&ours.busiest_1s));
    }
    let by_second = |outcome: &Outcome| outcome.seconds.iter().map(|spread| spread.sigma / spread.mean).collect();
    let plot = all.first_seed("Difference between workers", "s", "standard deviation", by_second);
    Section {
        rows: sheet.rows,
        figures: vec![plot],
        ..Section::new(
            "Figures 5 and 7: how different workers are",
            [format!(
                "sigma: standard deviation of the time for which each of the 128 workers is busy, in windows of {WINDOW} s. \
             sigma_reduction_percent: by how much sigma, divided by the mean load, is lower than with round robin, in per \
             cent of the reduction by the best placement of each window's loads, which is known afterwards only; the \
             window after a decision counts. No placement removes differences between OSDs, or those by connections \
             heavier than a worker's share. sigma_reduction_raw_percent: by how much sigma itself is lower, as the paper \
             counts (best: with the best placement of Evenkeel's loads; a method that completes more requests has larger \
             loads and differences). sigma_reduction_bytes_percent: the same for bytes received, which the genetic \
             algorithm evens out. sigma_reduction_1s_percent: sigma_reduction_percent in windows of 1 s. \
             busiest_vs_bound_ratio: busy time of an OSD's busiest worker in a window, divided by the lower bound for the \
             window's loads (the mean of the OSD's workers, or its largest connection if that is more); mean and 99th \
             percentile (p99) over the windows of all OSDs in a run, also in windows of 1 s. A ratio below 1 means that a \
             large connection moved within the window."
            )],
        )
    }
}

/// The report section on figures 6 and 8: how much each method raises the throughput.
fn throughput(all: &Outcomes<'_>) -> Section {
    let mut sheet = Sheet { all, rows: Vec::new() };
    for opening in all.openings() {
        for load in Load::ALL {
            for (what, operation, kind, paper) in KINDS {
                let case = Case { opening, load, operation };
                let row = |metric: &str| Row::new(&name(case, what), metric, "%", Better::Higher);
                let paper = Some(paper[load as usize]);
                let bar = paper.and_then(|paper| judged(case, paper));
                sheet.add(Row { paper, bar, ..row("iops_gain_percent") }, case, &gain(kind));
                let ours = all.figures(case, (Arm::Waits, Arm::LeastConnections), &gain(kind));
                let row = Row { bar: judged(case, 0.0), ..row("iops_gain_vs_least_connections_percent") };
                sheet.rows.extend(paired::columns(&row, [None, None, Some(ours)], []));
            }
        }
    }
    Section {
        rows: sheet.rows,
        ..Section::new(
            "Figures 6 and 8: IOPS",
            ["iops_gain_percent: how many more requests complete than with round robin and the same seed. \
             iops_gain_vs_least_connections_percent: how many more than if a new connection goes to the worker with the \
             fewest connections. All connections open at the start, so that this worker is also the next one in turn."],
        )
    }
}

fn price(all: &Outcomes<'_>) -> Section {
    let mut sheet = Sheet { all, rows: Vec::new() };
    for &case in &all.cases {
        let name = name(case, case.operation.name());
        let row = |metric: &str, unit: &'static str| Row::new(&name, metric, unit, Better::Lower);
        sheet.add(row("moved_percent", "%"), case, &moved);
        sheet.add(row("response_p99_ms", "ms"), case, &|ours, _| ours.p99_ms);
        for (other, arm) in [("genetic", Arm::Genetic), ("least_connections", Arm::LeastConnections)] {
            let p99 = |arm: Arm| all.of(case, arm).iter().map(|outcome| outcome.p99_ms).collect::<Figures>();
            sheet.rows.push(Row {
                evenkeel: Some(paired::at_least(&p99(Arm::Waits), &p99(arm))),
                bar: judged(case, 0.0),
                ..row(&format!("response_p99_above_{other}_at_least_ms"), "ms")
            });
        }
    }
    Section {
        rows: sheet.rows,
        ..Section::new(
            "Moves and latencies",
            [format!(
                "moved_percent: connections moved in {WINDOW} s, in per cent of all connections. response_p99_ms: 99th \
             percentile of the latency in the model's time, in which all times are longer by one factor (see above). \
             response_p99_above_…_at_least_ms: lower end of the 95 % confidence interval of Evenkeel's p99 minus that of \
             the named method, paired by seed."
            )],
        )
    }
}

fn claims(all: &Outcomes<'_>) -> Vec<Claim> {
    let case = |load: Load, operation: Operation| Case { opening: Opening::Random, load, operation };
    let genetic = (Arm::Genetic, Arm::RoundRobin);
    let raw = |load: Load| {
        let lowered: Metric<'_> = &|ours, rr| lower(&ours.windows, &rr.windows);
        Operation::ALL.map(|operation| all.against(case(load, operation), genetic, lowered).mean)
    };
    let gains =
        |load: Load| KINDS.map(|(_, operation, kind, _)| all.against(case(load, operation), genetic, &gain(kind)).mean);
    let list = |values: &[f64]| values.iter().map(|value| format!("{value:.1}")).collect::<Vec<_>>().join(", ");
    let mut claims = Vec::new();
    for opening in all.openings() {
        let case = Case { opening, load: Load::Equal, operation: Operation::Write };
        let of = |place: fn(usize) -> usize| {
            let round_robin = (Arm::RoundRobin, Arm::RoundRobin);
            all.against(case, round_robin, &|ours, _| messages(ours, place)).mean
        };
        let (most, least) = (of(|n| n - 1), of(|_| 0));
        let fitted = if opening == Opening::Colliding { "; the first was fitted to this" } else { "" };
        claims.push(Claim {
            source: "fig. 2",
            text: format!(
                "With round robin the most loaded of 128 workers gets 846,532 messages and the least loaded 594: \
                 {PAPER_MOST:.2} and {PAPER_LEAST:.4} of the mean ({} opening order).",
                opening.name()
            ),
            reproduced: (PAPER_MOST * 0.8..=PAPER_MOST * 1.2).contains(&most) && least < 2.0 * PAPER_LEAST,
            numbers: format!(
                "{most:.2} and {least:.4} of the mean (within 20 % required, and below twice the least{fitted})"
            ),
        });
    }
    for (load, source, values) in [(Load::Equal, "fig. 5", "60, 14, 40"), (Load::Random, "fig. 7", "46, 24, 38")] {
        let lowered = raw(load);
        claims.push(Claim {
            source,
            text: format!(
                "{}: the genetic algorithm lowers the standard deviation by {values} % (randread, randwrite, randrw).",
                capitalised(load)
            ),
            reproduced: Operation::ALL.iter().zip(lowered).all(|(&operation, by)| by >= paper_sigma(load, operation)),
            numbers: format!("{} % (bar: at least the paper's)", list(&lowered)),
        });
    }
    let equal = raw(Load::Equal);
    claims.push(Claim {
        source: "fig. 5",
        text: "The genetic algorithm helps randread most and randwrite least.".to_owned(),
        reproduced: equal[0] > equal[2] && equal[2] > equal[1],
        numbers: format!("{} %", list(&equal)),
    });
    for (load, source, values) in [(Load::Equal, "fig. 6", "8, 12, 10, 8"), (Load::Random, "fig. 8", "17, 24, 20, 19")]
    {
        let by = gains(load);
        claims.push(Claim {
            source,
            text: format!(
                "{}: the algorithm raises IOPS by {values} % (randread, randwrite, randrw reads and writes).",
                capitalised(load)
            ),
            reproduced: KINDS.iter().zip(by).all(|((.., paper), by)| by >= paper[load as usize]),
            numbers: format!("{} % (bar: at least the paper's)", list(&by)),
        });
    }
    let (equal, random) = (gains(Load::Equal), gains(Load::Random));
    claims.push(Claim {
        source: "VI.B",
        text: "The algorithm gains more where clients differ than where they are alike.".to_owned(),
        reproduced: equal.iter().zip(&random).all(|(equal, random)| random > equal),
        numbers: format!("{} % with equal clients, {} % with random ones", list(&equal), list(&random)),
    });
    let moved = |arm: Arm| {
        let main = all.cases.iter().filter(|case| case.opening == Opening::Random);
        mean(main.map(|&case| all.against(case, (arm, Arm::RoundRobin), &moved).mean))
    };
    claims.push(Claim {
        source: "V.B",
        text: "The fitness avoids needless moves: most connections stay.".to_owned(),
        reproduced: moved(Arm::Genetic) < 10.0,
        numbers: format!(
            "{:.1} % of all connections move every 5 s (below 10 required), {:.1} % with waits",
            moved(Arm::Genetic),
            moved(Arm::Waits)
        ),
    });
    claims
}

fn capitalised(load: Load) -> &'static str {
    match load {
        Load::Equal => "Equal clients",
        Load::Random => "Random clients",
    }
}
