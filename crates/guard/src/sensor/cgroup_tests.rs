use super::*;

const CACHED: DeviceNumber = DeviceNumber { major: 253, minor: 0 };
const SLOW: DeviceNumber = DeviceNumber { major: 251, minor: 1 };

fn usage(text: &str) -> Result<Usage, Fault> {
    Usage::parse(text.as_bytes(), CACHED, Some(SLOW))
}

const CAPTURED: &str = "\
251:1 rbytes=6291456 wbytes=1048576 rios=96 wios=16 dbytes=0 dios=0
251:0 rbytes=44040192 wbytes=23068672 rios=672 wios=352 dbytes=0 dios=0
253:0 rbytes=50331648 wbytes=24117248 rios=768 wios=368 dbytes=0 dios=0
";

#[test]
fn rows_are_told_apart_by_device() {
    let usage = usage(CAPTURED).expect("the kernel's format");
    assert_eq!(usage.cached, Counters { read_bytes: 50_331_648, written_bytes: 24_117_248, reads: 768, writes: 368 });
    assert_eq!(usage.slow, Counters { read_bytes: 6_291_456, written_bytes: 1_048_576, reads: 96, writes: 16 });
}

#[test]
fn devices_without_figures_are_nothing() {
    assert_eq!(usage("").expect("no device"), Usage::default());
    assert_eq!(usage("253:0 \n251:1\n").expect("empty rows"), Usage::default());
    // As printed by kernels that begin a row before they know whether there is something to tell.
    let mixed = usage("251:0 253:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n").expect("two on a line");
    assert_eq!(mixed.cached.read_bytes, 4096);
    assert_eq!(mixed.slow, Counters::ZERO);
    let more =
        usage("253:0 rbytes=1 wbytes=2 rios=3 wios=4 cost.usage=7 cost.wait=x use_delay=0\n").expect("more keys");
    assert_eq!(more.cached, Counters { read_bytes: 1, written_bytes: 2, reads: 3, writes: 4 });
}

#[test]
fn a_device_that_the_kernel_hides_keeps_no_other_from_being_read() {
    let hidden = "(unknown) rbytes=0 wbytes=0 rios=6 wios=2 dbytes=0 dios=0\n";
    for text in [format!("{hidden}{CAPTURED}"), format!("{CAPTURED}{hidden}"), format!("251:9 {hidden}{CAPTURED}")] {
        assert_eq!(usage(&text), usage(CAPTURED), "{text}");
    }
    assert_eq!(usage(hidden), Ok(Usage::default()));
    assert!(usage("(unknown) rbytes=x\n").is_err(), "its row has the same format");
}

#[test]
fn what_is_no_statistics_is_reported_with_its_line() {
    for (text, line) in [
        ("253:0 rbytes=1\nnothing rbytes=1\n", 2),
        ("rbytes=1\n", 1),
        ("253:0 rbytes=-1\n", 1),
        ("253:0 rbytes=99999999999999999999\n", 1),
        ("253:x rbytes=1\n", 1),
    ] {
        assert_eq!(usage(text).expect_err(text).line, line, "{text:?}");
    }
    assert!(Usage::parse(b"\xff\xfe", CACHED, None).is_err());
}

#[test]
fn stars_and_question_marks_stand_for_names() {
    for (pattern, name, same) in [
        ("db-*.service", "db-1.service", true),
        ("db-*.service", "db-.service", true),
        ("db-*.service", "web-1.service", false),
        ("db-?", "db-12", false),
        ("*", "", true),
        ("*a*b*", "xaxxbx", true),
        ("*a*b*", "xbxxax", false),
        ("a", "ab", false),
    ] {
        assert_eq!(fits(pattern, name), same, "{pattern} {name}");
    }
}

#[test]
fn groups_are_found_below_the_root_and_tell_when_they_are_gone() {
    let root = std::env::temp_dir().join(format!("evenkeel-guard-cgroup-{}", std::process::id()));
    for group in ["system.slice/db-1.service", "system.slice/db-2.service", "system.slice/web.service", "user.slice"] {
        std::fs::create_dir_all(root.join(group)).expect("made");
    }
    std::fs::write(root.join("system.slice/db-3.service"), "").expect("a file, no group");
    let all = find(&root, "system.slice/db-*.service").expect("found");
    assert_eq!(all, ["system.slice/db-1.service", "system.slice/db-2.service"]);
    assert_eq!(find(&root, "/user.slice/").expect("found"), ["user.slice"]);
    assert_eq!(find(&root, "*/web.service").expect("found"), ["system.slice/web.service"]);
    assert!(find(&root, "machine.slice/*").expect("nothing there").is_empty());

    let stat = root.join("user.slice/io.stat");
    std::fs::write(&stat, CAPTURED).expect("written");
    let file = GroupFile::open(stat).expect("opened");
    let mut buffer = Vec::new();
    let mut read = || file.usage(&mut buffer, CACHED, Some(SLOW)).expect("read");
    assert_eq!(read(), usage(CAPTURED).ok());
    let long = "251:9 rbytes=1\n".repeat(2_000) + "253:0 rbytes=7\n";
    std::fs::write(file.path(), &long).expect("written");
    assert_eq!(read().map(|usage| usage.cached.read_bytes), Some(7));
    std::fs::remove_dir_all(&root).expect("removed");
    assert!(GroupFile::open(root.join("user.slice/io.stat")).is_err_and(|error| error.is_absent()));
}
