//! Where requests wait: in front of the device, where they can be reordered, or inside it.
//!
//! One server, one emulated device for each setting. A bulk writer keeps 4 MiB in flight;
//! a light client with the higher priority writes 4 KiB at a time. mClock would let the
//! light one go first, but can reorder only what has not entered the device yet: what is
//! inside is decided by admission.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use evenkeel_load::JobResult;
use evenkeel_model::store::StoreParams;
use evenkeel_policy::Config;
use evenkeel_server::{Server, Start};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::phase::{self, Bulk, Phase, phases};
use super::{picture, svg};
use crate::output;

/// Options of `evenkeel demo bufferbloat`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Seconds to measure each setting
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Settings to measure: none, 64K, 256K, 1M, 4M, 64M, slowfast, elastic [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = setting)]
    settings: Vec<&'static str>,
    /// Speeds of the device, one after the other while the settings stay as they are: 1,0.4,2.5 slows it down to
    /// 40 % after the first measurement and makes it 2.5 times as fast after the second
    #[arg(long, value_name = "FACTOR,...", value_delimiter = ',', default_value = "1", value_parser = phase::speed)]
    speeds: Vec<f64>,
    /// What the bulk writer sends, one after the other as the speeds do: 64Kx64,256Kx32,4Kx512 changes from 64
    /// writes of 64 KiB in flight to 32 of 256 KiB, then to 512 of 4 KiB. The shorter list stays at its last value
    #[arg(long, value_name = "SIZExDEPTH,...", value_delimiter = ',', default_value = "64Kx64", value_parser = phase::bulk)]
    bulk: Vec<Bulk>,
    /// Print the result as one JSON document
    #[arg(long)]
    json: bool,
    /// Also write the result as an HTML page with a plot
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also write the result as a picture: p99 of the light client and throughput of the bulk writer as bars
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// A way to bound what is inside the device.
struct Setting {
    /// As shown.
    name: &'static str,
    /// As configured.
    admission: &'static str,
    /// Until it has found its operating point.
    warmup_s: u32,
}

const SETTINGS: [Setting; 8] = [
    Setting { name: "none", admission: "\"none\"", warmup_s: 1 },
    Setting { name: "64K", admission: "{ kind = \"fixed\", budget = \"64KiB\" }", warmup_s: 1 },
    Setting { name: "256K", admission: "{ kind = \"fixed\", budget = \"256KiB\" }", warmup_s: 1 },
    Setting { name: "1M", admission: "{ kind = \"fixed\", budget = \"1MiB\" }", warmup_s: 1 },
    Setting { name: "4M", admission: "{ kind = \"fixed\", budget = \"4MiB\" }", warmup_s: 1 },
    Setting { name: "64M", admission: "{ kind = \"fixed\", budget = \"64MiB\" }", warmup_s: 1 },
    Setting { name: "slowfast", admission: "\"slowfast\"", warmup_s: 8 },
    Setting { name: "elastic", admission: "\"elastic\"", warmup_s: 4 },
];

fn setting(name: &str) -> Result<&'static str, String> {
    let known = SETTINGS.iter().find(|setting| setting.name == name).map(|setting| setting.name);
    known.ok_or_else(|| {
        let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
        format!("it is one of {}", names.join(", "))
    })
}

/// Until an adaptive setting has found its operating point after a change of the device or the load.
const SETTLE_S: u32 = 3;

impl Args {
    /// Seconds before the measurement of the `phase`th phase.
    fn warmup_s(setting: &Setting, phase: usize) -> u32 {
        if phase == 0 { setting.warmup_s } else { SETTLE_S }
    }

    fn settings(&self) -> Vec<&'static Setting> {
        let wanted = |setting: &&Setting| self.settings.is_empty() || self.settings.contains(&setting.name);
        SETTINGS.iter().filter(wanted).collect()
    }
}

/// The device, in its own words: a batching store with a deep buffer.
const DEVICE: &str = "emulate = { preset = \"ssd\" }";

/// The same device, `speed` times as fast in all it does.
fn device(speed: f64) -> StoreParams {
    StoreParams::ssd().scaled(speed)
}

/// What the clients saw under one setting.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    /// Name of the setting.
    pub(super) setting: &'static str,
    /// Speed of the device.
    pub(super) speed: f64,
    /// What the bulk writer kept in flight.
    pub(super) bulk: Bulk,
    /// Bytes that the setting let into the device at the end; absent without a bound.
    pub(super) budget_bytes: Option<u64>,
    /// Light client, one request at a time: median latency.
    pub(super) light_p50_ms: f64,
    /// The same, 99th percentile.
    pub(super) light_p99_ms: f64,
    /// Light client, bursts of 8 requests at a time: 99th percentile.
    pub(super) burst_p99_ms: f64,
    /// Throughput of the bulk writer.
    pub(super) bulk_bytes_per_s: f64,
}

impl Measured {
    fn phase(&self) -> Phase {
        Phase { speed: self.speed, bulk: self.bulk }
    }

    /// What was measured: the setting, the speed of the device and the bulk writer unless they are the usual ones.
    pub(super) fn label(&self) -> String {
        let mut label = self.setting.to_string();
        if self.speed != 1.0 {
            label += &format!(" x{}", self.speed);
        }
        if self.bulk != Bulk::USUAL {
            label += &format!(" {}", self.bulk);
        }
        label
    }
}

/// Measures every setting and prints table and picture.
///
/// # Errors
/// What kept the server or its clients from running.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch interrupts")?;
    }
    let folder = Folder::create()?;
    let config = Config::parse(&config(folder.path()), "the demonstration's configuration")?;
    let server = Server::start(config, Start { seed: 1, ..Start::default() })?;
    let progress = progress(args);
    let mut measured = Vec::new();
    let (settings, phases) = (args.settings(), phases(&args.speeds, &args.bulk));
    'settings: for (index, setting) in settings.iter().enumerate() {
        for (index_of_phase, &phase) in phases.iter().enumerate() {
            progress.set_message(format!("{} of {}: admission {}", index + 1, settings.len(), setting.name));
            if phase.speed != 1.0 || index_of_phase > 0 {
                server.set_emulate(&format!("p-{}", setting.name), device(phase.speed))?;
            }
            let warmup = Args::warmup_s(setting, index_of_phase);
            let jobs = jobs(folder.path(), setting, phase.bulk, warmup, args.seconds);
            let result = measure(&server, setting, phase, &jobs, &stop, &progress);
            if stop.load(Ordering::Relaxed) {
                break 'settings;
            }
            measured.push(result.with_context(|| format!("admission {}", setting.name))?);
        }
    }
    progress.finish_and_clear();
    server.shutdown()?;
    if measured.is_empty() {
        bail!("interrupted before the first setting was measured");
    }
    if let Some(path) = &args.html {
        std::fs::write(path, picture::html(&measured, &conclusions(&measured)))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.svg {
        std::fs::write(path, svg::svg(&measured, &output::command()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let text = if args.json {
        serde_json::to_string_pretty(&serde_json::json!({ "device": DEVICE, "settings": measured }))? + "\n"
    } else {
        picture::text(&measured) + "\n" + &conclusions(&measured)
    };
    // A pipe that is closed early (head, less) is no failure of the demonstration.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}

/// One pool with its own device for each setting; on each, a volume for the bulk writer and one for the light client.
fn config(folder: &Path) -> String {
    let folder = folder.display();
    let mut text = format!(
        "[server]\nlisten = []\nunix = [\"{folder}/nbd.sock\"]\nstatus = \"off\"\ncontrol = \"{folder}/control.sock\"\n\
         data_dir = \"{folder}\"\n\
         [tenants.bulk]\nweight = 1\n\
         [tenants.light]\nweight = 4\nreservation = {{ iops = 2000 }}\n"
    );
    for Setting { name, admission, .. } in &SETTINGS {
        text += &format!("[pools.p-{name}]\ntuning.admission = {admission}\n{DEVICE}\n");
        for tenant in ["bulk", "light"] {
            text += &format!(
                "[volumes.{tenant}-{name}]\npool = \"p-{name}\"\ntenant = \"{tenant}\"\nbackend = \"emulate\"\n\
                 size = \"16MiB\"\n"
            );
        }
    }
    text
}

/// The bulk writer and the light client, steady and in bursts.
fn jobs(folder: &Path, setting: &Setting, bulk: Bulk, warmup: u32, seconds: u32) -> String {
    let (name, socket) = (setting.name, folder.join("nbd.sock"));
    let job = |client: &str, volume: &str, options: &str| {
        format!(
            "[[job]]\nname = \"{client}\"\nuri = \"nbd+unix:///{volume}-{name}?socket={}\"\nop = \"write\"\n\
             duration = \"{seconds}s\"\nwarmup = \"{warmup}s\"\n{options}\n",
            socket.display()
        )
    };
    job("bulk", "bulk", &format!("block_size = \"{}k\"\nqueue_depth = {}", bulk.block_kib, bulk.depth))
        + &job("light", "light", "block_size = \"4k\"\nqueue_depth = 1")
        + &job("burst", "light", "block_size = \"4k\"\nqueue_depth = 8\nburst = \"50ms:450ms\"")
}

fn measure(
    server: &Server,
    setting: &Setting,
    Phase { speed, bulk: in_flight }: Phase,
    jobs: &str,
    stop: &AtomicBool,
    progress: &ProgressBar,
) -> anyhow::Result<Measured> {
    let jobs = evenkeel_load::parse_jobs(jobs, 1)?;
    let results = evenkeel_load::run(&jobs, &evenkeel_load::Extras::default(), stop, &mut |_| progress.tick())?;
    if let Some(failure) = results.iter().find_map(JobResult::failure) {
        bail!("{failure}");
    }
    let [bulk, light, burst] = results.as_slice() else { bail!("three jobs have three results") };
    let pool = server.state().pools.into_iter().find(|pool| pool.name == format!("p-{}", setting.name));
    Ok(Measured {
        setting: setting.name,
        speed,
        bulk: in_flight,
        budget_bytes: pool.and_then(|pool| pool.admission.budget_bytes),
        light_p50_ms: light.latency_ms(0.5),
        light_p99_ms: light.latency_ms(0.99),
        burst_p99_ms: burst.latency_ms(0.99),
        bulk_bytes_per_s: bulk.bytes_per_s(),
    })
}

/// What is to be seen: in the first phase, and over all of them.
fn conclusions(measured: &[Measured]) -> String {
    let first = measured.first().map(Measured::phase);
    let at_first: Vec<Measured> = measured.iter().filter(|measured| Some(measured.phase()) == first).cloned().collect();
    findings(&at_first) + &over_all_phases(measured)
}

/// Elastic beside every fixed budget while device or load changed, where no fixed one is always right.
fn over_all_phases(measured: &[Measured]) -> String {
    /// Nearer than that is equal: two runs of the same setting differ by as much.
    const SAME: f64 = 0.05;
    let of = |name| measured.iter().filter(move |measured: &&Measured| measured.setting == name);
    let mut text = String::new();
    for setting in SETTINGS.iter().filter(|setting| !matches!(setting.name, "slowfast" | "elastic")) {
        let pairs: Vec<_> = of("elastic").zip(of(setting.name)).collect();
        if pairs.len() < 2 || pairs.iter().any(|(elastic, fixed)| elastic.phase() != fixed.phase()) {
            continue;
        }
        let mean = |figure: fn(&Measured) -> f64| {
            let logs = pairs.iter().map(|(elastic, fixed)| (figure(elastic) / figure(fixed).max(1e-9)).ln());
            (logs.sum::<f64>() / pairs.len() as f64).exp()
        };
        let (p99, bulk) = (mean(|measured| measured.light_p99_ms), mean(|measured| measured.bulk_bytes_per_s));
        let (lost, won) = (p99 > 1.0 + SAME || bulk < 1.0 - SAME, p99 < 1.0 - SAME || bulk > 1.0 + SAME);
        let verdict = match (won, lost) {
            (true, false) => "elastic is better",
            (false, true) => "elastic is worse",
            (true, true) => "better in one, worse in the other",
            (false, false) => "no difference",
        };
        text += &format!(
            "Over all phases, elastic against {}: light 99th percentile {p99:.2} times, bulk throughput {bulk:.2} times \
             (geometric means): {verdict}.\n",
            setting.name
        );
    }
    text
}

/// What is to be seen, in sentences that hold for these figures.
fn findings(measured: &[Measured]) -> String {
    let find = |name: &str| measured.iter().find(|measured| measured.setting == name);
    let Some(none) = find("none") else { return String::new() };
    let mut text = format!(
        "Without admission control everything that the bulk writer sends is inside the device at once, and the light \
         client, though it has priority, waits behind it: {}.\n",
        latency(none)
    );
    if let Some(small) = find("64K") {
        text += &format!(
            "A budget of 64 KiB makes that {}, but leaves the bulk writer {:.0} % of its throughput.\n",
            latency(small),
            percent(small, none)
        );
    }
    for (setting, name) in [("slowfast", "SlowFast CoDel"), ("elastic", "Elastic")] {
        let Some(adaptive) = find(setting) else { continue };
        let budget = adaptive.budget_bytes.map_or_else(|| "?".into(), kib);
        let ratio = none.light_p50_ms / adaptive.light_p50_ms.max(1e-6);
        let (figure, verdict) = if ratio >= 1.0 {
            (ratio, "times shorter at the median than without")
        } else {
            (1.0 / ratio, "times longer at the median than without: it did not help in this run")
        };
        text += &format!(
            "{name} found a budget by itself ({budget} at the end): {}, {figure:.1} {verdict}, with {:.0} % of \
             the bulk throughput.\n",
            latency(adaptive),
            percent(adaptive, none)
        );
    }
    text
}

fn latency(measured: &Measured) -> String {
    format!("{:.1} ms at the median, {:.1} ms at the 99th percentile", measured.light_p50_ms, measured.light_p99_ms)
}

fn percent(some: &Measured, of: &Measured) -> f64 {
    some.bulk_bytes_per_s / of.bulk_bytes_per_s.max(1.0) * 100.0
}

/// Bytes as KiB.
pub(super) fn kib(bytes: u64) -> String {
    format!("{} KiB", bytes >> 10)
}

fn progress(args: &Args) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let total: u32 = args
        .settings()
        .iter()
        .flat_map(|setting| {
            (0..phases(&args.speeds, &args.bulk).len()).map(move |phase| Args::warmup_s(setting, phase) + args.seconds)
        })
        .sum();
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template(&format!("{{spinner}} {{elapsed}} of about {total}s  {{msg}}")) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

/// A private folder, removed with its content at the end.
struct Folder(PathBuf);

impl Folder {
    fn create() -> anyhow::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        // Not in the working folder: the path of a socket is at most 107 bytes long.
        let path = std::env::temp_dir().join(format!("evenkeel-demo-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot create the folder {}", path.display()))?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed is in the temporary folder anyway.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(setting: &'static str, light_p50_ms: f64, bulk_bytes_per_s: f64) -> Measured {
        let budget_bytes = (setting != "none").then_some(400 << 10);
        Measured {
            setting,
            speed: 1.0,
            bulk: Bulk::USUAL,
            budget_bytes,
            light_p50_ms,
            light_p99_ms: 50.0,
            burst_p99_ms: 9.0,
            bulk_bytes_per_s,
        }
    }

    #[test]
    fn the_configuration_and_the_jobs_are_sound() {
        let folder = Path::new("/run/demo");
        let config = Config::parse(&config(folder), "demo").unwrap();
        assert_eq!((config.pools.len(), config.volumes.len()), (SETTINGS.len() + 1, 2 * SETTINGS.len()));
        for setting in &SETTINGS {
            assert_eq!(evenkeel_load::parse_jobs(&jobs(folder, setting, Bulk::USUAL, 1, 5), 1).unwrap().len(), 3);
        }
    }

    #[test]
    fn by_default_it_takes_less_than_a_minute() {
        let seconds: u32 = SETTINGS.iter().map(|setting| setting.warmup_s + 5).sum();
        assert!(seconds < 60, "{seconds} s");
    }

    #[test]
    fn over_all_phases_elastic_is_judged_by_both_figures() {
        let at =
            |setting, speed, p99: f64, bulk: f64| Measured { speed, light_p99_ms: p99, ..measured(setting, 1.0, bulk) };
        let all = |p99, bulk| {
            vec![
                at("64K", 1.0, 4.0, 50e6),
                at("64K", 0.4, 9.0, 30e6),
                at("elastic", 1.0, p99, bulk),
                at("elastic", 0.4, 9.0, 30e6),
            ]
        };
        assert!(
            over_all_phases(&all(4.0, 100e6))
                .contains("1.00 times, bulk throughput 1.41 times (geometric means): elastic is better")
        );
        assert!(over_all_phases(&all(8.0, 100e6)).contains("better in one, worse in the other"));
        assert!(over_all_phases(&all(8.0, 50e6)).contains("elastic is worse"));
        assert!(over_all_phases(&all(4.0, 51e6)).contains("no difference"));
        assert_eq!(over_all_phases(&all(4.0, 51e6)[1..]), "", "measured at one speed only");
        assert_eq!(all(1.0, 1e6)[1].label(), "64K x0.4");
        let slow = device(0.4);
        let usual = StoreParams::ssd();
        assert_eq!(slow.bandwidth_bytes_per_s * 5 / 2, usual.bandwidth_bytes_per_s);
    }

    #[test]
    fn the_sentences_follow_the_figures() {
        let mut all = vec![measured("none", 40.0, 90e6), measured("64K", 2.0, 30e6), measured("slowfast", 8.0, 81e6)];
        let text = findings(&all);
        assert!(text.contains("8.0 ms at the median") && text.contains("5.0 times shorter"), "{text}");
        assert!(text.contains("90 % of the bulk"), "{text}");
        assert!(text.contains("33 % of its throughput") && text.contains("400 KiB at the end"), "{text}");
        all[2].light_p50_ms = 80.0;
        assert!(findings(&all).contains("2.0 times longer"), "{}", findings(&all));
        all[2].setting = "elastic";
        assert!(findings(&all).contains("Elastic found a budget"), "{}", findings(&all));
    }
}
