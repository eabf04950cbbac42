//! The memory that this process can have, and the part of that memory that volumes in memory may take together.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use evenkeel_policy::config::Backend;
use evenkeel_policy::{Config, figures};

/// Unit, in bytes, in which volumes in memory allocate; a power of two.
pub(crate) const CHUNK: u64 = 64 << 10;
/// Bytes of addresses that a page table maps on processors with pages of 4 KiB; and the largest number of bytes of written chunks
/// that are given back to the system with one call, in some 150 us.
pub(crate) const PIECE: u64 = 2 << 20;
/// Part of the memory that this process can have, in percent, that volumes in memory may take together. The rest is for page
/// tables, buffers, connections, and other programs of the host.
const PERCENT: u64 = 80;

/// The memory that all volumes in memory of one server may take together, counted in chunks of [`CHUNK`] bytes; clones share
/// it.
#[derive(Clone)]
pub(crate) struct Room(Arc<Chunks>);

struct Chunks {
    /// Largest number of chunks that may be taken; `i64::MAX`: no bound.
    most: i64,
    /// Number of chunks taken. For a moment it may be too small, even negative: between the marking of a chunk as allocated
    /// and its count.
    used: AtomicI64,
    /// Number of page tables of volumes, which have no more than `most`: a sixteenth of the memory of as many chunks. As every
    /// chunk needs one at most, only page tables of trimmed chunks can keep a volume from taking chunks that are free.
    tables: AtomicI64,
}

/// Error: volumes in memory have taken all the memory that they may take.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Room {
    /// Room for `bytes` bytes, rounded down to chunks; without a bound if `bytes` is `None`.
    pub(crate) fn new(bytes: Option<u64>) -> Self {
        let most = bytes.map_or(i64::MAX, |bytes| (bytes / CHUNK) as i64);
        Self(Arc::new(Chunks { most, used: AtomicI64::new(0), tables: AtomicI64::new(0) }))
    }

    /// The bound in bytes; `None` without one.
    fn bytes(&self) -> Option<u64> {
        (self.0.most < i64::MAX).then(|| self.0.most as u64 * CHUNK)
    }

    /// Takes `chunks` chunks; an error, and nothing taken, if fewer are free.
    pub(crate) fn take(&self, chunks: u64) -> Result<(), Full> {
        let Chunks { most, used, .. } = &*self.0;
        let fits = |used: i64| used.checked_add(chunks as i64).filter(|sum| sum <= most);
        used.fetch_update(Relaxed, Relaxed, fits).map(drop).map_err(|_| Full)
    }

    /// Takes `chunks` chunks, if no more than half of the room is taken afterwards; returns the number of chunks taken. The
    /// other half is left for volumes that take chunks one by one. Without a bound nothing is taken.
    pub(crate) fn reserve(&self, chunks: u64) -> u64 {
        let Chunks { most, used, .. } = &*self.0;
        let fits = |used: i64| used.checked_add(chunks as i64).filter(|sum| *most < i64::MAX && *sum <= most / 2);
        used.fetch_update(Relaxed, Relaxed, fits).map_or(0, |_| chunks)
    }

    /// Counts `chunks` chunks that volumes have already allocated, even beyond the bound.
    pub(crate) fn count(&self, chunks: u64) {
        self.0.used.fetch_add(chunks as i64, Relaxed);
    }

    /// Gives back `chunks` chunks that were taken or counted.
    pub(crate) fn give_back(&self, chunks: u64) {
        self.0.used.fetch_sub(chunks as i64, Relaxed);
    }

    /// Takes the page table of a part of a volume; an error, and nothing taken, if volumes have as many as they may have.
    pub(crate) fn take_table(&self) -> Result<(), Full> {
        let Chunks { most, tables, .. } = &*self.0;
        let fits = |tables: i64| (tables < *most).then_some(tables + 1);
        tables.fetch_update(Relaxed, Relaxed, fits).map(drop).map_err(|_| Full)
    }

    /// Gives back `tables` page tables that were taken.
    pub(crate) fn give_back_tables(&self, tables: u64) {
        self.0.tables.fetch_sub(tables as i64, Relaxed);
    }

    /// Number of page tables that are taken at present.
    #[cfg(test)]
    pub(crate) fn tables(&self) -> i64 {
        self.0.tables.load(Relaxed)
    }

    /// Number of chunks that are taken at present.
    #[cfg(test)]
    pub(crate) fn used(&self) -> i64 {
        self.0.used.load(Relaxed)
    }

    /// Logs and returns a warning if the volumes in memory of the configuration `after` are together larger than the room,
    /// and larger than those of `before`.
    pub(crate) fn lack(&self, before: &Config, after: &Config) -> Option<String> {
        let (_, lack) = shortage(after, self.bytes()?)?;
        (sum(after) > sum(before)).then(|| {
            tracing::warn!("{lack}");
            format!("warning: {lack}")
        })
    }
}

/// Bytes that volumes in memory may take together in this process; `None` if the system's figures cannot be read.
pub(crate) fn for_volumes() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let groups = read("/proc/self/cgroup").unwrap_or_default();
    let meminfo = read("/proc/meminfo").or_else(of_host)?;
    Some(available(&meminfo, &groups, Path::new("/sys/fs/cgroup"))? / 100 * PERCENT)
}

/// The host's memory as a line of `/proc/meminfo`, for a service whose `/proc` has processes only (`ProcSubset=pid`).
fn of_host() -> Option<String> {
    // SAFETY: integers only, for which zero is a value.
    let mut info: libc::sysinfo = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes one such structure.
    let result = unsafe { libc::sysinfo(&raw mut info) };
    let bytes = info.totalram.checked_mul(info.mem_unit.into()).filter(|_| result == 0)?;
    Some(format!("MemTotal: {} kB\n", bytes / 1024))
}

/// Bytes of memory that a process can have: the host's memory, or the lowest memory limit of the process's cgroup and its
/// ancestors, whichever is less. `meminfo`, `groups`: content of `/proc/meminfo` and `/proc/self/cgroup`; `root`: mount point
/// of cgroups (version 2).
fn available(meminfo: &str, groups: &str, root: &Path) -> Option<u64> {
    let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let total: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    let own = root.join(groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or(""));
    let around = own.ancestors().take_while(|group| group.starts_with(root));
    // Without a limit, the file says "max".
    let limit = |group: &Path| fs::read_to_string(group.join("memory.max")).ok()?.trim().parse::<u64>().ok();
    Some(around.filter_map(limit).fold(total.saturating_mul(1024), u64::min))
}

/// If the volumes in memory of `config` have more than `most` bytes together: the name of the largest of them, and a warning.
pub(crate) fn shortage(config: &Config, most: u64) -> Option<(String, String)> {
    let (all, (_, largest)) = (sum(config), in_memory(config).max()?);
    (all > most).then(|| {
        let message = format!(
            "volumes in memory have {} together, more than the {} that they may take ({PERCENT} % of the memory of this host, or of the limit of the server's cgroup); beyond that, writes to holes fail with ENOSPC. Choose smaller sizes, or add memory",
            figures::bytes(all),
            figures::bytes(most)
        );
        (largest.to_owned(), message)
    })
}

/// Sum of the sizes, in bytes, of all volumes in memory of `config`.
fn sum(config: &Config) -> u64 {
    in_memory(config).fold(0, |sum, (size, _)| sum.saturating_add(size))
}

/// Size in bytes and name of each volume in memory of `config`.
fn in_memory(config: &Config) -> impl Iterator<Item = (u64, &str)> {
    let volumes = config.volumes.iter();
    let volumes = volumes.filter(|(_, volume)| matches!(volume.backend, Backend::Memory | Backend::Emulate));
    volumes.filter_map(|(name, volume)| Some((volume.size?.0, name.as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_least_limit_from_the_cgroup_to_the_root_counts() {
        let root = std::env::temp_dir().join(format!("evenkeel-ram-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("system.slice/evenkeel.service")).unwrap();
        let limit = |group: &str, text: &str| fs::write(root.join(group).join("memory.max"), text).unwrap();
        let meminfo = "MemTotal:        4194304 kB\nMemFree:          100 kB\n";
        let groups = "4:memory:/other\n0::/system.slice/evenkeel.service\n";
        let of = |groups| available(meminfo, groups, &root);
        assert_eq!(of(groups), Some(4 * GIB), "no limit");
        limit("system.slice/evenkeel.service", "max\n");
        limit("system.slice", "2147483648\n");
        assert_eq!(of(groups), Some(2 * GIB), "that of a group around it");
        limit("system.slice/evenkeel.service", "1073741824\n");
        assert_eq!(of(groups), Some(GIB));
        // As in a container, whose own group is the root.
        limit("", "3221225472\n");
        assert_eq!((of("0::/\n"), of("")), (Some(3 * GIB), Some(3 * GIB)));
        limit("", "99999999999999\n");
        assert_eq!(of("0::/\n"), Some(4 * GIB), "a limit beyond the host's memory is none");
        assert_eq!(available("", groups, &root), None);
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn the_memory_is_known_where_proc_shows_processes_only() {
        let of = |meminfo: &str| available(meminfo, "", Path::new("/nowhere"));
        let shown = of(&fs::read_to_string("/proc/meminfo").unwrap()).unwrap();
        // A container may be shown less than the host has.
        assert!(of_host().and_then(|host| of(&host)).is_some_and(|host| host >= shown && shown > 0));
    }

    #[test]
    fn volumes_in_memory_beyond_the_memory_are_found() {
        let of = |small: &str, large: &str| {
            let volumes = format!(
                "[volumes.small]\nbackend = \"memory\"\nsize = {small}\n\
                 [volumes.large]\nbackend = \"memory\"\nsize = {large}\n[volumes.file]\nsize = \"1PiB\"\n"
            );
            Config::parse(&volumes, "test").unwrap()
        };
        let config = of("\"2GiB\"", "\"3GiB\"");
        assert_eq!(shortage(&config, 5 * GIB), None);
        let (largest, message) = shortage(&config, 5 * GIB - 1).unwrap();
        assert!(largest == "large" && message.contains("have 5.0 GiB together"), "{largest}: {message}");

        // A check looks at this host, and so does a start.
        let found = crate::surroundings::findings(&of("4096", "\"1PiB\""));
        let is = |finding: &evenkeel_policy::Finding| finding.path == ["volumes", "large", "size"];
        let warned = found.iter().find(|finding| is(finding)).expect("no host has that much");
        assert_eq!(warned.severity, evenkeel_policy::Severity::Warning);
        assert!(warned.message.contains("ENOSPC"), "{}", warned.message);
        assert!(!crate::surroundings::findings(&of("4096", "8192")).iter().any(is));
        let room = Room::new(for_volumes());
        let (none, some, more) = (of("4096", "4096"), of("4096", "\"1PiB\""), of("8192", "\"1PiB\""));
        assert_eq!(room.lack(&none, &none), None);
        assert!(room.lack(&none, &some).unwrap().starts_with("warning: volumes in memory have"));
        assert_eq!(room.lack(&some, &some), None, "it is known");
        assert!(room.lack(&some, &more).is_some());
        assert_eq!(Room::new(None).lack(&none, &some), None, "nothing is known of this host");
    }

    #[test]
    fn no_more_is_taken_than_there_is() {
        let room = Room::new(Some(3 * CHUNK + 1));
        assert_eq!((room.take(4), room.take(2), room.take(2), room.take(1)), (Err(Full), Ok(()), Err(Full), Ok(())));
        room.count(1);
        room.give_back(2);
        assert_eq!((room.used(), room.take(1), room.take(1)), (2, Ok(()), Err(Full)));
        assert_eq!(Room::new(None).take(1 << 40), Ok(()));
    }

    #[test]
    fn half_of_the_room_is_left_for_volumes_that_take_chunks_one_by_one() {
        let room = Room::new(Some(9 * CHUNK));
        assert_eq!((room.reserve(3), room.reserve(2), room.reserve(1), room.used()), (3, 0, 1, 4));
        assert_eq!((room.take(5), room.take(1)), (Ok(()), Err(Full)));
        assert_eq!(Room::new(None).reserve(1), 0, "memory is unknown");
    }
}
