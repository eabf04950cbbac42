//! A program that takes the place of qemu-nbd for tests that start their server themselves. It parses qemu-nbd's options and
//! starts Evenkeel.
//!
//! A feature of qemu-nbd that Evenkeel does not have (formats, bitmaps, shared keys) is an error, so that no test passes by
//! accident.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use super::server::Setup;
use super::stand_in::{Options, wait};

/// Number of bytes that are compared at once with zeroes.
const PIECE: usize = 1 << 20;

/// The settings that a command line of qemu-nbd asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// True if the program is to end as soon as the server serves.
    fork: bool,
    unix: Option<PathBuf>,
    port: Option<u16>,
    /// File for the number of the process to be ended, written when the server serves.
    pid_file: Option<PathBuf>,
    image: PathBuf,
}

impl Wanted {
    fn read(words: &[String]) -> Result<Self> {
        let mut wanted = Self::default();
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            let (option, value) = match word.split_once('=') {
                Some((option, value)) if option.starts_with("--") => (option, Some(value)),
                _ => (word, None),
            };
            let mut value = || value.or_else(|| words.next()).with_context(|| format!("{option} without a value"));
            match option {
                // Verbose, and for more than one client: as it is in any case. A test without -t has one client alone.
                "-v" | "-t" => {}
                "--fork" => wanted.fork = true,
                "-k" => wanted.unix = Some(value()?.into()),
                "-p" => wanted.port = Some(value()?.parse()?),
                "-b" => ensure!(["localhost", "127.0.0.1"].contains(&value()?), "the lab serves on loopback alone"),
                "-f" => ensure!(value()? == "raw", "Evenkeel knows no formats of images"),
                // Any number of clients.
                "-e" => _ = value()?.parse::<u32>()?,
                "-x" => ensure!(value()?.is_empty(), "Evenkeel's exports have the names of volumes"),
                "--pid-file" => wanted.pid_file = Some(value()?.into()),
                _ if word.starts_with('-') => bail!("Evenkeel has no {word}"),
                _ if wanted.image.as_os_str().is_empty() => wanted.image = word.into(),
                _ => bail!("a second image: {word}"),
            }
        }
        ensure!(wanted.unix.is_some() || wanted.port.is_some(), "without an address");
        Ok(wanted)
    }
}

/// Starts a server as qemu-nbd's command line demands. Waits for its end, or with `--fork` until it serves.
pub(crate) fn run(options: &Options) -> Result<()> {
    let Options { binary, dir, kind, words } = options;
    let wanted = Wanted::read(words)?;
    let dir = dir.join(std::process::id().to_string());
    std::fs::create_dir_all(&dir)?;
    if wanted.fork {
        return in_background(wanted.pid_file, &dir);
    }
    let image = std::path::absolute(&wanted.image)?;
    let size = File::open(&image).and_then(|file| file.metadata());
    let size = size.with_context(|| format!("no file {}", image.display()))?.len();
    if kind.memory {
        ensure!(is_blank(&image)?, "memory has nothing of {}, which has data", image.display());
    }
    let setup = Setup {
        file: (!kind.memory).then_some(image),
        port: wanted.port,
        unix: wanted.unix.map(std::path::absolute).transpose()?,
        ..Setup::new(*kind, size)
    };
    // SAFETY: the handler is a function that may run at any moment.
    unsafe { libc::signal(libc::SIGTERM, end as *const () as libc::sighandler_t) };
    let server = setup.start(binary, &dir)?;
    if let Some(path) = wanted.pid_file {
        std::fs::write(path, format!("{}\n", std::process::id()))?;
    }
    wait(server)
}

/// Ends this program, and with it the server. The shell would report a program that a signal has ended.
extern "C" fn end(_signal: libc::c_int) {
    // SAFETY: _exit may be called in a signal handler.
    unsafe { libc::_exit(0) }
}

/// Starts this program anew without `--fork`, and waits until its server serves. It ends with the process group of the test.
fn in_background(pid_file: Option<PathBuf>, dir: &Path) -> Result<()> {
    let (log, own) = (dir.join("stand-in.log"), dir.join("pid"));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1).filter(|word| word != "--fork"));
    if pid_file.is_none() {
        command.arg("--pid-file").arg(&own);
    }
    let ready = pid_file.unwrap_or(own);
    let _ = std::fs::remove_file(&ready);
    let file = File::create(&log)?;
    let mut program = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    while !ready.exists() {
        if let Some(status) = program.try_wait()? {
            bail!("{status}: {}", std::fs::read_to_string(&log)?);
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// True if a file holds nothing but zeroes. Holes are not read: some tests have images of many gigabytes.
fn is_blank(path: &Path) -> Result<bool> {
    let mut file = File::open(path)?;
    let (mut piece, zeroes) = (vec![0; PIECE], vec![0; PIECE]);
    let mut at = 0;
    loop {
        // SAFETY: lseek has no memory effects, and the file is open.
        let data = unsafe { libc::lseek(file.as_raw_fd(), at, libc::SEEK_DATA) };
        if data < 0 {
            return Ok(true);
        }
        file.seek(SeekFrom::Start(data as u64))?;
        let count = file.read(&mut piece)?;
        if count == 0 || piece[..count] != zeroes[..count] {
            return Ok(count == 0);
        }
        at = data + count as i64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::scratch::Scratch;

    fn read(text: &str) -> Result<Wanted> {
        Wanted::read(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_of_qemu_nbd_are_read_and_others_refused() {
        let wanted = read("--pid-file=p -v -t -k s -f raw -e 42 -x  image").unwrap();
        assert_eq!((wanted.unix, wanted.pid_file, wanted.image), (Some("s".into()), Some("p".into()), "image".into()));
        let wanted = read("--fork -f raw image -b localhost -p 77").unwrap();
        assert_eq!((wanted.fork, wanted.port, wanted.unix), (true, Some(77), None));
        for refused in ["-k s -f qcow2 i", "-k s -r i", "-k s -B bitmap i", "-k s -x name i", "-k s i j", "-t i", "-k"]
        {
            assert!(read(refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn a_file_without_data_is_blank() {
        let scratch = Scratch::new("blank").unwrap();
        let path = scratch.path().join("image");
        let file = File::create(&path).unwrap();
        file.set_len(3 << 20).unwrap();
        assert!(is_blank(&path).unwrap());
        std::os::unix::fs::FileExt::write_at(&file, &[0; 9], 0).unwrap();
        assert!(is_blank(&path).unwrap());
        std::os::unix::fs::FileExt::write_at(&file, &[1], (3 << 20) - 1).unwrap();
        assert!(!is_blank(&path).unwrap());
    }
}
