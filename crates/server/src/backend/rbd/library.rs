//! Loads librbd and librados when a volume first needs them, so that the server is built and runs without Ceph.
//!
//! Types and functions are those of `rados/librados.h` and `rbd/librbd.h` since Ceph 16.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

/// File names of the two libraries, for the dynamic linker.
const RADOS: &str = "librados.so.2";
const RBD: &str = "librbd.so.1";

/// A connection to a Ceph cluster, `rados_t`.
pub(super) type ClusterPtr = *mut c_void;
/// An open pool of a cluster, `rados_ioctx_t`.
pub(super) type PoolPtr = *mut c_void;
/// An open image, `rbd_image_t`.
pub(super) type ImagePtr = *mut c_void;
/// The completion of an operation, `rbd_completion_t`.
pub(super) type CompletionPtr = *mut c_void;
/// Function that librbd calls when an operation completes, with the completion and the caller's argument.
pub(super) type Completed = extern "C" fn(CompletionPtr, *mut c_void);
/// Function that librbd calls when an image has changed, with the caller's argument.
pub(super) type Changed = extern "C" fn(*mut c_void);
/// Function that librbd calls for each extent, with offset, length, 1 for data or 0 for a hole, and the caller's argument. A
/// negative result ends the iteration.
pub(super) type Walked = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// Facts about an image, laid out as `rbd_image_info_t`.
#[repr(C)]
pub(super) struct ImageInfo {
    pub(super) size: u64,
    pub(super) object_size: u64,
    objects: u64,
    order: c_int,
    block_name_prefix: [c_char; 24],
    parent_pool: i64,
    parent_name: [c_char; 96],
}

impl ImageInfo {
    pub(super) const fn new() -> Self {
        let (block_name_prefix, parent_name) = ([0; 24], [0; 96]);
        Self { size: 0, object_size: 0, objects: 0, order: 0, block_name_prefix, parent_pool: 0, parent_name }
    }
}

/// Feature bit of an image: one client can lock the image.
pub(super) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// Feature bit of an image: the image has a map of the objects that exist.
pub(super) const FEATURE_FAST_DIFF: u64 = 1 << 4;
/// Flag of an image: its map of objects (fast-diff) is invalid.
pub(super) const FLAG_FAST_DIFF_INVALID: u64 = 1 << 1;
/// Mode of a lock: exclusive (`RBD_LOCK_MODE_EXCLUSIVE`).
pub(super) const LOCK_EXCLUSIVE: c_int = 0;
/// Flag for zeroing: write zeros instead of making holes (`RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`).
pub(super) const ZEROES_ALLOCATED: c_int = 1;

macro_rules! library {
    ($($from:ident $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of librados and librbd that the server uses, under their own names.
        pub(super) struct Library {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Library {
            fn find(files: &Files) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: the type is that of the function in the header, which did not change since Ceph 16.
                    $($name: unsafe { find(&files.$from, stringify!($name))? },)*
                })
            }
        }
    };
}

library! {
    rados rados_create(*mut ClusterPtr, *const c_char) -> c_int;
    rados rados_conf_read_file(ClusterPtr, *const c_char) -> c_int;
    rados rados_conf_set(ClusterPtr, *const c_char, *const c_char) -> c_int;
    rados rados_connect(ClusterPtr) -> c_int;
    rados rados_shutdown(ClusterPtr);
    rados rados_ioctx_create(ClusterPtr, *const c_char, *mut PoolPtr) -> c_int;
    rados rados_ioctx_set_namespace(PoolPtr, *const c_char);
    rados rados_ioctx_destroy(PoolPtr);
    rbd rbd_open(PoolPtr, *const c_char, *mut ImagePtr, *const c_char) -> c_int;
    rbd rbd_open_read_only(PoolPtr, *const c_char, *mut ImagePtr, *const c_char) -> c_int;
    rbd rbd_close(ImagePtr) -> c_int;
    rbd rbd_stat(ImagePtr, *mut ImageInfo, usize) -> c_int;
    rbd rbd_get_features(ImagePtr, *mut u64) -> c_int;
    rbd rbd_get_flags(ImagePtr, *mut u64) -> c_int;
    rbd rbd_get_overlap(ImagePtr, *mut u64) -> c_int;
    rbd rbd_lock_acquire(ImagePtr, c_int) -> c_int;
    rbd rbd_lock_get_owners(ImagePtr, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    rbd rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    rbd rbd_update_watch(ImagePtr, *mut u64, Changed, *mut c_void) -> c_int;
    rbd rbd_update_unwatch(ImagePtr, u64) -> c_int;
    rbd rbd_flush(ImagePtr) -> c_int;
    rbd rbd_diff_iterate2(ImagePtr, *const c_char, u64, u64, u8, u8, Walked, *mut c_void) -> c_int;
    rbd rbd_aio_create_completion(*mut c_void, Completed, *mut CompletionPtr) -> c_int;
    rbd rbd_aio_get_return_value(CompletionPtr) -> isize;
    rbd rbd_aio_release(CompletionPtr);
    rbd rbd_aio_read(ImagePtr, u64, usize, *mut c_char, CompletionPtr) -> c_int;
    rbd rbd_aio_write(ImagePtr, u64, usize, *const c_char, CompletionPtr) -> c_int;
    rbd rbd_aio_flush(ImagePtr, CompletionPtr) -> c_int;
    rbd rbd_aio_discard(ImagePtr, u64, u64, CompletionPtr) -> c_int;
    rbd rbd_aio_write_zeroes(ImagePtr, u64, usize, CompletionPtr, c_int, c_int) -> c_int;
}

struct Files {
    rados: libloading::Library,
    rbd: libloading::Library,
}

static FOUND: OnceLock<Library> = OnceLock::new();

/// Ends the process at once, with the exit status `status`, if the Ceph libraries are loaded; otherwise returns. A normal end
/// of the process would destroy objects that the libraries' threads use: if an image waited for its cluster or was just being
/// closed, the process would abort instead.
pub fn leave(status: u8) {
    if FOUND.get().is_some() {
        let _ = std::io::Write::flush(&mut std::io::stdout());
        // SAFETY: it does not return.
        unsafe { libc::_exit(status.into()) }
    }
}

impl Library {
    /// The Ceph libraries of this system, which are loaded once. If they are missing, the next call searches again.
    ///
    /// # Errors
    /// A message that names the missing library and the package to install.
    pub(super) fn of_system() -> Result<&'static Self, String> {
        if let Some(found) = FOUND.get() {
            return Ok(found);
        }
        let library = Self::load(RADOS, RBD)?;
        Ok(FOUND.get_or_init(|| library))
    }

    /// Loads the libraries from these files. The libraries are never unloaded, because their threads may run as long as the
    /// process.
    pub(super) fn load(rados: &str, rbd: &str) -> Result<Self, String> {
        let files = Files { rados: open(rados)?, rbd: open(rbd)? };
        let library = Self::find(&files)?;
        std::mem::forget(files);
        Ok(library)
    }
}

fn open(file: &str) -> Result<libloading::Library, String> {
    // SAFETY: the initialisers of these libraries only set up what is theirs.
    unsafe { libloading::Library::new(file) }.map_err(|error| {
        // What the linker says is behind it.
        let why = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        format!(
            "{file} cannot be loaded ({why}). Install librbd1, which brings librados2 (the names of both packages on \
             Debian, Ubuntu, Fedora, RHEL and SUSE); without them only volumes with backend = \"rbd\" cannot be served"
        )
    })
}

/// # Safety
/// `F` must be the type of the function `name`.
unsafe fn find<F: Copy>(file: &libloading::Library, name: &str) -> Result<F, String> {
    // SAFETY: as the caller says; the library is never unloaded once all were found, and nothing is called before.
    let symbol = unsafe { file.get::<F>(name) };
    symbol.map(|symbol| *symbol).map_err(|_| {
        format!("the Ceph libraries of this system have no {name}: they are older than Ceph 16. Install newer librbd1 and librados2")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_not_there_is_named_with_its_package() {
        let error = Library::load("/nowhere/librados.so.2", RBD).err().unwrap();
        assert!(error.contains("/nowhere/librados.so.2") && error.contains("Install librbd1"), "{error}");
        assert!(error.contains("No such file") && error.contains("backend = \"rbd\""), "{error}");
    }

    #[test]
    fn a_function_that_is_not_there_is_named() {
        // Any library does that is not Ceph's.
        let error = Library::load("libc.so.6", "libc.so.6").err().unwrap();
        assert!(error.contains("no rados_create") && error.contains("Ceph 16"), "{error}");
    }

    #[test]
    fn what_describes_an_image_is_laid_out_as_in_the_header() {
        assert_eq!(size_of::<ImageInfo>(), 8 * 3 + 4 + 24 + 4 + 8 + 96);
    }
}
