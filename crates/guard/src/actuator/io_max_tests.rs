use super::*;
use crate::folder::{Folder, folder};

const DEVICE: DeviceNumber = DeviceNumber { major: 253, minor: 0 };

fn reads(rbps: u64) -> Limits {
    Limits { rbps: Some(rbps), ..Limits::NONE }
}

/// A folder with a file in place of a control group's `io.max`, and a journal.
struct Group {
    folder: Folder,
    journal: Journal,
}

impl Group {
    fn new(name: &str, content: &str) -> Self {
        let folder = folder(&format!("io-max-{name}"));
        std::fs::write(folder.join("io.max"), content).unwrap();
        let journal = Journal::open(folder.join("journal")).unwrap();
        Self { folder, journal }
    }

    fn row(&self) -> IoMax {
        IoMax::new(&self.folder, DEVICE)
    }

    fn set(&mut self, row: &mut IoMax, wanted: Limits) -> Change {
        let mut results = set_all(&mut self.journal, &mut [(row, wanted)]).unwrap();
        results.pop().unwrap().unwrap()
    }

    fn content(&self) -> String {
        std::fs::read_to_string(self.folder.join("io.max")).unwrap().trim().to_owned()
    }

    fn put(&self, content: &str) {
        std::fs::write(self.folder.join("io.max"), content).unwrap();
    }

    fn journal_lines(&self) -> usize {
        std::fs::read_to_string(self.folder.join("journal")).unwrap().lines().count()
    }
}

#[test]
fn rows_are_read_and_written_as_the_kernel_does() {
    let text = "8:16 rbps=2097152 wbps=max riops=max wiops=120\n253:0 rbps=max wbps=5 riops=7 wiops=max new=1\n";
    let limits = Limits::of(text, DEVICE).unwrap();
    assert_eq!(limits, Limits { wbps: Some(5), riops: Some(7), ..Limits::NONE });
    assert_eq!(limits.to_string(), "rbps=max wbps=5 riops=7 wiops=max");
    assert_eq!(limits.to_string().parse(), Ok(limits));
    assert_eq!(Limits::of("", DEVICE), Ok(Limits::NONE));
    assert_eq!(Limits::of(text, DeviceNumber { major: 8, minor: 0 }), Ok(Limits::NONE));
    for odd in ["253:0 rbps", "253:0 rbps=x", "253:0 rbps=-1"] {
        assert_eq!(Limits::of(&format!("8:0 rbps=1\n{odd}\n"), DEVICE).unwrap_err().line, 2, "{odd}");
    }
}

#[test]
fn what_is_so_already_is_not_written() {
    let mut group = Group::new("same", "253:0 rbps=100 wbps=max riops=max wiops=max\n");
    let mut row = group.row();
    let written = std::fs::metadata(group.folder.join("io.max")).unwrap().modified().unwrap();
    assert_eq!(group.set(&mut row, reads(100)), Change::Same);
    assert_eq!(std::fs::metadata(group.folder.join("io.max")).unwrap().modified().unwrap(), written);
    assert_eq!(group.journal_lines(), 0);
    assert_eq!(group.set(&mut row, reads(120)), Change::Made);
    let lines = group.journal_lines();
    assert_eq!(group.set(&mut row, reads(120)), Change::Same);
    assert_eq!(group.journal_lines(), lines);
    assert_eq!(row.restore(&mut group.journal).unwrap(), Restored::Done);
    assert_eq!(group.content(), "253:0 rbps=100 wbps=max riops=max wiops=max");
}

#[test]
fn a_row_that_was_released_is_as_a_new_one() {
    let mut group = Group::new("released", "");
    let mut row = group.row();
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    assert_eq!(row.release(&mut group.journal).unwrap(), Restored::Done);
    assert!(row.before().is_none() && group.journal.is_clear());
    group.put("253:0 rbps=300 wbps=max riops=max wiops=max");
    assert_eq!(group.set(&mut row, reads(200)), Change::Made);
    assert_eq!(row.before(), Some(reads(300)));
}

#[test]
fn what_another_program_sets_stays() {
    let mut group = Group::new("foreign", "");
    let mut row = group.row();
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    assert_eq!(row.before(), Some(Limits::NONE));
    group.put("253:0 rbps=7 wbps=max riops=max wiops=max\n");
    assert_eq!(group.set(&mut row, reads(110)), Change::Foreign(reads(7)));
    assert!(row.is_foreign());
    // Neither later nor at the end is it touched.
    assert_eq!(group.set(&mut row, reads(120)), Change::Foreign(reads(7)));
    assert!(group.journal.is_clear());
    assert_eq!(row.restore(&mut group.journal).unwrap(), Restored::Nothing);
    assert_eq!(group.content(), "253:0 rbps=7 wbps=max riops=max wiops=max");
}

#[test]
fn what_another_program_sets_stays_also_without_a_value_read_back() {
    let mut group = Group::new("unconfirmed", "");
    let mut row = group.row();
    group.set(&mut row, reads(100));
    // As after a change whose confirmation was lost.
    group.journal.intend(&row.knob(), None, Some("rbps=100")).unwrap();
    group.put("253:0 rbps=7 wbps=max riops=max wiops=max\n");
    assert_eq!(group.set(&mut row, reads(110)), Change::Foreign(reads(7)));
    assert_eq!(group.content(), "253:0 rbps=7 wbps=max riops=max wiops=max");
    assert!(group.journal.is_clear());
}

#[test]
fn the_journal_alone_restores_what_was_there() {
    let mut group = Group::new("journal", "253:0 rbps=50 wbps=max riops=max wiops=9\n");
    let mut row = group.row();
    for limit in [100, 110, 120] {
        group.set(&mut row, Limits { wiops: Some(9), ..reads(limit) });
    }
    // As after the death of agent and sentinel.
    let path = group.folder.join("journal");
    let spare = group.folder.join("spare");
    drop(std::mem::replace(&mut group.journal, Journal::open(&spare).unwrap()));
    let mut journal = Journal::open(&path).unwrap();
    assert!(!journal.is_clear());
    let results = journal.restore_all();
    assert!(matches!(results[..], [(Knob::IoMax { .. }, Ok(Restored::Done))]), "{results:?}");
    assert_eq!(group.content(), "253:0 rbps=50 wbps=max riops=max wiops=9");
    assert!(journal.restore_all().is_empty());
}

#[test]
fn what_was_changed_after_us_is_not_restored_by_the_journal() {
    let mut group = Group::new("later", "");
    let mut row = group.row();
    group.set(&mut row, reads(100));
    group.put("253:0 rbps=3 wbps=max riops=max wiops=max\n");
    let results = group.journal.restore_all();
    assert!(
        matches!(&results[..], [(_, Ok(Restored::Foreign { found }))] if found.starts_with("rbps=3 ")),
        "{results:?}"
    );
    assert_eq!(group.content(), "253:0 rbps=3 wbps=max riops=max wiops=max");
}

#[test]
fn values_of_the_agent_beside_those_of_another_program_go() {
    let ours = Limits { rbps: Some(100), wbps: Some(60), riops: Some(5), wiops: None };
    let beside = "253:0 rbps=100 wbps=7 riops=5 wiops=max";
    let rest = "253:0 rbps=50 wbps=7 riops=max wiops=max";
    for at_once in [true, false] {
        let name = if at_once { "key" } else { "key-later" };
        let mut group = Group::new(name, "253:0 rbps=50 wbps=max riops=max wiops=max\n");
        let mut row = group.row();
        assert_eq!(group.set(&mut row, ours), Change::Made);
        // As the kernel has it after a write of `253:0 wbps=7`.
        group.put(beside);
        let left = Limits { rbps: Some(50), wbps: Some(7), ..Limits::NONE };
        if at_once {
            assert_eq!(group.set(&mut row, ours), Change::Foreign(left));
            assert_eq!(group.set(&mut row, ours), Change::Foreign(left));
            assert_eq!(row.restore(&mut group.journal).unwrap(), Restored::Nothing);
        } else {
            let found = left.to_string();
            assert_eq!(row.restore(&mut group.journal).unwrap(), Restored::Foreign { found });
        }
        assert_eq!(group.content(), rest);
        assert!(group.journal.is_clear());
    }
}

#[test]
fn a_group_that_is_gone_takes_its_limits_along() {
    let mut group = Group::new("gone", "");
    let mut row = group.row();
    group.set(&mut row, reads(100));
    std::fs::remove_file(group.folder.join("io.max")).unwrap();
    assert_eq!(group.set(&mut row, reads(110)), Change::Gone);
    assert!(group.journal.is_clear());
    // Another one of the same name has nothing of ours.
    group.put("253:0 rbps=100 wbps=max riops=max wiops=max\n");
    assert!(group.journal.restore_all().is_empty());
}

#[test]
fn limits_that_were_not_guaranteed_stay() {
    let mut group = Group::new("beside", "253:0 rbps=50 wbps=60 riops=max wiops=9\n");
    let mut row = group.row();
    assert_eq!(row.read().unwrap().unwrap().wiops, Some(9));
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    assert_eq!(group.content(), "253:0 rbps=100 wbps=60 riops=max wiops=9");
}

#[test]
fn one_row_that_is_refused_keeps_no_other_from_being_set() {
    let (mut good, bad) = (Group::new("good", ""), Group::new("bad", "253:0 rbps=what\n"));
    let (mut first, mut second) = (bad.row(), good.row());
    let results = set_all(&mut good.journal, &mut [(&mut first, reads(1)), (&mut second, reads(2))]).unwrap();
    assert!(matches!(results[..], [Err(Error::File { .. }), Ok(Change::Made)]), "{results:?}");
    assert_eq!(good.content(), "253:0 rbps=2 wbps=max riops=max wiops=max");
    assert_eq!(bad.content(), "253:0 rbps=what");
}

#[test]
fn what_an_earlier_run_left_is_restored_before_it_is_set() {
    let mut group = Group::new("left", "253:0 rbps=50 wbps=max riops=max wiops=max\n");
    let mut earlier = group.row();
    group.set(&mut earlier, reads(100));
    group.journal.leave_pending();
    let mut row = group.row();
    row.read().unwrap();
    assert_eq!(group.set(&mut row, Limits { wbps: Some(5), ..Limits::NONE }), Change::Made);
    assert_eq!(group.content(), "253:0 rbps=50 wbps=5 riops=max wiops=max");
    assert!(group.journal.left().is_empty());
}

#[test]
fn a_row_that_could_not_be_restored_is_restored_before_it_is_set_again() {
    let mut group = Group::new("unrestored", "");
    let mut row = group.row();
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    let ours = group.content();
    group.put("253:0 rbps=what");
    assert!(row.restore(&mut group.journal).is_err());
    group.put(&ours);
    let mut row = group.row();
    assert_eq!(group.set(&mut row, reads(50)), Change::Made);
    assert_eq!(row.before(), Some(Limits::NONE), "and not the limit that was left");
    assert!(row.restore(&mut group.journal).is_ok() && group.journal.is_clear());
    assert_eq!(Limits::of(&group.content(), DEVICE), Ok(Limits::NONE));
}

#[test]
fn a_row_that_was_not_set_leaves_the_limits_of_another_point() {
    let mut group = Group::new("other-point", "");
    let (mut row, other) = (group.row(), group.row());
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    assert_eq!(other.restore(&mut group.journal).unwrap(), Restored::Nothing);
    assert_eq!(Limits::of(&group.content(), DEVICE), Ok(reads(100)));
    assert_eq!(group.set(&mut row, reads(110)), Change::Made);
}

#[test]
fn limits_that_are_set_while_the_journal_cannot_be_written_come_back() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut group = Group::new("no-journal", "");
    // No line of the journal can have this path.
    let odd = group.folder.join(std::ffi::OsStr::from_bytes(b"\xff"));
    std::os::unix::fs::symlink(&*group.folder, &odd).unwrap();
    let mut row = IoMax::new(&odd, DEVICE);
    assert!(set_all(&mut group.journal, &mut [(&mut row, reads(100))]).is_err());
    assert!(row.before().is_none() && group.content().is_empty());
    let theirs = "253:0 rbps=7 wbps=max riops=max wiops=max";
    group.put(theirs);
    row.path = group.folder.join("io.max");
    assert_eq!(group.set(&mut row, reads(5)), Change::Made);
    assert_eq!(row.restore(&mut group.journal).unwrap(), Restored::Done);
    assert_eq!(group.content(), theirs);
}

#[test]
fn a_write_that_is_refused_leaves_nothing_to_restore() {
    let mut group = Group::new("write-refused", "");
    let path = group.folder.join("io.max");
    std::fs::remove_file(&path).unwrap();
    // A file that can be read and not written, also by root.
    std::os::unix::fs::symlink("/proc/loadavg", &path).unwrap();
    let mut row = group.row();
    let results = set_all(&mut group.journal, &mut [(&mut row, reads(100))]).unwrap();
    assert!(matches!(results[..], [Err(Error::File { doing: "write", .. })]), "{results:?}");
    assert!(row.before().is_none() && group.journal.is_clear());
    std::fs::remove_file(&path).unwrap();
    let theirs = "253:0 rbps=7 wbps=max riops=max wiops=max";
    group.put(theirs);
    assert_eq!(group.set(&mut row, reads(5)), Change::Made);
    assert_eq!(row.restore(&mut group.journal).unwrap(), Restored::Done);
    assert_eq!(group.content(), theirs);
}

#[test]
fn a_later_write_that_is_refused_leaves_limits_of_another_program() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let mut group = Group::new("later-refused", "");
    let mut row = group.row();
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    // The same row in a file that can be read and not written, also by root.
    let mut sealed = std::fs::File::from(memfd_create("io.max", MemfdFlags::ALLOW_SEALING).unwrap());
    sealed.write_all(group.content().as_bytes()).unwrap();
    fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
    let path = group.folder.join("io.max");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(format!("/proc/self/fd/{}", sealed.as_raw_fd()), &path).unwrap();
    let results = set_all(&mut group.journal, &mut [(&mut row, reads(110))]).unwrap();
    assert!(matches!(results[..], [Err(Error::File { doing: "write", .. })]), "{results:?}");
    assert_eq!(row.before(), Some(Limits::NONE), "the limits of the agent are in force");
    std::fs::remove_file(&path).unwrap();
    let theirs = "253:0 rbps=7 wbps=max riops=max wiops=max";
    group.put(theirs);
    // The journal alone knows it as well.
    let seen = group.journal.state(&row.knob()).and_then(|state| state.seen.clone());
    assert_eq!(seen, Some(reads(100).to_string()));
    assert_eq!(group.set(&mut row, reads(120)), Change::Foreign(reads(7)));
    assert!(group.journal.is_clear() && group.content() == theirs);
}

/// Checks limits that another program sets between the agent's read and a write that is refused.
#[test]
fn a_write_that_is_refused_after_another_program_set_limits_leaves_those() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    let mut group = Group::new("refused-foreign", "");
    let mut row = group.row();
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    row.read().unwrap();
    let theirs = "253:0 rbps=7 wbps=max riops=max wiops=max";
    let mut sealed = std::fs::File::from(memfd_create("io.max", MemfdFlags::ALLOW_SEALING).unwrap());
    sealed.write_all(theirs.as_bytes()).unwrap();
    fcntl_add_seals(&sealed, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
    let path = group.folder.join("io.max");
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(format!("/proc/self/fd/{}", sealed.as_raw_fd()), &path).unwrap();
    let results = set_all(&mut group.journal, &mut [(&mut row, reads(110))]).unwrap();
    assert!(matches!(results[..], [Err(Error::File { doing: "write", .. })]), "{results:?}");
    std::fs::remove_file(&path).unwrap();
    group.put(theirs);
    assert_eq!(group.set(&mut row, reads(120)), Change::Foreign(reads(7)));
    assert!(group.journal.is_clear() && group.content() == theirs);
}

#[test]
fn a_row_beside_one_whose_end_cannot_be_noted_stays_as_another_program_sets_it() {
    let (mut group, other) = (Group::new("end-unnoted", ""), Group::new("end-unnoted-beside", ""));
    let (mut first, mut second) = (group.row(), other.row());
    assert_eq!(group.set(&mut first, reads(100)), Change::Made);
    group.put("253:0 rbps=7 wbps=max riops=max wiops=max");
    group.journal.set_writable(false);
    assert!(set_all(&mut group.journal, &mut [(&mut first, reads(110)), (&mut second, reads(5))]).is_err());
    assert!(second.before().is_none() && other.content().is_empty());
    group.journal.set_writable(true);
    let theirs = "253:0 rbps=9 wbps=max riops=max wiops=max";
    other.put(theirs);
    let results = set_all(&mut group.journal, &mut [(&mut first, reads(110)), (&mut second, reads(5))]).unwrap();
    assert!(matches!(results[..], [Ok(Change::Foreign(_)), Ok(Change::Made)]), "{results:?}");
    assert_eq!(second.restore(&mut group.journal).unwrap(), Restored::Done);
    assert_eq!(other.content(), theirs);
    assert!(group.journal.is_clear(), "the end of the first one is noted");
}

/// systemd writes the limits of its units again at each `daemon-reload`.
#[test]
fn limits_of_before_that_are_written_again_are_no_work_of_another_program() {
    let theirs = "253:0 rbps=max wbps=200 riops=max wiops=max";
    let writes = |wbps: u64| Limits { wbps: Some(wbps), ..Limits::NONE };
    let mut group = Group::new("again", theirs);
    let mut row = group.row();
    assert_eq!(group.set(&mut row, writes(50)), Change::Made);
    row.read().unwrap();
    assert!(!row.is_undone());
    group.put(theirs);
    assert_eq!(row.read().unwrap(), Some(writes(200)));
    assert!(row.is_undone() && !row.is_foreign());
    assert_eq!(group.set(&mut row, writes(50)), Change::Made);
    assert_eq!(Limits::of(&group.content(), DEVICE), Ok(writes(50)));
    assert_eq!(row.before(), Some(writes(200)));
    // Another value is another decision.
    group.put("253:0 rbps=max wbps=300 riops=max wiops=max");
    assert_eq!(group.set(&mut row, writes(50)), Change::Foreign(writes(300)));
    assert!(!row.is_undone() && group.journal.is_clear());
}

#[test]
fn an_end_of_all_limits_where_there_were_none_before_is_work_of_another_program() {
    let mut group = Group::new("ended", "");
    let mut row = group.row();
    assert_eq!(group.set(&mut row, reads(100)), Change::Made);
    group.put("");
    assert_eq!(row.read().unwrap(), Some(Limits::NONE));
    assert!(row.is_foreign() && !row.is_undone());
    assert_eq!(group.set(&mut row, reads(100)), Change::Foreign(Limits::NONE));
    assert!(group.content().is_empty() && group.journal.is_clear());
}

#[test]
fn a_group_that_vanishes_while_its_limits_are_restored_took_them_along() {
    let error = |path: &str, code| {
        let cause = std::io::Error::from_raw_os_error(code);
        Err(Error::File { doing: "write", path: path.into(), cause })
    };
    let foreign = || Restored::Foreign { found: String::new() };
    for code in [libc::ENOENT, libc::ENODEV] {
        assert_eq!(unless_gone(error("/nonexistent/io.max", code), foreign()).unwrap(), Restored::Nothing);
    }
    assert_eq!(unless_gone(error("/", libc::ENODEV), Restored::Done).unwrap(), Restored::Nothing);
    assert!(unless_gone(error("/", libc::EBUSY), Restored::Done).is_err());
    assert_eq!(unless_gone(Ok(()), foreign()).unwrap(), foreign());
}

#[test]
fn a_device_that_is_gone_took_its_limits_along() {
    let error = |path: &str, code| {
        let cause = std::io::Error::from_raw_os_error(code);
        Error::File { doing: "write", path: path.into(), cause }
    };
    let [absent, here] = ["/nonexistent/io.max", "/"].map(|path| error(path, libc::ENODEV));
    assert!(is_no_device(&absent) && gone(&absent));
    assert!(is_no_device(&here) && !gone(&here), "the group is there, the device is not");
    assert!(!is_no_device(&error("/nonexistent/io.max", libc::EACCES)));
}
