//! Which packages a program needs, as the program itself says.

use std::path::Path;

use anyhow::{Context, Result, bail};
use evenkeel_labs::base::process;

/// The field `Depends`.
pub(super) fn depends(binary: &Path) -> Result<String> {
    let text =
        process::output(process::program("readelf").args(["--wide", "--dynamic", "--version-info"]).arg(binary))?;
    from_readelf(&text).with_context(|| format!("what {} needs", binary.display()))
}

/// The packages of the libraries that `readelf` lists; of the C library the newest version of which something is used.
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

/// The version that a text begins with, without its third number.
fn version(text: &str) -> Option<(u32, u32)> {
    let text = text.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}
