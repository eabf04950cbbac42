//! Crashes, damage and hostile input cause an end or an error, never other items.

use proptest::prelude::*;

use super::{any_head, any_item, read, recorded, request};
use crate::frame::{END, FRAME, Frame, HEAD, head_bytes};
use crate::{Error, Head, Item, Reader, fuzz};

proptest! {
    #[test]
    fn a_cut_leaves_whole_blocks(
        head in any_head(),
        items in proptest::collection::vec(any_item(), 0..40),
        every in 1..20_usize,
        cut in any::<prop::sample::Index>(),
    ) {
        let (bytes, ends) = recorded(&head, &items, every);
        let cut = cut.index(bytes.len());
        let (found, end) = read(&bytes[..cut]);
        match ends.iter().rev().find(|(at, _)| *at <= cut) {
            Some((_, count)) => {
                prop_assert_eq!(&found, &items[..*count]);
                prop_assert!(matches!(end, Ok(false)), "{end:?}");
            }
            None => prop_assert!(matches!(end, Err(Error::Short)), "{end:?}"),
        }
    }

    #[test]
    fn a_changed_byte_is_found(
        head in any_head(),
        items in proptest::collection::vec(any_item(), 0..40),
        every in 1..20_usize,
        place in any::<prop::sample::Index>(),
        change in 1..=u8::MAX,
    ) {
        let (mut bytes, ends) = recorded(&head, &items, every);
        let place = place.index(bytes.len());
        bytes[place] ^= change;
        let (found, end) = read(&bytes);
        prop_assert!(!matches!(end, Ok(true)), "{end:?}");
        prop_assert!(items.starts_with(&found));
        // Behind the head all blocks before the changed byte are read.
        let before = ends.iter().rev().find(|(at, _)| *at <= place).map(|(_, count)| *count);
        prop_assert_eq!(before.unwrap_or(0), found.len());
        prop_assert!(before.is_some() || end.is_err(), "{end:?}");
    }

    #[test]
    fn noise_does_no_harm(
        items in proptest::collection::vec(any_item(), 0..20),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        noise in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let (mut bytes, _) = recorded(&Head::default(), &items, 7);
        for (place, byte) in damage {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        fuzz::file(&bytes);
        fuzz::payloads(&bytes);
        fuzz::file(&noise);
        fuzz::payloads(&noise);
    }
}

/// A recording of two blocks with a request each, without the end mark, and the bytes of its head and of one block.
fn two_blocks() -> (Vec<u8>, usize, usize) {
    let items = [Item::Request(request(1)), Item::Request(request(1))];
    let (mut bytes, ends) = recorded(&Head::default(), &items, 1);
    bytes.truncate(ends[2].0);
    (bytes, ends[0].0, ends[1].0 - ends[0].0)
}

#[test]
fn what_a_loss_of_power_leaves_is_an_end() {
    let (bytes, head, block) = two_blocks();
    let one = vec![Item::Request(request(1))];
    let reads = |bytes: &[u8]| {
        let (items, end) = read(bytes);
        (items, end.expect("no error"))
    };
    assert_eq!(reads(&bytes[..head]), (vec![], false));
    let mut zeros = bytes[..head + block].to_vec();
    zeros.resize(zeros.len() + 2_000_000, 0);
    assert_eq!(reads(&zeros), (one.clone(), false), "a file that was extended and not written");
    let mut half = bytes.clone();
    half[head + block + FRAME + 5..].fill(0);
    assert_eq!(reads(&half), (one.clone(), false), "a last block of which some pages were written");
    half.extend_from_slice(&[0; 100]);
    assert_eq!(reads(&half), (one, false), "and zeros behind it");
}

#[test]
fn damage_before_the_end_is_an_error_with_its_offset() {
    let (bytes, head, block) = two_blocks();
    for place in [head, head + 12, head + FRAME, head + block - 1] {
        let mut damaged = bytes.clone();
        damaged[place] ^= 1;
        let mut reader = Reader::new(damaged.as_slice()).expect("a head");
        let error = reader.next().expect_err("damage");
        assert!(matches!(error, Error::Damaged { offset } if offset == head as u64), "byte {place}: {error}");
        assert!(error.to_string().contains(&format!("damaged at byte {head}")), "{error}");
        assert!(matches!(reader.next(), Ok(None)), "an error is the end");
        assert!(!reader.is_complete());
    }
}

#[test]
fn other_files_are_no_recordings() {
    let head = head_bytes(&Head { source: "serve".into(), ..Head::default() }).expect("a head");
    let error = |bytes: &[u8]| Reader::new(bytes).expect_err("no recording");
    assert!(matches!(error(b"fio version 2 iolog"), Error::NotARecording));
    assert!(matches!(error(b"fio"), Error::NotARecording));
    for length in 0..head.len() {
        assert!(matches!(error(&head[..length]), Error::Short), "{length} bytes");
    }
    for place in 0..head.len() {
        let mut damaged = head.clone();
        damaged[place] ^= 0x80;
        let error = error(&damaged);
        match place {
            0..8 => assert!(matches!(error, Error::NotARecording), "{error}"),
            8 => assert!(matches!(error, Error::Version { found: 0x81 }), "{error}"),
            9 => assert!(matches!(error, Error::Version { found: 0x8001 }), "{error}"),
            10..14 => assert!(matches!(error, Error::Short | Error::Damaged { offset: 0 }), "{error}"),
            _ => assert!(matches!(error, Error::Damaged { offset: 0 }), "{error}"),
        }
    }
    assert_eq!(HEAD, head.len() - "serve".len() - 4, "start, two lengths and a flag");
}

/// The error of a recording with one block of this payload, and the offset of the payload.
fn error_of(requests: u32, payload: &[u8]) -> (Error, u64) {
    let mut bytes = head_bytes(&Head::default()).expect("a head");
    bytes.extend_from_slice(&Frame::around(payload, requests).bytes());
    let begin = bytes.len() as u64;
    bytes.extend_from_slice(payload);
    let mut reader = Reader::new(bytes.as_slice()).expect("a head");
    (reader.next().expect_err("a number out of range"), begin)
}

/// The payload of a block with one request, as in the test of the format.
const BLOCK: [u8; 26] = [0, 12, 1, 0, 25, 0, 6, 0, 5, 0, 6, 0, 7, 0, 0, 9, 0, 0, 0, 3, 0, 4, 0, 1, 0, 6];

#[test]
fn numbers_out_of_range_are_errors_with_their_offset() {
    // Place of a byte, its new value, and the number of bytes that are read before the error.
    let changes = [
        (1, 64, 2, "a unit of 2^64"),
        (2, 2, 3, "more combinations than requests"),
        (3, 66, 4, "numbers of 66 bits"),
        (4, 32, 13, "an unknown flag"),
        (4, 6, 13, "an unknown kind"),
        (14, 1, 26, "a combination that is not in the dictionary"),
        (19, 10, 26, "an admission before the start"),
        (0, 1, 2, "a name behind the last request"),
    ];
    for (place, value, read, why) in changes {
        let mut payload = BLOCK;
        payload[place] = value;
        let (error, begin) = error_of(1, &payload);
        assert!(matches!(error, Error::Invalid { offset } if offset == begin + read), "{why}: {error}");
    }
    let (error, begin) = error_of(1, &[&BLOCK[..], &[0][..]].concat());
    assert!(matches!(error, Error::Invalid { offset } if offset == begin + 26), "a byte too many: {error}");
    for (requests, payload) in [(4_097, BLOCK.to_vec()), (END, vec![1, 0, 0]), (END, vec![0, 0])] {
        let (error, begin) = error_of(requests, &payload);
        assert!(matches!(error, Error::Invalid { offset } if offset + FRAME as u64 == begin), "{error}");
    }
}

#[test]
fn a_frame_cannot_demand_memory() {
    let mut bytes = head_bytes(&Head::default()).expect("a head");
    let head = bytes.len() as u64;
    bytes.extend_from_slice(&Frame { length: u32::MAX, requests: 1, sum: 0 }.bytes());
    let error = Reader::new(bytes.as_slice()).expect("a head").next().expect_err("too long");
    assert!(matches!(error, Error::Invalid { offset } if offset == head), "{error}");
}

#[test]
fn blocks_of_few_bytes_do_no_harm() {
    let block = |payload: &[u8]| [&[1, payload.len() as u8][..], payload].concat();
    fuzz::payloads(&[block(&BLOCK), vec![255, 3, 1, 0, 0]].concat());
    for place in 0..BLOCK.len() {
        for value in [0, 1, 2, 0x3f, 0x40, 0x41, 0x7f, 0x80, 0xff] {
            let mut changed = BLOCK;
            changed[place] = value;
            fuzz::payloads(&[block(&BLOCK), block(&changed)].concat());
        }
    }
}
