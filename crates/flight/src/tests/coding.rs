//! Recordings come back as they were written, in the bytes that the format says.

use std::env;
use std::fs;
use std::io;
use std::path::Path;
use std::process;

use evenkeel_wire::{Input, put};
use proptest::prelude::*;

use super::{any_head, any_item, read, recorded, request};
use crate::column::{column, put_column};
use crate::columns::{Encoder, requests};
use crate::{Error, Head, Item, Kind, Name, Outcome, Reader, Recording, Request, Table, Writer, fuzz};

proptest! {
    #[test]
    fn items_come_back_as_they_were_written(
        head in any_head(),
        items in proptest::collection::vec(any_item(), 0..300),
        every in 1..100_usize,
    ) {
        let (bytes, _) = recorded(&head, &items, every);
        let mut reader = Reader::new(bytes.as_slice()).expect("a head");
        prop_assert_eq!(reader.head(), &head);
        prop_assert!(!reader.is_complete());
        let mut found = Vec::new();
        while let Some(item) = reader.next().expect("no error") {
            found.push(item);
        }
        prop_assert!(reader.is_complete());
        prop_assert_eq!(&found, &items);
        fuzz::file(&bytes);
    }

    #[test]
    fn columns_come_back_in_the_shorter_form(
        values in proptest::collection::vec(prop_oneof![0..9_u64, 1_000..1_500_u64, any::<u64>()], 1..200),
    ) {
        let mut bytes = Vec::new();
        put_column(&mut bytes, &mut Vec::new(), values.iter().copied());
        let mut varints = Vec::new();
        values.iter().for_each(|value| put(&mut varints, *value));
        prop_assert!(bytes.len() <= varints.len() + 1);
        let mut input = Input::new(&bytes);
        prop_assert_eq!(column(&mut input, values.len()), Some(values));
        prop_assert!(input.is_empty());
    }
}

#[test]
fn columns_are_in_the_bytes_of_the_format() {
    let written = |values: &[u64]| {
        let mut bytes = Vec::new();
        put_column(&mut bytes, &mut Vec::new(), values.iter().copied());
        bytes
    };
    assert_eq!(written(&[7, 7, 7]), [0, 7], "equal values take no bits");
    assert_eq!(written(&[5, 6, 8, 5]), [2, 5, 0b0011_0100], "distances 0, 1, 3, 0 in two bits, the lowest first");
    assert_eq!(written(&[0, 0, 300]), [65, 0, 0, 0xac, 2], "one large value");
}

#[test]
fn a_block_is_in_the_bytes_of_the_format() {
    let only = Request {
        arrival_ns: 2,
        queue_ns: 3,
        device_ns: 4,
        tenant: 5,
        client: 6,
        volume: 7,
        kind: Kind::Write,
        durable: true,
        retried: true,
        offset: 3 << 12,
        length: 1 << 12,
        outcome: Outcome::Failed(5),
    };
    let mut bytes = Vec::new();
    Encoder::default().encode(&[only], &mut bytes);
    let dictionary: [u8; 11] = [1, 0, 1 + 8 + 16, 0, 6, 0, 5, 0, 6, 0, 7];
    let columns: [u8; 13] = [0, 0, 9, 0, 0, 0, 3, 0, 4, 0, 1, 0, 6];
    assert_eq!(bytes, [&[12_u8][..], &dictionary[..], &columns[..]].concat());
    assert_eq!(requests(&mut Input::new(&bytes), 1), Some(vec![only]));
}

#[test]
fn a_block_ends_at_its_bounds() {
    let mut writer = Writer::new(Vec::new(), &Head::default()).expect("memory");
    let mut written = |item: Item| {
        let before = writer.bytes();
        writer.write(&item).expect("memory");
        writer.bytes() > before
    };
    let full: Vec<u64> = (1..=10_000).filter(|n| written(Item::Request(request(*n)))).collect();
    assert_eq!(full, [4_096, 8_192]);
    let name = |number| Name { table: Table::Client, number, name: "n".repeat(4_000), pool: String::new(), bytes: 0 };
    let full: Vec<u32> = (1..=20).filter(|n| written(Item::Name(name(*n)))).collect();
    assert_eq!(full, [17], "64 KiB of names");
    let lost = Item::Lost { requests: 1, from_ns: 0, to_ns: 0 };
    let full: Vec<u32> = (1..=5_000).filter(|_| written(lost.clone())).collect();
    assert_eq!(full, [4_093], "three names are in the block already");
    let (items, end) = read(&writer.finish().expect("memory"));
    assert_eq!((items.len(), end.expect("no error")), (10_000 + 20 + 5_000, true));
}

#[test]
fn items_out_of_range_are_refused_and_writing_goes_on() {
    let mut writer = Writer::new(Vec::new(), &Head::default()).expect("memory");
    let name = Name { table: Table::Tenant, number: 0, name: "n".repeat(4_097), pool: String::new(), bytes: 0 };
    let refused = [
        Item::Request(Request { arrival_ns: u64::MAX, ..request(0) }),
        Item::Request(Request { outcome: Outcome::Failed(0), ..request(0) }),
        Item::Lost { requests: 1, from_ns: 2, to_ns: 1 },
        Item::Name(name),
    ];
    for item in &refused {
        let error = writer.write(item).expect_err("it is out of range");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
    }
    let far = Item::Request(Request { offset: u64::MAX, length: u64::MAX, ..request(0) });
    writer.write(&far).expect("a client can send any offset");
    let (items, end) = read(&writer.finish().expect("memory"));
    assert_eq!((items, end.expect("no error")), (vec![far], true));
    let long = Head { policy: " ".repeat(4 << 20), ..Head::default() };
    assert_eq!(Writer::new(Vec::new(), &long).expect_err("too long").kind(), io::ErrorKind::InvalidInput);
}

/// A disk that is full after so many bytes.
struct Full(usize);

impl io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = bytes.len().min(self.0);
        self.0 -= written;
        if written == 0 { Err(io::Error::from(io::ErrorKind::StorageFull)) } else { Ok(written) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn nothing_is_written_behind_a_block_that_was_cut() {
    let mut writer = Writer::new(Full(40), &Head::default()).expect("room for the head");
    writer.write(&Item::Request(request(1))).expect("not written yet");
    assert_eq!(writer.pending(), 1);
    assert_eq!(writer.flush().expect_err("no room").kind(), io::ErrorKind::StorageFull);
    assert_eq!(writer.pending(), 1, "it is in no block");
    let later = writer.write(&Item::Request(request(2))).expect_err("it would stand behind half a block");
    assert!(later.to_string().contains("record to another file"), "{later}");
    assert!(writer.finish().is_err(), "an end mark would follow half a block");
}

#[test]
fn a_file_is_read_in_the_order_of_arrival() {
    let path = env::temp_dir().join(format!("evenkeel-flight-{}.flight", process::id()));
    let head = Head { started_unix_ns: 7, source: "serve".into(), policy: "[pools]".into(), anonymised: false };
    let name = |name: &str| Name { table: Table::Tenant, number: 1, name: name.into(), pool: String::new(), bytes: 0 };
    let (late, early) = (request(900), Request { tenant: 2, ..request(100) });
    let items = [
        Item::Name(name("old")),
        Item::Request(late),
        Item::Lost { requests: 5, from_ns: 1, to_ns: 2 },
        Item::Request(early),
        Item::Lost { requests: 6, from_ns: 3, to_ns: 3 },
        Item::Name(name("new")),
    ];
    fs::write(&path, recorded(&head, &items, 4).0).expect("a file");
    let recording = Recording::read(&path).expect("a recording");
    fs::remove_file(&path).expect("the file");
    let names = vec![name("old"), name("new")];
    assert_eq!(recording, Recording { head, names, requests: vec![early, late], lost: 11, complete: true });
    assert_eq!(recording.name(Table::Tenant, 1), Some(&name("new")));
    assert_eq!(recording.name(Table::Volume, 1), None);
    assert_eq!(recording.by_number(Table::Tenant).get(&1), Some(&&name("new")));
    assert!(recording.by_number(Table::Volume).is_empty());

    let missing = Recording::read(Path::new("/nonexistent/file")).expect_err("there is none");
    assert!(missing.to_string().starts_with("/nonexistent/file: cannot read the recording: "), "{missing}");
    assert!(matches!(missing, Error::File { .. }));
}
