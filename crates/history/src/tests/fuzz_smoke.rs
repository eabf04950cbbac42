//! Runs the fuzz target on stable Rust, with files that are made here, the stored corpus, and mutations of both.

#[allow(dead_code, reason = "the part for corpora that are only stored")]
#[path = "../../../../fuzz/smoke.rs"]
mod smoke;

use super::{T0, decision, second};
use crate::Slice;
use crate::codec::{Block, Codec};
use crate::frame::{Head, frame};
use crate::fuzz;
use crate::resolution::{Resolution, Stream};
use smoke::smoke_with;

/// A file of a stream with these blocks.
fn file(stream: Stream, blocks: Vec<Block>) -> Vec<u8> {
    let mut file = Head { stream, start: T0 }.bytes();
    for payload in payloads(stream, &blocks) {
        frame(&mut file, &payload);
    }
    file
}

fn payloads(stream: Stream, blocks: &[Block]) -> Vec<Vec<u8>> {
    let mut codec = Codec::new(stream, T0);
    let encoded = blocks.iter().map(|block| {
        let mut payload = Vec::new();
        codec.encode(block, &mut payload);
        payload
    });
    encoded.collect()
}

/// Files of seconds and of marks, one that was cut off, and blocks in the form that [`fuzz::payloads`] reads.
fn made() -> Vec<(String, Vec<u8>)> {
    let seconds = Stream::of(Resolution::Second);
    let block = |at| Block::from(Slice::second(at, &second(at, at % 3).samples));
    let of_seconds: Vec<Block> = (T0..T0 + 12).map(block).collect();
    let mark = |at| Block { slice: Slice::second(at, &[]), marks: vec![decision(at)] };
    let marks = file(Stream::MARKS, (T0..T0 + 3).map(mark).collect());
    let mut parts = vec![Stream::ALL.iter().position(|stream| *stream == seconds).unwrap_or(0) as u8];
    for payload in payloads(seconds, &of_seconds[..2]).into_iter().filter(|payload| payload.len() < 256) {
        parts.push(payload.len() as u8);
        parts.extend(payload);
    }
    let whole = file(seconds, of_seconds);
    let cut = whole[..whole.len() * 2 / 3].to_vec();
    let all = [("seconds", whole), ("cut", cut), ("marks", marks), ("payloads", parts)];
    all.map(|(name, bytes)| (format!("{name}.evh"), bytes)).into()
}

#[test]
fn history() {
    smoke_with("history", 10_000, fuzz::history, made());
}
