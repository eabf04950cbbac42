//! Tests of parsing lines, of wraps and resets of totals, and of devices that come and go.

use evenkeel_control::{Duration, Instant};
use proptest::prelude::*;

use super::digits::*;
use super::flow::{MAX_MOVE, moved};
use super::text::{Fields, Figures, in_flight};
use super::*;

const TEXT: &[u8] = include_bytes!("../../../tests/fixtures/diskstats");
/// Length, in bytes, of the texts that are compared by both implementations.
const COMPARED: usize = 48;
const DM0: DeviceNumber = DeviceNumber { major: 252, minor: 0 };

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// A line of `/proc/diskstats` for dm-0 with these totals of reads and this number of requests in flight.
fn line(completed: u64, sectors: u64, time_ms: u64, in_flight: u64) -> String {
    format!("252 0 dm-0 {completed} 0 {sectors} {time_ms} 0 0 0 0 {in_flight} 0 0\n")
}

fn observed(texts: &[&str]) -> Tracker {
    let mut tracker = Tracker::default();
    for (n, text) in texts.iter().enumerate() {
        tracker.observe(at(100 * n as u64), text.as_bytes()).expect("lines of the format");
    }
    tracker
}

fn sample(tracker: &Tracker) -> Sample {
    tracker.get(DM0).expect("is there").sample().expect("has a sample")
}

#[test]
fn every_field_is_where_the_kernel_puts_it() {
    let mut lines = Vec::new();
    parse(TEXT, |line| lines.push(line)).expect("lines of the format");
    assert_eq!(lines.len(), 5);
    let sda = Line {
        number: DeviceNumber { major: 8, minor: 0 },
        name: "sda",
        reads: Totals { completed: 120_034, sectors: 9_631_234, time_ms: 48_211 },
        writes: Totals { completed: 883_321, sectors: 70_233_128, time_ms: 9_123_311 },
        in_flight: 3,
    };
    assert_eq!(lines[1], sda);
}

#[test]
fn mean_latency_and_rates_are_of_the_interval() {
    let tracker = observed(&[&line(1000, 8000, 5000, 0), &line(1010, 8160, 5150, 2)]);
    let sample = sample(&tracker);
    assert_eq!(sample.reads.mean_latency(), Some(Duration::from_millis(15)));
    assert_eq!(sample.reads.bytes_per_s(sample.interval), 819_200.0);
    assert_eq!(sample.reads.iops(sample.interval), 100.0);
    assert_eq!(sample.writes.mean_latency(), None);
    assert_eq!(sample.in_flight, 2);
    assert!(!sample.is_stuck());
}

#[test]
fn requests_that_do_not_come_out_are_not_idleness() {
    let stuck = observed(&[&line(1, 8, 1, 4), &line(1, 8, 1, 4)]);
    assert!(sample(&stuck).is_stuck());
    let idle = observed(&[&line(1, 8, 1, 0), &line(1, 8, 1, 0)]);
    assert!(!sample(&idle).is_stuck());
}

#[test]
fn totals_wrap_at_32_and_at_64_bits() {
    let most = u64::from(u32::MAX);
    let times = observed(&[&line(10, 80, most - 99, 0), &line(20, 160, 100, 0)]);
    assert_eq!(sample(&times).reads.mean_latency(), Some(Duration::from_millis(20)));
    let narrow = observed(&[&line(most - 4, most - 39, 0, 0), &line(5, 40, 10, 0)]);
    assert_eq!(sample(&narrow).reads, Flow { completed: 10, bytes: 80 * 512, time: Duration::from_millis(10) });
    let wide = observed(&[&line(u64::MAX - 4, u64::MAX - 39, 0, 0), &line(5, 40, 10, 0)]);
    assert_eq!(sample(&wide).reads.completed, 10);
}

#[test]
fn a_reset_gives_no_sample_and_counts_from_there() {
    let mut tracker = observed(&[&line(5000, 8000, 5000, 0), &line(3, 24, 9, 0)]);
    assert_eq!(tracker.get(DM0), Some(Reading::First));
    tracker.observe(at(200), line(5, 40, 29, 0).as_bytes()).expect("a line");
    assert_eq!(sample(&tracker).reads.mean_latency(), Some(Duration::from_millis(10)));
    assert_eq!(sample(&tracker).interval, Duration::from_millis(100));
}

#[test]
fn devices_come_go_and_change_their_names() {
    let mut tracker = observed(&[&line(1, 8, 1, 0)]);
    tracker.observe(at(100), b"8 0 sda 1 0 8 1 0 0 0 0 0 0 0\n").expect("a line");
    assert_eq!(tracker.get(DM0), None);
    assert_eq!(tracker.iter().map(|(_, name, _)| name).collect::<Vec<_>>(), ["sda"]);
    tracker.observe(at(200), line(500, 8, 1, 0).as_bytes()).expect("a line");
    assert_eq!(tracker.get(DM0), Some(Reading::First));
    tracker.observe(at(300), b"252 0 other 900 0 8 1 0 0 0 0 0 0 0\n").expect("a line");
    assert_eq!(tracker.get(DM0), Some(Reading::First));
}

#[test]
fn hidden_disks_have_one_number_and_are_known_by_their_names() {
    let (mut tracker, mut arrangements) = (Tracker::default(), Vec::new());
    for n in 0..3 {
        let path = |name: &str, reads: u64| format!("0 0 {name} {reads} 0 {} {reads} 0 0 0 0 1 0 0\n", 8 * reads);
        let paths = path("nvme0c0n1", 10 * n) + &path("nvme0c1n1", 30 * n);
        let text = paths + &line(n, 8 * n, n, 0) + &"\n".repeat(2 * WINDOW);
        tracker.observe(at(100 * n), text.as_bytes()).expect("lines of the format");
        arrangements.push(tracker.arrangement());
    }
    let reads = |name: &str| {
        let reading = tracker.reading(tracker.named(name)?)?;
        Some(reading.sample()?.reads.completed)
    };
    assert_eq!(["nvme0c0n1", "nvme0c1n1", "nvme0c2n1"].map(reads), [Some(10), Some(30), None]);
    assert_eq!((arrangements[2], sample(&tracker).reads.completed), (arrangements[0], 1), "all stay in place");
}

#[test]
fn after_a_line_at_fault_the_others_are_measured_over_both_intervals() {
    let lines = |reads: u64, damaged: bool| {
        let broken = if damaged { "8 0 sda x\n".to_owned() } else { format!("8 0 sda {reads} 0 8 1 0 0 0 0 0 0 0\n") };
        broken + &line(reads, 8 * reads, reads, 0)
    };
    let mut tracker = observed(&[&lines(10, false)]);
    tracker.observe(at(100), lines(20, true).as_bytes()).expect_err("a line at fault");
    tracker.observe(at(200), lines(30, false).as_bytes()).expect("lines of the format");
    assert_eq!((sample(&tracker).reads.completed, sample(&tracker).interval), (20, Duration::from_millis(200)));
}

#[test]
fn only_devices_with_completed_reads_shape_the_mean() {
    let active = Sample {
        interval: Duration::from_millis(100),
        reads: Flow { completed: 4, bytes: 4096, time: Duration::from_millis(80) },
        ..Sample::default()
    };
    let idle = Sample { interval: Duration::from_millis(100), in_flight: 7, ..Sample::default() };
    let both = active.plus(&idle);
    assert_eq!(both.reads.mean_latency(), Some(Duration::from_millis(20)));
    assert_eq!(both.in_flight, 7);
}

#[test]
fn a_fault_names_its_line() {
    let fault = parse(b"8 0 sda 1 0 8 1 0 0 0 0 0 0 0\n8 1 sda1 1 0 x\n", |_| {}).expect_err("a letter");
    assert_eq!(fault.to_string(), "line 2: sectors (reads) of sda1 is \"x\", not a number");
    assert!(parse(b"8 0 sda 1 0 8", |_| {}).is_err_and(|fault| fault.problem.contains("ends before time")));
    assert!(parse(b"8 0 sda 99999999999999999999 0", |_| {}).is_err());
}

#[test]
fn the_first_reading_of_this_machine_is_understood() {
    let path = std::path::Path::new("/proc/diskstats");
    if let Ok(mut source) = crate::sensor::Source::open(path) {
        let text = source.read().expect("readable");
        parse(text, |line| assert!(!line.name.is_empty())).expect("lines of the format");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..4)) {
        let mut tracker = Tracker::default();
        for (n, text) in texts.iter().enumerate() {
            let _ = tracker.observe(at(n as u64), text);
        }
    }

    #[test]
    fn damaged_lines_do_not_panic(damage in prop::collection::vec((0..TEXT.len(), any::<u8>()), 1..20)) {
        let mut text = TEXT.to_vec();
        for (place, byte) in damage {
            text[place] = byte;
        }
        let mut tracker = Tracker::default();
        let _ = tracker.observe(at(0), TEXT);
        let _ = tracker.observe(at(100), &text);
    }

    #[test]
    fn what_is_no_digit_is_found_in_both_ways(bytes in prop::collection::vec(any::<u8>(), BLOCK)) {
        let block: &[u8; BLOCK] = bytes.first_chunk().expect("so many");
        let expected = bytes.iter().rev().fold(0, |found, byte| found << 1 | u64::from(!byte.is_ascii_digit()));
        prop_assert_eq!(no_digits(block), expected);
        prop_assert_eq!(no_digits_by_arithmetic(block), expected);
    }

    /// Checks the quick parser against a plain one, on lines with short and too long fields and with damage. Each line is
    /// followed by enough text for the quick parser.
    #[test]
    fn usual_figures_are_what_a_plain_parser_reads(
        fields in prop::collection::vec(("[0-9]{0,18}", "[ ]|[ ]|[ ]|[ ]|[ \\t\n+-]{0,2}"), 6..14),
        damage in prop::collection::vec((0..200usize, any::<u8>()), 0..3),
        usual in any::<bool>(),
    ) {
        let mut text = vec![b' '];
        for (number, after) in &fields {
            let (number, after) = match usual {
                true => (number[..number.len().min(11)].to_owned(), " "),
                false => (number.clone(), after.as_str()),
            };
            text.extend(number.bytes().chain(after.bytes()));
        }
        if !usual {
            damage.into_iter().for_each(|(place, byte)| if let Some(there) = text.get_mut(place) { *there = byte });
        }
        text.extend([b'\n'; 2 * WINDOW]);
        let mut fields_of = Fields { text: &text, at: 0 };
        let reads = fields_of.usual_reads();
        fields_of.at = reads.map_or(0, |(_, length)| length);
        let quick = reads.and_then(|(reads, end)| {
            let (writes, in_flight, length) = fields_of.usual_writes()?;
            Some((Figures { reads, writes, in_flight }, end, end + length))
        });
        let mut plain = Fields { text: &text, at: 0 };
        let mut by_fields = || {
            let reads = plain.totals()?;
            let end = plain.at;
            let (writes, inside) = (plain.totals()?, plain.number()?);
            Some((Figures { reads, writes, in_flight: in_flight(inside) }, end, plain.at))
        };
        let expected = by_fields();
        if quick.is_some() {
            prop_assert_eq!(&quick, &expected, "{}", text.escape_ascii());
        }
        // It is no use if it refuses what is usual.
        let enough = fields.len() >= 9 && fields[..9].iter().all(|(number, _)| !number.is_empty());
        prop_assert!(quick.is_some() || !usual || !enough, "{}", text.escape_ascii());
    }

    #[test]
    fn how_much_is_the_same_is_found(
        one in prop::collection::vec(0u8..3, COMPARED),
        same in 0..=COMPARED,
    ) {
        let mut other = one.clone();
        other.iter_mut().skip(same).for_each(|byte| *byte += 1);
        let (one, other) = (one.first_chunk::<COMPARED>().expect("so many"), other.first_chunk().expect("so many"));
        prop_assert_eq!(leading_same(one, other), same);
    }

    /// Checks that a device's figures are the differences of the totals that a plain parser reads, whatever changes between
    /// readings.
    #[test]
    fn what_moved_is_what_a_plain_parser_tells(
        readings in prop::collection::vec(prop::collection::vec((0u64..3, 0u64..40, 0u64..2), 6), 2..5),
    ) {
        let mut tracker = Tracker::default();
        let mut totals = vec![[0u64; 8]; 6];
        for (n, reading) in readings.iter().enumerate() {
            let mut text = String::new();
            let before = totals.clone();
            for (device, &(reads, writes, inside)) in reading.iter().enumerate() {
                let total = &mut totals[device];
                for (field, by) in [reads, 0, reads * 8, reads * 9, writes, writes / 2, writes * 64, writes * 5].iter().enumerate() {
                    total[field] += by * 123_456;
                }
                let fields: Vec<String> = total.iter().map(u64::to_string).collect();
                text += &format!(" 252 {device:>7} dm-{device} {} {inside} 7 8 9\n", fields.join(" "));
            }
            // So that the last line is read like the others.
            text += &"\n".repeat(2 * WINDOW);
            tracker.observe(at(100 * n as u64), text.as_bytes()).expect("lines of the format");
            for (device, &(.., inside)) in reading.iter().enumerate().filter(|_| n > 0) {
                let number = DeviceNumber { major: 252, minor: device as u32 };
                let sample = tracker.get(number).and_then(Reading::sample).expect("a sample");
                let by = |field: usize| totals[device][field] - before[device][field];
                let flow = |from: usize| Flow {
                    completed: by(from),
                    bytes: by(from + 2) * 512,
                    time: Duration::from_millis(by(from + 3)),
                };
                prop_assert_eq!((sample.reads, sample.writes, sample.in_flight), (flow(0), flow(4), inside));
                prop_assert_eq!(sample.interval, Duration::from_millis(100));
            }
        }
    }

    /// Checks that damaged lines of known devices are read as by a new tracker.
    #[test]
    fn known_lines_are_read_like_unknown_ones(damage in prop::collection::vec((0..TEXT.len(), any::<u8>()), 0..6)) {
        let mut text = TEXT.to_vec();
        for (place, byte) in damage {
            text[place] = byte;
        }
        let mut lines = Vec::new();
        let parsed = parse(&text, |line| lines.push((line.number, line.name.to_owned(), line.in_flight)));
        let mut tracker = Tracker::default();
        tracker.observe(at(0), TEXT).expect("lines of the format");
        prop_assert_eq!(tracker.observe(at(100), &text).is_ok(), parsed.is_ok());
        if parsed.is_ok() {
            lines.sort_by_key(|(number, ..)| *number);
            let hidden = DeviceNumber::default();
            lines.dedup_by(|one, other| one.0 == other.0 && (one.0 != hidden || one.1 == other.1));
            let mut known: Vec<_> = tracker.iter().map(|(number, ..)| number).collect();
            known.sort_unstable();
            prop_assert_eq!(known, lines.iter().map(|(number, ..)| *number).collect::<Vec<_>>());
            for (_, _, reading) in tracker.iter() {
                let sample = reading.sample();
                prop_assert!(sample.is_none_or(|sample| lines.iter().any(|line| line.2 == sample.in_flight)));
            }
        }
    }

    #[test]
    fn any_move_below_the_bound_is_found_again(before in any::<u64>(), by in 0..MAX_MOVE) {
        prop_assert_eq!(moved(before, before.wrapping_add(by)), Some(by));
        let before_32 = before & u64::from(u32::MAX);
        let now = (before_32 + by) & u64::from(u32::MAX);
        prop_assert_eq!(moved(before_32, now), Some(by));
    }
}
