//! The sources of the configuration: a file, the volumes recorded by commands, and the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use evenkeel_policy::Config;
use evenkeel_policy::check::{Errors, Problem, check_file};
use evenkeel_policy::config::Volume;
use serde::{Deserialize, Serialize};

/// Name of the record of volumes that were created by command, in `data_dir`.
const RECORD: &str = "volumes.toml";
const RECORD_HEADER: &str = "\
# Volumes that were created, grown or left by `evenkeel volume`. Written by the server;
# a volume in the configuration file goes before one of the same name here.

";

/// The files that the program keeps: the configuration and the record of volumes with its next version.
pub fn own_files(config: Option<&Path>, data_dir: &Path) -> Vec<PathBuf> {
    let record = record_of(data_dir);
    let next = record.with_extension("toml.new");
    config.map(Path::to_owned).into_iter().chain([record, next]).collect()
}

/// Path of the record of volumes that were created by command.
pub fn record_of(data_dir: &Path) -> PathBuf {
    data_dir.join(RECORD)
}

/// The sources of the configuration; reading them again is a reload.
pub struct Source {
    /// The configuration file, if there is one.
    pub file: Option<PathBuf>,
    /// Applies the settings of the command line, which have priority over the file.
    pub flags: Box<dyn Fn(&mut Config) + Send + Sync>,
}

/// A configuration that was read, complete and checked.
pub struct Loaded {
    /// The whole configuration.
    pub config: Config,
    /// Warnings about the configuration.
    pub warnings: Vec<Problem>,
    /// Volumes that the file names: commands do not change them, as the next reload would undo it.
    pub fixed_volumes: BTreeSet<String>,
    /// Volumes that were created by command.
    pub recorded: Recorded,
}

/// Volumes that came from the record: faults in them are reported for the record, not for the configuration file.
#[derive(Default)]
pub struct Recorded {
    record: PathBuf,
    names: BTreeSet<String>,
    /// True if the file has some volumes of the record, too: once they leave the file, the record would bring them back.
    pub is_superseded: bool,
}

impl Recorded {
    /// Adds the volumes on record in the data folder to a configuration, as a starting server does. `has_volumes`: the
    /// volumes of the configuration come from a file, and stay.
    ///
    /// # Errors
    /// When the record exists and cannot be used.
    pub fn add_to(config: &mut Config, has_volumes: bool) -> Result<Self, Errors> {
        let record = record_of(&config.server.data_dir);
        let Some(volumes) = read_record(&record)? else { return Ok(Self::default()) };
        Ok(Self::add(record, volumes, config, has_volumes))
    }

    /// Adds volumes on record to a configuration. `has_volumes`: its own volumes come from a file and stay; else they go.
    fn add(record: PathBuf, volumes: BTreeMap<String, Volume>, config: &mut Config, has_volumes: bool) -> Self {
        if !has_volumes {
            config.volumes.clear();
        }
        let all = volumes.len();
        let new = volumes.into_iter().filter(|(name, _)| !config.volumes.contains_key(name));
        let new = new.collect::<BTreeMap<_, _>>();
        let names: BTreeSet<String> = new.keys().cloned().collect();
        config.volumes.extend(new);
        Self { record, is_superseded: names.len() < all, names }
    }

    /// Path of the record, if it has the volume.
    pub fn record_of(&self, volume: &str) -> Option<&Path> {
        self.names.contains(volume).then_some(&self.record)
    }

    /// Sets the record as the origin of the problems that are about its volumes.
    pub fn place(&self, mut problems: Vec<Problem>) -> Vec<Problem> {
        let is_about = |key: &str, name: &str| {
            let rest = key.strip_prefix("volumes.");
            let rest = rest.and_then(|key| key.strip_prefix(name).or_else(|| key.strip_prefix(&format!("{name:?}"))));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        for problem in &mut problems {
            if self.names.iter().any(|name| is_about(&problem.key, name)) {
                (problem.origin, problem.position) = (self.record.display().to_string(), None);
            }
        }
        problems
    }
}

impl Source {
    /// Reads all sources.
    ///
    /// # Errors
    /// All problems, each with file, line, key and cure.
    pub fn load(&self) -> Result<Loaded, Errors> {
        self.read(None)
    }

    /// As [`Self::load`], with `recorded` in place of the volumes on record.
    ///
    /// # Errors
    /// All problems that there would be, each with file, line, key and cure.
    pub(super) fn load_with(&self, recorded: BTreeMap<String, Volume>) -> Result<Loaded, Errors> {
        self.read(Some(recorded))
    }

    fn read(&self, recorded: Option<BTreeMap<String, Volume>>) -> Result<Loaded, Errors> {
        let (mut config, warnings, has_volumes) = match &self.file {
            Some(file) => {
                let report = check_file(file).into_result()?;
                (report.config, [report.warnings, report.elsewhere].concat(), report.has_volumes)
            }
            None => (Config::default(), Vec::new(), false),
        };
        let of_file = config.server.clone();
        (self.flags)(&mut config);
        let has_flags = config.server != of_file;
        let fixed_volumes: BTreeSet<String> =
            if has_volumes { config.volumes.keys().cloned().collect() } else { BTreeSet::new() };
        let recorded = match recorded {
            None => Recorded::add_to(&mut config, has_volumes)?,
            Some(volumes) => {
                Recorded { names: BTreeSet::new(), ..Recorded::add(PathBuf::new(), volumes, &mut config, has_volumes) }
            }
        };
        // The file by itself has passed: what is wrong now came by the flags.
        let origin = match &self.file {
            Some(file) if has_flags => format!("the command line, with {}", file.display()),
            Some(file) => file.display().to_string(),
            None => "command line".into(),
        };
        // The command line may have changed what the file alone would be warned about.
        let placed = |warning: Problem| {
            let same = |known: &&Problem| (&known.key, &known.message) == (&warning.key, &warning.message);
            warnings.iter().find(same).cloned().unwrap_or(warning)
        };
        let warnings = config.validate(&origin).map_err(|Errors(errors)| Errors(recorded.place(errors)))?;
        let warnings = recorded.place(warnings.into_iter().map(placed).collect());
        Ok(Loaded { config, warnings, fixed_volumes, recorded })
    }

    /// The files that the program itself keeps, existing or not.
    pub fn own_files(&self, data_dir: &Path) -> Vec<PathBuf> {
        own_files(self.file.as_deref(), data_dir)
    }

    /// The name of the source in messages.
    pub(super) fn name(&self) -> String {
        self.file.as_ref().map_or_else(|| "a configuration file".into(), |file| file.display().to_string())
    }
}

/// The recorded volumes; `None` without a record. References in them are checked later, with the whole configuration.
fn read_record(path: &Path) -> Result<Option<BTreeMap<String, Volume>>, Errors> {
    #[derive(Deserialize)]
    struct Record {
        volumes: BTreeMap<String, Volume>,
    }
    let fail = |message: String| {
        Errors(vec![Problem { origin: path.display().to_string(), position: None, key: String::new(), message }])
    };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fail(format!("cannot read the recorded volumes: {error}"))),
        Ok(text) => toml::from_str(&text).map(|record: Record| Some(record.volumes)).map_err(|error| {
            fail(format!("is damaged; correct it, or remove it to forget the volumes (their files stay): {error}"))
        }),
    }
}

/// Records the volumes that the configuration file does not name, so that they are there after a restart.
///
/// # Errors
/// When the record cannot be written; the old one is intact then.
pub(super) fn record(config: &Config, fixed_volumes: &BTreeSet<String>) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Record<'a> {
        volumes: BTreeMap<&'a String, &'a Volume>,
    }
    let volumes = config.volumes.iter().filter(|(name, _)| !fixed_volumes.contains(*name)).collect();
    let text = format!("{RECORD_HEADER}{}", toml::to_string(&Record { volumes })?);
    let path = config.server.data_dir.join(RECORD);
    let written = fs::create_dir_all(&config.server.data_dir)
        .and_then(|()| evenkeel_server::replace(&path, |_| Ok(text.into_bytes())));
    written.with_context(|| format!("cannot record the volumes in {}", path.display()))
}
