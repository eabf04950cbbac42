//! The choice of events to record: decisions once each; throttles, reasons and troubles at their start, change and end.
//!
//! What changes to and fro within seconds is recorded at its first change. All events together are bounded, so that a tenant
//! at the edge of its limit does not crowd out a month of others.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use evenkeel_history::{Event, Mark};
use evenkeel_policy::decision::DecisionRecord;
use evenkeel_policy::explain;
use evenkeel_policy::health::Trouble;

/// Events per second in the long run, troubles excepted: at 120 bytes each an eighth of the usual bound lasts for 15 hours of
/// the worst case.
const MARKS_PER_S: u64 = 5;
/// Events at once after a quiet time: one for each of hundreds of tenants.
const BURST: u64 = 500;
/// Time without a trouble after which it has ended, in seconds.
const ENDS_AFTER_S: u64 = 10;
/// Time after which a trouble that lasts is recorded again, in seconds: readers of a moment read the hour before it.
const AGAIN_S: u64 = 3_000;
/// Two decisions about the same within this time are one that was read twice, in seconds: control intervals are 0.1 s or more.
const SAME_S: f64 = 0.05;
/// Time for which the newest decision about a subject is remembered, in seconds; the readings overlap by less.
const REMEMBERED_S: f64 = 60.0;

/// Name of the reason of a change by a command, a signal or the hours of the policy.
pub(crate) const BY_COMMAND: &str = "changed_by_command";

/// The subject of a reason that stands until it is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Topic {
    /// The throttle in force.
    Throttle,
    /// The limit of a volume, for which requests wait.
    Volume,
    /// The slots granted.
    Slots,
    /// The budget of admission control.
    Budget,
}

impl Topic {
    /// Shortest time between two records of one subject, in seconds. Reasons for a budget change with each control interval.
    const fn pause_s(self) -> u64 {
        match self {
            Self::Throttle | Self::Volume | Self::Slots => 10,
            Self::Budget => 60,
        }
    }
}

/// A reason in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reason {
    pub(crate) pool: String,
    /// Name of the tenant; empty if the reason is about a pool.
    pub(crate) tenant: String,
    /// Name of the volume; empty if the reason is not about a volume.
    pub(crate) volume: String,
    pub(crate) topic: Topic,
    /// Name of the reason.
    pub(crate) reason: String,
    /// The reason as a sentence.
    pub(crate) sentence: String,
}

/// A change by a command, a signal or the hours of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ByCommand {
    /// Name of the changed pool; empty if the change is not about a pool.
    pub(crate) pool: String,
    /// Name of the changed tenant; empty if the change is not about a tenant.
    pub(crate) tenant: String,
    /// The caller or `schedule`, the object, and the values before and after, as a sentence.
    pub(crate) sentence: String,
}

/// All reasons and troubles at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Held {
    /// Uptime of the program, in seconds: the scale of the decisions.
    pub(crate) uptime_s: f64,
    pub(crate) troubles: Vec<Trouble>,
    /// Changes since the last time.
    pub(crate) changes: Vec<ByCommand>,
    /// Decisions since the last time, and perhaps some from before.
    pub(crate) decisions: Vec<DecisionRecord>,
    pub(crate) reasons: Vec<Reason>,
}

/// A reason as it was recorded last.
struct Known {
    /// The reason; empty after its end.
    reason: String,
    at: u64,
    /// True if it is in force at the present moment.
    lives: bool,
}

/// Level, kind and object of a trouble.
type Key = (&'static str, String, String);

/// A trouble that was recorded and has not ended.
struct Ongoing {
    /// The trouble as it was recorded last.
    trouble: Trouble,
    seen_at: u64,
    /// When it was recorded last.
    marked_at: u64,
    /// Its parts, each with the time at which it was seen last.
    parts: HashMap<String, u64>,
}

/// The troubles by level, kind and object, in their order: those that differ in their part alone are one, with all sentences.
fn whole(troubles: Vec<Trouble>) -> Vec<(Key, Trouble, Vec<String>)> {
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut whole: Vec<(Key, Trouble, Vec<String>)> = Vec::new();
    for mut trouble in troubles {
        let key = (trouble.level.word(), trouble.kind.clone(), trouble.about.clone());
        let part = std::mem::take(&mut trouble.part);
        let Some(&place) = places.get(&key) else {
            places.insert(key.clone(), whole.len());
            whole.push((key, trouble, vec![part]));
            continue;
        };
        let (_, other, parts) = &mut whole[place];
        // Of several without parts the first stands for all.
        if !parts.contains(&part) {
            other.because = format!("{}; {}", other.because, trouble.because);
            parts.push(part);
        }
    }
    whole
}

/// Finds the events between one moment and the next.
#[derive(Default)]
pub(crate) struct Marker {
    /// Troubles that have not ended, by level, kind and object.
    troubles: HashMap<Key, Ongoing>,
    /// Reasons as they were recorded last, by pool, tenant, volume and topic.
    reasons: HashMap<(String, String, String, Topic), Known>,
    /// When the newest recorded decision about a subject was taken, on the scale of the uptime.
    decided: HashMap<(String, String, String), f64>,
    /// Events that may be recorded now, and when that was counted.
    allowed: Option<(u64, u64)>,
    dropped: u64,
}

impl Marker {
    /// The clock was set back to `at`, Unix time in seconds: pauses and ends of troubles are counted from there.
    pub(crate) fn set_back(&mut self, at: u64) {
        self.reasons.values_mut().for_each(|known| known.at = known.at.min(at));
        for ongoing in self.troubles.values_mut() {
            (ongoing.seen_at, ongoing.marked_at) = (ongoing.seen_at.min(at), ongoing.marked_at.min(at));
            ongoing.parts.values_mut().for_each(|seen_at| *seen_at = (*seen_at).min(at));
        }
    }

    /// The events since the last call. `at`: now, Unix time in seconds.
    pub(crate) fn marks(&mut self, at: u64, held: Held) -> Vec<Mark> {
        let mut marks = self.troubles(at, held.troubles);
        marks.extend(held.changes.into_iter().map(|ByCommand { pool, tenant, sentence }| {
            let reason = BY_COMMAND.to_owned();
            Mark { at, event: Event::Decision { pool, tenant, reason, sentence } }
        }));
        let exempt = marks.len();
        self.reasons(at, held.reasons, &mut marks);
        self.decisions(at, held.uptime_s, held.decisions, &mut marks);
        self.bound(at, exempt, &mut marks);
        marks
    }

    fn troubles(&mut self, at: u64, troubles: Vec<Trouble>) -> Vec<Mark> {
        let mark = |begins, at, trouble: &Trouble| {
            let (level, kind) = (trouble.level.word().to_lowercase(), trouble.kind.clone());
            let (about, sentence) = (trouble.about.clone(), trouble.because.clone());
            Mark { at, event: Event::Trouble { begins, level, kind, about, sentence } }
        };
        let mut marks = Vec::new();
        for (key, trouble, parts) in whole(troubles) {
            let parts = parts.into_iter().map(|part| (part, at));
            match self.troubles.entry(key) {
                Entry::Vacant(entry) => {
                    marks.push(mark(true, at, &trouble));
                    entry.insert(Ongoing { trouble, seen_at: at, marked_at: at, parts: parts.collect() });
                }
                Entry::Occupied(mut entry) => {
                    let ongoing = entry.get_mut();
                    let before = std::mem::replace(&mut ongoing.seen_at, at);
                    ongoing.parts.retain(|_, seen_at| before < seen_at.saturating_add(ENDS_AFTER_S));
                    let known = ongoing.parts.len();
                    ongoing.parts.extend(parts);
                    if ongoing.parts.len() > known {
                        // Another error of the same volume, for example: all of them together are recorded anew.
                        marks.push(mark(true, at, &trouble));
                        (ongoing.trouble, ongoing.marked_at) = (trouble, at);
                    } else if at >= ongoing.marked_at.saturating_add(AGAIN_S) {
                        let because = format!("goes on: {}", trouble.because);
                        marks.push(mark(true, at, &Trouble { because, ..trouble.clone() }));
                        (ongoing.trouble, ongoing.marked_at) = (trouble, at);
                    }
                }
            }
        }
        self.troubles.retain(|_, Ongoing { trouble, seen_at, .. }| {
            let ended = at >= seen_at.saturating_add(ENDS_AFTER_S);
            marks.extend(ended.then(|| mark(false, *seen_at, trouble)));
            !ended
        });
        marks
    }

    fn reasons(&mut self, at: u64, reasons: Vec<Reason>, marks: &mut Vec<Mark>) {
        let mark = |pool: &str, tenant: &str, reason: &str, sentence: String| {
            let (pool, tenant, reason) = (pool.to_owned(), tenant.to_owned(), reason.to_owned());
            Mark { at, event: Event::Decision { pool, tenant, reason, sentence } }
        };
        self.reasons.values_mut().for_each(|known| known.lives = false);
        for Reason { pool, tenant, volume, topic, reason, sentence } in reasons {
            let known = self.reasons.entry((pool, tenant, volume, topic));
            let (pool, tenant, ..) = known.key().clone();
            let known = known.or_insert_with(|| Known { reason: String::new(), at: 0, lives: true });
            known.lives = true;
            if known.reason != reason && at >= known.at.saturating_add(topic.pause_s()) {
                marks.push(mark(&pool, &tenant, &reason, sentence));
                (known.reason, known.at) = (reason, at);
            }
        }
        self.reasons.retain(|(pool, tenant, volume, topic), known| {
            let ends = !known.lives && !known.reason.is_empty() && at >= known.at.saturating_add(topic.pause_s());
            if ends && *topic == Topic::Throttle {
                marks.push(mark(pool, tenant, "released", explain::RELEASED.to_owned()));
            }
            if ends && *topic == Topic::Volume {
                let sentence = format!("volume {volume} is {}", explain::RELEASED);
                marks.push(mark(pool, tenant, "volume_released", sentence));
            }
            // A throttle that begins again at once is another one after the pause only.
            if ends {
                (known.reason, known.at) = (String::new(), at);
            }
            known.lives || !known.reason.is_empty() || at < known.at.saturating_add(topic.pause_s())
        });
    }

    fn decisions(&mut self, at: u64, uptime_s: f64, mut decisions: Vec<DecisionRecord>, marks: &mut Vec<Mark>) {
        decisions.sort_by(|a, b| a.from_s.total_cmp(&b.from_s));
        for decision in decisions {
            let DecisionRecord { pool, tenant, of, from_s, reason, because: sentence, .. } = decision;
            let newest = self.decided.entry((pool.clone(), tenant.clone(), of.clone())).or_insert(f64::NEG_INFINITY);
            if from_s <= *newest + SAME_S {
                continue;
            }
            *newest = from_s;
            let taken = at.saturating_sub((uptime_s - from_s).max(0.0).round() as u64);
            let tenant = if tenant.is_empty() { of } else { tenant };
            marks.push(Mark { at: taken, event: Event::Decision { pool, tenant, reason, sentence } });
        }
        self.decided.retain(|_, newest| *newest > uptime_s - REMEMBERED_S);
    }

    /// Drops the events beyond the bound, but none of the first `exempt` ones; the next ones that are recorded say how many.
    fn bound(&mut self, at: u64, exempt: usize, marks: &mut Vec<Mark>) {
        let (allowed, then) = self.allowed.unwrap_or((BURST, at));
        let allowed = BURST.min(allowed + at.saturating_sub(then) * MARKS_PER_S);
        let wanted = (marks.len() - exempt) as u64;
        let taken = wanted.min(allowed);
        self.allowed = Some((allowed - taken, at));
        marks.truncate(exempt + taken as usize);
        self.dropped += wanted - taken;
        if self.dropped > 0 && taken == wanted {
            let (pool, tenant, reason) = (String::new(), String::new(), "not_recorded".to_owned());
            let sentence = explain::not_recorded(std::mem::take(&mut self.dropped));
            marks.push(Mark { at, event: Event::Decision { pool, tenant, reason, sentence } });
        }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::health::Level;

    use super::*;

    fn throttle(reason: &str) -> Held {
        let (pool, tenant, reason) = ("main".into(), "backup".into(), reason.to_owned());
        let (volume, sentence) = (String::new(), format!("by {reason}"));
        let reasons = Reason { pool, tenant, volume, topic: Topic::Throttle, sentence, reason };
        Held { reasons: vec![reasons], ..Held::default() }
    }

    fn names(marks: &[Mark]) -> Vec<(u64, String)> {
        let of = |mark: &Mark| match &mark.event {
            Event::Decision { reason, .. } => (mark.at, reason.clone()),
            Event::Trouble { begins, kind, .. } => (mark.at, format!("{kind} {begins}")),
            Event::Program { name, .. } => (mark.at, name.clone()),
        };
        marks.iter().map(of).collect()
    }

    #[test]
    fn each_change_by_command_is_recorded_however_much_else_is() {
        let mut marker = Marker::default();
        let change = |n: u64| ByCommand {
            pool: String::new(),
            tenant: "shop".into(),
            sentence: format!("changed by uid 1000: tenant shop: weight from {n} to {}", n + 1),
        };
        for second in 0..1_000 {
            let mut held = throttle(&second.to_string());
            held.changes = vec![change(second)];
            let marks = marker.marks(second, held);
            let expected = Event::Decision {
                pool: String::new(),
                tenant: "shop".into(),
                reason: BY_COMMAND.into(),
                sentence: change(second).sentence,
            };
            assert!(marks.contains(&Mark { at: second, event: expected }), "{marks:?}");
        }
    }

    #[test]
    fn a_throttle_is_recorded_at_its_begin_change_and_end() {
        let mut marker = Marker::default();
        let mut all = Vec::new();
        for at in 100..200 {
            let held = match at {
                100..120 => throttle("latency"),
                120..140 => throttle("operator"),
                // Back for moments: not recorded.
                _ if at % 7 == 0 && at < 160 => throttle("operator"),
                _ => Held::default(),
            };
            all.extend(marker.marks(at, held));
        }
        let expected = [(100, "latency"), (120, "operator"), (141, "released"), (154, "operator"), (164, "released")];
        assert_eq!(names(&all), expected.map(|(at, reason)| (at, reason.to_owned())));
        assert!(marker.reasons.is_empty(), "it is forgotten");
    }

    #[test]
    fn a_throttle_is_recorded_after_the_clock_was_set_back() {
        let mut marker = Marker::default();
        marker.marks(1_000_000, throttle("latency"));
        marker.set_back(100);
        assert_eq!(names(&marker.marks(120, throttle("operator"))), [(120, "operator".to_owned())]);
    }

    #[test]
    fn each_volume_of_a_tenant_has_its_own_throttle() {
        let mut marker = Marker::default();
        let at_limit = |volume: &str| Reason {
            pool: "main".into(),
            tenant: "shop".into(),
            volume: volume.into(),
            topic: Topic::Volume,
            reason: "volume_at_limit".into(),
            sentence: format!("volume {volume} is at its limit"),
        };
        let mut sentences = Vec::new();
        for at in 100..130 {
            let reasons = if at < 110 { vec![at_limit("a"), at_limit("b")] } else { vec![at_limit("b")] };
            for mark in marker.marks(at, Held { reasons, ..Held::default() }) {
                let Event::Decision { reason, sentence, .. } = mark.event else { panic!("no decision") };
                sentences.push((mark.at, reason, sentence));
            }
        }
        let expected = [
            (100, "volume_at_limit", "volume a is at its limit"),
            (100, "volume_at_limit", "volume b is at its limit"),
            (110, "volume_released", "volume a is no longer throttled"),
        ];
        assert_eq!(sentences, expected.map(|(at, reason, sentence)| (at, reason.to_owned(), sentence.to_owned())));
    }

    #[test]
    fn a_trouble_ends_when_it_has_not_been_seen_for_ten_seconds() {
        let mut marker = Marker::default();
        let trouble = || Trouble::new(Level::Critical, "io_errors", "volume db", "requests fail", "make room");
        let mut all = Vec::new();
        for at in 100..160 {
            let troubles = if at < 130 && at % 3 == 0 { vec![trouble()] } else { Vec::new() };
            all.extend(marker.marks(at, Held { troubles, ..Held::default() }));
        }
        assert_eq!(names(&all), [(102, "io_errors true".into()), (129, "io_errors false".into())]);
    }

    #[test]
    fn a_second_error_of_a_volume_is_recorded_beside_the_first() {
        let mut marker = Marker::default();
        let failed = |part: &str, at: u64| {
            let because = format!("{part} for {at} s");
            Trouble::new(Level::Critical, "io_errors", "volume db", because, "make room").of_part(part)
        };
        let mut sentences = Vec::new();
        for at in 100..200 {
            let troubles = match at {
                100..110 => vec![failed("EIO", at)],
                // The newest error is the first.
                110..150 => vec![failed("ENOSPC", at), failed("EIO", at)],
                150..170 => vec![failed("ENOSPC", at)],
                170..180 => vec![failed("EIO", at), failed("ENOSPC", at)],
                _ => Vec::new(),
            };
            for mark in marker.marks(at, Held { troubles, ..Held::default() }) {
                let Event::Trouble { begins, sentence, .. } = mark.event else { panic!("no trouble") };
                sentences.push((mark.at, begins, sentence));
            }
        }
        let expected = [
            (100, true, "EIO for 100 s"),
            (110, true, "ENOSPC for 110 s; EIO for 110 s"),
            (170, true, "EIO for 170 s; ENOSPC for 170 s"),
            (179, false, "EIO for 170 s; ENOSPC for 170 s"),
        ];
        assert_eq!(sentences, expected.map(|(at, begins, sentence)| (at, begins, sentence.to_owned())));
    }

    #[test]
    fn a_trouble_that_lasts_is_recorded_again_within_the_hour() {
        let mut marker = Marker::default();
        let mut all = Vec::new();
        for at in 0..=2 * AGAIN_S {
            let because = format!("requests fail for {at} s");
            let troubles = vec![Trouble::new(Level::Critical, "io_errors", "volume db", because, "make room")];
            all.extend(marker.marks(at, Held { troubles, ..Held::default() }));
        }
        let begins = [0, AGAIN_S, 2 * AGAIN_S].map(|at| (at, "io_errors true".to_owned()));
        assert_eq!(names(&all), begins);
        let Event::Trouble { sentence, .. } = &all[1].event else { panic!("{all:?}") };
        assert_eq!(*sentence, format!("goes on: requests fail for {AGAIN_S} s"));
    }

    #[test]
    fn a_decision_is_recorded_once_at_its_time() {
        let mut marker = Marker::default();
        let decision = |from_s: f64| DecisionRecord {
            pool: "main".into(),
            from_s,
            reason: "reads_over_target".into(),
            ..DecisionRecord::default()
        };
        let mut all = Vec::new();
        for second in 0..5_u64 {
            let decisions = vec![decision(1.4), decision(2.9)].into_iter();
            // Their times are read a little differently each time.
            let decisions = decisions.map(|one| DecisionRecord { from_s: one.from_s + second as f64 * 1e-3, ..one });
            let uptime_s = second as f64;
            let decisions = decisions.filter(|one| one.from_s < uptime_s).collect();
            all.extend(marker.marks(1_000 + second, Held { uptime_s, decisions, ..Held::default() }));
        }
        assert_eq!(names(&all), [1_001, 1_003].map(|at| (at, "reads_over_target".to_owned())));
    }

    #[test]
    fn events_are_bounded_and_their_loss_is_recorded() {
        let mut marker = Marker::default();
        let many = |at: u64| {
            let reasons = |tenant: u64| Reason {
                pool: "main".into(),
                tenant: format!("t{tenant}"),
                volume: String::new(),
                topic: Topic::Throttle,
                reason: format!("at {}", at / 10),
                sentence: String::new(),
            };
            Held { reasons: (0..1_000).map(reasons).collect(), ..Held::default() }
        };
        let counts: Vec<usize> = (100..200).map(|at| marker.marks(at, many(at)).len()).collect();
        assert_eq!((counts[0], counts[10]), (BURST as usize, 10 * MARKS_PER_S as usize));
        // All throttles end.
        marker.marks(400, Held::default());
        let silent = marker.marks(401, Held::default());
        assert!(names(&silent).iter().any(|(_, reason)| reason == "not_recorded"), "{silent:?}");
    }
}
