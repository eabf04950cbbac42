//! The stage of the demonstration: a loop device over a scratch file, and two control groups. All is removed on drop.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use evenkeel_guard::actuator::io_max::Limits;
use evenkeel_guard::sensor::cgroup;

/// Size of the scratch file.
const FILE_MIB: usize = 256;

/// The loop device and the control groups, as far as they have been made.
pub(super) struct Stage {
    file: Option<PathBuf>,
    device: Option<PathBuf>,
    /// Number of the device, `MAJOR:MINOR`.
    number: String,
    /// Folders of control groups, the outer one first.
    groups: Vec<PathBuf>,
    /// True if the io controller has been enabled for the groups of the root.
    enabled: bool,
}

impl Stage {
    /// Makes the file, the loop device and the control groups; `file` must not exist.
    ///
    /// # Errors
    /// A message that names the missing part; what was made is removed.
    pub(super) fn build(file: &Path) -> anyhow::Result<Self> {
        let mut stage = Self { file: None, device: None, number: String::new(), groups: Vec::new(), enabled: false };
        stage.make_groups(Path::new(cgroup::ROOT))?;
        stage.make_device(file)?;
        Ok(stage)
    }

    fn make_groups(&mut self, root: &Path) -> anyhow::Result<()> {
        let listed = |name: &str| -> anyhow::Result<bool> {
            let path = root.join(name);
            let text = std::fs::read_to_string(&path).with_context(|| {
                format!(
                    "cannot read {}: the demonstration needs cgroup v2 (systemd.unified_cgroup_hierarchy=1)",
                    path.display()
                )
            })?;
            Ok(text.split_ascii_whitespace().any(|controller| controller == "io"))
        };
        ensure!(
            listed("cgroup.controllers")?,
            "{} has no io controller: use a kernel with CONFIG_BLK_CGROUP, and no container",
            root.display()
        );
        if !listed("cgroup.subtree_control")? {
            put(&root.join("cgroup.subtree_control"), "+io")?;
            self.enabled = true;
        }
        let outer = root.join(format!("evenkeel-demo-{}", std::process::id()));
        self.make_group(outer.clone())?;
        put(&outer.join("cgroup.subtree_control"), "+io")?;
        self.make_group(outer.join(super::READER))?;
        self.make_group(outer.join(super::WRITER))
    }

    fn make_group(&mut self, folder: PathBuf) -> anyhow::Result<()> {
        std::fs::create_dir(&folder).with_context(|| format!("cannot create the cgroup {}", folder.display()))?;
        self.groups.push(folder);
        Ok(())
    }

    fn make_device(&mut self, path: &Path) -> anyhow::Result<()> {
        let failed = || format!("cannot write {}; choose another place with --file", path.display());
        let mut file = OpenOptions::new().write(true).create_new(true).open(path).with_context(failed)?;
        self.file = Some(path.to_owned());
        // A disk reads only what has been written before.
        let block: Vec<u8> = (0..1_usize << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        for _ in 0..FILE_MIB {
            file.write_all(&block).with_context(failed)?;
        }
        file.sync_all().with_context(failed)?;
        let attach = |direct: &str| losetup(&["--find", "--show", direct, &path.display().to_string()]);
        // Some file systems have no direct requests.
        let device = attach("--direct-io=on").or_else(|_| attach("--direct-io=off"))?;
        let device = PathBuf::from(device.trim());
        let name = device.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        self.device = Some(device);
        let number = Path::new("/sys/class/block").join(&name).join("dev");
        let number = std::fs::read_to_string(&number).with_context(|| format!("cannot read {}", number.display()))?;
        self.number = number.trim().to_owned();
        Ok(())
    }

    /// Path of the loop device.
    pub(super) fn device(&self) -> &Path {
        self.device.as_deref().unwrap_or(Path::new(""))
    }

    /// Folder of the control group with this name.
    pub(super) fn group(&self, name: &str) -> PathBuf {
        self.groups.first().map_or_else(PathBuf::new, |outer| outer.join(name))
    }

    /// Path of the control group with this name below the root of cgroup v2.
    pub(super) fn path_of(&self, name: &str) -> String {
        let group = self.group(name);
        group.strip_prefix(cgroup::ROOT).unwrap_or(&group).display().to_string()
    }

    /// Limits the bytes that the writer writes per second; `None`: removes the limit.
    ///
    /// # Errors
    /// When the kernel refuses the limit.
    pub(super) fn limit_writer(&self, bytes_per_s: Option<u64>) -> anyhow::Result<()> {
        let limit = bytes_per_s.map_or_else(|| "max".to_owned(), |rate| rate.max(Limits::LEAST).to_string());
        put(&self.group(super::WRITER).join("io.max"), &format!("{} wbps={limit}", self.number))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // The programs in the groups have ended.
        for group in self.groups.drain(..).rev() {
            let _ = std::fs::remove_dir(group);
        }
        if self.enabled {
            let _ = put(&Path::new(cgroup::ROOT).join("cgroup.subtree_control"), "-io");
        }
        if let Some(device) = self.device.take() {
            let _ = losetup(&["--detach", &device.display().to_string()]);
        }
        if let Some(file) = self.file.take() {
            let _ = std::fs::remove_file(file);
        }
    }
}

fn put(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("cannot write {text:?} to {}", path.display()))
}

/// Runs `losetup` with these arguments and returns its output.
fn losetup(arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new("losetup").args(arguments).output();
    let output = output.context("cannot run losetup, which makes the device: install util-linux")?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        bail!("no loop device can be made ({}); load the module: modprobe loop", why.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_made_is_removed_also_after_an_error() {
        let root = crate::folder::Folder::new();
        let mut stage = Stage { file: None, device: None, number: "7:0".into(), groups: Vec::new(), enabled: false };
        assert!(stage.make_groups(&root).unwrap_err().to_string().contains("needs cgroup v2"));
        stage.make_group(root.join("outer")).unwrap();
        stage.make_group(root.join("outer").join(super::super::WRITER)).unwrap();
        let (outer, limits) = (root.join("outer"), root.join("outer").join(super::super::WRITER).join("io.max"));
        stage.limit_writer(Some(5)).unwrap();
        assert_eq!(std::fs::read_to_string(&limits).unwrap(), "7:0 wbps=5");
        stage.limit_writer(Some(0)).unwrap();
        assert_eq!(std::fs::read_to_string(&limits).unwrap(), "7:0 wbps=2");
        stage.limit_writer(None).unwrap();
        assert_eq!(std::fs::read_to_string(&limits).unwrap(), "7:0 wbps=max");
        // A group of the kernel goes with its files.
        std::fs::remove_file(limits).unwrap();
        let scratch = root.file("scratch", "");
        assert!(stage.make_device(&scratch).unwrap_err().to_string().contains("--file"), "a file that exists stays");
        drop(stage);
        assert!(!outer.exists() && scratch.exists());
    }
}
