//! The core: blocks as bytes and back, coarsening, and which file goes first.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::{decision, second, series};
use crate::bound::{Used, victim};
use crate::coarsener::Coarsener;
use crate::codec::{Block, Codec};
use crate::fields::{FIELDS, figures};
use crate::figures::{Figures, Sample, Slice};
use crate::frame::{Head, Tail, Unusable, frame, payload};
use crate::fuzz;
use crate::mark::{Event, Mark};
use crate::resolution::{Resolution, Stream};

const SECONDS: Stream = Stream::of(Resolution::Second);

/// Figures with fields of this kind.
fn any_figures(field: impl Strategy<Value = u64>) -> impl Strategy<Value = Figures> {
    proptest::collection::vec(field, FIELDS)
        .prop_map(|fields| figures(&<[u64; FIELDS]>::try_from(fields).expect("one for each")))
}

/// Seconds in order with gaps, of a few tenants.
fn any_seconds(field: impl Strategy<Value = u64>) -> impl Strategy<Value = Vec<Slice>> {
    let samples = proptest::collection::btree_map(0..5_u64, any_figures(field), 0..5);
    proptest::collection::vec((prop_oneof![8 => Just(0_u64), 1 => 0..2_000_u64], samples), 0..60).prop_map(|steps| {
        let mut at = 600;
        let slice = |(gap, samples): (u64, BTreeMap<u64, Figures>)| {
            at += gap + 1;
            let samples = samples.into_iter().map(|(tenant, figures)| Sample { series: series(tenant), figures });
            Slice { at, seconds: 1, recorded: 1, samples: samples.collect() }
        };
        steps.into_iter().map(slice).collect()
    })
}

/// A file with these seconds.
fn file(slices: &[Slice]) -> Vec<u8> {
    let mut file = Head { stream: SECONDS, start: 600 }.bytes();
    let mut codec = Codec::new(SECONDS, 600);
    for slice in slices {
        let mut payload = Vec::new();
        codec.encode(&Block::from(slice.clone()), &mut payload);
        frame(&mut file, &payload);
    }
    file
}

proptest! {
    #[test]
    fn seconds_come_back_as_they_were_written(
        slices in any_seconds(prop_oneof![0..9_u64, 0..1_u64 << 40, any::<u64>()]),
    ) {
        let (mut writer, mut reader) = (Codec::new(SECONDS, 600), Codec::new(SECONDS, 600));
        for block in slices.into_iter().map(Block::from) {
            let mut payload = Vec::new();
            writer.encode(&block, &mut payload);
            prop_assert_eq!(reader.decode(&payload), Some(block));
        }
    }

    #[test]
    fn marks_come_back_as_they_were_written(
        steps in proptest::collection::vec(
            (0..90_u64, proptest::collection::vec(("[aä]{0,2}", any::<bool>(), 0..9_u64), 0..4)),
            0..20,
        ),
    ) {
        let (mut writer, mut reader) = (Codec::new(Stream::MARKS, 600), Codec::new(Stream::MARKS, 600));
        let mut at = 600;
        for (gap, events) in steps {
            at += gap + 1;
            let mark = |(text, begins, before): (String, bool, u64)| {
                let (level, kind, about) = (String::from("warning"), text.clone(), text);
                let event = Event::Trouble { begins, level, kind, about, sentence: "a sentence".into() };
                let program = Event::Program { begins: before % 2 == 0, name: "server".into(), version: "1".into() };
                match (begins, before % 3) {
                    (true, 0) => Mark { at: at - before, event: program },
                    (true, _) => Mark { at: at - before, event },
                    (false, _) => decision(at - before),
                }
            };
            let block = Block { slice: Slice::second(at, &[]), marks: events.into_iter().map(mark).collect() };
            let mut payload = Vec::new();
            writer.encode(&block, &mut payload);
            prop_assert_eq!(reader.decode(&payload), Some(block));
        }
    }

    /// At each resolution no second, request or maximum is lost or counted twice, and steps are in order.
    #[test]
    fn coarsening_keeps_sums_and_maxima(seconds in any_seconds(0..1_u64 << 40)) {
        let total = |slices: &[&Slice]| {
            let mut total = Figures::default();
            slices.iter().flat_map(|slice| &slice.samples).for_each(|sample| total.add(&sample.figures));
            (slices.iter().map(|slice| slice.recorded).sum::<u64>(), total)
        };
        let expected = total(&seconds.iter().collect::<Vec<_>>());
        // Each from the one before, and the coarsest also at once.
        let (mut finer, mut coarsest) = (seconds.clone(), Vec::new());
        for resolution in [Resolution::TenSeconds, Resolution::Minute, Resolution::TenMinutes] {
            let (mut coarsener, mut steps) = (Coarsener::new(resolution), Vec::new());
            finer.iter().for_each(|slice| coarsener.push(slice, &mut steps));
            steps.extend(coarsener.take());
            prop_assert!(steps.is_sorted_by(|a, b| a.end() <= b.at));
            let fits = |slice: &Slice| slice.at.is_multiple_of(slice.seconds) && slice.recorded <= slice.seconds;
            prop_assert!(steps.iter().all(fits));
            prop_assert_eq!(total(&steps.iter().collect::<Vec<_>>()), expected);
            finer = steps;
        }
        let mut coarsener = Coarsener::new(Resolution::TenMinutes);
        seconds.iter().for_each(|second| coarsener.push(second, &mut coarsest));
        coarsest.extend(coarsener.take());
        prop_assert_eq!(coarsest, finer);
    }

    #[test]
    fn damaged_files_do_no_harm(
        slices in any_seconds(0..1_u64 << 20),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        noise in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut bytes = file(&slices);
        fuzz::file(&bytes);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        fuzz::file(&bytes);
        fuzz::payloads(&bytes);
        fuzz::payloads(&noise);
    }
}

#[test]
fn payloads_of_few_bytes_do_no_harm() {
    // A second without samples, one with a name and a sample, and the latter with each of its bytes changed.
    let block = [1, 1, 1, 1, b'p', 0, 0, 1, 0, 3, 8, 16, 0];
    let length = block.len() as u8;
    fuzz::payloads(&[0, 5, 0, 1, 0, 0, 0]);
    for (at, byte) in (0..block.len()).flat_map(|at| [0, 1, 2, 0x7f, 0x80, 0xff].map(|byte| (at, byte))) {
        for stream in 0..5_u8 {
            let mut changed = block;
            changed[at] = byte;
            fuzz::payloads(&[&[stream, length][..], &block[..], &[length][..], &changed[..]].concat());
        }
    }
}

#[test]
fn a_second_costs_little_and_an_idle_one_next_to_nothing() {
    let mut codec = Codec::new(SECONDS, 600);
    let mut lengths = Vec::new();
    for at in 600..700 {
        let mut payload = Vec::new();
        codec.encode(&Slice::second(at, &second(at, 1_000).samples).into(), &mut payload);
        lengths.push(payload.len());
    }
    let later: usize = lengths[1..].iter().sum();
    assert!(later / 99 < 20_000, "{} bytes for 1,000 tenants", later / 99);
    let mut payload = Vec::new();
    let idle = Sample { series: series(0), figures: Figures::default() };
    codec.encode(&Slice::second(700, &[idle]).into(), &mut payload);
    assert_eq!(payload, [0, 1, 0, 0, 0]);
}

#[test]
fn heads_and_frames_say_what_is_wrong() {
    let head = Head { stream: Stream::of(Resolution::Minute), start: 600 };
    let bytes = head.bytes();
    assert_eq!(Head::read(&bytes), Ok(head));
    for at in 0..bytes.len() {
        assert_eq!(Head::read(&bytes[..at]), Err(Unusable::Short));
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(Head::read(&damaged).is_err(), "byte {at}");
    }
    let mut framed = Vec::new();
    frame(&mut framed, b"payload");
    assert_eq!(payload(&framed), Ok(Some(&b"payload"[..])));
    assert_eq!(payload(&[0; 40]), Err(Tail::Damaged), "zeros after a loss of power");
    for at in 1..framed.len() {
        assert_eq!(payload(&framed[..at]), Err(Tail::Cut));
        let mut damaged = framed.clone();
        damaged[at] ^= 1;
        assert!(payload(&damaged).is_err(), "byte {at}");
    }
}

#[test]
fn the_oldest_become_coarser_before_they_are_removed() {
    let used = |start, files, bytes| Used { start: Some(start), files, bytes };
    let few = [used(900, 12, 300), used(500, 3, 100), used(100, 3, 100), used(0, 9, 400), used(0, 1, 10)];
    let goes = |change: &[(usize, Used)]| {
        let mut used = few;
        change.iter().for_each(|&(n, of)| used[n] = of);
        victim(&used, 1_000)
    };
    assert_eq!(goes(&[]), Some(2), "the oldest that is not coarsest");
    assert_eq!(goes(&[(2, used(500, 3, 100))]), Some(1), "the finer of two that begin together");
    let coarse = [(1, used(800, 1, 10)), (2, used(700, 1, 10))];
    assert_eq!(goes(&coarse), Some(3), "seconds have less than their half");
    assert_eq!(goes(&[(0, used(900, 12, 501))]), Some(0), "more than half");
    assert_eq!(goes(&[(4, used(0, 2, 126))]), Some(4), "more than an eighth");
    let only = [0, 1, 2, 3, 4].map(|n| (n, used(0, 1, 900)));
    assert_eq!(goes(&only), None, "never a file that is written");
}
