//! An initiator that keeps one request outstanding, by iSCSI or by NBD. For iSCSI it loads libiscsi at run time.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::base::client::{Client, Command};
use crate::base::random::xorshift;
use crate::base::servers::EXPORT;

const LIBRARY: &CStr = c"libiscsi.so.7";
const SECTOR: usize = 512;
const NORMAL_SESSION: c_int = 2;
const NO_DIGEST: c_int = 0;
const CONNECT_LIMIT: Duration = Duration::from_secs(20);
/// Number of requests before the measured ones, by which connection and target warm up.
const WARM_UP: u32 = 8;

/// Arguments of `guest iscsi-load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Address and port of the target.
    #[arg(long)]
    portal: String,
    /// Name of the target.
    #[arg(long)]
    target: String,
    /// Own name.
    #[arg(long)]
    initiator: String,
    /// Number of the volume in the target.
    #[arg(long, default_value_t = 0)]
    lun: i32,
    /// Speaks NBD; names and volume number do not count then.
    #[arg(long)]
    nbd: bool,
    /// Writes instead of reading.
    #[arg(long)]
    write: bool,
    /// Bytes of a request.
    #[arg(long, default_value_t = 65536)]
    bytes: usize,
    /// Part of the volume that is used, from its start.
    #[arg(long, default_value_t = 16 << 20)]
    span: usize,
    /// Duration.
    #[arg(long)]
    seconds: f64,
    /// At most as many bytes a second.
    #[arg(long)]
    rate: Option<f64>,
    /// At random places.
    #[arg(long)]
    random: bool,
    /// Printed with the result.
    #[arg(long)]
    tag: String,
}

/// Signature of libiscsi's function `iscsi_read10_sync`.
type Read = unsafe extern "C" fn(*mut c_void, c_int, u32, u32, c_int, c_int, c_int, c_int, c_int, c_int) -> *mut c_int;
/// Signature of libiscsi's function `iscsi_write10_sync`.
type Write =
    unsafe extern "C" fn(*mut c_void, c_int, u32, *mut u8, u32, c_int, c_int, c_int, c_int, c_int, c_int) -> *mut c_int;

/// The functions of libiscsi that the initiator uses. Of a returned task only the first member is read, the status.
struct Library {
    create_context: unsafe extern "C" fn(*const c_char) -> *mut c_void,
    set_target: unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int,
    set_session: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    set_digest: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    connect: unsafe extern "C" fn(*mut c_void, *const c_char, c_int) -> c_int,
    logout: unsafe extern "C" fn(*mut c_void) -> c_int,
    error: unsafe extern "C" fn(*mut c_void) -> *const c_char,
    read: Read,
    write: Write,
    free_task: unsafe extern "C" fn(*mut c_int),
}

impl Library {
    fn open() -> Result<Self> {
        // SAFETY: the name is a C string; the library's initialisers are those of any program linked with it.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW) };
        let handle = NonNull::new(handle).context("libiscsi.so.7 is missing: install the package libiscsi7")?;
        // SAFETY: the types are those of the functions in iscsi.h and scsi-lowlevel.h of libiscsi 7.
        unsafe {
            Ok(Self {
                create_context: function(handle, c"iscsi_create_context")?,
                set_target: function(handle, c"iscsi_set_targetname")?,
                set_session: function(handle, c"iscsi_set_session_type")?,
                set_digest: function(handle, c"iscsi_set_header_digest")?,
                connect: function(handle, c"iscsi_full_connect_sync")?,
                logout: function(handle, c"iscsi_logout_sync")?,
                error: function(handle, c"iscsi_get_error")?,
                read: function(handle, c"iscsi_read10_sync")?,
                write: function(handle, c"iscsi_write10_sync")?,
                free_task: function(handle, c"scsi_free_scsi_task")?,
            })
        }
    }
}

/// The function `name` of an open library.
///
/// # Safety
/// `F` must be the type of a pointer to the function.
unsafe fn function<F>(library: NonNull<c_void>, name: &CStr) -> Result<F> {
    // SAFETY: the library is open and stays so.
    let found = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    let found = NonNull::new(found).with_context(|| format!("libiscsi has no {name:?}"))?;
    // SAFETY: the caller knows the type; pointers to functions and to data have the same size.
    Ok(unsafe { std::mem::transmute_copy::<NonNull<c_void>, F>(&found) })
}

/// A session with an iSCSI target, or a connection to an NBD export.
enum Session {
    Iscsi(Iscsi),
    Nbd(Client),
}

impl Session {
    fn connect(options: &Options) -> Result<Self> {
        if options.nbd {
            return Client::connect(&options.portal, EXPORT, CONNECT_LIMIT).map(Self::Nbd);
        }
        Iscsi::connect(options).map(Self::Iscsi)
    }

    fn request(&mut self, write: bool, at: usize, data: &mut [u8]) -> Result<()> {
        match self {
            Self::Iscsi(session) => session.request(write, at, data),
            Self::Nbd(client) if write => {
                client.send(Command::Write, false, at as u64, at as u64, u32::try_from(data.len())?, data)?;
                ensure!(client.receive()? == at as u64, "reply to a request that was not made");
                Ok(())
            }
            Self::Nbd(client) => client.read(at as u64, data),
        }
    }
}

/// A session with an iSCSI target.
struct Iscsi {
    library: Library,
    context: *mut c_void,
    lun: c_int,
}

impl Iscsi {
    fn connect(options: &Options) -> Result<Self> {
        let library = Library::open()?;
        let text = |t: &str| CString::new(t).context("a name with a zero byte");
        let (initiator, target, portal) = (text(&options.initiator)?, text(&options.target)?, text(&options.portal)?);
        // SAFETY: the strings outlive the calls, which copy them; the context is checked before use.
        let (context, connected) = unsafe {
            let context = (library.create_context)(initiator.as_ptr());
            ensure!(!context.is_null(), "libiscsi makes no context");
            (library.set_target)(context, target.as_ptr());
            (library.set_session)(context, NORMAL_SESSION);
            (library.set_digest)(context, NO_DIGEST);
            (context, (library.connect)(context, portal.as_ptr(), options.lun))
        };
        let session = Self { library, context, lun: options.lun };
        ensure!(connected == 0, "cannot connect to {}: {}", options.target, session.error());
        Ok(session)
    }

    fn error(&self) -> String {
        // SAFETY: the library returns a string that is valid until the next call.
        unsafe {
            let text = (self.library.error)(self.context);
            if text.is_null() { String::new() } else { CStr::from_ptr(text).to_string_lossy().into_owned() }
        }
    }

    fn request(&mut self, write: bool, at: usize, data: &mut [u8]) -> Result<()> {
        let (sector, length) = ((at / SECTOR) as u32, data.len() as u32);
        let block = SECTOR as c_int;
        // SAFETY: the context is connected; the buffer holds `length` bytes and outlives the synchronous call.
        let task = unsafe {
            match write {
                true => (self.library.write)(
                    self.context,
                    self.lun,
                    sector,
                    data.as_mut_ptr(),
                    length,
                    block,
                    0,
                    0,
                    0,
                    0,
                    0,
                ),
                false => (self.library.read)(self.context, self.lun, sector, length, block, 0, 0, 0, 0, 0),
            }
        };
        ensure!(!task.is_null(), "request failed: {}", self.error());
        // SAFETY: a task that was returned is ours until it is freed; its first member is the status.
        let status = unsafe {
            let status = *task;
            (self.library.free_task)(task);
            status
        };
        if status != 0 {
            bail!("request ended with status {status}: {}", self.error());
        }
        Ok(())
    }
}

impl Drop for Iscsi {
    fn drop(&mut self) {
        // SAFETY: the context is valid; the process ends soon, so that it is not freed.
        unsafe { (self.library.logout)(self.context) };
    }
}

/// Runs the load and prints `lab: load TAG mean_ms X mb_per_s Y requests N`.
pub(crate) fn run(options: &Options) -> Result<()> {
    // SAFETY: locks this program's pages, so that no page comes over from the host while time is measured.
    unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) };
    let mut session = Session::connect(options)?;
    let mut data = vec![0x5a; options.bytes];
    let places = (options.span / options.bytes).max(1);
    let mut place = 0usize;
    // Any sequence without a pattern will do.
    let mut random = 0x2545_f491_4f6c_dd1du64 ^ u64::from(std::process::id());
    let mut one = |session: &mut Session| -> Result<Duration> {
        place = if options.random { xorshift(&mut random) as usize % places } else { (place + 1) % places };
        let started = Instant::now();
        session.request(options.write, place * options.bytes, &mut data)?;
        Ok(started.elapsed())
    };
    for _ in 0..WARM_UP {
        one(&mut session)?;
    }
    let started = Instant::now();
    let limit = Duration::from_secs_f64(options.seconds);
    let gap = options.rate.map(|rate| Duration::from_secs_f64(options.bytes as f64 / rate));
    let (mut requests, mut busy) = (0u32, Duration::ZERO);
    let mut next = started;
    while started.elapsed() < limit {
        if let Some(gap) = gap {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            // What could not be sent in time is not made up for.
            next = (next + gap).max(Instant::now() - gap);
        }
        let took = one(&mut session)?;
        requests += 1;
        busy += took;
    }
    let elapsed = started.elapsed().as_secs_f64();
    let mean_ms = busy.as_secs_f64() * 1e3 / f64::from(requests.max(1));
    let rate = f64::from(requests) * options.bytes as f64 / 1e6 / elapsed;
    println!("lab: load {} mean_ms {mean_ms:.4} mb_per_s {rate:.3} requests {requests}", options.tag);
    Ok(())
}
