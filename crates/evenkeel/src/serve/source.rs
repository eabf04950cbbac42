//! Where the configuration comes from: a file, the volumes recorded by commands, and the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use evenkeel_policy::Config;
use evenkeel_policy::check::{Errors, Problem, check_file};
use evenkeel_policy::config::{Engine, Status, Volume, Workers};
use serde::{Deserialize, Serialize};

/// Volumes that were created by command, in `data_dir`.
const RECORD: &str = "volumes.toml";
const RECORD_HEADER: &str = "\
# Volumes that were created, grown or left by `evenkeel volume`. Written by the server;
# a volume in the configuration file goes before one of the same name here.

";

/// What the command line says; each flag goes before the file.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct Flags {
    /// Serve every volume read-only
    #[arg(long)]
    pub(crate) read_only: bool,

    /// How I/O is submitted to the kernel: auto (io_uring where allowed), io_uring, epoll
    #[arg(long, value_name = "ENGINE", value_parser = parse_engine)]
    pub(crate) engine: Option<Engine>,

    /// TCP address that serves NBD; may be given several times [default: 127.0.0.1:10809]
    #[arg(long, value_name = "ADDR:PORT")]
    pub(crate) listen: Vec<SocketAddr>,

    /// Unix socket that serves NBD; may be given several times [default: DATA_DIR/nbd.sock]
    #[arg(long, value_name = "PATH")]
    pub(crate) unix: Vec<PathBuf>,

    /// Address of the read-only dashboard, metrics and API, or "off" [default: 127.0.0.1:9809]
    #[arg(long, value_name = "ADDR:PORT|off")]
    pub(crate) status: Option<Status>,

    /// Where volumes live that have no path of their own [default: ./evenkeel-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,

    /// Threads that serve connections: a number, or auto for one per core [default: auto]
    #[arg(long, value_name = "N|auto")]
    pub(crate) workers: Option<Workers>,
}

fn parse_engine(text: &str) -> Result<Engine, String> {
    let engines = [Engine::Auto, Engine::IoUring, Engine::Epoll];
    let found = engines.into_iter().find(|engine| engine.name() == text);
    found.ok_or_else(|| "use auto, io_uring or epoll".to_owned())
}

/// The files that the program keeps beside a configuration.
pub(crate) fn own_files(config: Option<&Path>, data_dir: &Path) -> Vec<PathBuf> {
    let record = data_dir.join(RECORD);
    let next = record.with_extension("toml.new");
    config.map(Path::to_owned).into_iter().chain([record, next]).collect()
}

impl Flags {
    fn apply(&self, config: &mut Config) {
        let server = &mut config.server;
        server.read_only |= self.read_only;
        server.engine = self.engine.unwrap_or(server.engine);
        if !self.listen.is_empty() {
            server.listen.clone_from(&self.listen);
        }
        if !self.unix.is_empty() {
            server.unix = Some(self.unix.clone());
        }
        server.status = self.status.unwrap_or(server.status);
        if let Some(data_dir) = &self.data_dir {
            server.data_dir.clone_from(data_dir);
        }
        server.workers = self.workers.unwrap_or(server.workers);
    }
}

/// Where the configuration comes from; reading it again is a reload.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) file: Option<PathBuf>,
    pub(crate) flags: Flags,
}

/// A configuration that was read, complete and checked.
pub(crate) struct Loaded {
    pub(crate) config: Config,
    pub(crate) warnings: Vec<Problem>,
    /// Volumes that the file names: commands do not change those, or the next reload would undo it.
    pub(crate) fixed_volumes: BTreeSet<String>,
}

impl Source {
    /// Reads everything.
    ///
    /// # Errors
    /// All that is wrong, each with file, line, key and cure.
    pub(crate) fn load(&self) -> Result<Loaded, Errors> {
        self.read(None)
    }

    /// The same with `recorded` in place of the volumes on record.
    ///
    /// # Errors
    /// All that would be wrong, each with file, line, key and cure.
    pub(crate) fn load_with(&self, recorded: BTreeMap<String, Volume>) -> Result<Loaded, Errors> {
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
        self.flags.apply(&mut config);
        let fixed_volumes: BTreeSet<String> =
            if has_volumes { config.volumes.keys().cloned().collect() } else { BTreeSet::new() };
        let record = config.server.data_dir.join(RECORD);
        let recorded = match recorded {
            None if record.exists() => Some(read_record(&record)?),
            recorded => recorded,
        };
        if let Some(recorded) = recorded {
            if !has_volumes {
                config.volumes.clear();
            }
            for (name, volume) in recorded {
                config.volumes.entry(name).or_insert(volume);
            }
        }
        let origin = self.file.as_ref().map_or_else(|| "command line".into(), |file| file.display().to_string());
        // The command line may have changed what the file alone would be warned about.
        let placed = |warning: Problem| {
            let same = |known: &&Problem| (&known.key, &known.message) == (&warning.key, &warning.message);
            warnings.iter().find(same).cloned().unwrap_or(warning)
        };
        let warnings = config.validate(&origin)?.into_iter().map(placed).collect();
        Ok(Loaded { config, warnings, fixed_volumes })
    }

    /// The files that the program itself keeps, existing or not.
    pub(crate) fn own_files(&self, data_dir: &Path) -> Vec<PathBuf> {
        own_files(self.file.as_deref(), data_dir)
    }

    /// What to call the source in messages.
    pub(crate) fn name(&self) -> String {
        self.file.as_ref().map_or_else(|| "a configuration file".into(), |file| file.display().to_string())
    }
}

/// The recorded volumes. What they refer to is checked with the whole configuration.
fn read_record(path: &Path) -> Result<BTreeMap<String, Volume>, Errors> {
    #[derive(Deserialize)]
    struct Record {
        volumes: BTreeMap<String, Volume>,
    }
    let fail = |message: String| {
        Errors(vec![Problem { origin: path.display().to_string(), position: None, key: String::new(), message }])
    };
    match fs::read_to_string(path) {
        Err(error) => Err(fail(format!("cannot read the recorded volumes: {error}"))),
        Ok(text) => toml::from_str(&text).map(|record: Record| record.volumes).map_err(|error| {
            fail(format!("is damaged; correct it, or remove it to forget the volumes (their files stay): {error}"))
        }),
    }
}

/// Records the volumes that the configuration file does not name, so that they are there after a restart.
///
/// # Errors
/// When the record cannot be written; the old one is intact then.
pub(crate) fn record(config: &Config, fixed_volumes: &BTreeSet<String>) -> anyhow::Result<()> {
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
