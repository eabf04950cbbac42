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

/// Name of the file in `data_dir` that records the volumes created by command.
const RECORD: &str = "volumes.toml";
const RECORD_HEADER: &str = "\
# Volumes that were created, grown or left by `evenkeel volume`. Written by the server;
# a volume in the configuration file goes before one of the same name here.

";

/// Paths of the files that belong to the program: the configuration file, the lock of the data folder, the record of volumes, the
/// file of the cluster, and the next versions of the latter two.
pub fn own_files(config: Option<&Path>, data_dir: &Path) -> Vec<PathBuf> {
    let record = record_of(data_dir);
    let next = record.with_extension("toml.new");
    let of_cluster = evenkeel_cluster::Settings::files_in(data_dir);
    config.map(Path::to_owned).into_iter().chain([lock_of(data_dir), record, next]).chain(of_cluster).collect()
}

/// Path of the file that a running server has locked, so that no second one writes the records of the data folder.
pub fn lock_of(data_dir: &Path) -> PathBuf {
    data_dir.join("server.lock")
}

/// Path of the record of volumes that were created by command.
pub fn record_of(data_dir: &Path) -> PathBuf {
    data_dir.join(RECORD)
}

/// The sources of the configuration, which a reload reads again.
pub struct Source {
    /// Path of the configuration file; `None` without a file.
    pub file: Option<PathBuf>,
    /// Function that applies the settings of the command line, which have priority over the file.
    pub flags: Box<dyn Fn(&mut Config) + Send + Sync>,
    /// The minute of the day by this machine's clocks, 0 to 1439, for limits with hours.
    pub minute: fn() -> u16,
}

/// A configuration that was read, complete and checked.
pub struct Loaded {
    /// The whole configuration.
    pub config: Config,
    /// Warnings about the configuration.
    pub warnings: Vec<Problem>,
    /// Names of the volumes in the file. Commands do not change them, because the next reload would undo the change.
    pub fixed_volumes: BTreeSet<String>,
    /// The volumes that were created by command.
    pub recorded: Recorded,
}

/// The volumes of a configuration that come from the record. Faults in them are reported about the record, not about the
/// configuration file.
#[derive(Default)]
pub struct Recorded {
    record: PathBuf,
    names: BTreeSet<String>,
    /// True if the record has volumes that are also in the file. They must be removed from the record, which would otherwise
    /// restore them when they are removed from the file.
    pub is_superseded: bool,
}

impl Recorded {
    /// Adds the volumes of the data folder's record to a configuration, as a starting server does. `has_volumes`: the
    /// configuration's own volumes come from a file and are kept.
    ///
    /// # Errors
    /// If the record exists and cannot be used.
    pub fn add_to(config: &mut Config, has_volumes: bool) -> Result<Self, Errors> {
        let record = record_of(&config.server.data_dir);
        let Some(volumes) = read_record(&record)? else { return Ok(Self::default()) };
        Ok(Self::add(record, volumes, config, has_volumes))
    }

    /// Adds recorded volumes to a configuration. `has_volumes`: the configuration's own volumes come from a file and are kept,
    /// otherwise they are removed.
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

    /// The problems, with the record as the origin of those that are about recorded volumes.
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
    /// All problems of the configuration, each with file, line, key and remedy.
    pub fn load(&self) -> Result<Loaded, Errors> {
        self.read(None)
    }

    /// As [`Self::load`], with `recorded` in place of the volumes in the record.
    ///
    /// # Errors
    /// All problems that this configuration would have, each with file, line, key and remedy.
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
        config.set_time((self.minute)());
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
            Some(file) if has_flags => format!("the command line and {}", file.display()),
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

    /// Paths of the files that belong to the program, existing or not.
    pub fn own_files(&self, data_dir: &Path) -> Vec<PathBuf> {
        own_files(self.file.as_deref(), data_dir)
    }

    /// The name of the source in messages.
    pub(super) fn name(&self) -> String {
        self.file.as_ref().map_or_else(|| "a configuration file".into(), |file| file.display().to_string())
    }
}

/// The volumes in the record at `path`; `None` if there is no record. Names of pools and tenants in them are checked later, with
/// the whole configuration.
fn read_record(path: &Path) -> Result<Option<BTreeMap<String, Volume>>, Errors> {
    let fail = |message: String| {
        Errors(vec![Problem { origin: path.display().to_string(), position: None, key: String::new(), message }])
    };
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fail(format!("cannot read the recorded volumes: {error}"))),
        Ok(text) => volumes_of(&text).map(Some).map_err(|error| {
            fail(format!("is damaged; correct it, or remove it to forget the volumes (their files stay): {error}"))
        }),
    }
}

/// The volumes in the text of a record.
///
/// # Errors
/// If the text is no record.
pub(crate) fn volumes_of(text: &str) -> Result<BTreeMap<String, Volume>, toml::de::Error> {
    #[derive(Deserialize)]
    struct Record {
        volumes: BTreeMap<String, Volume>,
    }
    toml::from_str(text).map(|record: Record| record.volumes)
}

/// The text of the record of the volumes in `config` that are not in `fixed_volumes`.
///
/// # Errors
/// If a value has no form in TOML.
pub(crate) fn text_of(config: &Config, fixed_volumes: &BTreeSet<String>) -> Result<String, toml::ser::Error> {
    #[derive(Serialize)]
    struct Record<'a> {
        volumes: BTreeMap<&'a String, &'a Volume>,
    }
    let volumes = config.volumes.iter().filter(|(name, _)| !fixed_volumes.contains(*name)).collect();
    Ok(format!("{RECORD_HEADER}{}", toml::to_string(&Record { volumes })?))
}

/// Writes the volumes that the configuration file does not name to the record, so that they exist after a restart.
///
/// # Errors
/// If the record cannot be written; the old record is intact then.
pub(super) fn record(config: &Config, fixed_volumes: &BTreeSet<String>) -> anyhow::Result<()> {
    let text = text_of(config, fixed_volumes)?;
    let path = config.server.data_dir.join(RECORD);
    let written = fs::create_dir_all(&config.server.data_dir)
        .and_then(|()| evenkeel_server::replace(&path, |_| Ok(text.into_bytes())));
    written.with_context(|| format!("cannot record the volumes in {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_files_in_the_data_folder_are_the_programs_own() {
        let own = own_files(Some(Path::new("/etc/e.toml")), Path::new("/d"));
        let records = ["/d/volumes.toml", "/d/volumes.toml.new", "/d/cluster.json", "/d/cluster.new"];
        for path in records.into_iter().chain(["/etc/e.toml", "/d/server.lock"]) {
            assert!(own.contains(&PathBuf::from(path)), "{path}: {own:?}");
        }
    }
}
