//! The lab of replay: predictions by `evenkeel replay` from one recording, beside real runs under the same settings.
//!
//! The lab needs no virtual machine but for one trial of full runs. README.md has the settings, the figures and their limits.

mod disk;
mod judge;
mod long;
mod osd;
mod recorded;
mod stage;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, anyhow, ensure};

use crate::base::scratch::Scratch;
use crate::check::figures::{Figures, told};
use crate::check::run::{Lab, Options};
pub(crate) use disk::guest;
use judge::{Errors, Off};
use recorded::{FIGURES, Measured};
use stage::{Device, Fitted, Stage, Work};

/// Names of the tenants. Each has a volume and a client of the same name.
const TENANTS: [&str; 3] = ["light", "bulk", "mix"];
/// The load of each tenant, as keys of a job: reads at a rate of their own, a queue of writes that is always full, and a small
/// queue of both. The first is an open loop, the others are closed loops.
const LOADS: [&str; 3] = [
    "op = \"read\"\nblock_size = \"4k\"\nrate = 200\nqueue_depth = 64",
    "op = \"write\"\nblock_size = \"64k\"\npattern = \"sequential\"\nqueue_depth = 32",
    "op = \"mix\"\nread_percent = 70\nblock_size = \"4k:80,16k:20\"\nqueue_depth = 4",
];

/// A setting that is predicted, and then tried.
#[derive(Debug)]
struct Setting {
    name: &'static str,
    /// Keys of the pool.
    pool: &'static str,
    /// A tenant, and its keys.
    tenant: (&'static str, &'static str),
    /// Tenant that sends nothing.
    absent: Option<&'static str>,
    /// True if the setting is tried in a short run.
    short: bool,
}

/// A setting with these keys of the pool.
const fn pool(name: &'static str, pool: &'static str) -> Setting {
    Setting { name, pool, tenant: ("", ""), absent: None, short: false }
}

/// A setting with these keys of a tenant, and the pool's defaults.
const fn tenant(name: &'static str, tenant: &'static str, keys: &'static str) -> Setting {
    Setting { name, pool: "", tenant: (tenant, keys), absent: None, short: false }
}

/// Keys of the pool under which the load is recorded: every request is admitted at once.
const UNBOUNDED: &str = "tuning.admission = \"none\"";
/// A latency target of the pool, which is for reads, or of a tenant; of a tenant it has an effect with slots alone.
const LATENCY_TARGET: &str = "latency = { target = \"15ms\", percentile = 99 }";
/// The settings. The load is recorded under the first one.
static SETTINGS: [Setting; 13] = [
    Setting { short: true, ..pool("none", UNBOUNDED) },
    pool("fixed", "tuning.admission = { kind = \"fixed\", budget = \"64KiB\" }"),
    pool("wide", "tuning.admission = { kind = \"fixed\", budget = \"512KiB\" }"),
    Setting { short: true, ..pool("default", "") },
    Setting { short: true, ..tenant("limit", "bulk", "limit = { bytes_per_s = \"40MB\" }") },
    tenant("limit_iops", "mix", "limit = { iops = 60 }"),
    tenant("reservation", "light", "reservation = { iops = 300 }"),
    tenant("reservation_mix", "mix", "reservation = { iops = 400 }"),
    tenant("weight", "mix", "weight = 8"),
    pool("target", LATENCY_TARGET),
    Setting { pool: "tuning.slots = \"needs\"", ..tenant("slots", "light", LATENCY_TARGET) },
    Setting { absent: Some("bulk"), ..pool("removed", UNBOUNDED) },
    Setting { absent: Some("mix"), ..pool("removed_mix", UNBOUNDED) },
];

/// Length of the recording, in seconds: in a short run, and in a full run. Other runs send the same requests, however long.
const RECORDED_S: [u64; 2] = [4, 10];
/// Bar: the duration of a short run, in seconds.
const SHORT_BAR_S: f64 = 60.0;
/// Bars: median error of each of [`FIGURES`], in percent.
const BARS: [(&str, f64); 3] =
    [("throughput_error_percent", 5.0), ("p50_error_percent", 15.0), ("p99_error_percent", 15.0)];
/// The bar is this multiple of the scatter of real runs, in percent, where that is more.
const SCATTERS: f64 = 1.5;
/// Bar: share of the pairs of settings whose order is predicted, in percent.
const RANKING_BAR: f64 = 95.0;
/// Limit of every working mechanism for errors, in percent; README.md derives this limit and the following one.
const ERROR_SURE: f64 = 100.0;
/// Limit of every working mechanism for [`RANKING_BAR`].
const RANKING_SURE: f64 = 33.0;

impl Setting {
    /// The tables of the pool and of the tenants.
    fn policy(&self) -> String {
        let mut text = format!("[pools.main]\n{}\n", self.pool);
        for tenant in TENANTS {
            let keys = if self.tenant.0 == tenant { self.tenant.1 } else { "" };
            text += &format!("[tenants.{tenant}]\n{keys}\n");
        }
        text
    }
}

/// The figures of each tenant.
type Tenants = BTreeMap<String, Measured>;

/// A recording, and the figures of a real run of the same requests under each setting.
struct Round {
    recording: PathBuf,
    real: Vec<Tenants>,
}

/// Predictions for one device by one model of it, over all rounds.
struct Trial {
    device: Device,
    /// True if the model is learned from the recording; false if it is the emulated device's own.
    fitted: bool,
    figures: Figures,
    /// The errors and the real figures of each round, the latter by setting.
    errors: Vec<Errors>,
    real: Vec<Vec<Tenants>>,
    /// The first failure; without a failure, the summary of the last round.
    outcome: Result<String>,
    /// The reason for which the last recording could not be learned from.
    refused: Option<String>,
}

/// Runs the lab and reports each trial.
pub(super) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let begun = Instant::now();
    let scratch = Scratch::kept_if(options.keep, "replay")?;
    let settings: Vec<&Setting> = SETTINGS.iter().filter(|setting| options.full || setting.short).collect();
    let stage = Stage::new(scratch.path(), &options.binary, RECORDED_S[usize::from(options.full)]);
    let rounds = if options.full { options.repeats } else { 1 };
    let mut tried = 0;
    for device in Device::ALL {
        let mut trials = Trial::all(device, options.full);
        trials.retain(|trial| trial.name().contains(&options.only));
        if trials.is_empty() {
            continue;
        }
        tried += trials.len();
        let missing = match device {
            Device::Emulated | Device::File => None,
            Device::Disk => disk::missing(&options.build),
            Device::Rbd => osd::missing(),
        };
        if let Some(reason) = missing {
            trials.iter().try_for_each(|trial| lab.skipped(&trial.name(), &reason))?;
            continue;
        }
        let all = match device {
            Device::Emulated | Device::File => all_measured(&stage, device, &settings, rounds),
            Device::Disk => disk::rounds(lab, options, &scratch, rounds),
            Device::Rbd => osd::rounds(options, &scratch, &settings, rounds),
        };
        for round in all {
            match round {
                Ok(real) => trials.iter_mut().for_each(|trial| trial.take(&stage, &settings, &real)),
                Err(error) => trials.iter_mut().for_each(|trial| trial.put(Err(anyhow!("{error:#}")))),
            }
        }
        for trial in trials {
            trial.end(lab, rounds)?;
        }
    }
    tried += long::run(lab, options, scratch.path());
    ensure!(tried > 0, "no trial has {:?} in its name", options.only);
    if !options.full {
        let took_s = begun.elapsed().as_secs_f64();
        let (value, bar) = (format!("{took_s:.0} s"), format!("<= {SHORT_BAR_S:.0} s"));
        lab.figure("short_run", &value, &bar, took_s <= SHORT_BAR_S);
    }
    Ok(())
}

/// Measures so many rounds on a device of this machine.
fn all_measured(stage: &Stage<'_>, device: Device, settings: &[&Setting], count: u64) -> Vec<Result<Round>> {
    (1..=count).map(|number| measured(stage, device, settings, number)).collect()
}

/// Records the load under the first setting, and runs the same requests under each of the settings.
fn measured(stage: &Stage<'_>, device: Device, settings: &[&Setting], round: u64) -> Result<Round> {
    let run = |setting: &Setting, name: &str, work: Work<'_>| -> Result<(PathBuf, Tenants)> {
        let path = stage.run(device, setting, &format!("{device}-{round}-{name}"), work)?;
        let tenants = recorded::measured(&path)?;
        Ok((path, tenants))
    };
    let (recording, sent) = run(&SETTINGS[0], "recorded", Work::Recorded)?;
    let mut real = Vec::new();
    for &setting in settings {
        real.push(run(setting, setting.name, Work::Again(&sent))?.1);
    }
    Ok(Round { recording, real })
}

impl Trial {
    /// The trials on a device. Devices that are not emulated are not known, so that they are always learned.
    fn all(device: Device, full: bool) -> Vec<Self> {
        let trial = |fitted| Self {
            device,
            fitted,
            figures: Figures::default(),
            errors: Vec::new(),
            real: Vec::new(),
            outcome: Ok(String::new()),
            refused: None,
        };
        match (device, full) {
            (Device::Emulated, false) => vec![trial(false)],
            (Device::Emulated, true) => vec![trial(false), trial(true)],
            (Device::File | Device::Disk | Device::Rbd, true) => vec![trial(true)],
            (Device::File | Device::Disk | Device::Rbd, false) => Vec::new(),
        }
    }

    fn name(&self) -> String {
        if self.fitted { format!("{}_fitted", self.device) } else { self.device.to_string() }
    }

    /// Predicts each setting from the recording of a round, and compares with the real runs.
    fn take(&mut self, stage: &Stage<'_>, settings: &[&Setting], round: &Round) {
        let one = self.attempt(stage, settings, round);
        println!("lab: {} in one round: {}", self.name(), told(&one));
        self.put(one);
    }

    /// Keeps the outcome of a round.
    fn put(&mut self, one: Result<String>) {
        if self.outcome.is_ok() {
            self.outcome = one;
        }
    }

    fn attempt(&mut self, stage: &Stage<'_>, settings: &[&Setting], round: &Round) -> Result<String> {
        let device = if self.fitted {
            match stage.fitted(&round.recording)? {
                Fitted::Device(path) => path,
                Fitted::Refused(reason) => {
                    self.refused = Some(reason.clone());
                    return Ok(format!("not learned: {reason}"));
                }
            }
        } else {
            stage.known()?
        };
        let mut predicted = Vec::new();
        for &setting in settings {
            predicted.push(stage.predicted(&round.recording, &device, setting)?);
        }
        for ((setting, predicted), real) in settings.iter().zip(&predicted).zip(&round.real) {
            for line in judge::lines(predicted, real) {
                println!("lab: {} {}: {line}", self.name(), setting.name);
            }
        }
        let errors = Errors::of(&predicted, &round.real);
        let told = summary(&errors, settings);
        self.errors.push(errors);
        self.real.push(round.real.clone());
        Ok(told)
    }

    /// Judges the errors of all rounds.
    fn weigh(&mut self) {
        // Only the emulated device is the same in every run, and its model is the device itself.
        let (error_sure, ranking_sure) = if self.fitted { (f64::INFINITY, 0.0) } else { (ERROR_SURE, RANKING_SURE) };
        let Self { figures, errors, real, .. } = self;
        let scatter = judge::scatter(real);
        for errors in errors {
            for (((name, bar), error), scatter) in BARS.into_iter().zip(errors.of).zip(scatter) {
                figures.at_most(name, error, error_sure, bar.max(SCATTERS * scatter));
            }
            if let Some(ranking) = errors.ranking {
                figures.at_least("ranking_percent", ranking, ranking_sure, RANKING_BAR);
            }
        }
    }

    /// Reports the result of all rounds.
    fn end(mut self, lab: &mut Lab, rounds: u64) -> Result<()> {
        self.weigh();
        let (name, lines) = (self.name(), self.figures.lines());
        if let (Some(reason), true) = (&self.refused, lines.is_empty() && self.outcome.is_ok()) {
            return lab.skipped(&name, &format!("evenkeel fit refuses the recording: {reason}"));
        }
        for line in lines {
            println!("lab: figure replay::{name}_{line}");
        }
        let verdict = self.figures.judge(rounds, self.outcome);
        lab.check(&name, verdict.is_ok(), &told(&verdict));
        Ok(())
    }
}

/// The errors of a round in words.
fn summary(errors: &Errors, settings: &[&Setting]) -> String {
    let Errors { of: [throughput, p50, p99], ranking, pairs, worst } = errors;
    let ranking = ranking.map_or_else(|| "none".to_owned(), |ranking| format!("{ranking:.0} %"));
    let worst = worst.as_ref().map_or_else(String::new, |Off { setting, tenant, figure, percent }| {
        let setting = settings.get(*setting).map_or("", |setting| setting.name);
        format!("; worst: {} of {tenant} under {setting}, by {percent:.1} %", FIGURES[*figure])
    });
    format!(
        "median errors: throughput {throughput:.1} %, p50 {p50:.1} %, p99 {p99:.1} %; {ranking} of {pairs} pairs of \
         settings in order{worst}"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn settings_have_names_of_their_own_and_three_are_short() {
        let names: BTreeSet<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        assert_eq!(names.len(), SETTINGS.len());
        assert_eq!(SETTINGS.iter().filter(|setting| setting.short).count(), 3);
        let known = |tenant: &&str| TENANTS.contains(tenant);
        assert!(SETTINGS.iter().all(|setting| setting.tenant.0.is_empty() || known(&setting.tenant.0)));
        assert!(SETTINGS.iter().filter_map(|setting| setting.absent).all(|absent| known(&absent)));
    }

    #[test]
    fn a_full_run_predicts_twenty_cases_and_more() {
        let places = Device::ALL.into_iter().filter(|device| !Trial::all(*device, true).is_empty()).count();
        assert!(places * SETTINGS.len() >= 20, "{places}");
        let settings: Vec<&Setting> = SETTINGS.iter().collect();
        let worst = Off { setting: 1, tenant: "bulk".to_owned(), figure: 2, percent: 42.0 };
        let errors = Errors { of: [1.0, 2.0, 3.0], ranking: Some(97.0), pairs: 9, worst: Some(worst) };
        let text = summary(&errors, &settings);
        assert!(text.contains("97 % of 9 pairs"), "{text}");
        assert!(text.ends_with("worst: p99 ms of bulk under fixed, by 42.0 %"), "{text}");
    }

    #[test]
    fn real_runs_that_scatter_set_the_bar() {
        let one = |iops: f64| {
            let measured = Measured { requests: 1, figures: [iops, 1.0, 1.0] };
            vec![Tenants::from([("bulk".to_owned(), measured)])]
        };
        let of = |first: f64, second: f64| {
            let mut trial = Trial::all(Device::File, true).remove(0);
            trial.real = vec![one(first), one(second)];
            let errors = || Errors { of: [9.0, 1.0, 1.0], ranking: None, pairs: 0, worst: None };
            trial.errors = vec![errors(), errors()];
            trial.weigh();
            trial.figures.missed()
        };
        assert_eq!(of(100.0, 100.0), ["throughput_error_percent"]);
        // By a tenth from the median.
        assert_eq!(of(90.0, 110.0), Vec::<String>::new());
    }

    #[test]
    fn a_policy_has_all_tenants_and_the_keys_of_one() {
        let limit = SETTINGS.iter().find(|setting| setting.name == "limit").unwrap();
        let text = limit.policy();
        assert!(text.contains("[tenants.bulk]\nlimit = { bytes_per_s = \"40MB\" }\n"), "{text}");
        assert!(text.starts_with("[pools.main]\n\n[tenants.light]\n\n"), "{text}");
        assert!(SETTINGS[0].policy().starts_with("[pools.main]\ntuning.admission = \"none\"\n"));
    }

    #[test]
    fn a_device_that_is_not_emulated_is_learned() {
        let names = |full| {
            let all = Device::ALL.into_iter().flat_map(|device| Trial::all(device, full));
            all.map(|trial| trial.name()).collect::<Vec<_>>()
        };
        assert_eq!(names(false), ["emulated"]);
        assert_eq!(names(true), ["emulated", "emulated_fitted", "file_fitted", "disk_fitted", "rbd_fitted"]);
    }
}
