//! Runs the fuzz target on stable Rust, with recordings that are made here, the stored corpus, and mutations of both.

#[allow(dead_code, reason = "the part for corpora that are only stored")]
#[path = "../../../../fuzz/smoke.rs"]
mod smoke;

use super::{recorded, request};
use crate::frame::FRAME;
use crate::{Head, Item, Kind, Name, Outcome, Request, Table, fuzz};
use smoke::smoke_with;

/// Requests of two clients, of all kinds and with all outcomes.
fn items() -> Vec<Item> {
    let name = |table, number, name: &str| {
        Item::Name(Name { table, number, name: name.into(), pool: "main".into(), bytes: 1 << 30 })
    };
    let mut items = vec![name(Table::Tenant, 1, "shop"), name(Table::Volume, 0, "db")];
    items.extend([3, 4].map(|client| name(Table::Client, client, "192.0.2.1")));
    let kinds = [Kind::Read, Kind::Write, Kind::Flush, Kind::Trim, Kind::Zero, Kind::Other];
    for n in 0..40_u64 {
        let outcome = match n % 10 {
            3 => Outcome::Failed(5),
            7 => Outcome::Cancelled,
            _ => Outcome::Done,
        };
        items.push(Item::Request(Request {
            queue_ns: n * 7_919 % 90_000,
            kind: kinds[n as usize % kinds.len()],
            durable: n % 4 == 1,
            retried: n % 10 == 4,
            offset: n * 7_919 % 1_000 * 4_096,
            length: (1 + n % 16) * 4_096,
            client: 3 + (n % 2) as u32,
            outcome,
            ..request(n * 50_000)
        }));
    }
    items.push(Item::Lost { requests: 2, from_ns: 5_000, to_ns: 9_000 });
    items
}

/// Whole recordings, one that was cut off, and the payload of a block in the form that [`fuzz::payloads`] reads.
fn made() -> Vec<(String, Vec<u8>)> {
    let head = Head { started_unix_ns: 1_760_000_400_000_000_000, source: "serve".into(), ..Head::default() };
    let (one, ends) = recorded(&head, &items(), 1_000);
    let (many, _) = recorded(&Head { policy: "[pools.main]\n".into(), anonymised: true, ..head.clone() }, &items(), 5);
    let (empty, _) = recorded(&head, &[], 1);
    let (cut, _) = recorded(&head, &items(), 8);
    let cut = cut[..cut.len() * 2 / 3].to_vec();
    // A block of two requests without its frame.
    let few: Vec<Item> = items().into_iter().filter(|item| matches!(item, Item::Request(_))).take(2).collect();
    let (bytes, bounds) = recorded(&head, &few, 2);
    let payload = &bytes[bounds[0].0 + FRAME..bounds[1].0];
    let mut block = vec![2, u8::try_from(payload.len()).expect("two requests are short")];
    block.extend_from_slice(payload);
    assert_eq!(ends.len(), 2, "the head, and one block");
    let all = [("one-block", one), ("many-blocks", many), ("empty", empty), ("cut", cut), ("payload", block)];
    all.map(|(name, bytes)| (format!("{name}.evf"), bytes)).into()
}

#[test]
fn flight() {
    smoke_with("flight", 10_000, fuzz::flight, made());
}

#[test]
fn what_is_made_is_read() {
    for (name, bytes) in made() {
        if name != "payload.evf" {
            let (items, end) = super::read(&bytes);
            let complete = end.expect("a recording");
            assert_eq!((items.is_empty(), complete), (name == "empty.evf", name != "cut.evf"), "{name}");
        }
    }
}
