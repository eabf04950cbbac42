//! `evenkeel replay FILE`: a recorded load on a modelled device, under its own policy and under another.

use std::path::PathBuf;

use anyhow::Context;
use evenkeel_sim::flight::policy::{Assignments, Policy};
use evenkeel_sim::flight::replay::{Under, compare};
use evenkeel_sim::flight::{page, text};

use crate::control::whole;
use crate::output;
use crate::trace::ensure_apart;
use crate::trace::sample::Sample;

/// Options of `evenkeel replay`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The recording, or a trace of another program
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The device, as evenkeel fit writes it
    #[arg(long, value_name = "DEVICE.toml")]
    device: PathBuf,
    /// Override a value of the policy or, with the prefix device., of the device by its dotted key:
    /// pool.tuning.admission=none, device.iops=5000
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The policy to compare with the recorded one
    #[arg(long, value_name = "NEW.toml")]
    policy: Option<PathBuf>,
    /// The pool that is replayed, if the recording has several
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    #[command(flatten)]
    sample: Sample,
    /// Seed of the simulation
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u64>)]
    seed: u64,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    /// Also write the result as one HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// The warning that the two simulated runs differ by more than the values of `--set`, as no recorded policy can be used.
const OVER_DEFAULTS: &str = "no recorded policy can be used, so --set changes the default policy, whose admission control \
                             the other simulated run lacks; give --policy, or --set pool.tuning.admission=none";

/// Replays the recording and prints the comparison.
///
/// # Errors
/// A file that cannot be read or written, or a load that the device does not serve.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(page) = &args.html {
        for input in [&args.file, &args.device].into_iter().chain(&args.policy) {
            ensure_apart(input, page)?;
        }
    }
    let _prepared = args.html.as_deref().map(output::prepare).transpose()?;
    let mut load = super::load(&args.file, &args.sample, args.pool.as_deref())?;
    let assignments = Assignments::new(&args.set, &load.pool);
    let device = super::device(&args.device, &[])?;
    let own = super::recorded_policy(&load);
    let changed_device = super::device(&args.device, &assignments.device)?;
    let changed_policy = match &args.policy {
        Some(path) => Some(super::policy(path, &load.pool, &assignments.policy)?),
        None if assignments.policy.is_empty() => own.clone(),
        None => {
            if own.is_none() && !sets_admission(&assignments.policy) {
                super::warn(OVER_DEFAULTS);
            }
            let text = if own.is_some() { load.head.policy.as_str() } else { "" };
            let policy = Policy::parse(text, "the recording's policy", &load.pool, &assignments.policy);
            Some(policy.map_err(super::problems)?)
        }
    };
    if let Some(policy) = &changed_policy {
        load.join_groups(policy);
    }
    if let Some(policy) = changed_policy.as_ref().filter(|_| args.policy.is_some() || !assignments.policy.is_empty()) {
        super::warn_of_absent(policy, &load);
        super::warn_of_mistyped(policy, &assignments.policy, &load);
    }
    let is_changed = args.policy.is_some() || !args.set.is_empty();
    let before = Under { device: &device, policy: own.as_ref() };
    let after = Under { device: &changed_device, policy: changed_policy.as_ref() };
    let bar = output::spinner("{spinner} {elapsed} replaying");
    let comparison = compare(&load, before, is_changed.then_some(after), args.seed);
    bar.finish_and_clear();
    let comparison = comparison.with_context(|| args.file.display().to_string())?;
    output::show(args.json, &comparison, text::replay)?;
    if let Some(path) = &args.html {
        let page = page::page(&comparison, output::command());
        std::fs::write(path, page.html()).with_context(|| output::cannot_write(path))?;
    }
    Ok(())
}

/// True if one of the assignments is about the admission control of the pool.
fn sets_admission(assignments: &[String]) -> bool {
    assignments.iter().any(|assignment| assignment.starts_with("pools") && assignment.contains("admission"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assigned_admission_control_is_not_asked_for() {
        let of = |assignment: &str| sets_admission(&Assignments::new(&[assignment.to_owned()], "vg.1").policy);
        assert!(of("pool.tuning.admission=none") && of("pools.main.tuning={ admission = \"none\" }"));
        assert!(!of("pool.limit.iops=5") && !of("tenants.admission.weight=3"));
    }
}
