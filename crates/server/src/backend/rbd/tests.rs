mod fake;

use std::time::Instant;

use super::*;
use fake::{Fake, OBJECT, OPTIONS};

const SIZE: u64 = 64 << 10;
/// Every errno of Linux.
const ERRNOS: std::ops::RangeInclusive<i32> = 1..=133;
const PATIENCE: StdDuration = StdDuration::from_secs(30);

fn open(name: &str, read_only: bool) -> Result<Rbd, Error> {
    let volume = config::Volume {
        backend: config::Backend::Rbd,
        rbd: Some(format!("pool/{name}").parse().unwrap()),
        ..config::Volume::default()
    };
    Rbd::open_with(fake::library(), "test", &volume, read_only).map(|(rbd, _)| rbd)
}

fn mailbox() -> Arc<Reports> {
    let mailbox = Arc::new(Reports::new().unwrap());
    mailbox.open();
    mailbox
}

/// Waits for the next report in this mailbox; returns its token and code.
fn hear(mailbox: &Reports) -> (u32, i32) {
    let (begun, mut mail) = (Instant::now(), Vec::new());
    while mail.is_empty() {
        assert!(begun.elapsed() < PATIENCE, "nothing is heard");
        std::thread::sleep(StdDuration::from_millis(1));
        mailbox.take(&mut mail);
    }
    assert_eq!(mail.len(), 1, "one at a time");
    match mail.pop() {
        Some(Report::Done(token, IoResult::Code(code))) => (token, code),
        _ => panic!("other mail"),
    }
}

fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(StdDuration::from_millis(1));
    }
}

fn read(into: &mut [u8], offset: u64) -> FileIo {
    FileIo::Read { ptr: into.as_mut_ptr(), len: into.len() as u32, offset }
}

fn write(from: &[u8], offset: u64) -> FileIo {
    FileIo::Write { ptr: from.as_ptr(), len: from.len() as u32, offset, durable: false }
}

#[test]
fn no_operation_is_carried_out_on_the_worker_that_starts_it() {
    Fake::new("dispatched", SIZE);
    let _rbd = open("dispatched", false).unwrap();
    assert_eq!(OPTIONS.lock().unwrap().get("rbd_non_blocking_aio").map(String::as_str), Some("true"));
}

#[test]
fn results_are_those_of_a_file() {
    let (size, short) = (1 << 30, 512);
    assert_eq!(code(Step::Read, 4096, size), 4096);
    assert_eq!(code(Step::Read, short, size), 512, "the worker goes on from there");
    assert_eq!(code(Step::Write { len: 4096, end: size }, 0, size), 4096);
    assert_eq!(code(Step::Range(0), 0, size), 0);
    assert_eq!(code(Step::Range(RANGE_STEP as i32), 0, size), 1 << 30);
    assert_eq!(code(Step::Flush, 0, size), 0);
    for step in [Step::Read, Step::Write { len: 1, end: 1 }, Step::Range(0), Step::Flush] {
        assert_eq!(code(step, -(libc::ESHUTDOWN as isize), size), -libc::ESHUTDOWN);
        assert_eq!(code(step, isize::MIN, size), -libc::EIO, "no errno");
        for errno in ERRNOS {
            assert_eq!(code(step, -(errno as isize), size), -errno);
        }
    }
}

#[test]
fn a_write_that_was_cut_off_is_no_success() {
    assert_eq!(code(Step::Write { len: 4096, end: 8192 }, 0, 8191), -libc::ENOSPC);
}

#[test]
fn what_is_written_zeroed_and_trimmed_is_read_back() {
    let fake = Fake::new("back", SIZE);
    let (rbd, mailbox) = (open("back", false).unwrap(), mailbox());
    let (data, mut back) = (vec![7; 4096], vec![0; 8192]);
    rbd.submit(write(&data, 4096), 1, &mailbox);
    assert_eq!(hear(&mailbox), (1, 4096));
    rbd.submit(FileIo::Zero { offset: 4196, len: 100, punch: true, may_write: false }, 2, &mailbox);
    assert_eq!(hear(&mailbox), (2, 0));
    rbd.submit(FileIo::Trim { offset: 8192, len: 4096 }, 3, &mailbox);
    assert_eq!(hear(&mailbox), (3, 0));
    rbd.submit(FileIo::Sync { turn: 0 }, 4, &mailbox);
    assert_eq!(hear(&mailbox), (4, 0));
    rbd.submit(read(&mut back, 4096), 5, &mailbox);
    assert_eq!(hear(&mailbox), (5, 8192));
    assert!(back[..100].iter().chain(&back[200..4096]).all(|&byte| byte == 7));
    assert!(back[100..200].iter().chain(&back[4096..]).all(|&byte| byte == 0));
    // Writing zeros is not fast.
    rbd.submit(FileIo::Zero { offset: 0, len: 1, punch: false, may_write: false }, 6, &mailbox);
    assert_eq!(hear(&mailbox), (6, -libc::EOPNOTSUPP));
    // An operation is answered before it is counted as ended.
    wait_for("nothing is under way", || rbd.state().in_flight_requests == 0);
    drop(rbd);
    wait_for("the image is closed", || fake.closed.load(Ordering::SeqCst));
}

#[test]
fn long_ranges_are_done_in_steps() {
    let fake = Fake::new("long", 0);
    fake.size.store(3 << 30, Ordering::SeqCst);
    let (rbd, mailbox) = (open("long", false).unwrap(), mailbox());
    rbd.submit(FileIo::Trim { offset: 0, len: (2 << 30) + 1 }, 1, &mailbox);
    assert_eq!(hear(&mailbox), (1, 1 << 30), "the worker asks for the rest");
    rbd.submit(FileIo::Trim { offset: 2 << 30, len: 1 }, 2, &mailbox);
    assert_eq!(hear(&mailbox), (2, 0), "all of it");
}

#[test]
fn a_resized_image_is_noticed_and_nothing_beyond_its_end_is_asked_for() {
    let fake = Fake::new("resized", SIZE);
    let (rbd, mailbox) = (open("resized", false).unwrap(), mailbox());
    let mut data = vec![1; 4096];
    fake.resize(2 * SIZE);
    wait_for("growth is noticed", || rbd.size() == 2 * SIZE);
    fake.resize(SIZE / 2);
    wait_for("shrinking is noticed", || rbd.size() == SIZE / 2);
    // Counted after the size has changed.
    wait_for("both are counted", || rbd.state().resizes_total == 2);
    let beyond = [
        (write(&data, SIZE / 2 - 1), -libc::ENOSPC),
        (FileIo::Zero { offset: SIZE / 2, len: 1, punch: true, may_write: true }, -libc::ENOSPC),
        (read(&mut data, SIZE), -libc::EINVAL),
        (FileIo::Trim { offset: u64::MAX, len: 1 }, -libc::EINVAL),
    ];
    for (io, expected) in beyond {
        rbd.submit(io, 1, &mailbox);
        assert_eq!(hear(&mailbox), (1, expected), "{io:?}");
    }
    rbd.submit(write(&data, SIZE / 2 - 4096), 2, &mailbox);
    assert_eq!(hear(&mailbox), (2, 4096), "up to the end");
    assert!(fake.data.lock().unwrap()[SIZE as usize / 2..].iter().all(|&byte| byte == 0xee));
}

#[test]
fn an_image_that_shrinks_under_a_write_fails_it() {
    let fake = Fake::new("shrinks", SIZE);
    let (rbd, mailbox) = (open("shrinks", false).unwrap(), mailbox());
    let data = vec![1; 4096];
    fake.hold(true);
    rbd.submit(write(&data, SIZE - 4096), 1, &mailbox);
    fake.resize(SIZE - 2048);
    wait_for("shrinking is noticed", || rbd.size() == SIZE - 2048);
    fake.hold(false);
    assert_eq!(hear(&mailbox), (1, -libc::ENOSPC));
}

#[test]
fn an_image_is_closed_when_nothing_is_under_way_any_more() {
    let fake = Fake::new("closing", SIZE);
    let (rbd, mailbox) = (open("closing", false).unwrap(), mailbox());
    let data = vec![1; 4096];
    fake.hold(true);
    rbd.submit(write(&data, 0), 1, &mailbox);
    assert_eq!(rbd.state().in_flight_requests, 1);
    std::thread::scope(|scope| {
        let closing = scope.spawn(|| rbd.close(PATIENCE));
        wait_for("nothing new is taken", || lock(&rbd.shared.image).is_none());
        rbd.submit(write(&data, 0), 2, &mailbox);
        assert_eq!(hear(&mailbox), (2, -libc::ESHUTDOWN));
        std::thread::sleep(2 * CLOSE_LOOK);
        assert!(!closing.is_finished() && !fake.closed.load(Ordering::SeqCst));
        fake.hold(false);
        assert_eq!(hear(&mailbox), (1, 4096));
        assert!(closing.join().unwrap());
    });
    assert!(fake.closed.load(Ordering::SeqCst));
    assert_eq!(rbd.state().in_flight_requests, 0);
    assert!(rbd.close(PATIENCE), "it is closed already");
}

#[test]
fn who_closes_an_image_waits_no_longer_than_allowed() {
    let fake = Fake::new("stuck", SIZE);
    let (rbd, mailbox) = (open("stuck", false).unwrap(), mailbox());
    fake.hold(true);
    let data = vec![1; 4096];
    rbd.submit(write(&data, 0), 1, &mailbox);
    assert!(!rbd.close(StdDuration::from_millis(20)));
    fake.hold(false);
    assert_eq!(hear(&mailbox), (1, 4096));
    assert!(rbd.close(PATIENCE));
}

#[test]
fn a_worker_that_has_ended_keeps_no_connection() {
    let fake = Fake::new("ended", SIZE);
    let (rbd, mailbox) = (open("ended", false).unwrap(), mailbox());
    let data = vec![1; 4096];
    fake.hold(true);
    rbd.submit(write(&data, 0), 1, &mailbox);
    assert!(mailbox.close_if_empty());
    fake.hold(false);
    wait_for("it has ended", || rbd.state().in_flight_requests == 0);
}

#[test]
fn a_flush_that_fails_is_remembered() {
    let fake = Fake::new("lost", SIZE);
    let (rbd, mailbox) = (open("lost", false).unwrap(), mailbox());
    assert_eq!(rbd.sync(), Ok(()));
    for errno in ERRNOS {
        let name = format!("lost-{errno}");
        Fake::new(&name, OBJECT).flush.store(-errno, Ordering::SeqCst);
        let rbd = open(&name, false).unwrap();
        rbd.submit(FileIo::Sync { turn: 0 }, 1, &mailbox);
        assert_eq!(hear(&mailbox), (1, -errno));
        assert!(rbd.is_lost(), "errno {errno}");
    }
    fake.flush.store(-libc::EIO, Ordering::SeqCst);
    rbd.submit(FileIo::Sync { turn: 0 }, 1, &mailbox);
    assert_eq!(hear(&mailbox), (1, -libc::EIO));
    assert!(rbd.is_lost() && rbd.loss().is_some());
    fake.flush.store(0, Ordering::SeqCst);
    assert!(rbd.sync().is_err(), "a later one says nothing about what was lost");
}

#[test]
fn what_cannot_be_started_is_answered() {
    let fake = Fake::new("refused", SIZE);
    let (rbd, mailbox) = (open("refused", false).unwrap(), mailbox());
    let mut data = vec![1; 512];
    for errno in ERRNOS {
        fake.start.store(-errno, Ordering::SeqCst);
        let zero = FileIo::Zero { offset: 0, len: 512, punch: true, may_write: true };
        for io in [read(&mut data, 0), write(&data, 0), zero, FileIo::Trim { offset: 0, len: 512 }] {
            rbd.submit(io, 1, &mailbox);
            assert_eq!(hear(&mailbox), (1, -errno), "{io:?}");
        }
    }
    wait_for("nothing is left of it", || rbd.state().in_flight_requests == 0);
}

#[test]
fn a_lock_that_is_refused_says_who_has_it() {
    let fake = Fake::new("locked", SIZE);
    fake.lock.store(-libc::EROFS, Ordering::SeqCst);
    let error = open("locked", false).err().unwrap().to_string();
    assert!(error.contains("pool/locked") && error.contains("locked by 192.0.2.7:0/1"), "{error}");
    assert!(fake.closed.load(Ordering::SeqCst), "nothing stays open");
    fake.closed.store(false, Ordering::SeqCst);
    assert!(open("locked", true).is_ok(), "a reader needs no lock");
    let error = open("absent", false).err().unwrap().to_string();
    assert!(error.contains("rbd ls"), "{error}");
}

#[test]
fn holes_are_those_of_the_objects() {
    Fake::new("holes", SIZE);
    let rbd = open("holes", false).unwrap();
    let IoResult::Extents(extents) = rbd.extents(OBJECT / 2, 2 * OBJECT, 8) else { panic!("extents") };
    let extents: Vec<_> = extents.iter().map(|extent| (extent.len, extent.hole)).collect();
    assert_eq!(extents, [(OBJECT / 2, true), (OBJECT, false), (OBJECT / 2, true)]);
    assert!(matches!(rbd.extents(SIZE, 1, 8), IoResult::Code(code) if code == -libc::EINVAL));
}
