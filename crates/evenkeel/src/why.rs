//! `evenkeel why`: the decisions and reasons that concern a tenant, now or at a time of the past.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Error, bail};
use evenkeel_policy::closest;
use evenkeel_policy::explain::owner_name;
use evenkeel_policy::figures::{count, megabytes, milliseconds, ms, rates};
use evenkeel_policy::health::{Health, Trouble};
use evenkeel_policy::history::{Event, EventKind, History, Series};
use evenkeel_policy::moment;
use evenkeel_policy::state::{State, TotalState, VolumeState};
use evenkeel_policy::verdict::Lately;
use evenkeel_web::history::Query;
use serde::Serialize;

use crate::control::{PATIENCE, Reach, first, is_refusal, whole};
use crate::health::with_cures;
use crate::history::{self, event_text, open_troubles, wrapped, zone};
use crate::output;
use crate::top::{is_used, totals_by_host};

/// Time before the moment from which decisions and troubles are shown, in seconds.
const BEFORE_S: u64 = 3_600;
/// Largest number of starts and stops to show.
const RESTARTS: usize = 6;
/// Time before the moment in which its figures are looked for, in seconds: the newest second may not be recorded yet.
const FIGURES_S: u64 = 5;

/// Arguments of `why`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The tenant; without it, all pools and tenants
    tenant: Option<String>,

    /// A time of the past: 02:40, 2026-11-28T02:40:00Z, -2h
    #[arg(long, value_name = "TIME", default_value = "now", allow_hyphen_values = true)]
    at: String,

    /// Largest number of decisions to show, of the hour before
    #[arg(long, short = 'n', default_value_t = 10, value_name = "N", value_parser = whole::<usize>)]
    count: usize,

    /// Print figures, troubles and decisions as JSON
    #[arg(long)]
    json: bool,

    /// Read the history in this folder (DATA_DIR/history) instead of asking a server or an agent, which need not run
    #[arg(long, value_name = "DIR", conflicts_with_all = ["status", "control", "config", "data_dir"])]
    dir: Option<PathBuf>,

    #[command(flatten)]
    reach: Reach,
}

/// The record of what concerns a tenant at a moment.
#[derive(Debug, Default, Serialize)]
struct Why {
    /// The tenant; `None` for all.
    tenant: Option<String>,
    /// The moment, Unix time in seconds.
    at_s: u64,
    /// Verdicts, throttle and reason of each pool, of a server at present.
    now: Vec<String>,
    /// Troubles at present, worst first, each with its cure; empty for a moment of the past.
    health: Vec<Trouble>,
    /// True if the history has the seconds before the moment, with or without requests.
    is_recorded: bool,
    /// Figures of the last second that is recorded before the moment, by pool.
    figures: Vec<Series>,
    /// Troubles that had not ended, worst first.
    troubles: Vec<Event>,
    /// Starts and stops of the hour before, newest first: a start ends the troubles of before.
    restarts: Vec<Event>,
    /// Decisions of the hour before, newest first.
    decisions: Vec<Event>,
    /// Parts of the history that cannot be read.
    problems: Vec<String>,
}

/// Prints the decisions and reasons that concern a tenant.
///
/// # Errors
/// A time that cannot be read, or a server, an agent or a folder that does not answer.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let now = history::now();
    let is_now = args.at == "now";
    let at = if is_now { now } else { history::moment_of("--at", &args.at, now)? };
    let tenant = args.tenant.as_deref();
    let is_present = is_now && args.dir.is_none();
    let ask = |before: u64, step: u64, tenant: Option<String>| {
        let query = Query { from: at.saturating_sub(before), to: at + 1, step: Some(step), pool: None, tenant };
        let asked = history::fetch(args.dir.as_deref(), &args.reach, query);
        asked.or_else(|error| if is_present { unrecorded(error) } else { Err(error) })
    };
    // Decisions about a pool concern its tenants, and troubles too.
    let past = ask(BEFORE_S, 600, None)?;
    let figures = ask(FIGURES_S, 1, Some(tenant.unwrap_or_default().to_owned()))?;
    let mut why = of(tenant, at, &past, &figures, args.count);
    if is_present {
        let places = args.reach.places()?;
        let (_, text) = first(&places, "/api/v1/state", PATIENCE)?;
        // The state of an agent is another one; its history has the reasons.
        let state = serde_json::from_str::<State>(&text).ok();
        if let Ok((_, text)) = first(&places, "/api/v1/health", PATIENCE)
            && let Ok(Health { troubles, .. }) = serde_json::from_str(&text)
        {
            let mut pools = pools_of(tenant, &past, &figures);
            pools.extend(state.iter().flat_map(|state| pools_at_present(state, tenant)));
            let concerns = |trouble: &Trouble| {
                let is_about = |tenant: &str| is_about(&trouble.about, tenant, &pools);
                let is_of_others = |tenant: &str| {
                    state.as_ref().is_some_and(|state| is_of_others(&trouble.about, tenant, &pools, &state.volumes))
                };
                tenant.is_none_or(|tenant| is_about(tenant) && !is_of_others(tenant))
            };
            why.health = troubles.into_iter().filter(concerns).collect();
        }
        if let Some(state) = &state {
            why.now = present(state, tenant);
            is_known(state, &why)?;
        }
    }
    output::show(args.json, &why, |why| text(why, zone::local))
}

/// The history of a program that answers, but records none or cannot read it: its state has the reasons at present.
fn unrecorded(error: Error) -> anyhow::Result<History> {
    if !is_refusal(&error) {
        return Err(error);
    }
    let problem = error.root_cause().to_string().replace('\n', "; ");
    Ok(History { problems: vec![problem], ..History::default() })
}

/// Fails if neither the server nor the hour before the moment knows the tenant.
fn is_known(state: &State, why: &Why) -> anyhow::Result<()> {
    let Some(name) = why.tenant.as_deref() else { return Ok(()) };
    let known: BTreeSet<&str> =
        state.pools.iter().flat_map(|pool| &pool.tenants).map(|tenant| tenant.name.as_str()).collect();
    let of_figures = why.figures.iter().map(|series| &series.tenant);
    let of_cluster = totals_by_host(state).map(|of| &of.tenant);
    let mut had = of_figures.chain(why.decisions.iter().map(|event| &event.tenant)).chain(of_cluster);
    if known.contains(name) || had.any(|tenant| tenant == name) {
        return Ok(());
    }
    let known: Vec<&str> = known.into_iter().collect();
    match closest(name, &known) {
        Some(close) => bail!("there is no tenant {name:?}; did you mean {close:?}?"),
        None => bail!(
            "there is no tenant {name:?} at this time or in the hour before; `evenkeel tenant list` shows all tenants, and --at TIME looks at another time"
        ),
    }
}

/// The pools in which the history has figures or events of the tenant.
fn pools_of<'h>(tenant: Option<&str>, past: &'h History, figures: &'h History) -> BTreeSet<&'h str> {
    let series = past.steps.iter().chain(&figures.steps).flat_map(|step| &step.series);
    let of_series = series.filter(|series| Some(series.tenant.as_str()) == tenant).map(|series| series.pool.as_str());
    let of_events = past.events.iter().filter(|event| Some(event.tenant.as_str()) == tenant && !event.pool.is_empty());
    of_series.chain(of_events.map(|event| event.pool.as_str())).collect()
}

/// The pools in which a server has a volume, a connection or requests of the tenant.
fn pools_at_present<'s>(state: &'s State, tenant: Option<&str>) -> BTreeSet<&'s str> {
    let mut pools = BTreeSet::new();
    for pool in &state.pools {
        let mut own = pool.tenants.iter().filter(|of| Some(of.name.as_str()) == tenant);
        if own.any(|of| is_used(of, pool, &state.volumes)) {
            pools.insert(pool.name.as_str());
        }
    }
    pools
}

/// True if a trouble with this object concerns a tenant that is in these pools.
fn is_about(about: &str, tenant: &str, pools: &BTreeSet<&str>) -> bool {
    match about.split_once(' ') {
        // An OSD is a pool, and named alone. The history concerns all, as in `evenkeel_history::Filter`.
        None => !about.starts_with("osd.") || pools.contains(about),
        // Of a volume the history does not have the owner. The cluster decides about parts of limits: totals.
        Some(("volume" | "cluster" | "totals", _)) => true,
        // A device may have several.
        Some(("pool", names)) => names.split(", ").any(|name| pools.contains(name)),
        Some(("tenant", of)) => of.strip_prefix(tenant).is_some_and(|of| of.is_empty() || of.starts_with(" in pool ")),
        Some(_) => false,
    }
}

/// True if this is a volume of another tenant, in a pool that is none of these.
fn is_of_others(about: &str, tenant: &str, pools: &BTreeSet<&str>, volumes: &[VolumeState]) -> bool {
    let named = about.strip_prefix("volume ").and_then(|name| volumes.iter().find(|volume| volume.name == name));
    named.is_some_and(|volume| volume.tenant != tenant && !pools.contains(volume.pool.as_str()))
}

/// The record about a tenant, from `past`, the hour before the moment, and `figures`, the last seconds before it.
fn of(tenant: Option<&str>, at_s: u64, past: &History, figures: &History, count: usize) -> Why {
    let pools = pools_of(tenant, past, figures);
    let concerns = |event: &&Event| match tenant {
        None => true,
        Some(tenant) if event.kind == EventKind::Decision => {
            // A reload has no pool, and may have changed any.
            let is_of_pool = event.pool.is_empty() || pools.contains(event.pool.as_str());
            event.tenant == tenant || (event.tenant.is_empty() && is_of_pool)
        }
        Some(tenant) => is_about(&event.about, tenant, &pools),
    };
    let mut troubles = open_troubles(past.events.iter());
    troubles.retain(concerns);
    troubles.sort_by_key(|&event| (event.level != "critical", &event.about, &event.reason, &event.level));
    let decisions = past.events.iter().rev().filter(|event| event.kind == EventKind::Decision).filter(concerns);
    let is_restart = |event: &&Event| matches!(event.kind, EventKind::Started | EventKind::Stopped);
    let restarts = past.events.iter().rev().filter(is_restart);
    let last = figures.steps.iter().rev().find(|step| !step.series.is_empty());
    let problems: BTreeSet<&String> = past.problems.iter().chain(&figures.problems).collect();
    Why {
        tenant: tenant.map(str::to_owned),
        at_s,
        is_recorded: figures.steps.iter().any(|step| step.recorded_s > 0),
        figures: last.map(|step| step.series.clone()).unwrap_or_default(),
        troubles: troubles.into_iter().cloned().collect(),
        restarts: restarts.take(RESTARTS).cloned().collect(),
        decisions: decisions.take(count).cloned().collect(),
        problems: problems.into_iter().cloned().collect(),
        ..Why::default()
    }
}

/// A sentence for each pool of a tenant, or for each pool, and for each volume of them that is at its limit, from the state of
/// a server.
fn present(state: &State, tenant: Option<&str>) -> Vec<String> {
    let mut sentences = Vec::new();
    for pool in &state.pools {
        match tenant {
            None => sentences.extend(pool.lately.as_ref().map(|lately| sentence(&pool.name, lately))),
            Some(name) => {
                let named = pool.tenants.iter().filter(|tenant| tenant.name == name);
                let named = named.filter(|tenant| is_used(tenant, pool, &state.volumes));
                let lately = named.filter_map(|tenant| tenant.lately.as_ref());
                sentences.extend(lately.map(|lately| sentence(&format!("{} {name}", pool.name), lately)));
            }
        }
    }
    let concerns = |volume: &&VolumeState| tenant.is_none_or(|name| volume.tenant == name);
    for volume in state.volumes.iter().filter(concerns) {
        sentences.extend(volume.throttled_by.as_ref().map(|by| format!("{}: {}", volume.pool, by.because)));
    }
    let parts = totals_by_host(state).filter(|of| tenant == Some(of.tenant.as_str()));
    sentences.extend(parts.map(|of| {
        let total = total(state, of).unwrap_or_else(|| "the tenant's total".into());
        format!("{} {}: hosts of the cluster share {total}, {}", of.pool, of.tenant, of.text())
    }));
    sentences
}

/// The limit or reservation that a total is, as text; `None` if the tenant has none on this server, and of a guarantee.
fn total(state: &State, of: &TotalState) -> Option<String> {
    let pool = state.pools.iter().find(|pool| pool.name == of.pool)?;
    let qos = &pool.tenants.iter().find(|tenant| tenant.name == of.tenant)?.qos;
    match of.unit.as_str() {
        "bytes" => qos.limit_bytes_per_s.or(qos.reservation_bytes_per_s).map(|rate| rates(None, Some(rate))),
        "requests" => qos.limit_iops.or(qos.reservation_iops).map(|rate| rates(Some(rate), None)),
        _ => None,
    }
}

fn sentence(about: &str, lately: &Lately) -> String {
    let mut parts: Vec<String> =
        lately.targets.iter().map(|target| format!("{} {}", target.what, target.verdict.word())).collect();
    if let Some(by) = &lately.throttled_by {
        parts.push(format!("throttled by {} to {}", owner_name(&by.by), by.how));
        parts.push(by.because.clone());
    }
    if !lately.because.is_empty() && !parts.contains(&lately.because) {
        parts.push(lately.because.clone());
    }
    if parts.is_empty() {
        parts.push("nothing throttles it".to_owned());
    }
    format!("{about}: {}", parts.join("; "))
}

/// Figures of a tenant or pool in a second, as text.
fn figures(series: &Series) -> String {
    let parts = [series.pool.as_str(), series.tenant.as_str()].into_iter().filter(|part| !part.is_empty());
    let about = parts.collect::<Vec<_>>().join(" ");
    let mut text = format!("{about}: {} IOPS, {} MB/s", count(series.iops), megabytes(series.bytes_per_s));
    for (name, figure) in [("p50", series.p50_ms), ("p99", series.p99_ms)] {
        let _ = figure.map(|figure| write!(text, ", {name} {} ms", ms(figure)));
    }
    for (name, gauge) in [("queued", series.queued), ("in flight", series.in_flight), ("slots", series.slots)] {
        let _ = gauge.map(|gauge| write!(text, ", {} {name}", count(gauge.mean)));
    }
    let _ = series.limit_iops.map(|limit| write!(text, ", limit {} IOPS", count(limit.mean)));
    let _ = series.limit_bytes_per_s.map(|limit| write!(text, ", limit {} MB/s", megabytes(limit.mean)));
    let _ = series.delay_ms.map(|delay| write!(text, ", throttle delay {}", milliseconds(delay.mean)));
    text
}

/// The record as text; times are those of `zone`.
fn text(why: &Why, zone: impl Fn(i64) -> i64 + Copy) -> String {
    let whose = why.tenant.as_ref().map_or_else(|| "all tenants".to_owned(), |tenant| format!("tenant {tenant}"));
    let mut out = format!("{whose} at {}\n", moment::text(why.at_s, zone));
    why.now.iter().for_each(|sentence| out += &wrapped("  ", sentence, 4));
    why.figures.iter().for_each(|series| out += &wrapped("  ", &figures(series), 4));
    if why.figures.is_empty() {
        out += match why.is_recorded {
            true => "  no requests in the seconds before this time\n",
            false => "  nothing is recorded of the seconds before this time\n",
        };
    }
    if !why.health.is_empty() {
        let _ = write!(out, "\ntroubles at present:\n{}", with_cures(&why.health));
    }
    let line = |event: &Event| {
        let head = format!("{} {}  ", moment::date(event.at_s, zone), moment::time(event.at_s, zone));
        wrapped(&head, &event_text(event), 10)
    };
    let (lasting, newest_first) = ("troubles that had not ended", "decisions of the hour before, newest first");
    let restarts = "starts and stops of the hour before; --at shows the troubles before one";
    for (title, events) in [(lasting, &why.troubles), (restarts, &why.restarts), (newest_first, &why.decisions)] {
        if !events.is_empty() {
            let _ = write!(out, "\n{title}:\n{}", events.iter().map(line).collect::<String>());
        }
    }
    if why.decisions.is_empty() {
        out += "\nno decision was recorded in the hour before this time\n";
    }
    why.problems.iter().for_each(|problem| out += &wrapped("\nwarning: ", problem, 2));
    out
}

#[cfg(test)]
mod tests {
    use evenkeel_net::http::StatusCode;
    use evenkeel_policy::health::Level;
    use evenkeel_policy::history::Step;
    use evenkeel_policy::state::{ClusterState, HostPartState, LimitState, PoolState, TenantState, TotalsState};
    use evenkeel_policy::verdict::{Kind, Target, Verdict, at_limit_of_volume};

    use super::*;
    use crate::control::refusal;

    const AT: u64 = 1_795_834_800;

    fn decision(ago: u64, pool: &str, tenant: &str, because: &str) -> Event {
        Event { at_s: AT - ago, pool: pool.into(), tenant: tenant.into(), because: because.into(), ..Event::default() }
    }

    fn trouble(ago: u64, kind: EventKind, about: &str, reason: &str) -> Event {
        let (about, reason) = (about.into(), reason.into());
        Event { at_s: AT - ago, kind, about, reason, because: "it is so".into(), ..Event::default() }
    }

    fn past() -> History {
        let series = |pool: &str, tenant: &str| {
            let (pool, tenant) = (pool.into(), tenant.into());
            Series { pool, tenant, iops: 70.0, ..Series::default() }
        };
        let series = vec![series("main", "shop"), series("fast", "web")];
        let step = Step { at_s: AT - 600, seconds: 600, recorded_s: 600, series };
        let (begins, ends) = (EventKind::TroubleBegins, EventKind::TroubleEnds);
        let events = vec![
            trouble(900, begins, "tenant shop in pool main", "target_missed"),
            trouble(800, begins, "tenant web in pool fast", "target_missed"),
            trouble(700, begins, "pool main", "stalled"),
            trouble(600, ends, "pool main", "stalled"),
            decision(500, "main", "shop", "the oldest"),
            decision(400, "main", "", "of its pool"),
            decision(300, "fast", "", "of another pool"),
            decision(200, "main", "web", "of another tenant"),
            decision(100, "main", "shop", "the newest"),
        ];
        History { steps: vec![step], events, ..History::default() }
    }

    #[test]
    fn decisions_of_a_tenant_and_its_pools_are_shown_newest_first() {
        let past = past();
        let because = |why: &Why| why.decisions.iter().map(|event| event.because.clone()).collect::<Vec<_>>();
        let why = of(Some("shop"), AT, &past, &History::default(), 10);
        assert_eq!(because(&why), ["the newest", "of its pool", "the oldest"]);
        assert_eq!(because(&of(Some("shop"), AT, &past, &History::default(), 1)), ["the newest"]);
        assert_eq!(because(&of(None, AT, &past, &History::default(), 10)).len(), 5);
        let about: Vec<&str> = why.troubles.iter().map(|event| event.about.as_str()).collect();
        assert_eq!(about, ["tenant shop in pool main"], "neither of others nor ended");
        let mut reloaded = past.clone();
        reloaded.events.push(decision(50, "", "", "changed by SIGHUP: configuration: weight from 1 to 2"));
        let newest = of(Some("shop"), AT, &reloaded, &History::default(), 1);
        assert!(because(&newest)[0].starts_with("changed by SIGHUP: "), "{newest:?}");
        let mut restarted = past;
        restarted.events.push(trouble(0, EventKind::Started, "", ""));
        assert!(of(Some("shop"), AT, &restarted, &History::default(), 10).troubles.is_empty());
    }

    #[test]
    fn a_restart_within_the_hour_is_shown_as_it_ends_the_troubles_of_before() {
        let mut restarted = past();
        let event = |ago, kind, because: &str| Event { because: because.into(), ..trouble(ago, kind, "", "server") };
        restarted.events.push(event(30, EventKind::Stopped, "server 1.0"));
        restarted.events.push(event(20, EventKind::Started, "server 1.1"));
        let why = of(Some("shop"), AT, &restarted, &History::default(), 10);
        let kinds: Vec<EventKind> = why.restarts.iter().map(|event| event.kind).collect();
        assert_eq!(kinds, [EventKind::Started, EventKind::Stopped], "newest first, whichever tenant is named");
        assert_eq!(why.decisions.len(), 3, "they are no decisions");
        let text = text(&why, moment::utc);
        let title = "\nstarts and stops of the hour before; --at shows the troubles before one:\n";
        assert!(text.contains(title) && text.contains("started: server 1.1"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        assert!(of(None, AT, &past(), &History::default(), 10).restarts.is_empty());
    }

    #[test]
    fn a_volume_of_another_tenant_in_another_pool_is_none_of_a_tenants_troubles() {
        let volume = |name: &str, tenant: &str, pool: &str| VolumeState {
            name: name.into(),
            tenant: tenant.into(),
            pool: pool.into(),
            ..VolumeState::default()
        };
        let volumes = [volume("a", "shop", "main"), volume("b", "web", "main"), volume("c", "web", "fast")];
        let pools = BTreeSet::from(["main"]);
        let is_of_others = |about: &str| is_of_others(about, "shop", &pools, &volumes);
        assert!(is_of_others("volume c"));
        assert!(!is_of_others("volume a") && !is_of_others("volume b"), "its own, and one on the same device");
        assert!(!is_of_others("volume gone") && !is_of_others("pool fast"), "not known; not a volume");
    }

    #[test]
    fn a_critical_trouble_is_shown_beside_a_warning_of_its_kind_and_object() {
        let begins = |ago, level: &str| Event {
            level: level.into(),
            ..trouble(ago, EventKind::TroubleBegins, "volume db", "io_errors")
        };
        let past = History { events: vec![begins(90, "critical"), begins(60, "warning")], ..History::default() };
        let why = of(None, AT, &past, &History::default(), 10);
        let levels: Vec<&str> = why.troubles.iter().map(|event| event.level.as_str()).collect();
        assert_eq!(levels, ["critical", "warning"]);
    }

    #[test]
    fn the_text_has_figures_troubles_and_decisions_within_80_columns() {
        let mut why = of(Some("shop"), AT, &past(), &past(), 10);
        why.figures.retain(|series| series.tenant == "shop");
        let cure = "lower the guarantees of all tenants until the device can meet them together";
        why.health = vec![Trouble::new(Level::Critical, "io_errors", "volume db", "12 requests failed", cure)];
        let text = text(&why, moment::utc);
        let position = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part:?} in\n{text}"));
        let order = [
            "tenant shop at 2026-11-28T03:00:00Z",
            "main shop: 70",
            "troubles at present:\nCRITICAL: volume db: 12 requests failed\n  what to do: lower the guarantees of all",
            "troubles that had not ended:",
            "trouble, tenant shop in pool main: it is so",
            "decisions of the hour before",
            "02:58:20  main shop: the newest",
            "main: of its pool",
        ];
        assert!(order.map(position).is_sorted(), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let nothing = super::text(&of(Some("x"), AT, &History::default(), &History::default(), 10), moment::utc);
        assert!(nothing.contains("nothing is recorded") && nothing.contains("no decision was recorded"), "{nothing}");
        let silent = Step { at_s: AT - 1, seconds: 1, recorded_s: 1, series: Vec::new() };
        let silent = History { steps: vec![silent], ..History::default() };
        let quiet = super::text(&of(Some("x"), AT, &History::default(), &silent, 10), moment::utc);
        assert!(quiet.contains("no requests in the seconds before"), "{quiet}");
    }

    #[test]
    fn a_present_trouble_concerns_its_tenant_its_pool_and_the_whole_server() {
        let (past, nothing) = (past(), History::default());
        let mut pools = pools_of(Some("shop"), &past, &nothing);
        pools.insert("osd.3");
        for (about, expected) in [
            ("", true),
            ("volume db", true),
            ("pool main", true),
            ("pool fast", false),
            ("pool fast, main", true),
            ("cluster lost", true),
            ("totals of tenants", true),
            ("osd.3", true),
            ("osd.4", false),
            ("history", true),
            ("tenant shop in pool main", true),
            ("tenant shop 2 in pool main", false),
            ("tenant web in pool fast", false),
        ] {
            assert_eq!(is_about(about, "shop", &pools), expected, "{about}");
        }
    }

    #[test]
    fn the_present_is_explained_without_a_history() {
        let body = r#"{"error":{"message":"no history is recorded here","cure":"set server.history"}}"#;
        let refused = refusal(StatusCode::NOT_FOUND, body).context("the history was not read");
        let history = unrecorded(refused).expect("an empty history");
        assert_eq!(history.problems, ["no history is recorded here; what to do: set server.history"]);
        assert!(unrecorded(anyhow::anyhow!("nothing answers")).is_err());
    }

    #[test]
    fn the_worst_trouble_of_the_past_is_the_first() {
        let begins = EventKind::TroubleBegins;
        let stalled = Event { level: "critical".into(), ..trouble(700, begins, "volume web", "io_errors") };
        let events = vec![trouble(900, begins, "pool main", "target_missed"), stalled];
        let why = of(None, AT, &History { events, ..History::default() }, &History::default(), 10);
        let about: Vec<&str> = why.troubles.iter().map(|event| event.about.as_str()).collect();
        assert_eq!(about, ["volume web", "pool main"]);
    }

    #[test]
    fn a_tenant_that_is_named_as_a_word_of_troubles_has_its_own_alone() {
        let begins = EventKind::TroubleBegins;
        let events = vec![
            trouble(900, begins, "tenant shop in pool main", "target_missed"),
            trouble(800, begins, "tenant main in pool fast", "target_missed"),
            trouble(700, begins, "pool other", "stalled"),
        ];
        let past = History { events, ..History::default() };
        for (tenant, expected) in [("main", vec!["tenant main in pool fast"]), ("in", vec![]), ("pool", vec![])] {
            let why = of(Some(tenant), AT, &past, &History::default(), 10);
            let about: Vec<&str> = why.troubles.iter().map(|event| event.about.as_str()).collect();
            assert_eq!(about, expected, "{tenant}");
        }
    }

    #[test]
    fn the_present_has_verdict_throttle_and_reason() {
        let target = Target { what: "p99 < 20 ms".into(), kind: Kind::Latency, verdict: Verdict::Missed };
        let because = "backup writes much".into();
        let lately = Lately { iops: 1.0, targets: vec![target], because, ..Lately::default() };
        let tenant = |name: &str| {
            let lately = Some(lately.clone());
            TenantState { name: name.into(), lately, ..TenantState::default() }
        };
        // Its pools are known without a history.
        let is_about_pool = |state: &State, tenant: &str| {
            let pools = pools_at_present(state, Some(tenant));
            is_about("pool main", tenant, &pools)
        };
        // Tenants without requests and volumes in a pool have no row there.
        let silent = TenantState { lately: Some(Lately::default()), ..tenant("silent") };
        let tenants = vec![tenant("shop"), tenant("web"), silent];
        let pool = PoolState { name: "main".into(), tenants, ..PoolState::default() };
        let mut state = State { pools: vec![pool], ..State::default() };
        assert_eq!(present(&state, Some("shop")), ["main shop: p99 < 20 ms MISSED; backup writes much"]);
        assert!(is_about_pool(&state, "shop") && !is_about_pool(&state, "silent") && !is_about_pool(&state, "none"));
        assert_eq!(present(&state, Some("none")), [""; 0]);
        assert_eq!(present(&state, Some("silent")), [""; 0]);
        let limit = LimitState { iops: Some(100), iops_owner: Some("operator".into()), ..LimitState::default() };
        let throttled_by = at_limit_of_volume("db", &limit);
        let (pool, tenant) = ("main".into(), "shop".into());
        state.volumes = vec![VolumeState { pool, tenant, limit, throttled_by, ..VolumeState::default() }];
        let at_limit = "main: volume db is at its limit of 100 IOPS, set by the operator";
        assert_eq!(present(&state, Some("shop"))[1..], [at_limit]);
        assert_eq!(present(&state, None).last().map(String::as_str), Some(at_limit));
        assert_eq!(present(&state, Some("web")).len(), 1, "of another tenant");
        let of = |name: &str| of(Some(name), AT, &History::default(), &History::default(), 10);
        assert!(is_known(&state, &of("silent")).is_ok());
        let error = is_known(&state, &of("shopp")).expect_err("no such tenant").to_string();
        assert_eq!(error, "there is no tenant \"shopp\"; did you mean \"shop\"?");
        // Totals of a tenant, with the parts of all hosts, whichever serve it.
        let total = |tenant: &str| TotalState {
            pool: "main".into(),
            tenant: tenant.into(),
            unit: "requests".into(),
            hosts: vec![HostPartState { host: "a".into(), part: 0.75 }],
            more_hosts: 1,
            more_part: 0.25,
        };
        let totals = TotalsState { by_host: vec![total("web"), total("far")], ..TotalsState::default() };
        state.cluster = Some(ClusterState { totals: Some(totals), ..ClusterState::default() });
        let unset = "main web: hosts of the cluster share the tenant's total, requests: a 75 %, 1 more 25 %";
        assert_eq!(present(&state, Some("web")).last().map(String::as_str), Some(unset));
        state.pools[0].tenants[1].qos.limit_iops = Some(800);
        let last = |name: &str| present(&state, Some(name)).pop().unwrap_or_default();
        assert_eq!(last("web"), "main web: hosts of the cluster share 800 IOPS, requests: a 75 %, 1 more 25 %");
        let far = "main far: hosts of the cluster share the tenant's total, requests: a 75 %, 1 more 25 %";
        assert_eq!(last("far"), far);
        assert!(is_known(&state, &of("far")).is_ok());
    }
}
