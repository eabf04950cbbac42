//! `evenkeel advise FILE`: a policy that meets targets for a recorded load.

use std::path::PathBuf;

use anyhow::{Context, ensure};
use evenkeel_sim::flight::advise::advise;
use evenkeel_sim::flight::fit::Options;
use evenkeel_sim::flight::{page, text};

use crate::control::whole;
use crate::output::{self, Usage};
use crate::trace::ensure_apart;
use crate::trace::sample::Sample;

/// Options of `evenkeel advise`.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Args {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The policy with the wanted latency targets and guarantees
    #[arg(long, value_name = "WISH.toml")]
    policy: PathBuf,
    /// The device, as evenkeel fit writes it [default: learned from the recording]
    #[arg(long, value_name = "DEVICE.toml")]
    device: Option<PathBuf>,
    /// Override a value of the policy by its dotted key: tenants.shop.latency.target=5ms
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The pool to advise on, if the recording has several
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    #[command(flatten)]
    sample: Sample,
    /// Seed of simulation and bootstrap
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u64>)]
    seed: u64,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    /// Also write the result as one HTML page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Prints the advice.
///
/// # Errors
/// A file that cannot be read or written, or a policy that no setting meets.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(page) = &args.html {
        for input in [&args.file, &args.policy].into_iter().chain(&args.device) {
            ensure_apart(input, page)?;
        }
    }
    ensure!(
        args.device.is_some() || !args.set.iter().any(|assignment| assignment.starts_with("device.")),
        Usage("--set device.KEY=VALUE changes a device, and needs --device FILE: learn one with evenkeel fit".into())
    );
    let _prepared = args.html.as_deref().map(output::prepare).transpose()?;
    let mut load = super::load(&args.file, &args.sample, args.pool.as_deref())?;
    let assignments = evenkeel_sim::flight::policy::Assignments::new(&args.set, &load.pool);
    let wish = super::policy(&args.policy, &load.pool, &assignments.policy)?;
    load.join_groups(&wish);
    super::warn_of_absent(&wish, &load);
    super::warn_of_mistyped(&wish, &assignments.policy, &load);
    let device = match &args.device {
        Some(path) => super::device(path, &assignments.device)?,
        None => {
            let options = Options { seed: args.seed, ..Options::default() };
            let fit = super::fit::learn(&args.file, &load, &options)?;
            fit.notes.iter().for_each(|note| super::warn(note));
            fit.device
        }
    };
    let bar = output::spinner("{spinner} {elapsed} trying policies");
    let advice = advise(&load, &device, &wish, args.seed);
    bar.finish_and_clear();
    let advice = advice.with_context(|| args.file.display().to_string())?;
    output::show(args.json, &advice, text::advice)?;
    if let Some(path) = &args.html {
        let page = page::advice(&advice, output::command());
        std::fs::write(path, page.html()).with_context(|| output::cannot_write(path))?;
    }
    ensure!(
        advice.chosen.is_some(),
        "no policy that was tried meets all targets and guarantees; the printed answer says by how much each is missed"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_device_need_a_device() {
        let args = Args {
            file: "a.rec".into(),
            policy: "wish.toml".into(),
            set: vec!["device.iops=5".to_owned()],
            seed: 1,
            ..Args::default()
        };
        let refused = run(&args).expect_err("no device");
        assert!(refused.is::<Usage>() && refused.to_string().contains("evenkeel fit"), "{refused}");
    }
}
