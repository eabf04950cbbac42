//! The rows of `evenkeel top` at a moment of the past, and the p99 of the last minute, from the history.

use std::collections::{BTreeMap, HashMap};

use evenkeel_net::http::Place;
use evenkeel_policy::health::{Health, Level, Trouble};
use evenkeel_policy::history::{Event, EventKind, History, Series, Step};
use evenkeel_policy::moment;
use evenkeel_web::history::Query;

use super::row::{Hold, Row, Sample, Tab, Table};
use crate::history::{fetch_from, open_troubles};

/// Time before the moment whose figures become the histories of rows, in seconds.
const MINUTE_S: u64 = 60;
/// Time before the moment in which its troubles and decisions are looked for, in seconds.
const EVENTS_S: u64 = 3_600;
/// Longest time from the last recorded step to the moment: the newest second may not be recorded yet.
const NEAR_S: u64 = 3;
/// The worst level of a trouble.
const CRITICAL: &str = "critical";
/// Beginning of the reasons of throttles.
const THROTTLED: &str = "throttled_by_";
/// Reason of a change by command, which says nothing about what is in force.
const BY_COMMAND: &str = "changed_by_command";
/// Beginning of the reasons about the limit of one volume; the tenant's own throttle may be another one.
const OF_VOLUME: &str = "volume_";

/// The minute before a moment: figures, and events of the hour before.
pub(super) struct Recalled {
    at: u64,
    figures: History,
    events: Vec<Event>,
}

impl Recalled {
    /// Asks the first of `places` that answers.
    ///
    /// # Errors
    /// When none answers, or the program there records no history.
    pub(super) fn ask(places: &[Place], at: u64) -> anyhow::Result<Self> {
        let to = at + 1;
        let figures = Query { from: at.saturating_sub(MINUTE_S), to, step: Some(1), pool: None, tenant: None };
        // Of the figures those of whole pools will do.
        let events =
            Query { from: at.saturating_sub(EVENTS_S), to, step: Some(600), pool: None, tenant: Some(String::new()) };
        let (figures, events) = (fetch_from(None, places, figures)?, fetch_from(None, places, events)?.events);
        Ok(Self { at, figures, events })
    }

    /// The rows of each step of the minute, oldest first.
    pub(super) fn minute(&self) -> impl Iterator<Item = Vec<Table>> {
        self.figures.steps.iter().map(|step| tables(step, &HashMap::new()))
    }

    /// All rows at the moment, with times of `zone`.
    pub(super) fn sample(&self, zone: impl Fn(i64) -> i64 + Copy) -> Sample {
        let Self { at, figures, events } = self;
        let mut newest: HashMap<(&str, &str), &Event> = HashMap::new();
        let is_decision = |event: &&Event| {
            let reason = event.reason.as_str();
            event.kind == EventKind::Decision && reason != BY_COMMAND && !reason.starts_with(OF_VOLUME)
        };
        for event in events.iter().filter(is_decision).filter(|event| event.at_s <= *at) {
            newest.insert((event.pool.as_str(), event.tenant.as_str()), event);
        }
        let step = figures.steps.iter().rfind(|step| step.at_s <= *at && at - step.at_s < step.seconds + NEAR_S);
        let mut troubles = open(events, *at);
        if step.is_none() {
            let because = figures.gaps.last().map_or("no figures of this time", |gap| gap.because.as_str());
            troubles.insert(0, Trouble::warning("no_record", "", format!("no record: {because}"), ""));
        }
        let empty = Step::default();
        Sample {
            head: vec![
                format!("evenkeel at {} {}", moment::date(*at, zone), moment::time(*at, zone)),
                "from the history".to_owned(),
            ],
            past: troubles,
            tables: tables(step.unwrap_or(&empty), &newest),
            ..Sample::default()
        }
    }
}

/// The troubles that had begun and not ended, worst first.
fn open(events: &[Event], at: u64) -> Vec<Trouble> {
    let open = open_troubles(events.iter().filter(|event| event.at_s <= at));
    let trouble = |event: &Event| {
        let level = if event.level == CRITICAL { Level::Critical } else { Level::Warning };
        Trouble::new(level, &event.reason, event.about.as_str(), event.because.as_str(), "")
    };
    Health::of(open.into_iter().map(trouble).collect()).troubles
}

/// Pools and tenants in a step. `newest`: the newest decision about each, by pool and tenant.
fn tables(step: &Step, newest: &HashMap<(&str, &str), &Event>) -> Vec<Table> {
    let mut rows: BTreeMap<(&str, &str), Row> = BTreeMap::new();
    // The devices of a pool are parts of the whole; those of a tenant are added.
    for series in step.series.iter().filter(|series| !series.tenant.is_empty() || series.device.is_empty()) {
        let key = (series.pool.as_str(), series.tenant.as_str());
        match rows.get_mut(&key) {
            Some(row) => {
                row.iops = row.iops.map(|iops| iops + series.iops);
                row.bytes_per_s = row.bytes_per_s.map(|rate| rate + series.bytes_per_s);
                row.errors = row.errors.map(|errors| errors + series.errors as f64);
            }
            None => drop(rows.insert(key, row(series, newest.get(&key).copied()))),
        }
    }
    let of = |tab: Tab, whole: bool| {
        let rows = rows.iter().filter(|((_, tenant), _)| tenant.is_empty() == whole);
        Table { tab, rows: rows.map(|(_, row)| row.clone()).collect() }
    };
    vec![of(Tab::Pools, true), of(Tab::Tenants, false)]
}

fn row(series: &Series, decision: Option<&Event>) -> Row {
    let (name, of) = match series.tenant.as_str() {
        "" => (&series.pool, String::new()),
        _ => (&series.tenant, series.pool.clone()),
    };
    Row {
        name: name.clone(),
        of,
        tenant: series.tenant.clone(),
        iops: Some(series.iops),
        bytes_per_s: Some(series.bytes_per_s),
        response_ms: series.latency_ms,
        p99_ms: series.p99_ms,
        errors: Some(series.errors as f64),
        hold: decision.and_then(hold),
        why: decision.map_or_else(String::new, |event| event.because.clone()),
        ..Row::default()
    }
}

/// The throttle that a decision is about: `throttled by the operator, 20.0 MB/s: it is at its limit`.
fn hold(event: &Event) -> Option<Hold> {
    let by = event.reason.strip_prefix(THROTTLED)?.to_owned();
    let amount = event.because.split_once(", ").and_then(|(_, rest)| rest.split(": ").next());
    Some(Hold { by, how: amount.unwrap_or_default().to_owned() })
}

#[cfg(test)]
mod tests {
    use evenkeel_policy::history::Gap;

    use super::*;

    /// 2026-11-28T03:00:00Z.
    const AT: u64 = 1_795_834_800;

    fn series(tenant: &str, device: &str, iops: f64) -> Series {
        Series {
            pool: "main".into(),
            tenant: tenant.into(),
            device: device.into(),
            iops,
            p99_ms: Some(3.0),
            errors: 1,
            ..Series::default()
        }
    }

    fn event(ago: u64, kind: EventKind, reason: &str, about: &str) -> Event {
        let because = "throttled by the operator, 4 slots, 5 ms delay: it is noisy".into();
        let of = |name: &str| if kind == EventKind::Decision { name.to_owned() } else { String::new() };
        Event {
            at_s: AT - ago,
            kind,
            pool: of("main"),
            tenant: of("shop"),
            about: about.into(),
            reason: reason.into(),
            because,
            ..Event::default()
        }
    }

    fn recalled(steps: Vec<Step>, events: Vec<Event>) -> Recalled {
        let gap = Gap { from_s: AT - 9, to_s: AT + 1, because: "the server was not running".into() };
        Recalled { at: AT, figures: History { steps, gaps: vec![gap], ..History::default() }, events }
    }

    fn second(ago: u64, series: Vec<Series>) -> Step {
        Step { at_s: AT - ago, seconds: 1, recorded_s: 1, series }
    }

    #[test]
    fn rows_are_those_of_the_last_step_with_throttle_and_reason() {
        let steps = vec![
            second(1, vec![series("shop", "", 1.0)]),
            second(
                0,
                vec![series("", "", 30.0), series("", "sda", 9.0), series("shop", "", 20.0), series("shop", "b", 5.0)],
            ),
        ];
        let events = vec![
            event(50, EventKind::Decision, "released", ""),
            event(40, EventKind::Decision, "throttled_by_operator", ""),
            event(30, EventKind::Decision, "changed_by_command", ""),
            event(20, EventKind::Decision, "volume_at_limit", ""),
        ];
        let recalled = recalled(steps, events);
        let sample = recalled.sample(moment::utc);
        assert_eq!(sample.head[0], "evenkeel at 2026-11-28 03:00:00");
        assert!(sample.past.is_empty(), "{:?}", sample.past);
        let [pools, tenants] = &sample.tables[..] else { panic!("{:?}", sample.tables) };
        assert_eq!((pools.rows.len(), pools.rows[0].iops), (1, Some(30.0)));
        let [shop] = &tenants.rows[..] else { panic!("{:?}", tenants.rows) };
        assert_eq!((shop.iops, shop.errors, shop.p99_ms), (Some(25.0), Some(2.0), Some(3.0)));
        let expected = Hold { by: "operator".into(), how: "4 slots, 5 ms delay".into() };
        assert_eq!((shop.of.as_str(), shop.hold.as_ref()), ("main", Some(&expected)));
        assert_eq!(recalled.minute().map(|tables| tables[1].rows[0].iops).collect::<Vec<_>>(), [Some(1.0), Some(25.0)]);
    }

    #[test]
    fn a_recorded_throttle_of_an_unknown_owner_is_shown_by_its_name() {
        let recorded = event(40, EventKind::Decision, "throttled_by_another", "");
        let expected = Hold { by: "another".into(), how: "4 slots, 5 ms delay".into() };
        assert_eq!(hold(&recorded).as_ref(), Some(&expected));
    }

    #[test]
    fn troubles_are_those_that_had_not_ended_and_a_gap_is_named() {
        use EventKind::{Started, TroubleBegins, TroubleEnds};
        let events = vec![
            event(90, TroubleBegins, "stalled", "pool old"),
            event(80, Started, "server", ""),
            event(70, TroubleBegins, "io_errors", "volume a"),
            event(60, TroubleBegins, "io_errors", "volume b"),
            event(50, TroubleEnds, "io_errors", "volume a"),
        ];
        let sample = recalled(vec![second(10, Vec::new())], events).sample(moment::utc);
        let sentences: Vec<String> = sample.past.iter().map(Trouble::sentence).collect();
        assert_eq!(sentences[0], "no record: the server was not running");
        assert!(sentences.len() == 2 && sentences[1].starts_with("volume b: "), "{sentences:?}");
        assert!(sample.tables.iter().all(|table| table.rows.is_empty()));
    }

    #[test]
    fn a_critical_trouble_is_shown_beside_a_warning_of_its_kind_and_object() {
        let of_level =
            |ago, kind, level: &str| Event { level: level.into(), ..event(ago, kind, "io_errors", "volume a") };
        let levels = |events: &[Event]| open(events, AT).iter().map(|one| one.level).collect::<Vec<Level>>();
        let (begins, ends) = (EventKind::TroubleBegins, EventKind::TroubleEnds);
        let mut events = vec![of_level(90, begins, "critical"), of_level(60, begins, "warning")];
        assert_eq!(levels(&events), [Level::Critical, Level::Warning]);
        events.push(of_level(30, ends, "critical"));
        assert_eq!(levels(&events), [Level::Warning]);
    }

    #[test]
    fn a_trouble_that_goes_on_is_one_and_the_worst_is_first() {
        let begins = |ago, reason, about, level: &str| Event {
            level: level.into(),
            ..event(ago, EventKind::TroubleBegins, reason, about)
        };
        let events = vec![
            begins(3_500, "target_missed", "pool main", "warning"),
            begins(600, "io_errors", "volume a", "critical"),
            begins(500, "target_missed", "pool main", "warning"),
        ];
        let sample = recalled(vec![second(0, Vec::new())], events).sample(moment::utc);
        let of = |one: &Trouble| (one.level, one.kind.clone(), one.about.clone());
        let troubles: Vec<_> = sample.past.iter().map(of).collect();
        let expected = [(Level::Critical, "io_errors", "volume a"), (Level::Warning, "target_missed", "pool main")];
        assert_eq!(troubles, expected.map(|(level, kind, about)| (level, kind.to_owned(), about.to_owned())));
    }
}
