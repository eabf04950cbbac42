//! A volume in a file or on a block device.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{
    Advice, FallocateFlags, FlockOperation, SeekFrom, fadvise, fallocate, fdatasync, flock, ftruncate, seek,
};
use rustix::io::Errno;

use super::contents::{self, Verdict};
use super::operation::{Extent, FileIo, IoResult};
use super::overlap::{Lane, Overlaps};
use crate::error::Error;
use crate::faults::{Call, Faults};
use crate::holder;
use crate::places::Target;

/// Time for which a starting server waits for a locked file. A killed process's operations in io_uring keep its files open
/// for some milliseconds after its end, and longer on a hanging device.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Pause between two attempts to open or lock a busy file.
const LOCK_POLL: Duration = Duration::from_millis(20);

/// Longest duration of one search for extents: a fragmented file has thousands of extents, each of which costs a system call.
const EXTENTS_TIME: Duration = Duration::from_millis(1);
/// Largest number of bytes that are read into the page cache with one call.
const AHEAD: u64 = 64 << 10;

/// The open file or block device of a volume, locked against other servers.
pub(crate) struct File {
    path: PathBuf,
    /// Descriptor for I/O through the page cache. All syncs use it: the kernel reports a write-back error once per open
    /// file, so that a second descriptor could take the report away.
    cached: OwnedFd,
    /// Descriptor for direct I/O, which bypasses the page cache; `None` if direct I/O is not wanted or the file system does
    /// not support it.
    direct: Option<OwnedFd>,
    /// Direct I/O needs offsets, lengths and addresses that are multiples of this number of bytes.
    direct_align: u32,
    block_device: bool,
    /// Identity of the file or device, equal for all its paths.
    target: Target,
    /// True if [`File::open`] has created the file.
    created: bool,
    /// True for a regular file that no Evenkeel server has created.
    foreign: bool,
    /// For zeroing without a hole, and for zeroing with a hole: true if it is known to mean writing zeros.
    writes_zeros: [AtomicBool; 2],
    overlaps: Overlaps,
    faults: Faults,
}

/// Settings for opening a file or device.
pub(crate) struct Open {
    /// Length, in bytes, of the file that is created if none exists; `None` means that the file must exist.
    pub(crate) create: Option<u64>,
    /// True to open the file for reading only.
    pub(crate) read_only: bool,
    /// True to use direct I/O, which bypasses the page cache, where possible.
    pub(crate) direct: bool,
    /// True to refuse everything other than a block device.
    pub(crate) block: bool,
    /// Longest wait while another process has the file locked.
    pub(crate) patience: Duration,
}

/// The reason why no volume can be on a file of this kind; `None` if one can. `block`: true if a block device is wanted.
pub(crate) fn unfit(kind: std::fs::FileType, block: bool) -> Option<&'static str> {
    match kind.is_block_device() {
        false if !kind.is_file() => Some("it is neither a regular file nor a block device; set path to one"),
        false if block => Some("it is not a block device; use backend = \"file\""),
        _ => None,
    }
}

impl File {
    /// Opens and locks the file or device at `path`; also returns its size in bytes.
    pub(crate) fn open(path: &Path, how: &Open) -> Result<(Self, u64), Error> {
        let fail = |action: &'static str| move |cause| Error::Volume { path: path.to_owned(), action, cause };
        let create = how.create.filter(|_| !how.read_only);
        let options = |flags: libc::c_int| {
            let mut options = OpenOptions::new();
            options.read(true).write(!how.read_only).custom_flags(flags | libc::O_CLOEXEC);
            options
        };
        // Neither mounted nor part of another device, now and as long as it is served.
        let is_device = std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        let exclusive = if is_device && !how.read_only { libc::O_EXCL } else { 0 };
        let until = Instant::now() + how.patience;
        let opened = until_free(path, until, libc::EBUSY, || options(exclusive).open(path));
        let (file, created) = match (opened, create) {
            (Err(error), _) if exclusive != 0 && error.kind() == io::ErrorKind::ResourceBusy => {
                return Err(fail("open")(io::Error::other(
                    "it is mounted, part of another device, or served by another process; free the device first, or set read_only = true for the volume",
                )));
            }
            (Err(error), Some(_)) if error.kind() == io::ErrorKind::NotFound => {
                let file = options(0).create_new(true).mode(0o600).open(path).map_err(fail("create"))?;
                (file, true)
            }
            (opened, _) => (opened.map_err(fail("open"))?, false),
        };
        let metadata = file.metadata().map_err(fail("examine"))?;
        let (kind, target) = (metadata.file_type(), Target::of(&metadata));
        let block_device = kind.is_block_device();
        if let Some(why) = unfit(kind, how.block) {
            return Err(fail("open")(io::Error::other(why)));
        }
        let lock = if how.read_only {
            FlockOperation::NonBlockingLockShared
        } else {
            FlockOperation::NonBlockingLockExclusive
        };
        if let Err(error) = until_free(path, until, libc::EWOULDBLOCK, || Ok(flock(&file, lock)?)) {
            return Err(if error.kind() == io::ErrorKind::WouldBlock {
                Error::InUse { path: path.to_owned(), holder: holder::of_lock(&file) }
            } else {
                fail("lock")(error)
            });
        }
        if let (true, Some(size)) = (created, create) {
            ftruncate(&file, size).map_err(|e| {
                let _ = std::fs::remove_file(path);
                fail("set the length of")(e.into())
            })?;
            // The new name must survive a power cut as surely as the data written under it.
            file.sync_all().map_err(fail("sync"))?;
            let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
            std::fs::File::open(parent).and_then(|dir| dir.sync_all()).map_err(fail("sync the folder of"))?;
        }
        // A server before this one may have failed to write pages back. The kernel keeps such pages and calls them
        // clean: they would be read, flushed with success, and be gone when the memory is needed. The first sync may
        // report that failure, if no caller has had it yet: what it cost is not there any more, and the second one counts.
        if !how.read_only {
            fdatasync(&file).or_else(|_| fdatasync(&file)).map_err(|e| fail("sync")(e.into()))?;
        }
        let _ = fadvise(&file, 0, None, Advice::DontNeed);
        let direct = how.direct.then(|| past_cache(path, &options(libc::O_DIRECT), target));
        let direct = direct.transpose().map_err(fail("open"))?.flatten();
        let size = seek(&file, SeekFrom::End(0)).map_err(|e| fail("measure")(e.into()))?;
        let direct_align = if block_device { logical_block(&file) } else { 4096 };
        if direct.is_some() {
            // Read-ahead would bring pages into the cache that no request asked for and that are being written past it.
            let _ = fadvise(&file, 0, None, Advice::Random);
        }
        // Without a hole the kernel writes zeros to a device by itself where the device cannot, and does not tell.
        let writes_zeros = [block_device && !zeroes_by_itself(&file), false].map(AtomicBool::new);
        let opened = Self {
            path: path.to_owned(),
            cached: file.into(),
            direct,
            direct_align,
            block_device,
            target,
            created,
            foreign: false,
            writes_zeros,
            overlaps: Overlaps::default(),
            faults: Faults::NONE,
        };
        Ok((opened, size))
    }

    /// Sets the faults that a test injects into calls on the file.
    pub(crate) fn set_faults(&mut self, faults: Faults) {
        self.faults = faults;
    }

    /// The faults that a test injects into calls on the file.
    #[inline]
    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Path by which the file was opened.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Identity of the file or device, equal for all its paths.
    pub(crate) fn target(&self) -> Target {
        self.target
    }

    /// True if [`File::open`] has created the file.
    pub(crate) fn is_new(&self) -> bool {
        self.created
    }

    /// True for a regular file that no Evenkeel server has created.
    pub(crate) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Sets [`Self::is_foreign`]; for a block device it stays false.
    pub(crate) fn set_foreign(&mut self, foreign: bool) {
        self.foreign = foreign && !self.block_device;
    }

    /// The system's metadata of the file.
    pub(crate) fn metadata(&self) -> io::Result<std::fs::Metadata> {
        std::fs::File::from(self.cached.try_clone()?).metadata()
    }

    /// Name of the content of the first `size` bytes and the verdict on it; `None` if the content is not recognised.
    pub(crate) fn examine(&self, size: u64) -> io::Result<Option<(&'static str, Verdict)>> {
        let read_at = |bytes: &mut [u8], offset| {
            rustix::io::retry_on_intr(|| rustix::io::pread(&self.cached, &mut *bytes, offset)).map_err(Into::into)
        };
        let found = contents::examine(size, read_at);
        let _ = fadvise(&self.cached, 0, None, Advice::DontNeed);
        found
    }

    /// The descriptor for a read or write of this range: the one for direct I/O if offset, length and memory address are
    /// aligned, otherwise the one for the page cache.
    #[inline]
    pub(crate) fn fd_for(&self, ptr: *const u8, offset: u64, len: u32) -> RawFd {
        match &self.direct {
            Some(direct) if self.is_direct(ptr, offset, len) => direct.as_raw_fd(),
            _ => self.cached.as_raw_fd(),
        }
    }

    /// True if a read or write of this range, with memory at `ptr`, uses direct I/O.
    #[inline]
    pub(crate) fn is_direct(&self, ptr: *const u8, offset: u64, len: u32) -> bool {
        let aligned = (ptr as u64 | offset | u64::from(len)).is_multiple_of(u64::from(self.direct_align));
        self.direct.is_some() && aligned
    }

    /// The lane of an operation, with the offset and length of its range in bytes; `None` if the operation cannot disturb
    /// others.
    #[inline]
    pub(crate) fn lane(&self, io: &FileIo) -> Option<(Lane, u64, u64)> {
        self.direct.as_ref()?;
        match *io {
            FileIo::Read { ptr, len, offset } => {
                (!self.is_direct(ptr, offset, len)).then_some((Lane::Cached, offset, len.into()))
            }
            FileIo::Write { ptr, len, offset, .. } => {
                let lane = if self.is_direct(ptr, offset, len) { Lane::DirectWrite } else { Lane::Cached };
                Some((lane, offset, len.into()))
            }
            // Edges inside a page are zeroed in the cache, and where zeroing is not offloaded all of it.
            FileIo::Trim { offset, len } | FileIo::Zero { offset, len, .. } => Some((Lane::Cached, offset, len)),
            FileIo::Sync { .. } | FileIo::Cache { .. } | FileIo::Extents { .. } => None,
        }
    }

    /// Carries an operation out on the calling thread.
    pub(crate) fn run(&self, io: FileIo) -> IoResult {
        let done = match io {
            FileIo::Read { ptr, len, offset } => self.faults.cut(Call::Read, len).and_then(|len| {
                // SAFETY: `ptr` is valid for `len` bytes until the operation is reported done.
                retry(|| unsafe { libc::pread(self.fd_for(ptr, offset, len), ptr.cast(), len as usize, offset as i64) })
            }),
            FileIo::Write { ptr, len, offset, durable } => self.faults.cut(Call::Write, len).and_then(|len| {
                let flags = if durable { libc::RWF_DSYNC } else { 0 };
                let iov = libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len as usize };
                // SAFETY: as above.
                retry(|| unsafe {
                    libc::pwritev2(self.fd_for(ptr, offset, len), &raw const iov, 1, offset as i64, flags)
                })
            }),
            FileIo::Sync { .. } => self.sync().map(|()| 0),
            FileIo::Trim { offset, len } => self.trim(offset, len).map(|()| 0),
            FileIo::Zero { offset, len, punch, may_write } => self.zero(offset, len, punch, may_write).map(|()| 0),
            FileIo::Cache { offset, len } => {
                self.cache(offset, len);
                Ok(0)
            }
            FileIo::Extents { offset, len, max } => match self.extents(offset, len, max) {
                Ok(extents) => return IoResult::Extents(extents),
                Err(error) => Err(error),
            },
        };
        IoResult::of(done)
    }

    /// The list by which direct writes and overlapping operations through the page cache wait for each other.
    #[inline]
    pub(crate) fn overlaps(&self) -> &Overlaps {
        &self.overlaps
    }

    /// Makes all writes completed so far durable. Only the volume calls it, because syncs must run one after the other.
    pub(crate) fn sync(&self) -> rustix::io::Result<()> {
        rustix::io::retry_on_intr(|| self.faults.check(Call::Sync).and_then(|()| fdatasync(&self.cached)))
    }

    /// Lengthens the file to at least `size` bytes and returns its former length; a block device must be that long already.
    /// The new length is durable after a sync by the volume: a sync here could consume the kernel's only report of a failed
    /// write.
    pub(crate) fn grow(&self, size: u64) -> io::Result<u64> {
        let actual = seek(&self.cached, SeekFrom::End(0))?;
        if self.block_device && actual < size {
            return Err(io::Error::other(format!("the device has only {actual} bytes; enlarge the device first")));
        }
        // Never cuts off what another program has appended.
        if actual < size {
            ftruncate(&self.cached, size)?;
        }
        Ok(actual)
    }

    /// Undoes a [`Self::grow`] from `before` to `grown` bytes, unless the file's length is no longer `grown`.
    pub(crate) fn shorten(&self, grown: u64, before: u64) -> io::Result<()> {
        if !self.block_device && before < grown && seek(&self.cached, SeekFrom::End(0))? == grown {
            ftruncate(&self.cached, before)?;
        }
        Ok(())
    }

    /// True if a block device has become shorter than `size` bytes, as when it is unplugged: in this case the kernel fails
    /// writes with ENOSPC.
    pub(crate) fn is_cut_short(&self, size: u64) -> bool {
        self.block_device && seek(&self.cached, SeekFrom::End(0)).is_ok_and(|actual| actual < size)
    }

    /// Gives a range back to the file system or device; does nothing if that is not possible, because a trim is a hint.
    pub(crate) fn trim(&self, offset: u64, len: u64) -> rustix::io::Result<()> {
        match self.fallocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, len) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            done => done,
        }
    }

    fn fallocate(&self, flags: FallocateFlags, offset: u64, len: u64) -> rustix::io::Result<()> {
        self.faults.check(Call::Fallocate)?;
        fallocate(&self.cached, flags, offset, len)
    }

    fn seek(&self, to: SeekFrom) -> rustix::io::Result<u64> {
        self.faults.check(Call::Seek)?;
        seek(&self.cached, to)
    }

    /// Makes a range read as zero, by a hole if `punch`. `may_write`: true if zeros may be written, because the request was
    /// charged for a write.
    ///
    /// # Errors
    /// `OPNOTSUPP` if zeros would have to be written and `may_write` is false.
    pub(crate) fn zero(&self, offset: u64, len: u64, punch: bool, may_write: bool) -> rustix::io::Result<()> {
        let flags =
            if punch { FallocateFlags::PUNCH_HOLE } else { FallocateFlags::ZERO_RANGE } | FallocateFlags::KEEP_SIZE;
        // A device takes whole blocks only. What is left of the first and the last one is written, which costs next to nothing.
        let (end, block) = (offset + len, if self.block_device { u64::from(self.direct_align) } else { 1 });
        let from = offset.next_multiple_of(block).min(end);
        let to = (end - end % block).max(from);
        let tried = if self.writes_zeros(punch) && !may_write {
            Err(Errno::OPNOTSUPP)
        } else if from < to {
            self.fallocate(flags, from, to - from)
        } else {
            Ok(())
        };
        match tried {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.writes_zeros[usize::from(punch)].store(true, Ordering::Relaxed);
                if may_write { self.write_zeros(offset, len) } else { Err(Errno::OPNOTSUPP) }
            }
            Ok(()) => self.write_zeros(offset, from - offset).and_then(|()| self.write_zeros(to, end - to)),
            done => done,
        }
    }

    /// True if zeroing, with a hole (`punch`) or without, is known from an earlier attempt or from the device to mean writing
    /// zeros.
    pub(crate) fn writes_zeros(&self, punch: bool) -> bool {
        self.writes_zeros[usize::from(punch)].load(Ordering::Relaxed)
    }

    fn write_zeros(&self, mut offset: u64, len: u64) -> rustix::io::Result<()> {
        static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
        let end = offset + len;
        while offset < end {
            let chunk = (end - offset).min(ZEROS.len() as u64) as u32;
            let written = self.faults.cut(Call::Write, chunk);
            match written.and_then(|chunk| rustix::io::pwrite(&self.cached, &ZEROS[..chunk as usize], offset)) {
                Ok(0) => return Err(Errno::IO),
                Ok(n) => offset += n as u64,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// True if [`Self::cache`] has an effect: with direct I/O, reading ahead would be of no use.
    pub(crate) fn reads_ahead(&self) -> bool {
        self.direct.is_none()
    }

    /// Reads a range into the page cache; no error if that fails. Ends when the device has read the range. The kernel's own
    /// reading ahead (`POSIX_FADV_WILLNEED`) goes on after the call: a storm of such calls would fill the device's queue beyond
    /// the pool's budget.
    pub(crate) fn cache(&self, mut offset: u64, len: u64) {
        if !self.reads_ahead() {
            return;
        }
        let end = offset + len;
        let mut bytes = vec![0_u8; len.min(AHEAD) as usize];
        while offset < end {
            let most = (end - offset).min(AHEAD) as u32;
            let most = self.faults.cut(Call::Read, most);
            match most.and_then(|most| rustix::io::pread(&self.cached, &mut bytes[..most as usize], offset)) {
                Ok(read @ 1..) => offset += read as u64,
                Err(Errno::INTR) => {}
                Ok(_) | Err(_) => return,
            }
        }
    }

    /// The extents of `[offset, offset + len)`, both data and holes, in order from the start: at most `max`, and at most as
    /// many as are found within [`EXTENTS_TIME`].
    pub(crate) fn extents(&self, offset: u64, len: u64, max: usize) -> rustix::io::Result<Vec<Extent>> {
        let (mut at, end) = (offset, offset + len);
        let mut extents = Vec::new();
        let begun = Instant::now();
        while at < end && extents.len() < max {
            // A fragmented file has thousands: a client asks again for the rest.
            if extents.len() % 32 == 31 && begun.elapsed() >= EXTENTS_TIME {
                break;
            }
            let data = match self.seek(SeekFrom::Data(at)) {
                Ok(data) => data.min(end),
                Err(Errno::NXIO) => end,
                // No hole detection here: all of it is data.
                Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
                Err(error) => return Err(error),
            };
            if data > at {
                extents.push(Extent { len: data - at, hole: true });
                at = data;
                continue;
            }
            let hole = match self.seek(SeekFrom::Hole(at)) {
                Ok(hole) if hole > at => hole.min(end),
                Ok(_) | Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NXIO) => end,
                Err(error) => return Err(error),
            };
            extents.push(Extent { len: hole - at, hole: false });
            at = hole;
        }
        Ok(extents)
    }
}

/// Opens the file at `path` once more for direct I/O, with `options`; `None` if the file system does not support that.
///
/// # Errors
/// If the path leads to another file than `target` now.
fn past_cache(path: &Path, options: &OpenOptions, target: Target) -> io::Result<Option<OwnedFd>> {
    let Ok(file) = options.open(path) else { return Ok(None) };
    if Target::of(&file.metadata()?) != target {
        return Err(io::Error::other("another file took the place of this one while the server opened it; try again"));
    }
    Ok(Some(file.into()))
}

/// Repeats `attempt` while it fails with the errno `busy`, until the time `until`; returns the last result. `path` is for the
/// log.
fn until_free<T>(path: &Path, until: Instant, busy: i32, mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut told = false;
    loop {
        match attempt() {
            Err(error) if error.raw_os_error() == Some(busy) && Instant::now() < until => {
                if !std::mem::replace(&mut told, true) {
                    let left = until.saturating_duration_since(Instant::now()).as_secs_f64();
                    tracing::info!(
                        "{} is in use by another process; the server waits for at most {left:.0} s until it is free",
                        path.display()
                    );
                }
                std::thread::sleep(LOCK_POLL);
            }
            done => return done,
        }
    }
}

/// Logical block size of a block device in bytes; 4096, which suits all devices, if it is unknown.
fn logical_block(device: &std::fs::File) -> u32 {
    let mut size: libc::c_int = 0;
    // SAFETY: BLKSSZGET stores an int.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), libc::BLKSSZGET, &raw mut size) };
    if result == 0 && size > 0 { size as u32 } else { 4096 }
}

/// True if a block device can zero ranges itself, without zeros being sent to it.
fn zeroes_by_itself(device: &std::fs::File) -> bool {
    use std::os::unix::fs::MetadataExt;
    let Ok(number) = device.metadata().map(|metadata| metadata.rdev()) else { return false };
    let node = format!("/sys/dev/block/{}:{}", libc::major(number), libc::minor(number));
    // A partition has the queue of its disk.
    [node.clone() + "/queue", node + "/../queue"].iter().any(|queue| {
        let most = std::fs::read_to_string(format!("{queue}/write_zeroes_max_bytes"));
        most.is_ok_and(|bytes| bytes.trim().parse().is_ok_and(|bytes: u64| bytes > 0))
    })
}

fn retry(mut call: impl FnMut() -> isize) -> rustix::io::Result<i32> {
    loop {
        let n = call();
        if n >= 0 {
            return Ok(n as i32);
        }
        match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            code => return Err(rustix::io::Errno::from_raw_os_error(code.unwrap_or(libc::EIO))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::faults::{Fault, Injection};

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("evenkeel-file-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir.join("volume.img")
    }

    const NEW: Open =
        Open { create: Some(1 << 20), read_only: false, direct: true, block: false, patience: Duration::ZERO };

    #[test]
    fn a_second_opener_is_refused_with_the_holder() {
        let path = scratch("lock");
        let (first, size) = File::open(&path, &NEW).unwrap();
        assert_eq!(size, 1 << 20);
        match File::open(&path, &NEW).err() {
            Some(Error::InUse { holder, .. }) => assert_eq!(holder, Some(std::process::id())),
            other => panic!("{other:?}"),
        }
        // A server that waits for it has it as soon as it is free.
        let waiting = std::thread::spawn({
            let path = path.clone();
            move || File::open(&path, &Open { patience: Duration::from_secs(30), ..NEW }).map(drop)
        });
        std::thread::sleep(3 * LOCK_POLL);
        drop(first);
        waiting.join().unwrap().unwrap();
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_file_that_is_replaced_while_it_is_opened_is_noticed() {
        let path = scratch("replaced");
        std::fs::write(&path, "one").unwrap();
        let target = Target::of(&std::fs::metadata(&path).unwrap());
        let mut options = OpenOptions::new();
        options.read(true);
        assert!(past_cache(&path, &options, target).unwrap().is_some());
        std::fs::write(path.with_extension("new"), "two").unwrap();
        std::fs::rename(path.with_extension("new"), &path).unwrap();
        assert!(past_cache(&path, &options, target).is_err());
        std::fs::remove_file(&path).unwrap();
        assert!(past_cache(&path, &options, target).unwrap().is_none());
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn holes_appear_after_trim_and_zero() {
        let path = scratch("holes");
        let (file, _) = File::open(&path, &NEW).unwrap();
        assert_eq!(file.extents(0, 1 << 20, 8).unwrap(), [Extent { len: 1 << 20, hole: true }]);
        assert_eq!(rustix::io::pwrite(&file.cached, &[1; 1 << 16], 1 << 16).unwrap(), 1 << 16);
        let lens: Vec<_> = file.extents(0, 1 << 20, 8).unwrap().iter().map(|e| (e.len, e.hole)).collect();
        assert_eq!(lens, [(1 << 16, true), (1 << 16, false), ((1 << 20) - (2 << 16), true)]);
        file.zero(1 << 16, 100, false, true).unwrap();
        let mut bytes = [9; 101];
        assert_eq!(rustix::io::pread(&file.cached, &mut bytes[..], 1 << 16).unwrap(), 101);
        assert!(bytes[..100].iter().all(|&b| b == 0) && bytes[100] == 1);
        file.trim(1 << 16, 1 << 16).unwrap();
        assert_eq!(file.extents(0, 1 << 20, 8).unwrap().len(), 1);
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn reading_ahead_ends_when_the_range_is_read() {
        let path = scratch("ahead");
        let (mut file, _) = File::open(&path, &Open { direct: false, ..NEW }).unwrap();
        file.faults = Faults::table();
        let line = |fault, times| Injection { place: String::new(), call: Call::Read, fault, skip: 0, times };
        file.faults.add(line(Fault::Late(Duration::ZERO), u64::MAX));
        file.cache(4096, 150 << 10);
        assert_eq!(file.faults.met(Call::Read), 3);
        // To the end of a file that has become shorter.
        file.cache((1 << 20) - 4096, 1 << 20);
        assert_eq!(file.faults.met(Call::Read), 5);
        file.faults.clear("");
        file.faults.add(line(Fault::Errno(libc::EIO), 1));
        file.cache(0, 1 << 20);
        assert_eq!(file.faults.met(Call::Read), 1, "an error is the end");
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn a_device_that_takes_whole_blocks_only_is_written_to_at_the_edges() {
        let path = scratch("edges");
        let (mut file, _) = File::open(&path, &NEW).unwrap();
        (file.block_device, file.direct_align, file.faults) = (true, 512, Faults::table());
        let line = |call, fault, times| Injection { place: String::new(), call, fault, skip: 0, times };
        let watch = |faults: &Faults| {
            let line = |call| line(call, Fault::Late(Duration::ZERO), u64::MAX);
            [Call::Fallocate, Call::Write].map(line).into_iter().for_each(|line| faults.add(line));
        };
        for (offset, len, calls) in [
            (512, 1 << 16, (1, 0)),
            (700, 1 << 16, (1, 2)),
            (700, 324, (0, 1)),
            (1_000, 100, (0, 2)),
            (1_000, 536, (1, 1)),
        ] {
            assert_eq!(rustix::io::pwrite(&file.cached, &[1; 1 << 17], 0).unwrap(), 1 << 17);
            watch(&file.faults);
            assert_eq!(file.zero(offset, len, false, false), Ok(()));
            assert_eq!((file.faults.met(Call::Fallocate), file.faults.met(Call::Write)), calls, "{len} at {offset}");
            file.faults.clear("");
            let mut bytes = vec![9; 1 << 17];
            assert_eq!(rustix::io::pread(&file.cached, &mut bytes[..], 0).unwrap(), 1 << 17);
            let zeroed = (0u64..).zip(bytes).all(|(at, byte)| (byte == 0) == (offset..offset + len).contains(&at));
            assert!(zeroed, "{len} at {offset}");
        }
        assert!(!file.writes_zeros(false));
        // Whole blocks are refused as well: from now on, requests are charged and divided as writes.
        file.faults.add(line(Call::Fallocate, Fault::Errno(libc::EINVAL), 1));
        assert_eq!(file.zero(0, 1 << 16, false, false), Err(Errno::OPNOTSUPP));
        assert!(file.writes_zeros(false));
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
