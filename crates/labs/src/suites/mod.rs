//! The suites lab: runs tests of other projects, from the distribution's source packages, against Evenkeel's server.

mod iotests;
mod libnbd;
mod libnbd_tests;
mod nbd;
pub(crate) mod qemu_nbd;
mod server;
mod source;
pub(crate) mod stand_in;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::base::process;
use crate::base::scratch::Scratch;
use crate::base::servers;
use crate::check::run::{Lab, Options};
use server::Kind;

/// A skipped test: its name, and the reason.
type Skip = (&'static str, &'static str);

/// State that the suites share.
struct Bench<'a> {
    lab: &'a mut Lab,
    binary: &'a Path,
    only: &'a str,
    full: bool,
    dir: PathBuf,
    headers: Vec<PathBuf>,
    /// Folder with the certificates of an authority, the server and a client.
    certificates: PathBuf,
    /// Folder with certificates of a second authority, which the server does not trust.
    strangers: PathBuf,
}

impl Bench<'_> {
    fn wants(&self, name: &str) -> bool {
        name.contains(self.only)
    }

    fn report(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.lab.passed(name, ""),
            Err(e) => self.lab.failed(name, &format!("{e:#}")),
        }
    }

    /// Counts a check as skipped.
    fn skip(&mut self, name: &str, reason: &str) {
        if self.wants(name)
            && let Err(e) = self.lab.skipped(name, reason)
        {
            self.lab.failed(name, &format!("it is skipped, and that cannot be said: {e:#}"));
        }
    }

    /// A command of the C compiler with the header folders that the suites' code needs.
    fn compiler(&self) -> Command {
        let mut cc = process::program("cc");
        cc.args(["-O1", "-w"]);
        for folder in &self.headers {
            cc.arg("-I").arg(folder);
        }
        cc
    }

    /// Makes the folder `dir` with a program of this `name` (`nbdkit` or `qemu-nbd`) that runs this program as the stand-in for
    /// it, with servers of this `kind`, whose files are in the folder. Returns the program's path.
    fn stand_in(&self, name: &str, kind: Kind, dir: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(dir)?;
        let quoted = |path: &Path| format!("'{}'", path.display().to_string().replace('\'', r"'\''"));
        let mut words = vec![quoted(&std::env::current_exe()?), "guest".into(), name.into()];
        words.extend(["--binary".into(), quoted(self.binary), "--dir".into(), quoted(dir)]);
        words.extend(kind.epoll.then(|| "--epoll".into()));
        words.extend(kind.memory.then(|| "--memory".into()));
        script(dir, name, &format!("#!/bin/sh\nexec {} -- \"$@\"\n", words.join(" ")))
    }
}

/// Writes a script that may be run. Returns its path.
fn script(dir: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

/// The reason why the lab cannot run on this machine; `None` if it can run.
pub(super) fn missing() -> Option<String> {
    let apt = ["apt-get", "dpkg"].iter().all(|name| process::find_program(name).is_some());
    (!apt).then(|| "the suites come from the archives of Debian and Ubuntu".to_owned())
}

/// Runs the lab and reports each check.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "suites")?;
    std::fs::create_dir_all(&options.build)?;
    let build = std::path::absolute(&options.build)?;
    let [nbd_source, libnbd_source] = [source::source(&build, "nbd", &[])?, source::source(&build, "libnbd", &[])?];
    let qemu_source = source::source(&build, "qemu", &iotests::PARTS)?;
    let headers = source::headers(&build)?;
    let [certificates, strangers] = ["pki", "strangers"].map(|name| scratch.path().join(name));
    for folder in [&certificates, &strangers] {
        servers::certificates(folder)?;
    }
    let dir = scratch.path().to_owned();
    let (binary, only) = (options.binary.as_path(), options.only.as_str());
    let mut bench = Bench { lab, binary, only, full: options.full, dir, headers, certificates, strangers };
    let nbd = nbd::Suite::build(&bench, &nbd_source).context("the suite of nbd does not compile")?;
    let libnbd = libnbd::Suite::build(&bench, &libnbd_source).context("the suite of libnbd does not compile")?;
    let iotests = iotests::Suite::build(&bench, &qemu_source).context("the suite of QEMU cannot be built")?;
    for kind in Kind::ALL {
        nbd.run(&mut bench, kind);
        libnbd.run(&mut bench, kind)?;
    }
    // Those that take their time meet each engine and each kind of volume.
    for kind in if options.full { &Kind::ALL[..] } else { &Kind::PAIRED } {
        iotests.run(&mut bench, *kind);
        libnbd.run_timed(&mut bench, *kind)?;
    }
    let skipped = [("nbd", &nbd::SKIPPED[..]), ("libnbd", &libnbd_tests::SKIPPED), ("iotests", &iotests::SKIPPED)];
    for (suite, skipped) in skipped {
        for (name, reason) in skipped {
            bench.skip(&format!("{suite}_{name}"), reason);
        }
    }
    Ok(())
}
