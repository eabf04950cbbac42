//! Tests of the record of volumes that commands create or change, with the files of a server in this process.

use std::cell::Cell;
use std::fs;
use std::path::Path;

use evenkeel_server::Start;
use evenkeel_server::faults::{Call, Fault, Faults, Injection};

use super::*;
use crate::folder::Folder;

const BY: Caller = Caller::Unknown;

thread_local! {
    /// The minute of the day, for the servers of one test.
    static MINUTE: Cell<u16> = const { Cell::new(0) };
}

fn minute() -> u16 {
    MINUTE.get()
}

impl Folder {
    fn record(&self) -> String {
        fs::read_to_string(self.join("volumes.toml")).expect("the record")
    }

    /// The manager of a running server with `file` as the text of its configuration file.
    fn start(&self, file: &str, faults: &Faults) -> Manager {
        let data_dir = self.to_path_buf();
        let flags = move |config: &mut Config| {
            config.server.data_dir.clone_from(&data_dir);
            config.server.listen.clear();
        };
        let source = Source { file: Some(self.file("e.toml", file)), flags: Box::new(flags), minute };
        let loaded = source.load().expect("a configuration");
        let start = Start { faults: faults.clone(), ..Start::default() };
        let server = Server::start(loaded.config, start).expect("a server");
        Manager::new(server, source, loaded.fixed_volumes, loaded.recorded.is_superseded)
    }
}

fn length(path: &Path) -> u64 {
    fs::metadata(path).expect("the file").len()
}

fn of(size: u64) -> Volume {
    Volume { size: Some(Bytes(size)), ..Volume::default() }
}

#[test]
fn a_volume_is_longer_on_record_before_its_file_is() {
    let (folder, faults) = (Folder::new(), Faults::table());
    let manager = folder.start("[volumes.fixed]\nbackend = \"memory\"\nsize = \"1MiB\"\n", &faults);
    manager.create_volume(&BY, "v", of(1 << 20), Consent::default()).expect("created");
    // There is no way to write the record.
    fs::create_dir(folder.join("volumes.toml.new")).expect("a folder in its place");
    let refusal = manager.grow_volume(&BY, "v", Bytes(2 << 20)).expect_err("not recorded");
    assert!(refusal.kind == "system" && refusal.message.contains("nothing was changed"), "{refusal:?}");
    assert_eq!(length(&folder.join("v.img")), 1 << 20);
    fs::remove_dir(folder.join("volumes.toml.new")).expect("removed");
    // A killed server finds the new size on record, and the file as it was.
    manager.grow_volume(&BY, "v", Bytes(2 << 20)).expect("grown");
    assert!(folder.record().contains("2MiB"), "{}", folder.record());
    drop(manager);
    fs::File::options().write(true).open(folder.join("v.img")).and_then(|file| file.set_len(1 << 20)).expect("cut");
    let manager = folder.start("", &faults);
    assert_eq!(length(&folder.join("v.img")), 2 << 20);

    let fault = Fault::Errno(5);
    faults.add(Injection { place: "v".into(), call: Call::Sync, fault, skip: 0, times: 1 });
    manager.grow_volume(&BY, "v", Bytes(4 << 20)).expect_err("it cannot be made durable");
    assert_eq!(length(&folder.join("v.img")), 2 << 20);
    assert!(folder.record().contains("2MiB") && !folder.record().contains("4MiB"), "{}", folder.record());
    assert_eq!(manager.reload(&BY).expect("as before"), Vec::<String>::new());
}

#[test]
fn a_volume_comes_and_goes_with_its_record_or_not_at_all() {
    let folder = Folder::new();
    let manager = folder.start("[volumes.fixed]\nbackend = \"memory\"\nsize = \"1MiB\"\n", &Faults::default());
    manager.create_volume(&BY, "v", of(1 << 20), Consent::default()).expect("created");
    // There is no way to write the record.
    fs::create_dir(folder.join("volumes.toml.new")).expect("a folder in its place");
    let refusal = manager.create_volume(&BY, "w", of(1 << 20), Consent::default()).expect_err("not recorded");
    assert!(refusal.kind == "system" && refusal.message.contains("was not created"), "{refusal:?}");
    assert!(refusal.cure.contains("repeat the command"), "{refusal:?}");
    assert!(!manager.config().volumes.contains_key("w"));
    let refusal = manager.remove_volume(&BY, "v").expect_err("not recorded");
    assert!(refusal.kind == "system" && refusal.message.contains("nothing was changed"), "{refusal:?}");
    assert!(manager.config().volumes.contains_key("v") && folder.record().contains("volumes.v"));
    fs::remove_dir(folder.join("volumes.toml.new")).expect("removed");
    // The cure works.
    manager.create_volume(&BY, "w", of(1 << 20), Consent::default()).expect("created");
    manager.remove_volume(&BY, "v").expect("removed");
    assert!(!folder.record().contains("volumes.v") && folder.record().contains("volumes.w"), "{}", folder.record());
    assert_eq!(manager.reload(&BY).expect("as before"), Vec::<String>::new());
}

#[test]
fn a_volume_that_went_into_the_file_leaves_with_it() {
    let (folder, other) = (Folder::new(), "[volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let moved = format!("{other}[volumes.v]\nsize = \"1MiB\"\nallow = [\"unix\"]\n");
    let names = |manager: &Manager| manager.config().volumes.keys().cloned().collect::<Vec<_>>();
    for restarts in [false, true] {
        let mut manager = folder.start(other, &Faults::default());
        manager.create_volume(&BY, "v", of(1 << 20), Consent::default()).expect("created");
        manager.create_volume(&BY, "w", of(1 << 20), Consent::default()).expect("created");
        if restarts {
            drop(manager);
            manager = folder.start(&moved, &Faults::default());
        } else {
            fs::write(folder.join("e.toml"), &moved).expect("written");
            manager.reload(&BY).expect("valid");
        }
        assert_eq!(names(&manager), ["a", "v", "w"]);
        assert!(!folder.record().contains("volumes.v") && folder.record().contains("volumes.w"), "{}", folder.record());
        fs::write(folder.join("e.toml"), other).expect("written");
        assert_eq!(manager.reload(&BY).expect("valid"), ["volume v removed"]);
        assert_eq!(names(&manager), ["a", "w"], "it came back without its lists");
        manager.remove_volume(&BY, "w").expect("removed");
    }
}

#[test]
fn a_limit_with_hours_comes_and_goes_with_them() {
    let folder = Folder::new();
    let file = "[tenants.gold]\nlimit = { iops = 500, when = \"22:00-06:00\" }\n\
                [volumes.gold]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    MINUTE.set(21 * 60 + 59);
    let manager = folder.start(file, &Faults::default());
    let in_force = || manager.config().tenants["gold"].limit.in_force().iops;
    assert_eq!((in_force(), manager.keep_hours().expect("nothing to do")), (0, Vec::new()));
    MINUTE.set(22 * 60);
    assert_eq!(manager.keep_hours().expect("a live change"), ["tenant gold changed"]);
    assert_eq!((in_force(), manager.keep_hours().expect("nothing to do")), (500, Vec::new()));
    // Neither a command nor a reload puts a limit into force at another hour, and a command lasts over the boundary.
    MINUTE.set(12 * 60);
    manager.set_tenant(&BY, "gold", json!({ "weight": 3 }), Consent::default()).expect("valid");
    assert_eq!(in_force(), 0);
    MINUTE.set(23 * 60);
    manager.keep_hours().expect("a live change");
    assert_eq!((in_force(), manager.config().tenants["gold"].weight), (500, 3));
    // The history gets the changes by command and by the hours, each once.
    let changes = manager.take_changes(Instant::now());
    let sentences: Vec<&str> = changes.iter().map(|change| change.sentence.as_str()).collect();
    let begins = "changed by schedule: tenant gold: limit from none to 500 IOPS (22:00-06:00)";
    let ends = "changed by schedule: tenant gold: limit from 500 IOPS to none (22:00-06:00)";
    let command = "changed by a client of the control socket: tenant gold: weight from 1 to 3";
    assert_eq!(sentences, [begins, command, ends, begins]);
    assert!(changes.iter().all(|change| change.tenant == "gold" && change.pool.is_empty()), "{changes:?}");
    assert!(manager.take_changes(Instant::now()).is_empty());
    MINUTE.set(6 * 60);
    assert_eq!(manager.reload(&BY).expect("valid"), ["tenant gold changed"]);
    assert_eq!(in_force(), 0);
    assert!(manager.take_changes(Instant::now() + CHANGE_WAITS).is_empty(), "too late for the time it would get");
    // A change that hangs does not delay them.
    let hangs = manager.begin();
    MINUTE.set(22 * 60);
    manager.keep_hours().expect("a live change");
    assert_eq!(in_force(), 500);
    drop(hangs);
}

#[test]
fn the_limit_of_a_new_volume_applies_in_its_hours_only() {
    let folder = Folder::new();
    MINUTE.set(12 * 60);
    let manager = folder.start("", &Faults::default());
    let when = Some("22:00-06:00".parse().expect("hours"));
    let limit = evenkeel_policy::config::Limit { iops: 500, when, ..Default::default() };
    manager.create_volume(&BY, "v", Volume { limit, ..of(1 << 20) }, Consent::default()).expect("created");
    let in_force = || manager.config().volumes["v"].limit.in_force().iops;
    assert_eq!((in_force(), manager.keep_hours().expect("nothing to do")), (0, Vec::new()));
    MINUTE.set(22 * 60);
    assert_eq!(manager.keep_hours().expect("a live change"), ["volume v changed"]);
    assert_eq!(in_force(), 500);
    let changes = manager.take_changes(Instant::now());
    let newest = changes.last().expect("a change");
    assert_eq!(newest.sentence, "changed by schedule: volume v: limit from none to 500 IOPS (22:00-06:00)");
    assert!(newest.pool.is_empty() && newest.tenant.is_empty(), "{newest:?}");
}

#[test]
fn a_new_volume_with_a_limit_that_hangs_is_refused_unless_forced() {
    let folder = Folder::new();
    let manager = folder.start("", &Faults::default());
    let limit = evenkeel_policy::config::Limit { bytes_per_s: Bytes(10), ..Default::default() };
    let slow = Volume { limit, ..of(1 << 20) };
    let refusal = manager.create_volume(&BY, "v", slow.clone(), Consent::default()).expect_err("it would hang");
    assert!(refusal.kind == "would_hang" && refusal.cure.contains("--force"), "{refusal:?}");
    assert!(!manager.config().volumes.contains_key("v") && !folder.join("v.img").exists());
    let force = Consent { force: true, ..Consent::default() };
    let lines = manager.create_volume(&BY, "v", slow, force).expect("forced");
    assert!(lines.iter().any(|line| line.contains("volumes.v.limit.bytes_per_s")), "{lines:?}");
    // A value that is there already does not refuse other volumes.
    manager.create_volume(&BY, "w", of(1 << 20), Consent::default()).expect("created");
}

#[test]
fn a_weight_with_hours_comes_and_goes_with_them() {
    let folder = Folder::new();
    let file = "[tenants.gold]\nweight_at = { weight = 9, when = \"22:00-06:00\" }\n\
                [volumes.gold]\nbackend = \"memory\"\nsize = \"1MiB\"\n";
    MINUTE.set(21 * 60);
    let manager = folder.start(file, &Faults::default());
    let in_force = || {
        let state = manager.state();
        let gold = state.pools.iter().flat_map(|pool| &pool.tenants).find(|tenant| tenant.name == "gold");
        gold.map(|gold| gold.qos.weight)
    };
    assert_eq!((in_force(), manager.keep_hours().expect("nothing to do")), (Some(1), Vec::new()));
    MINUTE.set(22 * 60);
    assert_eq!(manager.keep_hours().expect("a live change"), ["tenant gold changed"]);
    assert_eq!(in_force(), Some(9));
    let changes = manager.take_changes(Instant::now());
    let sentences: Vec<&str> = changes.iter().map(|change| change.sentence.as_str()).collect();
    assert_eq!(sentences, ["changed by schedule: tenant gold: weight from 1 to 9 (22:00-06:00)"]);
    manager.set_tenant(&BY, "gold", json!({ "weight_at": { "weight": 7 } }), Consent::default()).expect("valid");
    assert_eq!(in_force(), Some(7), "a command changes the weight of the present hours at once");
    MINUTE.set(6 * 60);
    manager.keep_hours().expect("a live change");
    assert_eq!(in_force(), Some(1));
}

#[test]
fn a_record_that_cannot_be_read_refuses_a_reload() {
    let folder = Folder::new();
    let manager = folder.start("", &Faults::default());
    manager.create_volume(&BY, "v", of(1 << 20), Consent::default()).expect("created");
    let (record, aside) = (folder.join("volumes.toml"), folder.join("aside.toml"));
    fs::rename(&record, &aside).expect("renamed");
    // What does not say whether the file is there.
    std::os::unix::fs::symlink(&record, &record).expect("a link to itself");
    let refusal = manager.reload(&BY).expect_err("it cannot be read");
    assert!(refusal.message.contains("cannot read the recorded volumes"), "{refusal:?}");
    assert!(manager.config().volumes.contains_key("v"));
    fs::rename(&aside, &record).expect("renamed");
    manager.reload(&BY).expect("it can be read");
    fs::remove_file(&record).expect("removed");
    assert_eq!(manager.reload(&BY).expect("there is none"), ["volume v removed"]);
}

#[test]
fn what_the_flags_make_wrong_is_not_blamed_on_the_file() {
    let folder = Folder::new();
    let file = folder.file("e.toml", "[server]\ncontrol = \"/s\"\n");
    let load = |socket: &'static str| {
        let flags = move |config: &mut Config| config.server.unix = Some(vec![socket.into()]);
        Source { file: Some(file.clone()), flags: Box::new(flags), minute }.load()
    };
    assert!(load("/other").is_ok());
    let errors = load("/s").map(drop).expect_err("used twice").to_string();
    assert!(errors.starts_with(&format!("the command line and {}: server.control: ", file.display())), "{errors}");
}
