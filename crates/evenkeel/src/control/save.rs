//! Saves a change of a running server in its configuration file.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, fchown};
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, ensure};
use evenkeel_net::http::Place;
use evenkeel_policy::Config;
use evenkeel_policy::check::{Errors, Problem, check_with};
use evenkeel_policy::config::{DEFAULT_POOL, DEFAULT_TENANT};
use evenkeel_policy::document::Document;
use evenkeel_policy::source::{Source, Text};
use evenkeel_web::Refusal;
use evenkeel_web::serve::{Consent, with_pool, with_server, with_tenant, with_volume_patch};
use rustix::fs::FlockOperation;
use serde::Serialize;
use serde_json::{Map, Value};

use super::edit::{self, Edit};
use super::{OTHER_VERSION, PATIENCE, get, path};

/// The table of the configuration that a command changes.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    Server,
    Tenant(&'a str),
    Pool(&'a str),
    Volume(&'a str),
}

impl Part<'_> {
    /// The path of the part in the API.
    pub(super) fn api(self) -> String {
        match self {
            Part::Server => "/api/v1/server".to_owned(),
            Part::Tenant(name) => path("/api/v1/tenants/", name),
            Part::Pool(name) => path("/api/v1/pools/", name),
            Part::Volume(name) => path("/api/v1/volumes/", name),
        }
    }

    /// The path of the part in the configuration.
    pub(super) fn table(self) -> Vec<String> {
        match self {
            Part::Server => vec!["server".to_owned()],
            Part::Tenant(name) => vec!["tenants".to_owned(), name.to_owned()],
            Part::Pool(name) => vec!["pools".to_owned(), name.to_owned()],
            Part::Volume(name) => vec!["volumes".to_owned(), name.to_owned()],
        }
    }

    fn merged(self, config: &Config, patch: &Map<String, Value>) -> Result<Config, Refusal> {
        let patch = Value::Object(patch.clone());
        match self {
            Part::Server => with_server(config, patch),
            Part::Tenant(name) => with_tenant(config, name, patch, Consent { force: true, create: true }),
            Part::Pool(name) => with_pool(config, name, patch, Consent { force: true, create: true }),
            Part::Volume(name) => with_volume_patch(config, name, patch),
        }
    }

    /// The configuration without the tenant, pool or volume.
    fn removed(self, config: &Config) -> Config {
        let mut config = config.clone();
        match self {
            Part::Server => {}
            Part::Tenant(name) => drop(config.tenants.remove(name)),
            Part::Pool(name) => drop(config.pools.remove(name)),
            Part::Volume(name) => drop(config.volumes.remove(name)),
        }
        // A file without these two is read as one with them.
        config.pools.entry(DEFAULT_POOL.into()).or_default();
        config.tenants.entry(DEFAULT_TENANT.into()).or_default();
        config
    }

    /// True if the configuration does not have the tenant, pool or volume.
    fn is_new(self, config: &Config) -> bool {
        match self {
            Part::Server => false,
            Part::Tenant(name) => !config.tenants.contains_key(name),
            Part::Pool(name) => !config.pools.contains_key(name),
            Part::Volume(name) => !config.volumes.contains_key(name),
        }
    }
}

/// The result of saving a change.
#[derive(Debug, Serialize)]
pub(super) struct Saved {
    file: String,
    /// The table with the keys, as in the brackets of its header.
    table: String,
    keys: Vec<Edit>,
    /// True if the file was written; false if it had these values already.
    written: bool,
}

impl Saved {
    /// The result in lines: one for each key, and the file.
    pub(super) fn text(&self) -> String {
        let or_none = |value: &Option<String>| value.clone().unwrap_or_else(|| "none".to_owned());
        let line = |edit: &Edit| {
            format!("[{}] {}: {} -> {}\n", self.table, edit.key, or_none(&edit.before), or_none(&edit.after))
        };
        let end = if self.written {
            format!("saved in {}\n", self.file)
        } else {
            format!("nothing to save: {} has these values\n", self.file)
        };
        self.keys.iter().map(line).chain([end]).collect()
    }
}

/// A change that is ready to be saved.
#[derive(Debug)]
pub(super) struct Ready {
    /// The file, behind symbolic links.
    file: PathBuf,
    /// The text of the file as it was read.
    before: String,
    /// The new version of the file; `None` if it would not differ.
    next: Option<Temporary>,
    saved: Saved,
}

/// Prepares to save the change of `part` by `patch`, or its removal if `patch` is null, in a file: `named`, else the
/// configuration file of the server at `place`. All that can fail is done before the change is made: the new version of the file
/// is read as the server would, and is stored beside the file.
///
/// # Errors
/// If the server has no file, or the file cannot be used, changed or written.
pub(super) fn prepare(place: &Place, named: Option<&Path>, part: Part<'_>, patch: &Value) -> anyhow::Result<Ready> {
    let in_force: Value = serde_json::from_str(&get(place, "/api/v1/config", PATIENCE)?).context(OTHER_VERSION)?;
    let file = match (named, &in_force["config_file"]) {
        (Some(file), _) => file.to_owned(),
        (None, Value::String(file)) => PathBuf::from(file),
        (None, _) => {
            return Err(anyhow!(
                "the server has no configuration file to save the change in; nothing was changed\nwhat to do: start the server with `evenkeel serve --config FILE`, name a file with --config, or leave out --save"
            ));
        }
    };
    let source = Source::read(&file)?;
    let change = planned(&source, part, patch, &in_force).context("the change cannot be saved; nothing was changed")?;
    let Planned { is_in_policy, before, after, keys } = change;
    let file = match &source.policy {
        Some(policy) if is_in_policy => PathBuf::from(&policy.origin),
        _ => file,
    };
    let unwritable = || {
        format!(
            "cannot write {}; nothing was changed\nwhat to do: run the command as a user who may write this file and its folder (sudo), or leave out --save",
            file.display()
        )
    };
    let real = fs::canonicalize(&file).with_context(unwritable)?;
    let written = before != after;
    let next = written.then(|| Temporary::write(&real, &after)).transpose().with_context(unwritable)?;
    let table = part.table();
    // One that is removed is a key of the table above.
    let table = if patch.is_null() { &table[..table.len() - 1] } else { &table[..] };
    let saved = Saved { file: file.display().to_string(), table: edit::dotted(table), keys, written };
    Ok(Ready { file: real, before, next, saved })
}

impl Ready {
    /// Puts the new version of the file in place of the old one.
    ///
    /// # Errors
    /// If another program has changed the file since it was read, or the file cannot be replaced; it is left as it is.
    pub(super) fn commit(self) -> anyhow::Result<Saved> {
        let Self { file, before, next, saved } = self;
        let Some(next) = next else { return Ok(saved) };
        let failed = "the change is in force until the next reload or restart, but was not saved";
        // Until the end: of two commands at the same time, the second one sees what the first one has written.
        let _lock =
            locked(folder(&file)).with_context(|| format!("{failed}: cannot lock the folder of {}", file.display()))?;
        let present = fs::read_to_string(&file).with_context(|| format!("{failed}: cannot read {}", file.display()))?;
        ensure!(
            present == before,
            "{failed}: another program has changed {} meanwhile\nwhat to do: repeat the command",
            file.display()
        );
        next.replace(&file).with_context(|| format!("{failed}: cannot replace {}", file.display()))?;
        Ok(saved)
    }
}

/// The folder of a file.
fn folder(file: &Path) -> &Path {
    file.parent().unwrap_or(Path::new("/"))
}

/// A folder under an exclusive lock, which ends when the value is dropped.
fn locked(folder: &Path) -> io::Result<File> {
    let folder = File::open(folder)?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive)?;
    Ok(folder)
}

/// A change of one of the texts of a configuration.
struct Planned {
    /// True if the text is that of the policy file.
    is_in_policy: bool,
    before: String,
    after: String,
    keys: Vec<Edit>,
}

/// The change of a configuration's text by `patch`; the removal of `part` if it is null. `in_force` is the configuration of the running server.
///
/// # Errors
/// If the configuration has faults before or after, or the edit would change more or less than `patch` does.
fn planned(source: &Source, part: Part<'_>, patch: &Value, in_force: &Value) -> anyhow::Result<Planned> {
    let read = |source: &Source| check_with(source, |_| Vec::new()).into_result().map(|report| report.config);
    let before = read(source)?;
    ensure!(
        !(matches!(part, Part::Volume(_)) && part.is_new(&before)),
        "[{}] is not in the configuration file\nwhat to do: leave out --save; a change of a volume that was created by command is kept without it",
        edit::dotted(&part.table())
    );
    let table = part.table();
    let names: Vec<&str> = table.iter().map(String::as_str).collect();
    let has = |text: &Text, path: &[&str]| Document::parse(&text.text, &text.origin).0.has(path);
    let is_in_policy = !matches!(part, Part::Server)
        && !has(&source.host, &names)
        && source.policy.as_ref().is_some_and(|policy| has(policy, &names));
    let text = source.policy.as_ref().filter(|_| is_in_policy).unwrap_or(&source.host);

    let is_removal = patch.is_null();
    let mut patch = patch.as_object().cloned().unwrap_or_default();
    patch.retain(|key, _| key != "force" && key != "create");
    let names_admission = has(text, &[&names[..], &["tuning", "admission"]].concat());
    complete(&mut patch, &inside(in_force, &names), &inside(&serde_json::to_value(&before)?, &names), names_admission);
    let (after, keys) = match is_removal {
        true => edit::without(&text.text, &table)?,
        false => edit::edited(&text.text, &table, &patch, part.is_new(&before))?,
    };

    let mut next = source.clone();
    match &mut next.policy {
        Some(policy) if is_in_policy => policy.text.clone_from(&after),
        _ => next.host.text.clone_from(&after),
    }
    let wanted = if is_removal { Ok(part.removed(&before)) } else { part.merged(&before, &patch) };
    let wanted = wanted.map_err(|Refusal { message, cure, .. }| anyhow!("{message}\nwhat to do: {cure}"))?;
    let is_right = read(&next).map_err(|Errors(errors)| in_new_text(errors))? == wanted;
    ensure!(
        is_right,
        "[{}] in {} is written in a way that this command cannot edit\nwhat to do: leave out --save, and change the file by hand",
        edit::dotted(&table),
        text.origin
    );
    Ok(Planned { is_in_policy, before: text.text.clone(), after, keys })
}

/// Faults of the new text, without their places, which the file does not have.
fn in_new_text(errors: Vec<Problem>) -> anyhow::Error {
    let without_place = |problem: Problem| Problem { position: None, ..problem };
    anyhow::Error::new(Errors(errors.into_iter().map(without_place).collect()))
}

/// The value of `config` at `names`; null if it has none there.
fn inside(config: &Value, names: &[&str]) -> Value {
    names.iter().fold(config, |value, name| &value[*name]).clone()
}

/// Adds to a patch the percentile of each latency target and the kind of admission control where it leaves them as they are in
/// force and the file has others: without them the values in the patch would mean something else there.
fn complete(patch: &mut Map<String, Value>, in_force: &Value, in_file: &Value, names_admission: bool) {
    if let Some(Value::Object(latency)) = patch.get_mut("latency")
        && !latency.contains_key("percentile")
    {
        let [there, here] = [in_file, in_force].map(|part| match &part["latency"]["percentile"] {
            Value::Null => Value::from("mean"),
            percentile => percentile.clone(),
        });
        if there != here {
            latency.insert("percentile".into(), here);
        }
    }
    for (pool, own) in patch.get_mut("pools").and_then(Value::as_object_mut).into_iter().flatten() {
        if let Some(own) = own.as_object_mut() {
            complete(own, &in_force["pools"][pool], &in_file["pools"][pool], names_admission);
        }
    }
    if let Some(Value::Object(tuning)) = patch.get_mut("tuning")
        && let Some(Value::Object(admission)) = tuning.get_mut("admission")
        && !admission.contains_key("kind")
    {
        let [there, here] = [in_file, in_force].map(|part| &part["tuning"]["admission"]["kind"]);
        if !here.is_null() && (there != here || !names_admission) {
            admission.insert("kind".into(), here.clone());
        }
    }
}

/// The next version of a file, in the same folder; removed on drop unless it has replaced the file.
#[derive(Debug)]
struct Temporary(PathBuf);

impl Temporary {
    /// Writes `text` to a new file beside `file`, with the mode, owner and group of `file`.
    ///
    /// # Errors
    /// If `file` or its folder cannot be written, `file` has an access control list or is a mount point, or the new file cannot
    /// have its owner and group.
    fn write(file: &Path, text: &str) -> io::Result<Self> {
        // A file that must not be written is not to be replaced either.
        OpenOptions::new().append(true).open(file)?;
        let present = fs::metadata(file)?;
        let unsupported = |why: &str| Err(io::Error::new(io::ErrorKind::Unsupported, why));
        // The folder is opened, because it has to be later.
        if File::open(folder(file))?.metadata()?.dev() != present.dev() {
            return unsupported("the file is a mount point, which cannot be replaced");
        }
        if rustix::fs::getxattr_query(file, "system.posix_acl_access").is_ok_and(|length| length > 0) {
            return unsupported("the file has an access control list, which would be lost");
        }
        let mut name = OsString::from(".");
        name.push(file.file_name().unwrap_or_default());
        name.push(format!(".{:016x}.new", RandomState::new().hash_one(std::process::id())));
        let path = file.with_file_name(name);
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        // From here on the file is ours to remove.
        let next = Self(path);
        out.write_all(text.as_bytes())?;
        let made = out.metadata()?;
        if (made.uid(), made.gid()) != (present.uid(), present.gid()) {
            fchown(&out, Some(present.uid()), Some(present.gid()))?;
        }
        out.set_permissions(present.permissions())?;
        out.sync_all()?;
        Ok(next)
    }

    /// Puts this version in place of `file`.
    ///
    /// # Errors
    /// If the file system refuses it; `file` is as it was.
    fn replace(self, file: &Path) -> io::Result<()> {
        fs::rename(&self.0, file)?;
        // The file is saved; if this fails, a power failure may still undo it.
        let _ = File::open(folder(file)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
#[path = "save_tests.rs"]
mod tests;
