use std::os::unix::fs::PermissionsExt;

use super::*;

const READELF: &str = "
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libm.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [ld-linux-x86-64.so.2]
  0x0060:   Name: GLIBC_2.9  Flags: none  Version: 12
  0x0070:   Name: GLIBC_2.34  Flags: none  Version: 6
  0x0080:   Name: GLIBC_2.2.5  Flags: none  Version: 5
  0x0090:   Name: GCC_4.2.0  Flags: none  Version: 4
";

#[test]
fn packages_are_named_by_the_libraries_and_the_newest_version_in_use() {
    assert_eq!(stage::from_readelf(READELF).unwrap(), "libc6 (>= 2.34), libgcc-s1");
    let error = stage::from_readelf("(NEEDED) Shared library: [libssl.so.3]").unwrap_err();
    assert!(error.to_string().contains("libssl.so.3"), "{error}");
}

#[test]
fn a_version_of_cargo_becomes_one_of_debian() {
    assert_eq!(debian_version("0.2.0-rc.1"), "0.2.0~rc.1");
    assert_eq!(debian_version("0.2.0"), "0.2.0");
}

#[test]
fn the_changelog_is_about_this_version() {
    let changelog = std::fs::read_to_string(build::workspace().join(stage::CHANGELOG)).unwrap();
    let newest = format!("evenkeel ({}) ", debian_version(env!("CARGO_PKG_VERSION")));
    assert!(changelog.starts_with(&newest), "{changelog}");
    assert_eq!(
        stamp("a (1) u\n\n  * x\n\n -- N <n@e>  Sun, 22 Nov 2026 20:00:00 +0000\n"),
        Some("Sun, 22 Nov 2026 20:00:00 +0000")
    );
    assert!(date(&build::workspace()).unwrap() > 1_700_000_000);
}

/// Makes a script that takes the place of evenkeel for printing texts and manual pages. A script needs no libraries, so it cannot
/// be [`Package::binary`].
fn stand_in(folder: &Path) -> PathBuf {
    let script = folder.join("pages");
    std::fs::write(
        &script,
        "#!/bin/sh\nif [ \"$1\" = manual ]; then for page in evenkeel.1 evenkeel.toml.5; do echo page > \"$2/$page\"; done\n\
         else echo \"$@\"; fi\n",
    )
    .unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    script
}

#[test]
fn the_same_sources_give_the_same_package() {
    let (sources, scratch) = (build::workspace(), Scratch::new("deb-test").unwrap());
    let (binary, pages) = (std::path::absolute("/bin/true").unwrap(), stand_in(scratch.path()));
    let package = |folder: &str| {
        let (version, compression) = ("9.9".to_owned(), UNCOMPRESSED);
        let package =
            Package { binary: &binary, pages: &pages, sources: &sources, target: Target::own(), version, compression };
        pack(&package, &scratch.path().join(folder))
    };
    let first = match package("one") {
        Ok(first) => first,
        Err(e) if e.to_string().contains("dpkg-deb is missing") => return println!("SKIPPED: {e}"),
        Err(e) => panic!("{e:#}"),
    };
    let second = package("two").unwrap();
    assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(second).unwrap());
    let list = process::output(process::program("dpkg-deb").arg("--contents").arg(&first)).unwrap();
    for wanted in [
        "./usr/bin/evenkeel",
        "./usr/lib/systemd/system/evenkeel.service",
        "./usr/lib/systemd/system/evenkeel-guard.service",
        "./usr/lib/sysusers.d/evenkeel.conf",
        "./etc/evenkeel/evenkeel.toml",
        "./etc/evenkeel/guard.toml",
        "./usr/share/man/man1/evenkeel.1.gz",
        "./usr/share/man/man5/evenkeel.toml.5.gz",
        "./usr/share/bash-completion/completions/evenkeel",
        "./usr/share/doc/evenkeel/copyright",
    ] {
        assert!(list.lines().any(|line| line.ends_with(wanted)), "{wanted} is not in\n{list}");
    }
    let odd: Vec<&str> = list
        .lines()
        .filter(|line| !line.contains(" root/root ") || !(line.starts_with("drwxr-xr-x") || line.starts_with("-rw")))
        .collect();
    assert!(odd.is_empty(), "{odd:?}");
    let field =
        |name: &str| process::output(process::program("dpkg-deb").arg("--field").arg(&first).arg(name)).unwrap();
    assert_eq!(field("Version").trim(), "9.9");
    assert!(field("Depends").contains("libc6 (>= 2."), "{}", field("Depends"));
}
