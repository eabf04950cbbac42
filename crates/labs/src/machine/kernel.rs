//! The guest's kernel, and the initial file system with which it starts. The kernel is downloaded as a package of the
//! distribution and unpacked into the build folder, never installed.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::cpio::Archive;
use crate::base::packages::{RETRIES, fetch};
use crate::base::process;

/// The script that is the guest's first process.
const INIT: &str = include_str!("../../../../lab/init");

/// A kernel image with its modules.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// Path of the boot image.
    pub(crate) image: PathBuf,
    /// Release name, such as `6.12.1-amd64`.
    pub(crate) release: String,
    /// Folder with the modules.
    modules: PathBuf,
}

/// The kernel that is unpacked in the folder `build`; downloads and unpacks one if there is none.
pub(crate) fn prepare(build: &Path) -> Result<Kernel> {
    std::fs::create_dir_all(build).with_context(|| format!("cannot make {}", build.display()))?;
    let root = build.join("kernel");
    if let Some(kernel) = find(&root)? {
        return Ok(kernel);
    }
    let package = choose(&process::output(Command::new("apt-cache").args(["pkgnames", "linux-image-"]))?)
        .context("no kernel package is offered; run `apt-get update` once as root")?;
    println!("fetching {package}");
    // Unpacked aside and renamed when whole, so that an interrupted run leaves nothing half done.
    let part = build.join("kernel.part");
    let _ = std::fs::remove_dir_all(&part);
    unpack(build, &package, &part)?;
    // Ubuntu ships modules apart from the image.
    if let Some(version) = package.strip_prefix("linux-image-").filter(|v| v.ends_with("-generic")) {
        for modules in [format!("linux-modules-{version}"), format!("linux-modules-extra-{version}")] {
            unpack(build, &modules, &part)?;
        }
    }
    std::fs::rename(&part, &root)?;
    find(&root)?.with_context(|| format!("package {package} holds no kernel image with modules"))
}

/// Path of the statically linked busybox that the script `init` needs; downloads it if it is missing.
pub(crate) fn busybox(build: &Path) -> Result<PathBuf> {
    let root = build.join("busybox");
    let candidates = ["bin/busybox", "usr/bin/busybox"].map(|p| root.join(p));
    if !candidates.iter().any(|p| p.exists()) {
        println!("fetching busybox-static");
        unpack(build, "busybox-static", &root)?;
    }
    candidates.into_iter().find(|p| p.exists()).context("package busybox-static holds no busybox")
}

/// Downloads and unpacks packages, with missing dependencies, that should not be installed on a tester's machine because they
/// start services. Returns the folder `name` with their files, whose programs are to be found before those of the system.
pub(crate) fn tools(build: &Path, name: &str, packages: &[&str]) -> Result<PathBuf> {
    unpacked(build, name, packages, |downloads| {
        std::fs::create_dir_all(downloads.join("partial"))?;
        let mut apt = Command::new("apt-get");
        apt.args(["install", "-y", "-qq", "--no-install-recommends", "--download-only"]);
        apt.args(["-o", RETRIES, "-o", "Debug::NoLocking=1", "-o"]);
        apt.arg(format!("Dir::Cache::archives={}", std::path::absolute(downloads)?.display()));
        fetch(apt.args(packages))
    })
}

/// The folder `name` with the files of packages. If it is missing, `download` puts the packages into a folder, from which they
/// are unpacked.
pub(crate) fn unpacked(
    build: &Path,
    name: &str,
    packages: &[&str],
    download: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let root = build.join(name);
    if root.is_dir() {
        return Ok(root);
    }
    println!("fetching {}", packages.join(" "));
    let downloads = build.join(format!("packages-of-{name}"));
    let part = build.join(format!("{name}.part"));
    for dir in [&downloads, &part] {
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir_all(dir)?;
    }
    download(&downloads)?;
    for entry in std::fs::read_dir(&downloads)? {
        let package = entry?.path();
        if package.extension().is_some_and(|e| e == "deb") {
            process::output(Command::new("dpkg").arg("-x").arg(package).arg(&part))?;
        }
    }
    std::fs::remove_dir_all(&downloads)?;
    std::fs::rename(&part, &root)?;
    Ok(root)
}

/// The script for the guest, extended so that programs in the folder `tools` are found before those of the system.
pub(crate) fn with_tools(tools: &Path, script: &str) -> String {
    let folders = |names: &[&str]| {
        let paths: Vec<String> = names.iter().map(|name| tools.join(name).display().to_string()).collect();
        paths.join(":").replace('\'', r"'\''")
    };
    let programs = folders(&["usr/sbin", "sbin", "usr/bin"]);
    let libraries = folders(&["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]);
    format!("export PATH='{programs}':\"$PATH\"\nexport LD_LIBRARY_PATH='{libraries}'\n{script}")
}

fn unpack(build: &Path, package: &str, into: &Path) -> Result<()> {
    let downloads = build.join("packages");
    std::fs::create_dir_all(&downloads)?;
    fetch(Command::new("apt-get").args(["-o", RETRIES, "download", package]).current_dir(&downloads))?;
    let prefix = format!("{package}_");
    let deb = std::fs::read_dir(&downloads)?
        .filter_map(Result::ok)
        .find(|e| e.file_name().to_string_lossy().starts_with(&prefix))
        .with_context(|| format!("apt-get download {package} left no package behind"))?;
    process::output(Command::new("dpkg").arg("-x").arg(deb.path()).arg(into))?;
    std::fs::remove_file(deb.path())?;
    Ok(())
}

/// The newest general-purpose kernel among the package names in `names`: without debug symbols, no cloud or real-time flavour.
/// Of equal ones the unsigned package is chosen, which contains the image itself.
fn choose(names: &str) -> Option<String> {
    let flavour = |name: &str| {
        let rest = name.strip_prefix("linux-image-")?;
        let rest = rest.strip_suffix("-unsigned").unwrap_or(rest);
        let version = rest.strip_suffix("-amd64").or_else(|| rest.strip_suffix("-generic"))?;
        let plain = version.starts_with(|c: char| c.is_ascii_digit())
            && !version.split('-').any(|part| matches!(part, "cloud" | "rt" | "bpo"));
        let unsigned = name.ends_with("-unsigned");
        let numbers: Vec<u64> =
            version.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
        plain.then_some((numbers, unsigned))
    };
    names.lines().map(str::trim).filter_map(|n| Some((flavour(n)?, n))).max().map(|(_, name)| name.to_owned())
}

fn find(root: &Path) -> Result<Option<Kernel>> {
    let Ok(boot) = std::fs::read_dir(root.join("boot")) else { return Ok(None) };
    for entry in boot {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let Some(release) = name.strip_prefix("vmlinuz-") else { continue };
        let modules = ["lib/modules", "usr/lib/modules"].map(|d| root.join(d).join(release));
        if let Some(modules) = modules.into_iter().find(|m| m.is_dir()) {
            return Ok(Some(Kernel { image: root.join("boot").join(&name), release: release.to_owned(), modules }));
        }
    }
    Ok(None)
}

impl Kernel {
    /// Writes an initial file system to the file `into`: busybox, `init`, and the `wanted` modules with their dependencies,
    /// listed in an order in which they can be inserted. `optional` modules are added if the kernel has them.
    pub(crate) fn initramfs(&self, busybox: &Path, wanted: &[&str], optional: &[&str], into: &Path) -> Result<()> {
        let index = self.module_files()?;
        let built_in = std::fs::read_to_string(self.modules.join("modules.builtin")).unwrap_or_default();
        let built_in: BTreeSet<String> = built_in.lines().map(|l| module_name(Path::new(l))).collect();
        let mut order = Vec::new();
        let mut loaded = BTreeMap::new();
        let present = optional.iter().filter(|n| index.contains_key(**n));
        for name in present.chain(wanted) {
            insert(name, &index, &built_in, &mut loaded, &mut order)?;
        }
        let mut archive = Archive::default();
        for dir in ["bin", "dev", "modules", "new", "proc", "sys"] {
            archive.directory(dir);
        }
        archive.file("bin/busybox", 0o755, &std::fs::read(busybox)?);
        archive.file("init", 0o755, INIT.as_bytes());
        for (number, name) in order.iter().enumerate() {
            archive.file(&format!("modules/{number:03}-{name}.ko"), 0o644, &loaded[name]);
        }
        std::fs::write(into, archive.finish()).with_context(|| format!("cannot write {}", into.display()))
    }

    fn module_files(&self) -> Result<BTreeMap<String, PathBuf>> {
        let mut files = BTreeMap::new();
        let mut dirs = vec![self.modules.join("kernel")];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
                let entry = entry?;
                if entry.file_type()?.is_dir() {
                    dirs.push(entry.path());
                } else {
                    files.insert(module_name(&entry.path()), entry.path());
                }
            }
        }
        Ok(files)
    }
}

/// Appends a module to `order` after all its dependencies.
fn insert(
    name: &str,
    index: &BTreeMap<String, PathBuf>,
    built_in: &BTreeSet<String>,
    loaded: &mut BTreeMap<String, Vec<u8>>,
    order: &mut Vec<String>,
) -> Result<()> {
    let name = name.replace('-', "_");
    if built_in.contains(&name) || loaded.contains_key(&name) {
        return Ok(());
    }
    let path = index.get(&name).with_context(|| format!("the kernel has no module {name}"))?;
    let binary = decompress(path)?;
    let needs = dependencies(&binary);
    loaded.insert(name.clone(), binary);
    for needed in needs.hard {
        insert(&needed, index, built_in, loaded, order)?;
    }
    for wished in needs.soft {
        if index.contains_key(&wished.replace('-', "_")) {
            insert(&wished, index, built_in, loaded, order)?;
        }
    }
    order.push(name);
    Ok(())
}

fn module_name(path: &Path) -> String {
    let file = path.file_name().unwrap_or_default().to_string_lossy();
    file.split(".ko").next().unwrap_or_default().replace('-', "_")
}

/// The uncompressed bytes of the module at `path`, which the guest can insert without further tools.
fn decompress(path: &Path) -> Result<Vec<u8>> {
    let tool = match path.extension().and_then(|e| e.to_str()) {
        Some("ko") => return Ok(std::fs::read(path)?),
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => bail!("unknown compression: {}", path.display()),
    };
    let out =
        process::program(tool).args(["-dc"]).arg(path).output().with_context(|| format!("cannot start {tool}"))?;
    if !out.status.success() {
        bail!("{tool} -dc {}: {}", path.display(), String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(out.stdout)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Dependencies {
    hard: Vec<String>,
    soft: Vec<String>,
}

/// The dependencies that a module states in its `.modinfo` section, whose entries are strings that end with a zero byte.
fn dependencies(module: &[u8]) -> Dependencies {
    let mut found = Dependencies::default();
    for text in module.split(|&b| b == 0).filter_map(|s| std::str::from_utf8(s).ok()) {
        if let Some(list) = text.strip_prefix("depends=") {
            found.hard.extend(list.split(',').filter(|n| !n.is_empty()).map(str::to_owned));
        } else if let Some(list) = text.strip_prefix("softdep=pre: ") {
            found.soft.extend(list.split_whitespace().take_while(|n| *n != "post:").map(str::to_owned));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_plain_kernel_is_chosen() {
        let names = "linux-image-6.1.0-9-amd64\nlinux-image-6.12.9+deb12-amd64\nlinux-image-6.12.30+deb12-amd64\n\
                     linux-image-6.12.30+deb12-amd64-unsigned\nlinux-image-6.12.30+deb12-rt-amd64-unsigned\n\
                     linux-image-6.12.31+deb12-cloud-amd64\nlinux-image-6.12.30+deb12-amd64-dbg\nlinux-image-amd64";
        assert_eq!(choose(names).unwrap(), "linux-image-6.12.30+deb12-amd64-unsigned");
        assert_eq!(
            choose("linux-image-6.8.0-31-generic\nlinux-image-generic").unwrap(),
            "linux-image-6.8.0-31-generic"
        );
        assert_eq!(choose("linux-image-amd64"), None);
    }

    #[test]
    fn module_needs_are_read_from_modinfo() {
        let module = b"\x7fELF\0license=GPL\0depends=dm-mod,libcrc32c\0softdep=pre: crc32c post: x\0depends2=no\0";
        let needs = dependencies(module);
        assert_eq!(needs.hard, ["dm-mod", "libcrc32c"]);
        assert_eq!(needs.soft, ["crc32c"]);
        assert_eq!(module_name(Path::new("a/dm-log-writes.ko.xz")), "dm_log_writes");
    }
}
