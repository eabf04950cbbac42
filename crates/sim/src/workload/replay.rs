//! Replay of recorded requests.

use evenkeel_control::{Duration, Instant};

use super::Next;
use super::spec::Replay;

/// A running [`Replay`].
#[derive(Debug)]
pub(super) struct Player {
    replay: Replay,
    period: Duration,
    /// Instant at which the current repetition began.
    since: Instant,
    /// Number of repetitions that have ended.
    round: u32,
    /// Index of the next request in the recording.
    position: usize,
}

impl Player {
    pub(super) fn new(replay: &Replay) -> Self {
        let period = replay.trace.period();
        Self { replay: replay.clone(), period, since: Instant::ZERO, round: 0, position: 0 }
    }

    /// Starts the replay, or starts it again, at `now`.
    pub(super) fn enter(&mut self, now: Instant) {
        self.since = now;
        self.round = 0;
        self.position = 0;
    }

    pub(super) fn next(&mut self, now: Instant, outstanding: u32) -> Next {
        let records = self.replay.trace.records();
        if self.position == records.len() {
            // What takes no time cannot be repeated at its own pace.
            let timeless = self.replay.queue_depth.is_none() && self.period == Duration::ZERO;
            let last = self.replay.times > 0 && self.round + 1 >= self.replay.times;
            if last || timeless {
                return Next::End;
            }
            self.round = self.round.saturating_add(1);
            self.since += self.period;
            self.position = 0;
        }
        let Some(record) = records.get(self.position) else { return Next::End };
        match self.replay.queue_depth {
            Some(queue_depth) if outstanding >= queue_depth => return Next::Completion,
            Some(_) => {}
            None => {
                let due = self.since + record.at.since(Instant::ZERO);
                if due > now {
                    return Next::At(due);
                }
            }
        }
        self.position += 1;
        Next::Issue(record.io())
    }
}
