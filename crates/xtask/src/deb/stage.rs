//! The content of the package, laid out as it will be installed, and the packages on which it depends.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use evenkeel_labs::base::process;

use super::Package;

pub(super) const CHANGELOG: &str = "packaging/deb/changelog";
const CONTROL: &str = "packaging/deb/control";
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];
/// Folders of the sources, each with the folder below `/` in which its files are installed.
const FOLDERS: [(&str, &str); 6] = [
    ("packaging/etc", "etc/evenkeel"),
    ("packaging/systemd", "usr/lib/systemd/system"),
    ("packaging/sysusers.d", "usr/lib/sysusers.d"),
    ("packaging/grafana", "usr/share/doc/evenkeel/grafana"),
    ("docs", "usr/share/doc/evenkeel"),
    ("scenarios", "usr/share/doc/evenkeel/examples/scenarios"),
];
/// Files of the sources, each with its installed path below `/`.
const FILES: [(&str, &str); 3] = [
    ("packaging/deb/copyright", "usr/share/doc/evenkeel/copyright"),
    ("packaging/prometheus/alerts.yml", "usr/share/doc/evenkeel/prometheus/alerts.yml"),
    ("README.md", "usr/share/doc/evenkeel/README.md"),
];
/// Installed folder of the manual pages, below `/`; it has a subfolder for each section.
const PAGES: &str = "usr/share/man";
/// Texts that the program prints: the arguments for each, and its installed path below `/`.
const PRINTED: [(&[&str], &str); 5] = [
    (&["config", "example"], "usr/share/doc/evenkeel/examples/evenkeel.toml"),
    (&["guard", "config", "example"], "usr/share/doc/evenkeel/examples/guard.toml"),
    (&["completions", "bash"], "usr/share/bash-completion/completions/evenkeel"),
    (&["completions", "zsh"], "usr/share/zsh/vendor-completions/_evenkeel"),
    (&["completions", "fish"], "usr/share/fish/vendor_completions.d/evenkeel.fish"),
];

/// Writes the package's whole content below `root`, including dpkg's control files.
pub(super) fn fill(package: &Package, root: &Path) -> Result<()> {
    put(root, "usr/bin/evenkeel", &fs::read(package.binary).context("cannot read the program")?, 0o755)?;
    for (from, to) in FOLDERS {
        let folder = package.sources.join(from);
        for file in tree(&folder)? {
            copy(root, &file, &format!("{to}/{}", file.strip_prefix(&folder)?.display()))?;
        }
    }
    for (from, to) in FILES {
        copy(root, &package.sources.join(from), to)?;
    }
    compressed(root, "usr/share/doc/evenkeel/changelog.gz", &fs::read(package.sources.join(CHANGELOG))?)?;
    for (words, to) in PRINTED {
        let text = process::output(Command::new(package.pages).args(words))?;
        put(root, to, text.as_bytes(), 0o644)?;
    }
    pages(package, root)?;
    control(package, root)
}

fn pages(package: &Package, root: &Path) -> Result<()> {
    let plain = root.join("man");
    fs::create_dir_all(&plain)?;
    process::output(Command::new(package.pages).arg("manual").arg(&plain))?;
    for page in files(&plain)? {
        let name = page.file_name().context("a page has a name")?.to_string_lossy().into_owned();
        let section = name.rsplit('.').next().unwrap_or_default();
        compressed(root, &format!("{PAGES}/man{section}/{name}.gz"), &fs::read(&page)?)?;
    }
    Ok(fs::remove_dir_all(plain)?)
}

/// Writes the control files that dpkg itself reads: control, md5sums, conffiles and scripts.
fn control(package: &Package, root: &Path) -> Result<()> {
    let installed = tree(root)?;
    let (mut sums, mut conffiles, mut bytes) = (String::new(), String::new(), 0);
    for path in &installed {
        let name = path.strip_prefix(root)?.display().to_string();
        let sum = process::output(process::program("md5sum").arg("--binary").arg(path))?;
        writeln!(sums, "{}  {name}", sum.split_whitespace().next().context("md5sum says nothing")?)?;
        bytes += fs::metadata(path)?.len().next_multiple_of(1024);
        if name.starts_with("etc/") {
            writeln!(conffiles, "/{name}")?;
        }
    }
    let text = fs::read_to_string(package.sources.join(CONTROL)).context(CONTROL)?;
    let fields = format!(
        "Version: {}\nArchitecture: {}\nInstalled-Size: {}\nDepends: {}\n",
        package.version,
        package.target.names()[0],
        bytes / 1024,
        depends(package.binary)?
    );
    // Before the description, which is the last field and has several lines.
    let text = text.replacen("Description:", &format!("{fields}Description:"), 1);
    put(root, "DEBIAN/control", text.as_bytes(), 0o644)?;
    put(root, "DEBIAN/md5sums", sums.as_bytes(), 0o644)?;
    put(root, "DEBIAN/conffiles", conffiles.as_bytes(), 0o644)?;
    for script in SCRIPTS {
        let text = fs::read(package.sources.join("packaging/deb").join(script)).context(script)?;
        put(root, &format!("DEBIAN/{script}"), &text, 0o755)?;
    }
    Ok(())
}

/// Value of the control field `Depends` for the program `binary`.
fn depends(binary: &Path) -> Result<String> {
    let text =
        process::output(process::program("readelf").args(["--wide", "--dynamic", "--version-info"]).arg(binary))?;
    from_readelf(&text).with_context(|| format!("cannot list the libraries of {}", binary.display()))
}

/// The packages, with versions, of the libraries that a program needs according to the output of `readelf`. The C library's
/// version is the newest version of the used symbols.
pub(super) fn from_readelf(text: &str) -> Result<String> {
    let quoted = |line: &str| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned());
    let mut packages = Vec::new();
    for library in text.lines().filter(|line| line.contains("(NEEDED)")).filter_map(quoted) {
        let package = match library.as_str() {
            // All of them are of the C library's package.
            "libc.so.6" | "libm.so.6" | "libdl.so.2" | "libpthread.so.0" | "librt.so.1" => continue,
            loader if loader.starts_with("ld-linux-") => continue,
            "libgcc_s.so.1" => "libgcc-s1",
            other => bail!("no package is known for {other}; add it to {}", file!()),
        };
        packages.push(package.to_owned());
    }
    let versions = text.split("GLIBC_").skip(1).filter_map(version);
    let (major, minor) = versions.max().context("no version of the C library")?;
    packages.push(format!("libc6 (>= {major}.{minor})"));
    packages.sort();
    Ok(packages.join(", "))
}

/// Major and minor number of the version with which a text begins.
fn version(text: &str) -> Option<(u32, u32)> {
    let text = text.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The files directly in a folder, sorted by path.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let mut files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|path| path.is_file());
    files.sort();
    Ok(files)
}

/// The files below `folder` at any depth, sorted by path.
fn tree(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut all = files(folder)?;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            all.extend(tree(&path)?);
        }
    }
    all.sort();
    Ok(all)
}

fn copy(root: &Path, from: &Path, to: &str) -> Result<()> {
    put(root, to, &fs::read(from).with_context(|| format!("cannot read {}", from.display()))?, 0o644)
}

/// Writes `content` to the path `to` below `root`, compressed with gzip without name and time.
fn compressed(root: &Path, to: &str, content: &[u8]) -> Result<()> {
    let plain = to.strip_suffix(".gz").context("a name that ends with .gz")?;
    put(root, plain, content, 0o644)?;
    process::output(process::program("gzip").args(["-9", "--no-name"]).arg(root.join(plain)))?;
    Ok(())
}

fn put(root: &Path, to: &str, content: &[u8], mode: u32) -> Result<()> {
    let path = root.join(to);
    // As the tester's umask may not have it.
    for folder in
        path.ancestors().skip(1).take_while(|folder| folder.starts_with(root)).collect::<Vec<_>>().iter().rev()
    {
        if !folder.is_dir() {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
            fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
        }
    }
    fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fs::set_permissions(&path, fs::Permissions::from_mode(mode))?)
}
