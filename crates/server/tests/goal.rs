//! A goal for the response time of reads, live. Alone in its file, because the machine's own delays count too.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::Engine;
use evenkeel_policy::state::{PoolState, TenantState};
use support::TestServer;

/// What the modelled device gives: 64 writes of 64 KiB at 40 MB/s keep a read waiting for 100 ms.
const DEVICE: &str = "[pools.main]\nadmission = \"none\"\n[pools.main.emulate]\nbandwidth = \"40MB\"\n\
    [tenants.backup]\n[tenants.database]\n\
    [volumes.backup]\nbackend = \"emulate\"\nsize = \"8MiB\"\n[volumes.database]\nbackend = \"emulate\"\nsize = \"8MiB\"\n";
const GOAL: Duration = Duration::from_millis(40);

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

#[test]
fn writers_are_held_back_for_a_goal_that_a_reload_brings_and_takes() {
    let test = TestServer::start("goal", Engine::Auto, DEVICE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let mut client = test.connect("backup");
            let payload = vec![7; 64 << 10];
            let send =
                |client: &mut support::Client| client.send(Command::Write, CommandFlags::NONE, 0, 64 << 10, &payload);
            let mut cookies: std::collections::VecDeque<_> = (0..64).map(|_| send(&mut client)).collect();
            while !stop.load(Ordering::Relaxed) {
                client.wait(cookies.pop_front().unwrap()).unwrap();
                cookies.push_back(send(&mut client));
            }
        });
        let mut reader = test.connect("database");
        let without = read_for(&mut reader, Duration::from_millis(1_500));
        assert!(pool(&test).goal.is_none() && tenant(&pool(&test), "backup").hold.is_none());

        let mut config = test.config.clone();
        let settings = config.pools.get_mut("main").unwrap();
        settings.read_response_time = Some(evenkeel_policy::units::Duration::from_millis(GOAL.as_millis() as u64));
        test.server.reload(config.clone()).unwrap();
        // Held within a few attempts: a busy machine may be late at any of them.
        let mut with = Duration::MAX;
        for attempt in 1..=8 {
            with = read_for(&mut reader, Duration::from_millis(1_500));
            println!("attempt {attempt}: reads take {without:?} without a goal, {with:?} with one of {GOAL:?}");
            if with <= GOAL {
                break;
            }
        }
        assert!(without > GOAL * 2, "there is nothing to hold: {without:?}");
        assert!(with <= GOAL, "{with:?}, {:#?}", pool(&test).goal);

        let state = pool(&test);
        let goal = state.goal.as_ref().unwrap();
        assert_eq!((goal.goal_ms, goal.statistic.as_str()), (40.0, "mean"));
        assert!(goal.decisions.iter().any(|decision| decision.reason == "reads_over_target"), "{goal:#?}");
        let hold = tenant(&state, "backup").hold.expect("the writer is held back");
        assert!(hold.rest_ms > 0.0 && hold.slots_owner == "response" && hold.because.contains("load"), "{hold:?}");
        assert!(tenant(&state, "database").hold.is_none());

        // Who is never held back is let go at the next decision, and the goal withdrawn leaves nothing behind.
        config.tenants.get_mut("backup").unwrap().standing = evenkeel_policy::config::Standing::Never;
        test.server.reload(config).unwrap();
        test.wait_for("the hold to end", |state| tenant(&state.pools[0], "backup").hold.is_none());
        assert_eq!(tenant(&pool(&test), "backup").standing, "never");
        test.server.reload(test.config.clone()).unwrap();
        assert!(pool(&test).goal.is_none());
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
}
