use proptest::prelude::*;

use super::*;
use crate::actuator::FileKnob;
use crate::folder::{Folder, folder};

/// A temporary directory for one test.
struct Dir(Folder);

impl Dir {
    fn new(name: &str) -> Self {
        Self(folder(&format!("journal-{name}")))
    }

    fn knob(&self, name: &str, content: &str) -> PathBuf {
        self.0.file(name, content)
    }

    fn journal(&self) -> PathBuf {
        self.0.join("journal")
    }
}

impl Journal {
    /// Makes later writes fail, as on a full disk, or succeed again.
    pub(crate) fn set_writable(&mut self, is_writable: bool) {
        self.file = OpenOptions::new().read(true).append(is_writable).open(&self.path).unwrap();
    }
}

fn content(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap().trim_end().to_owned()
}

#[test]
fn the_first_value_is_restored_after_many_changes() {
    let dir = Dir::new("first");
    let path = dir.knob("limit", "max\n");
    let mut journal = Journal::open(dir.journal()).unwrap();
    let mut knob = FileKnob::new(&path);
    for value in ["100", "200", "200", "300"] {
        knob.set(&mut journal, value).unwrap();
    }
    assert_eq!(content(&path), "300");
    drop(journal);
    let mut journal = Journal::open(dir.journal()).unwrap();
    assert_eq!(journal.pending().count(), 1);
    let results = journal.restore_all();
    assert!(matches!(results[..], [(Knob::File(_), Ok(Restored::Done))]), "{results:?}");
    assert_eq!(content(&path), "max");
    assert!(journal.is_clear());
    assert!(Journal::open(dir.journal()).is_err(), "locked");
    drop(journal);
    assert!(Journal::open(dir.journal()).unwrap().is_clear());
}

#[test]
fn a_foreign_change_is_noticed_and_respected() {
    let dir = Dir::new("foreign");
    let path = dir.knob("limit", "max\n");
    let mut journal = Journal::open(dir.journal()).unwrap();
    let mut knob = FileKnob::new(&path);
    assert_eq!(knob.set(&mut journal, "max").unwrap(), None);
    assert!(journal.is_clear(), "nothing was changed, nothing is to be restored");
    assert_eq!(knob.set(&mut journal, "100").unwrap(), None);
    std::fs::write(&path, "77\n").unwrap();
    assert_eq!(knob.set(&mut journal, "200").unwrap().as_deref(), Some("77"));
    assert_eq!(journal.restore(&Knob::File(path.clone())).unwrap(), Restored::Foreign { found: "77".into() });
    assert_eq!(content(&path), "77");
}

#[test]
fn a_change_that_was_interrupted_is_restored_whatever_the_file_holds() {
    let dir = Dir::new("interrupted");
    let path = dir.knob("limit", "max\n");
    let mut journal = Journal::open(dir.journal()).unwrap();
    journal.intend(&Knob::File(path.clone()), Some("max"), Some("100")).unwrap();
    // The process dies here, and the kernel had spelled the value in its own way.
    std::fs::write(&path, "rbps=100\n").unwrap();
    drop(journal);
    Journal::open(dir.journal()).unwrap().restore_all();
    assert_eq!(content(&path), "max");
}

#[test]
fn a_value_that_was_read_back_is_known_also_where_it_cannot_be_noted() {
    let dir = Dir::new("unnoted");
    let path = dir.knob("limit", "100\n");
    let mut journal = Journal::open(dir.journal()).unwrap();
    let knob = Knob::File(path.clone());
    journal.intend(&knob, Some("max"), Some("100")).unwrap();
    journal.set_writable(false);
    assert!(journal.confirm(&knob, "100").is_err());
    std::fs::write(&path, "77\n").unwrap();
    let _ = journal.restore(&knob);
    assert_eq!(content(&path), "77", "another program's");
}

#[test]
fn a_torn_last_line_is_passed_over_and_a_damaged_one_is_not() {
    let dir = Dir::new("torn");
    let path = dir.knob("limit", "100\n");
    let line =
        to_json(&Line::Intend { knob: Knob::File(path.clone()), before: Some("max".into()), set: None }).unwrap();
    std::fs::write(dir.journal(), format!("{line}{}", &line[..20])).unwrap();
    let mut journal = Journal::open(dir.journal()).unwrap();
    journal.restore_all();
    assert_eq!(content(&path), "max");
    drop(journal);
    std::fs::write(dir.journal(), format!("nonsense\n{line}")).unwrap();
    let error = Journal::open(dir.journal()).unwrap_err().to_string();
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn a_journal_of_the_next_format_is_restored_as_far_as_it_is_understood() {
    let dir = Dir::new("next");
    let (one, two) = (dir.knob("one", "5"), dir.knob("two", "6"));
    let intend = |path: &Path, more: &str| {
        format!("{{\"intend\":{{\"knob\":{{\"file\":{path:?}}},\"before\":\"1\",\"set\":\"5\"{more}}}}}\n")
    };
    let text = format!(
        "{{\"format\":{}}}\n{}{{\"lease\":7}}\n{}",
        FORMAT + 1,
        intend(&one, ",\"unit\":\"ms\""),
        intend(&two, "")
    );
    std::fs::write(dir.journal(), &text).unwrap();
    std::fs::set_permissions(dir.journal(), std::os::unix::fs::PermissionsExt::from_mode(PRIVATE)).unwrap();
    let mut journal = Journal::open(dir.journal()).unwrap();
    assert_eq!(journal.pending().count(), 2);
    let kept = with_suffix(&dir.journal(), &format!(".format-{}", FORMAT + 1));
    assert_eq!(content(&kept), text.trim_end());
    assert!(content(&dir.journal()).starts_with(&format!("{{\"format\":{FORMAT}}}\n")), "begun anew");
    assert!(journal.restore_all().into_iter().all(|(_, result)| matches!(result, Ok(Restored::Done))));
    assert_eq!((content(&one).as_str(), content(&two).as_str()), ("1", "1"));
    drop(journal);
    assert!(Journal::open(dir.journal()).unwrap().is_clear());
}

#[test]
fn the_journal_stays_short_and_loses_nothing() {
    let dir = Dir::new("compact");
    let path = dir.knob("limit", "max\n");
    let mut journal = Journal::open(dir.journal()).unwrap();
    let mut knob = FileKnob::new(&path);
    for round in 0..COMPACT_LINES {
        knob.set(&mut journal, &round.to_string()).unwrap();
    }
    let lines = std::fs::read_to_string(dir.journal()).unwrap().lines().count();
    assert!(lines <= COMPACT_LINES, "{lines} lines");
    knob.restore(&mut journal).unwrap();
    assert_eq!(content(&path), "max");
}

#[test]
fn when_everything_was_restored_nothing_is_left_to_read() {
    let dir = Dir::new("empty");
    let path = dir.knob("limit", "max\n");
    let mut journal = Journal::open(dir.journal()).unwrap();
    let mut knob = FileKnob::new(&path);
    for round in 0..2 {
        // What an older version does not know.
        let filter = Knob::Filter("no-such-device".into());
        journal.intend(&filter, Some(""), Some("clsact, cls_bpf")).unwrap();
        knob.set(&mut journal, "100").unwrap();
        journal.restore(&filter).unwrap();
        assert!(content(&dir.journal()).contains("intend"), "round {round}: the file is still to be restored");
        if round == 0 {
            knob.restore(&mut journal).unwrap();
            assert_eq!(std::fs::metadata(dir.journal()).unwrap().len(), 0);
        }
    }
    drop(journal);
    // What came after it was emptied is read as ever.
    let mut journal = Journal::open(dir.journal()).unwrap();
    assert_eq!(journal.pending().collect::<Vec<_>>(), [&Knob::File(path.clone())]);
    journal.restore_all();
    assert_eq!((content(&path), std::fs::metadata(dir.journal()).unwrap().len()), ("max".to_owned(), 0));
}

#[test]
fn a_journal_that_others_could_have_written_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = Dir::new("ours");
    drop(Journal::open(dir.journal()).unwrap());
    for name in ["journal", "journal.lock"] {
        let mode = std::fs::metadata(dir.0.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{name} is open to others: {mode:o}");
    }
    std::fs::set_permissions(dir.journal(), std::fs::Permissions::from_mode(0o660)).unwrap();
    let error = Journal::open(dir.journal()).unwrap_err();
    assert!(matches!(error, Error::JournalNotOurs { .. }), "{error}");
}

/// The part of [`a_full_disk_loses_nothing`] that runs in a process whose files cannot grow beyond a limit (`RLIMIT_FSIZE`).
fn on_a_full_disk(dir: &Path) {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Fsize);
    assert!(limit.current.is_some(), "the files of this process can grow");
    let (path, journal_path) = (dir.join("limit"), dir.join("journal"));
    std::fs::write(&path, "max\n").unwrap();
    let mut journal = Journal::open(&journal_path).unwrap();
    let mut knob = FileKnob::new(&path);
    let mut written = 0;
    while knob.set(&mut journal, &written.to_string()).is_ok() {
        written += 1;
    }
    assert!((1..1_000).contains(&written), "{written} changes fitted");
    let again = knob.set(&mut journal, "9");
    assert!(!matches!(again, Ok(Some(_))), "{again:?}: it is our own");
    // The last one may be there, but then it is known what was before.
    let text = std::fs::read(&journal_path).unwrap();
    assert_eq!(whole(&text), text.len(), "half a line was left");
    drop(journal);
    // Still full: it opens, and restores.
    let mut journal = Journal::open(&journal_path).unwrap();
    let _ = journal.restore_all();
    assert_eq!(content(&path), "max");
    // Room again: it goes on, and can be read.
    setrlimit(Resource::Fsize, rustix::process::Rlimit { current: limit.maximum, ..limit }).unwrap();
    let mut knob = FileKnob::new(&path);
    knob.set(&mut journal, "7").unwrap();
    drop(journal);
    Journal::open(&journal_path).unwrap().restore_all();
    assert_eq!(content(&path), "max");
}

#[test]
fn a_full_disk_loses_nothing() {
    const FOLDER: &str = "EVENKEEL_TEST_FULL_DISK";
    if let Some(dir) = std::env::var_os(FOLDER) {
        return on_a_full_disk(Path::new(&dir));
    }
    let dir = Dir::new("full");
    // A write beyond the limit is an error once the signal is ignored, and part of it may have been taken.
    let script = "trap '' XFSZ; ulimit -S -f 1; exec \"$0\" \"$@\"";
    let mut command = std::process::Command::new("sh");
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "journal::tests::a_full_disk_loses_nothing"]).env(FOLDER, &*dir.0);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_may_wait_for_a_disk_is_restored_last() {
    let dir = Dir::new("last");
    let mut journal = Journal::open(dir.journal()).unwrap();
    for name in ["nr_requests", "queue_depth"] {
        FileKnob::new(dir.knob(name, "64\n")).set(&mut journal, "8").unwrap();
    }
    journal.intend(&Knob::Filter("no-such-device".into()), Some(""), None).unwrap();
    let order: Vec<_> = journal.restore_all().into_iter().map(|(knob, _)| knob).collect();
    assert_eq!(order.last(), Some(&Knob::File(dir.0.join("nr_requests"))));
    assert_eq!(order.len(), 3);
}

/// The part of [`without_descriptors_nothing_is_lost`] that runs in a process of its own, whose limit of open files it
/// lowers.
fn with_one_descriptor(dir: &Path) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    use std::os::fd::AsRawFd as _;
    let mut journal = Journal::open(dir.join("journal")).unwrap();
    let [one, two] = ["one", "two"].map(|name| dir.join(name));
    [&one, &two].into_iter().for_each(|path| std::fs::write(path, "max\n").unwrap());
    let limit = getrlimit(Resource::Nofile);
    let next = File::open(&one).unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(next + 1), ..limit }).unwrap();
    let mut knob = FileKnob::new(&one);
    for value in 0..COMPACT_LINES {
        knob.set(&mut journal, &value.to_string()).unwrap();
    }
    FileKnob::new(&two).set(&mut journal, "7").unwrap();
    setrlimit(Resource::Nofile, limit).unwrap();
    drop(journal);
    let mut journal = Journal::open(dir.join("journal")).unwrap();
    assert_eq!(journal.pending().count(), 2);
    journal.restore_all();
    assert_eq!((content(&one).as_str(), content(&two).as_str()), ("max", "max"));
}

#[test]
fn without_descriptors_nothing_is_lost() {
    const FOLDER: &str = "EVENKEEL_TEST_DESCRIPTORS";
    if let Some(dir) = std::env::var_os(FOLDER) {
        return with_one_descriptor(Path::new(&dir));
    }
    let dir = Dir::new("descriptors");
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "journal::tests::without_descriptors_nothing_is_lost"]).env(FOLDER, &*dir.0);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

proptest! {
    #[test]
    fn a_journal_cut_anywhere_still_restores_what_had_been_changed(changes in 1usize..5, cut in 0usize..2000) {
        let before = Some("max".to_owned());
        let knob = Knob::File("/limit".into());
        let mut text = String::new();
        let mut first_end = 0;
        for n in 0..changes {
            let set = Some(n.to_string());
            text += &to_json(&Line::Intend { knob: knob.clone(), before: before.clone(), set }).unwrap();
            if n == 0 {
                first_end = text.len();
            }
            text += &to_json(&Line::Confirm { knob: knob.clone(), seen: n.to_string() }).unwrap();
        }
        let cut = cut.min(text.len());
        let states = parse(Path::new("j"), &text.as_bytes()[..cut]).unwrap().states;
        if cut >= first_end {
            prop_assert_eq!(&states[&knob].before, &before);
        } else {
            prop_assert!(states.is_empty());
        }
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = parse(Path::new("j"), &bytes);
    }
}
