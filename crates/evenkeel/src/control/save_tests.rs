//! Tests of saving: the meaning of an edited configuration, the choice of its file, and the replacement of the file.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use evenkeel_policy::config::{Priority, Tenant, WeightAt};
use evenkeel_policy::units::{Bytes, Duration};
use serde_json::json;

use super::*;
use crate::folder::Folder;

#[path = "../../../xtask/src/test/skip.rs"]
mod skip;

fn entries(folder: &Path) -> usize {
    fs::read_dir(folder).expect("a folder").count()
}

/// The text after a change of a configuration in one file.
#[track_caller]
fn after(text: &str, part: Part<'_>, patch: &Value, in_force: &Value) -> String {
    let change = planned(&Source::of(text, "t"), part, patch, in_force);
    change.unwrap_or_else(|error| panic!("{patch}: {error:#}\n{text}")).after
}

#[test]
fn an_edited_text_is_read_as_the_old_one_with_the_new_value() {
    let forms = [
        "",
        "[tenants.a]\n",
        "[tenants.a]\nweight = 2\nlimit.iops = 5\nlimit.burst = \"20ms\"\n\n[tenants.b]\nweight = 9\n",
        "[tenants.a.limit]\niops = 5\n[tenants.b]\nweight = 9",
        "[tenants]\na = { weight = 2, limit = { iops = 5 } }\n",
        "[tenants]\na.limit.iops = 5\na.reservation.iops = 4\n",
        "tenants.a.limit.iops = 5\n",
        "[tenants.a]\n\"limit\" = { iops = 5, } # most\nreservation = { iops = 3 }\n# end",
    ];
    type Change = fn(&mut Tenant);
    let changes: [(Value, Change); 9] = [
        (json!({ "weight": 7 }), |tenant| tenant.weight = 7),
        (json!({ "limit": { "iops": 0 } }), |tenant| tenant.limit.iops = 0),
        (json!({ "limit": { "bytes_per_s": "5MB", "burst": "50ms" }, "priority": "background" }), |tenant| {
            (tenant.limit.bytes_per_s, tenant.limit.burst) = (Bytes(5_000_000), Duration::from_millis(50));
            tenant.priority = Priority::Background;
        }),
        (json!({ "reservation": { "iops": 2 }, "limit": { "iops": 3 } }), |tenant| {
            (tenant.reservation.iops, tenant.limit.iops) = (2, 3);
        }),
        (json!({ "reservation": { "iops": 0, "bytes_per_s": "0" } }), |tenant| tenant.reservation.iops = 0),
        (json!({ "weight_at": { "weight": 8, "when": "22:00-06:00" } }), |tenant| {
            tenant.weight_at = Some(WeightAt { weight: 8, when: "22:00-06:00".parse().expect("hours"), is_on: false });
        }),
        (json!({ "limit": { "iops": 6, "when": "22:00-06:00" }, "weight_at": null }), |tenant| {
            (tenant.limit.iops, tenant.limit.when) = (6, Some("22:00-06:00".parse().expect("hours")));
            tenant.weight_at = None;
        }),
        (json!({ "pools": { "main": { "limit": { "iops": 0 }, "weight": 5 } } }), |tenant| {
            let own = tenant.pools.entry("main".to_owned()).or_default();
            (own.limit, own.weight) = (Some(Default::default()), Some(5));
        }),
        (json!({ "pools": { "main": null }, "each": true }), |tenant| tenant.each = true),
    ];
    for form in forms {
        for (mark, newline) in [("", "\n"), ("", "\r\n"), ("\u{feff}", "\n")] {
            let text = format!("{mark}{}", form.replace('\n', newline));
            let before = Config::parse(&text, "t").expect("a configuration");
            for (patch, change) in &changes {
                let mut expected = before.clone();
                change(expected.tenants.entry("a".to_owned()).or_default());
                let text = after(&text, Part::Tenant("a"), patch, &Value::Null);
                assert_eq!(Config::parse(&text, "t"), Ok(expected), "{patch}:\n{text}");
                let is_mixed = newline == "\r\n" && !form.is_empty() && text.replace(newline, "").contains('\n');
                assert!(text.starts_with(mark) && !is_mixed, "{text:?}");
            }
        }
    }
}

#[test]
fn a_removal_leaves_all_else_as_it_is() {
    for form in [
        "# one\n[tenants.a] # two\nweight = 2\n# three\nlimit.iops = 5\n\n# four\n[tenants.b]\nweight = 9 # five\n",
        "[tenants.a.limit]\niops = 5\n# end\n[tenants.b]\nweight = 9",
        "[tenants]\na = { weight = 2, limit = { iops = 5 } }\nb.weight = 9\n",
        "tenants.a.limit.iops = 5\ntenants.b = { weight = 9 } # last\n",
        "tenants = { a = { weight = 2 }, b = { weight = 9 } }\n",
    ] {
        for (mark, newline) in [("", "\n"), ("", "\r\n"), ("\u{feff}", "\n")] {
            let text = format!("{mark}{}", form.replace('\n', newline));
            let mut expected = Config::parse(&text, "t").expect("a configuration");
            expected.tenants.remove("a").expect("a tenant");
            let text = after(&text, Part::Tenant("a"), &Value::Null, &Value::Null);
            assert_eq!(Config::parse(&text, "t"), Ok(expected), "{text}");
            let comments = ["# one", "# three", "# four", "# five", "# end", "# last"];
            assert!(comments.iter().all(|comment| form.contains(comment) == text.contains(comment)), "{text}");
        }
    }
    // A file without the default tenant is read as one with it.
    assert_eq!(after("[tenants.default]\nweight = 2\n", Part::Tenant("default"), &Value::Null, &Value::Null), "");
}

#[test]
fn a_change_has_no_other_meaning_in_the_file() {
    let p99 = json!({ "pools": { "main": { "latency": { "target": "20ms", "percentile": 99 } } } });
    let target = json!({ "latency": { "target": "10ms" } });
    for (text, in_force, expected) in [
        ("", &p99, "[pools.main]\nlatency = { target = \"10ms\", percentile = 99 }\n"),
        ("", &Value::Null, "[pools.main]\nlatency = { target = \"10ms\" }\n"),
        (
            "[pools.main]\nlatency = { target = \"5ms\", percentile = 50 }\n",
            &Value::Null,
            "[pools.main]\nlatency = { target = \"10ms\", percentile = \"mean\" }\n",
        ),
    ] {
        assert_eq!(after(text, Part::Pool("main"), &target, in_force), expected);
    }
    let elastic = json!({ "pools": { "main": { "tuning": { "admission": { "kind": "elastic" } } } } });
    let setting = json!({ "tuning": { "admission": { "tolerance": 0.05 } } });
    let expected = "[pools.main]\ntuning = { admission = { kind = \"elastic\", tolerance = 0.05 } }\n";
    assert_eq!(after("", Part::Pool("main"), &setting, &elastic), expected);
    let setting = json!({ "tuning": { "admission": { "tolerance": 0.1 } } });
    let text = after(expected, Part::Pool("main"), &setting, &elastic);
    assert_eq!(text, expected.replace("0.05", "0.1"));
}

#[test]
fn settings_on_one_pool_are_changed_and_removed() {
    let p99 = json!({ "main": { "latency": { "target": "20ms", "percentile": 99 } } });
    let in_force = json!({ "tenants": { "a": { "pools": p99 } } });
    let target = json!({ "pools": { "main": { "latency": { "target": "10ms" } } } });
    let expected = "[tenants.a]\npools = { main = { latency = { target = \"10ms\", percentile = 99 } } }\n";
    assert_eq!(after("[tenants.a]\n", Part::Tenant("a"), &target, &in_force), expected);
    let none = json!({ "pools": { "main": null } });
    for text in [expected, "[tenants.a]\n[tenants.a.pools.main]\nweight = 3\nlimit.iops = 5\n"] {
        let text = after(text, Part::Tenant("a"), &none, &Value::Null);
        let left = Config::parse(&text, "t").expect("a configuration");
        assert_eq!(left.tenants["a"], Tenant::default(), "{text}");
    }
}

#[test]
fn a_tenant_of_the_policy_file_is_changed_there() {
    let text = |text: &str, origin: &str| Text { text: text.into(), origin: origin.into() };
    let host = text("policy = \"p.toml\"\n", "e.toml");
    let source = Source { host, policy: Some(text("[tenants.a]\nweight = 2\n", "p.toml")) };
    let patch = json!({ "weight": 7, "create": true });
    for (name, is_in_policy, after) in
        [("a", true, "[tenants.a]\nweight = 7\n"), ("b", false, "policy = \"p.toml\"\n\n[tenants.b]\nweight = 7\n")]
    {
        let change = planned(&source, Part::Tenant(name), &patch, &Value::Null).expect(name);
        assert_eq!((change.is_in_policy, change.after.as_str()), (is_in_policy, after));
    }
}

#[test]
fn a_configuration_with_faults_is_not_saved() {
    for (text, patch, words) in [
        ("[tenants.a]\nwieght = 2\n", json!({ "weight": 7 }), "wieght"),
        ("[tenants.a]\nweight = 2\n", json!({ "weight": 0 }), "tenants.a.weight"),
        ("[tenants.a]\nweight = 2\n", json!({ "wieght": 7 }), "wieght"),
    ] {
        let refused = planned(&Source::of(text, "t"), Part::Tenant("a"), &patch, &Value::Null).err().expect(text);
        assert!(format!("{refused:#}").contains(words), "{refused:#}");
    }
}

#[test]
fn a_file_is_replaced_as_a_whole_with_its_mode() {
    let folder = Folder::new();
    let (file, link) = (folder.file("e.toml", "old"), folder.join("link.toml"));
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("a mode");
    symlink("e.toml", &link).expect("a link");
    let real = fs::canonicalize(&link).expect("a file");
    let next = Temporary::write(&real, "new").expect("written");
    assert_eq!(fs::read_to_string(&file).expect("text"), "old", "until it is replaced");
    next.replace(&real).expect("replaced");
    assert_eq!(fs::read_to_string(&link).expect("text"), "new");
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o7777, 0o640);
    drop(Temporary::write(&real, "third").expect("written"));
    assert_eq!((fs::read_to_string(&file).expect("text").as_str(), entries(&folder)), ("new", 2), "nothing is left");
}

#[test]
fn a_file_that_cannot_be_replaced_is_known_before() {
    let folder = Folder::new();
    // Also root cannot make a file whose name is longer than 255 bytes.
    let file = folder.file(&"e".repeat(250), "old");
    Temporary::write(&file, "new").expect_err("no new version");
    for wrong in [folder.join("no.toml"), folder.join("none/e.toml"), folder.to_path_buf()] {
        Temporary::write(&wrong, "new").expect_err("no file");
    }
    assert_eq!((fs::read_to_string(&file).expect("text").as_str(), entries(&folder)), ("old", 1));
}

#[test]
fn two_new_versions_of_a_file_do_not_meet() {
    let folder = Folder::new();
    let file = folder.file("e.toml", "old");
    let [first, second] = ["first", "second"].map(|text| Temporary::write(&file, text).expect("written"));
    assert_eq!(entries(&folder), 3);
    drop(first);
    second.replace(&file).expect("replaced");
    assert_eq!((fs::read_to_string(&file).expect("text").as_str(), entries(&folder)), ("second", 1));
}

#[test]
fn a_file_with_an_access_control_list_is_left_alone() {
    let folder = Folder::new();
    let file = folder.file("e.toml", "old");
    // Tag, permissions and id: the owner, user 1, the group, the mask, others.
    let rights = [(1, 6, u32::MAX), (2, 4, 1), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in rights {
        list.extend([tag, 0, permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_access";
    if let Err(error) = rustix::fs::setxattr(&file, name, &list, rustix::fs::XattrFlags::empty()) {
        return skip::skip(&format!("no access control list can be set: {error}"));
    }
    let error = Temporary::write(&file, "new").expect_err("its list would be lost");
    assert!(error.kind() == io::ErrorKind::Unsupported && error.to_string().contains("access control"), "{error}");
    assert_eq!(entries(&folder), 1);
}

#[test]
fn a_file_that_another_program_has_changed_is_left_alone() {
    let folder = Folder::new();
    let file = folder.file("e.toml", "old");
    let ready = || Ready {
        file: file.clone(),
        before: "old".into(),
        next: Some(Temporary::write(&file, "new").expect("written")),
        saved: Saved { file: "e.toml".into(), table: "server".into(), keys: Vec::new(), written: true },
    };
    let late = ready();
    fs::write(&file, "other").expect("written");
    let error = format!("{:#}", late.commit().expect_err("another text"));
    assert!(error.contains("another program") && error.contains("e.toml"), "{error}");
    assert_eq!((fs::read_to_string(&file).expect("text").as_str(), entries(&folder)), ("other", 1));
    fs::write(&file, "old").expect("written");
    assert_eq!(ready().commit().expect("saved").text(), "saved in e.toml\n");
    assert_eq!((fs::read_to_string(&file).expect("text").as_str(), entries(&folder)), ("new", 1));
}
