//! Bodies of the fuzz targets, so that the same code runs under a fuzzer and, on stable, in the tests.
//!
//! Each takes arbitrary bytes and panics if a property does not hold.

use crate::coarsener::Coarsener;
use crate::codec::Codec;
use crate::content::Content;
use crate::frame::{Head, frame};
use crate::resolution::{Resolution, Stream};

/// The body of the target: reads the bytes as a file of each stream, and as blocks behind a head.
pub fn history(data: &[u8]) {
    file(data);
    payloads(data);
}

/// Reads the bytes as a file of each stream. The blocks must be in the order of time, and the same after they were written and
/// read again.
pub fn file(data: &[u8]) {
    for stream in Stream::ALL {
        let Ok(mut content) = Content::new(data.to_vec(), stream) else { continue };
        let start = Head::read(data).map_or(0, |head| head.start);
        let (mut writer, mut reader) = (Codec::new(stream, start), Codec::new(stream, start));
        // Coarsening must cope with any figures.
        let (mut coarsener, mut done) = (Coarsener::new(Resolution::TenMinutes), Vec::new());
        let (mut end, mut recorded) = (start, 0);
        while let Ok(Some(block)) = content.block() {
            let (at, until) = (block.slice.at, block.slice.end());
            assert!(end <= at && at < until, "{at} to {until} after {end}");
            end = until;
            let mut payload = Vec::new();
            writer.encode(&block, &mut payload);
            assert_eq!(reader.decode(&payload).as_ref(), Some(&block), "something else was written");
            recorded += block.slice.recorded;
            coarsener.push(&block.slice, &mut done);
        }
        assert!(content.read <= data.len(), "more than all");
        done.extend(coarsener.take());
        assert!(done.is_sorted_by(|a, b| a.at < b.at), "steps out of order");
        assert_eq!(done.iter().map(|slice| slice.recorded).sum::<u64>(), recorded, "seconds lost or counted twice");
    }
}

/// Reads the bytes as the blocks of a file behind a head and checksums that are right, which no fuzzer would find: the first
/// byte selects the stream, and each block has its length before it.
pub fn payloads(data: &[u8]) {
    let Some((&first, mut data)) = data.split_first() else { return };
    let stream = Stream::ALL[usize::from(first) % Stream::ALL.len()];
    let mut bytes = Head { stream, start: 600 }.bytes();
    while let Some((&length, rest)) = data.split_first() {
        let (payload, rest) = rest.split_at(usize::from(length).min(rest.len()));
        frame(&mut bytes, payload);
        data = rest;
    }
    file(&bytes);
}
