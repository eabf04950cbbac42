//! Tests of options and of the requests that commands send.

use std::collections::BTreeSet;
use std::ffi::OsString;

use super::*;

#[test]
fn a_latency_target_is_a_time_and_perhaps_a_percentile() {
    for (text, percentile) in [("10ms@mean", json!("mean")), ("10ms@99.9", json!(99.9))] {
        assert_eq!(parse_latency(text).expect(text), json!({ "target": "10ms", "percentile": percentile }));
    }
    assert_eq!(parse_latency("10ms"), Ok(json!({ "target": "10ms" })), "the percentile stays");
    assert_eq!(parse_latency("none"), Ok(Value::Null));
    for text in ["10", "10ms@", "10ms@p99", "10ms@nan", "10ms@100", "@99"] {
        assert!(parse_latency(text).is_err(), "{text}");
    }
}

#[test]
fn hours_are_those_of_the_configuration_and_none_removes_them() {
    assert_eq!(parse_hours("22:00 - 06:00"), Ok(json!("22:00-06:00")));
    assert_eq!(parse_weight_at("8@18:00-24:00"), Ok(json!({ "weight": 8, "when": "18:00-24:00" })));
    for parse in [parse_hours, parse_weight_at] {
        assert_eq!([parse("none"), parse("")], [Ok(Value::Null), Ok(Value::Null)]);
    }
    for text in ["22-06", "8@22:00-06:00", "08:00-08:00"] {
        assert!(parse_hours(text).is_err_and(|error| error.contains("write for example \"22:00-06:00\"")), "{text}");
    }
    for text in ["8", "@22:00-06:00", "8@", "-1@22:00-06:00", "8@none"] {
        assert!(parse_weight_at(text).is_err(), "{text}");
    }
    // Beside other members, and alone.
    let hours = || Some(json!("22:00-06:00"));
    assert_eq!(limit(Some(500), None, None, hours()), Some(json!({ "iops": 500, "when": "22:00-06:00" })));
    assert_eq!(limit(None, None, None, Some(Value::Null)), Some(json!({ "when": null })));
}

#[test]
fn admission_is_a_kind_or_settings_of_the_present_one() {
    let given = |texts: &[&str]| texts.iter().map(|text| parse_admission(text).expect("parses")).collect::<Vec<_>>();
    assert_eq!(admission(given(&[])).expect("nothing"), None);
    assert_eq!(admission(given(&["none"])).expect("a kind"), Some(json!({ "kind": "none" })));
    assert_eq!(admission(given(&["fixed:1MiB"])).expect("a kind"), Some(json!({ "kind": "fixed", "budget": "1MiB" })));
    assert_eq!(
        admission(given(&["target_min=2ms", "history_samples=50"])).expect("settings"),
        Some(json!({ "target_min": "2ms", "history_samples": 50 }))
    );
    assert_eq!(
        admission(given(&["tolerance=null", "target_min=2ms"])).expect("settings"),
        Some(json!({ "tolerance": null, "target_min": "2ms" })),
        "no kind of that name"
    );
    assert_eq!(admission(given(&["fixed=1MiB"])).expect("a setting"), Some(json!({ "fixed": "1MiB" })));
    assert!(admission(given(&["none", "slowfast"])).is_err_and(|error| error.is::<Usage>()));
    assert!(parse_admission("fixed").is_err_and(|error| error.contains("fixed:512KiB")));
}

/// Options of commands accept exactly the values that the configuration accepts for the keys of the same meaning.
#[test]
fn options_have_the_values_of_their_keys() {
    let described = crate::program();
    let values = |words: [&str; 2], option: &str| -> Vec<String> {
        let command = words.iter().fold(&described, |command, word| command.find_subcommand(word).expect("one"));
        let option = command.get_arguments().find(|known| known.get_long() == Some(option)).expect("an option");
        option.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect()
    };
    let schema = evenkeel_policy::schema();
    for (words, option, kind) in [
        (["volume", "create"], "backend", "Backend"),
        (["volume", "create"], "format", "Format"),
        (["volume", "create"], "cache", "Cache"),
        (["pool", "set"], "scheduler", "Scheduler"),
    ] {
        let known = schema["$defs"][kind]["oneOf"].as_array().expect(kind).iter();
        let known: BTreeSet<&str> = known.map(|value| value["const"].as_str().expect("a name")).collect();
        let given = values(words, option);
        assert_eq!(given.iter().map(String::as_str).collect::<BTreeSet<_>>(), known, "{option}");
    }
}

/// The message with which the parser refuses a command line; panics if the parser accepts it.
fn refused(line: &str) -> String {
    let words = line.split(' ').map(|word| OsString::from(if word == "''" { "" } else { word }));
    crate::program().try_get_matches_from(crate::joined(words.collect())).expect_err(line).to_string()
}

#[test]
fn a_value_that_cannot_be_is_answered_by_what_can() {
    for line in [
        "tenant set ''",
        "pool set ''",
        "volume remove ''",
        "volume grow a/b 1GiB",
        "volume create ''",
        "tenant remove ''",
        "pool add ''",
    ] {
        let said = refused(&format!("evenkeel {line}"));
        assert!(said.contains("is not a usable name; use 1 to 64"), "{line}: {said}");
    }
    for (line, words) in [
        ("tenant set a --weight -1", "write a whole number, 0 or more"),
        ("tenant set a --limit-iops -5", "write a whole number, 0 or more"),
        ("tenant set a --limit-iops 0.5", "write a whole number, 0 or more"),
        ("pool set a --limit-iops 1e3", "write a whole number, 0 or more"),
        ("tenant set a --weight 99999999999", "is too large"),
        ("volume create a --size -5", "not a number of whole bytes"),
        ("volume grow a -5", "not a number of whole bytes"),
        ("volume set a --size 2GiB --tenant b", "cannot be used with '--tenant"),
        ("volume grow a -1GiB --json", "not a number of whole bytes"),
        ("volume create a --size -1GiB", "not a number of whole bytes"),
        ("tenant set a --limit-bytes-per-s -5MB --json", "not a number of whole bytes"),
        ("pool set a --latency -5ms", "is not a length of time"),
        ("pool set a --limit-when 22-06", "names no hours; write for example"),
        ("tenant set a --limit-when 08:00-08:00", "begins when it ends"),
        ("tenant set a --weight-at 8", "write WEIGHT@HOURS, for example 8@22:00-06:00"),
        ("load nbd://a --duration -1s", "is not a length of time"),
        ("guard why -n -1", "write a whole number, 0 or more"),
        ("sim a.toml --seed -1", "write a whole number, 0 or more"),
        ("reproduce saat --seed -1", "write a whole number, 0 or more"),
        ("guard hold --delay 1ms --device a --client foo", "write an address, for example 192.0.2.21"),
        ("serve --listen localhost:10809", "names are not looked up"),
        ("volume create a --size 99999999TiB", "is too large; write less than"),
        ("volume create a --backend fil", "[possible values: file, block, memory, emulate, nbd, rbd]"),
        ("volume create a --format qcow2", "[possible values: raw]"),
        ("volume create a --cache no", "[possible values: direct, buffered]"),
        ("pool set a --scheduler fifo", "[possible values: mclock, none]"),
        ("load foo", "is not an NBD URI"),
        ("load nbd://a --duration 0s", "use more than 0s, at most 7d"),
        ("top --interval 1ms", "out of range; use 100ms to 1h"),
        ("load nbd://a --rate -3", "use a whole number, 1 to 100000000"),
        ("load nbd://a --queue-depth 0", "use a whole number, 1 to 65536"),
        ("load nbd://a --check-journal j --fill", "cannot be used with '--fill"),
        ("load nbd://a --check-journal j --connections 2", "cannot be used with '--connections"),
        ("load nbd://a --check-journal j --threads 2", "cannot be used with '--threads"),
        ("volume create a --uri nbd+unix:///x?socket=", "socket: "),
        ("volume create a --ca ca.pem", "--uri <URI>"),
        ("volume create a --uri nbds://h/x --cert c.pem --key k.pem", "--ca <FILE>"),
        ("load nbds://a --ca ca.pem --cert c.pem", "--key <FILE>"),
    ] {
        let said = refused(&format!("evenkeel {line}"));
        assert!(said.contains(words) && !said.contains("tip: to pass"), "{line}: {said}");
    }
}

#[test]
fn a_socket_means_the_same_to_a_server_in_another_folder() {
    let here = std::env::current_dir().expect("a folder");
    let target = reachable("nbd+unix:///x?socket=rel.sock").expect("a URI");
    assert_eq!(target, Target { address: Address::Unix(here.join("rel.sock")), export: "x".into(), tls: None });
    assert_eq!(reachable("nbd://h:1/x"), Ok("nbd://h:1/x".parse().expect("a URI")));
}

#[test]
fn a_command_that_would_change_nothing_says_so() {
    assert!(!changes(&json!({})) && !changes(&json!({ "force": true })));
    assert!(changes(&json!({ "create": true })) && changes(&json!({ "weight": 1, "force": true })));
}

#[test]
fn only_what_was_given_is_sent() {
    assert_eq!(object([("weight", Some(json!(3))), ("burst", None)]), json!({ "weight": 3 }));
    assert_eq!(rates(None, None), None);
    assert_eq!(rates(Some(0), None), Some(json!({ "iops": 0 })));
}

#[test]
fn each_kind_of_object_has_the_same_commands() {
    let described = crate::program();
    for kind in ["volume", "tenant", "pool"] {
        let command = described.find_subcommand(kind).expect(kind);
        for words in ["list", "show", "add", "set", "remove"] {
            assert!(command.find_subcommand(words).is_some(), "{kind} {words}");
        }
    }
}
