//! An open RBD image: all calls of librbd and librados are made here.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::ptr::{null, null_mut};

use evenkeel_policy::rbd;

use super::library::{self, ClusterPtr, Completed, CompletionPtr, ImageInfo, ImagePtr, Library, PoolPtr, Walked};
use crate::backend::operation::Extent;

/// Time within which a cluster's monitors must answer, in seconds, as the value of a Ceph option.
const CONNECT_TIMEOUT_S: &CStr = c"30";
/// Largest number of a lock's owners that an error message names.
const MAX_OWNERS: usize = 4;

/// Settings for opening an image.
pub(super) struct Access {
    /// The image: pool, namespace, name and snapshot.
    pub(super) image: rbd::Image,
    /// Path of the Ceph configuration file; `None`: the default places of Ceph.
    pub(super) conf: Option<PathBuf>,
    /// Name of the Ceph user; `None`: `admin`.
    pub(super) user: Option<String>,
    /// Path of the user's keyring; `None`: as the Ceph configuration says.
    pub(super) keyring: Option<PathBuf>,
    /// True to open the image for reading only.
    pub(super) read_only: bool,
    /// True to leave librbd's own cache as the Ceph configuration sets it; false to switch it off.
    pub(super) cached: bool,
}

/// A connection to a Ceph cluster, closed when this value is dropped.
struct Cluster(&'static Library, ClusterPtr);

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: made by rados_create; pools and images of it are gone, see the order of fields in `Image`.
        unsafe { (self.0.rados_shutdown)(self.1) };
    }
}

/// An open pool of a cluster, closed when this value is dropped.
struct Pool(&'static Library, PoolPtr);

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: made by rados_ioctx_create; the image in it is closed before.
        unsafe { (self.0.rados_ioctx_destroy)(self.1) };
    }
}

/// An open image of a pool, with its name for messages; closed when this value is dropped.
struct Handle(&'static Library, ImagePtr, String);

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: opened by rbd_open; the owner of the `Image` has seen the end of every operation. Blocks while the
        // cluster does not answer.
        let code = unsafe { (self.0.rbd_close)(self.1) };
        if code < 0 {
            tracing::warn!(image = self.2, error = %error_of(code), "an RBD image could not be closed properly; `rbd status` and `rbd lock ls` show the locks and watchers that this client has left");
        }
    }
}

/// The facts about an image at the time of opening.
pub(super) struct Properties {
    /// Size of the image in bytes.
    pub(super) size: u64,
    /// Size of one object of the image in bytes.
    pub(super) object_size: u64,
    /// True if a part of the image is still read from the image of which it is a clone.
    pub(super) is_clone: bool,
    /// True if this process holds the image's exclusive lock, so that no other client writes to it.
    pub(super) locked: bool,
    /// True if the image has a valid map of the objects that exist.
    pub(super) knows_extents: bool,
}

/// An open image. Dropping this value closes the image, which blocks until the cluster has answered. The order of the fields
/// matters: they are dropped in this order.
pub(super) struct Image {
    handle: Handle,
    _pool: Pool,
    _cluster: Cluster,
    library: &'static Library,
}

// SAFETY: librbd and librados allow every call from any thread, and from several at once.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

/// The system's error for an error code of the Ceph libraries, which is minus an errno.
pub(super) fn error_of(code: c_int) -> std::io::Error {
    std::io::Error::from_raw_os_error(code.saturating_neg())
}

fn text(what: impl Into<Vec<u8>>) -> Result<CString, String> {
    CString::new(what).map_err(|_| "a name has a zero byte".to_owned())
}

/// A pointer to the text, valid as long as the text; null if there is no text.
fn or_null(text: Option<&CString>) -> *const c_char {
    text.map_or(null(), |text| text.as_ptr())
}

impl Image {
    /// Connects to the cluster, opens the image, and locks the image unless it is opened for reading only. Blocks as long as
    /// the cluster does not answer.
    ///
    /// # Errors
    /// A message with the fault and advice.
    pub(super) fn open(library: &'static Library, access: &Access) -> Result<(Self, Properties), String> {
        let cluster = connect(library, access)?;
        let spec = &access.image;
        let (pool_name, mut pool) = (text(spec.pool.as_str())?, null_mut());
        // SAFETY: the cluster is connected, the name ends with a zero byte, and there is room for the result.
        let code = unsafe { (library.rados_ioctx_create)(cluster.1, pool_name.as_ptr(), &raw mut pool) };
        if code < 0 {
            return Err(format!(
                "the pool \"{}\" cannot be used ({}); `ceph osd pool ls` shows all pools",
                spec.pool,
                error_of(code)
            ));
        }
        let pool = Pool(library, pool);
        if let Some(namespace) = &spec.namespace {
            let namespace = text(namespace.as_str())?;
            // SAFETY: the pool is open and the name ends with a zero byte.
            unsafe { (library.rados_ioctx_set_namespace)(pool.1, namespace.as_ptr()) };
        }
        let name = text(spec.name.as_str())?;
        let snapshot = spec.snapshot.as_deref().map(text).transpose()?;
        let open = if access.read_only { library.rbd_open_read_only } else { library.rbd_open };
        let mut image = null_mut();
        // SAFETY: the pool is open, names end with a zero byte or are null, and there is room for the result.
        let code = unsafe { open(pool.1, name.as_ptr(), &raw mut image, or_null(snapshot.as_ref())) };
        if code < 0 {
            let advice = match -code {
                libc::ENOENT => "; there is no such image, or no such snapshot: see `rbd ls` and `rbd snap ls`",
                libc::EPERM | libc::EACCES => {
                    "; give the volume's Ceph user the caps of `profile rbd` (`profile rbd-read-only` for reading)"
                }
                _ => "",
            };
            return Err(format!("the image cannot be opened: {}{advice}", error_of(code)));
        }
        let image = Self { handle: Handle(library, image, spec.to_string()), _pool: pool, _cluster: cluster, library };
        let properties = image.properties(access.read_only)?;
        Ok((image, properties))
    }

    fn properties(&self, read_only: bool) -> Result<Properties, String> {
        let ask = |what: &str, question: unsafe extern "C" fn(ImagePtr, *mut u64) -> c_int| {
            let mut answer = 0;
            // SAFETY: the image is open and there is room for the result.
            match unsafe { question(self.handle.1, &raw mut answer) } {
                code if code < 0 => Err(format!("the image's {what} cannot be read: {}", error_of(code))),
                _ => Ok(answer),
            }
        };
        let features = ask("features", self.library.rbd_get_features)?;
        let lockable = features & library::FEATURE_EXCLUSIVE_LOCK != 0;
        if lockable && !read_only {
            self.lock()?;
        }
        let flags = ask("flags", self.library.rbd_get_flags)?;
        let info = self.info().map_err(|error| format!("the image's size cannot be read: {error}"))?;
        Ok(Properties {
            size: info.size,
            object_size: info.object_size,
            is_clone: ask("parent", self.library.rbd_get_overlap)? > 0,
            locked: lockable && !read_only,
            knows_extents: features & library::FEATURE_FAST_DIFF != 0 && flags & library::FLAG_FAST_DIFF_INVALID == 0,
        })
    }

    /// Locks the image, so that no other client writes to it. librbd breaks the lock of a dead client once the cluster counts
    /// this client as gone, usually within 30 s.
    fn lock(&self) -> Result<(), String> {
        // SAFETY: the image is open.
        let code = unsafe { (self.library.rbd_lock_acquire)(self.handle.1, library::LOCK_EXCLUSIVE) };
        if code >= 0 {
            return Ok(());
        }
        let owners = self.lock_owners();
        let owners = if owners.is_empty() { "another client".to_owned() } else { owners.join(", ") };
        Err(format!(
            "it is locked by {owners} and the lock was refused ({}): two writers would destroy it. See `rbd lock ls` and \
             `rbd status`, and stop the other client",
            error_of(code)
        ))
    }

    fn lock_owners(&self) -> Vec<String> {
        let (mut mode, mut owners, mut count) = (0, [null_mut(); MAX_OWNERS], MAX_OWNERS);
        let pointer = owners.as_mut_ptr();
        // SAFETY: there is room for `count` pointers; each that is filled in is a string of the library's until it is given
        // back.
        unsafe {
            if (self.library.rbd_lock_get_owners)(self.handle.1, &raw mut mode, pointer, &raw mut count) < 0 {
                return Vec::new();
            }
            let count = count.min(MAX_OWNERS);
            let names =
                owners[..count].iter().map(|&name| CStr::from_ptr(name).to_string_lossy().into_owned()).collect();
            (self.library.rbd_lock_get_owners_cleanup)(pointer, count);
            names
        }
    }

    fn info(&self) -> std::io::Result<ImageInfo> {
        let mut info = ImageInfo::new();
        // SAFETY: the image is open, and `info` has the size that is told.
        let code = unsafe { (self.library.rbd_stat)(self.handle.1, &raw mut info, size_of::<ImageInfo>()) };
        if code < 0 { Err(error_of(code)) } else { Ok(info) }
    }

    /// Size of the image in bytes at present. Blocks while the cluster does not answer.
    pub(super) fn size(&self) -> std::io::Result<u64> {
        self.info().map(|info| info.size)
    }

    /// Makes all earlier writes durable. Blocks.
    pub(super) fn flush(&self) -> std::io::Result<()> {
        // SAFETY: the image is open.
        let code = unsafe { (self.library.rbd_flush)(self.handle.1) };
        if code < 0 { Err(error_of(code)) } else { Ok(()) }
    }

    /// From now until [`Self::unwatch`], librbd calls `changed` with `argument` when the image has changed, on one of
    /// librbd's threads. Returns the number of the watch.
    ///
    /// # Safety
    /// `changed` and `argument` must stay valid for such calls until [`Self::unwatch`] has returned.
    pub(super) unsafe fn watch(&self, changed: library::Changed, argument: *mut c_void) -> std::io::Result<u64> {
        let mut handle = 0;
        // SAFETY: the image is open, there is room for the result, and the caller vouches for the rest.
        let code = unsafe { (self.library.rbd_update_watch)(self.handle.1, &raw mut handle, changed, argument) };
        if code < 0 { Err(error_of(code)) } else { Ok(handle) }
    }

    /// Ends the watch with this number: once this call returns, the watch's function is not called any more.
    pub(super) fn unwatch(&self, watch: u64) {
        // SAFETY: the image is open.
        unsafe { (self.library.rbd_update_unwatch)(self.handle.1, watch) };
    }

    /// Calls `each` with offset and length, in bytes, of each extent of a range that holds data, in order, until `each`
    /// returns `false`. Blocks.
    pub(super) fn walk(&self, offset: u64, len: u64, each: &mut dyn FnMut(u64, u64) -> bool) -> std::io::Result<()> {
        extern "C" fn walked(offset: u64, len: usize, holds: c_int, argument: *mut c_void) -> c_int {
            // SAFETY: the argument that was given below, used on one thread at a time.
            let each = unsafe { &mut *argument.cast::<&mut dyn FnMut(u64, u64) -> bool>() };
            if holds == 0 || each(offset, len as u64) { 0 } else { -libc::EINTR }
        }
        let (mut each, walk): (_, Walked) = (each, walked);
        let argument = (&raw mut each).cast();
        // Objects as a whole, those of the image from which it was cloned as well.
        // SAFETY: the image is open, and the argument outlives the call.
        let code =
            unsafe { (self.library.rbd_diff_iterate2)(self.handle.1, null(), offset, len, 1, 1, walk, argument) };
        if code < 0 && code != -libc::EINTR { Err(error_of(code)) } else { Ok(()) }
    }

    /// Starts an operation by calling `start`; when the operation has completed, librbd calls `completed` with `argument`.
    ///
    /// # Errors
    /// Minus the errno, if the operation could not be started; in this case `completed` is not called.
    fn start(
        &self,
        completed: Completed,
        argument: *mut c_void,
        start: impl FnOnce(&Library, ImagePtr, CompletionPtr) -> c_int,
    ) -> Result<(), c_int> {
        let mut completion = null_mut();
        // SAFETY: there is room for the result.
        let code = unsafe { (self.library.rbd_aio_create_completion)(argument, completed, &raw mut completion) };
        if code < 0 {
            return Err(code);
        }
        let code = start(self.library, self.handle.1, completion);
        if code < 0 {
            // SAFETY: made above, and the operation does not have it.
            unsafe { (self.library.rbd_aio_release)(completion) };
            return Err(code);
        }
        Ok(())
    }

    /// Starts a read of `len` bytes at `offset` into memory.
    ///
    /// # Safety
    /// Until `completed` is called, `into` must be valid for writes of `len` bytes, and `argument` valid for `completed`.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub(super) unsafe fn read(
        &self,
        offset: u64,
        (into, len): (*mut u8, usize),
        completed: Completed,
        argument: *mut c_void,
    ) -> Result<(), c_int> {
        self.start(completed, argument, |library, image, completion| {
            // SAFETY: the image is open, the completion new, and the caller vouches for the memory.
            unsafe { (library.rbd_aio_read)(image, offset, len, into.cast(), completion) }
        })
    }

    /// Starts a write of `len` bytes from memory at `offset`.
    ///
    /// # Safety
    /// Until `completed` is called, `from` must be valid for reads of `len` bytes, and `argument` valid for `completed`.
    pub(super) unsafe fn write(
        &self,
        offset: u64,
        (from, len): (*const u8, usize),
        completed: Completed,
        argument: *mut c_void,
    ) -> Result<(), c_int> {
        self.start(completed, argument, |library, image, completion| {
            // SAFETY: as above.
            unsafe { (library.rbd_aio_write)(image, offset, len, from.cast(), completion) }
        })
    }

    /// Starts a flush, which makes all earlier writes durable.
    pub(super) fn start_flush(&self, completed: Completed, argument: *mut c_void) -> Result<(), c_int> {
        self.start(completed, argument, |library, image, completion| {
            // SAFETY: the image is open and the completion new.
            unsafe { (library.rbd_aio_flush)(image, completion) }
        })
    }

    /// Starts a discard, which gives a range back to the cluster; the content of the range is undefined afterwards.
    pub(super) fn discard(
        &self,
        offset: u64,
        len: u64,
        completed: Completed,
        argument: *mut c_void,
    ) -> Result<(), c_int> {
        self.start(completed, argument, |library, image, completion| {
            // SAFETY: the image is open and the completion new.
            unsafe { (library.rbd_aio_discard)(image, offset, len, completion) }
        })
    }

    /// Starts the zeroing of a range: by holes if `holes`, otherwise by written zeros.
    pub(super) fn zero(
        &self,
        (offset, len): (u64, u64),
        holes: bool,
        completed: Completed,
        argument: *mut c_void,
    ) -> Result<(), c_int> {
        let flags = if holes { 0 } else { library::ZEROES_ALLOCATED };
        self.start(completed, argument, |library, image, completion| {
            // SAFETY: the image is open and the completion new.
            unsafe { (library.rbd_aio_write_zeroes)(image, offset, len as usize, completion, flags, 0) }
        })
    }

    /// The result of a completed operation; frees its completion. Called once, by the function that librbd calls at the end
    /// of the operation.
    ///
    /// # Safety
    /// `completion` must be the one with which librbd has called the function `completed`.
    pub(super) unsafe fn take_result(&self, completion: CompletionPtr) -> isize {
        // SAFETY: as the caller says.
        unsafe {
            let result = (self.library.rbd_aio_get_return_value)(completion);
            (self.library.rbd_aio_release)(completion);
            result
        }
    }

    /// The extents of a range (data and holes), in order and without gaps, at most `max`. `object_size` in bytes. Blocks.
    pub(super) fn extents(
        &self,
        (offset, len): (u64, u64),
        max: usize,
        object_size: u64,
    ) -> std::io::Result<Vec<Extent>> {
        let mut found = Extents::new(offset, offset + len, max);
        // Some versions tell wrongly about ranges that begin within an object (Ceph issue 53784).
        let begin = offset / object_size.max(1) * object_size.max(1);
        self.walk(begin, offset + len - begin, &mut |at, len| found.data(at, len))?;
        Ok(found.finish())
    }
}

/// Builds a list of extents without gaps from the extents that hold data.
pub(super) struct Extents {
    found: Vec<Extent>,
    at: u64,
    end: u64,
    max: usize,
}

impl Extents {
    /// A list for the range from `offset` to `end`, of which no extent is known yet; at most `max` extents are wanted.
    pub(super) fn new(offset: u64, end: u64, max: usize) -> Self {
        Self { found: Vec::new(), at: offset, end, max }
    }

    /// Adds `len` bytes of data at `offset`, with a hole before them if there is a gap; true if more extents are wanted.
    pub(super) fn data(&mut self, offset: u64, len: u64) -> bool {
        self.up_to(offset, true);
        self.up_to(offset.saturating_add(len), false);
        self.found.len() <= self.max
    }

    fn up_to(&mut self, end: u64, hole: bool) {
        let end = end.min(self.end);
        let Some(len) = end.checked_sub(self.at).filter(|&len| len > 0) else { return };
        self.at = end;
        match self.found.last_mut() {
            Some(last) if last.hole == hole => last.len += len,
            _ => self.found.push(Extent { len, hole }),
        }
    }

    /// Completes the list: the rest of the range is a hole.
    pub(super) fn finish(mut self) -> Vec<Extent> {
        if self.found.len() <= self.max {
            self.up_to(self.end, true);
        }
        self.found.truncate(self.max);
        self.found
    }
}

fn connect(library: &'static Library, access: &Access) -> Result<Cluster, String> {
    let (user, mut cluster) = (access.user.as_deref().map(text).transpose()?, null_mut());
    // SAFETY: there is room for the result, and the name ends with a zero byte or is null.
    let code = unsafe { (library.rados_create)(&raw mut cluster, or_null(user.as_ref())) };
    if code < 0 {
        return Err(format!("librados cannot be used: {}", error_of(code)));
    }
    let cluster = Cluster(library, cluster);
    let conf = access.conf.as_ref().map(|path| text(path.as_os_str().as_bytes())).transpose()?;
    // SAFETY: the cluster is not connected yet, and the path ends with a zero byte or is null.
    let code = unsafe { (library.rados_conf_read_file)(cluster.1, or_null(conf.as_ref())) };
    if code < 0 {
        let which = match &access.conf {
            Some(path) => format!("ceph_conf {}", path.display()),
            None => "the volume has no ceph_conf, and the system's ceph.conf".to_owned(),
        };
        return Err(format!("{which} cannot be read: {}", error_of(code)));
    }
    let set = |option: &CStr, value: &CStr| {
        // SAFETY: as above, with two strings.
        let code = unsafe { (library.rados_conf_set)(cluster.1, option.as_ptr(), value.as_ptr()) };
        if code < 0 {
            Err(format!("the Ceph option {} cannot be set: {}", option.to_string_lossy(), error_of(code)))
        } else {
            Ok(())
        }
    };
    set(c"client_mount_timeout", CONNECT_TIMEOUT_S)?;
    // Otherwise librbd begins operations on the worker that starts them, which waits there once the cluster has too many in
    // flight; so would clients of other volumes. Perhaps a later version has no such option.
    let _ = set(c"rbd_non_blocking_aio", c"true");
    if !access.cached {
        set(c"rbd_cache", c"false")?;
    }
    if let Some(keyring) = &access.keyring {
        set(c"keyring", &text(keyring.as_os_str().as_bytes())?)?;
    }
    // SAFETY: the cluster is configured and not connected yet.
    let code = unsafe { (library.rados_connect)(cluster.1) };
    if code < 0 {
        let user = access.user.as_deref().unwrap_or("admin");
        let advice = match -code {
            libc::ETIMEDOUT => "; no monitor has answered: look at mon_host in ceph.conf".to_owned(),
            libc::ENOENT | libc::EACCES | libc::EPERM | libc::EINVAL => {
                format!("; look at the keyring of client.{user}, and at mon_host in ceph.conf")
            }
            _ => String::new(),
        };
        return Err(format!("the cluster cannot be reached as client.{user}: {}{advice}", error_of(code)));
    }
    Ok(cluster)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(data: &[(u64, u64)], max: usize) -> Vec<(u64, bool)> {
        let mut found = Extents::new(100, 200, max);
        let all = data.iter().all(|&(at, len)| found.data(at, len));
        assert!(all || data.len() > max / 2, "more was wanted");
        found.finish().iter().map(|extent| (extent.len, extent.hole)).collect()
    }

    #[test]
    fn extents_have_no_gaps_and_neighbours_are_one() {
        assert_eq!(of(&[], 8), [(100, true)]);
        assert_eq!(of(&[(100, 100)], 8), [(100, false)]);
        assert_eq!(of(&[(110, 10), (120, 10), (150, 50)], 8), [(10, true), (20, false), (20, true), (50, false)]);
        // What the library tells may begin before the range.
        assert_eq!(of(&[(90, 20)], 8), [(10, false), (90, true)]);
        assert_eq!(of(&[(90, 5), (190, 20)], 8), [(90, true), (10, false)]);
    }

    #[test]
    fn no_more_extents_than_wanted() {
        assert_eq!(of(&[(110, 10), (130, 10), (150, 10)], 2), [(10, true), (10, false)]);
        assert_eq!(of(&[(110, 10), (130, 10)], 4), [(10, true), (10, false), (10, true), (10, false)]);
    }
}
