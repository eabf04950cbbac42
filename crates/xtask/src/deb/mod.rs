//! `cargo xtask deb`: makes a package for Debian and its relatives.
//!
//! The package is packed by dpkg-deb: in its archives all files have the same given time, are sorted, and belong to root.

mod stage;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use evenkeel_labs::base::build::{self, Profile};
use evenkeel_labs::base::process;
use evenkeel_labs::base::scratch::Scratch;

/// Time limit of a release build of all crates; two busy slow cores need far less.
const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);

/// Arguments of `cargo xtask deb`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Program to pack; built as a release when not given.
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Folder for the package.
    #[arg(long, default_value = "target/deb")]
    output: PathBuf,
    /// The target of the build.
    #[arg(long, value_enum, default_value_t = Target::own())]
    target: Target,
    /// Version of the package, in place of that of the workspace.
    #[arg(long)]
    version: Option<String>,
    /// Build again, from a copy of the sources in another folder, and compare.
    #[arg(long, conflicts_with = "binary")]
    check_reproducible: bool,
}

/// A target of the build.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Target {
    /// 64-bit x86.
    Amd64,
    /// 64-bit ARM. Elsewhere than there, it takes the compiler of `gcc-aarch64-linux-gnu` and Rust's own library for it.
    Arm64,
}

impl Target {
    /// The target for which this program was built, which is that of the machine.
    fn own() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Arm64 } else { Self::Amd64 }
    }

    /// Debian's name of the architecture, Rust's target triple, and the C compiler and linker for it on another machine.
    fn names(self) -> [&'static str; 3] {
        match self {
            Self::Amd64 => ["amd64", "x86_64-unknown-linux-gnu", "x86_64-linux-gnu-gcc"],
            Self::Arm64 => ["arm64", "aarch64-unknown-linux-gnu", "aarch64-linux-gnu-gcc"],
        }
    }
}

/// Option of dpkg-deb for xz, the strongest compression that every dpkg in use can unpack.
const XZ: &str = "-Zxz";
/// Option of dpkg-deb for no compression, for machines that are slow to unpack.
const UNCOMPRESSED: &str = "-Znone";

/// The parts from which a package is made.
#[derive(Debug)]
struct Package<'a> {
    /// Path of the program to pack.
    binary: &'a Path,
    /// Path of a program `evenkeel` that runs on this machine and writes the manual pages: `binary` itself, unless that is for
    /// another target.
    pages: &'a Path,
    /// Root folder of the sources, from which docs, units and scripts are taken.
    sources: &'a Path,
    /// Architecture of the package.
    target: Target,
    /// Version in Debian's form, see [`debian_version`].
    version: String,
    /// Compression of the content, as an option of dpkg-deb.
    compression: &'static str,
}

/// Runs `cargo xtask deb`. False if `--check-reproducible` finds a difference.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let sources = build::workspace();
    let output = sources.join(&args.output);
    let binary = match &args.binary {
        Some(binary) => std::path::absolute(binary)?,
        None => release(args.target, &sources, &build::target_dir()?)?,
    };
    let pages = if args.target == Target::own() { binary.clone() } else { build::binary("evenkeel", Profile::Dev)? };
    let version = args.version.clone().unwrap_or_else(|| debian_version(env!("CARGO_PKG_VERSION")));
    let package = |binary: &Path, sources: &Path, output: &Path| {
        let version = version.clone();
        pack(&Package { binary, pages: &pages, sources, target: args.target, version, compression: XZ }, output)
    };
    let made = package(&binary, &sources, &output)?;
    println!("{}", made.display());
    if !args.check_reproducible {
        return Ok(true);
    }
    compare(args.target, &made, package)
}

/// Makes the uncompressed package that a lab installs, with the program `binary` and the manual pages that the program `pages`
/// writes. Returns the package's path.
pub(crate) fn uncompressed(binary: &Path, pages: &Path, version: &str, output: &Path) -> Result<PathBuf> {
    let (sources, version, compression) = (build::workspace(), version.to_owned(), UNCOMPRESSED);
    pack(&Package { binary, pages, sources: &sources, target: Target::own(), version, compression }, output)
}

/// Makes the package in the folder `output`, and returns the package's path.
fn pack(package: &Package, output: &Path) -> Result<PathBuf> {
    if process::find_program("dpkg-deb").is_none() {
        bail!("dpkg-deb is missing; install the package dpkg");
    }
    let ([target, ..], version) = (package.target.names(), &package.version);
    std::fs::create_dir_all(output).with_context(|| format!("cannot make {}", output.display()))?;
    let scratch = Scratch::new("deb")?;
    let root = scratch.path().join("root");
    stage::fill(package, &root)?;
    let file = output.join(format!("evenkeel_{version}_{target}.deb"));
    let mut dpkg = process::program("dpkg-deb");
    dpkg.args(["--root-owner-group", package.compression]);
    dpkg.arg("--build").arg(&root).arg(&file).env("SOURCE_DATE_EPOCH", date(package.sources)?.to_string());
    process::output(&mut dpkg)?;
    Ok(file)
}

/// Builds a release of `sources` into the folder `into`. Returns the path of the program, whose content has no path of this
/// machine.
///
/// Because of `--target`, flags do not apply to build scripts, and results are separate from those of `cargo build --release`.
fn release(target: Target, sources: &Path, into: &Path) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("cargo has no home folder")?;
    let folders = [(sources, "/evenkeel"), (into, "/target"), (&home, "/cargo")];
    let mut flags: Vec<String> =
        folders.iter().map(|(folder, name)| format!("--remap-path-prefix={}={name}", folder.display())).collect();
    // The C and assembler of ring.
    let c_flags: Vec<String> =
        folders.iter().map(|(folder, name)| format!("-ffile-prefix-map={}={name}", folder.display())).collect();
    let [_, triple, compiler] = target.names();
    let variable = triple.replace('-', "_");
    let mut cargo = build::cargo();
    cargo.current_dir(sources).args([
        "build",
        "--release",
        "--locked",
        "--quiet",
        "--package=evenkeel",
        "--target",
        triple,
    ]);
    cargo.arg("--target-dir").arg(into).env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    cargo.env(format!("CFLAGS_{variable}"), c_flags.join(" "));
    if target != Target::own() {
        ensure!(
            process::find_program(compiler).is_some(),
            "{compiler} is missing; install its package, and `rustup target add {triple}`"
        );
        cargo.env(format!("CC_{variable}"), compiler);
        flags.push(format!("-Clinker={compiler}"));
    }
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    let (status, messages) = process::transcript(&mut cargo, BUILD_LIMIT)?;
    ensure!(status.success(), "cannot build for {triple}:\n{messages}");
    Ok(into.join(triple).join("release/evenkeel"))
}

/// Builds a copy of the sources in a folder with another name. True if the resulting package equals the file `first`.
fn compare(target: Target, first: &Path, package: impl Fn(&Path, &Path, &Path) -> Result<PathBuf>) -> Result<bool> {
    let scratch = Scratch::new("reproduce")?;
    let sources = scratch.path().join("sources-elsewhere");
    copy(&build::workspace(), &sources)?;
    let binary = release(target, &sources, &scratch.path().join("built"))?;
    let second = package(&binary, &sources, scratch.path())?;
    let same = std::fs::read(first)? == std::fs::read(&second)?;
    for file in [first, &second] {
        print!("{}", process::output(process::program("sha256sum").arg(file))?);
    }
    println!("{}", if same { "reproducible: both are the same" } else { "NOT reproducible: they differ" });
    Ok(same)
}

/// Copies every file that git tracks in the folder `from` to the folder `to`.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let list = process::output(Command::new("git").args(["ls-files", "-z"]).current_dir(from))?;
    for name in list.split('\0').filter(|name| !name.is_empty()) {
        let (source, copy) = (from.join(name), to.join(name));
        std::fs::create_dir_all(copy.parent().context("a file is in a folder")?)?;
        std::fs::copy(&source, &copy).with_context(|| format!("cannot copy {}", source.display()))?;
    }
    Ok(())
}

/// Debian's form of Cargo's version: `~` replaces the `-` before a pre-release, so that the pre-release sorts before the release.
fn debian_version(cargo: &str) -> String {
    cargo.replacen('-', "~", 1)
}

/// Time of a package's files, in seconds since 1970: SOURCE_DATE_EPOCH if set, otherwise the date of the newest entry of the
/// changelog.
fn date(sources: &Path) -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text.parse().with_context(|| format!("SOURCE_DATE_EPOCH is {text:?}, not seconds since 1970"));
    }
    let changelog = std::fs::read_to_string(sources.join(stage::CHANGELOG))?;
    let stamp = stamp(&changelog).with_context(|| format!("{} names no date", stage::CHANGELOG))?;
    let seconds = process::output(Command::new("date").args(["--utc", "+%s", "--date", stamp]))?;
    seconds.trim().parse().with_context(|| format!("date says {seconds:?}"))
}

/// The date of the newest entry of a Debian changelog.
fn stamp(changelog: &str) -> Option<&str> {
    let line = changelog.lines().find(|line| line.starts_with(" -- "))?;
    Some(line.rsplit_once(">  ")?.1)
}
