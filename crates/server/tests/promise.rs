//! A promised throughput, live. Alone in its file, because the machine's own delays count too.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::{Engine, Promise};
use evenkeel_policy::state::TenantState;
use evenkeel_policy::units::{Bytes, Rates};
use support::TestServer;

/// What was promised to one, and is the limit of another.
const RATE: u64 = 2_000_000;
/// The modelled device does nothing for a third of the time.
const DEVICE: &str = "[pools.main]\nadmission = \"none\"\n\
    [pools.main.emulate]\nbandwidth = \"20MB\"\nstall_every = \"700ms\"\nstall_for = \"250ms\"\n\
    [tenants.promised]\npromise = { bytes_per_s = 2_000_000 }\n[tenants.limited]\nlimit = { bytes_per_s = 2_000_000 }\n\
    [volumes.promised]\nbackend = \"emulate\"\nsize = \"8MiB\"\n[volumes.limited]\nbackend = \"emulate\"\nsize = \"8MiB\"\n";
/// A busy machine may be late at any attempt.
const ATTEMPTS: usize = 12;
const ATTEMPT: Duration = Duration::from_secs(4);

fn tenant(test: &TestServer, name: &str) -> TenantState {
    let pool = test.server.state().pools.into_iter().find(|pool| pool.name == "main").unwrap();
    pool.tenants.into_iter().find(|tenant| tenant.name == name).unwrap()
}

/// What each gets, as a part of [`RATE`].
fn parts(test: &TestServer) -> [f64; 2] {
    let written = || ["promised", "limited"].map(|name| tenant(test, name).write_bytes_total);
    let (start, before) = (Instant::now(), written());
    std::thread::sleep(ATTEMPT);
    let after = written();
    let seconds = start.elapsed().as_secs_f64();
    [0, 1].map(|place| (after[place] - before[place]) as f64 / seconds / RATE as f64)
}

/// Tells the writers to stop, also when the test fails: they would be waited for without end.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_promise_is_kept_where_a_limit_loses_it_and_changes_with_a_reload() {
    let test = TestServer::start("promise", Engine::Auto, DEVICE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for name in ["promised", "limited"] {
            let (test, stop) = (&test, &stop);
            scope.spawn(move || {
                let mut client = test.connect(name);
                let payload = vec![7; 16 << 10];
                let send = |client: &mut support::Client| {
                    client.send(Command::Write, CommandFlags::NONE, 0, 16 << 10, &payload)
                };
                let mut cookies: std::collections::VecDeque<_> = (0..16).map(|_| send(&mut client)).collect();
                while !stop.load(Ordering::Relaxed) {
                    client.wait(cookies.pop_front().unwrap()).unwrap();
                    cookies.push_back(send(&mut client));
                }
            });
        }
        let stops = Stop(&stop);
        let attempt = |what: &str, wanted: &dyn Fn([f64; 2]) -> bool| {
            for attempt in 1..=ATTEMPTS {
                let parts = parts(&test);
                println!("{what}, attempt {attempt}: {parts:.3?} of the rate");
                if wanted(parts) {
                    return;
                }
            }
            panic!("{what}: never in {ATTEMPTS} attempts, {:#?}", tenant(&test, "promised").promises);
        };
        attempt("a promise beside a limit", &|[promised, limited]| (0.97..1.03).contains(&promised) && limited < 0.9);
        let seen = tenant(&test, "promised");
        let promise = seen.promises.first().expect("was promised something");
        assert_eq!((promise.unit.as_str(), promise.promised_per_s), ("bytes", RATE));
        assert_eq!(promise.binding, "throughput");
        assert_eq!(seen.limit.bytes_per_s_owner.as_deref(), Some("throughput"));
        assert!(promise.decisions.iter().any(|decision| decision.limit_per_s > RATE), "{promise:#?}");
        assert!(tenant(&test, "limited").promises.is_empty());

        // A reservation wins, and is named.
        let mut config = test.config.clone();
        let rates = |bytes_per_s: u64| Rates { iops: 0, bytes_per_s: Bytes(bytes_per_s) };
        config.tenants.get_mut("promised").unwrap().reservation = rates(2 * RATE);
        test.server.reload(config.clone()).unwrap();
        attempt("a reservation of twice as much", &|[promised, _]| promised > 1.2);
        let binding = tenant(&test, "promised").promises.remove(0);
        assert!(binding.binding == "reservation" && binding.because.contains("reservation"), "{binding:#?}");

        // The smallest limit binds, and is named.
        config.tenants.get_mut("promised").unwrap().reservation = Rates::default();
        config.tenants.get_mut("promised").unwrap().limit = rates(RATE / 2);
        test.server.reload(config.clone()).unwrap();
        attempt("a limit of half as much", &|[promised, _]| promised < 0.55);
        let seen = tenant(&test, "promised");
        assert_eq!(seen.limit.bytes_per_s_owner.as_deref(), Some("operator"));
        assert_eq!(seen.promises[0].binding, "operator");

        // Half the promise, then none.
        config.tenants.get_mut("promised").unwrap().limit = Rates::default();
        config.tenants.get_mut("promised").unwrap().promise.bytes_per_s = Bytes(RATE / 2);
        test.server.reload(config.clone()).unwrap();
        attempt("half the promise", &|[promised, _]| (0.48..0.52).contains(&promised));
        config.tenants.get_mut("promised").unwrap().promise = Promise::default();
        test.server.reload(config.clone()).unwrap();
        let seen = tenant(&test, "promised");
        assert!(seen.promises.is_empty() && seen.limit.bytes_per_s.is_none(), "{seen:#?}");
        attempt("no promise and no limit", &|[promised, _]| promised > 1.5);

        // Of writes alone: who reads meanwhile is not held back.
        config.tenants.get_mut("promised").unwrap().promise.write = rates(RATE);
        test.server.reload(config).unwrap();
        let reads = scope.spawn(|| {
            let mut client = test.connect("promised");
            let mut cookies = std::collections::VecDeque::new();
            let mut flushes = 0;
            while !stop.load(Ordering::Relaxed) {
                cookies.push_back(client.send(Command::Read, CommandFlags::NONE, 0, 16 << 10, &[]));
                if cookies.len() == 16 {
                    client.wait(cookies.pop_front().unwrap()).unwrap();
                    // A flush waits for no write that is held back.
                    client.flush().unwrap();
                    flushes += 1;
                }
            }
            cookies.into_iter().for_each(|cookie| drop(client.wait(cookie).unwrap()));
            flushes
        });
        let read = || tenant(&test, "promised").read_bytes_total;
        let before = std::cell::Cell::new(read());
        attempt("a promise of writes alone", &|[promised, limited]| {
            let now = read();
            let part = (now - before.replace(now)) as f64 / ATTEMPT.as_secs_f64() / RATE as f64;
            println!("reads: {part:.3} of the rate");
            (0.97..1.03).contains(&promised) && limited < 0.9 && part > 1.5
        });
        let seen = tenant(&test, "promised");
        let of: Vec<_> = seen.promises.iter().map(|promise| (promise.of.as_str(), promise.binding.as_str())).collect();
        assert_eq!(of, [("write", "throughput")]);
        assert!(seen.limit.bytes_per_s.is_none(), "nothing limits both together: {seen:#?}");
        stop.store(true, Ordering::Relaxed);
        assert!(reads.join().unwrap() > 10);
        drop(stops);
    });
}
