//! Bodies of the fuzz targets, so that the same code runs under a fuzzer and, with the stable compiler, in the tests.
//!
//! Each function takes arbitrary bytes and panics if a property of the tested parser does not hold.

use evenkeel_policy::source::Source;

use crate::actuator::read_netlink;
use crate::admin_socket;
use crate::config::{Abilities, Config};
use crate::discovery::{mounts, sockets, tgt};
use crate::sensor::osd::{Store, Throttle};
use crate::sensor::{cache, cgroup, diskstats, osd, read_device_mapper, read_ring, retransmits};

/// Reads the bytes as a configuration of the agent; every problem must have a message.
pub fn config(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    for tracepoints in [false, true] {
        match Config::check(&Source::of(text, "fuzz"), Abilities { tracepoints }) {
            Ok((_, doubts)) => doubts.iter().for_each(|doubt| assert!(!doubt.to_string().is_empty())),
            Err(errors) => assert!(!errors.to_string().is_empty(), "refused without a word"),
        }
    }
}

/// Reads the bytes as an answer on the admin socket of a Ceph daemon, length field included.
pub fn admin_socket(data: &[u8]) {
    let Ok(Some(wanted)) = admin_socket::wanted(data) else { return };
    let text = admin_socket::text(data);
    assert_eq!(text.is_ok(), data.len() >= wanted, "an answer is there when all of it is");
    let Ok(text) = text else { return };
    let _ = admin_socket::refusal(&text);
    let _ = osd::parse::<Store>(&text, "bluestore");
    let _ = osd::parse::<Throttle>(&text, "throttle-bluestore_throttle_bytes");
    let Ok(answer) = admin_socket::json(&text) else { return };
    let _ = admin_socket::option_value(&answer, "a");
    let _ = admin_socket::override_of(&answer, "a");
}

/// Reads the bytes as a text of the kernel or of a tool; the first byte chooses the parser of the rest.
pub fn kernel_text(data: &[u8]) {
    let [choice, bytes @ ..] = data else { return };
    let lines = bytes.split(|&byte| byte == b'\n').count();
    let mut seen = 0;
    match choice {
        b'd' => {
            let _ = diskstats::parse(bytes, |_| seen += 1);
        }
        b'g' => {
            let _ = cgroup::parse_stat(bytes, |_, _| seen += 1);
            // Several devices may stand on a line.
            seen = seen.min(lines);
        }
        b'b' => drop(cache::parse_block_stat(bytes)),
        _ => {
            let Ok(text) = str::from_utf8(bytes) else { return };
            match choice {
                b'c' => drop(cache::parse_status(cache::Kind::DmCache, text)),
                b'w' => drop(cache::parse_status(cache::Kind::DmWritecache, text)),
                b't' => drop(["cache", "writecache"].map(|target| cache::parse_table(target, text))),
                b'h' => drop(cache::parse_human(text)),
                b'r' => drop(retransmits::parse(text)),
                b'm' => seen = mounts::parse(text).map_or(0, |mounts| mounts.len()),
                b's' => seen = sockets::parse(text).map_or(0, |sockets| sockets.len()),
                b'l' => drop(tgt::parse(text)),
                _ => {}
            }
        }
    }
    assert!(seen <= lines, "{seen} of {lines} lines");
}

/// Reads the bytes after the first as an answer of the kernel: an answer of device mapper if the first byte is `d`, otherwise
/// a netlink datagram.
pub fn netlink(data: &[u8]) {
    match data {
        [b'd', bytes @ ..] => read_device_mapper(bytes),
        [_, bytes @ ..] => read_netlink(bytes),
        [] => {}
    }
}

/// Reads the bytes as the ring of the host recorder. The first is the consumer's position in headers of 8 bytes; the next two are
/// the bytes from there to the producer's position, as a signed number, low byte first; the ring begins with the fourth.
pub fn ring(data: &[u8]) {
    let [headers, low, high, bytes @ ..] = data else { return };
    let consumer = u64::from(*headers) * 8;
    let producer = consumer.saturating_add_signed(i64::from(i16::from_le_bytes([*low, *high])));
    let (read, length, records) = read_ring(bytes, consumer, producer);
    assert!((consumer..=consumer.max(producer)).contains(&read), "{read} is not between {consumer} and {producer}");
    assert!(records <= length / 8, "{records} records in {length} bytes");
    // What was read once is not read again.
    assert_eq!(read_ring(bytes, read, producer), (read, length, 0), "read twice");
}
