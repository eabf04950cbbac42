//! A goal for the response time of reads, live. Alone in its file, because the machine's own delays count too.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::Engine;
use evenkeel_policy::state::{PoolState, TenantState};
use support::TestServer;

/// What the modelled device gives: 32 writes of 32 KiB at 10 MB/s keep a read waiting for 100 ms.
const DEVICE: &str = "[pools.main]\nadmission = \"none\"\n[pools.main.emulate]\nbandwidth = \"10MB\"\n\
    [tenants.backup]\n[tenants.database]\n\
    [volumes.backup]\nbackend = \"emulate\"\nsize = \"8MiB\"\n[volumes.database]\nbackend = \"emulate\"\nsize = \"8MiB\"\n";
const GOAL: Duration = Duration::from_millis(40);
/// A busy machine may be late, or keep the writer from filling the device, at any attempt of 1.5 s.
const ATTEMPTS: usize = 20;

fn pool(test: &TestServer) -> PoolState {
    test.server.state().pools.into_iter().find(|pool| pool.name == "main").unwrap()
}

fn tenant(pool: &PoolState, name: &str) -> TenantState {
    pool.tenants.iter().find(|tenant| tenant.name == name).unwrap().clone()
}

/// Mean time of a read over `length`, one every 20 ms.
fn read_for(client: &mut support::Client, length: Duration) -> Duration {
    let start = Instant::now();
    let (mut sum, mut count) = (Duration::ZERO, 0);
    while start.elapsed() < length {
        let sent = Instant::now();
        client.read(0, 4096).unwrap();
        (sum, count) = (sum + sent.elapsed(), count + 1);
        std::thread::sleep(Duration::from_millis(20));
    }
    sum / count
}

/// Tells the writer to stop, also when the test fails: it would be waited for without end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn writers_are_held_back_for_a_goal_that_a_reload_brings_and_takes() {
    let test = TestServer::start("goal", Engine::Auto, DEVICE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = test.connect("backup");
            let payload = vec![7; 32 << 10];
            let send =
                |client: &mut support::Client| client.send(Command::Write, CommandFlags::NONE, 0, 32 << 10, &payload);
            let mut cookies: std::collections::VecDeque<_> = (0..32).map(|_| send(&mut client)).collect();
            while !stop.load(Ordering::Relaxed) {
                client.wait(cookies.pop_front().unwrap()).unwrap();
                cookies.push_back(send(&mut client));
            }
        });
        let stops = Stop(&stop);
        let mut reader = test.connect("database");
        let mut reads_take = |what: &str, wanted: &dyn Fn(Duration) -> bool| {
            for attempt in 1..=ATTEMPTS {
                let mean = read_for(&mut reader, Duration::from_millis(1_500));
                println!("{what}, attempt {attempt}: reads take {mean:?}");
                if wanted(mean) {
                    return;
                }
            }
            panic!("{what}: never in {ATTEMPTS} attempts, {:#?}", pool(&test).goal);
        };
        reads_take("without a goal", &|mean| mean > GOAL * 2);
        assert!(pool(&test).goal.is_none() && tenant(&pool(&test), "backup").hold.is_none());

        let mut config = test.config.clone();
        let settings = config.pools.get_mut("main").unwrap();
        settings.read_response_time = Some(evenkeel_policy::units::Duration::from_millis(GOAL.as_millis() as u64));
        test.server.reload(config.clone()).unwrap();
        reads_take("with a goal of 40 ms", &|mean| mean <= GOAL);

        let state = pool(&test);
        let goal = state.goal.as_ref().unwrap();
        assert_eq!((goal.goal_ms, goal.statistic.as_str()), (40.0, "mean"));
        assert!(goal.decisions.iter().any(|decision| decision.reason == "reads_over_target"), "{goal:#?}");
        let mut seen = None;
        test.wait_for("a hold", |state| {
            seen = tenant(&state.pools[0], "backup").hold;
            seen.is_some()
        });
        let hold = seen.expect("waited for");
        assert!(hold.rest_ms > 0.0 && hold.slots_owner == "response" && hold.because.contains("load"), "{hold:?}");
        assert!(tenant(&state, "database").hold.is_none());

        // Who is never held back is let go at the next decision, and the goal withdrawn leaves nothing behind.
        config.tenants.get_mut("backup").unwrap().standing = evenkeel_policy::config::Standing::Never;
        test.server.reload(config).unwrap();
        test.wait_for("the hold to end", |state| tenant(&state.pools[0], "backup").hold.is_none());
        assert_eq!(tenant(&pool(&test), "backup").standing, "never");
        test.server.reload(test.config.clone()).unwrap();
        assert!(pool(&test).goal.is_none());
        drop(stops);
        writer.join().unwrap();
    });
}
