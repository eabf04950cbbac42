use std::time::Duration;

use super::*;
use crate::fake_osd::FakeOsd;
use crate::folder::{Folder, folder};

const OPTION: &str = "bluestore_throttle_bytes";

struct Bench {
    folder: Folder,
    osd: FakeOsd,
    option: CephOption,
    journal: Mutex<Journal>,
}

fn bench(test: &str) -> Bench {
    let folder = folder(test);
    let path = folder.join("osd.0.asok");
    let osd = FakeOsd::start(&path);
    let option = CephOption::new(AdminSocket::new(&path, Duration::from_secs(20)), OPTION);
    let journal = Mutex::new(Journal::open(folder.join("journal")).unwrap());
    Bench { folder, osd, option, journal }
}

impl Bench {
    fn set(&mut self, value: &str) -> Change {
        self.option.set(&self.journal, value).unwrap()
    }

    fn restored(&self) -> Vec<Restored> {
        let results = self.journal.lock().unwrap().restore_all();
        results.into_iter().map(|(_, result)| result.unwrap()).collect()
    }
}

#[test]
fn settings_that_were_unset_are_unset_again() {
    let mut bench = bench("unset");
    assert_eq!(bench.set("262144"), Change::Made);
    assert_eq!(bench.set("262144"), Change::Same);
    assert_eq!(bench.set("131072"), Change::Made);
    assert_eq!(bench.osd.set(OPTION), Some("131072".into()));
    bench.option.restore(&bench.journal).unwrap();
    assert_eq!(bench.osd.set(OPTION), None);
    assert!(bench.journal.lock().unwrap().is_clear());
}

#[test]
fn what_was_set_in_the_daemon_is_set_again() {
    let mut bench = bench("before");
    bench.osd.inside.lock().unwrap().overrides.insert(OPTION.into(), "5000000".into());
    bench.set("262144");
    assert_eq!(bench.restored(), [Restored::Done]);
    assert_eq!(bench.osd.set(OPTION), Some("5000000".into()));
}

#[test]
fn another_process_puts_it_back_by_the_journal() {
    let mut bench = bench("other");
    bench.set("262144");
    // As after kill -9: the journal is all that is left.
    let Bench { folder, osd, journal, .. } = bench;
    drop(journal);
    let mut journal = Journal::open(folder.join("journal")).unwrap();
    assert!(journal.restore_all().into_iter().all(|(_, result)| result.unwrap() == Restored::Done));
    assert_eq!(osd.set(OPTION), None);
}

#[test]
fn what_another_program_sets_meanwhile_is_left_alone() {
    let mut bench = bench("foreign");
    bench.set("262144");
    bench.osd.inside.lock().unwrap().overrides.insert(OPTION.into(), "777".into());
    assert_eq!(bench.set("131072"), Change::Foreign("777".into()));
    assert_eq!(bench.restored(), [Restored::Foreign { found: "777".into() }]);
    assert_eq!(bench.osd.set(OPTION), Some("777".into()));
}

#[test]
fn with_a_daemon_that_is_gone_or_new_there_is_nothing_to_restore() {
    let mut bench = bench("gone");
    bench.set("262144");
    bench.osd.inside.lock().unwrap().overrides.clear();
    assert_eq!(bench.restored(), [Restored::Nothing]);
    bench.option.forget();
    bench.set("262144");
    let Bench { osd, journal, .. } = bench;
    drop(osd);
    let results = journal.lock().unwrap().restore_all();
    assert!(matches!(results[..], [(_, Ok(Restored::Nothing))]), "{results:?}");
}

#[test]
fn a_change_that_was_not_answered_is_restored_too() {
    let mut bench = bench("late");
    bench.set("262144");
    let path = bench.folder.join("osd.0.asok");
    let mut hasty = CephOption::new(AdminSocket::new(path, Duration::from_secs(2)), OPTION);
    std::mem::swap(&mut hasty.ours, &mut bench.option.ours);
    std::mem::swap(&mut hasty.before, &mut bench.option.before);
    bench.osd.inside.lock().unwrap().unanswered = Some("config set");
    assert!(hasty.set(&bench.journal, "131072").is_err());
    assert_eq!(bench.osd.set(OPTION), Some("131072".into()), "it was carried out");
    bench.osd.inside.lock().unwrap().unanswered = None;
    assert_eq!(bench.restored(), [Restored::Done]);
    assert_eq!(bench.osd.set(OPTION), None);
}

#[test]
fn daemons_that_hang_do_not_hold_up_others() {
    let mut bench = bench("hang");
    bench.set("262144");
    let path = |id: u32| bench.folder.join(format!("osd.{id}.asok"));
    let others: Vec<FakeOsd> = (1..5).map(|id| FakeOsd::start(&path(id))).collect();
    for id in 1..5 {
        let mut option = CephOption::new(AdminSocket::new(path(id), Duration::from_secs(20)), OPTION);
        assert_eq!(option.set(&bench.journal, "262144").unwrap(), Change::Made);
    }
    others.iter().for_each(|osd| osd.inside.lock().unwrap().unanswered = Some("config diff"));
    let begun = std::time::Instant::now();
    let results = bench.journal.lock().unwrap().restore_all();
    assert!(begun.elapsed() < 3 * RESTORE_LIMIT, "one after the other");
    let done = results.iter().filter(|(_, result)| matches!(result, Ok(Restored::Done))).count();
    assert_eq!((done, results.len(), bench.osd.set(OPTION)), (1, 5, None), "{results:?}");
}

#[test]
fn what_an_earlier_run_left_is_restored_before_it_is_set() {
    let mut bench = bench("left");
    bench.set("262144");
    bench.journal.lock().unwrap().leave_pending();
    // Another agent, which knows of it by the journal alone.
    bench.option.forget();
    assert_eq!(bench.set("131072"), Change::Made);
    assert!(bench.journal.lock().unwrap().left().is_empty());
    assert_eq!(bench.restored(), [Restored::Done]);
    assert_eq!(bench.osd.set(OPTION), None);
}
