//! The lab of isolation: attacks on a server, beside a light client that has a reservation and must keep its performance.

mod attacker;
mod attacks;
mod counts;
mod light;
mod page;
mod places;
mod stage;
mod wire;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use evenkeel_record::Origin;

use crate::base::build;
use crate::base::client::Client;
use crate::check::figures::{Figures, told};
use crate::check::run::{Lab, Options};
use attacks::{ATTACKS, Attack, BULK, Setting};
use light::{ANEW_LIMIT, Anew, Light};
use page::Row;
use stage::Stage;

pub(super) use attacker::{Options as AttackerOptions, run as attack};

/// Time from the light client's start to the start of the bulk writer.
const WARM_UP: Duration = Duration::from_millis(100);
/// Time from the bulk writer's start until the light client is measured beside it; by then its full queue depth is in flight.
const BULK_RISE: Duration = Duration::from_millis(150);
/// Pause between the end of the bulk writer and the attack.
const PAUSE: Duration = Duration::from_millis(100);
/// Measured time of the light client beside the bulk writer: in a short run, and in a full run.
const REFERENCE: [Duration; 2] = [Duration::from_millis(700), Duration::from_millis(2_000)];
/// Measured time of the light client beside an attack: in a short run, and in a full run.
const MEASURED: [Duration; 2] = [Duration::from_millis(1_200), Duration::from_millis(3_000)];
/// Time for which an attack continues after the measured time, so that its end does not speed up measured requests.
const BEYOND: Duration = Duration::from_millis(150);
/// Longest wait after an attack for replies to the light client's requests; later ones count as never answered.
const SETTLE_LIMIT: Duration = Duration::from_secs(5);

/// Bar: the smallest fraction of its reservation that the light client gets during an attack.
const SHARE_BAR: f64 = 0.95;
/// Bar: the largest p99 latency of the light client during an attack, divided by its p99 beside the bulk writer.
const P99_BAR: f64 = 1.5;
/// Bar: the longest time until a new connection has read, in seconds; less than TCP's time to resend a lost SYN.
const ANEW_BAR_S: f64 = 1.0;
/// Bar: the duration of a short run, in seconds.
const SHORT_BAR_S: f64 = 240.0;
/// Bar: the number of processors that a storm may keep busy.
const STORM_BAR: f64 = 0.1;
/// Limit of every working mechanism for [`SHARE_BAR`]; README.md derives this limit and the following ones.
const SHARE_SURE: f64 = 0.25;
/// Limit of every working mechanism for [`P99_BAR`].
const P99_SURE: f64 = 40.0;
/// Limit of every working mechanism for [`ANEW_BAR_S`], in seconds.
const ANEW_SURE_S: f64 = 5.0;
/// Fraction of the time for which threads had a processor, from which on an attack must get replies.
const RAN: f64 = 0.5;
/// p99 latency up to which [`P99_SURE`] does not apply.
const P99_NEVER_WRONG: Duration = Duration::from_millis(250);

/// An attack in one setting, with its results over all rounds.
struct Trial {
    attack: &'static Attack,
    setting: Setting,
    /// True in the rounds of a full run.
    long: bool,
    figures: Figures,
    /// The first failure; without a failure, the summary of the last round.
    outcome: Result<String>,
    seconds: f64,
}

/// Runs the lab and reports each attack. A full run begins with a short one, which is timed, and then goes through all attacks
/// several times, so that an hour that is worse than the next one meets each attack once, and one that is cut short has medians of
/// fewer rounds.
pub(super) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let (origin, begun) = (options.record.then(|| Origin::now(&build::workspace())).transpose()?, Instant::now());
    let mut stage = Stage::new(&options.binary, options.keep)?;
    let (mut tried, mut short, mut long) = (0, Vec::new(), Vec::new());
    for (number, attack) in ATTACKS.iter().enumerate() {
        if !attack.name.contains(&options.only) {
            continue;
        }
        tried += 1;
        if let Some(reason) = stage.missing(attack) {
            lab.skipped(attack.name, reason)?;
            continue;
        }
        short.push(Trial::new(attack, attacks::once(number), false));
        long.extend(attacks::everywhere(number).into_iter().map(|setting| Trial::new(attack, setting, true)));
    }
    ensure!(tried > 0, "no attack has {:?} in its name", options.only);
    let all = options.only.is_empty();
    if all || !options.full {
        short.iter_mut().for_each(|trial| trial.once(lab, options, &mut stage, [1, 1]));
    }
    let short_s = begun.elapsed().as_secs_f64();
    if all {
        let bar = format!("<= {SHORT_BAR_S:.0} s");
        lab.judge(options, "short_run", &format!("{short_s:.0} s"), &bar, short_s <= SHORT_BAR_S);
    }
    if !options.full {
        return Ok(());
    }
    for round in 1..=options.repeats {
        for trial in &mut long {
            trial.once(lab, options, &mut stage, [round, options.repeats]);
        }
        if let Some(origin) = &origin {
            let rows: Vec<Row> = long.iter().map(Trial::row).collect();
            page::write(origin, &rows, round, [short_s, begun.elapsed().as_secs_f64()])?;
        }
    }
    Ok(())
}

impl Trial {
    fn new(attack: &'static Attack, setting: Setting, long: bool) -> Self {
        let setting = stage::place_of(attack, setting);
        Self { attack, setting, long, figures: Figures::default(), outcome: Ok(String::new()), seconds: 0.0 }
    }

    fn row(&self) -> Row {
        let failure = self.outcome.as_ref().err().map(|_| told(&self.outcome));
        Row::of(self.attack.name, self.setting, failure, &self.figures)
    }

    /// Runs round number `round` of `rounds`. After the last round reports the result.
    fn once(&mut self, lab: &mut Lab, options: &Options, stage: &mut Stage, [round, rounds]: [u64; 2]) {
        let Self { attack, setting, long, figures, outcome, seconds } = self;
        let begun = Instant::now();
        let one = attempt(*long, stage, attack, *setting, figures);
        *seconds += begun.elapsed().as_secs_f64();
        if rounds > 1 {
            println!("lab: round {round} of {rounds}: {}_{setting}: {}", attack.name, told(&one));
        }
        if outcome.is_ok() {
            *outcome = one;
        }
        if round < rounds {
            return;
        }
        for line in if *long == options.full { figures.lines() } else { Vec::new() } {
            println!("lab: figure isolation::{}_{setting}_{line}", attack.name);
        }
        let detail = told(outcome);
        let verdict = figures.judge(rounds, if outcome.is_ok() { Ok(detail) } else { Err(anyhow::anyhow!(detail)) });
        let check = if *long { format!("{}_{setting}", attack.name) } else { attack.name.to_owned() };
        lab.check(&check, verdict.is_ok(), &format!("{setting}, {}, {seconds:.1} s", told(&verdict)));
    }
}

/// Runs one attack beside the light client, `long` as in a full run, and records the light client's figures. Returns a summary.
fn attempt(long: bool, stage: &mut Stage, attack: &Attack, setting: Setting, figures: &mut Figures) -> Result<String> {
    let long = usize::from(long);
    let mut servers = stage.serve(attack, setting)?;
    let address = servers.light_address();
    let light = Light::start(&address, attack.beside_writes)?;
    thread::sleep(WARM_UP);

    let bulk = servers.attack(&BULK, BULK_RISE + REFERENCE[long])?;
    thread::sleep(BULK_RISE);
    let begin = Instant::now();
    thread::sleep(REFERENCE[long]);
    let end = Instant::now();
    bulk.end()?.judge(&BULK, true).context("the bulk writer failed")?;
    light.settle(end, SETTLE_LIMIT);
    let reference = light.window(begin, end)?;
    thread::sleep(PAUSE);
    let quiet = if attack.storm { Some(processors(&servers, REFERENCE[long])?) } else { None };

    let attackers = servers.attack(attack, attack.rise + MEASURED[long] + BEYOND)?;
    let anew = Anew::start(move || {
        let mut client = Client::connect_once(&address, light::EXPORT, ANEW_LIMIT)?;
        client.read(0, &mut [0; 4_096])?;
        client.disconnect()
    });
    let status = servers.status();
    let health = attack.health.then(|| Anew::start(move || stage::ask_health(status, ANEW_LIMIT)));
    let at_first = processors(&servers, attack.rise)?;
    let (begin, before, witness) = (Instant::now(), servers.waits()?, Witness::start());
    let busy = processors(&servers, MEASURED[long])?;
    let end = Instant::now();
    let (slowest, refused) = anew.end();
    let healthz = health.as_ref().map(Anew::end);
    let counts = attackers.end()?;
    light.settle(end, SETTLE_LIMIT);
    servers.is_alive()?;
    let waited = longest_wait(&before, &servers.waits()?).max(witness.end());
    let window = light.window(begin, end)?;
    drop((light, servers.is_alive()?));
    stage.clean(attack, servers)?;

    let had = 1.0 - (waited.as_secs_f64() / begin.elapsed().as_secs_f64()).min(1.0);
    counts.judge(attack, had >= RAN)?;
    figures.at_least("share", window.share, SHARE_SURE * had, SHARE_BAR);
    let sure = if window.p99 > P99_NEVER_WRONG + waited { P99_SURE } else { f64::INFINITY };
    figures.at_most("p99_times", window.p99.as_secs_f64() / reference.p99.as_secs_f64(), sure, P99_BAR);
    figures.aside("p99_ms", window.p99.as_secs_f64() * 1e3);
    figures.aside("bulk_ms", reference.p99.as_secs_f64() * 1e3);
    figures.at_most("connect_s", slowest.as_secs_f64(), ANEW_SURE_S, ANEW_BAR_S);
    if let Some((slowest, _)) = &healthz {
        figures.at_most("healthz_s", slowest.as_secs_f64(), ANEW_SURE_S, ANEW_BAR_S);
    }
    if let Some(quiet) = quiet {
        figures.at_most("processors", busy - quiet, f64::INFINITY, STORM_BAR);
    }
    let at_first = quiet.map_or_else(String::new, |quiet| format!(" ({:.2} more at first)", at_first - quiet));
    let why = refused.or(healthz.and_then(|(_, failed)| failed)).map_or_else(String::new, |why| format!(", {why}"));
    Ok(format!(
        "{:.0} IOPS, p99 {:.1} ms (beside bulk {:.0} IOPS, {:.1} ms), connect {:.0} ms, {busy:.2} processors{at_first}, {:.0} ms without{why}; {counts}",
        window.share * light::IOPS as f64,
        window.p99.as_secs_f64() * 1e3,
        reference.share * light::IOPS as f64,
        reference.p99.as_secs_f64() * 1e3,
        slowest.as_secs_f64() * 1e3,
        waited.as_secs_f64() * 1e3,
    ))
}

/// A thread that only sleeps and measures its delay. A delay shows that the whole machine stood still, which the threads'
/// counters do not show.
struct Witness {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Witness {
    const EVERY: Duration = Duration::from_millis(5);

    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let (mut late, mut last) = (Duration::ZERO, Instant::now());
            while !stopped.load(Ordering::Relaxed) {
                thread::sleep(Self::EVERY);
                late += last.elapsed().saturating_sub(2 * Self::EVERY);
                last = Instant::now();
            }
            late
        });
        Self { stop, thread }
    }

    /// Ends the thread. Returns the sum of its delays beyond a tolerance of one period.
    fn end(self) -> Duration {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

/// Longest time that any thread waited for a processor between two counts, `before` and `after`, of waiting time by thread.
fn longest_wait(before: &BTreeMap<String, Duration>, after: &BTreeMap<String, Duration>) -> Duration {
    let wait = |(thread, wait): (&String, &Duration)| *wait - before.get(thread).copied().unwrap_or_default();
    after.iter().map(wait).max().unwrap_or_default()
}

/// Mean number of processors that the server keeps busy over the next `length`.
fn processors(servers: &stage::Servers, length: Duration) -> Result<f64> {
    let (before, begun) = (servers.processor_s()?, Instant::now());
    thread::sleep(length);
    Ok((servers.processor_s()? - before) / begun.elapsed().as_secs_f64())
}
