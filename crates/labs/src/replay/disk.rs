//! The trial on a paced disk of a virtual machine: the machine records and measures, the host learns and predicts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::recorded::Measured;
use super::stage::{Device, GROUP, Stage, VOLUME_BYTES, volume};
use super::{RECORDED_S, Round, SETTINGS, Setting, TENANTS, Tenants, measured};
use crate::base::packages;
use crate::base::scratch::Scratch;
use crate::caches::TOOLS;
use crate::check::run::{Lab, Options};
use crate::check::steps::{self, Plan};
use crate::machine::devices::{lvm, make_disk};
use crate::machine::guest::{keep_in_memory, work_dir};
use crate::machine::{kernel, vm};

/// Name of the disk in `/dev`.
const DISK: &str = "rdisk";
/// Size of the disk in MiB: the volumes, and room for what LVM writes beside the data.
const DISK_MIB: u64 = 256;
/// Service time of a request, 8 of which are served at a time, and the rate in MiB per second: nearly as the emulated device.
const PACE: [(&str, &str); 4] =
    [("irqmode", "2"), ("completion_nsec", "2000000"), ("hw_queue_depth", "8"), ("mbps", "60")];
/// Time limit of a round: many times its duration on an idle machine.
const ROUND_LIMIT: Duration = Duration::from_secs(2 * 3_600);

/// The figures of a run, as the machine hands them over: requests and figures of each tenant.
type Row = BTreeMap<String, (u64, [f64; 3])>;

/// The reason why the trial cannot run here; `None` if it can. It fetches the parts of the machine that are missing.
pub(super) fn missing(build: &Path) -> Option<String> {
    packages::missing_text(&vm::PROGRAMS).or_else(vm::missing).or_else(|| {
        let fetched = kernel::prepare(build).and_then(|_| kernel::busybox(build));
        let fetched = fetched.and_then(|_| kernel::tools(build, "tools-caches", &TOOLS));
        fetched.err().map(|error| format!("the parts of its machine cannot be fetched: {error:#}"))
    })
}

/// Measures so many rounds in a virtual machine.
pub(super) fn rounds(lab: &mut Lab, options: &Options, scratch: &Scratch, count: u64) -> Vec<Result<Round>> {
    match boot(lab, options, scratch, count) {
        Ok(()) => (1..=count).map(|number| read(scratch.path(), number)).collect(),
        Err(error) => vec![Err(error)],
    }
}

/// Boots the machine, and reports its rounds.
fn boot(lab: &mut Lab, options: &Options, scratch: &Scratch, count: u64) -> Result<()> {
    let tools = std::path::absolute(kernel::tools(&options.build, "tools-caches", &TOOLS)?)?;
    let plan = Plan::of(options);
    let mut machine = vm::Machine::new(vm::LOCAL, &options.build, scratch, options.verbose)?;
    let script = options.lean_guest_script(scratch, "replay", &plan.arguments())?;
    let guest = machine.boot(&kernel::with_tools(&tools, &script), &[])?;
    steps::report(lab, guest, plan.limit(ROUND_LIMIT), usize::try_from(count)?)
}

/// Makes the disk and measures each round; runs inside the virtual machine.
pub(crate) fn guest(plan: &Plan) -> Result<()> {
    make_disk(DISK, DISK_MIB, &PACE)?;
    let mut commands = format!("vgcreate {GROUP} /dev/{DISK}\n");
    for tenant in TENANTS {
        commands += &format!("lvcreate -y -Wn -Zn -L {}m -n {tenant} {GROUP}\n", VOLUME_BYTES >> 20);
    }
    lvm(&[DISK], &commands, &TENANTS.map(volume))?;
    keep_in_memory(vec![plan.binary.clone()])?;
    let folder = work_dir("replay");
    std::fs::create_dir_all(&folder)?;
    let stage = Stage::new(&folder, &plan.binary, RECORDED_S[1]);
    let settings: Vec<&Setting> = SETTINGS.iter().collect();
    println!("lab: ready");
    for number in 1..=plan.repeats {
        let round = measured(&stage, Device::Disk, &settings, number);
        let outcome = round.and_then(|round| keep(Path::new(vm::SHARE), &round, number));
        steps::tell(&format!("round_{number}_on_the_disk_of_a_machine"), outcome);
    }
    Ok(())
}

/// Names of the files that hand over a round: its recording, and the figures of each setting.
fn files(number: u64) -> [String; 2] {
    [format!("disk-{number}.rec"), format!("disk-{number}.json")]
}

/// Writes a round into a folder.
fn keep(folder: &Path, round: &Round, number: u64) -> Result<String> {
    let [recording, figures] = files(number).map(|name| folder.join(name));
    std::fs::copy(&round.recording, &recording)
        .with_context(|| format!("cannot copy the recording to {}", recording.display()))?;
    let row = |tenants: &Tenants| -> Row {
        tenants.iter().map(|(name, one)| (name.clone(), (one.requests, one.figures))).collect()
    };
    let rows: Vec<Row> = round.real.iter().map(row).collect();
    std::fs::write(&figures, serde_json::to_vec(&rows)?)?;
    Ok(format!("{} runs and a recording", rows.len()))
}

/// Reads the round that [`keep`] has written.
fn read(folder: &Path, number: u64) -> Result<Round> {
    let [recording, figures] = files(number).map(|name| folder.join(name));
    let text = std::fs::read(&figures).with_context(|| format!("the machine left no {}", figures.display()))?;
    let rows: Vec<Row> = serde_json::from_slice(&text)?;
    let tenants = |row: Row| -> Tenants {
        row.into_iter().map(|(name, (requests, figures))| (name, Measured { requests, figures })).collect()
    };
    Ok(Round { recording, real: rows.into_iter().map(tenants).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_is_handed_over_from_the_machine() {
        let scratch = Scratch::new("replay-round").unwrap();
        let recording = scratch.path().join("load.rec");
        std::fs::write(&recording, "a recording").unwrap();
        let one = |figure: f64| {
            let measured = Measured { requests: 7, figures: [figure, 0.25, 3.0] };
            Tenants::from([("bulk".to_owned(), measured)])
        };
        let round = Round { recording, real: vec![one(1.5), one(2.0)] };
        keep(scratch.path(), &round, 2).unwrap();
        let again = read(scratch.path(), 2).unwrap();
        assert_eq!(again.real, round.real);
        assert_eq!(std::fs::read_to_string(again.recording).unwrap(), "a recording");
        let missing = read(scratch.path(), 1).err().unwrap();
        assert!(missing.to_string().contains("disk-1.json"), "{missing:#}");
    }

    #[test]
    fn the_disk_has_room_for_the_volumes() {
        let volumes: u64 = TENANTS.map(|_| VOLUME_BYTES).iter().sum();
        assert!(volumes < DISK_MIB << 20);
    }
}
