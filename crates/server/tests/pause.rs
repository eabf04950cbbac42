//! A measurement of the delay that a move of a connection between workers causes its client.
//! `a_connection_that_moves_is_served_in_the_next_round` in `crates/server/src/worker/tests.rs` counts the delay in rounds of
//! a worker, without a clock.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use evenkeel_policy::config::Engine;
use support::{Client, PATIENCE, TestServer};

const TWO_WORKERS: &str = "[server]\nworkers = 2\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";
/// Number of connections that move; the same number does not move.
const MOVED: usize = 2;
const MOVES: usize = 200;
/// Time after a move in which a delayed request counts as the move's effect.
const WINDOW: Duration = Duration::from_millis(4);
/// Largest median delay by a move. The usual delay is some tens of microseconds. A worker that nothing wakes looks for its
/// connections once a second: if a move relied on that, the median would be half a second.
const BOUND: Duration = Duration::from_millis(200);

/// The `percent`th percentile of `times`.
fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

/// Median over the moves of the slowest request after a move: first on connections that moved, second on the others.
fn measure() -> [Duration; 2] {
    let test = TestServer::start("pause", Engine::Auto, TWO_WORKERS);
    // One after the other, so that those that move have the first slots.
    let clients = [test.connect("disk0"), test.connect_tcp("disk0"), test.connect("disk0"), test.connect_tcp("disk0")];
    let stop = AtomicBool::new(false);
    let answered = [const { AtomicUsize::new(0) }; 4];
    let (moves, requests) = std::thread::scope(|scope| {
        let stops = support::Stop(&stop);
        let serve = |(mut client, answered): (Client, _)| {
            let (stop, answered): (_, &AtomicUsize) = (&stop, answered);
            scope.spawn(move || {
                let mut requests = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    client.read(0, 4096).unwrap();
                    requests.push((begun, begun.elapsed()));
                    answered.fetch_add(1, Ordering::Relaxed);
                }
                requests
            })
        };
        let threads: Vec<_> = clients.into_iter().zip(&answered).map(serve).collect();
        let counts = || answered[..MOVED].iter().map(|count| count.load(Ordering::Relaxed)).collect::<Vec<_>>();
        let moves: Vec<Instant> = (0..MOVES)
            .map(|_| {
                std::thread::sleep(WINDOW);
                let before = counts();
                test.server.shuffle_first(MOVED);
                let at = Instant::now();
                // The next move would wake a worker that was to be woken by this one.
                while counts().iter().zip(&before).any(|(now, before)| *now < before + 2) {
                    assert!(at.elapsed() < PATIENCE, "a connection that moved is not served");
                    std::thread::sleep(WINDOW / 8);
                }
                at
            })
            .collect();
        drop(stops);
        (moves, threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>())
    });
    // The slowest request that was under way in the time after a move, for each move.
    let slowest = |requests: &[(Instant, Duration)]| -> Vec<Duration> {
        let within = |at: Instant| {
            let under_way = requests.iter().filter(move |(begun, took)| *begun < at + WINDOW && *begun + *took > at);
            under_way.map(|(_, took)| *took).max()
        };
        moves.iter().filter_map(|&at| within(at)).collect()
    };
    let moved: Vec<Duration> = requests[..MOVED].iter().flat_map(|requests| slowest(requests)).collect();
    let unmoved: Vec<Duration> = requests[MOVED..].iter().flat_map(|requests| slowest(requests)).collect();
    let all = requests[MOVED..].iter().flatten().map(|(_, took)| *took).collect();
    assert!(moved.len() > MOVES && unmoved.len() > MOVES, "{} and {} windows", moved.len(), unmoved.len());
    println!("unmoved connections: 99 % of requests within {:?}", percentile(all, 99));
    for (what, times) in [("moved", &moved), ("unmoved", &unmoved)] {
        let [half, most] = [50, 99].map(|percent| percentile(times.clone(), percent));
        println!("{what}: the slowest request in {WINDOW:?} after a move, median {half:?}, 99th percentile {most:?}");
    }
    [moved, unmoved].map(|times| percentile(times, 50))
}

/// Prints, with `--nocapture`, how long requests take after a move.
#[test]
fn a_connection_that_moves_is_served_without_waiting_for_a_timer() {
    let [moved, unmoved] = measure();
    println!("median {moved:?} on connections that moved, {unmoved:?} on the others");
    assert!(moved < unmoved + BOUND, "{moved:?} on connections that moved, {unmoved:?} on the others");
}
