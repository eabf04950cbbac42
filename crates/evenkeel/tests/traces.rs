//! Tests that files pass through `evenkeel trace`, `fit` and `replay`, or are refused with a reason: the files of the folder that
//! EVENKEEL_TRACES names, and a small file in each format in any case.

#[path = "serve/folder.rs"]
mod folder;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel_flight::{Head, Item, Name, Request, Table, Writer};
use folder::Folder;
use serde_json::Value;

/// A device for the replay of traces to which none can be fitted.
const DEVICE: &str = "kind = \"store\"\n";
/// Number of requests of the small files.
const REQUESTS: u64 = 50;

/// The results of the commands for a file: what they say, or the reason for which they refuse it.
#[derive(Debug)]
struct Passed {
    /// Number of requests that `trace info` counts.
    counted: Result<u64, String>,
    /// Number of requests after `trace convert` to a recording.
    converted: Result<u64, String>,
    fitted: Result<(), String>,
    /// Number of requests that `replay` has replayed.
    replayed: Result<u64, String>,
}

/// Runs the program with these words and files. Returns its standard output, or the reason that it gives for a refusal.
fn run(words: &[&str], files: &[&Path]) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let output = command.args(words).args(files).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("panicked"), "{words:?} {files:?}: {said}");
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout).unwrap());
    }
    assert_eq!(output.status.code(), Some(1), "{words:?} {files:?}: {said}");
    let lines = said.lines().filter(|line| !line.starts_with("evenkeel: warning: "));
    let reason = lines.collect::<Vec<_>>().join("\n");
    assert!(reason.split_whitespace().count() >= 5, "{words:?} {files:?} has no reason: {said:?}");
    Err(reason)
}

/// The number at a pointer into a text in JSON.
fn number(text: &str, pointer: &str) -> u64 {
    let document: Value = serde_json::from_str(text).unwrap();
    document.pointer(pointer).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {pointer} in {text}"))
}

/// Passes a file through the commands, which write into `scratch`.
fn pass(file: &Path, scratch: &Path) -> Passed {
    let paths = ["copy.rec", "fitted.toml", "usual.toml"].map(|name| scratch.join(name));
    let [copy, fitted, usual] = paths.each_ref().map(PathBuf::as_path);
    for left in [copy, fitted] {
        let _ = fs::remove_file(left);
    }
    fs::write(usual, DEVICE).unwrap();
    let count = |file: &Path| {
        let counted = run(&["trace", "info", "--json"], &[file]);
        counted.map(|text| number(&text, "/total/requests"))
    };
    let converted = run(&["trace", "convert", "-o"], &[copy, file]).and_then(|_| count(copy));
    let learnt = run(&["fit", "-o"], &[fitted, file]).map(drop);
    assert_eq!(learnt.is_ok(), fitted.exists(), "{}: {learnt:?}", file.display());
    let device = if learnt.is_ok() { fitted } else { usual };
    let replayed = run(&["replay", "--json", "--device"], &[device, file]).map(|text| number(&text, "/requests"));
    Passed { counted: count(file), converted, fitted: learnt, replayed }
}

/// Checks that the results for a file agree with each other. True if the file is a recording or a trace.
fn is_accepted(file: &Path, passed: &Passed) -> bool {
    let name = file.display();
    match &passed.counted {
        Ok(counted) => {
            assert_eq!(passed.converted.as_ref(), Ok(counted), "{name}");
            if let Ok(replayed) = &passed.replayed {
                assert!((1..=*counted).contains(replayed), "{name}: {replayed} of {counted} requests");
            }
            true
        }
        Err(reason) => {
            let is_refused = passed.converted.is_err() && passed.fitted.is_err() && passed.replayed.is_err();
            assert!(is_refused, "{name}: {reason}: {passed:?}");
            false
        }
    }
}

#[test]
fn every_trace_of_the_folder_passes_or_is_refused_with_a_reason() {
    let Some(folder) = std::env::var_os("EVENKEEL_TRACES").map(PathBuf::from) else {
        return skip::skip("EVENKEEL_TRACES names no folder");
    };
    let scratch = Folder::new();
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(|path| path.is_file()).collect();
    files.sort();
    let mut accepted = 0;
    for file in &files {
        let passed = pass(file, scratch.path());
        println!("{}: {passed:?}", file.display());
        accepted += u32::from(is_accepted(file, &passed));
    }
    assert!(accepted > 0, "{} has no trace in an accepted format", folder.display());
}

/// A recording of a server in memory, with latencies of 200 us.
fn recording() -> Vec<u8> {
    recorded(Vec::new(), REQUESTS)
}

/// Writes a recording of so many requests, one each millisecond, to `out`.
fn recorded<W: io::Write>(out: W, requests: u64) -> W {
    let head = Head { source: "serve".into(), ..Head::default() };
    let mut writer = Writer::new(out, &head).unwrap();
    for (table, name) in [(Table::Tenant, "database"), (Table::Client, "192.0.2.1"), (Table::Volume, "disk0")] {
        let name = Name { table, number: 0, name: name.into(), pool: "main".into(), bytes: 1 << 30 };
        writer.write(&Item::Name(name)).unwrap();
    }
    for n in 0..requests {
        let (arrival_ns, offset) = (n * 1_000_000, n * 37 % REQUESTS * 65_536);
        let request = Request { arrival_ns, device_ns: 200_000, offset, length: 4_096, ..Request::default() };
        writer.write(&Item::Request(request)).unwrap();
    }
    writer.finish().unwrap()
}

/// Runs the program with these words and files, which it has to accept. Returns the most memory that it had, in bytes.
fn peak(words: &[&str], files: &[&Path]) -> u64 {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    let mut child = command.args(words).args(files).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let mut status = 0;
    // SAFETY: an all-zero rusage is valid, and both pointers are to variables that outlive the call.
    let (pid, used) = unsafe {
        let mut used: libc::rusage = std::mem::zeroed();
        (libc::wait4(child.id() as i32, &mut status, 0, &mut used), used)
    };
    // The call above has reaped it.
    let _ = child.wait();
    assert!(pid > 0 && status == 0, "{words:?} {files:?}: status {status}");
    u64::try_from(used.ru_maxrss).unwrap() << 10
}

/// Memory does not grow with the number of requests: of what is read as a whole, and of what takes a part. The reader has 3 MB,
/// the statistics reorder 65,536 requests of some 80 bytes, whose memory may double while it grows, and a plot has 300 steps of
/// some 10 KiB for each row.
#[test]
fn two_million_requests_take_as_much_memory_as_twenty_thousand() {
    const SHORT: u64 = 20_000;
    const LONG: u64 = 2_000_000;
    const MORE_BYTES: u64 = 32 << 20;
    const { assert!(MORE_BYTES < LONG * size_of::<Request>() as u64 / 2) };
    let folder = Folder::new();
    let [short, long, out, device] = ["short.rec", "long.rec", "out", "device.toml"].map(|name| folder.join(name));
    fs::write(&device, DEVICE).unwrap();
    for (path, requests) in [(&short, SHORT), (&long, LONG)] {
        recorded(fs::File::create(path).unwrap(), requests).sync_all().unwrap();
    }
    let (bytes, most) = (fs::metadata(&long).unwrap().len(), 16 * LONG);
    assert!(bytes < most, "{bytes} bytes of at most {most}");
    assert_eq!(run(&["trace", "info", "--json"], &[&long]).map(|text| number(&text, "/total/requests")), Ok(LONG));
    let commands: [(&[&str], &[&Path]); 4] = [
        (&["trace", "info"], &[]),
        (&["trace", "plot", "-o"], &[&out]),
        (&["trace", "convert", "--from", "2s", "--for", "5s", "-o"], &[&out]),
        (&["replay", "--from", "2s", "--for", "5s", "--device"], &[&device]),
    ];
    for (words, files) in commands {
        let of = |recording: &Path| peak(words, &[files, &[recording]].concat());
        // Both include the most memory that this test program had before, which only grows: the short recording comes last.
        let many = of(&long);
        let few = of(&short);
        assert!(many <= few + MORE_BYTES, "{words:?}: {few} bytes of memory for {SHORT} requests, {many} for {LONG}");
    }
    let part = run(&["replay", "--json", "--from", "2s", "--for", "5s", "--device"], &[&device, &long]);
    assert_eq!(part.map(|text| number(&text, "/requests")), Ok(5_000));
}

/// The lines that `line` writes for the numbers of the requests, behind a head.
fn lines(head: &str, line: impl Fn(u64) -> String) -> Vec<u8> {
    let mut text = head.to_owned();
    (0..REQUESTS).for_each(|n| writeln!(text, "{}", line(n)).unwrap());
    text.into_bytes()
}

#[test]
fn a_file_of_each_format_passes() {
    let folder = Folder::new();
    // First sector of a request.
    let at = |n: u64| n * 37 % REQUESTS * 128;
    let msr = |n: u64| format!("{},web,0,Read,{},4096,703", 128_166_372_000_000_000 + n * 10_000, at(n) * 512);
    let spc = |n: u64| format!("0,{},4096,r,0.{n:03}", at(n));
    let mqsim = |n: u64| format!("{} 3 {} 8 1", n * 1_000_000, at(n));
    let fio = |n: u64| format!("{} /dev/a read {} 4096", n * 1_000, at(n) * 512);
    let blkparse = |n: u64| format!("8,16 1 {} 0.{:09} 4711 Q R {} + 8 [postgres]", n + 1, n * 1_000_000, at(n));
    for (name, content) in [
        ("serve.rec", recording()),
        ("msr.csv", lines("", msr)),
        ("umass.spc", lines("", spc)),
        ("mqsim.trace", lines("", mqsim)),
        ("fio.log", lines("fio version 3 iolog\n", fio)),
        ("blkparse.txt", lines("", blkparse)),
    ] {
        let file = folder.file(name, content);
        let passed = pass(&file, folder.path());
        assert!(is_accepted(&file, &passed), "{name}: {passed:?}");
        assert_eq!((&passed.counted, &passed.replayed), (&Ok(REQUESTS), &Ok(REQUESTS)), "{name}");
        let too_few = passed.fitted.unwrap_err();
        assert!(too_few.contains(name) && too_few.contains("too few"), "{too_few}");
    }
}

#[test]
fn a_file_without_a_known_format_is_refused_by_all() {
    let folder = Folder::new();
    let mut cut = recording();
    cut.truncate(5);
    let text = b"# Traces\n\nPublic data.\n".to_vec();
    for (name, content) in [("README.md", text), ("empty", Vec::new()), ("cut.rec", cut)] {
        let file = folder.file(name, content);
        let passed = pass(&file, folder.path());
        assert!(!is_accepted(&file, &passed), "{name}: {passed:?}");
        let reason = passed.counted.unwrap_err();
        assert!(reason.contains(name), "{reason}");
    }
}
