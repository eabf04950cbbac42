//! `evenkeel reproduce NAME --tune`: tuned parameters of the baselines, and the files in which they are kept.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow, bail, ensure};
use evenkeel_policy::figures::counted;
use evenkeel_sim::experiment::tune::Tuned;
use evenkeel_sim::experiment::{Options, drg, iscsi, messenger, saat};

use super::{Args, Experiment, each, record, threads};
use crate::output::{self, Usage};
use crate::parallel;

/// The folder of the files, relative to the root of a checkout of Evenkeel.
const FOLDER: &str = "docs/results/tuned";

/// Experiments with baselines that can be tuned.
const TUNED: [Experiment; 4] = [Experiment::Iscsi, Experiment::Saat, Experiment::Messenger, Experiment::Drg];

fn path(folder: &Path, experiment: Experiment) -> PathBuf {
    folder.join(format!("{}.toml", record::name(experiment)))
}

/// The tuned parameters of the experiment's baselines; without baselines if there is no file in the current folder's
/// [`FOLDER`].
///
/// # Errors
/// When the file cannot be read.
pub(super) fn read(experiment: Experiment) -> anyhow::Result<Tuned> {
    read_from(Path::new(FOLDER), experiment)
}

fn read_from(folder: &Path, experiment: Experiment) -> anyhow::Result<Tuned> {
    let path = path(folder, experiment);
    let cure = "write it again with --tune, or remove it";
    let text = match std::fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Tuned::default()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let tuned = Tuned::from_toml(&text)
        .map_err(|error| anyhow!("{} holds no tuned values: {}; {cure}", path.display(), error.trim_end()))?;
    let name = record::name(experiment);
    ensure!(tuned.experiment == name, "{} is about {}, not {name}; {cure}", path.display(), tuned.experiment);
    Ok(tuned)
}

/// Tunes the baselines of an experiment, and writes the values into the experiment's file.
///
/// # Errors
/// When the experiment has no baseline to tune, a run fails or is interrupted, or the file cannot be written.
pub(super) fn tune(args: &Args, experiment: Experiment) -> anyhow::Result<()> {
    let name = record::name(experiment);
    if !TUNED.contains(&experiment) {
        let known = TUNED.map(record::name).join(", ");
        bail!(Usage(format!("--tune is for {known}: the methods of {name} are compared as they are")));
    }
    record::origin()?;
    let stop = parallel::interrupts()?;
    let options = Options { seed: args.seed.unwrap_or(1), ..Options::default() };
    let begun = Instant::now();
    let tuned = match experiment {
        Experiment::Iscsi => {
            iscsi::tuned(&options, &mut |name, runs| each(args, &stop, name, runs, iscsi::world::simulate))?
        }
        Experiment::Saat => {
            saat::tuned(&options, &mut |name, runs| each(args, &stop, name, runs, saat::run::simulate))?
        }
        Experiment::Messenger => {
            messenger::tuned(&options, &mut |name, runs| each(args, &stop, name, runs, messenger::world::simulate))?
        }
        _ => drg::tuned(&options, &mut |name, runs| each(args, &stop, name, runs, drg::world::simulate))?,
    };
    let path = write_into(Path::new(FOLDER), experiment, &tuned)?;
    let took = format!("{:.0} s on {}", begun.elapsed().as_secs_f64(), counted(threads(args) as u64, "thread"));
    output::print(&format!("{}\n{took}. Written: {}\n", tuned.text(), path.display()))
}

fn write_into(folder: &Path, experiment: Experiment, tuned: &Tuned) -> anyhow::Result<PathBuf> {
    let path = path(folder, experiment);
    let cannot_write = || format!("cannot write {}", path.display());
    std::fs::create_dir_all(folder).with_context(cannot_write)?;
    let text = tuned.to_toml().map_err(anyhow::Error::msg)?;
    std::fs::write(&path, text).with_context(cannot_write)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use evenkeel_sim::experiment::tune::Baseline;

    use super::*;

    #[test]
    fn tuned_values_are_read_as_written_and_a_missing_file_tunes_nothing() {
        let folder = std::env::temp_dir().join(format!("evenkeel-tuned-{}", std::process::id()));
        assert_eq!(read_from(&folder, Experiment::Iscsi).unwrap(), Tuned::default());
        let pid = Baseline { values: [("set_point".to_owned(), 0.8)].into(), ..Baseline::default() };
        let baselines = [("pid".to_owned(), pid)].into();
        let tuned = Tuned { experiment: "iscsi".to_owned(), seed: 7, baselines, ..Tuned::default() };
        let path = write_into(&folder, Experiment::Iscsi, &tuned).unwrap();
        assert!(path.ends_with("iscsi.toml"), "{}", path.display());
        assert_eq!(read_from(&folder, Experiment::Iscsi).unwrap(), tuned);
        std::fs::rename(&path, folder.join("drg.toml")).unwrap();
        let error = format!("{:#}", read_from(&folder, Experiment::Drg).unwrap_err());
        assert!(error.contains("is about iscsi, not drg") && error.contains("--tune"), "{error}");
        std::fs::write(folder.join("saat.toml"), "experiment = 3\n").unwrap();
        let error = format!("{:#}", read_from(&folder, Experiment::Saat).unwrap_err());
        assert!(error.contains("saat.toml holds no tuned values"), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Where the project has a file of tuned values, its baselines have values.
    #[test]
    fn the_files_of_the_project_are_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(FOLDER);
        for experiment in TUNED {
            let tuned = read_from(&folder, experiment).unwrap();
            assert!(tuned.baselines.values().all(|baseline| !baseline.values.is_empty()), "{tuned:?}");
        }
    }
}
