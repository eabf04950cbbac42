//! Tests of the reader with valid and invalid lines of every trace format.

use std::io::{self, BufReader, Read};

use evenkeel_control::Instant;
use evenkeel_control::units::Kind::{Flush, Meta, Read as R, Write as W};
use proptest::prelude::*;

use super::*;

fn record(at_ns: u64, kind: Kind, offset: u64, bytes: u32, device: u32) -> Record {
    Record { at: Instant::from_nanos(at_ns), kind, offset, bytes, device }
}

fn read(text: &str, options: Options) -> (Vec<Record>, Option<String>) {
    let mut records = Vec::new();
    for next in Reader::new(text.as_bytes(), "a.trace", options) {
        match next {
            Ok(record) => records.push(record),
            Err(error) => return (records, Some(error.to_string())),
        }
    }
    (records, None)
}

fn good(text: &str, format: Format) -> Vec<Record> {
    let mut reader = Reader::new(text.as_bytes(), "a.trace", Options::default());
    let records: Vec<Record> = reader.by_ref().map(|record| record.unwrap()).collect();
    assert_eq!(reader.format(), Some(format));
    let named = read(text, Options { format: Some(format), ..Options::default() });
    assert_eq!(named, (records.clone(), None), "the named format reads the same");
    records
}

#[test]
fn msr_lines_have_latencies_and_those_of_others_have_none() {
    let completions = |text: &str| {
        let mut reader = Reader::new(text.as_bytes(), "a.trace", Options::default());
        let mut all = Vec::new();
        while let Some(record) = reader.next() {
            record.unwrap();
            all.push(reader.completion());
        }
        all
    };
    assert_eq!(completions(MSR), [after(70_300), after(9_900)]);
    let odd = "1,web,0,Read,0,512\n2,web,0,Read,0,512, 8 \n3,web,0,Read,0,512,x\n";
    assert_eq!(completions(odd), [Completion::Unstated, after(800), Completion::Unstated]);
    for text in [SPC, MQSIM, FIO2, FIO3] {
        assert!(completions(text).iter().all(|completion| *completion == Completion::Unstated), "{text}");
    }
}

/// A completion so many nanoseconds after the arrival.
fn after(device_ns: u64) -> Completion {
    Completion::Stated { queue: Duration::ZERO, device: Duration::from_nanos(device_ns), error: 0 }
}

const MSR: &str = "\
128166372000000000,web,0,Read,1310720,8192,703
128166372000012345,web,1,Write,4096,512,99
";
const SPC: &str = "\
0,2048,4096,r,0.000000
2,8,512,W,0.026214, 17
";
const MQSIM: &str = "\
1000 0 2048 8 1\r
2500 3 16 1 0\r
";
const FIO2: &str = "\
fio version 2 iolog
/dev/a add
/dev/b add
/dev/a open
/dev/a read 1310720 8192
/dev/a wait 250 0
/dev/b write 4096 512
/dev/b datasync 0 0
/dev/a wait 50
/dev/a trim 0 1073741824
/dev/a close
";
const FIO3: &str = "\
fio version 3 iolog
2 /dev/a add
2 /dev/b add
3 /dev/a open
10 /dev/b read 1310720 8192
20 /dev/a write 4096 512
25 /dev/a sync 0 0
26 /dev/a close
";
const BLKPARSE: &str = "\
  8,16   1        1     0.000000000  4711  Q  WS 1024 + 8 [postgres: writer]
  8,16   1        2     0.000001500  4711  G  WS 1024 + 8 [postgres: writer]
  8,16   1        3     0.000002000  4711  P   N [postgres: writer]
  8,16   1        0     0.000002500     0  m   N cfq4711 insert_request
  8,16   1        4     0.000003000  4711  D  WS 1024 + 8 [postgres: writer]
  8,16   0        5     0.000900000     0  C  WS 1024 + 8 [0]
259,0    2        1     1.000000001    12  Q  RA 0 + 256 [cat]
259,0    2        2     1.000000002    12  Q FWS [fsync]
259,0    2        3     1.000000003    12  Q FWS 0 + 0 [fsync]
259,0    2        4     1.000000004    12  Q   D 64 + 16777216 [fstrim]
259,0    2        5     1.000000005    12  Q   R 36 (12 00 00 00 24 00 ..) [smartd]
CPU1 (8,16):
 Reads Queued:           0,        0KiB\t Writes Queued:           1,        4KiB
Total (8,16):
Throughput (R/W): 0KiB/s / 4KiB/s
";

#[test]
fn msr() {
    let records = good(MSR, Format::Msr);
    let start = 12_816_637_200_000_000_000;
    assert_eq!(records, [record(start, R, 1_310_720, 8192, 0), record(start + 1_234_500, W, 4096, 512, 1)]);
    let headed = format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{MSR}");
    assert_eq!(good(&headed, Format::Msr), records);
}

#[test]
fn a_header_of_msr_names_the_order_of_the_columns() {
    // As a program on Windows writes it.
    let text = "\u{feff}Hostname,Timestamp,Response Time,Type,Size,Offset,DiskNumber\r\n\
                web,128166372000000000,703,Read,8192,1310720,3\r\nweb,128166372000012345,99,Write,512,4096,1\r\n";
    let start = 12_816_637_200_000_000_000;
    let expected = [record(start, R, 1_310_720, 8192, 3), record(start + 1_234_500, W, 4096, 512, 1)];
    assert_eq!(good(text, Format::Msr), expected);
    let mut reader = Reader::new(text.as_bytes(), "a.trace", Options::default());
    assert!(reader.next().is_some_and(|first| first.is_ok()));
    assert_eq!(reader.completion(), after(70_300));
    // Columns of other names are those of the usual order, if the others are in it.
    for header in
        ["Timestamp,Hostname,DiskNumber,Type,Offset,Length", "timestamp (ticks),host,disk,op,offset (B),size (B)"]
    {
        assert_eq!(good(&format!("{header}\n{MSR}"), Format::Msr), good(MSR, Format::Msr), "{header}");
    }
    // In an unknown order no line can be read.
    let unknown = "Timestamp,Hostname,DiskNumber,Type,Length,Offset\n1,web,0,Read,0,512\n";
    let (records, error) = read(unknown, Options { format: Some(Format::Msr), ..Options::default() });
    let error = error.unwrap();
    assert!(records.is_empty() && error.contains("a.trace:1: the header") && error.contains("Size"), "{error}");
    let skip = Options { format: Some(Format::Msr), bad_lines: BadLines::Skip, ..Options::default() };
    assert_eq!(read(unknown, skip), (Vec::new(), None));
}

#[test]
fn spc() {
    let expected = [record(0, R, 2048 * 512, 4096, 0), record(26_214_000, W, 8 * 512, 512, 2)];
    assert_eq!(good(SPC, Format::Spc), expected);
}

#[test]
fn mqsim() {
    assert_eq!(good(MQSIM, Format::Mqsim), [record(1000, R, 1 << 20, 4096, 0), record(2500, W, 8192, 512, 3)]);
}

#[test]
fn fio_waits_add_up_and_files_are_numbered_by_appearance() {
    let two = [
        record(0, R, 1_310_720, 8192, 0),
        record(250_000, W, 4096, 512, 1),
        record(250_000, Flush, 0, 0, 1),
        record(300_000, Meta, 0, 0, 0),
    ];
    assert_eq!(good(FIO2, Format::Fio), two);
    let three =
        [record(10_000, R, 1_310_720, 8192, 1), record(20_000, W, 4096, 512, 0), record(25_000, Flush, 0, 0, 0)];
    assert_eq!(good(FIO3, Format::Fio), three);
}

#[test]
fn blkparse_takes_one_event_of_each_request() {
    let queued = [
        record(0, W, 1 << 19, 4096, 0),
        record(1_000_000_001, R, 0, 131_072, 1),
        record(1_000_000_002, Flush, 0, 0, 1),
        record(1_000_000_003, Flush, 0, 0, 1),
        record(1_000_000_004, Meta, 32768, 0, 1),
    ];
    assert_eq!(good(BLKPARSE, Format::Blkparse), queued);
    let issued = read(BLKPARSE, Options { event: Event::Issue, ..Options::default() });
    assert_eq!(issued, (vec![record(3000, W, 1 << 19, 4096, 0)], None));
}

/// `blkparse -i sda > FILE` begins with the names of its inputs, and texts of several devices may stand one behind the other.
#[test]
fn blkparse_texts_of_several_devices_are_read_to_the_end() {
    let one = |device: u32| {
        format!("Input file sd{device}.blktrace.0 added\n{}", BLKPARSE.replace("8,16 ", &format!("8,{device:<3}")))
    };
    let text = one(0) + &one(16);
    let records = good(&text, Format::Blkparse);
    assert_eq!((records.len(), good(&one(0), Format::Blkparse).len()), (10, 5));
    let devices: Vec<u32> = records.iter().map(|record| record.device).collect();
    assert_eq!(devices, [0, 1, 1, 1, 1, 2, 1, 1, 1, 1]);
}

#[test]
fn a_bad_line_is_named_with_file_line_and_cure() {
    for (format, text, words) in [
        (
            Format::Msr,
            "1,h,0,Read,0,4096,1\n\n1,h,0,Rename,0,4096,1",
            &["a.trace:3:", "type", "Rename", "Read or Write"][..],
        ),
        (Format::Msr, "1,h,0,Read,0", &["a.trace:1:", "has 5 fields", "timestamp,host,disk", "bad_lines"]),
        (Format::Msr, "1,h,0,Read,0,0,1", &["size", "\"0\"", "1 to 4294967295"]),
        (Format::Msr, "1,h,0,Read,-8,512,1", &["offset", "\"-8\"", "whole number"]),
        (Format::Msr, "999999999999999999,h,0,Read,0,512,1", &["timestamp", "584 years"]),
        (Format::Spc, "0,1,512,x,0.5", &["opcode", "r or w"]),
        (Format::Spc, "0,1,512,r,5e-3", &["timestamp", "5e-3", "such as 12.000345"]),
        (Format::Spc, "0,99999999999999999,512,r,0", &["LBA", "below 2^55"]),
        (Format::Mqsim, "1 2 3 4", &["has 4 fields", "five numbers"]),
        (Format::Mqsim, "1 2 3 4 1 6", &["has 6 fields"]),
        (Format::Mqsim, "1 2 3 4 2", &["type", "1 for a read"]),
        (Format::Mqsim, "1 4294967296 3 4 1", &["device", "below 2^32"]),
        (Format::Mqsim, "1 2 3 8388608 1", &["sectors", "8388607"]),
        (Format::Fio, "a read 0 4096", &["the first line", "fio version 3 iolog"]),
        (Format::Fio, "fio version 3 iolog\n1 a wait 5", &["a.trace:2:", "action", "wait"]),
        (Format::Fio, "fio version 2 iolog\na read 0", &["a.trace:2:", "fields", "file action offset length"]),
        (Format::Blkparse, "8 0 1 0.0 1 Q W 8 + 8 [a]", &["device", "major,minor"]),
        (Format::Blkparse, "8,0 0 1 0.0 1 Q W 8 - 8 [a]", &["plus sign"]),
        (Format::Blkparse, "8,0 0 1 0.0 1 Q ?? 8 + 8 [a]", &["RWBS"]),
        (Format::Blkparse, "8,0 0 1 0.0 1 Q", &["has 0 fields"]),
    ] {
        let options = Options { format: Some(format), ..Options::default() };
        let (_, error) = read(text, options);
        let error = error.unwrap_or_else(|| panic!("{text:?} is no {format:?}"));
        for word in words {
            assert!(error.contains(word), "{text:?}: {word:?} is not in: {error}");
        }
    }
}

#[test]
fn bad_lines_end_the_trace_or_are_counted() {
    let text = "1 0 8 8 1\nnonsense\n2 0 8 8 0\n3 0 8\n4 0 8 8 1\n";
    let (records, error) = read(text, Options::default());
    assert_eq!(records.len(), 1);
    assert!(error.unwrap().starts_with("a.trace:2: "));
    let options = Options { bad_lines: BadLines::Skip, ..Options::default() };
    let mut reader = Reader::new(text.as_bytes(), "a.trace", options);
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 3);
    let (count, first) = reader.skipped();
    assert_eq!((count, first.map(|error| error.line)), (2, Some(2)));
}

#[test]
fn what_is_no_trace_is_said_to_be_none_and_an_empty_one_is_empty() {
    let skip = Options { bad_lines: BadLines::Skip, ..Options::default() };
    for options in [Options::default(), skip] {
        let (records, error) = read("dear diary,\nnothing happened\n", options);
        assert_eq!(records, []);
        let error = error.unwrap();
        assert!(error.contains("no known trace") && error.contains("msr, spc"), "{error}");
        assert_eq!(read("", options), (vec![], None));
        assert_eq!(read("\n \n\r\n", options), (vec![], None));
    }
}

#[test]
fn a_line_without_end_is_passed_over_in_bounded_memory() {
    let mut text = b"1 0 8 8 1\n".to_vec();
    text.extend(vec![b'7'; 100 * MAX_LINE_BYTES]);
    text.extend(b"\n2 0 8 8 0");
    let options = Options { bad_lines: BadLines::Skip, ..Options::default() };
    let mut reader = Reader::new(BufReader::with_capacity(64, &text[..]), "a.trace", options);
    assert_eq!(reader.by_ref().map(Result::unwrap).count(), 2);
    let (count, first) = reader.skipped();
    assert!(matches!(first, Some(TraceError { line: 2, fault: Fault::TooLong, .. })) && count == 1);
}

#[test]
fn a_line_may_be_exactly_as_long_as_allowed() {
    let mut text = vec![b' '; MAX_LINE_BYTES - 9];
    text.extend(b"1 0 8 8 1\n");
    let options = Options { format: Some(Format::Mqsim), ..Options::default() };
    assert_eq!(Reader::new(&text[..], "a", options).map(Result::unwrap).count(), 1);
    text.insert(0, b' ');
    assert!(matches!(
        Reader::new(&text[..], "a", options).next(),
        Some(Err(TraceError { line: 1, fault: Fault::TooLong, .. }))
    ));
}

/// An input that gives the bytes and then fails, as a file on a bad disk does.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() { Err(io::Error::other("the disk is gone")) } else { self.0.read(buffer) }
    }
}

#[test]
fn an_error_of_the_file_ends_the_trace_even_if_bad_lines_do_not() {
    let options = Options { bad_lines: BadLines::Skip, ..Options::default() };
    let mut reader = Reader::new(BufReader::new(Failing(b"1 0 8 8 1\n2 0 8 8 1\n")), "a.trace", options);
    assert!(matches!(reader.next(), Some(Ok(_))));
    assert!(matches!(reader.next(), Some(Ok(_))));
    let error = reader.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("the disk is gone"), "{error}");
    assert!(reader.next().is_none(), "an error is the end");
}

#[test]
fn a_trace_cannot_name_devices_without_end() {
    let mut text = String::from("fio version 3 iolog\n");
    for file in 0..=MAX_DEVICES {
        text.push_str(&format!("{file} /f{file} read 0 512\n"));
    }
    let (records, error) = read(&text, Options::default());
    assert_eq!(records.len(), MAX_DEVICES);
    assert!(error.unwrap().contains("more than 65536 devices"));
}

/// Reads `bytes` as every format and with every option, in chunks of `chunk` bytes; all records must be valid.
fn survives(bytes: &[u8], chunk: usize) {
    let formats = Format::ALL.into_iter().map(Some).chain([None]);
    for format in formats {
        for bad_lines in [BadLines::Stop, BadLines::Skip] {
            for event in [Event::Queue, Event::Issue] {
                let input = BufReader::with_capacity(chunk, bytes);
                let lines = bytes.iter().filter(|&&byte| byte == b'\n').count() + 1;
                let mut reader = Reader::new(input, "a", Options { format, event, bad_lines });
                let records: Vec<_> = reader.by_ref().collect();
                assert!(records.len() <= lines);
                for record in records.iter().flatten() {
                    assert_eq!(record.bytes > 0, matches!(record.kind, R | W));
                }
                if bad_lines == BadLines::Skip && format.is_some() {
                    assert!(records.iter().all(Result::is_ok), "bytes in memory can be read");
                }
                let left = reader.next();
                assert!(left.is_none());
            }
        }
    }
}

/// Random text made of characters that trace formats use.
fn near_trace() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just("Read"),
        Just("Write"),
        Just("r"),
        Just("w"),
        Just("0"),
        Just("1"),
        Just("8"),
        Just("512"),
        Just("18446744073709551615"),
        Just("4294967295"),
        Just("0.5"),
        Just("8,0"),
        Just("Q"),
        Just("D"),
        Just("C"),
        Just("R"),
        Just("WS"),
        Just("FF"),
        Just("N"),
        Just("+"),
        Just("[a]"),
        Just("read"),
        Just("write"),
        Just("wait"),
        Just("add"),
        Just("trim"),
        Just("sync"),
        Just("fio version 2 iolog"),
        Just("fio version 3 iolog"),
        Just("CPU0"),
        Just(","),
        Just(" "),
        Just("\t"),
        Just("\n"),
        Just("\r\n"),
        Just(""),
        Just("\u{fffd}"),
    ];
    let gap = prop_oneof![3 => Just(" "), 3 => Just(","), 1 => Just("\n"), 1 => Just("")];
    proptest::collection::vec((word, gap), 0..60)
        .prop_map(|words| words.into_iter().flat_map(|(word, gap)| [word, gap]).collect::<String>().into_bytes())
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), chunk in 1usize..64) {
        survives(&bytes, chunk);
    }

    #[test]
    fn no_words_make_it_panic(bytes in near_trace(), chunk in 1usize..64) {
        survives(&bytes, chunk);
    }

    /// A trace that was cut off gives the requests before the cut; only the last line is bad.
    #[test]
    fn a_cut_costs_one_line_at_most(which in 0usize..6, cut in 0usize..600, chunk in 1usize..64) {
        let text = [MSR, SPC, MQSIM, FIO2, FIO3, BLKPARSE][which];
        let cut = cut.min(text.len());
        let options = Options { bad_lines: BadLines::Skip, ..Options::default() };
        let whole = read(text, options).0;
        let mut reader = Reader::new(BufReader::with_capacity(chunk, &text.as_bytes()[..cut]), "a", options);
        let records: Vec<Record> = reader.by_ref().map_while(Result::ok).collect();
        prop_assert!(reader.skipped().0 <= 1);
        let complete = text[..cut].lines().count().saturating_sub(1);
        let sure = read(&text.lines().take(complete).fold(String::new(), |all, line| all + line + "\n"), options).0;
        prop_assert_eq!(&records[..sure.len().min(records.len())], &whole[..sure.len()]);
        prop_assert!(records.len() <= sure.len() + 1);
        survives(&text.as_bytes()[..cut], chunk);
    }

    /// The numbers of a trace are read as they were written.
    #[test]
    fn numbers_survive(
        rows in proptest::collection::vec((0u64..1 << 50, 0u64..1 << 40, 1u32..8_000_000, any::<bool>(), any::<u32>()), 1..50)
    ) {
        let kind = |read| if read { R } else { W };
        let mqsim: String = rows.iter().map(|&(at, lba, sectors, read, device)| {
            format!("{at} {device} {lba} {sectors} {}\n", u8::from(read))
        }).collect();
        let spc: String = rows.iter().map(|&(at, lba, sectors, read, device)| {
            let (whole, nanos) = (at / 1_000_000_000, at % 1_000_000_000);
            format!("{device},{lba},{},{},{whole}.{nanos:09}\n", sectors * 512, if read { "r" } else { "w" })
        }).collect();
        let expected: Vec<Record> = rows.iter().map(|&(at, lba, sectors, read, device)| {
            record(at, kind(read), lba * 512, sectors * 512, device)
        }).collect();
        prop_assert_eq!(good(&mqsim, Format::Mqsim), expected.clone());
        prop_assert_eq!(good(&spc, Format::Spc), expected);
        let msr: String = rows.iter().map(|&(at, lba, sectors, read, device)| {
            format!("{at},host,{device},{},{lba},{sectors},1\n", if read { "Read" } else { "Write" })
        }).collect();
        let expected: Vec<Record> = rows.iter().map(|&(at, lba, sectors, read, device)| {
            record(at * 100, kind(read), lba, sectors, device)
        }).collect();
        prop_assert_eq!(good(&msr, Format::Msr), expected);
    }
}
