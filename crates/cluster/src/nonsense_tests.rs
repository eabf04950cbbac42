//! Tests of values that no member of this host's version and settings writes.

use evenkeel_policy::state::ClusterState;

use super::*;

/// A quarter of period 2500.
fn clock() -> Instant {
    Instant::from_nanos(1_000_100_000_000)
}

fn driver(state: &Arc<Mutex<ClusterState>>) -> Driver<Recorder> {
    let recorder = Recorder { seen: Arc::default(), reports: 0 };
    Driver::new(settings("http://127.0.0.1:1", "a", clock), recorder, Arc::clone(state)).expect("good settings")
}

fn reported(value: String) -> Event {
    Event::Reported { host: "b".into(), value: value.into_bytes() }
}

#[test]
fn a_member_with_another_period_counts_by_its_number_until_it_leaves() {
    let state = Arc::<Mutex<ClusterState>>::default();
    let mut driver = driver(&state);
    let mut error = |leaving: bool| {
        driver.take_in(reported(format!(
            "{{\"v\":3,\"incarnation\":7,\"period\":999,\"joined\":900,\"period_us\":1000000,\"leaving\":{leaving}}}"
        )));
        driver.decide(clock());
        driver.publish_state(clock());
        (driver.faults.counts()["period"], lock(&state).error.clone())
    };
    let (times, why) = error(false);
    let why = why.expect("its part and slots are unknown");
    assert!(times == 1 && why.contains("the reports of 1 member are in a format"), "{why}");
    assert!(why.contains("or of another cluster.period; run the same version"), "{why}");
    assert_eq!(error(true), (2, None));
}

#[test]
fn figures_that_one_host_does_not_report_are_ignored() {
    let state = Arc::<Mutex<ClusterState>>::default();
    let mut driver = driver(&state);
    let mut corrupt = |members: u64, unit: &str| {
        driver.take_in(reported(format!(
            "{{\"v\":3,\"incarnation\":7,\"period\":2499,\"joined\":2400,\"period_us\":400000,\"members\":{members},\"totals\":{{\"main\":{{\"db\":[{unit},{{}}]}}}}}}"
        )));
        driver.faults.counts().get("corrupt").copied().unwrap_or(0)
    };
    assert_eq!(corrupt(1, "{\"members\":1,\"lines\":{\"claim\":1}}"), 0);
    // Claims of a thousand, what a thousand keep, and the sum of a shard: no member would have a part.
    assert_eq!(corrupt(1, "{\"members\":1000,\"lines\":{\"claim\":900}}"), 1);
    assert_eq!(corrupt(1, "{\"members\":1,\"reserved\":900}"), 2);
    assert_eq!(corrupt(2, "{\"members\":1,\"lines\":{\"claim\":1}}"), 3);
}
