//! Tests of the parser of event formats.

use proptest::prelude::*;

use super::*;

const QUEUE: &str = include_str!("../../tests/fixtures/block_bio_queue");

#[test]
fn fields_are_found_where_the_event_has_them() {
    let format = Format { id: 1146, device: 8, sector: 16, sectors: 24, kind: 28, error: None };
    assert_eq!(parse_format(QUEUE), Ok(format));
    assert_eq!(parse_format(&QUEUE.replace("rwbs[8]", "rwbs[10]")), Ok(format), "as of Linux 6.14");
    // As of a completion.
    let kind = "field:char rwbs[8];\toffset:28;";
    let both = "field:int error;\toffset:28;\tsize:4;\tsigned:1;\n\tfield:char rwbs[8];\toffset:32;";
    let completion = QUEUE.replace(kind, both);
    assert_eq!(parse_format(&completion), Ok(Format { kind: 32, error: Some(28), ..format }));
    let problem = |text: &str| parse_format(text).expect_err("not the format").problem;
    assert!(problem(&QUEUE.replace("sector_t sector;", "sector_t place;")).contains("no field sector"));
    assert!(problem(&QUEUE.replace("offset:16;\tsize:8", "offset:12;\tsize:8")).contains("sector is at 12"));
    assert!(problem(&QUEUE.replace("ID: 1146", "")).contains("no ID"));
}

#[test]
fn the_number_of_a_device_is_that_of_its_events() {
    for number in [DeviceNumber { major: 259, minor: 7 }, DeviceNumber { major: 4095, minor: 0xf_ffff }] {
        assert_eq!(of_events(in_events(number)), number);
    }
    assert_eq!(in_events(DeviceNumber { major: 8, minor: 1 }), (8_u32 << 20 | 1).to_ne_bytes());
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in ".{0,300}", at in 0..QUEUE.len()) {
        let _ = parse_format(&text);
        let _ = parse_format(&QUEUE[..at]);
        let _ = parse_format(&(QUEUE[..at].to_owned() + &text));
    }
}
