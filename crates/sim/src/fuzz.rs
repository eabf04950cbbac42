//! Bodies of the fuzz targets: the same code runs under a fuzzer and, on stable Rust, in the tests.
//!
//! Each body takes arbitrary bytes and panics if a property does not hold.

use evenkeel_control::units::Kind;

use crate::workload::trace::{BadLines, Completion, Event, Format, Options, Reader};

/// Reads the bytes as a trace. The first byte chooses the format, the events and the treatment of bad lines. Reading must end;
/// no line may give more than one record; readers that stop at, and that skip, a bad line must agree on the records before it;
/// only formats with latencies state completions.
pub fn trace(data: &[u8]) {
    let [choice, text @ ..] = data else { return };
    let format = Format::ALL.get(usize::from(choice & 7)).copied();
    let event = if choice & 8 == 0 { Event::Queue } else { Event::Issue };
    let lines = text.split(|&byte| byte == b'\n').count();
    let read = |bad_lines| {
        let mut reader = Reader::new(text, "fuzz", Options { format, event, bad_lines });
        let mut records = Vec::new();
        let mut failed = false;
        while let Some(record) = reader.next() {
            assert!(!failed, "a record behind an error");
            let has_latencies = matches!(reader.format(), Some(Format::Msr | Format::Blkparse));
            assert!(has_latencies || reader.completion() == Completion::Unstated);
            match record {
                Ok(record) => records.push(record),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    failed = true;
                }
            }
        }
        assert!(records.len() <= lines, "{} records of {lines} lines", records.len());
        assert!(reader.skipped().0 as usize <= lines);
        (records, failed)
    };
    let (stopped, failed) = read(BadLines::Stop);
    for record in &stopped {
        let moves_data = matches!(record.kind, Kind::Read | Kind::Write);
        assert_eq!(moves_data, record.bytes > 0, "{record:?}");
    }
    let (all, _) = read(BadLines::Skip);
    // Which format it is may be found out behind the first bad line.
    if format.is_some() {
        assert!(all.starts_with(&stopped), "records before a bad line depend on what becomes of it");
        assert!(failed || all == stopped);
    }
}
