//! Tests of requests as the recording has them, and of the names of control groups.

use std::os::unix::fs::MetadataExt as _;

use evenkeel_flight::Recording;
use evenkeel_guard::sensor::diskstats::DeviceNumber;

use super::*;

const DISK: DeviceNumber = DeviceNumber { major: 259, minor: 0 };
const PARTITION: DeviceNumber = DeviceNumber { major: 259, minor: 2 };

/// The second partition of a disk, of 1 MiB behind 1 MiB.
fn partition() -> Block {
    Block {
        name: "nvme0n1p2".into(),
        number: PARTITION,
        disk: DISK,
        all: vec![DISK, PARTITION],
        start: 2_048,
        sectors: 2_048,
    }
}

/// A read of the second 4 KiB of the partition, 5 ms after the start of a recording that begins at 100 ms.
fn seen() -> Seen {
    Seen {
        arrival_ns: 105_000_000,
        issue_ns: Some(105_200_000),
        completion_ns: 105_300_000,
        cgroup: 42,
        sector: 2_056,
        sectors: 8,
        disk: DISK,
        device: PARTITION,
        error: 0,
        letters: *b"R\0\0\0\0\0\0\0",
    }
}

#[test]
fn a_request_of_a_partition_counts_from_its_begin() {
    let blocks = [partition()];
    let recorded = |seen: Seen| recorded(&seen, &blocks, 100_000_000);
    let read = Request {
        arrival_ns: 5_000_000,
        queue_ns: 200_000,
        device_ns: 100_000,
        offset: 4_096,
        length: 4_096,
        ..Request::default()
    };
    assert_eq!(recorded(seen()), Some(read));
    let stacked = Request { queue_ns: 0, device_ns: 300_000, ..read };
    assert_eq!(recorded(Seen { issue_ns: None, ..seen() }), Some(stacked));
    let failed = Request { outcome: Outcome::Failed(5), ..read };
    assert_eq!(recorded(Seen { error: 5, ..seen() }), Some(failed));
    assert_eq!(recorded(Seen { arrival_ns: 99_999_999, ..seen() }), None, "before the start");
    assert_eq!(recorded(Seen { sector: 8, ..seen() }), None, "before the partition");
}

#[test]
fn letters_are_kinds() {
    for (letters, sectors, wanted) in [
        ("R", 8, (Kind::Read, false)),
        ("RA", 8, (Kind::Read, false)),
        ("WS", 8, (Kind::Write, false)),
        ("WFS", 8, (Kind::Write, true)),
        ("FWFSM", 8, (Kind::Write, true)),
        ("FWSM", 8, (Kind::Write, false)),
        ("FWS", 0, (Kind::Flush, false)),
        ("FF", 0, (Kind::Flush, false)),
        ("F", 0, (Kind::Flush, false)),
        ("DS", 2_048, (Kind::Trim, false)),
        ("DE", 2_048, (Kind::Trim, false)),
        ("NS", 2_048, (Kind::Zero, false)),
        ("WZ", 2_048, (Kind::Zero, false)),
        ("N", 0, (Kind::Other, false)),
        ("", 0, (Kind::Other, false)),
    ] {
        let mut padded = [0; 8];
        padded[..letters.len()].copy_from_slice(letters.as_bytes());
        assert_eq!(kind(padded, sectors), wanted, "{letters} {sectors}");
    }
}

#[test]
fn groups_are_tenants_by_path_and_clients_by_number() {
    let folder = crate::folder::Folder::new();
    let group = folder.dir("groups/system.slice/db.service");
    let there = fs::metadata(&group).expect("there").ino();
    let file = folder.join("host.rec");
    let out = open_recording(&file, false).expect("made");
    let zero = now();
    let sheet = Sheet::new(out, &Head::default(), zero, None, None).expect("written");
    let subject = Subject { blocks: vec![partition()], ..Subject::default() };
    let mut session = Session::new(sheet, zero, subject, Some(folder.join("groups")));
    let gone = u64::MAX;
    session.learn(BTreeSet::from([there, gone])).expect("written");
    session.learn(BTreeSet::from([there])).expect("written");
    assert_eq!(session.clients, HashMap::from([(there, (0, 0)), (gone, (1, 1))]));
    session.sheet.write(Request { tenant: 0, client: 0, length: 512, ..Request::default() }, 1 << 20).expect("written");
    let figures = session.finish(&file, None);
    let recording = Recording::read(&file).expect("a recording");
    assert_eq!((figures.requests, figures.lost, figures.ended), (1, 0, true));
    assert!(figures.error.is_none() && figures.note.is_none() && figures.bytes > 0);
    let tenants = recording.names.iter().filter(|name| name.table == Table::Tenant);
    let names: BTreeSet<(u32, &str)> = tenants.map(|name| (name.number, &*name.name)).collect();
    assert_eq!(names, BTreeSet::from([(0, "system.slice/db.service"), (1, &*format!("cgroup-{gone}"))]));
    assert_eq!(recording.names.iter().filter(|name| name.table == Table::Client).count(), 2);
    assert!(recording.complete && recording.requests.len() == 1);
}

#[test]
fn a_pool_of_an_agent_has_the_tenants_of_its_policy() {
    let folder = crate::folder::Folder::new();
    let group = folder.dir("groups/system.slice/db.service/below");
    let number = |path: &Path| fs::metadata(path).expect("there").ino();
    let (slice, below) = (number(&folder.join("groups/system.slice")), number(&group));
    let file = folder.join("pool.rec");
    let out = open_recording(&file, false).expect("made");
    let zero = now();
    let sheet = Sheet::new(out, &Head::default(), zero, None, None).expect("written");
    let other = Block { name: "sdb".into(), number: DISK, ..partition() };
    let subject = Subject {
        blocks: vec![partition(), other],
        pool: Some("vg1".into()),
        owners: vec![None, Some("mail".into())],
        groups: BTreeMap::from([("system.slice/db.service".to_owned(), "database".to_owned())]),
        note: Some("a note".into()),
    };
    let mut session = Session::new(sheet, zero, subject, Some(folder.join("groups")));
    session.introduce_devices().expect("written");
    session.learn(BTreeSet::from([slice, below])).expect("written");
    assert_eq!(session.owners, [None, Some(0)]);
    let (tenants, clients) = (session.tenants.clone(), session.clients.clone());
    let figures = session.finish(&file, None);
    let recording = Recording::read(&file).expect("a recording");
    let known: BTreeSet<&str> = tenants.keys().map(String::as_str).collect();
    assert_eq!(known, BTreeSet::from(["database", "mail", "system.slice"]));
    assert_eq!((clients[&below].0, clients[&slice].0), (tenants["database"], tenants["system.slice"]));
    let pools: Vec<&str> =
        recording.names.iter().filter(|name| name.table == Table::Volume).map(|name| name.pool.as_str()).collect();
    assert_eq!(pools, ["vg1", "vg1"]);
    assert_eq!(figures.note.as_deref(), Some("a note"));
}

#[test]
fn the_nearest_group_around_a_group_names_its_tenant() {
    let groups = [("a", "outer"), ("a/b", "inner")].map(|(group, tenant)| (group.to_owned(), tenant.to_owned()));
    let subject = Subject { groups: groups.into(), ..Subject::default() };
    for (path, tenant) in [
        ("a", "outer"),
        ("/a/", "outer"),
        ("a/c/d", "outer"),
        ("a/b", "inner"),
        ("a/b/c", "inner"),
        ("ab", "ab"),
        ("b/a", "b/a"),
        ("/", "/"),
    ] {
        assert_eq!(subject.tenant(path), tenant, "{path}");
    }
}

#[test]
fn devices_with_requests_in_common_are_refused() {
    let second = Block { name: "nvme0n1p3".into(), number: DeviceNumber { minor: 3, ..DISK }, ..partition() };
    let disk = Block { name: "nvme0n1".into(), number: DISK, ..partition() };
    let mut blocks = Vec::new();
    add(&mut blocks, partition()).expect("the first");
    add(&mut blocks, second).expect("another partition");
    for (block, name) in [(partition(), "nvme0n1p2"), (disk, "nvme0n1")] {
        let refused = add(&mut blocks, block).expect_err("refused");
        assert!(refused.is::<Usage>(), "{refused}");
        let text = refused.to_string();
        assert!(text.starts_with(&format!("{name} and nvme0n1p2 have requests in common")), "{text}");
    }
    assert_eq!(blocks.len(), 2);
}

#[test]
fn an_error_ends_a_recording_that_can_be_read() {
    let file = std::env::temp_dir().join(format!("evenkeel-record-error-{}", std::process::id()));
    let zero = now();
    let out = open_recording(&file, false).expect("made");
    let sheet = Sheet::new(out, &Head::default(), zero, None, None).expect("written");
    let mut session = Session::new(sheet, zero, Subject::default(), None);
    session.sheet.write_lost(3, 0, 1).expect("written");
    let figures = session.finish(&file, Some(anyhow::anyhow!("the disk is full")));
    let recording = Recording::read(&file).expect("a recording");
    fs::remove_file(&file).expect("removed");
    let error = figures.error.expect("an error");
    assert!(error.contains(": the disk is full; the recording has ended") && error.contains("Make room"), "{error}");
    let cured = |note: String| note.contains("lsblk -s") && note.contains("nvme_core.multipath=N");
    assert!(figures.note.is_some_and(cured), "three were lost, and none was seen");
    assert!(recording.complete && recording.lost == 3);
}

#[test]
fn devices_that_cannot_be_recorded_are_refused_with_a_cure() {
    let refused = |paths: &[&str]| {
        let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
        blocks(&paths).expect_err("refused").to_string()
    };
    let other = refused(&["/dev/null"]);
    assert!(other.contains("/dev/null is not a block device") && other.contains("lsblk"), "{other}");
    let absent = refused(&["/dev/evenkeel/none"]);
    assert!(absent.contains("/dev/evenkeel/none") && absent.contains("name a block device"), "{absent}");
}
