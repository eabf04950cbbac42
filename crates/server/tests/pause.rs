//! What a move costs, live. Alone in its file, because a client that gets no processor waits, too.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_policy::config::Engine;
use support::{Client, TestServer};

const TWO_WORKERS: &str = "[server]\nworkers = 2\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"64MiB\"\n";
/// A busy machine may be late at any attempt.
const ATTEMPTS: usize = 5;
/// Connections that move, and as many do not.
const MOVED: usize = 2;
const MOVES: usize = 300;
/// The time after a move in which it would be felt.
const WINDOW: Duration = Duration::from_millis(4);
/// What a move may cost.
const BOUND: Duration = Duration::from_millis(1);

/// The `percent`th percentile.
fn percentile(mut times: Vec<Duration>, percent: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100]
}

/// The median of the slowest requests after each move: of connections that moved, and of others.
fn measure() -> [Duration; 2] {
    let test = TestServer::start("pause", Engine::Auto, TWO_WORKERS);
    // One after the other, so that those that move have the first slots.
    let clients = [test.connect("disk0"), test.connect_tcp("disk0"), test.connect("disk0"), test.connect_tcp("disk0")];
    let stop = AtomicBool::new(false);
    let (moves, requests) = std::thread::scope(|scope| {
        let serve = |mut client: Client| {
            let stop = &stop;
            scope.spawn(move || {
                let mut requests = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    client.read(0, 4096).unwrap();
                    requests.push((begun, begun.elapsed()));
                }
                requests
            })
        };
        let threads = clients.map(serve);
        let moves: Vec<Instant> = (0..MOVES)
            .map(|_| {
                std::thread::sleep(WINDOW);
                test.server.shuffle_first(MOVED);
                Instant::now()
            })
            .collect();
        stop.store(true, Ordering::Relaxed);
        (moves, threads.map(|thread| thread.join().unwrap()))
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

/// Prints what a move costs those that wait for replies, with `--nocapture`.
#[test]
fn a_move_is_hardly_a_pause() {
    let hardly = (1..=ATTEMPTS).any(|attempt| {
        let [moved, unmoved] = measure();
        println!("attempt {attempt}: {moved:?}, without a move {unmoved:?}");
        moved < unmoved + BOUND
    });
    assert!(hardly, "more than {BOUND:?} slower in each of {ATTEMPTS} attempts");
}
