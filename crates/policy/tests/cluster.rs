//! Tests of the cluster's settings, and of the validation of received records.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use evenkeel_control::Duration;
use evenkeel_control::cluster::totals::{Line, Sums};
use evenkeel_control::slots::{CLASSES, Class, Summary};
use evenkeel_policy::Config;
use evenkeel_policy::change::plan;
use evenkeel_policy::cluster::{
    Header, MAX_MEMBERS, MAX_POOLS, MAX_RECORD_BYTES, MAX_SUM_BYTES, MAX_SUM_POOLS, MAX_SUM_TOTALS, MAX_TOTALS, READS,
    Record, TooLarge, Totals, Unreadable, VERSION,
};
use evenkeel_policy::config::Cluster;
use proptest::prelude::*;

use super::reload::config;

fn complaints(text: &str) -> String {
    Config::parse(text, "test").expect_err("refused").to_string()
}

/// The summary of a pool in which every figure is used and has the value `figure`.
fn full(figure: f64) -> Summary {
    Summary {
        workloads: figure,
        active_weight: figure,
        weight: figure,
        used: figure,
        unused: figure,
        targets: figure,
        completed: figure,
        device_s: figure,
        device_part: figure,
        queued: figure,
        known: figure,
        elasticity: figure,
        smallest_target: Some(Duration::MAX),
        needs: [figure; 25],
        classes: [Class { weight: figure, need: figure }; 48],
    }
}

/// The classes of these numbers: weights and slots.
fn classes(used: impl IntoIterator<Item = (usize, f64, f64)>) -> [Class; CLASSES] {
    let mut classes = [Class::default(); CLASSES];
    used.into_iter().for_each(|(class, weight, need)| classes[class] = Class { weight, need });
    classes
}

fn record(pools: BTreeMap<String, Summary>) -> Record {
    Record {
        v: VERSION,
        reads: READS,
        incarnation: u64::MAX,
        period: u64::MAX,
        early: u8::MAX,
        joined: u64::MAX,
        period_us: u64::MAX,
        lease: 0,
        revision: 0,
        leaving: true,
        bits: 12,
        members: 1,
        pools,
        totals: Totals::new(),
    }
}

/// `number` tenants with the longest names, spread over all pools, with `figure` in every place.
fn totals(number: usize, figure: f64) -> Totals {
    let lines = Line { need: figure, throttled: figure, lack: figure, floor: figure, claim: figure, safe: figure };
    let mut totals = Totals::new();
    for n in 0..number {
        let sums = Sums { members: MAX_MEMBERS, lines, reserved: figure };
        let of_pool = totals.entry(format!("{:a<64}", n % MAX_POOLS)).or_default();
        of_pool.insert(format!("{n:b<129}"), [sums; 2]);
    }
    totals
}

#[test]
fn settings_are_complete_and_checked_with_place_and_cure() {
    assert_eq!(config("").cluster, Cluster::default());
    let read = config("[cluster]\netcd = [\"http://10.0.0.1:2379\", \"http://[fd00::1]:2379/\"]\nperiod = \"500ms\"\n")
        .cluster;
    assert_eq!(
        read.etcd.iter().map(|e| (e.host(), e.port())).collect::<Vec<_>>(),
        [("10.0.0.1", 2379), ("fd00::1", 2379)]
    );
    assert_eq!(read.etcd[1].to_string(), "http://[fd00::1]:2379");
    assert_eq!((read.control().lease, read.lease_seconds()), (6, 3));
    let (without, alone) = (Cluster { totals: false, ..read.clone() }, config("[cluster]\nhost = \"a\"\n").cluster);
    assert_eq!([&read, &without, &alone].map(Cluster::has_totals), [true, false, false]);
    for (text, wanted) in [
        ("[cluster]\netcd = [\"10.0.0.1:2379\"]", "test:2:"),
        ("[cluster]\netcd = [\"https://etcd:2379\"]", "an https:// address, and no CA certificate is set"),
        ("[cluster]\netcd = [\"https://etcd\"]", "has no port"),
        ("[cluster]\netcd = [\"http://etcd\"]", "has no port"),
        ("[cluster]\netcd = [\"http://:2379\"]", "no usable host name"),
        ("[cluster]\netcd = [\"http://a b:2379\"]", "no usable host name"),
        ("[cluster]\nname = \"a/b\"", "test:2:1: cluster.name: \"a/b\" is not a usable name"),
        ("[cluster]\nhost = \"\"", "cluster.host: \"\" is not a usable name"),
        ("[cluster]\nperiod = \"10ms\"", "cluster.period: 10ms is out of range; use \"100ms\" to \"1m\""),
        ("[cluster]\nlease = \"1s\"", "cluster.lease: must be 2 to 600 times cluster.period (1s)"),
        ("[cluster]\nshards_above = 0", "cluster.shards_above: must be 1 to 200 members"),
        ("[cluster]\nshard_size = 201", "cluster.shard_size: must be 1 to 200 members"),
        ("[cluster]\nperiods = \"1s\"", "did you mean \"period\"?"),
    ] {
        assert!(complaints(text).contains(wanted), "{text}: {}", complaints(text));
    }
}

#[test]
fn etcd_with_tls_and_a_password_has_complete_settings() {
    let secure = "[cluster]\netcd = [\"https://etcd:2379\", \"https://[fd00::1]:2379/\"]\n";
    let user = "user = \"evenkeel\"\npassword_file = \"/etc/password\"\n";
    let tls = "tls = { authorities = \"ca.pem\", certificate = \"own.pem\", key = \"own.key\" }\n";
    let read = config(&format!("{secure}{user}{tls}")).cluster;
    assert!(read.etcd.iter().all(|endpoint| endpoint.is_secure()), "{read:?}");
    assert_eq!((read.etcd[0].to_string(), read.etcd[1].host()), ("https://etcd:2379".to_owned(), "fd00::1"));
    assert_eq!(read.user.as_deref(), Some("evenkeel"));
    let (plain, half) = ("[cluster]\netcd = [\"http://etcd:2379\"]\n", "tls = { authorities = \"a\", key = \"k\" }\n");
    for (text, wanted) in [
        (format!("{plain}{tls}"), "cluster.tls: is of no use with http:// addresses"),
        (format!("{secure}{half}"), "cluster.tls: has only one of certificate and key"),
        (format!("{secure}{tls}user = \"a\"\n"), "cluster.user: has no password"),
        (format!("{secure}{tls}password_file = \"a\"\n"), "cluster.password_file: belongs to no user"),
        (format!("{secure}{tls}user = \"\"\npassword_file = \"a\"\n"), "cluster.user: is empty"),
        (format!("{plain}{user}"), "would carry the password in clear"),
        (format!("{secure}tls = {{ ca = \"a\" }}\n"), "test:3:"),
    ] {
        assert!(complaints(&text).contains(wanted), "{text}: {}", complaints(&text));
    }
}

#[test]
fn what_differs_between_hosts_takes_a_restart() {
    let user = "user = \"a\"\npassword_file = \"b\"\n";
    let after = config(&format!("[cluster]\nhost = \"a\"\nlease = \"5s\"\ntotals = false\n{user}"));
    let refusal = plan(&config(""), &after).expect_err("needs a restart").to_string();
    for key in ["cluster.host", "cluster.lease", "cluster.totals", "cluster.user", "cluster.password_file"] {
        assert!(refusal.contains(key), "{key}: {refusal}");
    }
    assert!(!refusal.contains("cluster.period"), "{refusal}");
    let changes = plan(&config(""), &config("[cluster]\nshards_above = 50\nshard_size = 10\n")).expect("live");
    let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
    assert_eq!(changes, ["cluster.shards_above changed", "cluster.shard_size changed"]);
}

#[test]
fn the_largest_record_is_within_the_stated_bound() {
    let name = |n: usize| format!("{n:a<64}");
    // The longest figures there are with five digits.
    let pools = (0..MAX_POOLS).map(|n| (name(n), full(1.2345e-300))).collect();
    let with_totals = Record { lease: u64::MAX, totals: totals(MAX_TOTALS, 1.2345e-300), ..record(pools) };
    let text = with_totals.text().expect("not too many pools");
    assert!(text.len() <= MAX_RECORD_BYTES, "{} bytes", text.len());
    assert!(text.len() > MAX_RECORD_BYTES / 2, "the bound is far too large: {} bytes do", text.len());
    let pools = (0..=MAX_POOLS).map(|n| (name(n), Summary::default())).collect();
    assert_eq!(record(pools).text(), Err(TooLarge { pools: MAX_POOLS + 1, most: MAX_POOLS }));

    let sum = |pools: usize| {
        let pools = (0..pools).map(|n| (name(n), full(1.2345e-300))).collect();
        let totals = totals(MAX_SUM_TOTALS, 1.2345e-300);
        Record { members: MAX_MEMBERS, revision: u64::MAX, totals, ..record(pools) }.text()
    };
    let text = sum(MAX_SUM_POOLS).expect("not too many pools");
    assert!(text.len() <= MAX_SUM_BYTES && text.len() > MAX_SUM_BYTES / 2, "{} bytes", text.len());
    assert_eq!(sum(MAX_SUM_POOLS + 1), Err(TooLarge { pools: MAX_SUM_POOLS + 1, most: MAX_SUM_POOLS }));
    // A host alone may not say as much.
    let alone = text.replace(&format!("\"members\":{MAX_MEMBERS},"), "");
    let is_of_one_host = Record::parse(alone.as_bytes()).is_ok_and(|read| read.is_of_one_host());
    assert!(alone.len() > MAX_RECORD_BYTES && !is_of_one_host);
}

#[test]
fn totals_come_back_with_bounds_rounded_up_and_are_checked() {
    let parse = |totals: Totals, members: u64| {
        let text = Record { totals, members, ..record(BTreeMap::new()) }.text().expect("no pools");
        Record::parse(text.as_bytes()).map(|read| (read.text().expect("no pools") == text, read.totals))
    };
    let (need, throttled, lack) = (2.0 / 3.0, 1.0 / 3.0, 1.0 / 7.0);
    let floor = 1.0 / 3.0;
    let lines = Line { need, throttled, lack, floor, claim: 1.0 / 3.0, safe: 2.0 / 3.0 };
    let one = |sums: Sums| Totals::from([("main".into(), BTreeMap::from([("db/a".into(), [sums, Sums::default()])]))]);
    let (is_same, read) = parse(one(Sums { members: 1, lines, reserved: 0.1 }), 1).expect("a record");
    let [sums, unset] = read["main"]["db/a"];
    let (need, throttled, lack) = (0.666_67, 0.333_33, 0.142_86);
    let floor = 0.333_33;
    let rounded = Line { need, throttled, lack, floor, claim: 0.333_34, safe: 0.666_67 };
    assert_eq!((sums, unset), (Sums { members: 1, lines: rounded, reserved: 0.1 }, Sums::default()));
    assert!(is_same, "a second rounding changes nothing");
    let each = |number: usize, members: u64, lines: Line, reserved: f64| {
        let mut all = totals(number, 1.0);
        let sums = all.values_mut().flat_map(BTreeMap::values_mut).flatten();
        sums.for_each(|sums| *sums = Sums { members, lines, reserved });
        all
    };
    let of_one = |number: usize| parse(each(number, 1, lines, 0.0), 1);
    assert!(of_one(MAX_TOTALS).is_ok() && of_one(MAX_TOTALS + 1).is_err());
    // The sum of a shard with one member has the safe parts of those that have expired.
    let expired = |number: usize| parse(each(number, 0, Line::default(), 0.125), 1);
    assert!(expired(MAX_TOTALS + 1).is_ok() && expired(MAX_SUM_TOTALS + 1).is_err());
    assert!(parse(totals(MAX_SUM_TOTALS, 1.0), 2).is_ok() && parse(totals(MAX_SUM_TOTALS + 1, 1.0), 2).is_err());
    assert!(parse(one(Sums { members: MAX_MEMBERS + 1, ..Sums::default() }), 1).is_err());
    let start = r#""v":3,"incarnation":1,"period":5,"joined":5,"period_us":1000000"#;
    let wrong = [
        r#"{"lines":{"claim":-1}}"#,
        r#"{"lines":{"safe":1e300}}"#,
        r#"{"members":1,"lines":{"need":1e999}}"#,
        r#"{"reserved":-1}"#,
        r#"{"reserved":1e7}"#,
    ];
    for unit in wrong {
        let text = format!("{{{start},\"totals\":{{\"main\":{{\"db\":[{unit},{{}}]}}}}}}");
        assert!(matches!(Record::parse(text.as_bytes()), Err(Unreadable::Corrupt(_))), "{text}");
    }
}

#[test]
fn a_usual_record_is_small() {
    // Four tenants with targets on one pool: every scale has a need, each tenant a class of its own.
    let needs = std::array::from_fn(|n| 137.318_274_6 / (n + 1) as f64);
    let classes = classes([(9, 1.0, 0.271_828), (14, 1.0, 1.618_033), (23, 1.0, 7.283_185), (30, 1.0, 31.415_926)]);
    let pool = Summary { needs, classes, completed: 4_711.0, device_s: 37.123_456, used: 37.123_456, ..full(4.0) };
    let usual = Record {
        incarnation: 1_795_329_373_123_456_789,
        period: 1_795_329_373,
        joined: 1_795_329_000,
        period_us: 1_000_000,
        lease: 3,
        leaving: false,
        bits: 0,
        ..record(BTreeMap::from([("main".into(), pool)]))
    };
    let text = usual.text().expect("one pool");
    assert!(text.len() < 630 && text.contains("\"lease\":3,"), "{} bytes: {text}", text.len());
    println!("{} bytes", text.len());
}

#[test]
fn the_revision_of_a_sum_comes_back_and_is_not_known_without_the_field() {
    let read = |record: Record| {
        let text = record.text().expect("no pools");
        let revision = Record::parse(text.as_bytes()).expect("a record").revision;
        (text.contains("\"revision\""), revision)
    };
    assert_eq!(read(Record { members: 2, revision: 7, ..record(BTreeMap::new()) }), (true, 7));
    assert_eq!(read(record(BTreeMap::new())), (false, 0));
}

#[test]
fn what_cannot_be_a_record_is_told_apart() {
    let parse = |text: &str| Record::parse(text.as_bytes());
    let start = r#""incarnation":1,"period":5,"joined":5,"period_us":1000000"#;
    assert!(parse(&format!("{{\"v\":3,{start}}}")).is_ok(), "no pools is a record");
    assert!(parse(&format!("{{\"v\":3,{start},\"later\":[1]}}")).is_ok(), "more of the same version is ignored");
    assert_eq!(parse("{\"v\":4,\"all\":\"different\"}"), Err(Unreadable::OtherVersion { version: 4 }));
    let older = format!("{{\"v\":1,{start},\"pools\":{{\"main\":{{\"goals\":3}}}}}}");
    assert_eq!(parse(&older), Err(Unreadable::OtherVersion { version: 1 }), "its targets would count as none");
    let older = format!("{{\"v\":2,{start},\"hosts\":3}}");
    assert_eq!(parse(&older), Err(Unreadable::OtherVersion { version: 2 }), "its members would count as one");
    let (bytes, most) = (MAX_SUM_BYTES + 1, MAX_SUM_BYTES);
    assert_eq!(parse(&" ".repeat(bytes)), Err(Unreadable::TooLong { bytes, most }));
    let shortest = format!("{{\"v\":3,{start}}}");
    let padded = |bytes: usize| shortest.clone() + &" ".repeat(bytes - shortest.len());
    let (bytes, most) = (MAX_RECORD_BYTES + 1, MAX_RECORD_BYTES);
    assert!(parse(&padded(most)).is_ok(), "a host's longest");
    assert_eq!(parse(&padded(bytes)), Err(Unreadable::TooLong { bytes, most }), "too long for a host");
    for text in [
        "",
        "null",
        "{}",
        "{\"v\":-1}",
        &format!("{{\"v\":0,{start}}}"),
        &format!("{{\"v\":3,{start}"),
        &format!("{{\"v\":3,{start},\"pools\":{{\"\":{{}}}}}}"),
        &format!("{{\"v\":3,{start},\"pools\":{{\"main\":{{\"used\":-1}}}}}}"),
        &format!("{{\"v\":3,{start},\"pools\":{{\"main\":{{\"used\":null}}}}}}"),
        &format!("{{\"v\":3,{start},\"pools\":{{\"main\":{{\"used\":1e300}}}}}}"),
        &format!("{{\"v\":3,{start},\"pools\":{{\"main\":{{\"classes\":[[2,1,1],[2,1,1]]}}}}}}"),
        &format!("{{\"v\":3,{start},\"pools\":{{\"main\":{{\"classes\":[[48,1,1]]}}}}}}"),
        &format!("{{\"v\":3,{start},\"pools\":{{\"main\":{{\"needs\":[1]}}}}}}"),
        &format!("{{\"v\":3,{start},\"bits\":13}}"),
        &format!("{{\"v\":3,{start},\"members\":0}}"),
        &format!("{{\"v\":3,{start},\"members\":1000001}}"),
        "{\"v\":3,\"incarnation\":1,\"period\":5,\"joined\":6,\"period_us\":1000000}",
    ] {
        assert!(matches!(parse(text), Err(Unreadable::Corrupt(_))), "{text}: {:?}", parse(text));
    }
}

#[test]
fn two_versions_read_each_other_if_the_newer_one_says_so() {
    let start = r#""incarnation":1,"period":5,"joined":5,"period_us":1000000"#;
    let newer = |reads: &str| format!("{{\"v\":4,{reads}{start},\"members\":7,\"later\":[1]}}");
    let parse = |text: &str, versions: RangeInclusive<u32>| Record::parse_as(text.as_bytes(), &versions);
    let (says_so, silent) = (newer("\"reads\":3,"), newer(""));
    assert_eq!(Record::versions(), VERSION..=VERSION);
    let read = parse(&says_so, 3..=3).expect("it can be read");
    assert_eq!((read.v, read.members), (VERSION, 7));
    assert_eq!(Record::parse(read.text().expect("no pools").as_bytes()), Ok(read), "written as one of this version");
    let other = Unreadable::OtherVersion { version: 4 };
    for (text, versions) in [(&silent, 3..=3), (&says_so, 1..=2), (&newer("\"reads\":0,"), 3..=3)] {
        assert_eq!(parse(text, versions), Err(other.clone()), "{text}");
    }
    // The newer one reads the older one's records, or not.
    let older = format!("{{\"v\":3,{start}}}");
    assert!(parse(&older, 3..=4).is_ok() && parse(&older, 4..=4).is_err());
    // What all versions have in common is known of the others.
    let header = |text: &str, versions: RangeInclusive<u32>| Header::of_other_version(text.as_bytes(), &versions);
    assert_eq!(header(&silent, 3..=3), Some(Header { v: 4, reads: None, leaving: false, members: 7 }));
    let left = header("{\"v\":9,\"leaving\":true,\"members\":0}", 3..=3);
    assert_eq!(left.map(|of| (of.leaving, of.members)), Some((true, 1)));
    let odd = header("{\"v\":9,\"leaving\":\"soon\"}", 3..=3);
    assert_eq!(odd, Some(Header { v: 9, reads: None, leaving: false, members: 1 }));
    for text in [says_so.as_str(), older.as_str(), "{", "{}", "{\"v\":0}"] {
        assert_eq!(header(text, 3..=3), None, "{text}");
    }
    // Nothing is said while there is nothing to say.
    let text = record(BTreeMap::new()).text().expect("no pools");
    assert_eq!(text.contains("reads"), READS != VERSION, "{text}");
}

#[test]
fn impossible_figures_are_written_as_the_nearest_possible() {
    let pool =
        Summary { used: f64::NAN, queued: f64::INFINITY, weight: -3.0, completed: 1.0 / 3.0, ..Summary::default() };
    let text = record(BTreeMap::from([("main".into(), pool)])).text().expect("one pool");
    let read = Record::parse(text.as_bytes()).expect("a record");
    let main = &read.pools["main"];
    assert_eq!((main.used, main.queued, main.weight, main.completed), (0.0, 1e15, 0.0, 0.333_33));
}

fn pool() -> impl Strategy<Value = Summary> {
    let figure = || prop_oneof![Just(0.0), 0.0..1e6, any::<f64>()];
    (
        proptest::collection::vec(figure(), 12),
        proptest::option::of(any::<u64>()),
        prop_oneof![Just(vec![0.0; 25]), proptest::collection::vec(figure(), 25)],
        proptest::collection::btree_map(0usize..48, (figure(), figure()), 0..48),
    )
        .prop_map(|(sums, smallest_target_us, needs, used)| Summary {
            workloads: sums[0],
            active_weight: sums[1],
            weight: sums[2],
            used: sums[3],
            completed: sums[4],
            device_s: sums[5],
            queued: sums[6],
            device_part: sums[7],
            known: sums[8],
            elasticity: sums[9],
            unused: sums[10],
            targets: sums[11],
            smallest_target: smallest_target_us.map(Duration::from_micros),
            needs: needs.try_into().expect("one for each scale"),
            classes: classes(used.into_iter().map(|(class, (weight, need))| (class, weight, need))),
        })
}

#[test]
fn a_summary_comes_back_as_it_was_written() {
    let mut summary =
        Summary { workloads: 3.0, weight: 9.0, used: 1.5, completed: 250.0, device_s: 2.5, ..Summary::default() };
    (summary.queued, summary.active_weight, summary.smallest_target) = (7.0, 8.0, Some(Duration::from_millis(250)));
    (summary.device_part, summary.known, summary.elasticity) = (0.75, 60.0, 15.0);
    (summary.unused, summary.targets) = (2.5, 1.0);
    summary.needs = std::array::from_fn(|n| 100.0 - n as f64);
    (summary.classes[0], summary.classes[47]) = (Class { weight: 1.0, need: 0.5 }, Class { weight: 2.0, need: 60.25 });
    let text = record(BTreeMap::from([("main".into(), summary.clone())])).text().expect("one pool");
    let read = Record::parse(text.as_bytes()).expect("a record");
    assert_eq!(read.pools["main"], summary);
    let text = record(BTreeMap::from([("main".into(), Summary::default())])).text().expect("one pool");
    assert_eq!(Record::parse(text.as_bytes()).expect("a record").pools["main"], Summary::default());
}

proptest! {
    /// A record can be read, and reading and writing it again changes nothing: all hosts see the same.
    #[test]
    fn every_record_can_be_read_and_written_again(
        numbers: [u64; 3],
        leaving: bool,
        pools in proptest::collection::btree_map("[a-z0-9]{1,64}", pool(), 0..4),
    ) {
        let [incarnation, period, period_us] = numbers;
        let record = Record { incarnation, period, joined: period / 2, period_us, leaving, ..record(pools) };
        let text = record.text().expect("few pools");
        let read = Record::parse(text.as_bytes()).map_err(|fault| TestCaseError::fail(fault.to_string()))?;
        prop_assert_eq!((read.incarnation, read.period, read.leaving), (incarnation, period, leaving));
        prop_assert_eq!(read.text().expect("few pools"), text);
    }

    /// A text that was cut, changed or made up is either refused, or read as a record within the bounds.
    #[test]
    fn damaged_text_does_no_harm(
        pools in proptest::collection::btree_map("[a-z]{1,8}", pool(), 0..3),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
        noise in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut text = record(pools).text().expect("few pools").into_bytes();
        for (place, byte) in damage {
            let place = place.index(text.len());
            text[place] = byte;
        }
        let cut = cut.index(text.len() + 1);
        for text in [&text[..], &text[..cut], &noise] {
            if let Ok(read) = Record::parse(text) {
                prop_assert!(read.v == VERSION && read.joined <= read.period && read.pools.len() <= MAX_POOLS);
                let finite = |pool: &Summary| pool.needs.iter().all(|need| need.is_finite() && *need >= 0.0);
                prop_assert!(read.pools.values().all(finite));
            }
        }
    }
}

#[test]
fn methods_that_know_one_host_only_are_refused_beside_others() {
    for (slots, refused) in [("needs", false), ("rwd", false), ("parda", false), ("drg", true)] {
        let pool = format!("[pools.main]\ntuning.slots = \"{slots}\"\n");
        let cluster = "[cluster]\netcd = [\"http://127.0.0.1:2379\"]\n";
        assert!(Config::parse(&pool, "test").is_ok(), "{slots} alone");
        let both = Config::parse(&format!("{pool}{cluster}"), "test");
        assert_eq!(both.is_err(), refused, "{slots}: {both:?}");
        if let Err(errors) = both {
            assert!(errors.to_string().contains("must be \"needs\""), "{errors}");
        }
    }
}
