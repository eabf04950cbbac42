use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A function that reads from `bytes` like `pread`.
fn reader(bytes: &[u8]) -> impl FnMut(&mut [u8], u64) -> io::Result<usize> {
    |into, offset| {
        let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

fn found(bytes: &[u8]) -> Option<(&'static str, Verdict)> {
    examine(bytes.len() as u64, reader(bytes)).expect("memory can be read")
}

#[test]
fn every_row_is_found_alone_and_refusals_come_first() {
    const SIZE: usize = 1 << 20;
    for magic in TABLE {
        assert!(!magic.bytes.is_empty() && magic.bytes.len() <= MAX_MARK, "{}", magic.name);
        let mut bytes = vec![0; SIZE];
        let offset = magic.place.offset(SIZE as u64).expect("the file is long enough") as usize;
        bytes[offset..][..magic.bytes.len()].copy_from_slice(magic.bytes);
        assert_eq!(found(&bytes), Some((magic.name, magic.verdict)));
        // A boot sector in an image of another format does not make it a disk.
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(found(&bytes).map(|(_, verdict)| verdict), Some(magic.verdict), "{}", magic.name);
        // One byte short of the mark's end there is none.
        let Place::Start(start) = magic.place else { continue };
        let cut = start as usize + magic.bytes.len() - 1;
        assert_ne!(found(&bytes[..cut]).map(|(name, _)| name), Some(magic.name));
    }
    let first_report = TABLE.iter().position(|magic| magic.verdict == Verdict::Report);
    let last_refusal = TABLE.iter().rposition(|magic| magic.verdict == Verdict::Refuse);
    assert!(last_refusal < first_report);
    assert_eq!(found(&[]), None);
    assert_eq!(found(&[0; SIZE]), None);
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let failed = examine(1 << 20, |_, _| Err(io::Error::from_raw_os_error(libc::EIO)));
    assert_eq!(failed.expect_err("it failed").raw_os_error(), Some(libc::EIO));
}

proptest! {
    #[test]
    fn any_bytes_and_sizes_end_in_an_answer(
        bytes in vec(any::<u8>(), 0..2_000),
        marks in vec((0..TABLE.len(), any::<u16>()), 0..8),
        size in prop_oneof![any::<u64>(), 0..100_000u64],
    ) {
        let mut bytes = bytes;
        for (row, at) in marks {
            let (mark, at) = (TABLE[row].bytes, usize::from(at));
            bytes.resize(bytes.len().max(at + mark.len()), 0);
            bytes[at..][..mark.len()].copy_from_slice(mark);
        }
        // The size may be wrong: files change.
        let answer = examine(size, reader(&bytes)).expect("memory can be read");
        if let Some((name, verdict)) = answer {
            prop_assert!(TABLE.iter().any(|magic| (magic.name, magic.verdict) == (name, verdict)));
        }
    }
}

/// A temporary folder, removed when this value is dropped.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Records in the log of skipped tests that a program is missing.
fn skip(program: &str) {
    use std::io::Write;
    let Some(log) = std::env::var_os("EVENKEEL_SKIP_LOG") else { return };
    if let Ok(mut log) = std::fs::OpenOptions::new().append(true).create(true).open(log) {
        let _ = writeln!(log, "what_real_programs_write_is_recognised ({program}): {program} is not installed");
    }
}

fn examine_file(path: &Path) -> Option<(&'static str, Verdict)> {
    let file = std::fs::File::open(path).expect("the image");
    let size = file.metadata().expect("the image").len();
    examine(size, |into, offset| file.read_at(into, offset)).expect("the image can be read")
}

#[test]
fn what_real_programs_write_is_recognised() {
    let folder = Folder(std::env::temp_dir().join(format!("evenkeel-contents-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a folder");
    let image = folder.0.join("image");
    let path = image.to_str().expect("a plain path");
    let qemu = |format: &'static str, options: &'static [&str], name: &'static str| {
        let arguments: Vec<&str> = [&["create", "-q", "-f", format], options, &[path, "64M"]].concat();
        ("qemu-img", arguments, Some((name, Verdict::Refuse)))
    };
    let report = |program: &'static str, arguments: &[&'static str], name: &'static str| {
        (program, [arguments, &[path]].concat(), Some((name, Verdict::Report)))
    };
    let cases = [
        qemu("qcow2", &[], "a qcow2 image"),
        qemu("qcow", &[], "a qcow2 image"),
        qemu("qed", &[], "a QED image"),
        qemu("vmdk", &[], "a VMDK image"),
        qemu("vmdk", &["-o", "subformat=monolithicFlat"], "the description of a VMDK image"),
        qemu("vmdk", &["-o", "subformat=streamOptimized"], "a VMDK image"),
        qemu("vdi", &[], "a VDI image"),
        qemu("vpc", &[], "a VHD image"),
        qemu("vpc", &["-o", "subformat=fixed"], "a VHD image"),
        qemu("vhdx", &[], "a VHDX image"),
        qemu("parallels", &[], "a Parallels image"),
        ("qemu-img", vec!["create", "-q", "-f", "raw", path, "64M"], None),
        report("mkfs.ext4", &["-q", "-F"], "an ext2, ext3 or ext4 file system"),
        report("mkfs.ext2", &["-q", "-F"], "an ext2, ext3 or ext4 file system"),
        report("mkfs.xfs", &["-q", "-f"], "an XFS file system"),
        report("mkfs.btrfs", &["-q", "-f"], "a btrfs file system"),
        report("mkfs.ntfs", &["-q", "-F"], "an NTFS file system"),
        report("mkfs.exfat", &[], "an exFAT file system"),
        report("mkfs.vfat", &["-F", "32"], "a FAT file system"),
        report("mkfs.vfat", &["-F", "16"], "a FAT file system"),
        report("mkfs.f2fs", &["-q", "-f"], "an F2FS file system"),
        report("mkswap", &["-q"], "swap space"),
        (
            "cryptsetup",
            vec![
                "luksFormat",
                "-q",
                "--pbkdf",
                "pbkdf2",
                "--pbkdf-force-iterations",
                "1000",
                "--key-file",
                "/etc/hostname",
                path,
            ],
            Some(("a LUKS header", Verdict::Report)),
        ),
        (
            "sh",
            vec!["-c", "echo 'label: gpt' | sfdisk -q \"$0\"", path],
            Some(("a GPT partition table", Verdict::Report)),
        ),
        (
            "sh",
            vec!["-c", "echo 'label: dos' | sfdisk -q \"$0\"", path],
            Some(("an MBR partition table or boot sector", Verdict::Report)),
        ),
    ];
    for (program, arguments, expected) in cases {
        // XFS takes no file of less than 300 MB, btrfs of 109 MiB.
        let file = std::fs::File::create(&image).expect("an image");
        file.set_len(if matches!(program, "mkfs.xfs" | "mkfs.btrfs") { 320 << 20 } else { 64 << 20 })
            .expect("a sparse file");
        drop(file);
        let needs = if program == "sh" { "sfdisk" } else { program };
        let sbin = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let present = Command::new("sh").args(["-c", &format!("command -v {needs}")]).env("PATH", &sbin).output();
        if !present.is_ok_and(|output| output.status.success()) {
            skip(needs);
            continue;
        }
        let output = Command::new(program).args(&arguments).env("PATH", &sbin).output().expect("it is installed");
        let said = String::from_utf8_lossy(&output.stderr);
        // A distribution may leave formats out.
        if !output.status.success() && (said.contains("Unknown file format") || said.contains("not supported")) {
            continue;
        }
        assert!(output.status.success(), "{program} {arguments:?}: {said}");
        assert_eq!(examine_file(&image), expected, "{program} {arguments:?}");
    }
}
