//! Tests of options and of the requests that commands send.

use std::collections::BTreeSet;
use std::ffi::OsString;

use evenkeel_policy::uri::{Address, Target};

use super::tenant::rates;
use super::volume::reachable;
use super::*;

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
    assert!(admission_help().contains("one of none, fixed:BYTES, elastic, slowfast, such as fixed:512KiB"));
}

#[test]
fn a_pool_has_the_settings_of_its_options() {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        set: SetPool,
    }
    let line = "set main --limit-iops 5 --limit-burst 50ms --max-delay 3s --tuning slots=needs --tuning slots_most=256 \
                --tuning slots_latency=null --scheduler none --latency 9ms --latency-of writes";
    let read: Line = clap::Parser::try_parse_from(line.split(' ')).expect(line);
    let body = pool_body(&read.set).expect(line);
    let expected = json!({
        "limit": { "iops": 5, "burst": "50ms" },
        "max_delay": "3s",
        "tuning": { "slots": "needs", "slots_most": 256, "slots_latency": null, "scheduler": "none" },
        "latency": { "target": "9ms", "of": "writes" },
    });
    assert_eq!(body, expected);
    let consent = evenkeel_web::serve::Consent::default();
    let config = evenkeel_policy::Config::default();
    let changed = evenkeel_web::serve::with_pool(&config, "main", body, consent).expect("a pool");
    let pool = &changed.pools["main"];
    assert_eq!((pool.limit.iops, pool.max_delay, pool.tuning.slots_most), (5, Duration::from_secs(3), 256));
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
        (["volume", "create"], "unflushed", "Unflushed"),
        (["tenant", "set"], "priority", "Priority"),
        (["tenant", "set"], "latency-of", "Of"),
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
        ("volume add a --limit-when 08:00-08:00", "begins when it ends"),
        ("volume set a --size 2GiB --deny unix", "cannot be used with '--deny"),
        ("volume set a --allow elsewhere", "names no client; write addresses"),
        ("tenant set a --each maybe", "[possible values: true, false]"),
        ("tenant set a --inherit", "--pool <POOL>"),
        ("pool set a --tuning slots", "write KEY=VALUE"),
        ("tenant set a --weight-at 8", "write WEIGHT@HOURS, for example 8@22:00-06:00"),
        ("load nbd://a --duration -1s", "is not a length of time"),
        ("guard why -n -1", "write a whole number, 0 or more"),
        ("sim a.toml --seed -1", "write a whole number, 0 or more"),
        ("reproduce saat --seed -1", "write a whole number, 0 or more"),
        ("guard delay --delay 1ms --device a --client foo", "write an address, for example 192.0.2.21"),
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

/// For each table of the configuration: the commands with options for its keys, the keys (and tables of keys) whose options have
/// other names, and the keys that only a file has, because they are of `evenkeel guard` alone.
type Options = (&'static str, &'static [&'static str], &'static [[&'static str; 2]], &'static [&'static str]);

const OPTIONS: [Options; 3] = [
    (
        "tenants",
        &["set"],
        &[
            ["latency.target", "latency"],
            ["latency.percentile", "latency"],
            ["weight_at", "weight-at"],
            ["pools", "pool"],
        ],
        &["max_in_flight", "guarantee.read.ceiling", "guarantee.write.ceiling"],
    ),
    (
        "pools",
        &["set"],
        &[
            ["latency.target", "latency"],
            ["latency.percentile", "latency"],
            ["tuning.scheduler", "scheduler"],
            ["tuning.admission", "admission"],
            ["tuning.base_cost", "base-cost"],
            ["emulate", "emulate"],
        ],
        &["devices", "enforce", "tuning.cache", "tuning.guarantee"],
    ),
    (
        "volumes",
        &["create", "set"],
        &[["uri_tls.authorities", "ca"], ["uri_tls.certificate", "cert"], ["uri_tls.key", "key"]],
        &[],
    ),
];

/// The part of a JSON schema to which `at` refers.
fn referred<'s>(schema: &'s Value, mut at: &'s Value) -> &'s Value {
    while let Some(path) = at["$ref"].as_str().or_else(|| at["anyOf"][0]["$ref"].as_str()) {
        at = &schema["$defs"][path.trim_start_matches("#/$defs/")];
    }
    at
}

/// Adds the keys of a table, with dots in those of inner tables; `whole` names inner tables that count as one key.
fn add_keys(schema: &Value, table: &Value, above: &str, whole: &[&str], keys: &mut BTreeSet<String>) {
    for (name, property) in table["properties"].as_object().expect("a table") {
        let (key, inner) = (format!("{above}{name}"), referred(schema, property));
        if inner["properties"].is_object() && !whole.contains(&key.as_str()) {
            add_keys(schema, inner, &format!("{key}."), whole, keys);
        } else {
            keys.insert(key);
        }
    }
}

/// A new key of the configuration gets an option, or a reason to have none.
#[test]
fn every_key_has_an_option_or_is_of_the_agent_alone() {
    let (described, schema) = (crate::program(), evenkeel_policy::schema());
    for (table, commands, named, excepted) in OPTIONS {
        let command = described.find_subcommand(table.trim_end_matches('s')).expect(table);
        let commands: Vec<_> = commands.iter().map(|name| command.find_subcommand(name).expect(name)).collect();
        let options: BTreeSet<&str> =
            commands.iter().flat_map(|command| command.get_arguments()).filter_map(clap::Arg::get_long).collect();
        let listed: Vec<&str> = named.iter().map(|[key, _]| *key).chain(excepted.iter().copied()).collect();
        let one = referred(&schema, &referred(&schema, &schema["properties"][table])["additionalProperties"]);
        let mut keys = BTreeSet::new();
        add_keys(&schema, one, "", &listed, &mut keys);
        assert!(keys.len() > 15, "{keys:?}");
        for key in &keys {
            let other = named.iter().find(|[known, _]| known == key).map(|[_, option]| (*option).to_owned());
            let of_tuning = key.strip_prefix("tuning.").filter(|rest| !rest.contains('.')).map(|_| "tuning".to_owned());
            let option = other.or(of_tuning).unwrap_or_else(|| key.replace(['.', '_'], "-"));
            assert!(
                excepted.contains(&key.as_str()) || options.contains(option.as_str()),
                "{table}.NAME.{key}: `{table}` needs an option --{option}, or the key a place in the list of exceptions"
            );
        }
        for key in &listed {
            assert!(keys.contains(*key), "{table}.NAME.{key} is no key");
        }
        let help = commands[0].get_long_about().map(ToString::to_string).unwrap_or_default();
        for key in excepted {
            assert!(help.contains(key), "the help of `{table}` does not say that only a file has {key}: {help}");
        }
    }
}
