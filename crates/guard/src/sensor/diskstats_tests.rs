//! Lines, wraps, resets, devices that come and go.

use proptest::prelude::*;

use super::*;

const TEXT: &[u8] = include_bytes!("../../tests/fixtures/diskstats");
const DM0: DeviceNumber = DeviceNumber { major: 252, minor: 0 };

fn at(ms: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(ms)
}

/// A line of dm-0 with these reads.
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
fn mean_size_and_rate_are_of_the_interval() {
    let tracker = observed(&[&line(1000, 8000, 5000, 0), &line(1010, 8160, 5150, 2)]);
    let sample = sample(&tracker);
    assert_eq!(sample.reads.mean_response_time(), Some(Duration::from_millis(15)));
    assert_eq!(sample.reads.mean_size(), Some(8192.0));
    assert_eq!(sample.reads.bytes_per_s(sample.interval), 819_200.0);
    assert_eq!(sample.reads.iops(sample.interval), 100.0);
    assert_eq!(sample.writes.mean_response_time(), None);
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
    assert_eq!(sample(&times).reads.mean_response_time(), Some(Duration::from_millis(20)));
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
    assert_eq!(sample(&tracker).reads.mean_response_time(), Some(Duration::from_millis(10)));
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
fn only_devices_with_completed_reads_shape_the_mean() {
    let active = Sample {
        interval: Duration::from_millis(100),
        reads: Flow { completed: 4, bytes: 4096, time: Duration::from_millis(80) },
        ..Sample::default()
    };
    let idle = Sample { interval: Duration::from_millis(100), in_flight: 7, ..Sample::default() };
    let both = active.plus(&idle);
    assert_eq!(both.reads.mean_response_time(), Some(Duration::from_millis(20)));
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

    /// Lines whose fields are as long as may be and further, with damage; between them and the end enough to be read at once.
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
        let quick = Fields { text: &text, at: 0 }.usual_figures();
        let mut plain = Fields { text: &text, at: 0 };
        let expected = plain.any_figures();
        if let Some((length, figures)) = quick {
            prop_assert_eq!((Some(figures), length), (expected, plain.at), "{}", text.escape_ascii());
        }
        // It is no use if it refuses what is usual.
        let enough = fields.len() >= 9 && fields[..9].iter().all(|(number, _)| !number.is_empty());
        prop_assert!(quick.is_some() || !usual || !enough, "{}", text.escape_ascii());
    }

    /// Whatever becomes of a line, reading goes on as a tracker would that had never seen another.
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
            lines.dedup_by_key(|(number, ..)| *number);
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
