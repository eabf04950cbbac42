//! Measures the volumes of an array over a period, from the kernel's statistics of their disks.
//!
//! The statistics sum the time that requests take, from when the block layer accepts them. By Little's law, this sum divided
//! by the interval is the mean number of requests. At most as many of them as the queue has slots were in flight in the
//! array; the others waited for a slot at this host. If this wait does not count in the statistics
//! ([`Knob::shows_waiting`](crate::sensor::queue::Knob)), only full queues indicate it.

use evenkeel_control::Duration;
use evenkeel_control::slots::Report;

use crate::sensor::diskstats::Sample;

/// A queue counts as full if at least this fraction of its slots is occupied in a sample: samples are too rare to catch the
/// largest number.
const FULL: f64 = 0.9;
/// Requests that are assumed to wait at full queues if waiting does not count in the statistics, as a fraction of the queues'
/// slots.
const TAKEN_TO_WAIT: f64 = 0.25;

/// The slots (requests that may be in flight) of a volume's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueSlots {
    /// Number of slots (requests that may be in flight) of all queues of the volume together.
    pub all: u64,
    /// True if the time that requests wait for a slot counts in the kernel's statistics.
    pub shows_waiting: bool,
}

/// Adds up a volume's samples over a control period.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    length: Duration,
    completed: u64,
    bytes: u64,
    time: Duration,
    /// Number of requests in flight in the array, integrated over the period: requests times seconds.
    in_flight_s: f64,
    /// Number of requests that waited at this host, integrated over the period: requests times seconds.
    waiting_s: f64,
    /// Largest number of requests in flight in any sample of the period.
    most_in_flight: u64,
    /// Number of requests queued, and mean number in flight, in the previous period.
    before: (u64, u64),
}

impl Meter {
    /// Takes in a sample of the volume's disks, whose queues had the slots `queue` in the sample's interval.
    pub fn observe(&mut self, sample: &Sample, queue: QueueSlots) {
        let all = sample.all();
        let seconds = sample.interval.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        // Requests in flight say nothing of their time yet.
        let there = (all.time.as_secs_f64() / seconds).max(sample.in_flight as f64);
        let in_flight = there.min(queue.all as f64);
        self.length = self.length + sample.interval;
        self.completed += all.completed;
        self.bytes = self.bytes.saturating_add(all.bytes);
        self.time = self.time + all.time;
        self.in_flight_s += in_flight * seconds;
        self.waiting_s += if queue.shows_waiting { (there - in_flight) * seconds } else { 0.0 };
        self.most_in_flight = self.most_in_flight.max(sample.in_flight);
    }

    /// Ends the period, and returns the report on everything since the previous call. `queue`: the slots at the end of the
    /// period.
    pub fn end_period(&mut self, queue: QueueSlots) -> Report {
        let seconds = self.length.as_secs_f64();
        let mean = |sum: f64| if seconds > 0.0 { sum / seconds } else { 0.0 };
        let shown = mean(self.waiting_s);
        let full = self.most_in_flight as f64 >= FULL * queue.all as f64 && queue.all > 0;
        let queued = match queue.shows_waiting {
            true => shown.round() as u64,
            false if full => ((TAKEN_TO_WAIT * queue.all as f64) as u64).max(1),
            false => 0,
        };
        let in_flight = mean(self.in_flight_s).round() as u64;
        let rate = mean(self.completed as f64);
        // A request in a queue of constant length has waited half of its time.
        let waited = if rate > 0.0 { shown * shown / rate / 2.0 } else { shown * seconds };
        let (queued_before, in_flight_before) = self.before;
        let arrived = (self.completed + queued + in_flight).saturating_sub(queued_before + in_flight_before);
        let in_flight_time = of_seconds(self.in_flight_s);
        let report = Report {
            length: self.length,
            arrived,
            completed: self.completed,
            bytes: self.bytes,
            queued,
            waited: of_seconds(waited),
            occupied: in_flight_time,
            aside: Duration::ZERO,
            device_time: in_flight_time.min(self.time),
            latency: self.time,
        };
        *self = Self { before: (queued, in_flight), ..Self::default() };
        report
    }
}

fn of_seconds(seconds: f64) -> Duration {
    Duration::from_nanos((seconds * 1e9) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sensor::diskstats::Flow;

    const SHOWN: QueueSlots = QueueSlots { all: 8, shows_waiting: true };
    const HIDDEN: QueueSlots = QueueSlots { all: 8, shows_waiting: false };

    /// A sample of 100 ms with `completed` reads that took `each_ms` each.
    fn sample(completed: u64, each_ms: u64, in_flight: u64) -> Sample {
        let reads = Flow { completed, bytes: completed * 4096, time: Duration::from_millis(completed * each_ms) };
        Sample { interval: Duration::from_millis(100), reads, writes: Flow::default(), in_flight }
    }

    fn period(sample: Sample, queue: QueueSlots) -> Report {
        let mut meter = Meter::default();
        (0..10).for_each(|_| meter.observe(&sample, queue));
        meter.end_period(queue)
    }

    #[test]
    fn more_than_there_are_places_for_wait_at_this_host() {
        // 40 in 100 ms, 50 ms each: 20 are there, 8 in flight, 12 wait.
        let report = period(sample(40, 50, 8), SHOWN);
        assert_eq!((report.completed, report.queued), (400, 12));
        assert!((report.used() - 8.0).abs() < 1e-6, "{report:?}");
        // 8 / 400 per second: 20 ms; 50 ms in all.
        assert!((report.device_latency_s().unwrap_or_default() - 0.02).abs() < 1e-6, "{report:?}");
        assert!((report.latency_s().unwrap_or_default() - 0.05).abs() < 1e-6, "{report:?}");
        // Each waits for 30 ms, those that wait now have waited for half of that: 12 times 15 ms.
        assert!((report.waited.as_secs_f64() - 0.18).abs() < 1e-6, "{report:?}");
        assert_eq!(report.arrived, 400 + 12 + 8);
    }

    #[test]
    fn with_places_for_all_no_request_waits() {
        for queue in [SHOWN, HIDDEN] {
            let report = period(sample(40, 10, 4), queue);
            assert_eq!((report.queued, report.waited), (0, Duration::ZERO));
            let [device_s, all_s] = [report.device_latency_s(), report.latency_s()].map(Option::unwrap_or_default);
            assert!((device_s - all_s).abs() < 1e-9, "{report:?}");
        }
    }

    #[test]
    fn full_queues_count_as_throttling_where_waiting_does_not_show() {
        assert_eq!(period(sample(40, 20, 8), HIDDEN).queued, 2);
        assert_eq!(period(sample(40, 20, 7), HIDDEN).queued, 0);
    }

    #[test]
    fn nothing_done_is_idle_and_nothing_out_is_not() {
        assert!(period(sample(0, 0, 0), SHOWN).is_idle());
        let stuck = period(sample(0, 0, 3), SHOWN);
        assert!(!stuck.is_idle() && stuck.completed == 0, "{stuck:?}");
        assert!(Meter::default().end_period(SHOWN).is_idle());
    }

    #[test]
    fn what_arrives_is_what_leaves_in_the_long_run() {
        let mut meter = Meter::default();
        let arrived: u64 = (0..50)
            .map(|period| {
                let in_flight = 2 + period % 7;
                (0..10).for_each(|_| meter.observe(&sample(10 + period, 10, in_flight), SHOWN));
                meter.end_period(SHOWN).arrived
            })
            .sum();
        let completed: u64 = (0..50).map(|period| 10 * (10 + period)).sum();
        assert!(arrived.abs_diff(completed) <= 30, "{arrived} arrived, {completed} completed");
    }
}
