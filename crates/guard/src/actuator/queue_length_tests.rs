use std::num::NonZeroU32;
use std::path::PathBuf;

use super::*;
use crate::folder::{Folder, folder};
use crate::sensor::queue::Knob;

/// A file in place of a disk's setting, in a temporary folder with a journal.
struct Disk {
    root: Folder,
    journal: Journal,
}

impl Disk {
    fn new(name: &str, value: &str) -> Self {
        let root = folder(&format!("queue-{name}"));
        let journal = Journal::open(root.join("journal")).unwrap();
        let disk = Self { root, journal };
        disk.put(value);
        disk
    }

    fn path(&self) -> PathBuf {
        self.root.join("queue_depth")
    }

    fn put(&self, value: &str) {
        std::fs::write(self.path(), format!("{value}\n")).unwrap();
    }

    fn value(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap().trim().to_owned()
    }

    fn length(&self, knob: Knob, queues: u32) -> QueueLength {
        let queues = NonZeroU32::new(queues).unwrap();
        QueueLength::new(Queue { disk: "sda".into(), knob, path: self.path(), queues })
    }

    /// Reads the queue's length and sets it for `slots` slots; true if the length was changed.
    fn set(&mut self, length: &mut QueueLength, slots: f64) -> bool {
        length.read(Some(&self.journal)).unwrap();
        length.set(&mut self.journal, slots).unwrap()
    }
}

#[test]
fn a_length_is_changed_when_it_is_worth_it_and_never_beyond_what_was_there() {
    let mut disk = Disk::new("worth", "32");
    let mut length = disk.length(Knob::QueueDepth, 1);
    for (slots, changed, value) in [
        (1_000.0, false, "32"),
        (8.2, true, "8"),
        (8.7, false, "8"),
        (7.5, false, "8"),
        (5.9, true, "6"),
        (0.2, true, "1"),
        (29.6, true, "30"),
        (31.9, false, "30"),
        (500.0, true, "32"),
    ] {
        assert_eq!((disk.set(&mut length, slots), disk.value()), (changed, value.to_owned()), "{slots} slots");
    }
    // It is as it was: nothing is left to be restored.
    assert!(disk.journal.is_clear());
    assert_eq!((length.before(), length.changes()), (Some(32), 5));
}

#[test]
fn slots_are_shared_between_hardware_queues_of_four_requests_at_least() {
    let mut disk = Disk::new("hardware", "128");
    let mut length = disk.length(Knob::Requests, 4);
    assert!(disk.set(&mut length, 64.0));
    assert_eq!((disk.value().as_str(), length.slots()), ("16", 64));
    assert!(disk.set(&mut length, 3.0));
    assert_eq!((disk.value().as_str(), length.slots()), ("4", 16));
}

#[test]
fn what_was_there_before_is_restored_by_each_process() {
    let mut disk = Disk::new("back", "32");
    let mut length = disk.length(Knob::QueueDepth, 1);
    for slots in [20.0, 4.0, 9.0] {
        assert!(disk.set(&mut length, slots));
    }
    drop(length);
    disk.journal.restore_all().into_iter().for_each(|(_, result)| drop(result.unwrap()));
    assert_eq!(disk.value(), "32");
}

#[test]
fn a_foreign_setting_is_left_alone_while_it_is_there() {
    let mut disk = Disk::new("foreign", "32");
    let mut length = disk.length(Knob::QueueDepth, 1);
    assert!(disk.set(&mut length, 4.0));
    disk.put("16");
    assert!(!disk.set(&mut length, 2.0));
    assert_eq!((disk.value().as_str(), length.foreign()), ("16", Some("16")));
    // A kernel that raised it again after the array was full, for example.
    disk.put("4");
    assert!(disk.set(&mut length, 2.0));
    assert_eq!((disk.value().as_str(), length.foreign()), ("2", None));
    disk.put("16");
    disk.journal.restore_all().into_iter().for_each(|(_, result)| drop(result.unwrap()));
    assert_eq!(disk.value(), "16");
}

#[test]
fn a_length_that_the_kernel_lowered_is_restored() {
    for (found, restored) in [("2", "32"), ("4", "32"), ("16", "16"), ("all", "all")] {
        let mut disk = Disk::new(&format!("lowered-{found}"), "32");
        assert!(disk.set(&mut disk.length(Knob::QueueDepth, 1), 4.0));
        disk.put(found);
        disk.journal.restore_all().into_iter().for_each(|(_, result)| drop(result.unwrap()));
        assert_eq!(disk.value(), restored, "{found}");
    }
}

#[test]
fn what_others_set_before_our_first_change_is_what_was_there_before() {
    for (knob, others) in [(Knob::Requests, 24), (Knob::QueueDepth, 48)] {
        let mut disk = Disk::new(&format!("first-{others}"), "32");
        let mut length = disk.length(knob, 1);
        assert!(!disk.set(&mut length, f64::INFINITY));
        disk.put(&others.to_string());
        assert!(!disk.set(&mut length, f64::INFINITY));
        assert_eq!((length.before(), length.foreign()), (Some(others), None));
    }
}

#[test]
fn a_length_that_the_kernel_lowered_before_our_change_is_not_what_was_there_before() {
    let mut disk = Disk::new("ratchet", "64");
    let mut length = disk.length(Knob::QueueDepth, 1);
    assert!(!disk.set(&mut length, f64::INFINITY));
    disk.put("12");
    for slots in [f64::INFINITY, 20.0] {
        assert!(!disk.set(&mut length, slots), "the kernel raises it again");
    }
    assert_eq!((disk.value().as_str(), length.before(), length.changes()), ("12", Some(64), 0));
    assert!(disk.set(&mut length, 8.0));
    assert!(disk.set(&mut length, f64::INFINITY));
    assert_eq!(disk.value(), "64");
    // By the journal alone as well.
    disk.put("12");
    assert!(disk.set(&mut length, 8.0));
    disk.journal.restore_all().into_iter().for_each(|(_, result)| drop(result.unwrap()));
    assert_eq!(disk.value(), "64");
}

#[test]
fn a_length_of_ours_is_known_by_the_journal() {
    let mut disk = Disk::new("known", "64");
    assert!(disk.set(&mut disk.length(Knob::Requests, 1), 8.0));
    // The disk was away while it hung.
    let mut length = disk.length(Knob::Requests, 1);
    assert!(disk.set(&mut length, 16.0));
    assert_eq!((length.before(), length.foreign()), (Some(64), None));
    disk.put("24");
    assert!(!disk.set(&mut disk.length(Knob::Requests, 1), 8.0), "another program's");
    disk.put("16");
    assert!(disk.set(&mut length, f64::INFINITY));
    assert_eq!(disk.value(), "64");
}

#[test]
fn a_length_that_the_agent_itself_restored_is_not_another_program_s() {
    let mut disk = Disk::new("moved", "64");
    let mut old = disk.length(Knob::QueueDepth, 1);
    assert!(disk.set(&mut old, 8.0));
    // The newer point finds the disk before the older one gives it up.
    let mut new = disk.length(Knob::QueueDepth, 1);
    assert!(disk.set(&mut new, 16.0));
    old.forget(&mut disk.journal).unwrap();
    assert_eq!((disk.value().as_str(), disk.journal.is_clear()), ("64", true));
    assert!(disk.set(&mut new, 12.0));
    assert_eq!((disk.value().as_str(), new.before(), new.foreign()), ("12", Some(64), None));
    new.forget(&mut disk.journal).unwrap();
    assert_eq!((disk.value().as_str(), disk.journal.is_clear()), ("64", true));
}

#[test]
fn a_disk_that_is_gone_takes_its_setting_along() {
    let mut disk = Disk::new("gone", "32");
    let mut length = disk.length(Knob::QueueDepth, 1);
    assert!(disk.set(&mut length, 4.0));
    std::fs::remove_file(disk.path()).unwrap();
    assert!(!length.is_there() && length.read(None).is_err());
    length.forget(&mut disk.journal).unwrap();
    assert!(disk.journal.is_clear());
}

#[test]
fn what_is_no_number_is_reported() {
    let disk = Disk::new("odd", "simple");
    let mut length = disk.length(Knob::QueueDepth, 1);
    let told = length.read(None).unwrap_err().to_string();
    assert!(told.contains("queue_depth") && told.contains("simple"), "{told}");
}

#[test]
fn what_an_earlier_run_left_is_not_set_before_it_is_restored() {
    let mut disk = Disk::new("left", "32");
    assert!(disk.set(&mut disk.length(Knob::QueueDepth, 1), 8.0));
    disk.journal.leave_pending();
    let mut length = disk.length(Knob::QueueDepth, 1);
    assert!(!disk.set(&mut length, 4.0) && length.is_left(&disk.journal));
    assert_eq!(disk.value(), "8");
    assert!(disk.journal.restore_left().iter().all(|(_, result)| result.is_ok()));
    assert!(disk.set(&mut length, 4.0));
    assert_eq!((disk.value().as_str(), length.before()), ("4", Some(32)));
}
