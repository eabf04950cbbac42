//! Sources of the suites, and headers for their compilation: downloaded from the distribution's archive, verified by apt,
//! unpacked into the build folder, never installed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::base::packages::{RETRIES, fetch};
use crate::base::process;
use crate::machine::kernel;

/// Debian release from which nbd's source comes on every machine. nbd's client needs no library of nbd, so one version fits all
/// systems. It is not Debian 12, whose index names `nbd_3.24.orig.tar.gz`, for which the archive answered 404 in November 2026.
const DEBIAN_OF_NBD: &str = "trixie";
/// Packages with headers of the libraries that the suites are linked with.
const HEADERS: [&str; 3] = ["libglib2.0-dev", "libgnutls28-dev", "libnbd-dev"];
/// Distributions, each with the file that contains the keys of its archive.
const KEYS: [(&str, &str); 2] = [
    ("Debian", "/usr/share/keyrings/debian-archive-keyring.gpg"),
    ("Ubuntu", "/usr/share/keyrings/ubuntu-archive-keyring.gpg"),
];

/// A package archive that this machine uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Archive {
    uri: String,
    codename: String,
    /// Distribution of the archive: `Debian` or `Ubuntu`.
    origin: String,
}

/// Downloads the upstream source of `package` and unpacks it, or only some `parts` of it, if missing. Returns the folder with the
/// source.
pub(super) fn source(build: &Path, package: &str, parts: &[&str]) -> Result<PathBuf> {
    let root = build.join(format!("source-{package}"));
    if root.is_dir() {
        return Ok(root);
    }
    println!("fetching the source of {package}");
    let archive = archive()?;
    let release = match (archive.origin.as_str(), package) {
        ("Debian", "nbd") => DEBIAN_OF_NBD,
        _ => &archive.codename,
    };
    let part = build.join(format!("source-{package}.part"));
    let _ = std::fs::remove_dir_all(&part);
    for dir in ["lists/partial", "cache/archives/partial", "parts", "files", "tree"] {
        std::fs::create_dir_all(part.join(dir))?;
    }
    let part = std::path::absolute(part)?;
    let list = part.join("sources.list");
    std::fs::write(&list, line(&archive, release)?)?;
    let apt = |words: &[&str]| {
        let mut command = Command::new("apt-get");
        command.args(["-qq", "-o", RETRIES, "-o", "Debug::NoLocking=1", "-o", "APT::Sandbox::User=root"]);
        for (option, path) in [
            ("Dir::Etc::SourceList", "sources.list"),
            ("Dir::Etc::SourceParts", "parts"),
            ("Dir::State::Lists", "lists"),
            ("Dir::Cache", "cache"),
        ] {
            command.arg("-o").arg(format!("{option}={}", part.join(path).display()));
        }
        fetch(command.args(words).current_dir(part.join("files")))
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", package])?;
    let tarball = std::fs::read_dir(part.join("files"))?
        .filter_map(Result::ok)
        .map(|entry| entry.path())
        .find(|path| is_tarball(path))
        .with_context(|| format!("the source of {package} has no tarball"))?;
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(&tarball).args(["--strip-components=1", "--no-same-owner", "-C"]).arg(part.join("tree"));
    process::output(tar.arg("--wildcards").args(parts.iter().map(|path| format!("*/{path}"))))?;
    // Renamed when whole, so that an interrupted run leaves nothing half done.
    std::fs::rename(part.join("tree"), &root)?;
    std::fs::remove_dir_all(&part)?;
    Ok(root)
}

/// Downloads and unpacks the packages with headers, if missing. Returns the folders to be searched for headers, in order.
pub(super) fn headers(build: &Path) -> Result<Vec<PathBuf>> {
    let root = kernel::unpacked(build, "suites-headers", &HEADERS, |downloads| {
        let mut apt = Command::new("apt-get");
        fetch(apt.args(["-qq", "-o", RETRIES, "download"]).args(HEADERS).current_dir(downloads))
    })?;
    let mut folders = vec![root.join("usr/include"), root.join("usr/include/glib-2.0")];
    // Those that depend on the architecture.
    for entry in std::fs::read_dir(root.join("usr/lib"))? {
        folders.push(entry?.path().join("glib-2.0/include"));
    }
    for entry in std::fs::read_dir(root.join("usr/include"))? {
        let path = entry?.path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().contains("-linux-")) {
            folders.push(path);
        }
    }
    Ok(folders)
}

fn archive() -> Result<Archive> {
    let format = "$(REPO_URI)|$(CODENAME)|$(COMPONENT)|$(ORIGIN)";
    let mut apt = Command::new("apt-get");
    let targets = process::output(apt.args(["indextargets", "Created-By: Packages", "--format", format]))?;
    choose(&targets).context("apt knows no archive of Debian or Ubuntu; run `apt-get update` once as root")
}

/// The archive of the release itself, chosen from apt's list of archives: the one with the shortest codename, which the
/// codenames of updates extend.
fn choose(targets: &str) -> Option<Archive> {
    let target = |line: &str| {
        let mut fields = line.split('|');
        let (uri, codename, component, origin) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
        let known = component == "main" && KEYS.iter().any(|(name, _)| *name == origin);
        known.then(|| Archive { uri: uri.into(), codename: codename.into(), origin: origin.into() })
    };
    targets.lines().filter_map(target).min_by_key(|archive| archive.codename.len())
}

/// A line of apt's list of sources for the source packages of `release` in an archive.
fn line(archive: &Archive, release: &str) -> Result<String> {
    let Some((_, keys)) = KEYS.iter().find(|(name, _)| *name == archive.origin) else {
        bail!("{} has no keys here", archive.origin);
    };
    ensure!(Path::new(keys).is_file(), "{keys} is missing, without which sources cannot be verified");
    let components = if archive.origin == "Ubuntu" { "main universe" } else { "main" };
    Ok(format!("deb-src [signed-by={keys}] {} {release} {components}\n", archive.uri))
}

/// True for a tarball of the upstream source, not for its signature.
fn is_tarball(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.contains(".orig.tar.") && !name.ends_with(".asc")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_archive_of_the_release_itself_is_chosen() {
        let targets = "http://a/x|bookworm-security|main|Debian\nhttp://a/d|bookworm-updates|main|Debian\n\
                       http://a/d|bookworm|main|Debian\nhttp://b|b|main|Other\nhttp://a/d|sid|contrib|Debian";
        let archive = choose(targets).unwrap();
        assert_eq!((archive.uri.as_str(), archive.codename.as_str()), ("http://a/d", "bookworm"));
        assert_eq!(choose("http://b|b|main|Other\n"), None);
    }

    #[test]
    fn the_tarball_is_distinguished_from_its_signature() {
        let names = ["nbd_3.26.1-6.1.dsc", "nbd_3.26.1.orig.tar.xz", "nbd_3.orig.tar.gz.asc", "nbd_3.debian.tar.xz"];
        let found: Vec<bool> = names.iter().map(|name| is_tarball(Path::new(name))).collect();
        assert_eq!(found, [false, true, false, false]);
    }
}
