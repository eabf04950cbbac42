//! What the runs say: DAT, jitter, how close to the oracle, and which claims came out.

use super::grid::Group;
use super::world::{Outcome, Setup};
use super::{Arm, NAME};
use crate::experiment::{Axis, Better, Claim, Figure, Options, Points, Report, Row, Section};
use crate::statistics::Estimate;

/// What ours is to reach, in per cent: DAT of a group, mean jitter.
const DAT_BAR: f64 = 0.45;
const JITTER_BAR: f64 = 2.3;
/// Where the oracle cannot reach that either: this many times its figure.
const ORACLE_FACTOR: f64 = 1.2;

/// Figures of one run, means over its tenants, in per cent of the guarantee.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// Difference of the average throughput.
    pub(super) dat: f64,
    /// Mean distance of a period.
    pub(super) jitter: f64,
    /// The same of periods half a second later.
    shifted: f64,
}

fn judge(setup: &Setup, outcome: &Outcome) -> Figures {
    let mut figures = Figures::default();
    let n = setup.tenants.len() as f64;
    for (place, tenant) in setup.tenants.iter().enumerate() {
        let far = |rate: f64| 100.0 * (rate / tenant.guaranteed - 1.0).abs();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
        let periods = outcome.periods(place, false);
        let jitter = |periods: &[f64]| mean(&periods.iter().map(|&rate| far(rate)).collect::<Vec<f64>>());
        figures.dat += far(mean(&periods)) / n;
        figures.jitter += jitter(&periods) / n;
        figures.shifted += jitter(&outcome.periods(place, true)) / n;
    }
    figures
}

/// Of one arm and group: figures by seed, means over the cases.
pub(super) struct Judged(Vec<Figures>);

impl Judged {
    fn of(runs: &[(&Setup, &Outcome)], seeds: usize) -> Self {
        let cases = (runs.len() / seeds) as f64;
        let mut by_seed = vec![Figures::default(); seeds];
        for (place, (setup, outcome)) in runs.iter().enumerate() {
            let figures = judge(setup, outcome);
            let sum = &mut by_seed[place % seeds];
            sum.dat += figures.dat / cases;
            sum.jitter += figures.jitter / cases;
            sum.shifted += figures.shifted / cases;
        }
        Self(by_seed)
    }

    pub(super) fn estimate(&self, figure: fn(&Figures) -> f64) -> Estimate {
        Estimate::of(&self.0.iter().map(figure).collect::<Vec<f64>>())
    }
}

/// All figures of an arm, by group.
type ByGroup = Vec<Judged>;

/// Takes the figures of one arm off the front of `runs`.
fn by_group(groups: &[Group], runs: &mut &[(&Setup, &Outcome)], seeds: usize) -> ByGroup {
    let of = |group: &Group| {
        let (these, rest) = runs.split_at(group.cases.len() * seeds);
        *runs = rest;
        Judged::of(these, seeds)
    };
    groups.iter().map(of).collect()
}

/// Means over the groups of one arm, whose runs are taken off the front of `runs`.
pub(super) fn mean_of_arm(groups: &[Group], runs: &mut &[(&Setup, &Outcome)], seeds: usize) -> Judged {
    mean(&by_group(groups, runs, seeds))
}

/// Means over the groups, by seed.
fn mean(groups: &ByGroup) -> Judged {
    let n = groups.len() as f64;
    let seeds = groups.first().map_or(0, |group| group.0.len());
    let of =
        |seed: usize, figure: fn(&Figures) -> f64| groups.iter().map(|group| figure(&group.0[seed])).sum::<f64>() / n;
    Judged(
        (0..seeds)
            .map(|seed| Figures {
                dat: of(seed, |figures| figures.dat),
                jitter: of(seed, |figures| figures.jitter),
                shifted: of(seed, |figures| figures.shifted),
            })
            .collect(),
    )
}

/// Name, what is averaged.
pub(super) type Metric = (&'static str, fn(&Figures) -> f64);

const METRICS: [Metric; 3] = [
    ("dat_percent", |figures| figures.dat),
    ("jitter_percent", |figures| figures.jitter),
    ("jitter_shifted_percent", |figures| figures.shifted),
];

pub(super) fn report(
    options: &Options,
    groups: &[Group],
    runs: &[(&Setup, &Outcome)],
    seeds: usize,
    seconds: u64,
) -> Report {
    let mut runs = runs;
    let arms: Vec<ByGroup> = Arm::ALL.iter().map(|_| by_group(groups, &mut runs, seeds)).collect();
    let mut section = Section {
        title: "Fourteen groups".to_owned(),
        text: vec![format!(
            "Means over the tenants and traces of a group and {} of {seconds} s. DAT: distance of the mean throughput \
             from the guarantee. Jitter: mean distance of the throughput of 1 s from the guarantee; shifted: of seconds that \
             begin half a second later than those that the controllers know. Baseline: the guarantee as the limit. The \
             published method decides once a second, ours ten times (accurate_1s: once; saat_100ms: the published method \
             ten times). The oracle knows the future and sets one limit for each second.",
            if seeds == 1 { "one run".to_owned() } else { format!("{seeds} runs") }
        )],
        ..Section::default()
    };
    for (place, group) in groups.iter().enumerate() {
        let of = |arm: Arm| &arms[arm as usize][place];
        rows(&mut section, &group.name, group.paper, &of);
        let (ours, oracle) = (of(Arm::Accurate), of(Arm::Oracle).estimate(|figures| figures.dat).mean);
        let bound = DAT_BAR.max(ORACLE_FACTOR * oracle);
        section.rows.push(Row {
            evenkeel: Some(ours.estimate(|figures| figures.dat).mean / bound),
            bar: Some(1.0),
            ..Row::new(&group.name, "dat_vs_bound_ratio", "", Better::Lower)
        });
    }
    let means: Vec<Judged> = arms.iter().map(mean).collect();
    let of = |arm: Arm| &means[arm as usize];
    let all = "mean of 14 groups";
    rows(&mut section, all, Some((6.56, 1.94)), &of);
    let jitter = |arm: Arm| of(arm).estimate(|figures| figures.jitter).mean;
    section.rows.push(Row {
        evenkeel: Some(jitter(Arm::Accurate) / JITTER_BAR.max(ORACLE_FACTOR * jitter(Arm::Oracle))),
        bar: Some(1.0),
        ..Row::new(all, "jitter_vs_bound_ratio", "", Better::Lower)
    });
    section.figures = figures(groups, &arms);
    let intro = vec![
        "A tenant on a hybrid device under a limit of exactly what it was guaranteed gets less: misses cannot keep up, and the \
         limit forbids to catch up afterwards. The limit has to stand above the guarantee; by how much is decided by nobody \
         (today's practice), by the published equations, and by Evenkeel."
            .to_owned(),
        "Everything happens in virtual time on a modelled device; the same seed gives the same figures on every machine. \
         Device and tenants were fitted to the paper's figures for today's limits alone."
            .to_owned(),
    ];
    Report { experiment: NAME, seed: options.seed, intro, sections: vec![section], claims: claims(&arms, &means) }
}

fn rows<'a>(section: &mut Section, case: &str, paper: Option<(f64, f64)>, of: &dyn Fn(Arm) -> &'a Judged) {
    for (metric, figure) in METRICS {
        let mean = |arm: Arm| of(arm).estimate(figure).mean;
        let ours = of(Arm::Accurate).estimate(figure);
        let row = Row {
            paper: paper.map(|(_, saat)| saat).filter(|_| metric == "dat_percent"),
            baseline: Some(mean(Arm::Static)),
            faithful: Some(mean(Arm::Saat)),
            evenkeel: Some(ours.mean),
            half_width: Some(ours.half_width).filter(|width| width.is_finite()),
            ..Row::new(case, metric, "%", Better::Lower)
        };
        section.rows.push(row.clone());
        for arm in Arm::ALL {
            let Some(name) = arm.name() else { continue };
            section.rows.push(Row {
                method: Some(name.to_owned()),
                paper: None,
                baseline: Some(mean(arm)),
                faithful: None,
                half_width: None,
                ..row.clone()
            });
        }
    }
}

fn figures(groups: &[Group], arms: &[ByGroup]) -> Vec<Figure> {
    let plot = |title: &str, figure: fn(&Figures) -> f64| {
        let series = |(name, arm): (&str, Arm)| {
            let point = |(place, group): (usize, &Group)| {
                ((place + 1) as f64, arms[arm as usize][place].estimate(figure).mean, group.name.clone())
            };
            (name.to_owned(), groups.iter().enumerate().map(point).collect::<Points>())
        };
        let arms = [
            ("guarantee as limit", Arm::Static),
            ("SAAT", Arm::Saat),
            ("Evenkeel", Arm::Accurate),
            ("oracle", Arm::Oracle),
        ];
        Figure {
            title: title.to_owned(),
            note: "In the order of the table.".to_owned(),
            x: Axis::linear("group"),
            y: Axis::linear("% of the guarantee"),
            joined: false,
            series: arms.into_iter().map(series).collect(),
        }
    };
    vec![
        plot("Difference of the average throughput (DAT)", |figures| figures.dat),
        plot("Average jitter", |figures| figures.jitter),
    ]
}

fn claims(arms: &[ByGroup], means: &[Judged]) -> Vec<Claim> {
    let dat = |arm: Arm, place: usize| arms[arm as usize][place].estimate(|figures| figures.dat).mean;
    let of = |arm: Arm, figure: fn(&Figures) -> f64| means[arm as usize].estimate(figure).mean;
    let (fixed, saat) = (of(Arm::Static, |figures| figures.dat), of(Arm::Saat, |figures| figures.dat));
    let (fixed_jitter, saat_jitter) =
        (of(Arm::Static, |figures| figures.jitter), of(Arm::Saat, |figures| figures.jitter));
    let alone: Vec<(f64, f64)> = (0..4).map(|place| (dat(Arm::Static, place), dat(Arm::Saat, place))).collect();
    let groups = arms[Arm::Static as usize].len();
    let better = (0..groups).filter(|&place| dat(Arm::Saat, place) < dat(Arm::Static, place)).count();
    vec![
        Claim {
            source: "IV.A",
            text: "The guarantee as the limit misses it by 6.56 % in the mean of 14 groups.".to_owned(),
            reproduced: (5.0..=9.0).contains(&fixed),
            numbers: format!("{fixed:.2} % (between 5 and 9 asked for; the model was fitted to this)"),
        },
        Claim {
            source: "IV.A",
            text: "SAAT takes that to 1.94 %.".to_owned(),
            reproduced: saat <= 2.5,
            numbers: format!("{saat:.2} % (at most 2.5 asked for), lower in {better} of {groups} groups"),
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
            numbers: format!("{:.2} to {:.2} % (below 3 asked for)", alone[0].1, alone[3].1),
        },
        Claim {
            source: "IV.A",
            text: "SAAT lowers the average jitter, from 6.62 to 5.25 %.".to_owned(),
            reproduced: saat_jitter < fixed_jitter,
            numbers: format!("{fixed_jitter:.2} to {saat_jitter:.2} %"),
        },
        Claim {
            source: "IV.C",
            text: "With four tenants SAAT takes the difference from 3.91 to 0.452 %.".to_owned(),
            reproduced: dat(Arm::Saat, groups - 1) <= 1.0,
            numbers: format!(
                "{:.2} to {:.2} % (at most 1 asked for)",
                dat(Arm::Static, groups - 1),
                dat(Arm::Saat, groups - 1)
            ),
        },
    ]
}
