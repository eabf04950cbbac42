use super::*;
use proptest::prelude::*;

const STORES: [&str; 2] = [
    include_str!("../../tests/fixtures/ceph16/bluestore_1.json"),
    include_str!("../../tests/fixtures/ceph16/bluestore_2.json"),
];
const THROTTLES: [&str; 2] = [
    include_str!("../../tests/fixtures/ceph16/bytes_1.json"),
    include_str!("../../tests/fixtures/ceph16/bytes_2.json"),
];
const DEFERRED_THROTTLE: &str = include_str!("../../tests/fixtures/ceph16/deferred_1.json");
const NO_LOGGER: &str = include_str!("../../tests/fixtures/ceph16/nosuchlogger.json");

fn captured() -> [Counters; 2] {
    [0, 1].map(|i| Counters { store: parse(STORES[i], STORE).unwrap(), bytes: parse(THROTTLES[i], BYTES).unwrap() })
}

#[test]
fn an_osd_of_version_16_tells_all_that_is_wanted() {
    let [before, after] = captured();
    assert!(after.store.has_latencies());
    assert_eq!((after.bytes.val, after.bytes.max, after.bytes.waiting()), (224_148, 262_144, 2));
    assert!(after.continue_from(&before));
    assert!(!before.continue_from(&after));
    // Requests took a few milliseconds, not the seconds that a mistaken unit would make of it.
    let latency = after.store.latency_since(&before.store).unwrap();
    assert!((0.001..0.1).contains(&latency), "{latency}");
    let written = after.store.payload().unwrap() - before.store.payload().unwrap();
    let cost = after.bytes.put_sum - before.bytes.put_sum;
    assert!(cost > 0 && written > 0 && written <= cost * 2, "{written} {cost}");
    let deferred: Throttle = parse(DEFERRED_THROTTLE, "throttle-bluestore_throttle_deferred_bytes").unwrap();
    // Its bound is the sum of both options.
    assert_eq!(deferred.max, 262_144 + 134_217_728);
}

#[test]
fn names_of_later_versions_are_known_and_missing_counters_are_reported() {
    let later = STORES[0].replace("bluestore_write_", "write_");
    let store: Store = parse(&later, STORE).unwrap();
    assert_eq!(store.payload(), captured()[0].store.payload());
    let without = STORES[0].replace("state_kv_queued_lat", "state_gone_lat");
    let store: Store = parse(&without, STORE).unwrap();
    assert!(!store.has_latencies() && store.payload().is_some());
    assert_eq!(parse::<Store>(NO_LOGGER, STORE), Err(Malformed::Lacks("counters of bluestore".into())));
}

#[test]
fn the_logger_is_found_among_others_and_an_answer_that_is_cut_off_is_none() {
    let both = format!("{},{}", STORES[0].trim_end().strip_suffix('}').unwrap(), &THROTTLES[0][1..]);
    let [counters, _] = captured();
    assert_eq!((parse(&both, STORE), parse(&both, BYTES)), (Ok(counters.store), Ok(counters.bytes)));
    let cut = &STORES[0].trim_end()[..STORES[0].trim_end().len() - 1];
    assert!(matches!(parse::<Store>(cut, STORE), Err(Malformed::Json(_))));
    assert!(matches!(parse::<Store>(&format!("{} {{", STORES[0]), STORE), Err(Malformed::Json(_))));
    assert!(matches!(parse::<Store>("[]", STORE), Err(Malformed::Json(_))));
}

#[test]
fn nothing_committed_has_no_latency() {
    let [before, _] = captured();
    assert_eq!(before.store.latency_since(&before.store), None);
    assert_eq!(Average { avgcount: 1, sum: 1.0 }.mean_since(Average { avgcount: 2, sum: 2.0 }), None);
}

proptest! {
    #[test]
    fn damaged_counters_are_refused_or_read(which in 0usize..4, at in any::<prop::sample::Index>(), byte in 32u8..127) {
        let text = [STORES[0], STORES[1], THROTTLES[0], THROTTLES[1]][which];
        let mut bytes = text.as_bytes().to_vec();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        let text = std::str::from_utf8(&bytes).unwrap();
        let logger = if which < 2 { STORE } else { BYTES };
        let [before, _] = captured();
        if which < 2 {
            if let Ok(store) = parse::<Store>(text, logger) {
                let latency = store.latency_since(&before.store);
                prop_assert!(latency.is_none_or(|latency| latency >= 0.0));
            }
        } else if let Ok(bytes) = parse::<Throttle>(text, logger) {
            let _ = (bytes.waiting(), Counters { bytes, ..before }.continue_from(&before));
        }
    }
}
