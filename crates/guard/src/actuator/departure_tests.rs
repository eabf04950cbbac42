//! Tests of the BPF program in the kernel, on packets that the tests make; skipped without the privilege to load the program.

use rustix::thread::UnshareFlags;

use super::*;
use crate::apart::{apart, skip};

const DEPARTURE_AT: usize = DEPARTURE as usize;
const PRIORITY_AT: usize = PRIORITY as usize;
const DELAY_NS: u64 = 5_000_000;
/// Longest delay that these tests allow, far above the delays that they use.
const MAXIMUM: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(60);

fn loaded() -> Option<Departures> {
    match Departures::load(&[3260, 10809], 64) {
        Err(Errno::PERM | Errno::NOSYS) => {
            skip("may not load BPF programs");
            None
        }
        other => Some(other.expect("the verifier accepts it")),
    }
}

/// An Ethernet frame with a TCP segment from `service_port` to the client at `to`, with `payload` bytes of payload and
/// `ip_options` bytes of IP options.
fn frame(to: &str, service_port: u16, client_port: u16, payload: usize, ip_options: usize) -> Vec<u8> {
    let mut tcp = vec![0; 32 + payload];
    tcp[..2].copy_from_slice(&service_port.to_be_bytes());
    tcp[2..4].copy_from_slice(&client_port.to_be_bytes());
    tcp[12] = 8 << 4;
    let mut frame = vec![2; 12];
    match to.parse().unwrap() {
        IpAddr::V4(to) => {
            let header = 20 + ip_options;
            frame.extend([8, 0, 0x40 | (header / 4) as u8, 0]);
            frame.extend(((header + tcp.len()) as u16).to_be_bytes());
            frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1]);
            frame.extend(to.octets());
            frame.extend(vec![1; ip_options]);
        }
        IpAddr::V6(to) => {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend((tcp.len() as u16).to_be_bytes());
            frame.extend([6, 64]);
            frame.extend([0xfd; 16]);
            frame.extend(to.octets());
        }
    }
    frame.extend(tcp);
    frame
}

#[derive(Debug, PartialEq)]
enum Fate {
    /// The packet is not marked, and goes past the class of delayed packets.
    Untouched,
    /// The packet is marked to wait for about [`DELAY_NS`] nanoseconds.
    Held,
}

fn fate(departures: &Departures, frame: &[u8]) -> Fate {
    let mut context = [0; 192];
    let before = clock_ns();
    assert_eq!(departures.program.run(frame, &mut context).unwrap(), NEXT);
    let after = clock_ns();
    let departure = u64::from_ne_bytes(context[DEPARTURE_AT..DEPARTURE_AT + 8].try_into().unwrap());
    let priority = i32::from_ne_bytes(context[PRIORITY_AT..PRIORITY_AT + 4].try_into().unwrap());
    match (departure, priority) {
        (0, 0) => Fate::Untouched,
        (departure, WAITS) if (before + DELAY_NS..=after + DELAY_NS).contains(&departure) => Fate::Held,
        other => panic!("{other:?} between {before} and {after}"),
    }
}

fn delay(packets: Packets) -> Delay {
    Delay { packets, delay: Duration::from_nanos(DELAY_NS) }
}

fn address(text: &str) -> Client {
    Client::Address(text.parse().unwrap())
}

#[test]
fn each_client_waits_as_it_is_to() {
    let Some(mut departures) = loaded() else { return };
    let connection =
        Client::Connection { address: "10.0.0.5".parse().unwrap(), client_port: 40_001, service_port: 3260 };
    let delays: Delays = [
        (address("10.0.0.2"), delay(Packets::All)),
        (address("10.0.0.3"), delay(Packets::Acknowledgements)),
        (address("fd00::4"), delay(Packets::Data)),
        (connection, delay(Packets::All)),
    ]
    .into_iter()
    .collect();
    assert!(departures.set(Instant::now(), &delays, MAXIMUM, TIMEOUT).unwrap());
    for (to, service, client, payload, options, expected) in [
        ("10.0.0.2", 3260, 1, 0, 0, Fate::Held),
        ("10.0.0.2", 10_809, 1, 100, 0, Fate::Held),
        ("10.0.0.2", 22, 1, 100, 0, Fate::Untouched),
        ("10.0.0.3", 3260, 1, 0, 0, Fate::Held),
        ("10.0.0.3", 3260, 1, 0, 12, Fate::Held),
        ("10.0.0.3", 3260, 1, 1, 0, Fate::Untouched),
        ("10.0.0.3", 3260, 1, 1, 12, Fate::Untouched),
        ("fd00::4", 3260, 1, 0, 0, Fate::Untouched),
        ("fd00::4", 3260, 1, 1, 0, Fate::Held),
        ("fd00::5", 3260, 1, 1, 0, Fate::Untouched),
        ("10.0.0.5", 3260, 40_001, 1, 0, Fate::Held),
        ("10.0.0.5", 3260, 40_002, 1, 0, Fate::Untouched),
        ("10.0.0.5", 10_809, 40_001, 1, 0, Fate::Untouched),
        ("10.0.0.6", 3260, 1, 0, 0, Fate::Untouched),
    ] {
        let found = fate(&departures, &frame(to, service, client, payload, options));
        assert_eq!(found, expected, "{to} port {client} from {service}, {payload} bytes");
    }
    let mut udp = frame("10.0.0.2", 3260, 1, 0, 0);
    udp[14 + 9] = 17;
    assert_eq!(fate(&departures, &udp), Fate::Untouched);
    let mut fragment = frame("10.0.0.2", 3260, 1, 0, 0);
    fragment[14 + 7] = 9;
    assert_eq!(fate(&departures, &fragment), Fate::Untouched);
    assert!(departures.set(Instant::now(), &Delays::new(), MAXIMUM, TIMEOUT).unwrap());
    assert_eq!(fate(&departures, &frame("10.0.0.2", 3260, 1, 0, 0)), Fate::Untouched);
}

#[test]
fn a_departure_that_is_later_already_is_the_one_that_counts() {
    let Some(mut departures) = loaded() else { return };
    let delays: Delays = [(address("10.0.0.2"), delay(Packets::All))].into_iter().collect();
    departures.set(Instant::now(), &delays, MAXIMUM, TIMEOUT).unwrap();
    let paced = clock_ns() + 1_000_000_000;
    let mut context = [0; 192];
    context[DEPARTURE_AT..DEPARTURE_AT + 8].copy_from_slice(&paced.to_ne_bytes());
    departures.program.run(&frame("10.0.0.2", 3260, 1, 0, 0), &mut context).unwrap();
    let departure = u64::from_ne_bytes(context[DEPARTURE_AT..DEPARTURE_AT + 8].try_into().unwrap());
    assert_eq!(departure, paced + DELAY_NS);
}

#[test]
fn a_delay_that_is_not_renewed_ends_by_itself() {
    let Some(mut departures) = loaded() else { return };
    let delays: Delays = [(address("10.0.0.2"), delay(Packets::All))].into_iter().collect();
    let packet = frame("10.0.0.2", 3260, 1, 0, 0);
    let timeout = Duration::from_millis(300);
    let started = Instant::now();
    departures.set(started, &delays, MAXIMUM, timeout).unwrap();
    assert!(!departures.set(started, &delays, MAXIMUM, timeout).unwrap(), "nothing to write");
    assert!(departures.set(started + timeout / 2, &delays, MAXIMUM, timeout).unwrap(), "renewed");
    let renewed = Instant::now();
    while fate(&departures, &packet) == Fate::Held {
        assert!(renewed.elapsed() < Duration::from_secs(10), "it stays");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(started.elapsed() >= timeout, "gone after {:?}", started.elapsed());
}

/// Runs `test` with a loaded program in a network namespace of its own, whose loopback device is down and carries no packets.
fn in_a_namespace(test: impl FnOnce(Departures) + Send + 'static) {
    apart(UnshareFlags::NEWNET, || {
        if let Some(departures) = loaded() {
            test(departures);
        }
    });
}

const LOOPBACK: u32 = 1;

/// Checks that the program is attached while a client is delayed, and detached 5 s after the last delay.
fn comes_and_goes(departures: &mut Departures, attached: impl Fn() -> u32) {
    assert_eq!(attached(), 1);
    let start = Instant::now();
    let at = |s| start + Duration::from_secs(s);
    let timeout = Duration::from_secs(60);
    let short = Delay { packets: Packets::All, delay: Duration::from_millis(1) };
    let one: Delays = [(Client::Address([10, 0, 0, 1].into()), short)].into_iter().collect();
    for (s, delays, expected) in [
        (0, Delays::new(), 1),
        (4, Delays::new(), 1),
        (5, Delays::new(), 0),
        (6, one.clone(), 1),
        (20, one.clone(), 1),
        (21, Delays::new(), 1),
        (25, Delays::new(), 0),
        (26, one, 1),
    ] {
        departures.set(at(s), &delays, MAXIMUM, timeout).unwrap();
        assert_eq!(attached(), expected, "after {s} s");
    }
}

#[test]
fn the_program_leaves_the_device_with_its_links() {
    in_a_namespace(|mut departures| {
        if !departures.has_links(LOOPBACK) {
            return skip("the kernel has no TCX");
        }
        departures.attach(LOOPBACK).unwrap();
        assert!(departures.ends_with_process());
        let attached = || crate::bpf::programs_at_egress(LOOPBACK).unwrap();
        comes_and_goes(&mut departures, attached);
        assert_eq!(departures.repair(LOOPBACK), Ok(false));
        let Some((_, Some(Attached::Link(link)))) = departures.devices.first() else { panic!("{departures:?}") };
        bpf::detach(link).unwrap();
        assert_eq!((attached(), departures.repair(LOOPBACK), attached()), (0, Ok(true), 1));
        drop(departures);
        assert_eq!(attached(), 0);
    });
}

/// Attaches the program by filters; false if the kernel has no such filters.
fn with_filters(departures: &mut Departures) -> bool {
    departures.use_filters(Filters::open().unwrap());
    match departures.attach(LOOPBACK) {
        Err(Refused::Missing(module)) => {
            skip(&format!("the kernel has no {module}"));
            false
        }
        other => {
            other.unwrap();
            true
        }
    }
}

#[test]
fn a_filter_comes_and_goes_as_a_link_does_and_is_removed_by_the_next_agent() {
    in_a_namespace(|mut departures| {
        if !with_filters(&mut departures) {
            return;
        }
        assert!(!departures.ends_with_process());
        let filters = Filters::open().unwrap();
        comes_and_goes(&mut departures, || u32::from(filters.is_attached(LOOPBACK).unwrap()));
        drop(departures);
        assert!(filters.is_attached(LOOPBACK).unwrap(), "it outlives its process");
        assert!(filters.remove(LOOPBACK, false).unwrap());
        assert!(!filters.is_attached(LOOPBACK).unwrap() && filters.has_clsact(LOOPBACK).unwrap());
        assert!(filters.remove(LOOPBACK, true).unwrap());
        assert!(!filters.has_clsact(LOOPBACK).unwrap());
        assert!(!filters.remove(LOOPBACK, true).unwrap());
    });
}

#[test]
fn a_filter_that_another_program_removed_is_made_again_and_foreign_ones_stay() {
    in_a_namespace(|mut departures| {
        if !with_filters(&mut departures) {
            return;
        }
        assert_eq!(departures.repair(LOOPBACK), Ok(false));
        let filters = Filters::open().unwrap();
        assert!(filters.remove(LOOPBACK, true).unwrap());
        assert_eq!(departures.repair(LOOPBACK), Ok(true));
        assert!(filters.is_attached(LOOPBACK).unwrap());
        filters.attach_foreign(LOOPBACK, departures.program.descriptor());
        drop(departures);
        assert!(filters.remove(LOOPBACK, true).unwrap());
        assert!(filters.has_clsact(LOOPBACK).unwrap(), "somebody else's filter hangs on it");
    });
}

#[test]
fn a_hundred_thousand_are_held_and_renewed_bit_by_bit() {
    const CLIENTS: usize = 100_000;
    let Ok(mut departures) = Departures::load(&[3260], CLIENTS) else { return skip("may not load BPF programs") };
    let client =
        |n: usize| (Client::Address([10, (n >> 16) as u8, (n >> 8) as u8, n as u8].into()), delay(Packets::All));
    let delays: Delays = (0..CLIENTS).map(client).collect();
    let start = Instant::now();
    departures.set(start, &delays, MAXIMUM, TIMEOUT).unwrap();
    println!("{CLIENTS} clients delayed in {:?}", start.elapsed());
    assert_eq!(departures.delays(), delays);
    let renewed = |departures: &mut Departures, after: Duration| {
        departures.set(start + after, &delays, MAXIMUM, TIMEOUT).unwrap();
        departures.delayed.iter().filter(|(.., at)| *at == start + after).count()
    };
    assert_eq!(renewed(&mut departures, TIMEOUT / 4), 0);
    assert_eq!(renewed(&mut departures, TIMEOUT / 3), RENEW_AT_ONCE);
    assert_eq!(renewed(&mut departures, TIMEOUT / 2), CLIENTS - RENEW_AT_ONCE);
}

#[test]
fn a_full_map_takes_other_clients_and_keeps_none_that_are_gone() {
    const MOST: u8 = 64;
    let Some(mut departures) = loaded() else { return };
    let clients = |block: u8, count: u8| -> Delays {
        (0..count).map(|n| (Client::Address([10, 0, block, n].into()), delay(Packets::All))).collect()
    };
    let set = |departures: &mut Departures, delays: &Delays| departures.set(Instant::now(), delays, MAXIMUM, TIMEOUT);
    assert_eq!(set(&mut departures, &clients(2, MOST)), Ok(true));
    // Their keys come first, so that an element would be added before one is removed.
    assert_eq!(set(&mut departures, &clients(1, MOST)), Ok(true));
    assert_eq!(departures.delays(), clients(1, MOST));
    assert!(set(&mut departures, &clients(3, MOST + 1)).is_err(), "one too many");
    assert_eq!(departures.delays(), clients(3, MOST), "all others");
    assert_eq!(fate(&departures, &frame("10.0.3.0", 3260, 1, 0, 0)), Fate::Held);
    assert_eq!(set(&mut departures, &clients(1, MOST)), Ok(true));
    assert_eq!(fate(&departures, &frame("10.0.3.0", 3260, 1, 0, 0)), Fate::Untouched);
    assert_eq!(fate(&departures, &frame("10.0.1.63", 3260, 1, 0, 0)), Fate::Held);
}

#[test]
fn a_packet_that_waited_at_a_stacked_device_does_not_wait_again() {
    let Some(mut departures) = loaded() else { return };
    let delays: Delays = [(address("10.0.0.2"), delay(Packets::All))].into_iter().collect();
    departures.set(Instant::now(), &delays, MAXIMUM, TIMEOUT).unwrap();
    // As the program at a bond or VLAN has left it for the program at the device below.
    let packet = frame("10.0.0.2", 3260, 1, 0, 0);
    let mut context = [0; 192];
    context[PRIORITY_AT..PRIORITY_AT + 4].copy_from_slice(&WAITS.to_ne_bytes());
    context[DEPARTURE_AT..DEPARTURE_AT + 8].copy_from_slice(&clock_ns().to_ne_bytes());
    let before = context;
    assert_eq!(departures.program.run(&packet, &mut context).unwrap(), NEXT);
    let of = |context: &[u8; 192], at: usize, bytes: usize| context[at..at + bytes].to_vec();
    for (at, bytes) in [(PRIORITY_AT, 4), (DEPARTURE_AT, 8)] {
        assert_eq!(of(&context, at, bytes), of(&before, at, bytes));
    }
    assert_eq!(fate(&departures, &packet), Fate::Held, "at the first device");
}

#[test]
fn no_delay_is_longer_than_the_maximum() {
    let Some(mut departures) = loaded() else { return };
    let long = Delay { packets: Packets::All, delay: Duration::from_secs(3600) };
    let delays = [(address("10.0.0.2"), long)].into_iter().collect();
    departures.set(Instant::now(), &delays, Duration::from_nanos(DELAY_NS), TIMEOUT).unwrap();
    assert_eq!(fate(&departures, &frame("10.0.0.2", 3260, 1, 0, 0)), Fate::Held);
}
