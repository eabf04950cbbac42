//! Sensitivity: how much the results depend on constants that the paper's figures for a plain limit do not determine.
//!
//! Device and habits of the tenants were fitted to the paper's figures for a plain limit: its mean DAT (deviation of
//! throughput from the guarantee) may lie between 5 and 9 %. Other constants fit as well, and the published method is not
//! equally good with all of them. So each constant is varied alone, and one variant changes all to the closest fit.

use evenkeel_control::Duration;
use evenkeel_model::cached::CachedParams;

use super::Arm;
use super::grid::Group;
use super::judge::{DAT, JITTER, Judged, mean_of_arm};
use super::tenants::Habits;
use super::world::{Outcome, Setup};
use crate::experiment::{Better, Row, Section};

/// Runs (seeds) of each variant of the constants.
pub(super) const SEEDS: usize = 2;
/// The compared controllers, in the order of their runs.
pub(super) const ARMS: [Arm; 3] = [Arm::Static, Arm::Saat, Arm::Accurate];

/// A variant of the constants: its name, the device's parameters, and the tenants' habits.
pub(super) type Variant = (String, CachedParams, Habits);

/// Mean DAT of the plain limit, in per cent, at which constants count as fitted.
const BASELINE: std::ops::RangeInclusive<f64> = 5.0..=9.0;

pub(super) fn variants() -> Vec<Variant> {
    let (device, habits) = (CachedParams::paper(), Habits::FITTED);
    let slow = |mb: u64| {
        let device = CachedParams { slow_bytes_per_s: mb * 1_000_000, ..device };
        (format!("slow device of {mb} MB/s"), device, habits)
    };
    let latency = |us: u64| {
        let device = CachedParams { slow_latency: Duration::from_micros(us), ..device };
        (format!("latency of the slow device {us} us"), device, habits)
    };
    let length = |mb: f64| (format!("phases of misses of {mb} MB"), device, Habits { cold_bytes: mb * 1e6, ..habits });
    let spread =
        |sigma: f64| (format!("lengths of phases with sigma {sigma}"), device, Habits { phase_sigma: sigma, ..habits });
    let misses = |factor: f64| (format!("{factor} times the misses"), device, Habits { cold_factor: factor, ..habits });
    // Found by 207 tries over the five at once, by the plain limit alone, with seeds 1 and 2 and runs of 150 s: the least
    // sum of squared relative distances from the paper's figures for a plain limit.
    let closest = (
        "all five as close to the plain limit as found".to_owned(),
        CachedParams { slow_bytes_per_s: 140_020_000, slow_latency: Duration::from_micros(848), ..device },
        Habits { cold_bytes: 25.808e6, phase_sigma: 0.543, cold_factor: 1.003, ..habits },
    );
    vec![
        ("those above".to_owned(), device, habits),
        slow(135),
        slow(180),
        latency(750),
        latency(1_250),
        length(24.0),
        length(48.0),
        spread(0.1),
        spread(1.0),
        misses(0.8),
        misses(1.2),
        closest,
    ]
}

/// The report section on the sensitivity. `runs` is ordered by variant, then by arm as in [`ARMS`], then by group and seed.
pub(super) fn section(groups: &[Group], runs: &[(&Setup, &Outcome)], seeds: usize, seconds: u64) -> Section {
    let mut runs = runs;
    let mut section = Section { title: "Other constants that fit".to_owned(), ..Section::default() };
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for (name, _, _) in variants() {
        let [fixed, saat, ours] = ARMS.map(|_| mean_of_arm(groups, &mut runs, seeds));
        for (metric, figure) in [("dat_percent", DAT), ("jitter_percent", JITTER)] {
            section.rows.push(Row {
                baseline: Some(fixed.estimate(figure).mean),
                faithful: Some(saat.estimate(figure).mean),
                evenkeel: Some(ours.estimate(figure).mean),
                ..Row::new(&name, metric, "%", Better::Lower)
            });
        }
        let dat = |judged: &Judged| judged.estimate(DAT).mean;
        if BASELINE.contains(&dat(&fixed)) {
            (least, most) = (least.min(dat(&saat)), most.max(dat(&saat)));
        }
    }
    section.text.push(format!(
        "Means of the fourteen groups over {seeds} runs of {seconds} s; each row changes one constant of the modelled device \
         or tenants. Constants fit the paper where the DAT (see above) of the guarantee as the limit is between {} and {} %. \
         There the DAT of the published method is between {least:.2} and {most:.2} %. It depends most on how much the \
         lengths of phases with cache misses vary; the DAT of the guarantee as the limit hardly depends on that.",
        BASELINE.start(),
        BASELINE.end()
    ));
    section
}
