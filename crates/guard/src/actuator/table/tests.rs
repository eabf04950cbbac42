//! With the kernel of this machine, in a network namespace of the test's own; skipped without the privilege for it.

use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::thread::UnshareFlags;

use super::*;
use crate::actuator::qdisc::class_id;
use crate::apart::{apart, skip};

const TIMEOUT: Duration = Duration::from_secs(60);
/// One that is waited for. What is written is looked at before it is over, beside tests that keep the kernel busy.
const SHORT: Duration = Duration::from_secs(2);

/// Runs `body` with an empty network of its own.
fn in_namespace(body: fn()) {
    apart(UnshareFlags::NEWNET, move || match exists() {
        Err(Errno::AFNOSUPPORT | Errno::OPNOTSUPP | Errno::PERM | Errno::INVAL) => skip("the kernel has no nf_tables"),
        _ => body(),
    });
}

/// What nft says, or nothing where it is not installed.
fn nft(arguments: &str) -> Option<String> {
    let output = Command::new("nft").args(arguments.split(' ')).stdin(Stdio::null()).output().ok()?;
    assert!(output.status.success(), "nft {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn classes(list: &[(Client, Packets, u32)]) -> Classes {
    let class = |(client, packets, class): &(Client, Packets, u32)| Class {
        client: *client,
        packets: *packets,
        class: class_id(*class),
    };
    let mut classes: Classes = list.iter().map(class).collect();
    classes.sort_by_key(|class| class.client);
    classes
}

fn address(text: &str) -> Client {
    Client::Address(text.parse().unwrap())
}

fn some() -> Classes {
    let connection = |address: &str| Client::Connection {
        address: address.parse().unwrap(),
        client_port: 40_001,
        service_port: 3260,
    };
    classes(&[
        (address("10.0.0.11"), Packets::Acknowledgements, 1),
        (address("10.0.0.12"), Packets::Data, 2),
        (address("fd00::1"), Packets::All, 40),
        (connection("10.0.0.13"), Packets::All, 7),
        (connection("fd00::2"), Packets::Acknowledgements, 8),
    ])
}

#[test]
fn what_is_written_is_in_the_kernel() {
    in_namespace(|| {
        let mut table = ThrottleTable::create(&[3260, 10809], false).unwrap();
        table.write(Instant::now(), &some(), TIMEOUT).unwrap();
        assert!(!has_owner().unwrap(), "it outlives its maker");
        assert!(table.elements_agree().unwrap());
        // Five maps have somebody in them.
        assert_eq!(table.count_rules().unwrap(), FIRST_RULES + 5);
        assert_eq!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::Unchanged);
        if let Some(list) = nft("-n list table inet evenkeel") {
            for part in ["10.0.0.11", "10.0.0.12", "fd00::1", "10.0.0.13 . 40001 . 3260", "7ee1:28", "10809"] {
                assert!(list.contains(part), "{part} is not in\n{list}");
            }
            assert!(list.contains("meta priority set ip daddr map @ack4"), "{list}");
        }
        table.write(Instant::now(), &Classes::new(), TIMEOUT).unwrap();
        assert!(table.elements_agree().unwrap(), "empty again");
        remove().unwrap();
        assert!(!exists().unwrap());
    });
}

#[test]
fn no_packet_is_looked_at_while_nobody_is_held() {
    in_namespace(|| {
        let mut table = ThrottleTable::create(&[3260], false).unwrap();
        let chains = || nft("list chains inet").map(|list| list.matches("hook output").count());
        let start = Instant::now();
        let at = |s| start + Duration::from_secs(s);
        let one = classes(&[(address("10.0.0.12"), Packets::Data, 3)]);
        let two = classes(&[(address("10.0.0.11"), Packets::All, 1), (address("10.0.0.12"), Packets::Data, 3)]);
        assert_eq!((table.count_rules().unwrap(), table.asked), (0, None));
        if let Some(chains) = chains() {
            assert_eq!(chains, 0);
        }
        assert!(!table.write(at(0), &Classes::new(), TIMEOUT).unwrap());
        assert!(table.write(at(1), &one, TIMEOUT).unwrap());
        assert_eq!(table.count_rules().unwrap(), FIRST_RULES + 1);
        assert!(table.write(at(2), &two, TIMEOUT).unwrap());
        assert_eq!(table.count_rules().unwrap(), FIRST_RULES + 2);
        if let Some(chains) = chains() {
            assert_eq!(chains, 1);
        }
        // Who has just been let go may be held again soon.
        table.write(at(3), &one, TIMEOUT).unwrap();
        assert_eq!(table.count_rules().unwrap(), FIRST_RULES + 2);
        assert!(!table.write(at(6), &one, TIMEOUT).unwrap());
        assert!(table.write(at(8), &one, TIMEOUT).unwrap());
        assert_eq!(table.count_rules().unwrap(), FIRST_RULES + 1);
        table.write(at(9), &Classes::new(), TIMEOUT).unwrap();
        assert_eq!(table.count_rules().unwrap(), FIRST_RULES + 1);
        assert!(table.write(at(14), &Classes::new(), TIMEOUT).unwrap());
        assert_eq!((table.count_rules().unwrap(), table.asked), (0, None));
        if let Some(chains) = chains() {
            assert_eq!(chains, 0);
        }
        assert_eq!(table.repair(at(15), TIMEOUT).unwrap(), Found::Unchanged);
        // Without a chain a table that is gone is noticed as well.
        remove().unwrap();
        assert_eq!(table.repair(at(15), TIMEOUT).unwrap(), Found::StructureRepaired);
        assert!(table.write(at(16), &one, TIMEOUT).unwrap());
        assert_eq!(table.count_rules().unwrap(), FIRST_RULES + 1);
        assert!(table.elements_agree().unwrap());
    });
}

#[test]
fn elements_go_away_by_themselves() {
    in_namespace(|| {
        let mut table = ThrottleTable::create(&[3260], false).unwrap();
        let started = Instant::now();
        table.write(started, &some(), SHORT).unwrap();
        assert!(table.elements_agree().unwrap());
        while table.elements_agree().unwrap() {
            assert!(started.elapsed() < Duration::from_secs(10), "the elements stay");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(started.elapsed() > Duration::from_millis(1900), "gone after {:?}", started.elapsed());
    });
}

#[test]
fn renewing_keeps_elements_alive() {
    in_namespace(|| {
        let mut table = ThrottleTable::create(&[3260], false).unwrap();
        let started = Instant::now();
        // Ends with a write, so that nothing has been left alone for long when it is looked at.
        while started.elapsed() < Duration::from_secs(5) {
            std::thread::sleep(Duration::from_millis(50));
            table.write(Instant::now(), &some(), SHORT).unwrap();
        }
        assert!(table.elements_agree().unwrap());
    });
}

#[test]
fn a_foreign_flush_is_noticed_and_repaired() {
    in_namespace(|| {
        let mut table = ThrottleTable::create(&[3260], false).unwrap();
        table.write(Instant::now(), &some(), TIMEOUT).unwrap();
        // What `nft flush ruleset`, `nft flush chain` and `nft flush map` do, in our own words.
        remove().unwrap();
        assert_eq!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::StructureRepaired);
        assert!(table.elements_agree().unwrap());
        let flush = |name| {
            let (batch, last) = nft::transaction(None, |batch| Table(TABLE).flush_set(batch, name));
            Socket::open(Subsystem::Netfilter).unwrap().transact(&batch, last).unwrap();
        };
        flush("ack4");
        assert_eq!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::ElementsRepaired);
        assert!(table.elements_agree().unwrap());
        if nft("flush chain inet evenkeel output").is_some() {
            assert_eq!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::StructureRepaired);
            nft("flush ruleset");
            assert_eq!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::StructureRepaired);
            nft("add table ip other");
            assert_eq!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::OthersChanged);
        }
        assert_eq!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::Unchanged);
        // A change of others between two of our own is not lost.
        flush("ack4");
        table.write(Instant::now(), &classes(&[(address("10.0.0.12"), Packets::Data, 3)]), TIMEOUT).unwrap();
        assert_ne!(table.repair(Instant::now(), TIMEOUT).unwrap(), Found::Unchanged);
    });
}

#[test]
fn an_owned_table_goes_with_its_owner() {
    in_namespace(|| {
        let mut table = ThrottleTable::create(&[3260], true).unwrap();
        if !table.is_owned() {
            skip("the kernel has no owned tables");
            return;
        }
        table.write(Instant::now(), &some(), TIMEOUT).unwrap();
        assert_eq!(remove(), Err(Errno::PERM), "others cannot remove it");
        assert!(has_owner().unwrap());
        drop(table);
        let started = Instant::now();
        while exists().unwrap() {
            assert!(started.elapsed() < Duration::from_secs(10), "the table stays");
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Loose, as tests run on busy machines; printed for whoever wants the figure.
#[test]
fn an_update_is_fast_enough_for_every_tick() {
    in_namespace(|| {
        let mut table = ThrottleTable::create(&[3260], true).unwrap();
        for clients in [20, 1_000, 4_096, 100_000] {
            let mut times = Vec::new();
            for round in 0..20 {
                let list: Vec<_> = (0..clients)
                    .map(|n| {
                        (
                            address(&format!("10.{}.{}.{}", n / 62_500, n / 250 % 250, n % 250)),
                            Packets::All,
                            round % 40 + 1,
                        )
                    })
                    .collect();
                let classes = classes(&list);
                let started = Instant::now();
                table.write(Instant::now(), &classes, TIMEOUT).unwrap();
                times.push(started.elapsed());
            }
            times.sort();
            let started = Instant::now();
            let held = table.held().to_vec();
            assert!(!table.write(Instant::now(), &held, TIMEOUT).unwrap());
            println!(
                "update of {clients} clients: median {:?}, slowest {:?}; without change {:?}",
                times[10],
                times[19],
                started.elapsed()
            );
            assert!(
                times[10] < Duration::from_millis(50) + Duration::from_micros(20) * clients,
                "{clients} clients: {:?}",
                times[10]
            );
            assert!(table.elements_agree().unwrap());
        }
    });
}

#[test]
fn every_length_of_a_bare_segment_is_listed_once() {
    let v4 = bare_elements(Family::V4);
    assert_eq!(v4.len(), 11);
    assert_eq!(v4[0].key, [0, 40, 0, 0, 0x50, 0, 0, 0]);
    assert_eq!(v4[10].key, [0, 80, 0, 0, 0xf0, 0, 0, 0]);
    assert_eq!(bare_elements(Family::V6)[3].key, [0, 32, 0, 0, 0x80, 0, 0, 0]);
}
