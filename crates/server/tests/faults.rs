//! Injects failures into every system call of the data path, and checks the tables of `docs/reference/failures.md`, row by
//! row.

use crate::{fake, support, tables};

use std::io;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags, Errno};
use evenkeel_policy::config::{Engine, Workers};
use evenkeel_server::faults::{Call, Fault, Faults, Injection};
use evenkeel_server::{Server, Start};
use fake::{Act, Fake, Shown};
use support::{Client, ENGINES, Scratch, Stop, TestServer, config, pattern};
use tables::table;

/// Bytes of each volume.
const SIZE: u64 = 1 << 20;
/// Bytes of a request: two pages, so that also the rest of a short transfer can go past the page cache.
const LENGTH: u64 = 8192;

/// The rows of a table of the page. Words with a slash between them stand for one row each.
fn rows<const COLUMNS: usize>(heading: &str) -> Vec<[&'static str; COLUMNS]> {
    let mut rows = table::<COLUMNS>(heading);
    for column in 0..COLUMNS {
        let each = |row: [&'static str; COLUMNS]| {
            alternatives(row[column]).into_iter().map(move |cell| {
                let mut row = row;
                row[column] = cell;
                row
            })
        };
        rows = rows.into_iter().flat_map(each).collect();
    }
    rows
}

fn alternatives(cell: &'static str) -> Vec<&'static str> {
    let Some(words) = cell.split(' ').find(|word| word.contains('/')) else { return vec![cell] };
    let quote = if words.starts_with('`') { "`" } else { "" };
    let with = |word: &str| &*cell.replacen(words, &format!("{quote}{word}{quote}"), 1).leak();
    words.trim_matches('`').split('/').map(with).collect()
}

/// The calls that fail according to a table's cell, each with the ways in which it fails.
fn calls(cell: &str) -> Vec<(Call, Vec<Fault>)> {
    cell.split(", then ")
        .map(|part| {
            let (call, faults) = part.trim_start_matches('`').split_once("` ").expect("a call in quotes");
            let call = match call {
                "read" => Call::Read,
                "write" => Call::Write,
                "fdatasync" => Call::Sync,
                "fallocate" => Call::Fallocate,
                "lseek" => Call::Seek,
                "clone" => Call::Clone,
                "malloc" => Call::Malloc,
                "io_uring_setup" => Call::Setup,
                "io_uring_enter" => Call::Enter,
                "accept4" => Call::Accept,
                "epoll_ctl" => Call::Watch,
                "epoll_pwait2" => Call::Wait,
                "eventfd" => Call::Wake,
                "readv" => Call::Receive,
                "sendmsg" => Call::Send,
                "connect" => Call::Connect,
                "madvise" => Call::Advise,
                other => panic!("which call is {other}?"),
            };
            (call, faults.split(' ').map(fault).collect())
        })
        .collect()
}

fn fault(name: &str) -> Fault {
    macro_rules! errno {
        ($($name:ident)*) => {
            match name {
                "short" => return Fault::Short,
                "late" => return Fault::Late(Duration::from_millis(500)),
                $(stringify!($name) => libc::$name,)*
                other => panic!("which errno is {other}?"),
            }
        };
    }
    Fault::Errno(errno!(
        EACCES EADDRNOTAVAIL EAGAIN EBADF EBADR EBUSY ECANCELED ECONNABORTED ECONNREFUSED ECONNRESET EDQUOT EFAULT
        EFBIG EHOSTUNREACH EILSEQ EINTR EINVAL EIO EMFILE ENETDOWN ENETUNREACH ENFILE ENOENT ENOBUFS ENODATA ENODEV ENOLINK ENOMEM ENOSPC ENOSYS ENXIO EOPNOTSUPP EPERM EPIPE
        EPROTO EREMOTEIO EROFS ESTALE ETIMEDOUT ETXTBSY
    ))
}

/// The result that a client sees according to a table's cell, and the least time after which it comes.
fn seen(cell: &str) -> (Result<(), Errno>, Duration) {
    let (what, after) = cell.split_once(" after ").unwrap_or((cell, "0 s"));
    let after = match after.split_once(' ').expect("a time") {
        (n, "s") => Duration::from_secs(n.parse().expect("seconds")),
        (n, "ms") => Duration::from_millis(n.parse().expect("milliseconds")),
        other => panic!("which time is {other:?}?"),
    };
    let what = match what {
        "done" => Ok(()),
        "EIO" => Err(Errno::Io),
        "ENOMEM" => Err(Errno::NoMem),
        "ENOSPC" => Err(Errno::NoSpace),
        "ENOTSUP" => Err(Errno::NotSupported),
        "EPERM" => Err(Errno::Perm),
        other => panic!("what is {other}?"),
    };
    (what, after)
}

fn times(cell: &str) -> u64 {
    match cell {
        "once" => 1,
        "always" => u64::MAX,
        other => panic!("how often is {other}?"),
    }
}

/// A server with two workers, and the table of failures to inject into its system calls.
fn start(name: &str, engine: Engine, text: &str) -> (TestServer, Faults) {
    let (scratch, faults) = (Scratch::new(name), Faults::table());
    let mut config = config(&scratch, engine, text);
    // One that is asked and one that accepts and passes on.
    config.server.workers = Workers::Count(2);
    (TestServer::with_start(scratch, config, Start { faults: faults.clone(), ..Start::default() }), faults)
}

fn volume(name: &str) -> String {
    format!("[volumes.{name}]\nsize = {SIZE}\n")
}

/// Number of open descriptors of this process for files in `folder`.
fn open_files(folder: &Path) -> usize {
    let links =
        std::fs::read_dir("/proc/self/fd").expect("a list").filter_map(|entry| entry.ok()?.path().read_link().ok());
    links.filter(|path| path.starts_with(folder)).count()
}

/// Offset in bytes of the tests' requests.
const OFFSET: u64 = 2 * LENGTH;

/// Sends the request that the table's first column names; returns the content of its range afterwards, if it has changed.
fn ask(client: &mut Client, request: &str) -> Result<Option<Vec<u8>>, Errno> {
    let (request, manner) = request.split_once(' ').unwrap_or((request, ""));
    let flags = match manner {
        "" => CommandFlags::NONE,
        "FUA" | "FUA, unaligned" => CommandFlags::FUA,
        "FAST_ZERO" => CommandFlags::FAST_ZERO,
        other => panic!("what is {other}?"),
    };
    // Shorter than any page, and across none.
    let (offset, length) = if manner.ends_with("unaligned") { (OFFSET, 500) } else { (OFFSET, LENGTH) };
    let command = match request {
        "READ" => {
            assert_eq!(client.read(offset, length)?, pattern(offset, 0, length as usize));
            return Ok(None);
        }
        "WRITE" => {
            let bytes = pattern(offset, 1, length as usize);
            client.write_with(flags, offset, &bytes)?;
            return Ok(Some(bytes));
        }
        "FLUSH" => return client.flush().map(|()| None),
        "BLOCK_STATUS" => Command::BlockStatus,
        "TRIM" => Command::Trim,
        "WRITE_ZEROES" => Command::WriteZeroes,
        other => panic!("which request is {other}?"),
    };
    let cookie = client.send(command, flags, offset, length, &[]);
    client.wait(cookie)?;
    Ok((command == Command::WriteZeroes).then(|| vec![0; length as usize]))
}

/// Checks one row of the page's first table, on a volume of its own.
fn judge(test: &TestServer, faults: &Faults, volume: &str, row: &[&str; 5]) {
    let [request, what, often, sees, afterwards] = row;
    let ((expected, after), (afterwards, _)) = (seen(sees), seen(afterwards));
    let calls = calls(what);
    let ((last, ways), before) = calls.split_last().expect("a call");
    let inject = |call, fault, times| faults.add(Injection { place: volume.into(), call, fault, skip: 0, times });
    for &way in ways {
        let context = format!("{request}: {what} ({way:?}), {:?}", test.config.server.engine);
        let mut client = test.connect(volume);
        if *last != Call::Clone {
            // Which would start a thread.
            client.write(OFFSET, &pattern(OFFSET, 0, LENGTH as usize)).unwrap();
        }
        before.iter().for_each(|(call, ways)| inject(*call, ways[0], u64::MAX));
        inject(*last, way, times(often));
        let begun = Instant::now();
        let answer = ask(&mut client, request);
        assert_eq!(answer.as_ref().map(drop), expected.as_ref().map(drop), "{context}");
        assert!(begun.elapsed() >= after, "{context}: after {:?}", begun.elapsed());
        assert!(faults.clear(volume) > 0, "{context}: it never happened");
        if let Ok(Some(content)) = answer {
            assert!(client.read(OFFSET, content.len() as u64).unwrap() == content, "{context}: the content");
        }
        let mut another = test.connect_tcp(volume);
        for client in [&mut client, &mut another, &mut test.connect(volume)] {
            for _ in 0..2 {
                assert_eq!(client.flush(), afterwards, "{context}: a flush");
            }
            assert_eq!(client.write_with(CommandFlags::FUA, 0, &[1; 4096]), afterwards, "{context}: a FUA write");
            client.write(0, &[2; 4096]).unwrap();
            assert_eq!(client.read(0, 4096).unwrap(), [2; 4096], "{context}");
        }
        let state = test.server.state();
        let shown = state.volumes.iter().find(|shown| shown.name == volume).expect("it is served");
        assert_eq!(shown.error.is_some(), afterwards.is_err(), "{context}: {:?}", shown.error);
        if afterwards.is_err() {
            // Opened anew it is a volume like any other; what was lost is said once more.
            drop((client, another));
            let warnings = test.server.remove_volume(volume).unwrap();
            assert_eq!(warnings.len(), 1, "{context}: {warnings:?}");
            test.server.create_volume(volume, test.config.volumes[volume].clone()).unwrap();
            assert_eq!(test.connect(volume).flush(), Ok(()), "{context}: opened anew");
        }
    }
}

/// Waits until the server has no connections, no queued or in-flight requests and no buffer memory in use.
fn wait_for_nothing_left(test: &TestServer) {
    test.wait_for("nothing left", |state| {
        let pool = &state.pools[0];
        let idle = pool.queued_requests + pool.admission.in_flight_requests + pool.admission.in_flight_bytes == 0;
        idle && state.connections == 0 && state.buffer_memory_used_bytes == 0
    });
}

#[test]
fn every_call_for_a_file_fails_as_the_page_says() {
    let rows = rows::<5>("Files and block devices");
    let volumes: Vec<String> = (0..rows.len()).map(|n| format!("row{n}")).collect();
    let text: String = volumes.iter().map(|name| volume(name)).collect::<String>() + &volume("other");
    for engine in ENGINES {
        let (test, faults) = start("faults-file", engine, &text);
        let files = open_files(test.scratch.path());
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopped = Stop(&stop);
            let neighbour = scope.spawn(|| test.connect_tcp("other").keep_asking(Command::Write, 4096, 4, &stop));
            let (slow, quick): (Vec<_>, Vec<_>) =
                volumes.iter().zip(&rows).partition(|(_, row)| seen(row[3]).1 > Duration::from_secs(1));
            let (test, faults) = (&test, &faults);
            let slow: Vec<_> =
                slow.into_iter().map(|(volume, row)| scope.spawn(move || judge(test, faults, volume, row))).collect();
            quick.into_iter().for_each(|(volume, row)| judge(test, faults, volume, row));
            slow.into_iter().for_each(|row| row.join().unwrap());
            drop(stopped);
            assert!(neighbour.join().unwrap() > 0, "{engine:?}: nobody else was served");
        });
        assert_eq!(test.connect("other").flush(), Ok(()));
        wait_for_nothing_left(&test);
        assert_eq!(open_files(test.scratch.path()), files, "{engine:?}: descriptors");
        test.server.shutdown().unwrap();
    }
}

/// Checks one row of the page's table of other back ends, on volume `far` of a remote server or `ram` in memory.
fn judge_elsewhere(test: &TestServer, faults: &Faults, row: &[&str; 5]) {
    let [request, what, often, sees, afterwards] = row;
    let ((expected, after), (afterwards, _)) = (seen(sees), seen(afterwards));
    let [(call, ways)] = &calls(what)[..] else { panic!("one call in {what}") };
    let volume = if *call == Call::Advise { "ram" } else { "far" };
    let inject = |call, fault, times| faults.add(Injection { place: volume.into(), call, fault, skip: 0, times });
    for &way in ways {
        let context = format!("{request}: {what} ({way:?}), {:?}", test.config.server.engine);
        let mut client = test.connect(volume);
        client.write(OFFSET, &pattern(OFFSET, 0, LENGTH as usize)).unwrap();
        if *request != "FLUSH" {
            client.flush().unwrap();
        }
        if matches!(call, Call::Connect | Call::Clone | Call::Watch) {
            // Another connection is made once this one is lost.
            inject(Call::Receive, Fault::Errno(libc::ECONNRESET), 1);
        }
        inject(*call, way, times(often));
        let begun = Instant::now();
        let answer = ask(&mut client, request);
        assert_eq!(answer.as_ref().map(drop), expected.as_ref().map(drop), "{context}");
        assert!(begun.elapsed() >= after, "{context}: after {:?}", begun.elapsed());
        assert!(faults.clear(volume) > 0, "{context}: it never happened");
        test.wait_for("a connection", |state| {
            state.volumes.iter().all(|volume| volume.remote.as_ref().is_none_or(|remote| remote.connected))
        });
        let content = match answer {
            Ok(None) if *request == "TRIM" => Some(vec![0; LENGTH as usize]),
            Ok(content) => content,
            Err(_) => None,
        };
        if let Some(content) = content {
            assert!(client.read(OFFSET, content.len() as u64).unwrap() == content, "{context}: the content");
        }
        for client in [&mut client, &mut test.connect(volume)] {
            for _ in 0..2 {
                assert_eq!(client.flush(), afterwards, "{context}: a flush");
            }
            assert_eq!(client.write_with(CommandFlags::FUA, 0, &[1; 4096]), afterwards, "{context}: a FUA write");
            client.write(0, &[2; 4096]).unwrap();
            assert_eq!(client.read(0, 4096).unwrap(), [2; 4096], "{context}");
        }
        let state = test.server.state();
        let shown = state.volumes.iter().find(|shown| shown.name == volume).expect("it is served");
        assert_eq!(shown.error.is_some(), afterwards.is_err(), "{context}: {:?}", shown.error);
        if afterwards.is_err() {
            drop(client);
            test.server.remove_volume(volume).unwrap();
            test.server.create_volume(volume, test.config.volumes[volume].clone()).unwrap();
            assert_eq!(test.connect(volume).flush(), Ok(()), "{context}: opened anew");
        }
    }
}

#[test]
fn every_call_for_other_back_ends_fails_as_the_page_says() {
    for engine in ENGINES {
        let folder = Scratch::new("faults-elsewhere-fake");
        let fake = Fake::start(folder.path(), Shown::default(), |_| Act::Serve);
        let ram = "[volumes.ram]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
        let text = fake.volume("reconnect_timeout = \"1s\"\n") + ram;
        let (test, faults) = start("faults-elsewhere", engine, &text);
        rows::<5>("Other back ends").iter().for_each(|row| judge_elsewhere(&test, &faults, row));
        wait_for_nothing_left(&test);
        test.server.shutdown().unwrap();
    }
}

#[test]
fn a_remote_server_that_cannot_be_reached_at_the_start_is_named() {
    let folder = Scratch::new("faults-unreached-fake");
    let fake = Fake::start(folder.path(), Shown::default(), |_| Act::Serve);
    let (scratch, faults) = (Scratch::new("faults-unreached"), Faults::table());
    let (call, fault) = (Call::Connect, Fault::Errno(libc::EHOSTUNREACH));
    faults.add(Injection { place: "far".into(), call, fault, skip: 0, times: 1 });
    let config = config(&scratch, Engine::Auto, &fake.volume(""));
    let start = || Start { faults: faults.clone(), ..Start::default() };
    let refused = Server::start(config.clone(), start()).err().expect("it is away").to_string();
    assert!(refused.contains("volume \"far\"") && refused.contains("No route to host"), "{refused}");
    let test = TestServer::with_start(scratch, config, start());
    assert_eq!(test.connect("far").flush(), Ok(()), "the next start finds it");
    test.server.shutdown().unwrap();
}

/// Sends a write, a flush and a read, one after the other; returns the first error, `Ok` if all succeed, or `None` if the
/// connection ends.
fn talk(client: &mut Client) -> Option<Result<(), Errno>> {
    let content = pattern(OFFSET, 1, LENGTH as usize);
    for (command, length, payload) in
        [(Command::Write, LENGTH, &content[..]), (Command::Flush, 0, &[]), (Command::Read, LENGTH, &[])]
    {
        let cookie = client.send(command, CommandFlags::NONE, if length > 0 { OFFSET } else { 0 }, length, payload);
        let answer = loop {
            match client.answers.done.remove(&cookie) {
                Some(answer) => break answer,
                None if client.receive() => {}
                None => return None,
            }
        };
        match answer {
            Err(errno) => return Some(Err(errno)),
            Ok(bytes) => assert!(command != Command::Read || bytes == content),
        }
    }
    Some(Ok(()))
}

#[test]
fn every_other_call_fails_as_the_page_says() {
    for engine in ENGINES {
        let (test, faults) = start("faults-other", engine, &(volume("disk0") + &volume("other")));
        let mut neighbour = test.connect_tcp("other");
        for [what, often, sees] in rows::<3>("Sockets, rings and memory") {
            let [(call, ways)] = &calls(what)[..] else { panic!("one call in {what}") };
            let of_ring = matches!(call, Call::Setup | Call::Enter);
            if of_ring && (engine == Engine::Epoll || times(often) > 1) {
                continue;
            }
            let (expected, after) = match sees {
                "closed" => (None, Duration::ZERO),
                answered => (Some(seen(answered).0), seen(answered).1),
            };
            for &way in ways {
                let context = format!("{what} ({way:?}), {engine:?}");
                let of_newcomer = matches!(call, Call::Accept | Call::Watch);
                let place = if matches!(call, Call::Receive | Call::Send) { "unix" } else { "" };
                let inject = || {
                    faults.add(Injection {
                        place: place.into(),
                        call: *call,
                        fault: way,
                        skip: 0,
                        times: times(often),
                    });
                };
                let begun = Instant::now();
                let answer = if of_newcomer {
                    inject();
                    let mut stream = test.raw_unix();
                    stream.set_read_timeout(Some(support::PATIENCE)).unwrap();
                    let greeted = io::Read::read(&mut stream, &mut [0; 1]).unwrap() > 0;
                    greeted.then_some(Ok(()))
                } else {
                    let mut client = test.connect("disk0");
                    inject();
                    talk(&mut client)
                };
                assert_eq!(answer, expected, "{context}");
                assert!(begun.elapsed() >= after, "{context}: after {:?}", begun.elapsed());
                assert!(faults.clear(place) > 0, "{context}: it never happened");
                assert_eq!(talk(&mut neighbour), Some(Ok(())), "{context}: the neighbour");
                assert_eq!(talk(&mut test.connect("disk0")), Some(Ok(())), "{context}: the next one");
                test.wait_for("only the neighbour left", |state| {
                    state.connections == 1 && state.buffer_memory_used_bytes == 0
                });
            }
        }
        drop(neighbour);
        wait_for_nothing_left(&test);
        test.server.shutdown().unwrap();
    }
}

#[test]
fn a_ring_that_takes_nothing_any_more_is_replaced_by_threads() {
    let [what, _, sees] = table::<3>("Sockets, rings and memory")
        .into_iter()
        .find(|[what, often, _]| what.starts_with("`io_uring_enter`") && *often == "always")
        .expect("a line");
    let ((call, ways), (expected, after)) = (&calls(what)[0], seen(sees));
    let (scratch, faults) = (Scratch::new("faults-enter"), Faults::table());
    let mut config = config(&scratch, Engine::IoUring, &volume("disk0"));
    // Each wait is a sleep.
    config.server.busy_poll = Default::default();
    let test = TestServer::with_start(scratch, config, Start { faults: faults.clone(), ..Start::default() });
    // Together they ask for more than goes to the kernel with one call, and than the submission queue holds.
    let mut clients = [test.connect("disk0"), test.connect("disk0"), test.connect("disk0")];
    clients.iter_mut().for_each(|client| assert_eq!(talk(client), Some(Ok(()))));
    let begun = Instant::now();
    faults.add(Injection { place: String::new(), call: *call, fault: ways[0], skip: 0, times: u64::MAX });
    let (call, fault) = (Call::Wait, Fault::Late(Duration::ZERO));
    faults.add(Injection { place: String::new(), call, fault, skip: 0, times: 1 });
    let content = pattern(0, 7, LENGTH as usize);
    let cookies: Vec<Vec<_>> = clients
        .iter_mut()
        .map(|client| {
            let write = |n: u64| client.send(Command::Write, CommandFlags::NONE, n % 100 * LENGTH, LENGTH, &content);
            (0..250).map(write).collect()
        })
        .collect();
    for (client, cookies) in clients.iter_mut().zip(cookies) {
        cookies.into_iter().for_each(|cookie| assert_eq!(client.wait(cookie).map(drop), expected));
    }
    let took = begun.elapsed();
    assert!(took >= after, "{took:?}");
    // Each of two workers sleeps 10 ms, or until a request comes.
    let waits = faults.met(Call::Wait);
    assert!(waits < 400 * took.as_millis() as u64 / 1000 + 2_000, "the workers spin: {waits} waits in {took:?}");
    assert!(faults.clear("") > 1);
    assert_eq!(clients[0].read(99 * LENGTH, LENGTH).unwrap(), content);
    clients.iter_mut().for_each(|client| assert_eq!(talk(client), Some(Ok(())), "by threads"));
    drop(clients);
    wait_for_nothing_left(&test);
    test.server.shutdown().unwrap();
}

#[test]
fn without_a_ring_threads_serve_or_the_start_is_refused() {
    let [what, often, sees] =
        table::<3>("Sockets, rings and memory").into_iter().find(|[what, ..]| what.contains("setup")).expect("a line");
    for &way in &calls(what)[0].1 {
        // At the first attempt, and at the second one, which is a worker's.
        for skip in [0, 1] {
            let (scratch, faults) = (Scratch::new("faults-setup"), Faults::table());
            faults.add(Injection { place: String::new(), call: Call::Setup, fault: way, skip, times: times(often) });
            let config = config(&scratch, Engine::Auto, &volume("disk0"));
            let start = || Start { faults: faults.clone(), ..Start::default() };
            if skip == 0 {
                let mut wanted = config.clone();
                wanted.server.engine = Engine::IoUring;
                let refused = Server::start(wanted, start()).err().expect("it is asked for by name").to_string();
                assert!(refused.contains("--engine"), "{refused}");
            }
            let test = TestServer::with_start(scratch, config, start());
            assert_eq!(talk(&mut test.connect("disk0")), Some(seen(sees).0), "{way:?}");
            assert_eq!(test.server.state().engine, if skip == 0 { "epoll" } else { "io_uring" });
            test.server.shutdown().unwrap();
        }
    }
}

#[test]
fn a_request_without_memory_fails_alone() {
    // Whole, and in slices.
    const LENGTHS: [u64; 2] = [LENGTH, 8 << 20];
    for engine in ENGINES {
        let (test, faults) = start("faults-malloc", engine, "[volumes.disk0]\nsize = \"16MiB\"\n");
        let mut client = test.connect("disk0");
        let content = pattern(0, 1, LENGTHS[1] as usize);
        client.write(0, &content).unwrap();
        for length in LENGTHS {
            for command in [Command::Read, Command::Write] {
                // The first slice, and one in the middle.
                for skip in if length == LENGTH { 0..1 } else { 0..2 } {
                    let context = format!("{engine:?}: {command:?} of {length}, after {skip}");
                    let fault = Fault::Errno(libc::ENOMEM);
                    faults.add(Injection { place: String::new(), call: Call::Malloc, fault, skip, times: 1 });
                    let payload = if command == Command::Write { &content[..length as usize] } else { &[] };
                    let cookie = client.send(command, CommandFlags::NONE, 0, length, payload);
                    assert_eq!(client.wait(cookie), Err(Errno::NoMem), "{context}");
                    assert_eq!(faults.clear(""), 1, "{context}");
                    assert!(client.read(0, LENGTHS[1]).unwrap() == content, "{context}");
                }
            }
        }
        assert_eq!(client.flush(), Ok(()));
        drop(client);
        wait_for_nothing_left(&test);
        test.server.shutdown().unwrap();
    }
}

#[test]
fn the_log_says_what_the_page_says() {
    let mut source = String::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else {
                source += &std::fs::read_to_string(path).unwrap();
            }
        }
    }
    for [says, ..] in table::<3>("What the server says, and what to do") {
        assert!(source.contains(says.trim_matches('`')), "nothing says {says}");
    }
}
