//! Shares of a limited device, live. Alone in its file, because a light client that gets no processor cannot ask for its share.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_nbd::wire::{Command, CommandFlags};
use evenkeel_policy::config::Engine;
use support::TestServer;

#[test]
fn a_limit_holds_and_a_light_neighbour_gets_its_half() {
    // A pool of 200 IOPS; the heavy tenant always has 32 requests waiting. So slow that the light one may be late by
    // 5 ms with its next request without losing its turn, on a machine that is busy with other things, too. The same
    // at 5,000 IOPS is in docs/performance.md.
    let text = "[pools.main]\nlimit = { iops = 200 }\nadmission = \"none\"\n[tenants.heavy]\n[tenants.light]\n\
        [volumes.heavy]\nbackend = \"memory\"\nsize = \"8MiB\"\n[volumes.light]\nbackend = \"memory\"\nsize = \"8MiB\"\n";
    let mut best = 0.0;
    for attempt in 1..=5 {
        let test = TestServer::start("neighbour", Engine::Auto, text);
        let stop = AtomicBool::new(false);
        let run = Duration::from_secs(4);
        let (heavy, light, took) = std::thread::scope(|scope| {
            let heavy = scope.spawn(|| {
                let mut client = test.connect("heavy");
                let mut cookies: std::collections::VecDeque<_> =
                    (0..32).map(|_| client.send(Command::Read, CommandFlags::NONE, 0, 4096, &[])).collect();
                let mut count = 0;
                while !stop.load(Ordering::Relaxed) {
                    client.wait(cookies.pop_front().unwrap()).unwrap();
                    cookies.push_back(client.send(Command::Read, CommandFlags::NONE, 0, 4096, &[]));
                    count += 1;
                }
                count
            });
            let mut client = test.connect("light");
            let (start, mut count) = (Instant::now(), 0);
            while start.elapsed() < run {
                client.read(0, 4096).unwrap();
                count += 1;
            }
            let took = start.elapsed().as_secs_f64();
            stop.store(true, Ordering::Relaxed);
            (heavy.join().unwrap(), count, took)
        });
        let (total, share) = (f64::from(heavy + light) / took, f64::from(light) / f64::from(heavy + light));
        println!("attempt {attempt}: {total:.0} IOPS in all, the light tenant has {:.1} %", share * 100.0);
        // At most the limit, its burst of 10 ms, and what was outstanding at either end.
        assert!(total * took <= 200.0 * (took + 0.010) + 40.0, "the limit was exceeded: {total}");
        best = f64::max(best, share * (total / 200.0));
        if share >= 0.475 && total >= 196.0 {
            return;
        }
    }
    panic!("the light tenant never got its share: {best:.3} of the pool at best");
}
