//! Rates, shapes and moments of generated workloads.

use evenkeel_control::units::Kind;
use evenkeel_control::{Duration, Instant};
use evenkeel_model::Io;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// What a client sends until `end` to a device that answers each request after `latency`.
pub(super) fn play(spec: &Spec, seed: u64, latency: Duration, end: Instant) -> Vec<(Instant, Io)> {
    let mut workload = Workload::new(spec, seed);
    let mut answers = std::collections::VecDeque::new();
    let mut sent = Vec::new();
    let mut now = Instant::ZERO;
    loop {
        let wake = loop {
            match workload.next(now) {
                Next::Issue(io) => {
                    sent.push((now, io));
                    answers.push_back(now + latency);
                    assert!(sent.len() < 10_000_000, "sends without end at {now:?}");
                }
                Next::At(at) => break at,
                Next::Completion | Next::End => break Instant::FAR_FUTURE,
            }
        };
        assert!(wake > now, "asks to be woken in the past");
        now = wake.min(answers.front().copied().unwrap_or(Instant::FAR_FUTURE));
        if now > end || now == Instant::FAR_FUTURE {
            return sent;
        }
        while answers.front().is_some_and(|&at| at <= now) {
            answers.pop_front();
            workload.complete(now);
        }
    }
}

fn reads() -> Requests {
    Requests::random(Kind::Read, 4096, 1 << 30)
}

#[test]
fn a_closed_loop_keeps_its_depth() {
    let sent = play(&Spec::closed(8, reads()), 1, Duration::from_millis(1), Instant::ZERO + SECOND);
    // 8 at once, then 8 each millisecond.
    assert_eq!(sent.len(), 8 * 1001);
}
