//! A volume in an RBD image of a Ceph cluster, through librbd.
//!
//! Workers start operations; they complete on threads of librbd, which post to the workers' mailboxes. Each volume has a
//! thread of its own for calls that block: opening, reading the size after a change of the image, closing.

mod image;
mod library;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration as StdDuration;

use evenkeel_policy::config::{self, Cache};
use evenkeel_policy::state::RbdState;

use self::image::{Access, Image, Properties, error_of};
pub use self::library::leave;
use self::library::{CompletionPtr, Library};
use super::operation::{Extent, FileIo, IoResult, Report, Reports};
use crate::error::Error;

/// Longest time for opening an image: 30 s for the cluster's monitors to answer, and about as long until the lock of a dead
/// client is broken.
const OPEN_PATIENCE: StdDuration = StdDuration::from_secs(90);
/// Largest number of bytes of one trim or zeroing in librbd: 256 objects of the usual size, each of which is an operation.
const RANGE_STEP: u64 = 1 << 30;

/// An open RBD image; after this value is dropped, the volume's thread closes the image.
pub(crate) struct Rbd {
    shared: Arc<Shared>,
    name: String,
    object_size: u64,
    is_clone: bool,
    knows_extents: bool,
    /// Receives a message when the image has been closed.
    closed: Mutex<mpsc::Receiver<()>>,
}

/// The state that workers, threads of librbd and the volume's thread share.
struct Shared {
    volume: String,
    image: Mutex<Option<Arc<Image>>>,
    size: AtomicU64,
    resizes: AtomicU64,
    in_flight: AtomicU64,
    /// The error of the first flush that failed; after it no flush succeeds. `None` if no flush has failed.
    loss: Mutex<Option<String>>,
    is_lost: AtomicBool,
    todo: Mutex<Todo>,
    changed: Condvar,
}

/// The tasks of the volume's thread: read the image's size, or close the image.
#[derive(Default)]
struct Todo {
    look: bool,
    stop: bool,
}

/// An operation inside librbd. Its buffer is in the worker's table until the operation is reported done.
struct Pending {
    shared: Arc<Shared>,
    image: Arc<Image>,
    reply_to: Arc<Reports>,
    token: u32,
    step: Step,
}

/// Kind of an operation inside librbd, which determines the result code for its success.
#[derive(Clone, Copy)]
enum Step {
    /// A read; the code is the number of bytes that librbd returns.
    Read,
    /// A write of `len` bytes, which is the code. It ends at the offset `end` of the image.
    Write { len: u32, end: u64 },
    /// A trim or zeroing; the code is this number: bytes done of a longer range, or 0 if the rest of the range is done.
    Range(i32),
    /// A flush; the code is 0. If it fails, data may be lost.
    Flush,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rbd {
    /// Opens the image of `volume` and starts the volume's thread; also returns the size in bytes. Blocks for at most
    /// [`OPEN_PATIENCE`].
    ///
    /// # Errors
    /// If librbd is not installed, the cluster does not answer, or there is no such image.
    pub(crate) fn open(name: &str, volume: &config::Volume, read_only: bool) -> Result<(Self, u64), Error> {
        let image = || volume.rbd.as_ref().map_or_else(String::new, ToString::to_string);
        let missing = |why| Error::Rbd { volume: name.to_owned(), image: image(), why };
        Self::open_with(Library::of_system().map_err(missing)?, name, volume, read_only)
    }

    fn open_with(
        library: &'static Library,
        name: &str,
        volume: &config::Volume,
        read_only: bool,
    ) -> Result<(Self, u64), Error> {
        let spec = volume.rbd.clone().ok_or_else(|| {
            Error::Refused(format!("volume \"{name}\" needs an image, for example rbd = \"pool/image\""))
        })?;
        let fail = |why: String| Error::Rbd { volume: name.to_owned(), image: spec.to_string(), why };
        let access = Access {
            image: spec.clone(),
            conf: volume.ceph_conf.clone(),
            user: volume.ceph_user.clone(),
            keyring: volume.ceph_keyring.clone(),
            read_only,
            cached: volume.cache == Cache::Buffered,
        };
        let shared = Arc::new(Shared::new(name));
        let ((opened, hear), (closed, hear_closed)) = (mpsc::channel(), mpsc::channel());
        let for_thread = Arc::clone(&shared);
        let spawned = std::thread::Builder::new()
            .name("evenkeel-rbd".into())
            .spawn(move || for_thread.run(library, &access, &opened, &closed));
        spawned.map_err(|cause| Error::System { action: "start a thread for an RBD image", cause })?;
        let properties = match hear.recv_timeout(OPEN_PATIENCE) {
            Ok(Ok(properties)) => properties,
            Ok(Err(why)) => return Err(fail(why)),
            Err(RecvTimeoutError::Timeout) => {
                shared.stop();
                let waited = OPEN_PATIENCE.as_secs();
                return Err(fail(format!(
                    "the cluster has not answered for {waited} s: look at `ceph -s` for OSDs that are down, a pause, or a full \
                     cluster, and at `rbd lock ls`"
                )));
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(fail("the server's thread for the image has ended; the log has the reason".into()));
            }
        };
        if !read_only && !properties.locked {
            tracing::warn!(
                volume = name,
                image = %spec,
                "the image has no exclusive lock, so nothing keeps another client from writing to it; `rbd feature enable IMAGE exclusive-lock` gives it one"
            );
        }
        let size = properties.size;
        let rbd = Self {
            shared,
            name: spec.to_string(),
            object_size: properties.object_size,
            is_clone: properties.is_clone,
            knows_extents: properties.knows_extents,
            closed: Mutex::new(hear_closed),
        };
        Ok((rbd, size))
    }

    /// Present size of the image in bytes; changes when the image is resized.
    #[inline]
    pub(crate) fn size(&self) -> u64 {
        self.shared.size.load(Ordering::Relaxed)
    }

    /// True if zeroing with holes is never slower than writing zeros. For a clone it may be slower, because a part of an
    /// object has to be copied first.
    pub(crate) fn zeroes_fast(&self) -> bool {
        !self.is_clone
    }

    /// Name of the image: `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Starts an operation; its completion is reported to `reply_to` with `token`. Does not block.
    pub(crate) fn submit(&self, io: FileIo, token: u32, reply_to: &Arc<Reports>) {
        let report = |code: i32| reply_to.report(Report::Done(token, IoResult::Code(code)));
        if let Some(code) = self.answer_at_once(&io) {
            return report(code);
        }
        let Some(image) = lock(&self.shared.image).clone() else { return report(-libc::ESHUTDOWN) };
        let step = match io {
            FileIo::Read { .. } => Step::Read,
            FileIo::Write { len, offset, .. } => Step::Write { len, end: offset + u64::from(len) },
            FileIo::Trim { len, .. } | FileIo::Zero { len, .. } if len > RANGE_STEP => Step::Range(RANGE_STEP as i32),
            FileIo::Trim { .. } | FileIo::Zero { .. } => Step::Range(0),
            FileIo::Sync { .. } | FileIo::Cache { .. } | FileIo::Extents { .. } => Step::Flush,
        };
        let shared = Arc::clone(&self.shared);
        shared.in_flight.fetch_add(1, Ordering::Relaxed);
        let pending =
            Box::new(Pending { shared, image: Arc::clone(&image), reply_to: Arc::clone(reply_to), token, step });
        let argument = Box::into_raw(pending);
        let to = argument.cast::<c_void>();
        let started = match io {
            FileIo::Read { ptr, len, offset } => {
                // SAFETY: the buffer is in the worker's table until the operation is reported done, which is when librbd has
                // done with it, whatever becomes of the connection; the argument is taken back there, once.
                unsafe { image.read(offset, (ptr, len as usize), completed, to) }
            }
            FileIo::Write { ptr, len, offset, .. } => {
                // SAFETY: as above.
                unsafe { image.write(offset, (ptr, len as usize), completed, to) }
            }
            FileIo::Trim { offset, len } => image.discard(offset, len.min(RANGE_STEP), completed, to),
            FileIo::Zero { offset, len, punch, .. } => image.zero((offset, len.min(RANGE_STEP)), punch, completed, to),
            FileIo::Sync { .. } | FileIo::Cache { .. } | FileIo::Extents { .. } => image.start_flush(completed, to),
        };
        if let Err(code) = started {
            // SAFETY: made above, and librbd does not have it.
            let pending = unsafe { Box::from_raw(argument) };
            pending.end(code as isize);
        }
    }

    /// The code, as in [`IoResult::Code`], of an operation that is answered without the cluster; `None` for other operations.
    fn answer_at_once(&self, io: &FileIo) -> Option<i32> {
        let (offset, len, beyond) = match *io {
            FileIo::Read { offset, len, .. } => (offset, len.into(), libc::EINVAL),
            FileIo::Write { offset, len, .. } => (offset, len.into(), libc::ENOSPC),
            FileIo::Trim { offset, len } => (offset, len, libc::EINVAL),
            // Zeros that have to be written are not fast.
            FileIo::Zero { punch: false, may_write: false, .. } => return Some(-libc::EOPNOTSUPP),
            FileIo::Zero { offset, len, .. } => (offset, len, libc::ENOSPC),
            FileIo::Cache { .. } => return Some(0),
            FileIo::Sync { .. } | FileIo::Extents { .. } => return None,
        };
        // librbd would cut it off, and call that a success.
        (offset.saturating_add(len) > self.size()).then_some(-beyond)
    }

    /// The data and holes of a range, at most `max` extents; one extent of data if the image has no map of its objects.
    /// Blocks.
    pub(crate) fn extents(&self, offset: u64, len: u64, max: usize) -> IoResult {
        if offset.saturating_add(len) > self.size() {
            return IoResult::Code(-libc::EINVAL);
        }
        if !self.knows_extents {
            return IoResult::Extents(vec![Extent { len, hole: false }]);
        }
        let Some(image) = lock(&self.shared.image).clone() else { return IoResult::Code(-libc::ESHUTDOWN) };
        match image.extents((offset, len), max, self.object_size) {
            Ok(extents) => IoResult::Extents(extents),
            Err(error) => IoResult::Code(-error.raw_os_error().unwrap_or(libc::EIO)),
        }
    }

    /// Makes all acknowledged writes durable. Blocks while the cluster does not answer.
    ///
    /// # Errors
    /// If the flush fails, or an earlier flush has failed.
    pub(crate) fn sync(&self) -> Result<(), String> {
        if let Some(loss) = self.loss() {
            return Err(loss);
        }
        let Some(image) = lock(&self.shared.image).clone() else { return Ok(()) };
        image.flush().map_err(|error| format!("unflushed writes may be lost: {error}"))
    }

    /// Closes the image, and so releases its lock, once no operation is in flight. Waits at most `patience` for the closing;
    /// true if the image was closed in this time.
    pub(crate) fn close(&self, patience: StdDuration) -> bool {
        self.shared.stop();
        // A sender that is gone says that the thread has ended, too.
        !matches!(lock(&self.closed).recv_timeout(patience), Err(RecvTimeoutError::Timeout))
    }

    /// True if a flush has failed.
    #[inline]
    pub(crate) fn is_lost(&self) -> bool {
        self.shared.is_lost.load(Ordering::Acquire)
    }

    /// The error of the first flush that failed; `None` if none has.
    pub(crate) fn loss(&self) -> Option<String> {
        lock(&self.shared.loss).clone()
    }

    /// The volume's state for the API.
    pub(crate) fn state(&self) -> RbdState {
        RbdState {
            image: self.name.clone(),
            object_bytes: self.object_size,
            in_flight_requests: self.shared.in_flight.load(Ordering::Relaxed),
            resizes_total: self.shared.resizes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Rbd {
    fn drop(&mut self) {
        self.shared.stop();
    }
}

impl Shared {
    fn new(volume: &str) -> Self {
        Self {
            volume: volume.to_owned(),
            image: Mutex::default(),
            size: AtomicU64::new(0),
            resizes: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            loss: Mutex::default(),
            is_lost: AtomicBool::new(false),
            todo: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn stop(&self) {
        lock(&self.todo).stop = true;
        self.changed.notify_one();
    }

    /// Body of the volume's thread: opens the image, follows its changes, and closes it. Sends the image's properties or an
    /// error to `opened`, and a message to `closed` at the end.
    fn run(
        self: Arc<Self>,
        library: &'static Library,
        access: &Access,
        opened: &Sender<Result<Properties, String>>,
        closed: &Sender<()>,
    ) {
        let (image, properties) = match Image::open(library, access) {
            Ok((image, properties)) => (Arc::new(image), properties),
            Err(why) => {
                let _ = opened.send(Err(why));
                return;
            }
        };
        self.size.store(properties.size, Ordering::Relaxed);
        *lock(&self.image) = Some(Arc::clone(&image));
        // SAFETY: `self` lives until this function ends, and the watch ends before.
        let watch = unsafe { image.watch(changed, Arc::as_ptr(&self).cast_mut().cast()) };
        if let Err(error) = &watch {
            tracing::warn!(volume = self.volume, %error, "the server cannot watch the image for a new size; the volume keeps its size until the server restarts, or the volume is removed and created again");
        }
        // The thread that waited may have given up; then this one is to stop as well.
        let _ = opened.send(Ok(properties));
        while self.wait() {
            self.look(&image);
        }
        // From here on nothing is started any more.
        *lock(&self.image) = None;
        if let Ok(watch) = watch {
            image.unwatch(watch);
        }
        self.close(image);
        let _ = closed.send(());
    }

    /// Blocks until the image has changed, and returns true; or until the image is to be closed, and returns false.
    fn wait(&self) -> bool {
        let mut todo = lock(&self.todo);
        while !todo.look && !todo.stop {
            todo = self.changed.wait(todo).unwrap_or_else(PoisonError::into_inner);
        }
        todo.look = false;
        !todo.stop
    }

    /// Reads the image's present size and serves it.
    fn look(&self, image: &Image) {
        let size = match image.size() {
            Ok(size) => size,
            Err(error) => {
                tracing::warn!(volume = self.volume, %error, "the new size of the image cannot be read; the volume keeps its size");
                return;
            }
        };
        let before = self.size.swap(size, Ordering::Relaxed);
        if size == before {
            return;
        }
        self.resizes.fetch_add(1, Ordering::Relaxed);
        if size < before {
            tracing::warn!(
                volume = self.volume,
                before,
                size,
                "the image has shrunk: requests beyond its end fail from now on"
            );
        } else {
            tracing::info!(
                volume = self.volume,
                before,
                size,
                "the image has grown: clients that connect from now on see it"
            );
        }
    }

    /// Closes the image once no other thread uses it, for operations in flight or for searches for extents.
    fn close(&self, mut image: Arc<Image>) {
        loop {
            match Arc::try_unwrap(image) {
                Ok(image) => return drop(image),
                Err(shared) => image = shared,
            }
            let todo = lock(&self.todo);
            // The last operation says so; a walk does not.
            drop(self.changed.wait_timeout(todo, CLOSE_LOOK).unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn lose(&self, why: &std::io::Error) {
        let mut loss = lock(&self.loss);
        if loss.is_none() {
            tracing::error!(volume = self.volume, %why, "a flush failed: written data may be lost; every further flush is answered with an error until the server restarts, or the volume is removed and created again");
            *loss = Some(why.to_string());
        }
        self.is_lost.store(true, Ordering::Release);
    }
}

/// Interval at which a volume that is being closed checks if its image is still in use.
const CLOSE_LOOK: StdDuration = StdDuration::from_millis(50);

/// Called by librbd when the image has changed, perhaps in size; on a thread of librbd, which must not be delayed.
extern "C" fn changed(argument: *mut c_void) {
    // SAFETY: given to `watch` by the thread that keeps it alive until the watch has ended.
    let shared = unsafe { &*argument.cast::<Shared>() };
    lock(&shared.todo).look = true;
    shared.changed.notify_one();
}

/// Called by librbd when an operation has completed, on a thread of librbd.
extern "C" fn completed(completion: CompletionPtr, argument: *mut c_void) {
    // SAFETY: made by `submit`, and librbd calls this once.
    let pending = unsafe { Box::from_raw(argument.cast::<Pending>()) };
    // SAFETY: this is where it was completed.
    let result = unsafe { pending.image.take_result(completion) };
    pending.end(result);
}

impl Pending {
    /// Reports the completion of the operation with `result` (as librbd returns it) to the worker.
    fn end(self, result: isize) {
        let Self { shared, image, reply_to, token, step } = self;
        let code = self::code(step, result, shared.size.load(Ordering::Relaxed));
        if code < 0 && matches!(step, Step::Flush) {
            shared.lose(&error_of(code));
        }
        // The worker may have ended without waiting, when the time to stop was over.
        let _ = reply_to.post(Report::Done(token, IoResult::Code(code)));
        shared.in_flight.fetch_sub(1, Ordering::Relaxed);
        // Never the last one: the volume's thread has one until no other has.
        drop(image);
        if lock(&shared.todo).stop {
            shared.changed.notify_one();
        }
    }
}

/// The code, as in [`IoResult::Code`], of an operation that has completed with `result`, on an image that now has `size`
/// bytes.
fn code(step: Step, result: isize, size: u64) -> i32 {
    if result < 0 {
        return i32::try_from(result).unwrap_or(-libc::EIO);
    }
    match step {
        Step::Read => i32::try_from(result).unwrap_or(-libc::EIO),
        // The image shrank meanwhile, and the rest was cut off.
        Step::Write { end, .. } if end > size => -libc::ENOSPC,
        Step::Write { len, .. } => len as i32,
        Step::Range(done) => done,
        Step::Flush => 0,
    }
}

#[cfg(test)]
mod tests;
