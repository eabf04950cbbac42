//! Checks a configuration against the system on which the server would run: free space and memory, sockets and folders.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use evenkeel_policy::config::{Backend, Server};
use evenkeel_policy::{Config, Finding, Severity};

use crate::error::Error;
use crate::listen::is_obstructed;
use crate::places::shortage;
use crate::ram;

fn of_server(severity: Severity, key: &str, message: String) -> Finding {
    Finding { severity, path: vec!["server".to_owned(), key.to_owned()], message }
}

/// Findings, as far as this process can see, on volumes in files or memory for which there is no room, on Unix sockets that
/// could not be created, and on missing folders.
pub(crate) fn findings(config: &Config) -> Vec<Finding> {
    let on_files = config.volumes.iter().filter(|(_, volume)| volume.backend == Backend::File);
    let short = on_files.filter_map(|(name, volume)| {
        let message = shortage(&config.path_of(name, volume)?, volume.size?.0)?;
        let path = ["volumes", name.as_str(), "size"].map(str::to_owned).into();
        Some(Finding { severity: Severity::Warning, path, message })
    });
    let absent = config.server.volume_dirs.iter().filter(|place| matches!(place.try_exists(), Ok(false)));
    let absent = absent.map(|place| {
        let message = format!("{} is not there; make it, or correct the path", place.display());
        of_server(Severity::Warning, "volume_dirs", message)
    });
    let beyond = ram::for_volumes().and_then(|most| ram::shortage(config, most)).map(|(name, message)| {
        let path = ["volumes", name.as_str(), "size"].map(str::to_owned).into();
        Finding { severity: Severity::Warning, path, message }
    });
    short.chain(beyond).chain(obstacles(&config.server)).chain(absent).collect()
}

/// Findings on Unix sockets that the server could not create.
fn obstacles(server: &Server) -> Vec<Finding> {
    let (sockets, control) = (server.unix_paths(), server.control_path());
    let obstacle = |(key, path): (&str, &PathBuf)| {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        // The server makes its own folders.
        let is_made = |folder: &Path| server.data_dir.starts_with(folder) || control.starts_with(folder);
        let is_missing = |folder: &Path| match fs::metadata(folder) {
            Ok(metadata) => !metadata.is_dir(),
            Err(error) => matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory),
        };
        let why = match folder {
            _ if is_obstructed(path) => "it exists and is not a socket; choose another path",
            Some(folder) if !is_made(folder) && is_missing(folder) => "its folder is not there; make it",
            _ => return None,
        };
        Some(of_server(Severity::Error, key, format!("cannot listen on {}: {why}", path.display())))
    };
    sockets.iter().map(|path| ("unix", path)).chain([("control", &control)]).filter_map(obstacle).collect()
}

/// The finding that the record of files in `data_dir` cannot be read: an error, but only a warning if this user may not read
/// it.
pub(crate) fn of_record(error: &Error) -> Finding {
    match error {
        Error::Volume { path, cause, .. } if cause.kind() == ErrorKind::PermissionDenied => {
            let message = format!(
                "this user cannot read {}, so that content and size of volumes' files are not checked; run this as root, or as the server's user",
                path.display()
            );
            of_server(Severity::Warning, "data_dir", message)
        }
        _ => of_server(Severity::Error, "data_dir", error.to_string()),
    }
}
