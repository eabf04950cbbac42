//! The model of a solid-state drive: its equations, and laws that hold for any requests.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;
use evenkeel_model::jitter::Jitter;
use evenkeel_model::ssd::{Geometry, Ssd, SsdParams};
use proptest::prelude::*;

use laws::{drain, event};

use crate::laws;

fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

fn at_us(n: u64) -> Instant {
    Instant::ZERO + us(n)
}

/// A drive with two channels of two dies each: pages 0 and 2 (and 4, 6, …) share a channel, pages 0 and 4 a die. Nothing is
/// random.
///
/// The controller takes 10 µs for a command, the firmware 20 µs for a read and 30 µs for others; 4 KiB take 4.096 µs on the link
/// and 8.192 µs on a channel; a page is read in 100 µs, a unit of 16 KiB programmed in 1,000 µs, a block of 1 MiB erased in
/// 5,000 µs.
fn exact() -> SsdParams {
    SsdParams {
        geometry: Geometry {
            channels: 2,
            dies: 4,
            page_bytes: 16 << 10,
            program_bytes: 16 << 10,
            block_bytes: 1 << 20,
            capacity_bytes: 1 << 30,
            spare_percent: 10.0,
            used: 0.0,
            aged: false,
        },
        queue_depth: 64,
        command_time: us(10),
        read_latency: us(20),
        write_latency: us(30),
        link_bandwidth_bytes_per_s: 1_000_000_000,
        link_command_time: Duration::ZERO,
        link_duplex: false,
        channel_bandwidth_bytes_per_s: 500_000_000,
        page_read_time: us(100),
        program_time: us(1_000),
        erase_time: us(5_000),
        suspend_latency: Duration::ZERO,
        buffer_bytes: 64 << 10,
        buffer_volatile: true,
        slc_bytes: 0,
        slc_program_time: us(200),
        slc_idle: us(1_000),
        jitter: Jitter::None,
    }
}

fn io(kind: Kind, page: u64, bytes: u32) -> Io {
    Io { kind, offset: page * (16 << 10), bytes }
}

fn read(page: u64) -> Io {
    io(Kind::Read, page, 4_096)
}

fn write(page: u64, bytes: u32) -> Io {
    io(Kind::Write, page, bytes)
}

/// When each request completes, in ns from the start; `ios` holds requests with their times of submission in µs.
fn ends_ns(params: SsdParams, ios: &[(u64, Io)]) -> Vec<u64> {
    let mut drive = Ssd::new(params, 1);
    let mut ends = vec![0; ios.len()];
    for (id, &(at, io)) in ios.iter().enumerate() {
        while drive.next_event() < at_us(at) {
            let now = drive.next_event();
            while let Some(id) = drive.poll(now) {
                ends[id as usize] = now.as_nanos();
            }
        }
        drive.submit(at_us(at), id as u64, io);
    }
    for (at, id) in drain(&mut drive) {
        ends[id as usize] = at.as_nanos();
    }
    ends
}

/// Latency of a 4 KiB read on an idle drive in ns: command, firmware, page, channel, link.
const READ_NS: u64 = 10_000 + 20_000 + 100_000 + 8_192 + 4_096;
/// Latency of a 4 KiB write on an idle drive in ns: command, link, firmware.
const WRITE_NS: u64 = 10_000 + 4_096 + 30_000;

#[test]
fn one_request_takes_the_sum_of_its_stages() {
    assert_eq!(ends_ns(exact(), &[(0, read(0))]), [READ_NS]);
    assert_eq!(ends_ns(exact(), &[(0, write(0, 4_096))]), [WRITE_NS]);
    assert_eq!(ends_ns(exact(), &[(0, io(Kind::Meta, 0, 0))]), [40_000]);
    assert_eq!(ends_ns(exact(), &[(0, io(Kind::Flush, 0, 0))]), [40_000]);
    let slower = SsdParams { link_command_time: us(7), ..exact() };
    assert_eq!(ends_ns(slower, &[(0, read(0))]), [READ_NS + 7_000]);
    assert_eq!(ends_ns(slower, &[(0, write(0, 4_096))]), [WRITE_NS + 7_000]);
}

#[test]
fn dies_work_side_by_side_and_each_for_itself_one_after_the_other() {
    // Different channels: only the command before delays the second.
    assert_eq!(ends_ns(exact(), &[(0, read(0)), (0, read(1))]), [READ_NS, READ_NS + 10_000]);
    // The same die: the second page is read when the first is.
    assert_eq!(ends_ns(exact(), &[(0, read(0)), (0, read(4))]), [READ_NS, READ_NS + 100_000]);
    // Two pages of 16 KiB of one request, on different channels: both are there at 162.768 µs, then the link takes 16.384 each.
    let ends = ends_ns(exact(), &[(0, io(Kind::Read, 0, 32 << 10))]);
    assert_eq!(ends, [130_000 + 32_768 + 2 * 16_384]);
    // The same channel, different dies: it moves one after the other.
    let ends = ends_ns(exact(), &[(0, io(Kind::Read, 0, 16 << 10)), (0, io(Kind::Read, 2, 16 << 10))]);
    assert_eq!(ends, [130_000 + 32_768 + 16_384, 130_000 + 2 * 32_768 + 16_384]);
}

#[test]
fn what_is_beyond_the_queue_depth_waits_outside() {
    let params = SsdParams { queue_depth: 1, ..exact() };
    let ends = ends_ns(params, &[(0, read(0)), (0, read(1)), (0, read(2))]);
    assert_eq!(ends, [READ_NS, 2 * READ_NS, 3 * READ_NS]);
}

#[test]
fn only_a_duplex_link_moves_both_ways_at_once() {
    // The page is ready for the link at 138.192 µs; a write of 64 KiB holds it for 65.536 µs from 130 µs on.
    let requests = [(0, read(0)), (120, write(1, 64 << 10))];
    assert_eq!(ends_ns(exact(), &requests)[0], 130_000 + 65_536 + 4_096);
    assert_eq!(ends_ns(SsdParams { link_duplex: true, ..exact() }, &requests)[0], READ_NS);
}

#[test]
fn writes_are_quick_until_the_buffer_is_full() {
    let params = SsdParams { link_bandwidth_bytes_per_s: u64::MAX, ..exact() };
    let writes: Vec<_> = (0..6).map(|page| (0, write(page, 16 << 10))).collect();
    // Four units fill the buffer. The first is in the flash 32.768 µs (channel; rounded up link: 1 ns) and 1,000 µs after
    // it came at 10 µs, the second, on the other channel, after the next command.
    let ends = ends_ns(params, &writes);
    assert_eq!(ends[..4], [40_001, 50_001, 60_001, 70_001]);
    assert_eq!(ends[4..], [10_001 + 32_768 + 1_000_000 + 30_001, 20_001 + 32_768 + 1_000_000 + 30_001]);
}

#[test]
fn a_write_larger_than_the_buffer_goes_through_alone() {
    let ends = ends_ns(exact(), &[(0, write(0, 1 << 20)), (0, write(100, 4_096))]);
    assert_eq!(ends[0], 10_000 + 1_048_576 + 30_000);
    assert!(ends[1] > ends[0]);
}

/// A read comes at 200 µs while die 0 programs. The program ends at 1,059.152 µs: 26.384 µs for command and link, 32.768 µs for
/// the channel, and 1,000 µs.
#[test]
fn a_read_waits_for_a_program_or_interrupts_it() {
    let requests = [(0, write(0, 16 << 10)), (200, read(0))];
    let programmed_ns = 10_000 + 16_384 + 32_768 + 1_000_000;
    assert_eq!(ends_ns(exact(), &requests)[1], programmed_ns + 100_000 + 8_192 + 4_096);
    let interrupting = SsdParams { suspend_latency: us(15), ..exact() };
    assert_eq!(ends_ns(interrupting, &requests)[1], 200_000 + READ_NS + 15_000);
    // The program goes on afterwards: a flush waits for all of it, and for the way there and the read.
    let requests = [requests[0], requests[1], (250, io(Kind::Flush, 0, 0))];
    assert_eq!(ends_ns(interrupting, &requests)[2], programmed_ns + 15_000 + 100_000 + 30_000);
    // Late in the program, interrupting it would take longer than waiting.
    assert_eq!(ends_ns(interrupting, &[(0, write(0, 16 << 10)), (1_020, read(0))])[1], 1_059_152 + 112_288);
}

#[test]
fn reads_cannot_delay_a_program_for_ever() {
    // A stream of reads keeps die 0 busy; the flush waits for the program on it.
    let params = SsdParams { suspend_latency: us(15), queue_depth: 1_000, command_time: us(1), ..exact() };
    let mut requests = vec![(0, write(0, 16 << 10)), (100, io(Kind::Flush, 0, 0))];
    requests.extend((0..200).map(|n| (100 + n * 50, read(0))));
    let flushed = ends_ns(params, &requests)[1];
    assert!(flushed < 1_100_000 + 17 * 115_000, "{flushed} ns");
}

#[test]
fn blocks_are_erased_once_for_each_time_they_are_filled() {
    // 1 MiB on each of four dies fills a block of each, wherever they started. All of it fits into the buffer.
    let params = SsdParams { buffer_bytes: 4 << 20, link_bandwidth_bytes_per_s: u64::MAX, ..exact() };
    let mut requests: Vec<_> = (0..64 * 4).map(|page| (0, write(page, 16 << 10))).collect();
    requests.push((4_000, io(Kind::Flush, 0, 0)));
    let took = *ends_ns(params, &requests).last().expect("requests");
    // 64 programs on a die and one erase; all else is the way there, half of it beside a program of the other die.
    let work = 64 * (1_000_000 + 32_768) + 5_000_000;
    assert!((work..work + 64 * 32_768).contains(&took), "{took} ns, {work} ns of work");
}

#[test]
fn fast_cells_are_quick_until_they_are_full_and_empty_again_after_a_rest() {
    // Four units fit.
    let params = SsdParams { slc_bytes: 64 << 10, ..exact() };
    let mut drive = Ssd::new(params, 1);
    let mut now = Instant::ZERO;
    // Time until a unit that arrives after `rest` is in the flash, in us.
    let mut write_through = |page: u64, rest: Duration| {
        now += rest;
        let since = now;
        for io in [write(page, 16 << 10), io(Kind::Flush, 0, 0)] {
            drive.submit(now, 0, io);
            now = drain(&mut drive)[0].0;
        }
        now.since(since).as_nanos() / 1_000
    };
    for page in 0..4 {
        assert!((200..400).contains(&write_through(page, us(100))));
    }
    assert!(write_through(4, us(100)) > 1_000);
    // Four dies move 16 KiB each in 1,100 us, after 1,000 us without work: one such turn brings back all of it.
    assert!((200..400).contains(&write_through(5, us(2_200))));
    assert!((200..400).contains(&write_through(6, us(100))));
}

#[test]
fn a_stall_delays_all_that_is_under_way_by_its_length() {
    let submit = |drive: &mut Ssd| {
        for id in 0..20 {
            drive.submit(Instant::ZERO, id, if id % 3 == 0 { read(id) } else { write(id, 16 << 10) });
        }
    };
    let mut plain = Ssd::new(exact(), 1);
    submit(&mut plain);
    let mut stalled = Ssd::new(exact(), 1);
    submit(&mut stalled);
    stalled.stall(at_us(5), us(7_000));
    stalled.stall(at_us(3_000), us(500));
    let expected: Vec<_> = drain(&mut plain).into_iter().map(|(at, id)| (at + us(7_500), id)).collect();
    assert_eq!(drain(&mut stalled), expected);
}

#[test]
fn new_parameters_hold_for_what_has_not_begun_and_leave_the_geometry() {
    let mut drive = Ssd::new(exact(), 1);
    drive.submit(Instant::ZERO, 0, read(0));
    drive.submit(Instant::ZERO, 1, read(4));
    let slower = SsdParams { page_read_time: us(500), ..exact() };
    drive.set_params(at_us(60), SsdParams { geometry: Geometry { dies: 2, ..slower.geometry }, ..slower });
    assert_eq!(drive.params(), &slower);
    let ends: Vec<u64> = drain(&mut drive).iter().map(|(at, _)| at.as_nanos()).collect();
    assert_eq!(ends, [READ_NS, READ_NS + 500_000]);
}

#[test]
fn a_faster_drive_does_everything_in_less_time() {
    let requests = [(0, read(0)), (0, write(1, 16 << 10)), (0, read(2)), (0, io(Kind::Flush, 0, 0))];
    let (plain, twice) = (ends_ns(exact(), &requests), ends_ns(exact().scaled(2.0), &requests));
    for (plain, twice) in plain.into_iter().zip(twice) {
        assert!(twice.abs_diff(plain / 2) <= 10, "{plain} ns, {twice} ns");
    }
}

#[test]
fn long_idleness_costs_nothing() {
    let mut drive = Ssd::new(SsdParams { slc_bytes: 1 << 30, ..exact() }, 1);
    drive.submit(Instant::ZERO, 0, write(0, 16 << 10));
    drain(&mut drive);
    assert_eq!(drive.poll(at_us(10_000_000)), None);
    assert_eq!(drive.next_event(), Instant::FAR_FUTURE);
    drive.submit(Instant::from_nanos(u64::MAX / 2), 1, read(0));
    assert_eq!(drain(&mut drive), [(Instant::from_nanos(u64::MAX / 2 + READ_NS), 1)]);
}

#[test]
fn invalid_parameters_are_named() {
    let geometry = |change: fn(&mut Geometry)| {
        let mut params = exact();
        change(&mut params.geometry);
        params
    };
    let cases = [
        (geometry(|g| g.channels = 0), "channels"),
        (geometry(|g| g.dies = 1), "dies"),
        (geometry(|g| g.page_bytes = 5_000), "page"),
        (geometry(|g| g.program_bytes = 0), "program"),
        (geometry(|g| g.block_bytes = 4_096), "block"),
        (geometry(|g| g.capacity_bytes = 1_000), "capacity"),
        (geometry(|g| g.spare_percent = f64::NAN), "spare_percent"),
        (geometry(|g| g.used = -0.1), "used"),
        (SsdParams { queue_depth: 0, ..exact() }, "queue_depth"),
        (SsdParams { link_bandwidth_bytes_per_s: 0, ..exact() }, "link_bandwidth"),
        (SsdParams { channel_bandwidth_bytes_per_s: 0, ..exact() }, "channel_bandwidth"),
        (SsdParams { buffer_bytes: 4_096, ..exact() }, "buffer"),
        (SsdParams { jitter: Jitter::LogNormal { sigma: 9.0 }, ..exact() }, "jitter"),
    ];
    for (params, parameter) in cases {
        assert_eq!(params.validate().map_err(|error| error.parameter), Err(parameter));
    }
    for params in [exact(), SsdParams::sata(), SsdParams::nvme()] {
        assert_eq!(params.validate(), Ok(()));
    }
}

fn params() -> impl Strategy<Value = SsdParams> {
    let time = |most| (0u64..most).prop_map(us);
    let jitter = prop_oneof![
        Just(Jitter::None),
        (0.0f64..1.0).prop_map(|spread| Jitter::Uniform { spread }),
        (0.0f64..1.0).prop_map(|sigma| Jitter::LogNormal { sigma }),
    ];
    let geometry =
        (1u32..5, 0u32..9, 1u32..9, 1u32..9, 0u64..20, 1.0f64..30.0, 0.0f64..=1.0, any::<bool>()).prop_map(|g| {
            let program_bytes = g.3 << 12;
            Geometry {
                channels: g.0,
                dies: g.0 + g.1,
                page_bytes: g.2 << 12,
                program_bytes,
                block_bytes: u64::from(program_bytes) * (1 + g.4),
                capacity_bytes: 1 << 30,
                spare_percent: g.5,
                used: g.6,
                aged: g.7,
            }
        });
    (
        geometry,
        (1u32..40, any::<bool>(), any::<bool>(), 0u64..20, 0u64..1_000_000),
        (time(20), time(50), time(50), time(5), time(200), time(2_000), time(5_000), time(50), time(500)),
        (1_000_000u64..4_000_000_000, 1_000_000u64..4_000_000_000),
        jitter,
    )
        .prop_map(|(geometry, some, times, rates, jitter)| SsdParams {
            geometry,
            queue_depth: some.0,
            command_time: times.0,
            read_latency: times.1,
            write_latency: times.2,
            link_bandwidth_bytes_per_s: rates.0,
            link_command_time: times.3,
            link_duplex: some.1,
            channel_bandwidth_bytes_per_s: rates.1,
            page_read_time: times.4,
            program_time: times.5,
            erase_time: times.6,
            suspend_latency: times.7,
            buffer_bytes: u64::from(geometry.program_bytes) * (1 + some.3),
            buffer_volatile: some.2,
            slc_bytes: some.4,
            slc_program_time: times.8,
            slc_idle: us(1_000),
            jitter,
        })
}

fn any_io() -> impl Strategy<Value = Io> {
    let place = || 0u64..1 << 31;
    prop_oneof![
        3 => (place(), 0u32..200_000).prop_map(|(offset, bytes)| Io { kind: Kind::Read, offset, bytes }),
        3 => (place(), 0u32..200_000).prop_map(|(offset, bytes)| Io { kind: Kind::Write, offset, bytes }),
        1 => Just(io(Kind::Flush, 0, 0)),
        1 => (place(), 0u32..100_000_000).prop_map(|(offset, bytes)| Io { kind: Kind::Meta, offset, bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_request_completes_once_and_not_before_its_time(params in params(), events in prop::collection::vec(event(any_io(), params()), 0..120)) {
        laws::each_completes_once::<Ssd>(params, &events);
    }

    #[test]
    fn completions_depend_on_calls_and_seed_alone(params in params(), events in prop::collection::vec(event(any_io(), params()), 0..120)) {
        laws::calls_and_seed_decide_alone::<Ssd>(params, &events);
    }

    #[test]
    fn nothing_completes_before_the_next_event(params in params(), ios in prop::collection::vec(any_io(), 1..50)) {
        laws::nothing_completes_before_its_event::<Ssd>(params, &ios);
    }

    /// Requests never complete faster than the controller or the link allows: two completions are apart by at least the time of
    /// one request on the link.
    #[test]
    fn rates_are_never_exceeded(params in params(), depth in 1usize..60, reads in any::<bool>(), bytes in 1u32..4_096) {
        let kind = if reads { Kind::Read } else { Kind::Write };
        let mut drive = Ssd::new(params, 9);
        let mut sent = 0u64;
        let mut submit = |drive: &mut Ssd, now: Instant| {
            let offset = (sent * 7_919 % 50_000) << 12;
            drive.submit(now, sent, Io { kind, offset, bytes });
            sent += 1;
        };
        for _ in 0..depth {
            submit(&mut drive, Instant::ZERO);
        }
        let mut ends = Vec::new();
        while ends.len() < 400 {
            let now = drive.next_event();
            while drive.poll(now).is_some() {
                ends.push(now.as_nanos());
                submit(&mut drive, now);
            }
        }
        for (count, &end) in ends.iter().enumerate() {
            prop_assert!((count as u64 + 1) * params.command_time.as_nanos() <= end);
        }
        let each = (u64::from(bytes) * 1_000_000_000).div_ceil(params.link_bandwidth_bytes_per_s)
            + params.link_command_time.as_nanos();
        prop_assert!(ends[0] >= each);
        for pair in ends.windows(2) {
            prop_assert!(pair[1] - pair[0] >= each, "{} ns between completions, {} on the link", pair[1] - pair[0], each);
        }
    }
}
