//! The test suite of libnbd: those of its tests that depend on the server.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Bench;
use super::libnbd_tests::{PLAIN, TIMED, Test, variants};
use super::server::{Kind, has_ipv6};
use crate::base::process;
use crate::base::servers::free_port;

/// Time limit of a test. The suite itself has none; its longest tests are designed to take ten seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// Exit status by which a test reports, by automake's convention, that it cannot run on this machine.
const CANNOT_RUN: i32 = 77;
/// Source files with helper functions of the suite that are compiled into some tests.
const HELPERS: [&str; 2] = ["requires.c", "pick-a-port.c"];
/// The header that the suite's script `configure` would write.
const CONFIG: &str = "#define HAVE_GNUTLS 1\n";

/// The compiled tests of the suite.
#[derive(Debug)]
pub(super) struct Suite {
    /// Folder in which the tests run.
    dir: PathBuf,
    source: PathBuf,
}

impl Suite {
    /// Compiles the tests from the folder `source`. As in the suite, some contain the port numbers of their servers.
    pub(super) fn build(bench: &Bench<'_>, source: &Path) -> Result<Self> {
        // Some tests look for `../tests/pki`.
        let dir = bench.dir.join("libnbd/tests");
        std::fs::create_dir_all(&dir)?;
        std::fs::write(dir.join("config.h"), CONFIG)?;
        std::os::unix::fs::symlink(&bench.certificates, dir.join("pki"))?;
        let suite = Self { dir, source: source.to_owned() };
        let mut objects = Vec::new();
        for helper in HELPERS {
            let object = suite.dir.join(helper).with_extension("o");
            let mut cc = suite.compiler(bench);
            process::output(cc.arg("-c").arg("-o").arg(&object).arg(source.join("tests").join(helper)))?;
            objects.push(object);
        }
        for name in PLAIN.iter().chain(&TIMED) {
            suite.compile(
                bench,
                &Test { name: (*name).into(), source: format!("tests/{name}.c"), ..Test::default() },
                &objects,
            )?;
        }
        for test in variants(&[free_port()?, free_port()?]) {
            suite.compile(bench, &test, &objects)?;
        }
        Ok(suite)
    }

    fn compiler(&self, bench: &Bench<'_>) -> Command {
        let mut cc = bench.compiler();
        cc.arg("-D_GNU_SOURCE").arg("-I").arg(&self.dir);
        for folder in ["common/include", "tests"] {
            cc.arg("-I").arg(self.source.join(folder));
        }
        cc
    }

    fn compile(&self, bench: &Bench<'_>, test: &Test, objects: &[PathBuf]) -> Result<()> {
        let mut cc = self.compiler(bench);
        cc.args(test.defines.iter().map(|define| format!("-D{define}")));
        cc.arg("-o").arg(self.dir.join(&test.name)).arg(self.source.join(&test.source)).args(objects);
        process::output(cc.args(["-l:libnbd.so.0", "-l:libgnutls.so.30", "-lpthread"]))
            .with_context(|| test.name.clone())
            .map(drop)
    }

    /// Runs the tests one after the other. Each starts a server of this `kind` through the stand-in for nbdkit.
    pub(super) fn run(&self, bench: &mut Bench<'_>, kind: Kind) -> Result<()> {
        let programs = bench.dir.join(format!("stand-in-{}", kind.name()));
        bench.stand_in("nbdkit", kind, &programs)?;
        let names =
            PLAIN.iter().map(|name| (*name).to_owned()).chain(variants(&[0, 0]).into_iter().map(|test| test.name));
        for test in names {
            let name = format!("libnbd_{test}_{}", kind.name());
            if !bench.wants(&name) {
                continue;
            }
            if test == "connect-tcp6" && !has_ipv6() {
                bench.skip(&name, "this machine has no address of IPv6");
                continue;
            }
            let outcome = self.one(&programs, &format!("./{test}"));
            bench.report(&name, outcome);
        }
        Ok(())
    }

    /// Runs the tests that load the server for ten seconds, all at the same time.
    pub(super) fn run_timed(&self, bench: &mut Bench<'_>, kind: Kind) -> Result<()> {
        let programs = bench.dir.join(format!("stand-in-{}", kind.name()));
        bench.stand_in("nbdkit", kind, &programs)?;
        let names: Vec<(String, &str)> = TIMED
            .iter()
            .map(|test| (format!("libnbd_{test}_{}", kind.name()), *test))
            .filter(|(name, _)| bench.wants(name))
            .collect();
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let run = |test: &str| {
                let size = if test == "synch-parallel" { "8M" } else { "64M" };
                let plugin = if test == "aio-parallel-load" { "memory" } else { "pattern" };
                self.one(&programs, &format!("nbdkit -U - {plugin} size={size} --run './{test} $unixsocket'"))
            };
            let running: Vec<_> = names.iter().map(|(_, test)| scope.spawn(move || run(test))).collect();
            running.into_iter().map(|one| one.join().unwrap_or_else(|_| anyhow::bail!("the lab panicked"))).collect()
        });
        for ((name, _), outcome) in names.into_iter().zip(outcomes) {
            bench.report(&name, outcome);
        }
        Ok(())
    }

    fn one(&self, programs: &Path, text: &str) -> Result<()> {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("sh");
        shell.arg("-c").arg(format!("exec {text}")).current_dir(&self.dir);
        shell.env("PATH", format!("{}:{path}", programs.display())).env("LIBNBD_DEBUG", "1");
        shell.env("srcdir", self.source.join("tests"));
        let mut said = Vec::new();
        let (status, _) = process::stream(&mut shell, LIMIT, |line| said.push(line.to_owned()))?;
        let last = said[said.len().saturating_sub(12)..].join("\n");
        // What a test needs is there, or the lab has not run it.
        anyhow::ensure!(status.code() != Some(CANNOT_RUN), "the test cannot run here:\n{last}");
        anyhow::ensure!(status.success(), "{status}:\n{last}");
        Ok(())
    }
}
