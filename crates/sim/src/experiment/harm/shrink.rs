//! Shrinks a harmed case to a small scenario that can be run, and be kept as a test once the defect is fixed.
//!
//! Each step removes tenants, simplifies a load or the device, or shortens the counted time. A step is kept if the judge
//! still finds the case harmed. The warm-up is set anew by the judge's rule after each step, so that a controller is not
//! judged by its behaviour before the counted time. The same case gives the same scenario.

use toml::{Table, Value};

use super::judge::{Case, HARM, due, log_ratio, part_of_due};
use super::{Config, MORE_SEEDS, Method, PILOT, counted, judged, parsed};
use crate::experiment::{Digest, Execute};
use evenkeel_control::{Duration, Instant};

/// The most scenarios that are judged to shrink one case; each takes up to 16 runs.
const MOST_JUDGED: u32 = 100;
/// The shortest counted time to which a case is shrunk, in milliseconds.
const LEAST_MS: i64 = 1_000;
/// Keys of the table `device` that are never removed, because they define the device.
const OF_DEVICE: [&str; 4] = ["kind", "preset", "member", "members"];
/// Keys of a workload, in the order in which their removal is tried.
const OF_WORKLOAD: [&str; 6] = ["pattern", "streams", "burst", "arrivals", "read_percent", "size"];

/// The shrunk scenario of a harmed case, with the method as its admission control, a seed, and bounds that the method
/// misses. `None` if a scenario cannot express the method, or if the case is not harmed or cannot be run.
pub fn failure<E>(case: &Case, method: &Method, execute: &mut Execute<'_, E>) -> Option<String> {
    let admission = admission(method.admission)?;
    let mut found = None;
    let text = shrink(&case.scenario, MOST_JUDGED, &mut |text| {
        let text = settled(text, case.seed, execute)?;
        // What cannot be run, as a load that the plainer device does not keep up with, is no case.
        let judged = judged(case.seed, &text, std::slice::from_ref(method), execute).ok()?;
        judged.verdict(0).harmed.then(|| {
            found = Some(judged);
            text
        })
    })?;
    with_bounds(&text, &found?, method, admission, execute)
}

/// The method as the value of a scenario's `admission` key; `None` if a scenario cannot express the method.
fn admission(config: Config) -> Option<Value> {
    let table = |kind: &str, key: &str, value: Value| {
        Value::Table(Table::from_iter([("kind".to_owned(), kind.into()), (key.to_owned(), value)]))
    };
    match config {
        Config::None => Some("none".into()),
        Config::Fixed { budget_bytes } => Some(table("fixed", "budget", i64::try_from(budget_bytes).ok()?.into())),
        Config::Elastic(elastic) => Some(table("elastic", "tolerance", elastic.tolerance.into())),
        Config::SlowFast(config) if config == evenkeel_control::admission::SlowFastConfig::PUBLISHED => {
            Some(table("slowfast", "repairs", "none".into()))
        }
        _ => None,
    }
}

/// The scenario `text` with its warm-up set by the judge's rule, from the request rate of a pilot run; `None` if the text
/// is no valid scenario or its pilot run fails.
fn settled<E>(text: &str, seed: u64, execute: &mut Execute<'_, E>) -> Option<String> {
    let (mut pilot, mut table) = (parsed(text).ok()?, text.parse::<Table>().ok()?);
    for client in &mut pilot.clients {
        client.until = Instant::ZERO + PILOT;
    }
    (pilot.warmup, pilot.duration, pilot.sample_every) = (Duration::ZERO, PILOT, PILOT);
    let warmup = counted(execute("pilot", &[(pilot, seed)]).ok()?[0].requests_per_s);
    set_ms(&mut table, "warmup", i64::try_from(warmup.as_nanos() / 1_000_000).ok()?);
    let text = table.to_string();
    parsed(&text).is_ok().then_some(text)
}

/// The smallest harmed scenario found by judging at most `most` candidates; `None` if `scenario` itself is not harmed.
/// `harmed` judges a text: it returns the judged scenario, or `None` if the text is no valid scenario or is not harmed.
fn shrink(scenario: &str, most: u32, harmed: &mut dyn FnMut(&str) -> Option<String>) -> Option<String> {
    let mut best = harmed(scenario)?;
    let mut left = most;
    loop {
        let before = best.clone();
        // Which step is next; one that succeeds is tried again.
        let mut step = 0;
        while left > 0 {
            let steps = simpler(&best);
            let Some(candidate) = steps.get(step) else { break };
            left -= 1;
            match harmed(candidate) {
                Some(text) => best = text,
                None => step += 1,
            }
        }
        if left == 0 || best == before {
            return Some(best);
        }
    }
}

/// All scenarios that are simpler than `text` by one step. Steps that remove the most come first.
fn simpler(text: &str) -> Vec<String> {
    let Ok(table) = text.parse::<Table>() else { return Vec::new() };
    let mut steps = Vec::new();
    let mut step = |edit: &dyn Fn(&mut Table) -> Option<()>| {
        let mut simpler = table.clone();
        if edit(&mut simpler).is_some() && simpler != table {
            steps.push(simpler.to_string());
        }
    };
    let tenants: Vec<String> = names(&table, "tenants");
    let mut size = tenants.len() / 2;
    while size > 0 {
        for some in tenants.chunks(size) {
            step(&|table| without(table, some));
        }
        size /= 2;
    }
    step(&|table| shorter(table));
    step(&|table| {
        let member = table.get("device")?.get("member")?.clone();
        table.insert("device".to_owned(), member).map(|_| ())
    });
    for place in 0..table.get("client").and_then(Value::as_array).map_or(0, Vec::len) {
        for key in OF_WORKLOAD {
            step(&|table| workload(table, place)?.remove(key).map(|_| ()));
        }
        for op in ["write", "read"] {
            step(&|table| {
                let workload = workload(table, place)?;
                workload.remove("read_percent");
                (workload.insert("op".to_owned(), op.into())?.as_str()? == "mix").then_some(())
            });
        }
        step(&|table| {
            let sizes = workload(table, place)?.get_mut("block_size")?;
            let first = sizes.as_str()?.split_once(',')?.0.split_once(':')?.0.to_owned();
            *sizes = first.into();
            Some(())
        });
        step(&|table| {
            let depth = workload(table, place)?.get_mut("queue_depth")?;
            *depth = (depth.as_integer()? / 2).max(1).into();
            Some(())
        });
    }
    for tenant in &tenants {
        for key in names(table.get("tenants").and_then(Value::as_table).unwrap_or(&Table::new()), tenant) {
            step(&|table| table.get_mut("tenants")?.get_mut(tenant)?.as_table_mut()?.remove(&key).map(|_| ()));
        }
    }
    for key in names(&table, "pool") {
        step(&|table| table.get_mut("pool")?.as_table_mut()?.remove(&key).map(|_| ()));
    }
    for key in names(&table, "device").into_iter().filter(|key| !OF_DEVICE.contains(&key.as_str())) {
        step(&|table| table.get_mut("device")?.as_table_mut()?.remove(&key).map(|_| ()));
    }
    steps
}

/// The keys of the table that `table` has under `key`.
fn names(table: &Table, key: &str) -> Vec<String> {
    table.get(key).and_then(Value::as_table).map_or_else(Vec::new, |table| table.keys().cloned().collect())
}

fn workload(table: &mut Table, place: usize) -> Option<&mut Table> {
    table.get_mut("client")?.get_mut(place)?.get_mut("workload")?.as_table_mut()
}

/// Removes the tenants and their clients from a scenario; `None` if no client would remain.
fn without(table: &mut Table, tenants: &[String]) -> Option<()> {
    let clients = table.get_mut("client")?.as_array_mut()?;
    clients.retain(|client| {
        let tenant = client.get("tenant").and_then(Value::as_str);
        !tenants.iter().any(|left_out| Some(left_out.as_str()) == tenant)
    });
    if clients.is_empty() {
        return None;
    }
    let all = table.get_mut("tenants")?.as_table_mut()?;
    tenants.iter().for_each(|tenant| drop(all.remove(tenant)));
    Some(())
}

/// Halves a scenario's counted time, but not below [`LEAST_MS`].
fn shorter(table: &mut Table) -> Option<()> {
    let now: i64 = table.get("duration")?.as_str()?.strip_suffix("ms")?.parse().ok()?;
    set_ms(table, "duration", (now / 2).max(LEAST_MS.min(now)));
    Some(())
}

fn set_ms(table: &mut Table, key: &str, ms: i64) {
    table.insert(key.to_owned(), format!("{ms}ms").into());
}

/// Excess of the run `with` the method over the bounds of harm, compared with the reference run `none`: the largest
/// natural logarithm of a figure's ratio to its bound. A value above 0 means harm.
fn excess(case: &Case, none: &Digest, with: &Digest) -> f64 {
    let lost = |part: f64| libm::log(HARM.0) - libm::log(part);
    let throughput = lost(with.bytes_per_s / none.bytes_per_s);
    let reserved =
        due(&case.setup, none).into_iter().map(|(place, due)| lost(part_of_due(&case.setup, with, place, due)));
    let late = |place: usize| {
        let (was, is) = (&none.tenants[place].response, &with.tenants[place].response);
        log_ratio(is.p50_ms, was.p50_ms).max(log_ratio(is.p99_ms, was.p99_ms)) - libm::log(HARM.1)
    };
    case.light(none).into_iter().map(late).chain(reserved).fold(throughput, f64::max)
}

/// Makes a scenario that shows the harm: `text` with the method's admission control, the seed whose harm is the median over all
/// seeds with harm, and bounds that a harmless method would meet with that seed. `None` if no seed shows harm, or a run fails.
fn with_bounds<E>(
    text: &str,
    case: &Case,
    method: &Method,
    admission: Value,
    execute: &mut Execute<'_, E>,
) -> Option<String> {
    let runs: Vec<_> =
        (0..MORE_SEEDS).flat_map(|seed| [(case.reference(), seed), (case.with(method.admission), seed)]).collect();
    let digests = execute("bounds", &runs).ok()?;
    let mut shown: Vec<(f64, u64, &Digest)> = (digests.chunks(2).zip(0..))
        .map(|(pair, seed)| (excess(case, &pair[0], &pair[1]), seed, &pair[0]))
        .filter(|(excess, ..)| *excess > 0.0)
        .collect();
    shown.sort_by(|one, other| one.0.total_cmp(&other.0));
    let &(_, seed, none) = shown.get(shown.len() / 2)?;
    let mut table = text.parse::<Table>().ok()?;
    let of = case.reference_name();
    let bound = |metric: String, side: &str, value: f64, why: String| {
        let entries = [("metric", metric.into()), (side, value.into()), ("why", why.into())];
        Value::Table(entries.map(|(key, value): (&str, Value)| (key.to_owned(), value)).into_iter().collect())
    };
    let why = |factor: f64| format!("{factor} of what it is with {of}");
    let least = libm::floor(HARM.0 * none.bytes_per_s);
    let mut bounds = vec![bound("bytes_per_s".to_owned(), "min", least, why(HARM.0))];
    for (place, due) in due(&case.setup, none) {
        let metric = format!("{}.iops", case.setup.tenants[place].name);
        bounds.push(bound(
            metric,
            "min",
            libm::floor(HARM.0 * due * 1e3) / 1e3,
            format!("{} of the rate that is due to the tenant", HARM.0),
        ));
    }
    for place in case.light(none) {
        let (name, response) = (&case.setup.tenants[place].name, &none.tenants[place].response);
        for (metric, ms) in [("p50_ms", response.p50_ms), ("p99_ms", response.p99_ms)] {
            let most = libm::ceil(HARM.1 * ms * 1e4) / 1e4;
            bounds.push(bound(format!("{name}.{metric}"), "max", most, why(HARM.1)));
        }
    }
    let title = format!("Case {} of evenkeel reproduce harm, harmed by admission control {}", case.seed, method.name);
    let description = format!("Shrunk while it stayed harmed, over {MORE_SEEDS} seeds: {}.", case.effect(0));
    table.insert("title".to_owned(), title.into());
    table.insert("description".to_owned(), description.into());
    table.insert("seed".to_owned(), i64::try_from(seed).unwrap_or(0).into());
    let pool = table.entry("pool").or_insert_with(|| Value::Table(Table::new()));
    if let Some(pool) = pool.as_table_mut() {
        let tuning = pool.entry("tuning").or_insert_with(|| Value::Table(Table::new()));
        if let Some(tuning) = tuning.as_table_mut() {
            tuning.insert("admission".to_owned(), admission);
        }
    }
    table.insert("bound".to_owned(), Value::Array(bounds));
    Some(table.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::execute;
    use super::*;
    use crate::scenario::{self, Scenario};
    use crate::world::run_quietly;

    /// A scenario with a store that has a high latency and serves many requests at once; several settings have no part in
    /// the harm and must be removed.
    const PLANTED: &str = "
        duration = '100000ms'
        [device]
        kind = 'store'
        preset = 'hdd'
        iops = 200
        commit_latency = '20ms'
        jitter = 0.1
        stall_every = '5s'
        stall_for = '50ms'
        [tenants.bulk]
        [tenants.other]
        weight = 4
        [tenants.light]
        [[client]]
        tenant = 'bulk'
        workload = { op = 'write', block_size = '4k:1,16k:1', queue_depth = 16, pattern = 'zipf:0.9', size = '16GiB' }
        [[client]]
        tenant = 'other'
        workload = { op = 'mix', read_percent = 30, queue_depth = 8, burst = '1s:1s', size = '16GiB' }
        [[client]]
        tenant = 'light'
        workload = { op = 'read', rate = 4, arrivals = 'poisson', size = '16GiB' }
    ";

    fn scenario(text: &str, set: &[&str]) -> Scenario {
        let set: Vec<String> = set.iter().map(|&set| set.to_owned()).collect();
        let parsed = scenario::parse(text, "failure.toml", &set, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
        parsed.unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).scenario
    }

    fn missed(scenario: &Scenario) -> usize {
        let run = run_quietly(&scenario.setup, scenario.seed).expect("models work");
        scenario.bounds.iter().filter(|bound| !bound.is_met_by(bound.measure(&run))).count()
    }

    fn planted() -> String {
        settled(PLANTED, 7, &mut execute).expect("a scenario")
    }

    #[test]
    fn a_planted_harm_becomes_a_small_scenario_that_shows_it() {
        let tiny = Method { name: "fixed_4k".into(), admission: Config::Fixed { budget_bytes: 4 << 10 } };
        let case = judged(7, &planted(), std::slice::from_ref(&tiny), &mut execute).expect("models work");
        assert!(case.verdict(0).harmed, "{}", case.effect(0));
        let text = failure(&case, &tiny, &mut execute).expect("harmed");
        println!("{text}");

        let small = scenario(&text, &[]);
        assert_eq!((small.setup.tenants.len(), small.setup.clients.len()), (1, 1), "{text}");
        for left_out in ["stall_every", "jitter", "burst", "pattern", "weight", "poisson", "mix"] {
            assert!(!text.contains(left_out), "{left_out} has no part in it:\n{text}");
        }
        assert!(
            small.setup.duration <= Duration::from_secs(13) && small.setup.warmup >= Duration::from_secs(10),
            "{text}"
        );
        assert!(missed(&small) > 0, "{text}");
        assert_eq!(missed(&scenario(&text, &["pool.tuning.admission=none"])), 0, "{text}");
        // What was judged is in the file.
        let again = judged(7, &text, std::slice::from_ref(&tiny), &mut execute).expect("models work");
        assert!(again.verdict(0).harmed, "{}", again.effect(0));
        assert_eq!(failure(&case, &tiny, &mut execute), Some(text), "the same each time");
    }

    #[test]
    fn what_is_not_harmed_has_no_scenario() {
        let none = Method { name: "none".into(), admission: Config::None };
        let case = judged(7, &planted(), std::slice::from_ref(&none), &mut execute).expect("models work");
        assert_eq!(failure(&case, &none, &mut execute), None);
    }

    /// Few judgements suffice to find the harmful part, here the burst of one tenant of 200.
    #[test]
    fn crowds_shrink_by_halves() {
        let mut text = "duration = '8000ms'\n[device]\nkind = 'store'\n".to_owned();
        for number in 0..200 {
            let burst = if number == 77 { ", burst = '1s:1s'" } else { "" };
            text += &format!(
                "[tenants.t{number}]\n[[client]]\ntenant = 't{number}'\nworkload = {{ op = 'read'{burst} }}\n"
            );
        }
        let mut judged = 0;
        let small = shrink(&text, MOST_JUDGED, &mut |text| {
            judged += 1;
            text.contains("burst").then(|| text.to_owned())
        });
        let small = small.unwrap();
        assert_eq!(scenario(&small, &[]).setup.clients.len(), 1, "{small}");
        assert!(small.contains("t77") && small.contains("1000ms"), "{small}");
        assert!(judged <= MOST_JUDGED, "{judged}");
    }
}
