//! Tests of quantities: texts that parse, texts that do not with the reasons, and agreement of text and value.

use std::net::IpAddr;

use evenkeel_policy::config::{Status, Workers};
use evenkeel_policy::units::{Bytes, Cidr, Duration, Rates};
use proptest::prelude::*;

fn bytes(text: &str) -> u64 {
    text.parse::<Bytes>().unwrap_or_else(|error| panic!("{text}: {error}")).0
}

fn nanos(text: &str) -> u64 {
    text.parse::<Duration>().unwrap_or_else(|error| panic!("{text}: {error}")).as_nanos()
}

#[test]
fn bytes_as_people_write_them() {
    for (text, value) in [
        ("0", 0),
        ("4096", 4096),
        ("4_096", 4096),
        ("64k", 64 << 10),
        ("64K", 64 << 10),
        ("64KiB", 64 << 10),
        ("4 MB", 4_000_000),
        ("4kB", 4_000),
        ("1GiB", 1 << 30),
        ("1.5GiB", 3 << 29),
        ("0.5k", 512),
        ("2T", 2 << 40),
        ("7B", 7),
        ("18446744073709551615", u64::MAX),
    ] {
        assert_eq!(bytes(text), value, "{text}");
    }
}

#[test]
fn what_is_no_number_of_bytes_says_what_would_be() {
    for text in ["", "GiB", "-1", "1.3k", "1.", ".5k", "1e3", "1 GiBs", "1.5", "1..5k"] {
        let error = text.parse::<Bytes>().expect_err(text).to_string();
        assert!(error.contains("64KiB"), "{text}: {error}");
    }
    for text in ["99999999999999999999", "16777216TiB", "99999999TiB"] {
        let error = text.parse::<Bytes>().expect_err(text).to_string();
        assert!(error.contains("is too large; write less than 16384PiB"), "{text}: {error}");
    }
}

#[test]
fn durations_as_people_write_them() {
    for (text, value) in [
        ("0", 0),
        ("500us", 500_000),
        ("50ms", 50_000_000),
        ("1.5s", 1_500_000_000),
        ("2 s", 2_000_000_000),
        ("5m", 300_000_000_000),
        ("1h", 3_600_000_000_000),
        ("1d", 86_400_000_000_000),
    ] {
        assert_eq!(nanos(text), value, "{text}");
    }
    for text in ["5", "", "s", "-1s", "5 parsecs", "0.1ns"] {
        let error = text.parse::<Duration>().expect_err(text).to_string();
        assert!(error.contains("50ms"), "{text}: {error}");
    }
    let error = "999999999d".parse::<Duration>().expect_err("above 64 bits").to_string();
    assert!(error.contains("is too long; write less than 200000d"), "{error}");
}

#[test]
fn blocks_of_addresses() {
    let block: Cidr = "10.1.0.0/16".parse().expect("a block");
    let inside = |text: &str| block.contains(text.parse::<IpAddr>().expect("an address"));
    assert!(inside("10.1.255.255") && inside("::ffff:10.1.2.3"));
    assert!(!inside("10.2.0.0") && !inside("::1"));
    let one: Cidr = "192.0.2.7".parse().expect("one address");
    assert_eq!(one.to_string(), "192.0.2.7/32");
    assert!(one.specificity() > block.specificity());
    let all: Cidr = "0.0.0.0/0".parse().expect("all of IPv4");
    assert!(
        all.contains("8.8.8.8".parse().expect("an address"))
            && !all.contains("2001:db8::1".parse().expect("an address"))
    );
    let six: Cidr = "::/0".parse().expect("everything");
    assert!(["8.8.8.8", "2001:db8::1"].iter().all(|text| six.contains(text.parse().expect("an address"))));
    let error = "10.1.2.3/16".parse::<Cidr>().expect_err("host bits").to_string();
    assert!(error.contains("write \"10.1.0.0/16\""), "{error}");
    let error = "2001:db8::1/32".parse::<Cidr>().expect_err("host bits").to_string();
    assert!(error.contains("write \"2001:db8::/32\""), "{error}");
    for text in ["10.0.0.0/33", "::/129", "ten", "10.0.0.0/", "10.0.0.0/8/8", ""] {
        assert!(text.parse::<Cidr>().is_err(), "{text}");
    }
}

#[test]
fn choices_with_a_word() {
    assert_eq!("auto".parse(), Ok(Workers::Auto));
    assert_eq!("3".parse(), Ok(Workers::Count(3)));
    assert!("many".parse::<Workers>().expect_err("no number").to_string().contains("auto"));
    assert_eq!("off".parse(), Ok(Status::Off));
    assert!("9809".parse::<Status>().expect_err("no address").to_string().contains("127.0.0.1:9809"));
}

#[test]
fn rates_read_as_sentences() {
    let rates = |iops, rate| Rates { iops, bytes_per_s: Bytes(rate) }.to_string();
    assert_eq!(rates(0, 0), "none");
    assert_eq!(rates(5_000, 200_000_000), "5000 IOPS and 200MB/s");
}

proptest! {
    #[test]
    fn bytes_round_trip(value: u64) {
        prop_assert_eq!(bytes(&Bytes(value).to_string()), value);
    }

    #[test]
    fn round_numbers_of_bytes_round_trip(value in 0u64..1 << 20, shift in 0u32..44) {
        prop_assert_eq!(bytes(&Bytes(value << shift).to_string()), value << shift);
    }

    #[test]
    fn durations_round_trip(value: u64) {
        let duration = Duration::from_nanos(value);
        prop_assert_eq!(nanos(&duration.to_string()), value);
    }

    #[test]
    fn blocks_round_trip_and_contain_their_addresses(address: [u8; 16], v4: bool, prefix in 0u8..=128) {
        let (address, prefix) = if v4 {
            let [a, b, c, d, ..] = address;
            (IpAddr::from([a, b, c, d]), prefix % 33)
        } else {
            (IpAddr::from(address), prefix)
        };
        // A block with host bits set is refused, and the refusal names the right one.
        let block = match format!("{address}/{prefix}").parse::<Cidr>() {
            Ok(block) => block,
            Err(error) => {
                let error = error.to_string();
                let right = error.split('"').nth(3).expect("the right block").to_owned();
                right.parse().expect("the block named as right")
            }
        };
        prop_assert!(block.contains(address));
        prop_assert_eq!(block.to_string().parse::<Cidr>().expect("round trip"), block);
    }

    #[test]
    fn no_text_makes_a_parser_panic(text in "\\PC{0,24}") {
        let _ = text.parse::<Bytes>();
        let _ = text.parse::<Duration>();
        let _ = text.parse::<Cidr>();
        let _ = text.parse::<Workers>();
        let _ = text.parse::<Status>();
    }

    #[test]
    fn near_numbers_do_not_panic(text in "[0-9._]{0,30} ?[a-zA-Z]{0,3}") {
        let _ = text.parse::<Bytes>();
        let _ = text.parse::<Duration>();
    }
}
