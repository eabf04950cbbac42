//! Tests of changes that are saved in the configuration file, and of the preview of a reload, with a server.

use std::fs;

use serde_json::Value;

use super::server::{Folder, Server, control, fail, succeed};

const FILE: &str = "# Ours.\n[tenants.backup] # slow\nweight = 2 # agreed\n";

fn config(folder: &Folder) -> Value {
    let answer = control(&folder.join("evenkeel-data/control.sock"), "GET", "/api/v1/config", &[], "");
    serde_json::from_str(&answer.body).expect("JSON")
}

#[test]
fn a_saved_change_outlives_a_reload() {
    let folder = Folder::new();
    let file = folder.file("e.toml", FILE);
    let mut server = Server::start(&folder, &["--config", "e.toml"]);
    let set = ["tenant", "set", "backup", "--limit-bytes-per-s", "50MB", "--weight", "3", "--save"];
    let said = succeed(&folder, &set);
    for line in [
        "tenant backup changed: limit.bytes_per_s from 0 to 50MB, weight from 2 to 3\n",
        "[tenants.backup] limit.bytes_per_s: none -> 50MB\n",
        "[tenants.backup] weight: 2 -> 3\n",
        "saved in ",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(!said.contains("until the next reload") && !said.contains("would still"), "{said}");
    let text = fs::read_to_string(&file).expect("text");
    let expected = "# Ours.\n[tenants.backup] # slow\nweight = 3 # agreed\nlimit = { bytes_per_s = \"50MB\" }\n";
    assert_eq!(text, expected);
    assert_eq!(succeed(&folder, &["reload", "--dry-run"]), "nothing would change\n");
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");
    let again = succeed(&folder, &set);
    assert!(again.contains("nothing changed\n") && again.contains("nothing to save"), "{again}");

    // By the name of the file, and as JSON.
    let said = succeed(&folder, &["server", "set", "--workers", "2", "--save", "--json", "--config", "e.toml"]);
    let said: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!((&said["saved"]["written"], &said["saved"]["file"]), (&Value::from(true), &Value::from("e.toml")));
    assert_eq!(said["saved"]["keys"][0]["after"], "2", "{said:#}");
    let expected = format!("{expected}\n[server]\nworkers = 2\n");
    assert_eq!(fs::read_to_string(&file).expect("text"), expected);

    // A change that the server or the file refuses is not saved, and one that is not saved is named.
    let refused = fail(&folder, &["tenant", "set", "backup", "--weight", "0", "--save"]);
    assert!(refused.contains("nothing was changed") && refused.contains("tenants.backup.weight"), "{refused}");
    fail(&folder, &["tenant", "set", "other", "--weight", "2", "--save"]);
    assert_eq!(fs::read_to_string(&file).expect("text"), expected);
    let unsaved = succeed(&folder, &["tenant", "set", "backup", "--weight", "8"]);
    assert!(unsaved.contains("--save"), "{unsaved}");
    let said = succeed(&folder, &["tenant", "set", "other", "--weight", "2", "--save", "--create"]);
    assert!(said.contains("a reload would still make changes: tenant backup changed: weight from 8 to 3\n"), "{said}");

    // The preview of a reload.
    assert_eq!(succeed(&folder, &["reload", "--dry-run"]), "tenant backup changed: weight from 8 to 3\n");
    let in_force = config(&folder);
    let weights = ["backup", "other"].map(|tenant| in_force["tenants"][tenant]["weight"].as_u64());
    assert_eq!(weights, [Some(8), Some(2)]);
    assert!(in_force["config_file"].as_str().is_some_and(|file| file.starts_with('/') && file.ends_with("/e.toml")));
    fs::write(&file, format!("{expected}max_connections = 7\n")).expect("written");
    let refused = fail(&folder, &["reload", "--dry-run"]);
    assert!(refused.contains("a reload would be refused") && refused.contains("server.max_connections"), "{refused}");
    fs::write(&file, "[tenants.backup]\nwieght = 2\n").expect("written");
    assert!(fail(&folder, &["reload", "--dry-run"]).contains("did you mean \"weight\""));
    // A server that does not know a request makes no change.
    let unknown = control(&folder.join("evenkeel-data/control.sock"), "POST", "/api/v1/reload/other", &[], "");
    assert_eq!(unknown.status, 404, "{}", unknown.body);
    server.signal("TERM");
    let (status, log) = server.end();
    assert!(status.success() && log.contains("tenant backup: weight from 3 to 8"), "{log}");
    assert!(!log.contains(": configuration: "), "a preview is no change: {log}");
}

#[test]
fn hours_of_limits_and_weights_are_set_saved_and_removed() {
    let folder = Folder::new();
    let file = folder.file("e.toml", FILE);
    let server = Server::start(&folder, &["--config", "e.toml"]);
    let hours = ["--limit-iops", "500", "--limit-when", "22:00-06:00", "--weight-at", "8@22:00-06:00", "--save"];
    let said = succeed(&folder, &[&["tenant", "set", "backup"][..], &hours[..]].concat());
    for words in [
        "limit.iops from 0 to 500, limit.when from nothing to 22:00-06:00, weight_at from nothing to {",
        "[tenants.backup] limit.when: none -> 22:00-06:00\n",
        "[tenants.backup] weight_at.weight: none -> 8\n",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let limit = "limit = { iops = 500, when = \"22:00-06:00\" }\n";
    let weight = "weight_at = { weight = 8, when = \"22:00-06:00\" }\n";
    assert_eq!(fs::read_to_string(&file).expect("text"), format!("{FILE}{limit}{weight}"));
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");

    let removed = ["tenant", "set", "backup", "--limit-when", "none", "--weight-at", "", "--save"];
    let said = succeed(&folder, &removed);
    assert!(said.contains("limit.when from 22:00-06:00 to nothing, weight_at from {"), "{said}");
    assert_eq!(fs::read_to_string(&file).expect("text"), format!("{FILE}limit = {{ iops = 500 }}\n"));

    let pool = ["pool", "set", "main", "--limit-iops", "900", "--limit-when", "08:00-20:00"];
    let said = succeed(&folder, &pool);
    assert!(said.contains("limit.iops from 0 to 900, limit.when from nothing to 08:00-20:00"), "{said}");
    assert_eq!(config(&folder)["pools"]["main"]["limit"]["when"], "08:00-20:00");
    server.stop();
}

#[test]
fn the_limit_of_a_volume_is_set_shown_and_kept() {
    let folder = Folder::new();
    let file = folder.join("e.toml");
    let text = "[volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\" # small\n";
    fs::write(&file, text).expect("written");
    let server = Server::start(&folder, &["--config", "e.toml"]);
    let said = succeed(&folder, &["volume", "set", "a", "--limit-iops", "500"]);
    assert!(said.contains("volume a changed: limit from nothing to {") && said.contains("with --save"), "{said}");
    let said = succeed(&folder, &["volume", "set", "a", "--limit-iops", "900", "--save"]);
    assert!(said.contains("limit.iops from 500 to 900"), "{said}");
    assert!(said.contains("[volumes.a] limit.iops: none -> 900") && said.contains("saved in "), "{said}");
    assert_eq!(fs::read_to_string(&file).expect("text"), format!("{text}limit = {{ iops = 900 }}\n"));
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");
    let shown = succeed(&folder, &["volume", "show", "a"]);
    assert!(shown.contains("  limit.iops: 900\n") && shown.contains("  a: limit 900 IOPS\n"), "{shown}");
    let hangs = fail(&folder, &["volume", "set", "a", "--limit-bytes-per-s", "400"]);
    assert!(hangs.contains("clients would wait for seconds") && hangs.contains("--force"), "{hangs}");
    // That of a volume by command is kept on record.
    succeed(&folder, &["volume", "add", "v", "--backend", "memory", "--size", "1MiB"]);
    let said = succeed(&folder, &["volume", "set", "v", "--limit-bytes-per-s", "40MB"]);
    assert!(said.contains("volume v changed") && !said.contains("--save"), "{said}");
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");
    let refused = fail(&folder, &["volume", "set", "v", "--limit-iops", "5", "--save"]);
    assert!(refused.contains("nothing was changed") && refused.contains("leave out --save"), "{refused}");
    server.stop();
}

#[test]
fn a_server_without_a_file_saves_nothing() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let refused = fail(&folder, &["tenant", "set", "default", "--weight", "3", "--save"]);
    assert!(refused.contains("nothing was changed") && refused.contains("--config FILE"), "{refused}");
    let config = config(&folder);
    assert_eq!((&config["config_file"], &config["tenants"]["default"]["weight"]), (&Value::Null, &Value::from(1)));
    server.stop();
}

#[test]
fn tenants_and_pools_are_added_shown_and_removed() {
    let folder = Folder::new();
    let file = folder.file("e.toml", FILE);
    let server = Server::start(&folder, &["--config", "e.toml"]);
    let said = succeed(&folder, &["tenant", "add", "web", "--limit-iops", "500", "--save"]);
    assert!(said.contains("tenant web added") && said.contains("saved in "), "{said}");
    // Repeated with `add` it would be refused.
    let unsaved = succeed(&folder, &["tenant", "add", "later", "--weight", "2"]);
    assert!(unsaved.contains("repeat its options with `set` and --save"), "{unsaved}");
    assert!(fail(&folder, &["tenant", "add", "later", "--weight", "2", "--save"]).contains("`set`"));
    let said = succeed(&folder, &["tenant", "set", "later", "--weight", "2", "--save"]);
    assert!(said.contains("saved in "), "{said}");
    succeed(&folder, &["tenant", "remove", "later", "--save"]);
    assert!(fail(&folder, &["tenant", "remove", "default"]).contains("cannot be removed"));
    let again = fail(&folder, &["tenant", "add", "web", "--weight", "2"]);
    assert!(again.contains("[tenants.web] exists already") && again.contains("`set`"), "{again}");
    let said = succeed(&folder, &["pool", "add", "fast", "--save"]);
    assert!(said.contains("pool fast added"), "{said}");
    let text = fs::read_to_string(&file).expect("text");
    assert!(text.contains("[tenants.web]\nlimit = { iops = 500 }\n") && text.contains("[pools.fast]\n"), "{text}");
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");
    // Each of them as text and for programs.
    let shown = succeed(&folder, &["tenant", "show", "web"]);
    assert!(shown.contains("tenant web\n") && shown.contains("  limit.iops: 500\n"), "{shown}");
    let shown = succeed(&folder, &["pool", "show", "main"]);
    assert!(shown.contains("admission") && shown.contains("backup"), "{shown}");
    let json: Value = serde_json::from_str(&succeed(&folder, &["volume", "show", "disk0", "--json"])).expect("JSON");
    assert_eq!((&json["name"], &json["settings"]["size"]), (&Value::from("disk0"), &Value::from("1GiB")), "{json:#}");
    let unknown = fail(&folder, &["tenant", "show", "weeb"]);
    assert!(unknown.contains("did you mean \"web\"") && unknown.contains("tenant list"), "{unknown}");
    // A volume by command gets another tenant, and keeps it.
    succeed(&folder, &["volume", "add", "v", "--backend", "memory", "--size", "1MiB"]);
    let said = succeed(&folder, &["volume", "set", "v", "--tenant", "web"]);
    assert!(said.contains("volume v changed: tenant from nothing to web"), "{said}");
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");
    let refused = fail(&folder, &["tenant", "remove", "web"]);
    assert!(refused.contains("web"), "{refused}");
    succeed(&folder, &["volume", "set", "v", "--tenant", "backup"]);
    let said = succeed(&folder, &["tenant", "remove", "web", "--save"]);
    assert!(said.contains("tenant web removed\n") && said.contains("[tenants] web: "), "{said}");
    assert!(fail(&folder, &["pool", "remove", "main"]).contains("pool \"main\" has volumes"));
    let said = succeed(&folder, &["pool", "remove", "fast", "--save"]);
    assert!(said.contains("pool fast removed\n"), "{said}");
    let text = fs::read_to_string(&file).expect("text");
    assert!(!text.contains("web") && !text.contains("fast") && text.contains("weight = 2 # agreed"), "{text}");
    assert_eq!(succeed(&folder, &["reload"]), "nothing changed\n");
    server.stop();
}
