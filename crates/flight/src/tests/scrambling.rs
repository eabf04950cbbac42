//! Scrambling is a permutation that keeps what caches depend on.

use std::collections::HashSet;

use proptest::prelude::*;

use crate::anonymise::EXTENT_BYTES;
use crate::{Name, Scrambler, Table};

proptest! {
    #[test]
    fn extents_of_a_volume_are_permuted(
        key in proptest::collection::vec(any::<u8>(), 0..40),
        volume in any::<u32>(),
        extents in 0..700_u64,
        cut in 0..EXTENT_BYTES,
    ) {
        let scrambler = Scrambler::new(&key);
        let bytes = extents * EXTENT_BYTES + cut;
        let scrambled = |extent: u64| scrambler.offset(volume, bytes, extent * EXTENT_BYTES);
        let images: HashSet<u64> = (0..extents).map(scrambled).collect();
        prop_assert_eq!(images.len() as u64, extents);
        prop_assert!(images.iter().all(|image| image % EXTENT_BYTES == 0 && *image < extents * EXTENT_BYTES));
        if cut > 0 {
            prop_assert_eq!(scrambled(extents), extents * EXTENT_BYTES, "the extent that is cut stays");
        }
    }

    #[test]
    fn offsets_within_an_extent_stay(
        extents in 1..1_u64 << 30,
        extent in any::<prop::sample::Index>(),
        within in 0..EXTENT_BYTES,
    ) {
        let extent = extent.index(1 << 20) as u64 % extents;
        let scrambler = Scrambler::new(b"key");
        let offset = |within: u64| scrambler.offset(3, extents * EXTENT_BYTES, extent * EXTENT_BYTES + within);
        prop_assert_eq!(offset(within), offset(0) + within);
    }

    #[test]
    fn offsets_beyond_the_end_stay_beyond_it(bytes in any::<u64>(), offset in any::<u64>()) {
        let scrambled = Scrambler::new(b"key").offset(0, bytes, offset);
        prop_assert_eq!(scrambled < bytes, offset < bytes);
    }
}

#[test]
fn keys_and_volumes_give_different_permutations() {
    let order = |key: &[u8], volume: u32| {
        let scrambler = Scrambler::new(key);
        (0..1_000_u64).map(|n| scrambler.offset(volume, 1_000 << 20, n << 20) >> 20).collect::<Vec<u64>>()
    };
    let first = order(b"key", 0);
    assert_eq!(order(b"key", 0), first, "it is a function of the key");
    for other in [order(b"kez", 0), order(b"key\0", 0), order(b"", 0), order(b"key", 1), (0..1_000).collect()] {
        let same = first.iter().zip(&other).filter(|(a, b)| a == b).count();
        assert!(same < 20, "{same} of 1,000 extents are at the same place");
    }
    let neighbours = first.windows(2).filter(|pair| pair[1] == pair[0] + 1).count();
    assert!(neighbours < 20, "{neighbours} of 1,000 extents still follow each other");
}

#[test]
fn names_are_replaced() {
    let scrambler = Scrambler::new(b"key");
    let shop = scrambler.name("shop");
    let digits = shop.strip_prefix("tenant-").expect("the begin");
    assert!(digits.len() == 12 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()), "{shop}");
    assert_eq!(scrambler.name("shop"), shop);
    assert_eq!((0..1_000).map(|n| scrambler.name(&n.to_string())).collect::<HashSet<String>>().len(), 1_000);
    assert_ne!(Scrambler::new(b"other").name("shop"), shop);

    let volume = Name { table: Table::Volume, number: 5, name: "shop".into(), pool: "main".into(), bytes: 9 };
    let found = scrambler.entry(&volume);
    assert_eq!((found.table, found.number, found.bytes), (Table::Volume, 5, 9));
    assert_eq!(found.name.strip_prefix("volume-"), Some(digits), "a name has the same digits everywhere");
    assert!(found.pool.starts_with("pool-"), "{}", found.pool);
    assert_eq!(scrambler.entry(&Name { pool: String::new(), ..volume }).pool, "");
    assert!(!format!("{scrambler:?}").contains(char::is_numeric), "the key is not shown");
}

#[test]
fn connections_of_one_peer_stay_together() {
    let scrambler = Scrambler::new(b"key");
    let scrambled = |name: &str| {
        let entry = Name { table: Table::Client, number: 5, name: name.into(), pool: String::new(), bytes: 0 };
        scrambler.entry(&entry)
    };
    let host = |name: &Name| name.connection().map(|(host, _, identity)| format!("{host}{identity}"));
    let names = ["10.0.0.1:5000", "10.0.0.1:5001", "10.0.0.2:5000", "10.0.0.1:5000 (alice)", "10.0.0.1:5001 (alice)"];
    let found = names.map(scrambled);
    let hosts = found.each_ref().map(host);
    assert!(hosts.iter().all(Option::is_some), "{found:?}");
    assert!(hosts[0] == hosts[1] && hosts[3] == hosts[4], "{found:?}");
    assert!(hosts[0] != hosts[2] && hosts[0] != hosts[3], "{found:?}");
    assert_eq!(found.iter().map(|name| name.name.as_str()).collect::<HashSet<&str>>().len(), names.len());
    assert!(found.iter().all(|name| !name.name.contains("10.0") && !name.name.contains("alice")), "{found:?}");
    for name in ["unix uid 1000", "unix", "cgroup-42"] {
        assert_eq!(scrambled(name).connection(), None, "{name}");
    }
}
