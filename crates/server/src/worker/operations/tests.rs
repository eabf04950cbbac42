use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use evenkeel_control::pool::{Config, Next, Pool, Scheduler};
use evenkeel_control::units::{Rates, Work};

use super::*;
use crate::backend::file::{File, Open};
use crate::backend::memory::Memory;
use crate::buffer::BufferPool;
use crate::volume::ZEROS_AT_ONCE;
use crate::worker::request::ConnKey;

const KEY: ConnKey = ConnKey { slot: 0, generation: 0 };

/// A table of operations with one write of 4 KiB to `volume` in flight, and the write's token.
fn one_inside(volume: &Arc<Volume>) -> (Operations, u32) {
    one_inside_with(volume, CommandFlags::NONE)
}

fn one_inside_with(volume: &Arc<Volume>, flags: CommandFlags) -> (Operations, u32) {
    let request = Request {
        command: Command::Write,
        flags,
        length: 4096,
        buffer: BufferPool::default().take(4096),
        ..Request::of(KEY, 0)
    };
    inside(volume, request, Volume::write_of(4096))
}

/// A table of operations with one request to `volume` in flight, charged as `work`, and the operation's token.
fn inside(volume: &Arc<Volume>, request: Request, work: Work) -> (Operations, u32) {
    let config = Config {
        scheduler: Scheduler::Mclock,
        admission: evenkeel_control::admission::Config::None,
        base_cost_bytes: 0,
        cost: Default::default(),
        limit: Rates::UNSET,
        limit_burst: Duration::ZERO,
        target: None,
        slots: None,
    };
    let mut pool = Pool::new(config, Instant::ZERO, 0);
    let tenant = pool.join(Instant::ZERO, Default::default());
    assert!(pool.submit(Instant::ZERO, tenant, work, Box::new(request)).is_ok());
    let Next::Run(request, ticket) = pool.dispatch(Instant::ZERO) else { panic!("nothing throttles it") };
    let mut operations = Operations::default();
    let token = operations.insert(Operation::new(0, volume, request, ticket, Instant::ZERO));
    (operations, token)
}

/// An operation holds its volume as long as it holds its buffer, so the number of references to the volume shows if the
/// operation was freed.
#[test]
fn requests_in_flight_outlive_a_panic() {
    let memory = Memory::new(1 << 20).unwrap();
    let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::Memory(memory), 1 << 20));

    let (mut operations, token) = one_inside(&volume);
    assert!(operations.remove(token).is_some(), "it comes back");
    drop(operations);
    assert_eq!(Arc::strong_count(&volume), 1, "nothing is left of what came back");

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let (_operations, _) = one_inside(&volume);
        resume_unwind(Box::new("a bug in the worker"));
    }));
    assert!(panicked.is_err());
    assert_eq!(Arc::strong_count(&volume), 2, "the device may still read the buffer, so it is not freed");
}

#[test]
fn each_operation_is_tried_again_after_a_pause_of_its_own() {
    let memory = Memory::new(1 << 20).unwrap();
    let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::Memory(memory), 1 << 20));
    let mut worker = crate::worker::tests::worker();
    let (operations, token) = one_inside(&volume);
    worker.operations = operations;
    let begun = clock::now();
    // One that is due, and ended meanwhile.
    worker.operations.again.push_back((begun, u32::MAX));
    worker.operation_done(token, IoResult::Code(-libc::EAGAIN));
    assert_eq!(worker.operations.next_try(), begun);
    assert!(worker.operations.again[1].0 >= begun + TRY_AGAIN_AFTER, "{:?}", worker.operations.again);
    worker.operations.again[1].0 = Instant::FAR_FUTURE;
    worker.try_again();
    assert_eq!(worker.operations.again, [(Instant::FAR_FUTURE, token)]);
    assert!(worker.operations.remove(token).is_some(), "it waits");
}

#[test]
fn want_of_means_is_tried_again_and_never_taken_for_lost_data() {
    let dir = std::env::temp_dir().join(format!("evenkeel-again-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let how = Open {
        create: Some(1 << 20),
        read_only: false,
        direct: true,
        block: false,
        patience: std::time::Duration::ZERO,
    };
    let (file, size) = File::open(&dir.join("volume.img"), &how).unwrap();
    let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::File(file), size));
    for code in [libc::EAGAIN, libc::EINTR, libc::ECANCELED] {
        let (mut operations, token) = one_inside_with(&volume, CommandFlags::FUA);
        let mut operation = operations.remove(token).unwrap();
        for _ in 0..MAX_TRIES {
            assert_eq!(operation.advance(&IoResult::Code(-code)), Verdict::TryAgain);
        }
        assert_eq!(operation.advance(&IoResult::Code(-code)), Verdict::Failed(Errno::Io), "not for ever");
        assert!(!volume.is_sync_failed(), "nothing was written, so nothing was lost");
    }
    let (mut operations, token) = one_inside_with(&volume, CommandFlags::FUA);
    let mut operation = operations.remove(token).unwrap();
    assert_eq!(operation.advance(&IoResult::Code(-libc::EIO)), Verdict::Failed(Errno::Io));
    assert!(volume.is_sync_failed(), "what the device says counts");
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn one_job_writes_no_more_zeros_than_were_charged_and_the_rest_goes_back_to_the_scheduler() {
    const LENGTH: u64 = 2 * ZEROS_AT_ONCE + 4096;
    let memory = Memory::new(1 << 20).unwrap();
    let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::Memory(memory), 1 << 20));
    let request = |zeroed| Request {
        command: Command::WriteZeroes,
        flags: CommandFlags::FUA,
        length: LENGTH,
        zeroed,
        ..Request::of(KEY, 0)
    };
    let operation = |zeroed, work| {
        let (mut operations, token) = inside(&volume, request(zeroed), work);
        operations.remove(token).unwrap()
    };
    let step = |operation: &mut Operation| {
        let FileIo::Zero { offset, len, may_write, .. } = operation.next_io() else { panic!("another operation") };
        (offset, len, may_write)
    };
    // Nothing is written unless it was charged.
    let mut first = operation(0, Work::new(Kind::Meta, 0));
    assert_eq!(step(&mut first), (0, LENGTH, false));
    assert_eq!(first.advance(&IoResult::Code(-libc::EOPNOTSUPP)), Verdict::Dearer);
    let mut zeroed = 0;
    for (bytes, verdict) in [(ZEROS_AT_ONCE, Verdict::Part), (ZEROS_AT_ONCE, Verdict::Part), (4096, Verdict::Continue)]
    {
        let mut next = operation(zeroed, request(zeroed).next_zeros());
        assert_eq!(step(&mut next), (u64::from(zeroed), bytes, true));
        assert_eq!(next.advance(&IoResult::Code(0)), verdict, "the sync comes behind the last step");
        zeroed += u32::try_from(bytes).unwrap();
    }
    assert_eq!(u64::from(zeroed), LENGTH);
}

/// The connection of the request is served by another worker, so that this one does not know its tenant otherwise.
#[test]
fn zeros_that_have_to_be_written_are_charged_to_the_tenant_that_asked_for_them() {
    let memory = Memory::new(1 << 20).unwrap();
    let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::Memory(memory), 1 << 20));
    let mut worker = crate::worker::tests::worker();
    let snapshot = Arc::clone(&worker.snapshot);
    let zeros = || Request { command: Command::WriteZeroes, length: 2 * ZEROS_AT_ONCE, ..Request::of(KEY, 0) };
    for (work, code, zeroed) in
        [(Work::new(Kind::Meta, 0), -libc::EOPNOTSUPP, 0), (zeros().next_zeros(), 0, ZEROS_AT_ONCE)]
    {
        let now = clock::now();
        let mut state = snapshot.pools[0].lock();
        let tenant = state.join(now, Default::default());
        assert!(state.submit(now, tenant, work, Box::new(zeros())).is_ok());
        let Next::Run(request, mut ticket) = state.dispatch(now) else { panic!("nothing throttles it") };
        // So that the next one fits the budget.
        state.exempt(&mut ticket);
        drop(state);
        let token = worker.operations.insert(Operation::new(0, &volume, request, ticket, now));
        worker.operation_done(token, IoResult::Code(code));
        let (of, next, request) = worker.pools[0].incoming.pop().expect("it goes back to the queue");
        assert_eq!((of, u64::from(request.zeroed)), (tenant, zeroed));
        assert_eq!((next.kind, u64::from(next.bytes)), (Kind::Write, ZEROS_AT_ONCE));
    }
}

#[test]
fn a_wait_for_other_requests_to_the_same_pages_is_no_time_of_the_device() {
    let memory = Memory::new(1 << 20).unwrap();
    let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::Memory(memory), 1 << 20));
    let mut worker = crate::worker::tests::worker();
    let (operations, token) = one_inside(&volume);
    worker.operations = operations;
    let begun = clock::now();
    worker.start(token);
    let operation = worker.operations.remove(token).expect("it is there");
    let ticket = &operation.ticket;
    assert!(ticket.in_flight_since() >= begun && ticket.admitted_at() == Instant::ZERO, "{ticket:?}");
}

#[test]
fn thousands_of_overdue_operations_are_given_up_in_batches_and_those_that_came_back_are_not() {
    const COUNT: usize = 2 * GIVEN_UP_AT_ONCE + 10;
    let memory = Memory::new(1 << 20).unwrap();
    let volume = Arc::new(Volume::new(0, "test", 0, false, Backend::Memory(memory), 1 << 20));
    let mut worker = crate::worker::tests::worker();
    let snapshot = Arc::clone(&worker.snapshot);
    let begun = clock::now();
    {
        let mut state = snapshot.pools[0].lock();
        let tenant = state.join(begun, Default::default());
        for _ in 0..COUNT {
            let request = Box::new(Request::of(KEY, 0));
            assert!(state.submit(begun, tenant, Volume::write_of(4096), request).is_ok());
            let Next::Run(request, mut ticket) = state.dispatch(begun) else { panic!("nothing throttles it") };
            // So that the next one fits the budget.
            state.exempt(&mut ticket);
            worker.operations.insert(Operation::new(0, &volume, request, ticket, begun));
        }
    }
    let now = begun + Duration::from_nanos(snapshot.pools[0].overdue_after_ns.load(Ordering::Relaxed));
    worker.report_overdue(now);
    // One has come back, and its token is that of a new one.
    let mut returned = worker.operations.remove(0).expect("it is there");
    returned.started = now;
    assert_eq!(worker.operations.insert(returned), 0);
    for given_up in [GIVEN_UP_AT_ONCE, 2 * GIVEN_UP_AT_ONCE, COUNT - 1] {
        assert!(worker.operations.has_lost());
        worker.give_up_overdue(now, Instant::ZERO);
        let entries = worker.operations.entries.iter().flatten();
        assert_eq!(entries.filter(|operation| operation.reported).count(), given_up);
    }
    assert!(!worker.operations.has_lost());
    worker.report_overdue(now);
    assert!(!worker.operations.has_lost(), "each is given up once");
    (0..COUNT as u32).for_each(|token| drop(worker.operations.remove(token)));
}

#[test]
fn a_read_with_many_zeros_may_be_one_of_a_hole_wherever_they_are() {
    assert!(!may_be_hole(&[], 7) && !may_be_hole(&[0; BLOCK - 1], 7));
    for blocks in [1, 2, 3, 16, 17, 100, 1_000] {
        let (data, hole) = (vec![0xa5; blocks * BLOCK + 512], vec![0; blocks * BLOCK + 512]);
        for chance in [0, 1, 7, usize::MAX] {
            assert!(!may_be_hole(&data, chance), "{blocks} blocks of data");
            assert!(may_be_hole(&hole, chance), "a hole of {blocks} blocks");
        }
    }
    // Data where looks at fixed places would find it; the rest is a hole.
    for blocks in [100, 1_000] {
        let mut read = vec![0; blocks * BLOCK];
        (0..LOOKS).for_each(|look| read[look * blocks / LOOKS * BLOCK] = 1);
        let found = (0..1_000).filter(|chance| may_be_hole(&read, *chance)).count();
        assert!(found > 800, "{found} of 1,000, {blocks} blocks");
    }
}

#[test]
fn blocks_of_data_that_are_zero_in_part_are_no_hole() {
    // A page with a header, with rows from its end on, or with rows in a sector of its middle.
    for filled in [0..24, BLOCK - 24..BLOCK, BLOCK / 2..BLOCK / 2 + 1_024] {
        let mut page = vec![0; BLOCK];
        page[filled.clone()].fill(0xa5);
        for blocks in [1, 2, 64] {
            assert!(!may_be_hole(&page.repeat(blocks), 7), "{filled:?} of each of {blocks} blocks");
        }
    }
    // One empty block of a page of 16 KiB, and a tenth of a large read.
    let mut page = vec![0xa5; 4 * BLOCK];
    page[BLOCK..2 * BLOCK].fill(0);
    assert!(!may_be_hole(&page, 7));
    let mut read = vec![0xa5; 100 * BLOCK];
    (0..10).for_each(|tenth| read[tenth * 10 * BLOCK..][..BLOCK].fill(0));
    let found = (0..1_000).filter(|chance| may_be_hole(&read, *chance)).count();
    assert!(found < 100, "{found} of 1,000");
}
