//! Tests of commands to a running server: by mistake they touch no foreign files, make no tenants and set no unusual values, and
//! the log names the user who ran a command.

use std::fs;
use std::path::PathBuf;

use super::server::{EVENKEEL, Folder, Load, Server, control, fail, run, succeed};

/// A temporary folder outside the server's, removed when the value is dropped, and the path of a file of 1 MiB in it.
fn elsewhere() -> (Folder, PathBuf) {
    let folder = Folder::new();
    let file = folder.file("foreign.img", vec![7; 1 << 20]);
    (folder, file)
}

#[test]
fn a_command_does_not_grow_or_take_what_is_not_ours() {
    let (folder, (elsewhere, foreign)) = (Folder::new(), elsewhere());
    let mut server = Server::start(&folder, &[]);
    let path = foreign.to_str().expect("a plain path");
    let create = |more: &[&'static str]| [&["volume", "create", "v", "--path", path][..], more].concat();
    for more in [&["--size", "10TiB"][..], &["--size", "10TiB", "--grow"], &[]] {
        let complaint = fail(&folder, &create(more));
        assert!(complaint.contains("outside the data folder") && complaint.contains("volume_dirs"), "{complaint}");
    }
    let complaint = fail(&folder, &["volume", "create", "v", "--path", "evenkeel-data/volumes.toml", "--size", "1MiB"]);
    assert!(complaint.contains("list of volumes of this server"), "{complaint}");
    assert!(fail(&folder, &create(&["--grow"])).contains("--size"));
    server.signal("TERM");
    server.end();

    let server = Server::configured(&folder, format!("[server]\nvolume_dirs = [{:?}]\n", elsewhere.path()));
    let complaint = fail(&folder, &create(&["--size", "10TiB"]));
    assert!(complaint.contains("did not create this file") && complaint.contains("--grow"), "{complaint}");
    let complaint = fail(&folder, &["volume", "create", "v", "--path", "e.toml", "--size", "1MiB"]);
    assert!(complaint.contains("volume_dirs") || complaint.contains("configuration"), "{complaint}");
    assert_eq!(fs::read(&foreign).expect("it is there"), vec![7; 1 << 20], "it was touched");
    assert_eq!(succeed(&folder, &create(&["--size", "2MiB", "--grow"])), "volume v added\n");
    assert_eq!(fs::metadata(&foreign).expect("it is there").len(), 2 << 20);
    server.stop();
    let server = Server::start(&folder, &["--config", "e.toml"]);
    assert_eq!(server.state()["volumes"].as_array().map(Vec::len), Some(2), "it is served after a restart, too");
    server.stop();
}

#[test]
fn an_image_is_refused_until_raw_is_meant_and_a_killed_server_remembers() {
    let folder = Folder::new();
    let image = folder.join("evenkeel-data/image");
    let mut server = Server::start(&folder, &[]);
    let mut content = vec![0; 1 << 20];
    content[..8].copy_from_slice(b"vhdxfile");
    fs::write(&image, &content).expect("written");
    let create = ["volume", "create", "v", "--path", "evenkeel-data/image"];
    let complaint = fail(&folder, &create);
    assert!(complaint.contains("a VHDX image") && complaint.contains("--format raw"), "{complaint}");
    succeed(&folder, &[&create[..], &["--format", "raw"]].concat());
    // A client turns the server's own volume into an image of another format.
    let disk = folder.join("evenkeel-data/disk0.img");
    let file = fs::OpenOptions::new().write(true).open(&disk).expect("the volume");
    std::os::unix::fs::FileExt::write_all_at(&file, b"QFI\xfb\0\0\0\x03", 0).expect("written");
    drop(file);
    server.signal("KILL");
    server.end_unread();
    let server = Server::start(&folder, &[]);
    assert_eq!(server.state()["volumes"].as_array().map(Vec::len), Some(2));
    server.stop();
}

#[test]
fn a_file_system_and_a_lack_of_space_are_named_in_the_answer() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let mut content = vec![0; 1 << 20];
    content[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(folder.join("evenkeel-data/disk"), &content).expect("written");
    let said = succeed(&folder, &["volume", "create", "v", "--path", "evenkeel-data/disk"]);
    assert!(said.contains("already holds an MBR partition table"), "{said}");
    server.stop();
    // As much as a file may have.
    fs::write(folder.join("big.toml"), "[volumes.v]\nsize = \"4194304TiB\"\n").expect("written");
    let output = run(&folder, &["check", "big.toml"]);
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(warning.contains("warning: big.toml:2:1: volumes.v.size") && warning.contains("are free"), "{warning}");
    assert!(output.status.success());
    assert!(!folder.join("evenkeel-data/v.img").exists());
}

#[test]
fn a_name_that_is_not_there_is_an_error_with_the_one_that_was_meant() {
    let folder = Folder::new();
    let text = "[tenants.database]\n[volumes.disk]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let server = Server::configured(&folder, text);
    for (arguments, words) in [
        (&["tenant", "set", "databse", "--weight", "2"][..], "did you mean \"database\""),
        (&["tenant", "set", "databse", "--weight", "2"], "--create"),
        (&["pool", "set", "mian", "--limit-iops", "5"], "did you mean \"main\""),
        (&["volume", "grow", "disc", "2MiB"], "did you mean \"disk\""),
        (&["volume", "remove", "disc"], "did you mean \"disk\""),
        (&["volume", "create", "v", "--size", "1MiB", "--tenant", "databse"], "did you mean \"database\""),
        (&["volume", "create", "v", "--size", "1MiB", "--pool", "mian"], "did you mean \"main\""),
        (&["volume", "create", "v", "--size", "1MiB", "--backend", "memry"], "a similar value exists: 'memory'"),
        (&["pool", "set", "main", "--admission", "elastc"], "did you mean \"elastic\""),
    ] {
        let complaint = fail(&folder, arguments);
        assert!(complaint.contains(words), "{arguments:?}: {complaint}");
    }
    assert!(succeed(&folder, &["tenant", "list"]).contains("database"));
    let pools: serde_json::Value =
        serde_json::from_str(&succeed(&folder, &["pool", "list", "--json"])).expect("the pools of the state");
    assert_eq!(pools[0]["name"], "main", "{pools}");
    let refused = run(&folder, &["volume", "remove", "disc", "--json"]);
    let said: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("the answer of the API");
    assert!(refused.status.code() == Some(1) && said["error"]["kind"].is_string(), "{said}");
    // A program that sends the same is answered by the key, in words of the API.
    let body = r#"{"name": "v", "volume": {"backend": "fil"}}"#;
    let header = ["Content-Type: application/json"];
    let socket = folder.join("evenkeel-data/control.sock");
    let refused = control(&socket, "POST", "/api/v1/volumes", &header, body).body;
    assert!(refused.contains("did you mean \\\"file\\\"") && !refused.contains("Failed to"), "{refused}");
    assert!(!refused.contains("Content-Type"), "{refused}");
    let names = || {
        let state = server.state();
        let tenants = state["pools"][0]["tenants"].as_array().expect("tenants").clone();
        tenants.iter().map(|tenant| tenant["name"].as_str().expect("a name").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["database", "default"]);
    succeed(&folder, &["tenant", "set", "databse", "--weight", "2", "--create"]);
    assert_eq!(names(), ["database", "databse", "default"]);
    // One that is there takes the word as well.
    succeed(&folder, &["tenant", "set", "databse", "--weight", "3", "--create"]);
    server.stop();
}

#[test]
fn values_that_hang_are_refused_unless_forced() {
    let folder = Folder::new();
    let text = "[pools.slow]\nemulate = { preset = \"ssd\" }\n[volumes.disk]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let server = Server::configured(&folder, text);
    for arguments in [
        &["tenant", "set", "default", "--limit-bytes-per-s", "10"][..],
        &["tenant", "set", "default", "--guarantee-read-bytes-per-s", "9"],
        &["pool", "set", "main", "--limit-bytes-per-s", "100"],
        &["pool", "set", "main", "--admission", "fixed:64"],
        &["pool", "set", "slow", "--emulate", "read_latency=1h"],
    ] {
        let before = server.state()["pools"].clone();
        let complaint = fail(&folder, arguments);
        assert!(
            complaint.contains("less than one") || complaint.contains("below the cost of one request"),
            "{complaint}"
        );
        assert!(complaint.contains("--force"), "{complaint}");
        let after = server.state()["pools"].clone();
        let kept = |pools: &serde_json::Value| (pools[0]["limit"].clone(), pools[0]["admission"]["kind"].clone());
        assert_eq!(kept(&after), kept(&before), "{arguments:?}");
        let said = succeed(&folder, &[arguments, &["--force"]].concat());
        assert!(said.contains("warning: "), "{said}");
    }
    assert_eq!(server.state()["pools"][0]["limit"]["bytes_per_s"], 100);
    // What hangs already does not keep other changes from being made.
    succeed(&folder, &["tenant", "set", "default", "--weight", "3"]);
    let socket = folder.join("evenkeel-data/control.sock");
    let patch = |body| control(&socket, "PATCH", "/api/v1/tenants/default", &["Content-Type: application/json"], body);
    let refused = patch("{\"limit\": {\"bytes_per_s\": 11}}");
    assert!(refused.status == 422 && refused.body.contains("would_hang"), "{}", refused.body);
    assert_eq!(patch("{\"limit\": {\"bytes_per_s\": 11}, \"force\": true}").status, 200);
    assert_eq!(patch("{\"weight\": 2, \"force\": \"yes\"}").status, 422);
    let slow = ["volume", "add", "slow", "--backend", "memory", "--size", "1MiB", "--limit-bytes-per-s", "10"];
    let complaint = fail(&folder, &slow);
    assert!(complaint.contains("less than one request") && complaint.contains("--force"), "{complaint}");
    assert_eq!(server.state()["volumes"].as_array().map(Vec::len), Some(1));
    let said = succeed(&folder, &[&slow[..], &["--force"]].concat());
    assert!(said.contains("volume slow added") && said.contains("warning: volumes.slow.limit"), "{said}");
    server.stop();

    let file = "[tenants.default]\nlimit = { bytes_per_s = 10 }\n";
    fs::write(folder.join("slow.toml"), file).expect("written");
    let output = run(&folder, &["check", "slow.toml"]);
    let warning = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{warning}");
    assert!(
        warning.contains("warning: slow.toml:2:11: tenants.default.limit.bytes_per_s") && warning.contains("\"10MB\""),
        "{warning}"
    );
}

#[test]
fn what_is_doubtful_about_a_change_is_reported_once_in_the_answer_and_in_the_log() {
    let folder = Folder::new();
    let text = "[pools.main]\nlimit = { iops = 500 }\n[tenants.database]\n[volumes.database]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    let mut server = Server::configured(&folder, text);
    let doubt = "warning: pools.main.limit: reservations and guarantees of tenant database come to 900 IOPS";
    let said = succeed(&folder, &["tenant", "set", "database", "--reservation-iops", "900"]);
    assert!(said.contains(doubt), "{said}");
    assert!(server.log_until("WARN").contains("come to 900 IOPS"));
    let said = succeed(&folder, &["tenant", "set", "database", "--weight", "2"]);
    assert!(!said.contains("warning"), "{said}");
    let said = succeed(&folder, &["volume", "create", "v", "--backend", "memory", "--size", "1000"]);
    assert!(said.contains("warning: volumes.v.size: 1kB is not a multiple of 512"), "{said}");
    fs::write(folder.join("e.toml"), text.replace("[tenants.database]", "[tenants.databse]")).expect("written");
    let said = succeed(&folder, &["reload"]);
    assert!(said.contains("warning: tenants.databse: ") && said.contains("did you mean \"database\"?"), "{said}");
    assert!(!said.contains("900 IOPS"), "{said}");
    server.stop();
}

#[test]
fn a_check_tells_of_files_what_a_server_would() {
    let (folder, (elsewhere, foreign)) = (Folder::new(), elsewhere());
    let check = |text: &str| {
        fs::write(folder.join("e.toml"), text).expect("written");
        let output = run(&folder, &["check", "e.toml"]);
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let at = |path: &std::path::Path, more: &str| format!("[volumes.v]\npath = {path:?}\n{more}");
    let fine = (true, String::new());
    assert_eq!(check(&at(&foreign, "")), fine);
    // Where no server has been, the one that is meant may be elsewhere.
    let (usable, said) = check(&at(&foreign, "size = \"10TiB\"\n"));
    assert!(
        usable && said.contains("warning: e.toml:3:1: volumes.v.size: ") && said.contains("did not create"),
        "{said}"
    );
    let image = elsewhere.join("image");
    fs::write(&image, [b"QFI\xfb\0\0\0\x03", &[0; 4088][..]].concat()).expect("written");
    let (usable, said) = check(&at(&image, ""));
    assert!(
        !usable && said.contains("error: e.toml:2:1: volumes.v.path: ") && said.contains("a qcow2 image"),
        "{said}"
    );
    let disk = elsewhere.join("disk");
    fs::write(&disk, [&[0; 510][..], &[0x55, 0xaa], &[0; 3584]].concat()).expect("written");
    let (usable, said) = check(&at(&disk, ""));
    assert!(usable && said.contains("warning: e.toml:2:1: volumes.v.path: ") && said.contains("an MBR"), "{said}");
    for own in [folder.join("e.toml"), folder.join("evenkeel-data/volumes.toml")] {
        let (usable, said) = check(&at(&own, "size = \"1MiB\"\n"));
        assert!(!usable && said.contains("volumes.v.path: ") && said.contains("clients would destroy"), "{said}");
    }
    let link = elsewhere.join("link");
    std::os::unix::fs::symlink(&foreign, &link).expect("a link");
    let (usable, said) = check(&format!("{}[volumes.w]\npath = {link:?}\n", at(&foreign, "")));
    assert!(!usable && said.contains("volumes.w.path: ") && said.contains("already holds volume \"v\""), "{said}");

    // What a server has served is known, and what clients have written there means nothing.
    let server = Server::configured(&folder, "[volumes.ours]\nsize = \"1MiB\"\n");
    server.stop();
    let ours = fs::OpenOptions::new().write(true).open(folder.join("evenkeel-data/ours.img")).expect("the volume");
    std::os::unix::fs::FileExt::write_all_at(&ours, b"QFI\xfb\0\0\0\x03", 0).expect("written");
    assert_eq!(check("[volumes.ours]\nsize = \"2MiB\"\n"), fine);
    let record = fs::read(folder.join("evenkeel-data/files.toml")).expect("the record");
    let (usable, said) = check(&at(&foreign, "size = \"10TiB\"\n"));
    assert!(
        !usable && said.contains("error: e.toml:3:1: volumes.v.size: ") && said.contains("did not create"),
        "{said}"
    );
    assert_eq!(check(&at(&foreign, "size = \"2MiB\"\ngrow = true\n")), fine);
    assert!(!check(&at(&foreign, "size = \"4KiB\"\n")).0);
    assert!(fs::metadata(&foreign).expect("it is there").len() == 1 << 20, "it was touched");
    assert_eq!(fs::read(folder.join("evenkeel-data/files.toml")).expect("the record"), record, "it was touched");
}

#[test]
fn every_change_by_command_is_on_record_with_who_what_from_and_to() {
    let folder = Folder::new();
    let mut server = Server::configured(&folder, "[volumes.disk]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    succeed(&folder, &["tenant", "set", "default", "--limit-bytes-per-s", "10MB", "--weight", "3"]);
    succeed(&folder, &["pool", "set", "main", "--limit-iops", "500"]);
    succeed(&folder, &["server", "set", "--workers", "2"]);
    succeed(&folder, &["volume", "create", "v", "--backend", "memory", "--size", "1MiB"]);
    succeed(&folder, &["volume", "grow", "v", "2MiB"]);
    succeed(&folder, &["volume", "remove", "v"]);
    fail(&folder, &["tenant", "set", "default", "--weight", "0"]);
    succeed(&folder, &["reload"]);
    let log = server.log_until("pools.main.limit.iops from 500 to 0");
    let program = std::path::Path::new(EVENKEEL).file_name().and_then(|name| name.to_str()).expect("a name");
    let who = format!("changed by uid {}, pid ", rustix::process::getuid().as_raw());
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("changed by ")).collect();
    assert_eq!(lines.len(), 7, "{log}");
    for (line, what) in lines.iter().zip([
        "tenant default: limit.bytes_per_s from 0 to 10MB, weight from 1 to 3",
        "pool main: limit.iops from 0 to 500",
        "server: workers from auto to 2",
        "volume v: ",
        "volume v: size from 1MiB to 2MiB",
        "volume v: ",
        "configuration: ",
    ]) {
        assert!(line.contains(&who) && line.contains(&format!("({program})")) && line.contains(what), "{line}");
    }
    for (line, parts) in [
        (lines[3], ["served from false to true", "size from nothing to 1MiB", "backend from file to memory"]),
        (lines[5], ["served from true to false", "size from 2MiB to nothing", "backend from memory to file"]),
        (
            lines[6],
            [
                "pools.main.limit.iops from 500 to 0",
                "server.workers from 2 to auto",
                "tenants.default.weight from 3 to 1",
            ],
        ),
    ] {
        for part in parts {
            assert!(line.contains(part), "{part}: {line}");
        }
    }
    fs::write(folder.join("e.toml"), "[volumes.disk]\nbackend = \"memory\"\nsize = \"2MiB\"\n").expect("written");
    server.signal("HUP");
    let log = server.log_until("changed by SIGHUP");
    // Of the program that has sent it.
    let who = format!("SIGHUP of uid {}, pid ", rustix::process::getuid().as_raw());
    assert!(log.contains(&format!("reloading the configuration: {who}")), "{log}");
    assert!(log.contains(&format!("changed by {who}")), "{log}");
    assert!(log.contains("configuration: volumes.disk.size from 1MiB to 2MiB"), "{log}");
    server.stop();
}

#[test]
fn a_guarantee_that_is_missed_is_one_warning_and_its_return_is_logged() {
    let folder = Folder::new();
    let text = "[pools.main.emulate]\niops = 100\n[tenants.disk]\nguarantee = { iops = 2000 }\n\
                [volumes.disk]\nbackend = \"emulate\"\nsize = \"1MiB\"\n";
    let mut server = Server::configured(&folder, text);
    let load = Load::start(&folder, "disk", &["--op", "read", "--queue-depth", "16"]);
    let log = server.log_until("guaranteed throughput missed");
    succeed(&folder, &["pool", "set", "main", "--emulate", "iops=20000"]);
    let log = log + &server.log_until("guaranteed throughput no longer missed");
    drop(load);
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("guaranteed throughput")).collect();
    assert!(lines.len() == 2 && lines[0].contains("WARN") && lines[1].contains("INFO"), "{log}");
    server.stop();
}

#[test]
fn a_load_on_an_export_that_is_not_there_names_the_one_that_was_meant() {
    let folder = Folder::new();
    let volumes = ["disk0", "archive"].map(|name| format!("[volumes.{name}]\nbackend = \"memory\"\nsize = \"1MiB\"\n"));
    let server = Server::configured(&folder, volumes.concat());
    let (address, _) = server.uri().rsplit_once('/').expect("an export");
    for (export, suggestion) in [("dsik0", "did you mean \"disk0\"?"), ("other", "known: archive, disk0")] {
        let said = fail(&folder, &["load", &format!("{address}/{export}"), "--requests", "1"]);
        assert!(said.contains(&format!("there is no export \"{export}\"; {suggestion}")), "{said}");
    }
    server.stop();
}

#[test]
fn a_start_names_the_volume_that_cannot_be_opened_and_where_it_stands() {
    let folder = Folder::new();
    fs::write(folder.join("v.toml"), "[volumes.a]\n").expect("written");
    let serve = ["serve", "--listen", "127.0.0.1:0", "--status", "off"];
    let complaint = fail(&folder, &[&serve[..], &["--config", "v.toml"]].concat());
    let words = "volume \"a\": cannot open evenkeel-data/a.img: it is not there, and a new file needs a size";
    assert!(complaint.contains(words), "{complaint}");
    let recorded = "[volumes.far]\nbackend = \"nbd\"\nuri = \"nbd+unix:///a?socket=/nonexistent/socket\"\n";
    fs::create_dir_all(folder.join("evenkeel-data")).expect("made");
    fs::write(folder.join("evenkeel-data/volumes.toml"), recorded).expect("written");
    let complaint = fail(&folder, &serve);
    assert!(complaint.contains("(the volume is recorded in evenkeel-data/volumes.toml)"), "{complaint}");
}

#[test]
fn the_answer_to_a_command_is_json_for_programs() {
    let folder = Folder::new();
    let server = Server::start(&folder, &[]);
    let json = |arguments: &[&str]| -> serde_json::Value {
        serde_json::from_str(&succeed(&folder, arguments)).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
    };
    let created = json(&["volume", "create", "v", "--backend", "memory", "--size", "1MiB", "--json"]);
    assert_eq!(created["changes"][0], "volume v added");
    let names: Vec<_> = json(&["volume", "list", "--json"]).as_array().expect("a list").clone();
    assert_eq!(names.iter().map(|volume| volume["name"].clone()).collect::<Vec<_>>(), ["disk0", "v"]);
    assert_eq!(
        json(&["tenant", "set", "default", "--weight", "2", "--json"])["changes"].as_array().map(Vec::len),
        Some(1)
    );
    assert_eq!(json(&["reload", "--json"])["changes"].as_array().map(Vec::len), Some(1));
    server.stop();
}
