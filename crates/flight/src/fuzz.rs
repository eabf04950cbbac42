//! Bodies of the fuzz targets, so that the same code runs under a fuzzer and, on stable, in the tests.
//!
//! Each takes arbitrary bytes and panics if a property does not hold.

use crate::frame::{END, Frame, head_bytes};
use crate::reader::Reader;
use crate::request::Head;
use crate::writer::Writer;

/// Number of items after which reading stops: few bytes can be many items.
const MOST: usize = 1 << 16;

/// The body of the target: reads the bytes as a recording, and as blocks behind a head.
pub fn flight(data: &[u8]) {
    file(data);
    payloads(data);
}

/// Reads the bytes as a recording. Its items must be the same after they were written and read again.
pub fn file(data: &[u8]) {
    let Ok(mut reader) = Reader::new(data) else { return };
    let mut writer = Writer::new(Vec::new(), reader.head()).expect("a head that was read can be written");
    let mut items = 0;
    while items < MOST {
        let Ok(Some(item)) = reader.next() else { break };
        writer.write(&item).expect("an item that was read can be written");
        items += 1;
    }
    let written = writer.finish().expect("memory can be written");
    let mut first = Reader::new(data).expect("it was read before");
    let mut second = Reader::new(written.as_slice()).expect("it was written");
    assert_eq!(first.head(), second.head(), "another head was written");
    for _ in 0..items {
        let item = first.next().expect("it was read before");
        assert_eq!(item, second.next().expect("it was written"), "something else was written");
    }
    assert_eq!(second.next().expect("it was written"), None, "more was written");
    assert!(second.is_complete(), "the end mark is missing");
}

/// Reads the bytes as the blocks of a recording behind a head and checksums that are right, which no fuzzer would find: each
/// block has before it a byte for its number of requests (255 for the end mark) and one for its length.
pub fn payloads(mut data: &[u8]) {
    let mut bytes = head_bytes(&Head::default()).expect("a short head");
    while let [count, length, remainder @ ..] = data {
        let (payload, next) = remainder.split_at(usize::from(*length).min(remainder.len()));
        let requests = if *count == u8::MAX { END } else { u32::from(*count) };
        bytes.extend_from_slice(&Frame::around(payload, requests).bytes());
        bytes.extend_from_slice(payload);
        data = next;
    }
    file(&bytes);
}
