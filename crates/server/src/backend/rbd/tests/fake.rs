//! A fake librbd with images in memory. Operations complete on threads of their own, when the test allows it.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::sync::{Condvar, LazyLock, Mutex};

use super::super::library::{
    Changed, ClusterPtr, Completed, CompletionPtr, FEATURE_EXCLUSIVE_LOCK, FEATURE_FAST_DIFF, ImageInfo, ImagePtr,
    Library, PoolPtr, Walked,
};

/// Size of an object of a fake image, in bytes.
pub(super) const OBJECT: u64 = 4096;

/// A fake image, with results and events that the test controls.
#[derive(Default)]
pub(super) struct Fake {
    pub(super) data: Mutex<Vec<u8>>,
    pub(super) size: AtomicU64,
    /// Result of flushes, set by the test: 0 or minus an errno. Likewise `start` for the start of operations, and `lock` for
    /// taking the lock.
    pub(super) flush: AtomicI32,
    pub(super) start: AtomicI32,
    pub(super) lock: AtomicI32,
    /// True while started operations do not complete.
    held: Mutex<bool>,
    released: Condvar,
    pub(super) closed: AtomicBool,
    watcher: Mutex<Option<(Changed, usize)>>,
}

static IMAGES: LazyLock<Mutex<HashMap<String, &'static Fake>>> = LazyLock::new(Mutex::default);

/// The options that clients of the fake library have set, of all clusters.
pub(super) static OPTIONS: LazyLock<Mutex<HashMap<String, String>>> = LazyLock::new(Mutex::default);

/// A caller's memory (address and length in bytes), passed to the thread of an operation.
struct Caller(*mut u8, usize);

// SAFETY: who starts an operation leaves its memory alone until the operation has ended.
unsafe impl Send for Caller {}

struct Completion {
    argument: usize,
    completed: Completed,
    result: isize,
}

impl Fake {
    /// Makes a fake image of this name and size in bytes, which the fake library can open.
    pub(super) fn new(name: &str, size: u64) -> &'static Self {
        let fake = Self { data: Mutex::new(vec![0xee; size as usize]), size: size.into(), ..Self::default() };
        let fake: &'static Self = Box::leak(Box::new(fake));
        IMAGES.lock().unwrap().insert(name.to_owned(), fake);
        fake
    }

    pub(super) fn hold(&self, held: bool) {
        *self.held.lock().unwrap() = held;
        self.released.notify_all();
    }

    /// Changes the image's size and calls the watcher, as librbd does after `rbd resize`.
    pub(super) fn resize(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
        let (changed, argument) = self.watcher.lock().unwrap().expect("somebody watches");
        changed(without_provenance_exposed(argument));
    }

    fn of(image: ImagePtr) -> &'static Self {
        // SAFETY: what `open` gave out, which is never freed.
        unsafe { &*image.cast::<Self>() }
    }

    fn operate(
        &'static self,
        completion: CompletionPtr,
        offset: u64,
        caller: Caller,
        work: impl FnOnce(&mut [u8], &Caller) -> isize + Send + 'static,
    ) -> c_int {
        let code = self.start.load(Ordering::SeqCst);
        if code < 0 {
            return code;
        }
        assert!(!self.closed.load(Ordering::SeqCst), "an operation on an image that is closed");
        let completion = completion.expose_provenance();
        std::thread::spawn(move || {
            let caller = caller;
            let held = self.held.lock().unwrap();
            drop(self.released.wait_while(held, |held| *held).unwrap());
            let result = {
                let mut data = self.data.lock().unwrap();
                // Cut off without a word, as librbd does.
                let end = (self.size.load(Ordering::SeqCst) as usize).min(data.len());
                let begin = (offset as usize).min(end);
                work(&mut data[begin..end], &caller)
            };
            let completion: CompletionPtr = without_provenance_exposed(completion);
            // SAFETY: made by `create_completion`, and nobody else uses it now.
            let (completed, argument) = unsafe {
                let inner = &mut *completion.cast::<Completion>();
                inner.result = result;
                (inner.completed, inner.argument)
            };
            completed(completion, without_provenance_exposed(argument));
        });
        0
    }
}

fn without_provenance_exposed<T>(address: usize) -> *mut T {
    std::ptr::with_exposed_provenance_mut(address)
}

/// The functions of the fake librbd and librados.
pub(super) fn library() -> &'static Library {
    static FAKE: Library = Library {
        rados_create,
        rados_conf_read_file,
        rados_conf_set,
        rados_connect: connect,
        rados_shutdown: nothing,
        rados_ioctx_create,
        rados_ioctx_set_namespace: set_namespace,
        rados_ioctx_destroy: nothing,
        rbd_open: open,
        rbd_open_read_only: open,
        rbd_close: close,
        rbd_stat: stat,
        rbd_get_features: features,
        rbd_get_flags: zero,
        rbd_get_overlap: zero,
        rbd_lock_acquire: acquire,
        rbd_lock_get_owners: owners,
        rbd_lock_get_owners_cleanup: owners_cleanup,
        rbd_update_watch: watch,
        rbd_update_unwatch: unwatch,
        rbd_flush: flush,
        rbd_diff_iterate2: walk,
        rbd_aio_create_completion: create_completion,
        rbd_aio_get_return_value: return_value,
        rbd_aio_release: release,
        rbd_aio_read: aio_read,
        rbd_aio_write: aio_write,
        rbd_aio_flush: aio_flush,
        rbd_aio_discard: aio_discard,
        rbd_aio_write_zeroes: aio_zeroes,
    };
    &FAKE
}

unsafe extern "C" fn rados_create(cluster: *mut ClusterPtr, _: *const c_char) -> c_int {
    // SAFETY: the caller has room for it.
    unsafe { *cluster = without_provenance_mut(1) };
    0
}

unsafe extern "C" fn rados_conf_read_file(_: ClusterPtr, _: *const c_char) -> c_int {
    0
}

unsafe extern "C" fn rados_conf_set(_: ClusterPtr, option: *const c_char, value: *const c_char) -> c_int {
    // SAFETY: the caller gives two strings.
    let [option, value] = unsafe { [option, value].map(|text| CStr::from_ptr(text).to_string_lossy().into_owned()) };
    OPTIONS.lock().unwrap().insert(option, value);
    0
}

unsafe extern "C" fn connect(_: ClusterPtr) -> c_int {
    0
}

unsafe extern "C" fn nothing(_: *mut c_void) {}

unsafe extern "C" fn rados_ioctx_create(_: ClusterPtr, _: *const c_char, pool: *mut PoolPtr) -> c_int {
    // SAFETY: the caller has room for it.
    unsafe { *pool = without_provenance_mut(1) };
    0
}

unsafe extern "C" fn set_namespace(_: PoolPtr, _: *const c_char) {}

unsafe extern "C" fn open(_: PoolPtr, name: *const c_char, image: *mut ImagePtr, _: *const c_char) -> c_int {
    // SAFETY: the caller gives a string and has room for the result.
    unsafe {
        let name = CStr::from_ptr(name).to_string_lossy().into_owned();
        let Some(&fake) = IMAGES.lock().unwrap().get(&name) else { return -libc::ENOENT };
        *image = (&raw const *fake).cast_mut().cast();
    }
    0
}

unsafe extern "C" fn close(image: ImagePtr) -> c_int {
    assert!(!Fake::of(image).closed.swap(true, Ordering::SeqCst), "closed twice");
    0
}

unsafe extern "C" fn stat(image: ImagePtr, info: *mut ImageInfo, len: usize) -> c_int {
    assert_eq!(len, size_of::<ImageInfo>());
    // SAFETY: the caller has room for it.
    let info = unsafe { &mut *info };
    info.size = Fake::of(image).size.load(Ordering::SeqCst);
    info.object_size = OBJECT;
    0
}

unsafe extern "C" fn features(_: ImagePtr, features: *mut u64) -> c_int {
    // SAFETY: the caller has room for it.
    unsafe { *features = FEATURE_EXCLUSIVE_LOCK | FEATURE_FAST_DIFF };
    0
}

unsafe extern "C" fn zero(_: ImagePtr, answer: *mut u64) -> c_int {
    // SAFETY: the caller has room for it.
    unsafe { *answer = 0 };
    0
}

unsafe extern "C" fn acquire(image: ImagePtr, _: c_int) -> c_int {
    Fake::of(image).lock.load(Ordering::SeqCst)
}

unsafe extern "C" fn owners(_: ImagePtr, _: *mut c_int, owners: *mut *mut c_char, count: *mut usize) -> c_int {
    // SAFETY: the caller has room for one and more.
    unsafe {
        *owners = c"192.0.2.7:0/1".as_ptr().cast_mut();
        *count = 1;
    }
    0
}

unsafe extern "C" fn owners_cleanup(_: *mut *mut c_char, count: usize) {
    assert_eq!(count, 1);
}

unsafe extern "C" fn watch(image: ImagePtr, handle: *mut u64, changed: Changed, argument: *mut c_void) -> c_int {
    *Fake::of(image).watcher.lock().unwrap() = Some((changed, argument.expose_provenance()));
    // SAFETY: the caller has room for it.
    unsafe { *handle = 5 };
    0
}

unsafe extern "C" fn unwatch(image: ImagePtr, handle: u64) -> c_int {
    assert_eq!(handle, 5);
    assert!(Fake::of(image).watcher.lock().unwrap().take().is_some());
    0
}

unsafe extern "C" fn flush(image: ImagePtr) -> c_int {
    Fake::of(image).flush.load(Ordering::SeqCst)
}

/// Fake of `rbd_diff_iterate2`: every second object holds data, beginning with the second one.
unsafe extern "C" fn walk(
    _: ImagePtr,
    from: *const c_char,
    offset: u64,
    len: u64,
    _: u8,
    whole: u8,
    each: Walked,
    argument: *mut c_void,
) -> c_int {
    assert!(
        from.is_null() && whole == 1 && offset.is_multiple_of(OBJECT),
        "as a whole, from the beginning of an object"
    );
    let data = (offset / OBJECT..(offset + len).div_ceil(OBJECT)).filter(|object| object % 2 == 1);
    data.map(|object| each(object * OBJECT, OBJECT as usize, 1, argument)).find(|&code| code < 0).unwrap_or(0)
}

unsafe extern "C" fn create_completion(
    argument: *mut c_void,
    completed: Completed,
    completion: *mut CompletionPtr,
) -> c_int {
    let inner = Completion { argument: argument.expose_provenance(), completed, result: 0 };
    // SAFETY: the caller has room for it.
    unsafe { *completion = Box::into_raw(Box::new(inner)).cast() };
    0
}

unsafe extern "C" fn return_value(completion: CompletionPtr) -> isize {
    // SAFETY: made above.
    unsafe { (*completion.cast::<Completion>()).result }
}

unsafe extern "C" fn release(completion: CompletionPtr) {
    // SAFETY: made above, and released once.
    drop(unsafe { Box::from_raw(completion.cast::<Completion>()) });
}

unsafe extern "C" fn aio_read(image: ImagePtr, at: u64, len: usize, into: *mut c_char, to: CompletionPtr) -> c_int {
    Fake::of(image).operate(to, at, Caller(into.cast(), len), |data, caller| {
        let len = caller.1.min(data.len());
        // SAFETY: the caller keeps it until the operation has ended.
        unsafe { caller.0.copy_from_nonoverlapping(data.as_ptr(), len) };
        len as isize
    })
}

unsafe extern "C" fn aio_write(image: ImagePtr, at: u64, len: usize, from: *const c_char, to: CompletionPtr) -> c_int {
    Fake::of(image).operate(to, at, Caller(from.cast_mut().cast(), len), |data, caller| {
        let len = caller.1.min(data.len());
        // SAFETY: as above.
        unsafe { data.as_mut_ptr().copy_from_nonoverlapping(caller.0, len) };
        0
    })
}

unsafe extern "C" fn aio_flush(image: ImagePtr, to: CompletionPtr) -> c_int {
    let fake = Fake::of(image);
    fake.operate(to, 0, Caller(null_mut(), 0), |_, _| fake.flush.load(Ordering::SeqCst) as isize)
}

unsafe extern "C" fn aio_discard(image: ImagePtr, at: u64, len: u64, to: CompletionPtr) -> c_int {
    Fake::of(image).operate(to, at, Caller(null_mut(), len as usize), zero_out)
}

unsafe extern "C" fn aio_zeroes(
    image: ImagePtr,
    at: u64,
    len: usize,
    to: CompletionPtr,
    flags: c_int,
    op_flags: c_int,
) -> c_int {
    assert!(matches!(flags, 0 | 1) && op_flags == 0);
    Fake::of(image).operate(to, at, Caller(null_mut(), len), zero_out)
}

fn zero_out(data: &mut [u8], caller: &Caller) -> isize {
    let len = caller.1.min(data.len());
    data[..len].fill(0);
    0
}
