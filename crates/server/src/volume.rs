//! A volume: a named export on a pool, with its back end.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use evenkeel_control::pool::TenantId;
use evenkeel_control::units::{Kind, Rates, Work};
use evenkeel_nbd::server::Limits;
use evenkeel_nbd::wire::{Command, CommandFlags, TransmissionFlags};
use evenkeel_policy::state::FailureState;
use evenkeel_policy::units::Bytes;

use crate::backend::Backend;
use crate::backend::operation::{Extent, FileIo, IoResult, MAX_EXTENTS};
use crate::clock;
use crate::engine::searches;
use crate::engine::threads::{Blocking, Threads};
use crate::error::Error;
use crate::failures::{Failure, Failures};
use crate::faults::{Call, Faults};
use crate::ram::CHUNK;

/// Smallest request that the server accepts, in bytes: unaligned requests simply go through the page cache, so that no
/// restriction is needed.
const MIN_BLOCK: u32 = 1;
/// Request size that is served best, in bytes, for volumes that are no remote exports.
const PREFERRED_BLOCK: u32 = 4096;

/// Number of bytes that are trimmed or zeroed in about the time in which one byte is read or written: giving a page of memory
/// back takes 60 ns.
pub(crate) const METADATA_RATIO: u64 = 64;

/// Largest number of zeros, in bytes, that one job of a thread writes where neither the file system nor the device zeroes a range
/// by itself: as many as the first slices of other writes have. The scheduler decides between the steps.
pub(crate) const ZEROS_AT_ONCE: u64 = 256 << 10;

/// Largest number of zeros, in bytes, that one job writes from `offset` on: up to a multiple of [`ZEROS_AT_ONCE`].
pub(crate) fn zeros_at_once(offset: u64) -> u64 {
    ZEROS_AT_ONCE - offset % ZEROS_AT_ONCE
}

/// Requests that a volume's limit lets pass within this part of a second may hold buffer memory: longer than devices take, so
/// that the volume comes up to its limit.
const SOON: u64 = 4;

/// A volume that is being served.
pub(crate) struct Volume {
    /// Number of the volume; no other volume of this process ever gets it.
    pub(crate) id: u32,
    /// Name of the volume, which is the name of its export.
    pub(crate) name: String,
    /// Index of the volume's pool.
    pub(crate) pool: usize,
    /// True if the volume is served read-only, so that writes are refused.
    pub(crate) read_only: bool,
    /// The back end that holds the volume's bytes.
    pub(crate) backend: Backend,
    /// Threads for the file operations that do not go through io_uring.
    pub(crate) threads: Threads<Self>,
    /// Number of open connections to the volume.
    pub(crate) connections: AtomicU32,
    size: AtomicU64,
    growth: Mutex<Growth>,
    /// Number of extents that the next search is expected to find, estimated from recent searches; only for back ends where
    /// each extent costs a call.
    extents: AtomicU32,
    /// Number (turn) of the latest sync that was asked for, and the highest turn that a completed sync covers.
    syncs: (AtomicU64, Mutex<u64>),
    sync_failed: AtomicBool,
    sync_error: Mutex<Option<String>>,
    failures: Mutex<Failures>,
    /// Trims completed, and their bytes.
    trims: (AtomicU64, AtomicU64),
    /// The volume's limit in force, on IOPS and on bytes per second; 0: none.
    limit: [AtomicU64; 2],
}

/// State of the latest growth of a volume's file.
#[derive(Default)]
struct Growth {
    /// Number of times that the volume was lengthened.
    times: u64,
    /// The file's length before and after the latest growth, in bytes, while that growth may still have to be undone;
    /// otherwise `None`.
    unsettled: Option<(u64, u64)>,
}

/// A growth of a volume that is not final yet. If this value is dropped without [`Self::keep`], a file is cut back to its
/// former length.
pub(crate) struct MoreRoom {
    volume: Arc<Volume>,
    /// Value of [`Growth::times`] after this growth.
    times: u64,
}

impl MoreRoom {
    /// Makes the growth final, because the volume is going to use the room.
    pub(crate) fn keep(self) {
        self.volume.growth().unsettled = None;
    }
}

impl Drop for MoreRoom {
    fn drop(&mut self) {
        let mut growth = self.volume.growth();
        // The file may have been lengthened again since.
        if growth.times == self.times {
            self.volume.shorten(&mut growth);
        }
    }
}

impl Volume {
    /// A volume of `size` bytes called `name`. `pool`: index of its pool.
    pub(crate) fn new(id: u32, name: &str, pool: usize, read_only: bool, backend: Backend, size: u64) -> Self {
        Self {
            id,
            name: name.to_owned(),
            pool,
            read_only,
            backend,
            threads: Threads::default(),
            connections: AtomicU32::new(0),
            size: AtomicU64::new(size),
            growth: Mutex::default(),
            extents: AtomicU32::new(MAX_EXTENTS as u32),
            syncs: Default::default(),
            sync_failed: AtomicBool::new(false),
            sync_error: Mutex::new(None),
            failures: Mutex::default(),
            trims: Default::default(),
            limit: Default::default(),
        }
    }

    /// Sets the volume's limit in force, of which [`Self::passes_soon`] makes use.
    pub(crate) fn set_limit(&self, limit: Rates) {
        self.limit[0].store(limit.iops, Ordering::Relaxed);
        self.limit[1].store(limit.bytes_per_s, Ordering::Relaxed);
    }

    /// Bytes that the volume's limit lets pass within a [`SOON`]th of a second, if all requests are of `bytes` bytes; `None` if
    /// the volume has no limit.
    #[inline]
    pub(crate) fn passes_soon(&self, bytes: u64) -> Option<u64> {
        let [iops, bytes_per_s] = [0, 1].map(|rate: usize| self.limit[rate].load(Ordering::Relaxed));
        let of_iops = (iops > 0).then(|| iops.saturating_mul(bytes) / SOON);
        let of_bytes = (bytes_per_s > 0).then_some(bytes_per_s / SOON);
        of_iops.into_iter().chain(of_bytes).min()
    }

    /// This volume, with faults that a test injects into calls on its file or memory. Others have them from the start.
    pub(crate) fn with(mut self, faults: Faults) -> Self {
        match &mut self.backend {
            Backend::File(file) => file.set_faults(faults),
            Backend::Memory(memory) | Backend::Emulate(memory, _) => memory.set_faults(faults),
            Backend::Remote(_) | Backend::Rbd(_) => {}
        }
        self
    }

    /// Counts a failed request, and logs it unless a failure of the same kind was logged in the latest 10 s.
    #[cold]
    pub(crate) fn has_failed(&self, kind: &'static str, offset: u64, bytes: u64, error: &std::io::Error) {
        if let Some(more) = self.count_failure(kind, error) {
            tracing::warn!(volume = self.name, kind, offset, bytes, %error, not_logged = more, "the back end failed a request; check the volume's device (`dmesg`) or remote server. Further failures of this kind are logged every 10 s");
        }
    }

    /// Logs that a request failed because volumes in memory have all that they may have, unless that was logged a moment ago.
    #[cold]
    pub(crate) fn has_no_room(&self, offset: u64, bytes: u64) {
        let error = std::io::Error::from_raw_os_error(libc::ENOSPC);
        if let Some(more) = self.count_failure("write", &error) {
            tracing::warn!(volume = self.name, offset, bytes, %error, not_logged = more, "the back end failed a request: volumes in memory have all the memory that they may take together, or all the page tables: one for each 2 MiB that was ever written, until the volume is removed; trim what is no longer needed, remove a volume, or add memory and restart the server");
        }
    }

    /// Counts a failure. `Some` if it is to be logged; the number is how many failures of its kind were not logged since the
    /// latest log line.
    pub(crate) fn count_failure(&self, kind: &'static str, error: &std::io::Error) -> Option<u64> {
        let errno = error.raw_os_error().unwrap_or_default();
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let more = failures.count(kind, errno, clock::now());
        if errno == 0 {
            failures.describe(kind, error);
        }
        more
    }

    /// Kinds of failed requests in the latest ten minutes, the one with the latest failure first. Requests that the back end
    /// seems to have lost (ETIMEDOUT) are left out.
    pub(crate) fn failures(&self) -> Vec<FailureState> {
        let now = clock::now();
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        let known = failures.recent(now).into_iter().filter(|kind| kind.errno != libc::ETIMEDOUT);
        let state = |kind: &Failure| FailureState {
            what: kind.what.into(),
            errno: kind.errno,
            error: match kind.errno {
                0 => kind.text.clone(),
                errno => std::io::Error::from_raw_os_error(errno).to_string(),
            },
            requests: kind.count,
            since_ms: now.since(kind.first_at).as_nanos() / 1_000_000,
            last_ms: now.since(kind.last_at).as_nanos() / 1_000_000,
        };
        known.map(state).collect()
    }

    /// The faults that a test injects into calls on the volume's file; none for other back ends.
    #[inline]
    pub(crate) fn faults(&self) -> &Faults {
        match &self.backend {
            Backend::File(file) => file.faults(),
            Backend::Memory(_) | Backend::Emulate(..) | Backend::Remote(_) | Backend::Rbd(_) => &Faults::NONE,
        }
    }

    /// Size of the volume, in bytes, that is served at present.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        if let Backend::Rbd(rbd) = &self.backend {
            return rbd.size();
        }
        self.size.load(Ordering::Relaxed)
    }

    fn growth(&self) -> MutexGuard<'_, Growth> {
        self.growth.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for `size` bytes in the back end; the served size stays unchanged. Calls run one after the other, each
    /// until the file is synced, so that a call that hung undoes nothing of a later one. Fails if `asker` has been dropped,
    /// because the command that asked may have stopped waiting.
    ///
    /// # Errors
    /// If the back end cannot grow to `size`.
    pub(crate) fn lengthen(self: &Arc<Self>, size: u64, asker: &Weak<()>) -> Result<MoreRoom, Error> {
        let mut growth = self.growth();
        if asker.strong_count() == 0 {
            return Err(Error::Refused(format!(
                "volume \"{}\" is not grown: the command that asked for it has ended; repeat the command",
                self.name
            )));
        }
        match &self.backend {
            Backend::Memory(memory) | Backend::Emulate(memory, _) => {
                let fail = |cause: std::io::Error| match cause.raw_os_error() {
                    Some(_) => Error::System { action: "grow a volume in memory", cause },
                    None => Error::Refused(format!("volume \"{}\" is not grown: {cause}", self.name)),
                };
                memory.grow(size).map_err(fail)?;
            }
            Backend::Remote(remote) => return Err(Error::Remote {
                volume: self.name.clone(),
                uri: remote.uri().to_owned(),
                why: "a remote export has the size that it had when the volume was opened; to serve more, restart the server, or remove the volume and create it again".into(),
            }),
            Backend::Rbd(rbd) => return Err(Error::Rbd {
                volume: self.name.clone(),
                image: rbd.name().to_owned(),
                why: format!("resize the image itself (`rbd resize {}`); clients that connect afterwards see the new size", rbd.name()),
            }),
            Backend::File(file) => {
                let fail = |cause| Error::Volume { path: file.path().to_owned(), action: "grow", cause };
                self.shorten(&mut growth);
                let before = file.grow(size).map_err(fail)?;
                if before < size {
                    growth.unsettled = Some((before, size));
                    self.sync(self.ask_for_sync()).map_err(|errno| {
                        self.shorten(&mut growth);
                        fail(errno.into())
                    })?;
                }
            }
        }
        growth.times += 1;
        Ok(MoreRoom { volume: Arc::clone(self), times: growth.times })
    }

    /// Undoes a growth that was not kept; never makes the file shorter than the served size.
    fn shorten(&self, growth: &mut Growth) {
        if let (Backend::File(file), Some((before, grown))) = (&self.backend, growth.unsettled.take())
            && let Err(error) = file.shorten(grown, before.max(self.size()))
        {
            tracing::error!(volume = self.name, %error, "a larger size was refused, and the volume's file, which had grown for it, cannot be cut back: the volume keeps its old size, and the rest of the file is unused");
        }
    }

    /// Serves `size` bytes from now on; the back end must have room for them. Open connections may use the new part at once;
    /// clients see the new size when they reconnect.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.fetch_max(size, Ordering::Relaxed);
    }

    /// The work that a request causes for the device. Zeroing by writing zeros counts as a write, of up to 4 GiB for a
    /// request. Trims and other zeroing count as the bytes that could be moved in the same time, block status as the expected
    /// number of extents. Reading ahead counts as a read, or as nothing if reads bypass the page cache.
    ///
    /// Limits in bytes count bytes that are moved: those of reads and writes, and so of zeros that are written and of reading
    /// ahead. They do not count the work of trims, other zeroing, block status and flushes, which move no data; the scheduler
    /// charges this work to the tenant's share, with the pool's base cost, and limits in requests count each of these requests.
    #[inline]
    pub(crate) fn work(&self, command: Command, flags: CommandFlags, length: u64) -> Work {
        let read = || Work::new(Kind::Read, saturate(length));
        match command {
            Command::Read => read(),
            Command::Write => Self::write_of(length),
            Command::Flush => Work::new(Kind::Flush, 0),
            Command::WriteZeroes if self.writes_zeros(flags) => Self::write_of(length),
            Command::Cache if matches!(&self.backend, Backend::File(file) if file.reads_ahead()) => read(),
            Command::Cache if matches!(&self.backend, Backend::Remote(_)) => read(),
            Command::Trim | Command::WriteZeroes => Work::new(Kind::Meta, saturate(length / METADATA_RATIO)),
            Command::BlockStatus => self.search(length),
            _ => Work::new(Kind::Meta, 0),
        }
    }

    /// The work of searching for extents in `length` bytes, by the number of extents expected: at most as many as a reply may
    /// have, as fit into the range, and as recent searches have found.
    fn search(&self, length: u64) -> Work {
        let most = match &self.backend {
            Backend::Memory(_) | Backend::Emulate(..) => length / CHUNK,
            Backend::File(_) | Backend::Remote(_) | Backend::Rbd(_) => {
                (length / u64::from(PREFERRED_BLOCK)).min(self.extents.load(Ordering::Relaxed).into())
            }
        };
        Work::new(Kind::Meta, saturate(most.clamp(1, MAX_EXTENTS as u64)) * size_of::<Extent>() as u32)
    }

    /// Updates the number of expected extents after a search that has found `extents`. The number falls by at most an eighth
    /// per search, so that an occasional search that finds a thousand extents is charged for, too.
    pub(crate) fn has_found(&self, extents: usize) {
        let expected = self.extents.load(Ordering::Relaxed);
        let expected = (expected - expected.div_ceil(8)).max(saturate(extents as u64));
        self.extents.store(expected, Ordering::Relaxed);
    }

    /// Counts `bytes` that a trim or a slice of one has given back; with `ends` the trim is complete.
    pub(crate) fn has_trimmed(&self, bytes: u64, ends: bool) {
        self.trims.0.fetch_add(u64::from(ends), Ordering::Relaxed);
        self.trims.1.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Trims completed, and bytes that trims have given back.
    pub(crate) fn trims(&self) -> (u64, u64) {
        (self.trims.0.load(Ordering::Relaxed), self.trims.1.load(Ordering::Relaxed))
    }

    /// The work of a write of `length` bytes.
    pub(crate) fn write_of(length: u64) -> Work {
        Work::new(Kind::Write, saturate(length))
    }

    /// True if a zeroing with these flags is carried out by writing zeros, as far as is known.
    pub(crate) fn writes_zeros(&self, flags: CommandFlags) -> bool {
        let punch = !flags.contains(CommandFlags::NO_HOLE);
        match &self.backend {
            Backend::Memory(_) | Backend::Emulate(..) => !punch,
            // Fast or not at all.
            Backend::File(_) | Backend::Remote(_) | Backend::Rbd(_) if flags.contains(CommandFlags::FAST_ZERO) => false,
            Backend::File(file) => file.writes_zeros(punch),
            Backend::Remote(remote) => !punch && !remote.guaranteed().zeroes_fast(),
            Backend::Rbd(_) => !punch,
        }
    }

    /// The NBD transmission flags that clients of the volume are offered.
    pub(crate) fn flags(&self) -> TransmissionFlags {
        if let Backend::Remote(remote) = &self.backend {
            return remote.guaranteed().flags(self.read_only);
        }
        let mut flags = TransmissionFlags::HAS_FLAGS
            | TransmissionFlags::SEND_FLUSH
            | TransmissionFlags::SEND_FUA
            | TransmissionFlags::SEND_DF
            | TransmissionFlags::SEND_CACHE
            | TransmissionFlags::CAN_MULTI_CONN;
        flags = if self.read_only {
            flags | TransmissionFlags::READ_ONLY
        } else {
            flags
                | TransmissionFlags::SEND_TRIM
                | TransmissionFlags::SEND_WRITE_ZEROES
                | TransmissionFlags::SEND_FAST_ZERO
        };
        if let Backend::Rbd(rbd) = &self.backend {
            // librbd cannot be told to read ahead.
            flags = flags.without(TransmissionFlags::SEND_CACHE);
            if !rbd.zeroes_fast() {
                flags = flags.without(TransmissionFlags::SEND_FAST_ZERO);
            }
        }
        flags
    }

    /// Asks for a sync that covers all writes completed so far; returns the turn for [`Self::sync`].
    pub(crate) fn ask_for_sync(&self) -> u64 {
        self.syncs.0.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Makes every write durable that had completed when [`Self::ask_for_sync`] returned `turn`. Blocks. Once a sync has
    /// failed, all later ones fail.
    ///
    /// Syncs run one after the other: the kernel reports a failure to only one of several concurrent syncs, and the others
    /// must not be answered before the failure is recorded. A turn that was asked for before the latest completed sync began
    /// needs no sync of its own.
    pub(crate) fn sync(&self, turn: u64) -> rustix::io::Result<()> {
        let Backend::File(file) = &self.backend else { return Ok(()) };
        let (asked, covered) = &self.syncs;
        let mut covered = covered.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_sync_failed() {
            return Err(rustix::io::Errno::IO);
        }
        if *covered < turn {
            let covers = asked.load(Ordering::SeqCst);
            file.sync().inspect_err(|&errno| self.sync_has_failed(&errno.into()))?;
            *covered = covers;
        }
        Ok(())
    }

    /// For tests: blocks every sync of the volume as long as the result lives, like a device that hangs.
    #[cfg(test)]
    pub(crate) fn hang_syncs(&self) -> std::sync::MutexGuard<'_, u64> {
        self.syncs.1.lock().unwrap()
    }

    /// Records that a sync failed. The kernel reports such a failure once and may drop the
    /// unwritten data, so from here on no sync of this volume may be reported as success.
    pub(crate) fn sync_has_failed(&self, why: &std::io::Error) {
        let mut error = self.sync_error.lock().unwrap_or_else(PoisonError::into_inner);
        if error.is_none() {
            tracing::error!(volume = self.name, %why, "a sync failed: written data may be lost; every further flush is answered with an error until the server restarts, or the volume is removed and created again");
            *error = Some(why.to_string());
        }
        self.sync_failed.store(true, Ordering::Release);
    }

    /// True if a sync has ever failed, or the server or image behind the volume may have lost acknowledged writes.
    #[inline]
    pub(crate) fn is_sync_failed(&self) -> bool {
        let lost = match &self.backend {
            Backend::Remote(remote) => remote.is_lost(),
            Backend::Rbd(rbd) => rbd.is_lost(),
            Backend::Memory(_) | Backend::File(_) | Backend::Emulate(..) => false,
        };
        lost || self.sync_failed.load(Ordering::Acquire)
    }

    /// The reason why a sync failed or acknowledged writes may be lost; `None` if neither is the case.
    pub(crate) fn sync_error(&self) -> Option<String> {
        match &self.backend {
            Backend::Remote(remote) => return remote.loss(),
            Backend::Rbd(rbd) => return rbd.loss(),
            Backend::Memory(_) | Backend::File(_) | Backend::Emulate(..) => {}
        }
        self.sync_error.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The limits of requests to the volume. `max_request`: the largest read or write that the server accepts, in bytes.
    pub(crate) fn limits(&self, max_request: Bytes) -> Limits {
        let (min_block, max_payload) = match &self.backend {
            Backend::Remote(remote) => (remote.guaranteed().min_block, remote.guaranteed().max_payload),
            _ => (MIN_BLOCK, saturate(max_request.0)),
        };
        Limits { size: self.size(), read_only: self.read_only, min_block, max_payload }
    }

    /// Request size that the volume serves best, in bytes.
    pub(crate) fn preferred_block(&self) -> u32 {
        match &self.backend {
            Backend::Remote(remote) => remote.guaranteed().preferred_block,
            _ => PREFERRED_BLOCK,
        }
    }
}

impl Blocking for Volume {
    fn run(&self, io: FileIo, tenant: TenantId) -> IoResult {
        match (&self.backend, io) {
            (Backend::File(_), FileIo::Sync { turn }) => IoResult::of(self.sync(turn).map(|()| 0)),
            (Backend::File(file), FileIo::Extents { .. }) => {
                let _search = searches::all().begin((self.pool, tenant));
                file.run(io)
            }
            (Backend::File(file), _) => file.run(io),
            (Backend::Rbd(rbd), FileIo::Extents { offset, len, max }) => rbd.extents(offset, len, max),
            _ => IoResult::Code(-libc::EINVAL),
        }
    }

    fn may_start_thread(&self) -> std::io::Result<()> {
        self.faults().check(Call::Clone).map_err(Into::into)
    }

    fn has_no_thread(&self, error: &std::io::Error) {
        if let Some(more) = self.count_failure("start of a thread", error) {
            tracing::error!(volume = self.name, %error, not_logged = more, "cannot start an I/O thread; the server retries operations without a thread for 5 s, then fails them. Raise the limit of threads (TasksMax= of the service, ulimit -u)");
        }
    }
}

fn saturate(length: u64) -> u32 {
    length.min(u32::MAX.into()) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::file::{File, Open};
    use crate::engine::threads::tests::tenants;
    use crate::faults::{Fault, Injection};

    #[test]
    fn a_search_for_extents_counts_as_what_is_found() {
        let status = |volume: &Volume, length| {
            let work = volume.work(Command::BlockStatus, CommandFlags::NONE, length);
            u64::from(work.bytes) / size_of::<Extent>() as u64
        };
        let memory = Backend::Memory(crate::backend::memory::Memory::new(1 << 20).unwrap());
        let volume = Volume::new(0, "test", 0, false, memory, 1 << 20);
        let lengths = [1, CHUNK, 10 * CHUNK, 4 << 30];
        assert_eq!(lengths.map(|length| status(&volume, length)), [1, 1, 10, 1024]);

        let dir = std::env::temp_dir().join(format!("evenkeel-searches-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let patience = std::time::Duration::ZERO;
        let open = Open { create: Some(1 << 20), read_only: false, direct: false, block: false, patience };
        let (file, size) = File::open(&dir.join("volume.img"), &open).unwrap();
        let volume = Volume::new(0, "test", 0, false, Backend::File(file), size);
        assert_eq!([4096, 1 << 20, 1 << 30].map(|length| status(&volume, length)), [1, 256, 1024], "nothing is known");
        (0..100).for_each(|_| volume.has_found(3));
        assert_eq!([4096, 1 << 20, 1 << 30].map(|length| status(&volume, length)), [1, 3, 3]);
        volume.has_found(1024);
        (0..5).for_each(|_| volume.has_found(1));
        assert!(status(&volume, 1 << 30) > 400, "a large one is not forgotten at once");
        let came = searches::all().came();
        let search = FileIo::Extents { offset: 0, len: 4096, max: 1 };
        assert!(matches!(volume.run(search, tenants(1)[0]), IoResult::Extents(_)));
        assert!(searches::all().came() > came, "it waits for those of other volumes");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn limits_in_bytes_count_what_is_moved_and_shares_what_is_done() {
        const LENGTH: u64 = 1 << 20;
        let whole = LENGTH as u32;
        let memory = Backend::Memory(crate::backend::memory::Memory::new(LENGTH).unwrap());
        let volume = Volume::new(0, "test", 0, false, memory, LENGTH);
        let counted = |volume: &Volume, command, flags| {
            let work = volume.work(command, flags, if command == Command::Flush { 0 } else { LENGTH });
            (work.payload(), work.bytes)
        };
        let (none, no_hole) = (CommandFlags::NONE, CommandFlags::NO_HOLE);
        let ratio = METADATA_RATIO as u32;
        let extents = (LENGTH / CHUNK) as u32 * size_of::<Extent>() as u32;
        for (command, flags, of_limits, of_shares) in [
            (Command::Read, none, whole, whole),
            (Command::Write, none, whole, whole),
            (Command::WriteZeroes, no_hole, whole, whole),
            (Command::WriteZeroes, none, 0, whole / ratio),
            (Command::Trim, none, 0, whole / ratio),
            (Command::BlockStatus, none, 0, extents),
            // The pool's base cost comes on top of each request.
            (Command::Flush, none, 0, 0),
            (Command::Cache, none, 0, 0),
        ] {
            assert_eq!(counted(&volume, command, flags), (of_limits, of_shares), "{command:?}");
        }

        // In a file, zeros count as written from the first attempt on that shows that they must be.
        let path = std::env::temp_dir().join(format!("evenkeel-kinds-{}.img", std::process::id()));
        let patience = std::time::Duration::ZERO;
        let open = Open { create: Some(LENGTH), read_only: false, direct: false, block: false, patience };
        let (file, size) = File::open(&path, &open).unwrap();
        let faults = Faults::table();
        let volume = Volume::new(0, "test", 0, false, Backend::File(file), size).with(faults.at("test"));
        assert_eq!(counted(&volume, Command::WriteZeroes, none), (0, whole / ratio));
        assert_eq!(counted(&volume, Command::Cache, none), (whole, whole), "the file is read ahead");
        let fault = Fault::Errno(libc::EOPNOTSUPP);
        faults.add(Injection { place: String::new(), call: Call::Fallocate, fault, skip: 0, times: 1 });
        let zero = FileIo::Zero { offset: 0, len: LENGTH, punch: true, may_write: false };
        assert!(matches!(volume.run(zero, tenants(1)[0]), IoResult::Code(code) if code == -libc::EOPNOTSUPP));
        assert_eq!(counted(&volume, Command::WriteZeroes, none), (whole, whole));
        assert_eq!(counted(&volume, Command::Trim, none), (0, whole / ratio), "a trim writes nothing");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn no_sync_succeeds_after_one_that_failed() {
        let dir = std::env::temp_dir().join(format!("evenkeel-volume-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let open = Open {
            create: Some(1 << 20),
            read_only: false,
            direct: false,
            block: false,
            patience: std::time::Duration::ZERO,
        };
        let (file, size) = File::open(&dir.join("volume.img"), &open).unwrap();
        let volume = Volume::new(0, "test", 0, false, Backend::File(file), size);
        assert_eq!(volume.sync(volume.ask_for_sync()), Ok(()));
        assert_eq!((volume.syncs.0.load(Ordering::SeqCst), *volume.syncs.1.lock().unwrap()), (1, 1));
        // Asked for before a sync began that another thread has finished: nothing remains to be done.
        volume.syncs.0.store(4, Ordering::SeqCst);
        *volume.syncs.1.lock().unwrap() = 9;
        assert_eq!(volume.sync(volume.ask_for_sync()), Ok(()));
        assert_eq!(*volume.syncs.1.lock().unwrap(), 9);
        volume.sync_has_failed(&std::io::Error::from_raw_os_error(libc::EIO));
        assert_eq!(volume.sync(volume.ask_for_sync()), Err(rustix::io::Errno::IO));
        assert_eq!(volume.sync(volume.ask_for_sync()), Err(rustix::io::Errno::IO), "not even the next time");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_sync_that_fails_while_a_file_grows_fails_the_flushes_after_it() {
        let path = std::env::temp_dir().join(format!("evenkeel-growing-{}.img", std::process::id()));
        let patience = std::time::Duration::ZERO;
        let open = Open { create: Some(1 << 20), read_only: false, direct: false, block: false, patience };
        let (file, size) = File::open(&path, &open).unwrap();
        let faults = Faults::table();
        let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::File(file), size).with(faults.at("test")));
        let asker = Arc::new(());
        let lengthen = |size| volume.lengthen(size, &Arc::downgrade(&asker));
        lengthen(2 << 20).unwrap().keep();
        let length = || std::fs::metadata(&path).unwrap().len();
        assert_eq!(length(), 2 << 20);
        // What the device has lost was a client's.
        let fault = Fault::Errno(libc::EIO);
        faults.add(Injection { place: String::new(), call: Call::Sync, fault, skip: 0, times: 1 });
        let error = lengthen(3 << 20).err().expect("it cannot be made durable").to_string();
        assert!(error.starts_with("cannot grow"), "{error}");
        assert_eq!(length(), 2 << 20, "it is as long as it was");
        assert_eq!(volume.sync(volume.ask_for_sync()), Err(rustix::io::Errno::IO));
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_growth_that_hung_takes_nothing_from_the_next_one() {
        let path = std::env::temp_dir().join(format!("evenkeel-grown-{}.img", std::process::id()));
        let patience = std::time::Duration::ZERO;
        let open = Open { create: Some(1 << 20), read_only: false, direct: false, block: false, patience };
        let (file, size) = File::open(&path, &open).unwrap();
        let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::File(file), size));
        let (impatient, patient) = (Arc::new(()), Arc::new(()));
        let length = || std::fs::metadata(&path).unwrap().len();
        let start = |size, asker: &Arc<()>| {
            let (volume, asker) = (Arc::clone(&volume), Arc::downgrade(asker));
            std::thread::spawn(move || volume.lengthen(size, &asker))
        };
        let hangs = volume.hang_syncs();
        let first = start(4 << 20, &impatient);
        while length() < 4 << 20 {
            std::thread::yield_now();
        }
        let given_up = start(8 << 20, &impatient);
        drop(impatient);
        let second = start(2 << 20, &patient);
        drop(hangs);
        let first = first.join().unwrap().expect("late, and not refused");
        let _ = given_up.join().unwrap().err().expect("its asker is gone");
        let second = second.join().unwrap().unwrap();
        assert_eq!(length(), 2 << 20, "what the second one asked for");
        drop(first);
        assert_eq!(length(), 2 << 20, "it is the second one's");
        second.keep();
        volume.set_size(2 << 20);
        // One that comes to nothing leaves what was served.
        drop(start(3 << 20, &patient).join().unwrap().unwrap());
        assert_eq!(length(), 2 << 20);
        // What another program appends stays.
        let third = start(3 << 20, &patient).join().unwrap().unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(5 << 20).unwrap();
        drop(third);
        assert_eq!(length(), 5 << 20);
        std::fs::remove_file(path).unwrap();
    }
}
