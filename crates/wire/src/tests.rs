//! Values come back as they were written, in the bytes that the formats say.

use proptest::prelude::*;

use super::{Input, array, checksum, length, put, put_text, unzigzag, zigzag};

proptest! {
    #[test]
    fn values_come_back_as_they_were_written(number in any::<u64>(), signed in any::<i64>(), text in "[aä]{0,9}") {
        let mut bytes = Vec::new();
        put(&mut bytes, number);
        prop_assert_eq!(bytes.len(), length(number));
        put(&mut bytes, zigzag(signed));
        put_text(&mut bytes, &text);
        let mut input = Input::new(&bytes);
        prop_assert_eq!(input.number(), Some(number));
        prop_assert_eq!(input.position(), length(number));
        prop_assert_eq!(input.number().map(unzigzag), Some(signed));
        prop_assert_eq!(input.text(text.len()), Some(text));
        prop_assert!(input.is_empty());
        prop_assert_eq!(input.byte(), None);
    }

    #[test]
    fn bytes_that_are_no_value_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
        let read: [fn(&mut Input<'_>) -> bool; 4] = [
            |input| input.number().is_some(),
            |input| input.small().is_some(),
            |input| input.items(3).is_some(),
            |input| input.text(usize::MAX).is_some(),
        ];
        for read in read {
            let mut input = Input::new(&bytes);
            while read(&mut input) {}
            prop_assert!(input.position() <= bytes.len());
        }
    }
}

#[test]
fn values_are_in_the_bytes_of_the_formats() {
    let mut bytes = Vec::new();
    [127, 128, zigzag(-1), zigzag(1)].into_iter().for_each(|value| put(&mut bytes, value));
    put_text(&mut bytes, "ä");
    assert_eq!(bytes, [0x7f, 0x80, 1, 1, 2, 2, 0xc3, 0xa4]);
    assert_eq!(checksum(&[&b"1234"[..], &b"56789"[..]]), 0xe306_9283, "the check value of CRC-32C");
    assert_eq!(array(&bytes, 1).map(u16::from_le_bytes), Some(0x180));
    assert_eq!(array::<2>(&bytes, 7), None);
}

#[test]
fn values_out_of_range_are_refused() {
    let longest = [&[0xff_u8; 9][..], &[1]].concat();
    assert_eq!(Input::new(&longest).number(), Some(u64::MAX));
    let longer = [&[0xff_u8; 9][..], &[2]].concat();
    assert_eq!(Input::new(&longer).number(), None, "more than 64 bits");
    assert_eq!(Input::new(&longest).small(), None);
    assert_eq!(Input::new(&[0x80]).number(), None, "its end is missing");
    assert_eq!((Input::new(&[5]).count(5), Input::new(&[5]).count(4)), (Some(5), None));
    let three = [2, 0, 0, 0];
    assert_eq!((Input::new(&three).items(1), Input::new(&three).items(2)), (Some(2), None), "three bytes follow");
    assert_eq!((Input::new(b"\x02ab").text(2), Input::new(b"\x02ab").text(1)), (Some("ab".into()), None));
    assert_eq!((Input::new(b"\x03ab").text(9), Input::new(b"\x01\xff").text(9)), (None, None));
}
