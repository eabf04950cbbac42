//! Tests that need the scheduler's private parts: the heap, the memory of the slab, the smallest and largest virtual times.

use alloc::vec::Vec;

use proptest::prelude::*;

use super::heap::Heap;
use super::slab::{Fifo, Request, Slab};
use super::*;

const WORK: Work = Work::new(Kind::Read, 4_096);

fn heap_does_what_a_scan_does<const WRAPPING: bool>(base: u64, steps: &[(u32, Option<u64>)]) {
    let mut heap = Heap::<WRAPPING>::new();
    let mut keys: Vec<Option<u64>> = Vec::new();
    for _ in 0..200 {
        heap.grow();
        keys.push(None);
    }
    for &(index, offset) in steps {
        let key = offset.map(|offset| base.wrapping_add(offset));
        keys[index as usize] = offset;
        match key {
            Some(key) => heap.set(index, key),
            None => heap.remove(index),
        }
        let least = keys.iter().flatten().min().map(|offset| base.wrapping_add(*offset));
        assert_eq!(heap.peek().map(|(key, _)| key), least);
        assert_eq!(heap.is_empty(), least.is_none());
        assert_eq!(heap.key_of(index), key);
    }
    let mut rest: Vec<u64> = keys.into_iter().flatten().collect();
    rest.sort_unstable();
    for offset in rest {
        let (key, index) = heap.peek().expect("not empty");
        assert_eq!(key, base.wrapping_add(offset));
        heap.remove(index);
        assert_eq!(heap.key_of(index), None);
    }
    assert!(heap.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn heaps_do_what_a_scan_does(
        base in prop_oneof![Just(0), Just(u64::MAX - 40), Just(1 << 63)],
        steps in prop::collection::vec(
            (0..200_u32, prop_oneof![1 => Just(None), 3 => (0..100_u64).prop_map(Some)]), 1..1_500),
    ) {
        heap_does_what_a_scan_does::<true>(base, &steps);
        heap_does_what_a_scan_does::<false>(0, &steps);
    }
}

fn request() -> Request {
    Request { queued_at: Instant::ZERO, work: WORK, cost: 1 }
}

fn fill_and_drain(slab: &mut Slab<u64>, count: u64) {
    let mut fifo = Fifo::EMPTY;
    for i in 0..count {
        assert_eq!(slab.push(&mut fifo, request(), i), Ok(()));
    }
    for i in 0..count {
        assert_eq!(slab.pop(&mut fifo), Some(i));
    }
    assert_eq!((slab.pop(&mut fifo), slab.len()), (None, 0));
}

#[test]
fn memory_follows_the_load_down() {
    let mut slab = Slab::new();
    fill_and_drain(&mut slab, 100_000);
    assert_eq!(slab.capacity(), 100_000);
    for _ in 0..50 {
        fill_and_drain(&mut slab, 90_000);
    }
    assert_eq!(slab.capacity(), 100_000, "a load that comes back finds its memory");
    for _ in 0..1_000 {
        fill_and_drain(&mut slab, 10);
    }
    assert!(slab.capacity() <= 256, "{}", slab.capacity());
}

#[test]
fn memory_does_not_grow_while_the_backlog_does_not() {
    let mut slab = Slab::new();
    let mut fifos = [Fifo::EMPTY; 4];
    for i in 0..10_000_u64 {
        let fifo = &mut fifos[(i * i % 4) as usize];
        assert_eq!(slab.push(fifo, request(), i), Ok(()));
        if i >= 20 {
            let fullest = fifos.iter_mut().max_by_key(|fifo| fifo.len()).expect("four");
            assert!(slab.pop(fullest).is_some());
        }
    }
    assert_eq!((slab.len(), slab.capacity()), (20, 21));
}

#[test]
fn a_payload_is_dropped_once() {
    let value = alloc::rc::Rc::new(());
    let mut queue = Queue::new(CostModel::default());
    let id = queue.join(Instant::ZERO, Qos::default());
    for _ in 0..10 {
        assert!(queue.push(Instant::ZERO, id, WORK, value.clone()).is_ok());
    }
    drop(queue.pull(Instant::ZERO, |_, _| true));
    assert_eq!(alloc::rc::Rc::strong_count(&value), 10);
    drop(queue.leave(id).into_iter().take(4));
    assert_eq!(alloc::rc::Rc::strong_count(&value), 1);
    let other = queue.join(Instant::ZERO, Qos::default());
    assert!(queue.push(Instant::ZERO, other, WORK, value.clone()).is_ok());
    drop(queue);
    assert_eq!(alloc::rc::Rc::strong_count(&value), 1);
}

/// Serves clients of weights 1, 2 and 3 from this virtual time on; returns the number of requests served of each client.
fn served_from(virtual_time: VirtualTime) -> [u32; 3] {
    let mut queue = Queue::new(CostModel::default());
    queue.virtual_time = [virtual_time; 2];
    let ids = [1, 2, 3].map(|weight| queue.join(Instant::ZERO, Qos { weight, ..Qos::default() }));
    let mut served = [0; 3];
    for id in ids {
        assert_eq!(queue.push(Instant::ZERO, id, WORK, ()), Ok(()));
        assert_eq!(queue.push(Instant::ZERO, id, WORK, ()), Ok(()));
    }
    for _ in 0..600 {
        let Pull::Ready { client, .. } = queue.pull(Instant::ZERO, |_, _| true) else { panic!("backlogged") };
        served[ids.iter().position(|&id| id == client).expect("one of three")] += 1;
        assert_eq!(queue.push(Instant::ZERO, client, WORK, ()), Ok(()));
    }
    assert!(queue.virtual_time[0] > virtual_time);
    served
}

#[test]
fn virtual_time_survives_years_of_load() {
    assert_eq!(served_from(0), [100, 200, 300]);
    // Across the ends of the heap's 64-bit keys, at several points of the way there, ...
    for before in [1_u128, 1 << 40, 1 << 43, 1 << 46] {
        assert_eq!(served_from((1 << 64) - before), [100, 200, 300]);
        assert_eq!(served_from((1 << 63) - before), [100, 200, 300]);
    }
    // ... and after a thousand years at 100 GB/s and weight 1.
    let thousand_years = (1_000 * 366 * 86_400 * 100_000_000_000_u128) << 28;
    assert_eq!(served_from(thousand_years), [100, 200, 300]);
}

#[test]
fn a_client_idle_for_a_whole_turn_of_the_keys_returns_at_the_present() {
    let mut queue = Queue::new(CostModel::default());
    let [idle, busy] = [(); 2].map(|()| queue.join(Instant::ZERO, Qos::default()));
    for behind in [1_u128 << 62, 1 << 63, (1 << 63) + 1, 1 << 64, 3 << 63] {
        queue.virtual_time[0] += behind;
        for _ in 0..5 {
            for id in [idle, busy] {
                assert_eq!(queue.push(Instant::ZERO, id, WORK, ()), Ok(()));
            }
        }
        let mut lead = 0_i32;
        while let Pull::Ready { client, .. } = queue.pull(Instant::ZERO, |_, _| true) {
            lead += if client == idle { 1 } else { -1 };
            assert!(lead.abs() <= 1);
        }
    }
}

#[test]
fn the_greatest_step_and_lead_stay_within_half_the_keys() {
    let mut queue = Queue::new(CostModel { base_bytes: u32::MAX, write_percent: 100 });
    let reservation = Rates { iops: 1_000_000, bytes_per_s: 0 };
    let qos = Qos { reservation, ..Qos::default() };
    let [reserved, other] = [qos, Qos::default()].map(|qos| queue.join(Instant::ZERO, qos));
    let mut now = Instant::ZERO;
    let mut last = 0;
    for i in 0..1_000 {
        for id in [reserved, other] {
            assert_eq!(queue.push(now, id, WORK, ()), Ok(()));
        }
        now += Duration::from_micros(if i % 2 == 0 { 0 } else { 10 });
        assert!(matches!(queue.pull(now, |_, _| true), Pull::Ready { .. }));
        let [a, b] = [reserved, other].map(|id| queue.clients[id.index as usize].weight_tag);
        assert!(a.abs_diff(b) < 1 << 62);
        assert!(queue.virtual_time[0] >= last, "virtual time runs forwards");
        last = queue.virtual_time[0];
    }
}

#[test]
fn the_last_generation_of_a_place_is_not_used_again() {
    let mut queue: Queue<()> = Queue::new(CostModel::default());
    let first = queue.join(Instant::ZERO, Qos::default());
    queue.clients[0].generation = u32::MAX;
    let last = ClientId { generation: u32::MAX, ..first };
    assert!(queue.leave(last).is_empty());
    assert_eq!(queue.join(Instant::ZERO, Qos::default()), ClientId { index: 1, generation: 0 });
}

#[test]
fn a_client_is_three_cache_lines() {
    assert_eq!(core::mem::size_of::<Client>(), 192);
    assert_eq!(core::mem::offset_of!(Client, fifo) / 64, 0);
}

/// A queue with one client, which has a limit of 10 writes per second and two writes queued, 1 and 2. Also its id and the time.
fn limited_writer() -> (Queue<i32>, ClientId, Instant) {
    let mut queue = Queue::new(CostModel::default());
    let now = Instant::from_nanos(1_000_000_000);
    let client = queue.join(now, Qos::default());
    queue.set_limit_of(now, client, Direction::Write, Rates { iops: 10, bytes_per_s: 0 });
    for name in [1, 2] {
        assert_eq!(queue.push(now, client, Work { kind: Kind::Write, ..WORK }, name), Ok(()));
    }
    (queue, client, now)
}

#[test]
fn the_first_limit_of_a_direction_and_the_end_of_the_last_copy_no_request_and_keep_the_order() {
    const KINDS: [Kind; 3] = [Kind::Read, Kind::Write, Kind::Meta];
    const MANY: u64 = 3_000;
    let mut queue: Queue<u64> = Queue::new(CostModel::default());
    let at = |n| Instant::from_nanos(1_000_000_000 + n);
    let clients = [(); 2].map(|()| queue.join(at(0), Qos::default()));
    for n in 0..MANY {
        let kind = KINDS[(n * n % 7 % 3) as usize];
        // Those of the other client lie in between.
        for client in clients {
            assert_eq!(queue.push(at(n), client, Work { kind, ..WORK }, n), Ok(()));
        }
    }
    let oldest_read = |queue: &Queue<u64>| {
        let client = &queue.clients[0];
        let fifo = client.lanes.as_ref().map_or(&client.fifo, |lanes| lanes.fifo(Direction::Read));
        queue.requests.front(fifo).map(|(_, payload)| core::ptr::from_ref(payload))
    };
    let before = oldest_read(&queue);
    assert!(before.is_some());
    for limit in [Rates { iops: 1_000_000_000, bytes_per_s: 0 }, Rates::UNSET] {
        queue.set_limit_of(at(MANY), clients[0], Direction::Write, limit);
        assert_eq!(queue.clients[0].lanes.is_some(), !limit.is_unset());
        assert_eq!((oldest_read(&queue), queue.client_len(clients[0])), (before, MANY as usize));
    }
    let mut served = Vec::new();
    while let Pull::Ready { client, payload, .. } = queue.pull(at(MANY), |_, _| true) {
        if client == clients[0] {
            served.push(payload);
        }
    }
    assert_eq!(served, (0..MANY).collect::<Vec<_>>());
}

#[test]
fn unwanted_requests_let_nothing_past_the_limit_of_a_direction() {
    let (mut queue, client, now) = limited_writer();
    let now = now + Duration::from_nanos(5);
    assert_eq!(queue.push(now, client, WORK, 3), Ok(()));
    let mut pull = |now, wanted: fn(&i32) -> bool| queue.pull_wanted(now, |_, _| true, wanted);
    assert!(matches!(pull(now, |_| true), Ok(Pull::Ready { payload: 1, .. })), "the limit lets one pass at once");
    assert!(matches!(pull(now, |&name| name != 3), Err(Some((_, 3)))), "the read is next, and its client is gone");
    let due = now + Duration::from_millis(100);
    assert!(matches!(pull(now, |_| true), Ok(Pull::Wait(until)) if until.since(due) <= Duration::from_nanos(1)));
    assert!(matches!(pull(due + Duration::from_nanos(1), |_| true), Ok(Pull::Ready { payload: 2, .. })));
}

#[test]
fn a_refused_client_is_asked_again_when_another_direction_may_be_next() {
    let (mut queue, client, now) = limited_writer();
    assert!(matches!(queue.pull(now, |_, _| true), Pull::Ready { payload: 1, .. }));
    assert_eq!(queue.push(now + Duration::from_nanos(5), client, WORK, 3), Ok(()));
    let later = now + Duration::from_millis(1);
    let Pull::Refused(until) = queue.pull(later, |_, work| work.kind == Kind::Write) else {
        panic!("the read is next")
    };
    // The older write then goes before it.
    assert!(matches!(queue.pull(until, |_, _| true), Pull::Ready { payload: 2, .. }), "at {until:?}");
    assert!(until <= now + Duration::from_nanos(100_000_001));
}

#[test]
fn a_request_is_free_from_when_its_limits_let_it_pass() {
    let (mut queue, client, now) = limited_writer();
    let free_at = |pull| match pull {
        Pull::Ready { payload, free_at, .. } => (payload, free_at),
        other => panic!("{other:?}"),
    };
    assert_eq!(free_at(queue.pull(now, |_, _| true)), (1, now), "the limit lets one pass at once");
    assert_eq!(queue.push(now, client, WORK, 3), Ok(()));
    let later = now + Duration::from_millis(250);
    assert_eq!(free_at(queue.pull(later, |_, _| true)), (3, now), "no limit on reads");
    // The write had to wait for a tenth of a second after the first, and then for others.
    let (name, free) = free_at(queue.pull(later, |_, _| true));
    let due = now + Duration::from_millis(100);
    assert!(name == 2 && free >= due && free.since(due) <= Duration::from_nanos(1), "{name} {free:?}");
}

#[test]
fn service_by_weight_is_never_beyond_a_limit_whatever_the_order_of_the_clocks() {
    let (mut queue, client, now) = limited_writer();
    assert!(matches!(queue.pull(now, |_, _| true), Pull::Ready { payload: 1, .. }));
    let due = now + Duration::from_nanos(100_000_001);
    assert!(matches!(queue.pull(due, |_, _| false), Pull::Refused(_)));
    // Whoever has read the clock earlier comes later.
    assert!(matches!(queue.pull(due - Duration::from_micros(5), |_, _| true), Pull::Ready { payload: 2, .. }));
    assert!(!queue.take_beyond_limit_of(client, Direction::Write));
}

/// Serves `count` requests and returns their numbers; a request with a negative number is put off at its first turn.
fn serve(queue: &mut Queue<i32>, now: Instant, count: usize) -> Vec<i32> {
    let mut served = Vec::new();
    while served.len() < count {
        match queue.pull_wanted(now, |_, _| true, |&name| if name < 0 { Wish::Later } else { Wish::Now }) {
            Ok(Pull::Ready { payload, .. }) => served.push(payload),
            Err(None) => {}
            other => panic!("{other:?} after {served:?}"),
        }
    }
    served
}

#[test]
fn what_is_put_off_comes_when_nothing_else_waits_but_for_a_64th() {
    let mut queue = Queue::new(CostModel::default());
    let now = Instant::from_nanos(1_000_000_000);
    let reservation = Rates { iops: 1_000, bytes_per_s: 0 };
    let [quiet, half_closed] = [Qos::default(), Qos { reservation, weight: 1_000, ..Qos::default() }];
    let [quiet, half_closed] = [quiet, half_closed].map(|qos| queue.join(now, qos));
    for name in 1..=8 {
        assert_eq!(queue.push(now, half_closed, WORK, -name), Ok(()));
    }
    for name in 1..=256 {
        assert_eq!(queue.push(now, quiet, WORK, name), Ok(()));
    }
    let served = serve(&mut queue, now, 258);
    let put_off: Vec<i32> = served.iter().copied().filter(|name| *name < 0).collect();
    assert!((3..=5).contains(&put_off.len()), "a 64th of the others: {put_off:?}");
    // Its own requests go first, too, again but for a 64th, and it keeps the order of what was put off.
    for name in 1..=128 {
        assert_eq!(queue.push(now, half_closed, WORK, name), Ok(()));
    }
    let rest = queue.len();
    let own = serve(&mut queue, now, rest);
    let all: Vec<i32> = served.into_iter().chain(own.clone()).filter(|name| *name < 0).collect();
    assert_eq!(all, [-1, -2, -3, -4, -5, -6, -7, -8]);
    let ahead = own.iter().rposition(|name| *name > 0).map(|last| own[..last].iter().filter(|name| **name < 0).count());
    assert!(ahead.is_some_and(|ahead| ahead <= 3), "{own:?}");
    assert!(queue.is_empty() && queue.client_len(half_closed) == 0);
}

#[test]
fn what_is_put_off_keeps_to_the_limits_of_its_client_and_leaves_with_it() {
    let mut queue = Queue::new(CostModel::default());
    let now = Instant::from_nanos(1_000_000_000);
    let limit = Rates { iops: 10, bytes_per_s: 0 };
    let client = queue.join(now, Qos { limit, ..Qos::default() });
    let write = Work { kind: Kind::Write, ..WORK };
    for name in [1, -1, -2, -3, 2] {
        assert_eq!(queue.push(now, client, write, name), Ok(()));
    }
    let wish = |&name: &i32| if name < 0 { Wish::Later } else { Wish::Now };
    let due = |n: u64| now + Duration::from_nanos(n * 100_000_001);
    assert_eq!(serve(&mut queue, now, 1), [1]);
    assert!(matches!(queue.pull_wanted(now, |_, _| true, wish), Ok(Pull::Wait(_))));
    assert_eq!(serve(&mut queue, due(1), 1), [2]);
    assert!(matches!(queue.pull_wanted(due(1), |_, _| true, wish), Ok(Pull::Wait(_))), "the limit goes for all");
    assert_eq!(serve(&mut queue, due(2), 1), [-1]);
    // A limit on writes goes for it, too. It was owed a 64th of the request before.
    queue.set_limit_of(due(2), client, Direction::Write, Rates { iops: 1, bytes_per_s: 0 });
    assert_eq!(queue.push(due(3), client, write, 3), Ok(()));
    assert_eq!(serve(&mut queue, due(3), 1), [-2]);
    assert!(matches!(queue.pull_wanted(due(4), |_, _| true, wish), Ok(Pull::Wait(_))));
    assert_eq!((queue.client_len(client), queue.client_len_of(client, Direction::Write)), (2, 1));
    assert_eq!(queue.leave(client), [3, -3]);
    assert!(queue.is_empty());
}
