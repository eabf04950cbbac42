//! Tests of the pairing of the events in blkparse texts.

use proptest::collection::vec;
use proptest::prelude::*;

use super::pairs::{Change, Extent, MOST_PENDING, Pairs, Step};
use super::*;

/// First sector and completion of each request in a text.
fn paired(text: &str, event: Event) -> Vec<(u64, Completion)> {
    let options = Options { format: Some(Format::Blkparse), event, ..Options::default() };
    let mut reader = Reader::new(text.as_bytes(), "a.trace", options);
    let mut all = Vec::new();
    while let Some(record) = reader.next() {
        let sector = record.unwrap().offset / 512;
        all.push((sector, reader.completion()));
    }
    all
}

fn stated(queue_ns: u64, device_ns: u64) -> Completion {
    let [queue, device] = [queue_ns, device_ns].map(Duration::from_nanos);
    Completion::Stated { queue, device, error: 0 }
}

/// The line of an event.
fn event(at_ns: u64, action: &str, rwbs: &str, sector: u64, sectors: u64) -> String {
    let end = if matches!(action, "C" | "R") { "0" } else { "fio" };
    format!("  8,0    1        1     0.{at_ns:09}   697  {action} {rwbs:>3} {sector} + {sectors} [{end}]\n")
}

/// The lines of events of reads: time, action, first sector, number of sectors.
fn reads(events: &[(u64, &str, u64, u64)]) -> String {
    events.iter().map(|&(at_ns, action, sector, sectors)| event(at_ns, action, "R", sector, sectors)).collect()
}

#[test]
fn each_request_has_its_latencies_and_its_error() {
    let text = "\
  8,0    3        1     0.000000000   697  A  WS 223490 + 8 <- (8,1) 221442
  8,0    3        2     0.000001829   697  Q  WS 223490 + 8 [kjournald]
  8,0    3        3     0.000005041   697  G  WS 223490 + 8 [kjournald]
  8,0    3        4     0.000006187   697  P   N [kjournald]
  8,0    3        5     0.000009210   697  I  WS 223490 + 8 [kjournald]
  8,0    3        6     0.000013601   697  U   N [kjournald] 1
  8,0    3        7     0.000017829   697  D  WS 223490 + 8 [kjournald]
  8,0    1        1     0.000120829     0  C  WS 223490 + 8 [0]
  8,0    1        2     0.000200000   700  Q   R 64 + 16 [cat]
  8,0    1        3     0.000210000   700  D   R 64 + 16 [cat]
  8,0    1        4     0.000510000     0  C   R 64 + 16 [65531]
  8,0    1        5     0.000600000   700  Q FWS [jbd2/sda1-8]
  8,0    1        6     0.000601000   700  G FWS [jbd2/sda1-8]
  8,0    1        7     0.000602000   701  D  FN [kworker/1:1H]
  8,0    0        8     0.000690000     0  C  FN 0 [0]
  8,0    0        9     0.000700000     0  C  WS 0 [0]
  8,0    1       10     0.000800000   700  Q   R 72 + 8 [cat]
CPU1 (8,0):
 Reads Queued:           2,       12KiB\t Writes Queued:           2,        4KiB
";
    let failed = |queue_ns: u64| {
        let [queue, device] = [queue_ns, 300_000].map(Duration::from_nanos);
        Completion::Stated { queue, device, error: 5 }
    };
    let write = (223_490, stated(16_000, 103_000));
    let expected = [write, (64, failed(10_000)), (0, stated(0, 100_000)), (72, Completion::Missing)];
    assert_eq!(paired(text, Event::Queue), expected);
    // The flush as the kernel sends it to the device is another one.
    let issued = [(223_490, stated(0, 103_000)), (64, failed(0)), (0, stated(0, 88_000))];
    assert_eq!(paired(text, Event::Issue), issued);
}

#[test]
fn merged_requests_are_completed_together() {
    let text = "\
  8,0    0        1     0.000000000    50  Q   W 1000 + 8 [kworker/u8:2]
  8,0    0        2     0.000000500    50  G   W 1000 + 8 [kworker/u8:2]
  8,0    0        3     0.000001000    50  Q   W 1008 + 8 [kworker/u8:2]
  8,0    0        4     0.000001200    50  M   W 1008 + 8 [kworker/u8:2]
  8,0    0        5     0.000002000    50  Q   W 992 + 8 [kworker/u8:2]
  8,0    0        6     0.000002200    50  F   W 992 + 8 [kworker/u8:2]
  8,0    0        7     0.000010000    50  D   W 992 + 24 [kworker/u8:2]
  8,0    0        8     0.000050000     0  C   W 992 + 24 [0]
";
    let expected = [(1000, stated(10_000, 40_000)), (1008, stated(9_000, 40_000)), (992, stated(8_000, 40_000))];
    assert_eq!(paired(text, Event::Queue), expected);
}

#[test]
fn a_split_request_is_completed_with_its_last_part() {
    let text = "\
  8,0    0        1     0.000000000    50  Q   R 0 + 2048 [dd]
  8,0    0        2     0.000000500    50  X   R 0 / 1280 [dd]
  8,0    0        3     0.000002000    50  D   R 0 + 1280 [dd]
  8,0    0        4     0.000003000    50  D   R 1280 + 768 [dd]
  8,0    0        5     0.000090000     0  C   R 1280 + 768 [0]
  8,0    0        6     0.000100000     0  C   R 0 + 1280 [0]
";
    assert_eq!(paired(text, Event::Queue), [(0, stated(2_000, 98_000))]);
    let without_the_last = &text[..text.find("  8,0    0        6").unwrap()];
    assert_eq!(paired(without_the_last, Event::Queue), [(0, Completion::Unstated)]);
}

#[test]
fn a_requeued_request_is_issued_again() {
    let text = reads(&[(0, "Q", 8, 8), (1000, "D", 8, 8), (2000, "R", 8, 8), (9000, "D", 8, 8), (30_000, "C", 8, 8)]);
    assert_eq!(paired(&text, Event::Queue), [(8, stated(9_000, 21_000))]);
    // Each issue counts there: the first one was in vain.
    assert_eq!(paired(&text, Event::Issue), [(8, Completion::Missing), (8, stated(0, 21_000))]);
}

#[test]
fn lost_events_do_not_change_the_latencies_of_later_requests() {
    let whole = |at: u64| [(at, "Q", 8, 8), (at + 1_000, "D", 8, 8), (at + 5_000, "C", 8, 8)];
    let later: Vec<_> = (1..=3).flat_map(|n| whole(n * 100_000)).collect();
    for lost in 0..3 {
        let mut events = whole(0).to_vec();
        events.remove(lost);
        // The device has a number from the start.
        let text = reads(&[&[(0, "Q", 800, 8)][..], &events[..], &later[..]].concat());
        let found = paired(&text, Event::Queue);
        let first = [None, Some(stated(0, 5_000)), Some(Completion::Missing)][lost];
        let expected = [Some(Completion::Missing), first, Some(stated(1_000, 4_000))].into_iter().flatten();
        let expected = expected.chain([stated(1_000, 4_000); 2]);
        assert_eq!(found.into_iter().map(|one| one.1).collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{lost}");
    }
}

#[test]
fn a_large_request_without_completion_does_not_take_those_of_later_ones_in_it() {
    let merged = reads(&[
        (0, "Q", 0, 2048),
        (1_000, "D", 0, 2048),
        (100_000, "Q", 8, 8),
        (100_000, "Q", 16, 8),
        (101_000, "D", 8, 16),
        (105_000, "C", 8, 16),
    ]);
    let expected = [(0, Completion::Missing), (8, stated(1_000, 4_000)), (16, stated(1_000, 4_000))];
    assert_eq!(paired(&merged, Event::Queue), expected);
    // The small one is nearer to the second part of the split one, and older.
    let split = reads(&[
        (0, "Q", 16, 64),
        (1_000, "D", 16, 64),
        (100_000, "Q", 8, 64),
        (101_000, "D", 8, 32),
        (102_000, "D", 40, 32),
        (105_000, "C", 8, 32),
        (107_000, "C", 40, 32),
    ]);
    assert_eq!(paired(&split, Event::Queue), [(16, Completion::Missing), (8, stated(1_000, 6_000))]);
}

#[test]
fn events_before_the_line_of_their_request_are_its_own_if_their_time_is_later() {
    let text = reads(&[(0, "Q", 8, 8), (2_000, "D", 64, 8), (50_000, "C", 64, 8), (1_000, "Q", 64, 8)]);
    assert_eq!(paired(&text, Event::Queue), [(8, Completion::Missing), (64, stated(1_000, 48_000))]);
    let before = reads(&[(0, "Q", 8, 8), (500, "D", 64, 8), (900, "C", 64, 8), (1_000, "Q", 64, 8)]);
    assert_eq!(paired(&before, Event::Queue), [(8, Completion::Unstated), (64, Completion::Unstated)]);
}

#[test]
fn a_text_of_one_kind_of_events_has_no_completions() {
    let queued = reads(&[(0, "Q", 8, 8), (1000, "Q", 16, 8)]);
    assert_eq!(paired(&queued, Event::Queue), [(8, Completion::Unstated), (16, Completion::Unstated)]);
    assert_eq!(paired(&queued.replace(" Q ", " D "), Event::Issue), paired(&queued, Event::Queue));
    assert!(paired(&queued.replace(" Q ", " C "), Event::Queue).is_empty());
}

#[test]
fn requests_before_a_bad_line_come_before_its_error() {
    let text = reads(&[(0, "Q", 8, 8), (1000, "Q", 16, 8)]) + "8 nonsense\n";
    let options = Options { format: Some(Format::Blkparse), ..Options::default() };
    let read: Vec<_> = Reader::new(text.as_bytes(), "a.trace", options).collect();
    assert!(matches!(&read[..], [Ok(_), Ok(_), Err(TraceError { line: 3, .. })]), "{read:?}");
}

#[test]
fn a_request_without_completion_delays_a_bounded_number_of_others() {
    let extent = |n: u64| Extent { device: 0, kind: 0, start: n * 512, end: (n + 1) * 512 };
    let (most, mut returned) = (MOST_PENDING as u64, 0);
    let mut pairs = Pairs::default();
    for n in 0..most + 1_000 {
        let at = Instant::from_nanos(n);
        pairs.begin(Record { at, kind: Kind::Read, offset: n * 512, bytes: 512, device: 0 }, extent(n), None);
        if n > 0 {
            pairs.take(Step { at: Instant::from_nanos(n + 7), of: extent(n), change: Change::Completed { error: 0 } });
        }
        if let Some((record, completion)) = pairs.release(false) {
            let expected = if returned == 0 { Completion::Missing } else { stated(0, 7) };
            assert_eq!((record.at.as_nanos(), completion), (returned, expected));
            returned += 1;
        }
        assert!(n + 1 - returned < most);
    }
    assert_eq!(returned, 1_001);
}

/// Fates of a group of requests: nothing is special, or its events of issue or completion are lost, or it is issued twice.
const LOST_ISSUE: u8 = 1;
const LOST_COMPLETION: u8 = 2;
const REQUEUED: u8 = 3;

proptest! {
    /// Groups of merged requests, issued and completed in parts, at the same time as other groups.
    #[test]
    fn every_interleaving_is_paired(
        groups in vec((0u64..2_000, 1u64..4, 1u64..4, proptest::array::uniform3(0u64..500), 0u8..4), 1..40)
    ) {
        let has_some = groups.iter().any(|group| group.4 != LOST_COMPLETION);
        let without = if has_some { Completion::Missing } else { Completion::Unstated };
        let (mut events, mut expected) = (Vec::new(), Vec::new());
        for (number, &(begin, bios, parts, delays, fate)) in (0u64..).zip(&groups) {
            let (first, span, rwbs) = (number * 1_000, bios * 8, if number.is_multiple_of(2) { "R" } else { "WS" });
            let parts = if fate == REQUEUED { 1 } else { parts };
            let part = |n: u64| (span * n / parts, span * (n + 1) / parts);
            let issue = |n: u64| begin + 100 + n * 7;
            let completion = |n: u64| begin + 300 + delays[n as usize];
            for bio in 0..bios {
                let (at, start) = (begin + bio * 10, bio * 8);
                events.push((at, event(at, "Q", rwbs, first + start, 8)));
                let own: Vec<u64> = (0..parts).filter(|&n| part(n).0 < start + 8 && start < part(n).1).collect();
                let issued = match fate {
                    LOST_ISSUE => at,
                    REQUEUED => begin + 250,
                    _ => own.iter().map(|&n| issue(n)).min().unwrap(),
                };
                let completed = own.iter().map(|&n| completion(n)).max().unwrap();
                let stated = stated(issued - at, completed - issued);
                expected.push((at, first + start, if fate == LOST_COMPLETION { without } else { stated }));
            }
            for n in 0..parts {
                let (start, end) = part(n);
                let mut push = |at: u64, action: &str| {
                    events.push((at, event(at, action, rwbs, first + start, end - start)));
                };
                if fate != LOST_ISSUE {
                    push(issue(n), "D");
                }
                if fate == REQUEUED {
                    push(begin + 200, "R");
                    push(begin + 250, "D");
                }
                if fate != LOST_COMPLETION {
                    push(completion(n), "C");
                }
            }
        }
        // Events at one time keep their order.
        events.sort_by_key(|event| event.0);
        expected.sort_by_key(|request| request.0);
        let text: String = events.into_iter().map(|event| event.1).collect();
        let expected: Vec<_> = expected.into_iter().map(|(_, sector, completion)| (sector, completion)).collect();
        prop_assert_eq!(paired(&text, Event::Queue), expected);
    }

    /// Of events in any order each request is returned, in the order of the lines, and no completion counts twice.
    #[test]
    fn no_order_of_events_completes_more_than_there_is(
        lines in vec((0usize..4, 0u64..32, 1u64..16, 0u64..1_000), 1..120)
    ) {
        let text: String = lines.iter().map(|&(action, sector, sectors, at)| {
            event(at, ["Q", "D", "C", "R"][action], "R", sector, sectors)
        }).collect();
        let options = Options { format: Some(Format::Blkparse), ..Options::default() };
        let mut reader = Reader::new(text.as_bytes(), "a.trace", options);
        let mut queued = lines.iter().filter(|line| line.0 == 0);
        let mut left: u64 = lines.iter().filter(|line| line.0 == 2).map(|line| line.2).sum();
        while let Some(record) = reader.next() {
            let record = record.unwrap();
            let &(_, sector, sectors, at) = queued.next().unwrap();
            let found = (record.at.as_nanos(), record.offset, u64::from(record.bytes));
            prop_assert_eq!(found, (at, sector * 512, sectors * 512));
            if let Completion::Stated { queue, device, .. } = reader.completion() {
                prop_assert!(at + queue.as_nanos() + device.as_nanos() < 1_000);
                prop_assert!(sectors <= left);
                left -= sectors;
            }
        }
        prop_assert!(queued.next().is_none());
    }
}
