//! The results of the runs: DAT (deviation of throughput from the guarantee), jitter, difference from the oracle, and the
//! claims that are reproduced.

use super::grid::Group;
use super::world::{Outcome, Setup};
use super::{Arm, NAME};
use crate::experiment::paired::{self, Figures as BySeed};
use crate::experiment::{Better, Claim, Options, Report, Row, Section};
use crate::report::{Axis, Plot, Series, Style};
use crate::statistics::Estimate;

/// Bar: the largest DAT of a group under the project's own method, in per cent of the guarantee.
const DAT_BAR: f64 = 0.45;
/// Bar: the largest mean jitter under the project's own method, in per cent of the guarantee.
const JITTER_BAR: f64 = 2.3;
/// The bar of a group's DAT is at least this factor times the oracle's DAT, where the oracle itself exceeds the fixed bar.
const ORACLE_FACTOR: f64 = 1.2;

/// Figures of one run in per cent of the guarantee, averaged over its tenants: DAT (deviation of the mean throughput from the
/// guarantee), jitter (mean deviation of the throughput of periods of 1 s), and jitter of periods that begin 0.5 s later.
pub(super) type Figures = [f64; 3];

pub(super) const DAT: usize = 0;
pub(super) const JITTER: usize = 1;
const SHIFTED: usize = 2;

pub(super) fn judge(setup: &Setup, outcome: &Outcome) -> Figures {
    let mut figures = Figures::default();
    let n = setup.tenants.len() as f64;
    for (place, tenant) in setup.tenants.iter().enumerate() {
        let far = |rate: f64| 100.0 * (rate / tenant.guaranteed - 1.0).abs();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let jitter = |periods: &[f64]| mean(&periods.iter().map(|&rate| far(rate)).collect::<Vec<f64>>());
        let [periods, shifted] = [false, true].map(|shifted| outcome.periods(place, shifted));
        let of_tenant = [far(mean(&periods)), jitter(&periods), jitter(&shifted)];
        figures.iter_mut().zip(of_tenant).for_each(|(sum, figure)| *sum += figure / n);
    }
    figures
}

/// Figures of one arm in one group, for each seed; each is the mean over the group's cases.
pub(super) struct Judged(Vec<Figures>);

impl Judged {
    fn of(runs: &[(&Setup, &Outcome)], seeds: usize) -> Self {
        let cases = (runs.len() / seeds) as f64;
        let mut by_seed = vec![Figures::default(); seeds];
        for (place, (setup, outcome)) in runs.iter().enumerate() {
            let sums = &mut by_seed[place % seeds];
            sums.iter_mut().zip(judge(setup, outcome)).for_each(|(sum, figure)| *sum += figure / cases);
        }
        Self(by_seed)
    }

    pub(super) fn estimate(&self, figure: usize) -> Estimate {
        Estimate::over(&self.0, |figures| figures[figure])
    }

    fn by_seed(&self, figure: usize) -> BySeed {
        self.0.iter().map(|figures| figures[figure]).collect()
    }
}

/// All figures of an arm, for each group.
type ByGroup = Vec<Judged>;

/// Takes the runs of one arm from the front of `runs`. Returns their figures, for each group.
fn by_group(groups: &[Group], runs: &mut &[(&Setup, &Outcome)], seeds: usize) -> ByGroup {
    let of = |group: &Group| {
        let (these, rest) = runs.split_at(group.cases.len() * seeds);
        *runs = rest;
        Judged::of(these, seeds)
    };
    groups.iter().map(of).collect()
}

/// Takes the runs of one arm from the front of `runs`. Returns their figures, averaged over the groups.
pub(super) fn mean_of_arm(groups: &[Group], runs: &mut &[(&Setup, &Outcome)], seeds: usize) -> Judged {
    mean(&by_group(groups, runs, seeds))
}

/// Figures averaged over the groups, for each seed.
fn mean(groups: &ByGroup) -> Judged {
    let n = groups.len() as f64;
    let seeds = groups.first().map_or(0, |group| group.0.len());
    let of = |seed: usize, figure: usize| groups.iter().map(|group| group.0[seed][figure]).sum::<f64>() / n;
    Judged((0..seeds).map(|seed| [DAT, JITTER, SHIFTED].map(|figure| of(seed, figure))).collect())
}

/// Names of the metrics in results, in the order of [`Figures`].
const METRICS: [&str; 3] = ["dat_percent", "jitter_percent", "jitter_shifted_percent"];

pub(super) fn report(
    options: &Options,
    arms: &[Arm],
    groups: &[Group],
    runs: &[(&Setup, &Outcome)],
    seeds: usize,
    seconds: u64,
) -> Report {
    let mut runs = runs;
    let named = arms;
    // In the order of `Arm::ALL`, of which arms that were not run are the last.
    let arms: Vec<ByGroup> = named.iter().map(|_| by_group(groups, &mut runs, seeds)).collect();
    let mut section = Section::new(
        "Fourteen groups",
        [format!(
            "Means over the tenants and traces of a group and {} of {seconds} s. DAT: distance of the mean throughput \
             from the guarantee. Jitter: mean distance of the throughput of 1 s from the guarantee; shifted: of seconds that \
             begin half a second later than those that the controllers know. Baseline: the guarantee as the limit. The \
             published method decides once a second, ours ten times (accurate_1s: once; saat_100ms: the published method \
             ten times). The oracle knows the future and sets one limit for each second.",
            if seeds == 1 { "one run".to_owned() } else { format!("{seeds} runs") }
        )],
    );
    for (place, group) in groups.iter().enumerate() {
        let of = |arm: Arm| &arms[arm as usize][place];
        rows(&mut section, &group.name, group.paper, named, &of);
        let (ours, oracle) = (of(Arm::Accurate), of(Arm::Oracle).estimate(DAT).mean);
        let bound = DAT_BAR.max(ORACLE_FACTOR * oracle);
        section.rows.push(Row {
            evenkeel: Some(ours.estimate(DAT).mean / bound),
            bar: Some(1.0),
            ..Row::new(&group.name, "dat_vs_bound_ratio", "", Better::Lower)
        });
    }
    let means: Vec<Judged> = arms.iter().map(mean).collect();
    let of = |arm: Arm| &means[arm as usize];
    let all = "mean of 14 groups";
    rows(&mut section, all, Some((6.56, 1.94)), named, &of);
    let jitter = |arm: Arm| of(arm).estimate(JITTER).mean;
    section.rows.push(Row {
        evenkeel: Some(jitter(Arm::Accurate) / JITTER_BAR.max(ORACLE_FACTOR * jitter(Arm::Oracle))),
        bar: Some(1.0),
        ..Row::new(all, "jitter_vs_bound_ratio", "", Better::Lower)
    });
    section.figures = figures(groups, &arms);
    let intro = [
        "A tenant on a cached device under a limit of exactly what it was guaranteed gets less: misses cannot keep up, and the \
         limit does not let it catch up afterwards. The limit must be above the guarantee. This compares the guarantee as \
         the limit (today's practice), the limits of the published equations, and Evenkeel's limits.",
        "Everything happens in virtual time on a modelled device; the same seed gives the same figures on every machine. \
         Device and tenants were fitted to the paper's figures for today's limits alone.",
    ].map(str::to_owned).to_vec();
    Report { experiment: NAME, seed: options.seed, intro, sections: vec![section], claims: claims(&arms, &means) }
}

fn rows<'a>(
    section: &mut Section,
    case: &str,
    paper: Option<(f64, f64)>,
    arms: &[Arm],
    of: &dyn Fn(Arm) -> &'a Judged,
) {
    for (figure, metric) in METRICS.into_iter().enumerate() {
        let paper = paper.map(|(_, saat)| saat).filter(|_| figure == DAT);
        let row = Row { paper, ..Row::new(case, metric, "%", Better::Lower) };
        let others = arms.iter().filter_map(|&arm| Some((arm.name()?.to_owned(), of(arm).by_seed(figure))));
        let columns = [Arm::Static, Arm::Saat, Arm::Accurate].map(|arm| Some(of(arm).by_seed(figure)));
        section.rows.extend(paired::columns(&row, columns, others));
    }
}

fn figures(groups: &[Group], arms: &[ByGroup]) -> Vec<Plot> {
    let plot = |title: &str, figure: usize| {
        let series = |(name, arm): (&str, Arm)| {
            let points = groups.iter().zip(&arms[arm as usize]).zip(1..);
            let point = |((group, judged), n): ((&Group, &Judged), u32)| {
                (f64::from(n), judged.estimate(figure).mean, group.name.clone())
            };
            Series::named(name, Style::Dots, points.map(point))
        };
        let arms = [
            ("guarantee as limit", Arm::Static),
            ("SAAT", Arm::Saat),
            ("Evenkeel", Arm::Accurate),
            ("oracle", Arm::Oracle),
        ];
        let (x, y) = (Axis::linear("group"), Axis::linear("% of the guarantee"));
        Plot::new(title, "In the order of the table.", x, y, arms.map(series))
    };
    vec![plot("Difference of the average throughput (DAT)", DAT), plot("Average jitter", JITTER)]
}

fn claims(arms: &[ByGroup], means: &[Judged]) -> Vec<Claim> {
    let dat = |arm: Arm, place: usize| arms[arm as usize][place].estimate(DAT).mean;
    let of = |arm: Arm, figure: usize| means[arm as usize].estimate(figure).mean;
    let (fixed, saat) = (of(Arm::Static, DAT), of(Arm::Saat, DAT));
    let (fixed_jitter, saat_jitter) = (of(Arm::Static, JITTER), of(Arm::Saat, JITTER));
    let alone: Vec<(f64, f64)> = (0..4).map(|place| (dat(Arm::Static, place), dat(Arm::Saat, place))).collect();
    let groups = arms[Arm::Static as usize].len();
    let better = (0..groups).filter(|&place| dat(Arm::Saat, place) < dat(Arm::Static, place)).count();
    vec![
        Claim {
            source: "IV.A",
            text: "The guarantee as the limit misses it by 6.56 % in the mean of 14 groups.".to_owned(),
            reproduced: (5.0..=9.0).contains(&fixed),
            numbers: format!("{fixed:.2} % (between 5 and 9 required; the model was fitted to this)"),
        },
        Claim {
            source: "IV.A",
            text: "SAAT lowers the difference to 1.94 %.".to_owned(),
            reproduced: saat <= 2.5,
            numbers: format!("{saat:.2} % (at most 2.5 required), lower in {better} of {groups} groups"),
        },
        Claim {
            source: "fig. 4a",
            text: "For one tenant the difference grows with the target under a plain limit, from 2.96 to 8.05 %."
                .to_owned(),
            reproduced: alone.windows(2).all(|pair| pair[0].0 < pair[1].0),
            numbers: format!("{:.2} to {:.2} % (the model was fitted to this)", alone[0].0, alone[3].0),
        },
        Claim {
            source: "fig. 4a",
            text: "With SAAT it stays between 0.98 and 2.13 %.".to_owned(),
            reproduced: alone.iter().all(|each| each.1 < 3.0 && each.1 < each.0),
            numbers: format!("{:.2} to {:.2} % (below 3 required)", alone[0].1, alone[3].1),
        },
        Claim {
            source: "IV.A",
            text: "SAAT lowers the average jitter, from 6.62 to 5.25 %.".to_owned(),
            reproduced: saat_jitter < fixed_jitter,
            numbers: format!("{fixed_jitter:.2} to {saat_jitter:.2} %"),
        },
        Claim {
            source: "IV.C",
            text: "With four tenants SAAT lowers the difference from 3.91 to 0.452 %.".to_owned(),
            reproduced: dat(Arm::Saat, groups - 1) <= 1.0,
            numbers: format!(
                "{:.2} to {:.2} % (at most 1 required)",
                dat(Arm::Static, groups - 1),
                dat(Arm::Saat, groups - 1)
            ),
        },
    ]
}
