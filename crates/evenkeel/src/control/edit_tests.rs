//! Tests of edits: what an edit changes in the text, and that it changes nothing else.

use super::*;

fn names(path: &str) -> Vec<String> {
    path.split('.').map(str::to_owned).collect()
}

/// `text` after the change of the table `table` by `patch`.
#[track_caller]
fn after(text: &str, table: &str, patch: Value) -> String {
    let patch = patch.as_object().expect("an object");
    edited(text, &names(table), patch, false).unwrap_or_else(|error| panic!("{error:#}: {text}")).0
}

const FILE: &str = "\
# Our storage.
[server]
workers = 2   # cores

[tenants.shop]
weight = 3

# Backups run at night.
[tenants.backup] # slow
  limit = { iops = 500, burst = \"50ms\" }  # agreed
  match = [
    \"volume:a\", # first
    \"volume:b\",
  ]
  # weight = 2

# A disk.
[pools.main]
latency.target = \"20ms\" # reads
max_delay = \"2s\"
latency.percentile = 99
[pools.main.tuning]
admission = \"slowfast\"
";

#[test]
fn values_change_in_place_and_all_else_stays() {
    for (table, patch, old, new) in [
        ("server", json!({ "workers": "4" }), "workers = 2   # cores", "workers = 4   # cores"),
        ("tenants.shop", json!({ "weight": 5 }), "weight = 3\n", "weight = 5\n"),
        ("tenants.backup", json!({ "limit": { "iops": 900 } }), "iops = 500", "iops = 900"),
        ("tenants.backup", json!({ "limit": { "iops": 0 } }), "{ iops = 500, burst", "{ burst"),
        ("tenants.backup", json!({ "limit": { "burst": null } }), ", burst = \"50ms\" }", " }"),
        (
            "tenants.backup",
            json!({ "limit": { "bytes_per_s": "5MB" } }),
            "\"50ms\" }",
            "\"50ms\", bytes_per_s = \"5MB\" }",
        ),
        (
            "tenants.backup",
            json!({ "match": ["unix"] }),
            "[\n    \"volume:a\", # first\n    \"volume:b\",\n  ]",
            "[\"unix\"]",
        ),
        ("tenants.backup", json!({ "weight": 4 }), "  ]\n", "  ]\n  weight = 4\n"),
        (
            "tenants.shop",
            json!({ "priority": "background" }),
            "weight = 3\n",
            "weight = 3\npriority = \"background\"\n",
        ),
        (
            "tenants.shop",
            json!({ "latency": { "percentile": 99.0, "target": "10ms" } }),
            "weight = 3\n",
            "weight = 3\nlatency = { target = \"10ms\", percentile = 99 }\n",
        ),
        ("tenants.shop", json!({ "reservation": { "iops": 0, "bytes_per_s": "0" } }), "", ""),
        ("pools.main", json!({ "latency": { "target": "15ms" } }), "\"20ms\" # reads", "\"15ms\" # reads"),
        (
            "pools.main",
            json!({ "latency": { "of": "all" } }),
            "percentile = 99\n",
            "percentile = 99\nlatency.of = \"all\"\n",
        ),
        (
            "pools.main",
            json!({ "tuning": { "admission": { "kind": "none" } } }),
            "admission = \"slowfast\"",
            "admission = \"none\"",
        ),
        (
            "pools.main",
            json!({ "tuning": { "admission": { "budget": "1MiB", "kind": "fixed" } } }),
            "\"slowfast\"",
            "{ kind = \"fixed\", budget = \"1MiB\" }",
        ),
        (
            "pools.main",
            json!({ "tuning": { "admission": { "target_min": "2ms" } } }),
            "\"slowfast\"",
            "{ kind = \"slowfast\", target_min = \"2ms\" }",
        ),
        (
            "pools.main",
            json!({ "tuning": { "base_cost": "4000" } }),
            "\"slowfast\"\n",
            "\"slowfast\"\nbase_cost = 4000\n",
        ),
        (
            "tenants.new",
            json!({ "guarantee": { "read": { "iops": 7 } } }),
            "  # weight = 2\n",
            "  # weight = 2\n\n[tenants.new]\nguarantee = { read = { iops = 7 } }\n",
        ),
        (
            "volumes.v",
            json!({ "size": "1GiB" }),
            "admission = \"slowfast\"\n",
            "admission = \"slowfast\"\n\n[volumes.v]\nsize = \"1GiB\"\n",
        ),
    ] {
        assert_eq!(after(FILE, table, patch.clone()), FILE.replacen(old, new, 1), "{patch}");
        let lines = FILE.replace('\n', "\r\n");
        let expected = lines.replacen(&old.replace('\n', "\r\n"), &new.replace('\n', "\r\n"), 1);
        assert_eq!(after(&lines, table, patch.clone()), expected, "{patch}");
    }
    let without = FILE.replacen("latency.target = \"20ms\" # reads\n", "", 1);
    let without = without.replacen("latency.percentile = 99\n", "", 1);
    assert_eq!(after(FILE, "pools.main", json!({ "latency": null })), without);
}

#[test]
fn every_form_of_a_table_is_kept() {
    let faster = json!({ "limit": { "iops": 9, "bytes_per_s": "5MB" } });
    for (text, expected) in [
        ("[tenants.a]\nlimit.iops = 5\n", "[tenants.a]\nlimit.iops = 9\nlimit.bytes_per_s = \"5MB\"\n"),
        ("[tenants.a.limit]\niops = 5\n", "[tenants.a.limit]\niops = 9\nbytes_per_s = \"5MB\"\n"),
        ("[tenants]\na.limit.iops = 5\n", "[tenants]\na.limit.iops = 9\na.limit.bytes_per_s = \"5MB\"\n"),
        ("tenants.a.limit.iops = 5", "tenants.a.limit.iops = 9\ntenants.a.limit.bytes_per_s = \"5MB\"\n"),
        ("[tenants]\na = { limit.iops = 5 }\n", "[tenants]\na = { limit.iops = 9, limit.bytes_per_s = \"5MB\" }\n"),
        (
            "tenants = { a = { limit = { iops = 5 } } }",
            "tenants = { a = { limit = { iops = 9, bytes_per_s = \"5MB\" } } }",
        ),
        ("[tenants.a]\n", "[tenants.a]\nlimit = { bytes_per_s = \"5MB\", iops = 9 }\n"),
        ("[tenants.a]\nlimit = {}\n", "[tenants.a]\nlimit = { bytes_per_s = \"5MB\", iops = 9 }\n"),
        ("", "[tenants.a]\nlimit = { bytes_per_s = \"5MB\", iops = 9 }\n"),
        ("\u{feff}", "\u{feff}[tenants.a]\nlimit = { bytes_per_s = \"5MB\", iops = 9 }\n"),
        (
            "[tenants.\"a\".pools.p]\n",
            "[tenants.\"a\".pools.p]\n\n[tenants.a]\nlimit = { bytes_per_s = \"5MB\", iops = 9 }\n",
        ),
    ] {
        // New keys stand in the order of their names.
        let text_after = after(text, "tenants.a", faster.clone());
        assert_eq!(text_after, expected, "{text}");
        assert_eq!(after(&text_after, "tenants.a", faster.clone()), text_after, "a second time");
    }
}

#[test]
fn a_key_is_removed_from_every_form() {
    let none = json!({ "latency": null });
    for (text, expected) in [
        ("\u{feff}tenants.a.latency.target = \"5ms\"\n# end\n", "\u{feff}# end\n\n[tenants.a]\n"),
        ("[tenants.a]\nlatency = { target = \"5ms\" }\nweight = 2", "[tenants.a]\nweight = 2"),
        ("[tenants.a.latency]\ntarget = \"5ms\"\n\n[tenants.b]\n", "\n[tenants.b]\n\n[tenants.a]\n"),
        ("[tenants]\na = { latency.target = \"5ms\", weight = 2 }\n", "[tenants]\na = { weight = 2 }\n"),
        ("[tenants]\na = { weight = 2, latency.target = \"5ms\" }\n", "[tenants]\na = { weight = 2 }\n"),
        ("[tenants]\na = { latency = { target = \"5ms\" } }\n", "[tenants]\na = {}\n"),
        ("[tenants.a]\nweight = 2\n", "[tenants.a]\nweight = 2\n"),
    ] {
        assert_eq!(after(text, "tenants.a", none.clone()), expected, "{text}");
    }
    let unlimited = json!({ "limit": { "iops": 0 } });
    let text = after("[tenants.a]\nlimit = { iops = 5 }\n", "tenants.a", unlimited);
    assert_eq!(text, "[tenants.a]\n", "no empty braces");
}

#[test]
fn a_kind_takes_the_place_of_a_whole_table() {
    let fixed = json!({ "tuning": { "admission": { "kind": "fixed", "budget": "1MiB" } } });
    let text = "[pools.main.tuning.admission]\nkind = \"slowfast\"\ntarget_min = \"2ms\"\n";
    let expected = "[pools.main.tuning.admission]\nkind = \"fixed\"\nbudget = \"1MiB\"\n";
    assert_eq!(after(text, "pools.main", fixed.clone()), expected);
    let patch = fixed.as_object().expect("an object");
    let (_, edits) = edited(text, &names("pools.main"), patch, false).expect("edited");
    let edit = Edit {
        key: "tuning.admission".into(),
        before: Some("{ kind = \"slowfast\", target_min = \"2ms\" }".into()),
        after: Some("{ kind = \"fixed\", budget = \"1MiB\" }".into()),
    };
    assert_eq!(edits, [edit]);
}

#[test]
fn an_edit_has_the_value_before_and_after() {
    let patch = json!({ "limit": { "iops": 0, "bytes_per_s": "5MB" }, "weight": 3 });
    let text = "[tenants.a]\nweight = 3\nlimit = { iops = 5 }\n";
    let (_, edits) = edited(text, &names("tenants.a"), patch.as_object().expect("an object"), false).expect("edited");
    let edit = |key: &str, before: Option<&str>, after: Option<&str>| Edit {
        key: key.into(),
        before: before.map(Into::into),
        after: after.map(Into::into),
    };
    let expected = [edit("limit.bytes_per_s", None, Some("5MB")), edit("limit.iops", Some("5"), None)];
    assert_eq!(edits, expected, "the weight is as it was");
}

#[test]
fn what_cannot_be_edited_is_refused() {
    for (text, words) in [
        ("[[tenants]]\nname = \"a\"\n", "tenants is no table"),
        ("tenants = 5\n", "tenants is no table"),
        ("[tenants.a]\nlimit = 5\n", "tenants.a.limit is no table"),
        ("[tenants.a]\nlimit.iops.x = 5\n", "tenants.a.limit.iops is a table of its own"),
    ] {
        let patch = json!({ "limit": { "iops": 9 } });
        let refused = edited(text, &names("tenants.a"), patch.as_object().expect("an object"), false);
        let said = refused.expect_err(text).to_string();
        assert!(said.contains(words), "{text}: {said}");
    }
    assert!(edited("[tenants.a\n", &names("tenants.a"), &Map::new(), true).is_err(), "no TOML");
}

#[test]
fn a_table_without_keys_is_made_where_it_is_wanted() {
    let (text, edits) = edited("# a\n", &names("tenants.a"), &Map::new(), true).expect("edited");
    assert_eq!((text.as_str(), edits), ("# a\n\n[tenants.a]\n", Vec::new()));
    assert_eq!(edited(&text, &names("tenants.a"), &Map::new(), true).expect("edited").0, text);
}

#[test]
fn a_table_goes_with_all_that_is_in_it() {
    let (text, edits) = without(FILE, &names("tenants.shop")).expect("a table");
    assert!(!text.contains("shop") && text.contains("# Our storage."), "{text}");
    assert!(text.contains("# Backups run at night.\n[tenants.backup] # slow"), "{text}");
    let expected = Edit { key: "shop".into(), before: Some("{ weight = 3 }".into()), after: None };
    assert_eq!(edits, [expected]);
    assert_eq!(without(&text, &names("tenants.shop")).expect("nothing to do"), (text.clone(), Vec::new()));
    let braces = "[tenants]\na = { weight = 2 }\nb.weight = 3\n";
    assert_eq!(without(braces, &names("tenants.a")).expect("a value").0, "[tenants]\nb.weight = 3\n");
    assert_eq!(without(braces, &names("tenants.b")).expect("a dotted table").0, "[tenants]\na = { weight = 2 }\n");
}
