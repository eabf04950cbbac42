//! `evenkeel demo bufferbloat`: shows that requests wait in the device's queue without admission control, and with it in the
//! server's queue, where the scheduler can reorder them.
//!
//! One server has an emulated device for each [setting](SETTINGS) of admission control; two clients load one device after
//! another.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use evenkeel_load::JobResult;
use evenkeel_model::store::StoreParams;
use evenkeel_policy::Config;
use evenkeel_server::{Server, Start};
use evenkeel_sim::experiment::bufferbloat::live::{self, Bulk, Measured, Phase, SETTINGS, Setting, phases};
use indicatif::ProgressBar;

use crate::output;
use crate::parallel::Stopped;

/// Options of `evenkeel demo bufferbloat`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Seconds to measure each setting
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Settings to measure [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', value_parser = setting())]
    settings: Vec<&'static str>,
    /// Speeds of the device, one after the other while the settings stay as they are: 1,0.4,2.5 slows it down to
    /// 40 % after the first measurement and makes it 2.5 times as fast after the second
    #[arg(long, value_name = "FACTOR,...", value_delimiter = ',', default_value = "1", value_parser = speed)]
    speeds: Vec<f64>,
    /// The bulk writer's load, one after the other as the speeds do: 64Kx64,256Kx32,4Kx512 changes from 64 writes of 64
    /// KiB in flight to 32 of 256 KiB, then to 512 of 4 KiB. The shorter list stays at its last value
    #[arg(long, value_name = "SIZExDEPTH,...", value_delimiter = ',', default_value = "64Kx64")]
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

/// A parser for the option `--settings`, which accepts the names in [`SETTINGS`].
fn setting() -> impl TypedValueParser<Value = &'static str> {
    let names = SETTINGS.map(|setting| setting.name);
    PossibleValuesParser::new(names)
        .try_map(move |given| names.into_iter().find(|name| *name == given).ok_or("no setting"))
}

/// Parses a factor by which the device's speed is multiplied, from 0.01 to 100.
fn speed(text: &str) -> Result<f64, String> {
    let speed: f64 = text.parse().map_err(|_| "write a number such as 0.4".to_string())?;
    if (0.01..=100.0).contains(&speed) { Ok(speed) } else { Err("use 0.01 to 100".into()) }
}

/// The line of a pool's configuration that emulates its device: an SSD modelled as a batching store with a deep buffer.
const DEVICE: &str = "emulate = { preset = \"ssd\" }";

/// Measures every chosen setting in every phase (speed of the device, bulk load) and prints the results.
///
/// # Errors
/// When the server or its clients cannot run.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let reports = args.html.iter().chain(&args.svg).map(|path| output::prepare(path));
    let _prepared = reports.collect::<anyhow::Result<Vec<_>>>()?;
    // However often it is interrupted: what was measured is shown, and the folder removed.
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot catch interrupts")?;
    }
    let folder = Folder::create()?;
    let config = Config::parse(&config(folder.path()), "the demonstration's configuration")?;
    let server = Server::start(config, Start { seed: 1, ..Start::default() })?;
    let wanted = |setting: &&Setting| args.settings.is_empty() || args.settings.contains(&setting.name);
    let (settings, phases) = (SETTINGS.iter().filter(wanted).collect::<Vec<_>>(), phases(&args.speeds, &args.bulk));
    let seconds =
        |setting: &&Setting| (0..phases.len()).map(|phase| setting.warmup_s(phase) + args.seconds).sum::<u32>();
    let total: u32 = settings.iter().map(seconds).sum();
    let progress = output::spinner(&format!("{{spinner}} {{elapsed}} of about {total}s  {{msg}}"));
    let mut measured = Vec::new();
    'settings: for (index, setting) in settings.iter().enumerate() {
        for (index_of_phase, &phase) in phases.iter().enumerate() {
            progress.set_message(format!("{} of {}: admission {}", index + 1, settings.len(), setting.name));
            if phase.speed != 1.0 || index_of_phase > 0 {
                server.set_emulate(&format!("p-{}", setting.name), StoreParams::ssd().scaled(phase.speed))?;
            }
            let warmup = setting.warmup_s(index_of_phase);
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
    let (done, of) = (measured.len(), settings.len() * phases.len());
    if done == 0 {
        return Err(Stopped::Interrupted { done, of }.into());
    }
    let record = serde_json::json!({ "device": DEVICE, "settings": measured });
    output::show(args.json, &record, |_| live::text(&measured) + "\n" + &live::conclusions(&measured))?;
    let page = args.html.as_ref().map(|path| (path, live::page(&measured, output::command()).html()));
    let picture = args.svg.as_ref().map(|path| (path, live::svg(&measured, &output::command())));
    for (path, text) in page.into_iter().chain(picture) {
        std::fs::write(path, text).with_context(|| output::cannot_write(path))?;
    }
    if done < of { Err(Stopped::Interrupted { done, of }.into()) } else { Ok(()) }
}

/// The server's configuration: for each setting a pool with its own emulated device, and on each pool a volume for the bulk
/// writer and one for the light client.
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

/// Jobs of the load generator for one measurement: the bulk writer, the light client's steady writes, and its bursts of
/// writes (50 ms of every 500 ms). `warmup` and `seconds`: unmeasured and measured time, in seconds.
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

/// A temporary folder that only this user can open; removed with its content on drop.
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes the folder.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn create() -> anyhow::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        // Not in the working folder: the path of a socket is at most 107 bytes long.
        let path = std::env::temp_dir().join(format!("evenkeel-demo-{}", std::process::id()));
        let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
        made.with_context(|| format!("cannot create the folder {}", path.display()))?;
        Ok(Self(path))
    }

    /// Path of the folder.
    pub(super) fn path(&self) -> &Path {
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

    #[test]
    fn a_speed_is_a_factor_within_bounds() {
        assert_eq!(speed("0.4"), Ok(0.4));
        for wrong in ["0", "fast", "nan", "1000"] {
            assert!(speed(wrong).is_err(), "{wrong}");
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
}
