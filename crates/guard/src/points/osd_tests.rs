use std::path::PathBuf;

use evenkeel_control::admission::Config as Admission;
use evenkeel_policy::units::Duration as Span;

use super::*;
use crate::config::CephSettings;
use crate::fake_osd::FakeOsd;
use crate::folder::{Folder, folder};
use crate::loops::record::At;

struct Bench {
    path: PathBuf,
    fake: Option<FakeOsd>,
    osd: Osd,
    journal: Mutex<Journal>,
    now: Instant,
    _folder: Folder,
}

fn bench(test: &str, admission: Admission) -> Bench {
    let folder = folder(test);
    let path = folder.join("osd.0.asok");
    let entry = OsdEntry { name: "osd.0".into(), socket: path.clone() };
    let settings = CephSettings { answer_within: Span::from_millis(10_000), ..CephSettings::default() };
    let config = CephConfig { settings, admission, ..CephConfig::default() };
    Bench {
        fake: Some(FakeOsd::start(&path)),
        osd: Osd::new(&entry, &config, Instant::ZERO, 1),
        journal: Mutex::new(Journal::open(folder.join("journal")).unwrap()),
        path,
        now: Instant::ZERO,
        _folder: folder,
    }
}

impl Bench {
    fn tick(&mut self) -> Result<(), actuator::Error> {
        self.now += Duration::from_millis(20);
        if let Some(fake) = &self.fake {
            fake.inside.lock().unwrap().commits += 20;
        }
        let now = self.now;
        self.osd.tick(|| now, Some(&self.journal))
    }

    fn state(&self) -> OsdState {
        let At::Osd(state) = self.osd.state().at else { panic!("another point") };
        state
    }

    fn set(&self, option: &str) -> Option<String> {
        self.fake.as_ref().and_then(|fake| fake.set(option))
    }
}

fn fixed(budget: u64) -> Admission {
    Admission::Fixed { budget_bytes: budget }
}

#[test]
fn a_fixed_budget_is_set_with_the_deferred_one_in_proportion() {
    let mut bench = bench("fixed", fixed(262_144));
    for _ in 0..5 {
        bench.tick().unwrap();
    }
    assert_eq!(bench.set(BYTES), Some("262144".into()));
    assert_eq!(bench.set(DEFERRED), Some("524288".into()));
    let state = bench.state();
    assert_eq!((state.condition.as_str(), state.changes_total, state.throttle_bytes), ("controlled", 1, Some(262_144)));
    // 1 + 2 + 3 ms, and 20 commits in 20 ms.
    let lately = bench.osd.state().lately;
    assert!((lately.latency_ms.unwrap() - 6.0).abs() < 1e-6, "{lately:?}");
    assert!((lately.iops - 1_000.0).abs() < 1e-6 && lately.because == state.admission.reason, "{lately:?}");
    assert!((lately.window_s - 0.02).abs() < 1e-6, "{lately:?}");
    bench.journal.lock().unwrap().restore_all();
    assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (None, None));
}

#[test]
fn without_a_journal_nothing_is_set() {
    let mut bench = bench("dry", fixed(262_144));
    for _ in 0..3 {
        bench.now += Duration::from_millis(20);
        let now = bench.now;
        bench.osd.tick(|| now, None).unwrap();
    }
    assert_eq!((bench.set(BYTES), bench.state().condition.as_str()), (None, "watched"));
    assert_eq!(bench.state().admission.budget_bytes, Some(262_144));
}

#[test]
fn an_osd_that_goes_and_comes_back_is_controlled_again() {
    let mut bench = bench("restart", fixed(262_144));
    bench.tick().unwrap();
    bench.fake = None;
    assert!(bench.tick().is_err());
    assert_eq!(bench.state().condition, "absent");
    bench.fake = Some(FakeOsd::start(&bench.path));
    // The process is the same here, so that it is the counters that tell.
    bench.osd.pid = Some(1);
    bench.tick().unwrap();
    let state = bench.state();
    assert_eq!((state.condition.as_str(), state.restarts_total, state.errors_total), ("controlled", 1, 1));
    assert_eq!(bench.set(BYTES), Some("262144".into()));
}

#[test]
fn both_options_are_forgotten_with_their_process_whatever_is_refused() {
    let mut bench = bench("both", fixed(262_144));
    bench.tick().unwrap();
    assert!(bench.osd.bytes.ours().is_some() && bench.osd.deferred.ours().is_some());
    bench.fake = None;
    bench.fake = Some(FakeOsd::start(&bench.path));
    bench.fake.as_ref().unwrap().inside.lock().unwrap().refused = Some("config diff");
    bench.osd.pid = Some(1);
    assert!(bench.tick().is_err());
    assert_eq!((bench.osd.bytes.ours(), bench.osd.deferred.ours()), (None, None));
    bench.fake.as_ref().unwrap().inside.lock().unwrap().refused = None;
    // The first tick settles what the journal still lists of the process that is gone.
    bench.tick().unwrap();
    bench.tick().unwrap();
    assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (Some("262144".into()), Some("524288".into())));
    assert_eq!(bench.state().condition, "controlled");
}

#[test]
fn what_was_set_in_a_process_that_is_gone_is_not_restored_in_the_next() {
    let mut bench = bench("next", fixed(262_144));
    bench.fake.as_ref().unwrap().inside.lock().unwrap().overrides.insert(BYTES.into(), "33554432".into());
    bench.tick().unwrap();
    assert_eq!(bench.set(BYTES), Some("262144".into()));
    // The next process does not answer all questions at first.
    bench.fake = None;
    bench.fake = Some(FakeOsd::start(&bench.path));
    bench.fake.as_ref().unwrap().inside.lock().unwrap().refused = Some("config diff");
    bench.osd.pid = Some(1);
    assert!(bench.tick().is_err());
    bench.fake.as_ref().unwrap().inside.lock().unwrap().refused = None;
    for _ in 0..3 {
        bench.tick().unwrap();
    }
    assert_eq!(bench.set(BYTES), Some("262144".into()));
    bench.journal.lock().unwrap().restore_all();
    assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (None, None));
}

#[test]
fn a_throttle_that_another_program_sets_is_left_alone() {
    let mut bench = bench("foreign-osd", fixed(262_144));
    bench.tick().unwrap();
    bench.fake.as_ref().unwrap().inside.lock().unwrap().overrides.insert(BYTES.into(), "999999".into());
    for _ in 0..5 {
        bench.tick().unwrap();
    }
    let state = bench.state();
    assert_eq!(state.condition, "foreign");
    assert!(state.problem.unwrap().contains("999999"));
    // What was ours alone is restored, what was theirs stays.
    assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (Some("999999".into()), None));
    assert!(bench.journal.lock().unwrap().is_clear());
}

#[test]
fn what_another_program_did_not_set_is_restored_as_soon_as_the_osd_allows_it() {
    let mut bench = bench("foreign-late", fixed(262_144));
    bench.tick().unwrap();
    let inside = std::sync::Arc::clone(&bench.fake.as_ref().unwrap().inside);
    inside.lock().unwrap().overrides.insert(BYTES.into(), "999999".into());
    inside.lock().unwrap().refused = Some("config unset");
    let results: Vec<bool> = (0..5).map(|_| bench.tick().is_ok()).collect();
    assert_eq!((results.last(), bench.state().condition.as_str()), (Some(&false), "foreign"));
    assert_eq!(bench.set(DEFERRED), Some("524288".into()), "it could not be restored");
    inside.lock().unwrap().refused = None;
    bench.tick().unwrap();
    assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (Some("999999".into()), None));
    assert!(bench.journal.lock().unwrap().is_clear());
}

#[test]
fn what_was_refused_is_set_later_and_is_no_other_program_s() {
    for refused in ["config set", "config set bluestore_throttle_deferred_bytes"] {
        let mut bench = bench(&format!("refused-{}", refused.len()), fixed(262_144));
        let refuse = |bench: &Bench, refused| bench.fake.as_ref().unwrap().inside.lock().unwrap().refused = refused;
        refuse(&bench, Some(refused));
        for _ in 0..5 {
            assert!(bench.tick().is_err(), "{refused}");
        }
        refuse(&bench, None);
        for _ in 0..5 {
            bench.tick().unwrap();
        }
        assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (Some("262144".into()), Some("524288".into())));
        assert_eq!(bench.state().condition, "controlled");
        bench.journal.lock().unwrap().restore_all();
        assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (None, None));
    }
}

#[test]
fn a_budget_without_bound_is_what_the_osd_had() {
    let mut bench = bench("unbound", Admission::None);
    bench.fake.as_ref().unwrap().inside.lock().unwrap().overrides.insert(BYTES.into(), "33554432".into());
    for _ in 0..5 {
        bench.tick().unwrap();
    }
    assert_eq!((bench.set(BYTES), bench.set(DEFERRED)), (Some("33554432".into()), None));
    assert_eq!(bench.state().admission.budget_bytes, Some(32 << 20));
    assert!(bench.journal.lock().unwrap().is_clear());
}

#[test]
fn an_osd_that_answers_too_late_costs_a_tick_and_nothing_else() {
    let mut bench = bench("slow", fixed(262_144));
    bench.osd.socket = AdminSocket::new(&bench.path, std::time::Duration::from_millis(50));
    bench.fake.as_ref().unwrap().inside.lock().unwrap().unanswered = Some("perf dump");
    assert!(bench.tick().is_err());
    assert_eq!((bench.state().condition.as_str(), bench.set(BYTES)), ("late", None));
    bench.fake.as_ref().unwrap().inside.lock().unwrap().unanswered = None;
    bench.osd.socket = AdminSocket::new(&bench.path, std::time::Duration::from_secs(20));
    bench.tick().unwrap();
    assert_eq!(bench.set(BYTES), Some("262144".into()));
}
