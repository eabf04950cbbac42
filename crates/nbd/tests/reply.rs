//! Tests of the bytes of each reply, in the order of the specification's sections.

use evenkeel_nbd::server::reply::{
    BASE_ALLOCATION_ID, MAX_EXTENTS, block_status, data_chunk, error, error_at, hole_chunk, ok, read,
};
use evenkeel_nbd::wire::{Errno, Extent, Framing};

const COOKIE: u64 = 0x0102_0304_0506_0708;
const OFFSET: u64 = 0x1112_1314_1516_1718;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).expect("ASCII"), 16).expect("hex"))
        .collect()
}

/// Header of a reply's last extended chunk, with this type and payload length in hexadecimal.
fn extended(kind: &str, length: &str) -> Vec<u8> {
    hex(&format!("6e8a278c 0001 {kind} 0102030405060708 1112131415161718 {length}"))
}

fn structured(kind: &str, length: &str) -> Vec<u8> {
    hex(&format!("668e33ef 0001 {kind} 0102030405060708 {length}"))
}

const SIMPLE_OK: &str = "67446698 00000000 0102030405060708";

// "Simple reply message", "Structured reply chunk message", "Extended reply chunk message".

#[test]
fn read_succeeds() {
    assert_eq!(read(Framing::Simple, COOKIE, OFFSET, 4096).as_slice(), hex(SIMPLE_OK));
    let offset = hex("1112131415161718");
    assert_eq!(
        read(Framing::Structured, COOKIE, OFFSET, 4096).as_slice(),
        [structured("0001", "00001008"), offset.clone()].concat()
    );
    assert_eq!(
        read(Framing::Extended, COOKIE, OFFSET, 4096).as_slice(),
        [extended("0001", "0000000000001008"), offset].concat()
    );
}

#[test]
fn request_without_data_succeeds() {
    assert_eq!(ok(Framing::Simple, COOKIE, OFFSET).as_slice(), hex(SIMPLE_OK));
    assert_eq!(ok(Framing::Structured, COOKIE, OFFSET).as_slice(), structured("0000", "00000000"));
    assert_eq!(ok(Framing::Extended, COOKIE, OFFSET).as_slice(), extended("0000", "0000000000000000"));
}

#[test]
fn request_fails() {
    let simple = hex("67446698 0000001c 0102030405060708");
    assert_eq!(error(Framing::Simple, COOKIE, OFFSET, Errno::NoSpace).as_slice(), simple);
    assert_eq!(error_at(Framing::Simple, COOKIE, OFFSET, Errno::NoSpace, OFFSET).as_slice(), simple);
    for (framing, header) in [
        (Framing::Structured, structured("8001", "00000006")),
        (Framing::Extended, extended("8001", "0000000000000006")),
    ] {
        let expected = [header, hex("0000001c 0000")].concat();
        assert_eq!(error(framing, COOKIE, OFFSET, Errno::NoSpace).as_slice(), expected);
    }
    for (framing, header) in [
        (Framing::Structured, structured("8002", "0000000e")),
        (Framing::Extended, extended("8002", "000000000000000e")),
    ] {
        let expected = [header, hex("00000005 0000 1112131415161719")].concat();
        assert_eq!(error_at(framing, COOKIE, OFFSET, Errno::Io, OFFSET + 1).as_slice(), expected);
    }
}

// "Structured reply types".

#[test]
fn read_in_pieces() {
    let data = data_chunk(Framing::Structured, COOKIE, OFFSET, OFFSET + 2, 1, false);
    assert_eq!(data.as_slice(), hex("668e33ef 0000 0001 0102030405060708 00000009 111213141516171a"));
    let hole = hole_chunk(Framing::Structured, COOKIE, OFFSET, OFFSET + 3, 512, true);
    assert_eq!(hole.as_slice(), hex("668e33ef 0001 0002 0102030405060708 0000000c 111213141516171b 00000200"));
    let hole = hole_chunk(Framing::Extended, COOKIE, OFFSET, OFFSET + 3, u32::MAX, true);
    let expected = [extended("0002", "000000000000000c"), hex("111213141516171b ffffffff")].concat();
    assert_eq!(hole.as_slice(), expected);
}

/// The extents, as (length, status), in the reply that `block_status` makes for these `extents`; asserts that the header and the
/// other fields are right.
fn descriptors(framing: Framing, length: u64, one: bool, extents: &[(u64, u32)]) -> Vec<(u64, u32)> {
    let mut out = b"before".to_vec();
    let list = extents.iter().map(|&(length, status)| Extent { length, status });
    block_status(framing, COOKIE, OFFSET, length, one, list, &mut out);
    let reply = out.strip_prefix(b"before").expect("what was there stays");
    let (header_len, context_len, each) = if framing.is_extended() { (32, 8, 16) } else { (20, 4, 8) };
    let (header, payload) = reply.split_at(header_len);
    let count = (payload.len() - context_len) / each;
    if framing.is_extended() {
        assert_eq!(header, extended("0006", &format!("{:016x}", payload.len())));
        assert_eq!(payload[4..8], (count as u32).to_be_bytes());
    } else {
        assert_eq!(header, structured("0005", &format!("{:08x}", payload.len())));
    }
    assert_eq!(payload[..4], BASE_ALLOCATION_ID.to_be_bytes());
    let big_endian = |bytes: &[u8]| bytes.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    payload[context_len..]
        .chunks(each)
        .map(|descriptor| {
            let (length, status) = descriptor.split_at(each / 2);
            (big_endian(length), big_endian(status) as u32)
        })
        .collect()
}

#[test]
fn extents_are_described() {
    const CAP: u64 = 0xffff_0000;
    let compact = Framing::Structured;
    let wide = Framing::Extended;
    type List = &'static [(u64, u32)];
    let cases: [(&str, Framing, u64, bool, List, List); 15] = [
        ("as they are", compact, 300, false, &[(100, 0), (100, 3), (100, 0)], &[(100, 0), (100, 3), (100, 0)]),
        ("as they are", wide, 300, false, &[(100, 0), (100, 3), (100, 0)], &[(100, 0), (100, 3), (100, 0)]),
        ("neighbours joined", wide, 300, false, &[(100, 3), (100, 3), (100, 0)], &[(200, 3), (100, 0)]),
        ("empty ones dropped", wide, 200, false, &[(0, 1), (100, 3), (0, 1), (100, 3)], &[(200, 3)]),
        ("the last may reach further", wide, 150, false, &[(100, 0), (1000, 3), (5, 0)], &[(100, 0), (1000, 3)]),
        ("none after the request's end", wide, 100, false, &[(100, 0), (1000, 3)], &[(100, 0)]),
        ("no more taken than needed", wide, 100, false, &[(100, 3), (100, 3)], &[(100, 3)]),
        ("fewer than asked", wide, 1000, false, &[(100, 0)], &[(100, 0)]),
        ("one", wide, 300, true, &[(100, 0), (100, 3)], &[(100, 0)]),
        ("one, joined, cut to the request", compact, 150, true, &[(100, 3), (100, 3)], &[(150, 3)]),
        ("none known", compact, 4096, false, &[], &[(4096, 0)]),
        ("none known, one", wide, 1 << 40, true, &[(0, 3)], &[(1 << 40, 0)]),
        ("64 bits", wide, 10, false, &[(1 << 40, 3)], &[(1 << 40, 3)]),
        ("32 bits, beyond the request", compact, 10, false, &[(1 << 40, 3)], &[(CAP, 3)]),
        ("32 bits, several needed", compact, 0xffff_ffff, false, &[(1 << 33, 3)], &[(CAP, 3), (CAP, 3)]),
    ];
    for (why, framing, length, one, extents, expected) in cases {
        assert_eq!(descriptors(framing, length, one, extents), expected, "{why}, {framing:?}");
    }
}

#[test]
fn extents_never_overflow_a_sum() {
    let extents = [(u64::MAX, 3), (u64::MAX, 3)];
    assert_eq!(descriptors(Framing::Extended, u64::MAX, false, &extents), [(u64::MAX, 3)]);
}

#[test]
fn extents_are_bounded_and_taken_lazily() {
    let mut taken = 0usize;
    let endless = (0u32..).map(|index| {
        taken += 1;
        Extent { length: 512, status: index & 1 }
    });
    let mut out = Vec::new();
    block_status(Framing::Structured, COOKIE, 0, u64::MAX, false, endless, &mut out);
    assert_eq!(out.len(), 20 + 4 + 8 * MAX_EXTENTS);
    assert!(taken <= MAX_EXTENTS + 1, "took {taken}");
}
