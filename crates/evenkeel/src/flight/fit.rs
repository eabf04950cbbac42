//! `evenkeel fit FILE`: learns the model of a device from a recording.

use std::path::{Path, PathBuf};

use anyhow::Context;
use evenkeel_sim::flight::family::Family;
use evenkeel_sim::flight::fit::{self, Fit, Options};
use evenkeel_sim::flight::load::Load;
use evenkeel_sim::flight::{policy, text};

use crate::control::whole;
use crate::output;
use crate::trace::ensure_apart;
use crate::trace::sample::Sample;

/// Options of `evenkeel fit`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Write the device to this file [default: print it, with the result as comments]
    #[arg(short, long, value_name = "DEVICE.toml")]
    output: Option<PathBuf>,
    /// The pool whose device is learned, if the recording has several
    #[arg(long, value_name = "POOL")]
    pool: Option<String>,
    /// Try this family of devices only; several may be named
    #[arg(long = "family", value_name = "FAMILY", value_parser = family)]
    families: Vec<Family>,
    #[command(flatten)]
    sample: Sample,
    /// Seed of the simulated devices
    #[arg(long, value_name = "N", default_value = "1", value_parser = whole::<u64>)]
    seed: u64,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
}

/// The result as JSON.
#[derive(serde::Serialize)]
struct Record<'a> {
    #[serde(flatten)]
    fit: &'a Fit,
    /// The device as TOML.
    device: &'a str,
}

fn family(name: &str) -> Result<Family, String> {
    let known = Family::ALL.into_iter().find(|family| family.name() == name);
    known.ok_or_else(|| format!("use one of {}", Family::ALL.map(Family::name).join(", ")))
}

/// Learns the device and prints it.
///
/// # Errors
/// A file that cannot be read or written, or a recording that does not show the device.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    if let Some(path) = &args.output {
        ensure_apart(&args.file, path)?;
    }
    let _prepared = args.output.as_deref().map(output::prepare).transpose()?;
    let load = super::load(&args.file, &args.sample, args.pool.as_deref())?;
    let families = if args.families.is_empty() { Family::ALL.to_vec() } else { args.families.clone() };
    let fit = learn(&args.file, &load, &Options { families, seed: args.seed, ..Options::default() })?;
    let device = policy::device_text(&fit.device).map_err(anyhow::Error::msg)?;
    if let Some(path) = &args.output {
        std::fs::write(path, &device).with_context(|| output::cannot_write(path))?;
    }
    let whole = args.output.is_none();
    output::show(args.json, &Record { fit: &fit, device: &device }, |record| {
        let report = text::fit(record.fit);
        if whole { commented(&report) + record.device } else { report }
    })
}

/// Learns the device of a load, with progress on standard error. `file` is the recording's name in errors.
///
/// # Errors
/// The reason why the recording does not show the device.
pub(super) fn learn(file: &Path, load: &Load, options: &Options) -> anyhow::Result<Fit> {
    let bar = output::spinner("{spinner} {elapsed} learning the device");
    let fit = fit::fit(load, options);
    bar.finish_and_clear();
    fit.with_context(|| file.display().to_string())
}

/// The text as comments in TOML.
fn commented(text: &str) -> String {
    text.lines().map(|line| format!("# {line}").trim_end().to_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_before_a_device_is_a_comment() {
        assert_eq!(commented("a\n\nb\n"), "# a\n#\n# b\n");
    }

    #[test]
    fn families_are_named() {
        assert_eq!(family("nvme"), Ok(Family::Nvme));
        assert!(family("tape").unwrap_err().contains("store, sata, nvme"));
    }
}
