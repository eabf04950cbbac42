//! Tests of the whole crate, and what they share.

mod coding;
mod damage;
mod density;
mod exports;
mod fuzz_smoke;
mod scrambling;

use proptest::prelude::*;

use crate::{Error, Head, Item, Kind, Name, Outcome, Reader, Request, Table, Writer};

/// A request of 4 KiB with times that can be recognised.
fn request(arrival_ns: u64) -> Request {
    Request {
        arrival_ns,
        queue_ns: 2_000,
        device_ns: 100_000,
        tenant: 1,
        client: 3,
        offset: 4_096,
        length: 4_096,
        ..Request::default()
    }
}

fn any_time() -> impl Strategy<Value = u64> {
    prop_oneof![0..9_u64, 0..1_u64 << 20, 0..1_u64 << 61]
}

fn any_place() -> impl Strategy<Value = u64> {
    prop_oneof![0..9_u64, (0..1_u64 << 30).prop_map(|unit| unit << 12), any::<u64>()]
}

fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..3_u32, 1 => any::<u32>()]
}

fn any_outcome() -> impl Strategy<Value = Outcome> {
    prop_oneof![6 => Just(Outcome::Done), 1 => Just(Outcome::Cancelled), 1 => (1..=u16::MAX).prop_map(Outcome::Failed)]
}

fn any_request() -> impl Strategy<Value = Request> {
    let kinds = [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim, Kind::Zero, Kind::Other];
    let times = (any_time(), any_time(), any_time());
    let numbers = (any_number(), any_number(), any_number());
    let flags = (0..kinds.len(), any::<bool>(), any::<bool>());
    let place = (any_place(), any_place());
    (times, numbers, flags, place, any_outcome()).prop_map(move |(times, numbers, flags, place, outcome)| Request {
        arrival_ns: times.0,
        queue_ns: times.1,
        device_ns: times.2,
        tenant: numbers.0,
        client: numbers.1,
        volume: numbers.2,
        kind: kinds[flags.0],
        durable: flags.1,
        retried: flags.2,
        offset: place.0,
        length: place.1,
        outcome,
    })
}

fn any_name() -> impl Strategy<Value = Name> {
    let tables = [Table::Tenant, Table::Client, Table::Volume];
    (0..tables.len(), any::<u32>(), "[a-zä]{0,8}", "[a-z]{0,3}", any::<u64>())
        .prop_map(move |(table, number, name, pool, bytes)| Name { table: tables[table], number, name, pool, bytes })
}

fn any_item() -> impl Strategy<Value = Item> {
    prop_oneof![
        8 => any_request().prop_map(Item::Request),
        1 => any_name().prop_map(Item::Name),
        1 => (any::<u64>(), any_time(), any_time())
            .prop_map(|(requests, from_ns, length)| Item::Lost { requests, from_ns, to_ns: from_ns + length }),
    ]
}

fn any_head() -> impl Strategy<Value = Head> {
    (any::<u64>(), "[a-z]{0,6}", "[ -~ä]{0,40}", any::<bool>())
        .prop_map(|(started_unix_ns, source, policy, anonymised)| Head { started_unix_ns, source, policy, anonymised })
}

/// A recording whose blocks end after so many items, and the number of bytes and items at the end of the head and of each block.
fn recorded(head: &Head, items: &[Item], every: usize) -> (Vec<u8>, Vec<(usize, usize)>) {
    let mut writer = Writer::new(Vec::new(), head).expect("memory can be written");
    let mut ends = vec![(writer.bytes() as usize, 0)];
    let mut count = 0;
    for block in items.chunks(every) {
        block.iter().for_each(|item| writer.write(item).expect("memory can be written"));
        writer.flush().expect("memory can be written");
        count += block.len();
        ends.push((writer.bytes() as usize, count));
    }
    (writer.finish().expect("memory can be written"), ends)
}

/// The items of a recording, and true if the end mark was found, or the error behind them.
fn read(bytes: &[u8]) -> (Vec<Item>, Result<bool, Error>) {
    let mut items = Vec::new();
    let mut reader = match Reader::new(bytes) {
        Ok(reader) => reader,
        Err(error) => return (items, Err(error)),
    };
    loop {
        match reader.next() {
            Ok(Some(item)) => items.push(item),
            Ok(None) => return (items, Ok(reader.is_complete())),
            Err(error) => return (items, Err(error)),
        }
    }
}
