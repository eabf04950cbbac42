use super::*;
use crate::folder::{Folder, folder};

fn number(text: &str) -> DeviceNumber {
    text.parse().expect("a device number")
}

#[test]
fn tables_tell_slow_and_fast() {
    let cache = "251:2 251:0 251:1 128 1 writeback smq 2 migration_threshold 4096";
    let made = parse_table("cache", cache).expect("the kernel's format");
    assert_eq!(made, Some((Kind::DmCache, number("251:1"), Some(number("251:0")))));
    let made = parse_table("writecache", "s 251:1 251:0 4096 4 high_watermark 90 low_watermark 85").expect("the same");
    assert_eq!(made, Some((Kind::DmWritecache, number("251:1"), Some(number("251:0")))));
    assert_eq!(parse_table("linear", "251:1 0").expect("something else"), None);
    assert!(parse_table("cache", "251:2 251:0").is_err());
    assert!(parse_table("cache", "251:2 251:0 sdb").is_err());
}

#[test]
fn statuses_tell_hits_misses_and_trouble() {
    let text = "8 51/4096 128 1024/1024 21504 312 9876 54 77 88 129 2 metadata2 writeback 2 migration_threshold 4096 smq 0 rw - ";
    let status = parse_status(Kind::DmCache, text).expect("the kernel's format");
    let expected = CacheState {
        read_hits_total: Some(21_504),
        read_misses_total: Some(312),
        write_hits_total: Some(9_876),
        write_misses_total: Some(54),
        dirty_bytes: Some(129 * 128 * 512),
        trouble: None,
    };
    assert_eq!(status, expected);
    let broken = parse_status(Kind::DmCache, &text.replace("rw -", "ro needs_check")).expect("in trouble");
    assert_eq!(broken.trouble.as_deref(), Some("needs_check"));
    assert_eq!(parse_status(Kind::DmCache, "Fail").expect("failed").trouble.as_deref(), Some("Fail"));
    let write = parse_status(Kind::DmWritecache, "0 16384 100 0 500 20 300 30 200 10 60 0 4 0").expect("14 numbers");
    assert_eq!((write.read_hits_total, write.read_misses_total), (Some(20), Some(480)));
    assert_eq!((write.write_hits_total, write.write_misses_total), (Some(230), Some(70)));
    assert_eq!(parse_status(Kind::DmWritecache, "0 16384 100 0").expect("4 numbers"), CacheState::default());
    for odd in ["", "8 51/4096", "8 51/4096 x 1024/1024 1 2 3 4 5 6 7"] {
        assert!(parse_status(Kind::DmCache, odd).is_err(), "{odd:?}");
    }
}

#[test]
fn bcache_prints_bytes_for_people() {
    for (text, bytes) in [("0\n", 0), ("512", 512), ("1.5k", 1536), ("12.0M", 12 << 20), ("-0", 0)] {
        assert_eq!(parse_human(text).expect(text), bytes);
    }
    for odd in ["", "M", "1.5X", "nan", "one"] {
        assert!(parse_human(odd).is_err(), "{odd:?}");
    }
}

#[test]
fn the_slow_device_tells_bytes_and_time_busy() {
    let line = b"    4010        0   262144     1200     512        3    65536      340        2     5220     1540        0        0        0        0        0        0\n";
    let slow = parse_block_stat(line).expect("the kernel's format");
    assert_eq!(slow.counters.read_bytes, 262_144 * 512);
    assert_eq!((slow.counters.reads, slow.counters.writes), (4_010, 512));
    assert_eq!(slow.busy, Duration::from_millis(5_220));
    assert!(parse_block_stat(b"1 2 3").is_err());
    assert!(parse_block_stat(b"1 2 3 4 5 6 7 8 9 x").is_err());
}

/// A tree of files and links as in sysfs.
struct Tree(Folder);

impl Tree {
    fn new(name: &str) -> Self {
        Self(folder(&format!("cache-{name}")))
    }

    fn file(&self, path: &str, text: &str) {
        self.0.file(&format!("sys/{path}"), text);
    }

    fn link(&self, path: &str, to: &str) {
        self.0.link(&format!("sys/{path}"), &format!("sys/{to}"));
    }

    fn disk(&self, name: &str, number: &str) {
        self.file(&format!("class/block/{name}/dev"), &format!("{number}\n"));
        self.file(&format!("class/block/{name}/stat"), "1 0 8 1 1 0 8 1 0 2 2\n");
        self.link(&format!("dev/block/{number}"), &format!("class/block/{name}"));
    }

    /// The cached devices that [`find`] finds in the tree.
    fn find(&self) -> Vec<CachedEntry> {
        let roots = Roots::under(&self.0);
        let folder = self.0.join("sys/block");
        let _ = std::os::unix::fs::symlink(self.0.join("sys/class/block"), folder);
        let (topology, faults) = Topology::read(&roots);
        assert!(faults.is_empty(), "{faults:?}");
        find(&roots, &topology)
    }

    fn open(&self, device: &str, slow: Option<&str>) -> Result<Cached, NotUsable> {
        Cached::open(&Roots::under(&self.0), device, slow, None)
    }
}

#[test]
fn bcache_is_followed_by_its_links() {
    let tree = Tree::new("bcache");
    for (name, number) in [("no-bcache0", "250:0"), ("no-hsd", "251:1"), ("no-hfd", "251:0")] {
        tree.disk(name, number);
    }
    tree.file("class/block/no-hsd/bcache/stats_total/cache_hits", "420\n");
    tree.file("class/block/no-hsd/bcache/stats_total/cache_misses", "17\n");
    tree.file("class/block/no-hsd/bcache/dirty_data", "1.5M\n");
    tree.file("class/block/no-hsd/bcache/state", "dirty\n");
    tree.file("class/block/no-hfd/bcache/io_errors", "0\n");
    tree.link("class/block/no-bcache0/bcache", "class/block/no-hsd/bcache");
    tree.link("class/block/no-hsd/bcache/cache", "class/block/no-set");
    tree.link("class/block/no-set/cache0", "class/block/no-hfd/bcache");
    let mut cached = tree.open("no-bcache0", None).expect("found");
    let expected =
        Made { kind: Kind::Bcache, device: number("250:0"), fast: Some(number("251:0")), slow: number("251:1") };
    assert_eq!(cached.made(), expected);
    let status = cached.status().expect("read").expect("told");
    assert_eq!((status.read_hits_total, status.read_misses_total), (Some(420), Some(17)));
    assert_eq!((status.dirty_bytes, status.trouble), (Some(3 << 19), None));
    assert_eq!(cached.slow_device().expect("read").counters.read_bytes, 4096);
    let found: Vec<(String, String)> = tree.find().into_iter().map(|entry| (entry.name, entry.slow)).collect();
    assert_eq!(found, [("no-bcache0".to_owned(), "no-hsd".to_owned())]);
    tree.file("class/block/no-hsd/bcache/state", "inconsistent\n");
    assert_eq!(cached.status().expect("read").expect("told").trouble.as_deref(), Some("inconsistent"));
}

#[test]
fn lvm_is_known_by_its_names_and_others_by_the_operators() {
    let tree = Tree::new("lvm");
    for (name, number, dm) in [
        ("no-dm-0", "4095:1048570", "vg-lv"),
        ("no-dm-1", "4095:1048571", "vg-fast_cdata"),
        ("no-dm-2", "4095:1048572", "vg-lv_corig"),
    ] {
        tree.disk(name, number);
        tree.file(&format!("class/block/{name}/dm/name"), &format!("{dm}\n"));
    }
    tree.link("class/block/no-dm-0/slaves/no-dm-1", "class/block/no-dm-1");
    tree.link("class/block/no-dm-0/slaves/no-dm-2", "class/block/no-dm-2");
    tree.disk("no-disk", "4095:9");
    let made = tree.open("no-dm-0", None).expect("found").made();
    assert_eq!(
        (made.kind, made.slow, made.fast),
        (Kind::DmCache, number("4095:1048572"), Some(number("4095:1048571")))
    );
    assert!(matches!(tree.open("no-dm-1", None), Err(NotUsable::Unknown { .. })));
    assert!(matches!(tree.open("no-disk", None), Err(NotUsable::NotCached(_))));
    assert!(matches!(tree.open("no-such", None), Err(NotUsable::NoDevice(_))));
    let expected = CachedEntry {
        name: "no-dm-0".into(),
        kind: "dm-cache".into(),
        path: Some("/dev/mapper/vg-lv".into()),
        fast: Some("no-dm-1".into()),
        slow: "no-dm-2".into(),
    };
    assert_eq!(tree.find(), [expected]);
    let made = tree.open("no-disk", Some("no-dm-2")).expect("named").made();
    assert_eq!((made.kind, made.slow), (Kind::Other, number("4095:1048572")));
}
