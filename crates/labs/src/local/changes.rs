//! Changes while the agent throttles the bulk writer: another target, a group that is removed and made anew, and an agent that is
//! killed again and again.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::load::{DISK, policy, read, start_on, write};
use super::{BULK, PROTECTED};
use crate::base::process::{self, Running};
use crate::check::steps::Plan;
use crate::machine::guard::{self, Guard};
use crate::machine::guest::GROUPS;

/// Measured time of a phase, and time in which the controller finds its limits, in seconds.
pub(super) const SECONDS: u64 = 10;
pub(super) const SETTLE_S: u64 = 20;
/// Longest time until the agent throttles the writer.
const THROTTLED_WITHIN: Duration = Duration::from_secs(60);
/// Bar: the longest time from the kill of an agent to the end of its limits.
const RESTORED_WITHIN: Duration = Duration::from_millis(100);
/// Longest time that the step waits for the end of limits, to say how late they end.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Number of kills in a short run, and in a full run.
const KILLS: [u64; 2] = [5, 100];
/// Largest mean of reads under the agent as a multiple of the target.
pub(super) const NEAR: f64 = 1.5;
const END_LIMIT: Duration = Duration::from_secs(60);

/// The content of the writer's `io.max`; empty without a limit or a group.
pub(super) fn limits() -> String {
    std::fs::read_to_string(format!("{GROUPS}/{BULK}/io.max")).unwrap_or_default().trim().to_owned()
}

fn until_throttled() -> Result<Duration> {
    process::until("a limit of the writer", [THROTTLED_WITHIN, LOOK_EVERY], || Ok(!limits().is_empty()))
}

pub(super) fn until_free() -> Result<Duration> {
    process::until("no limit of the writer", [PATIENCE, LOOK_EVERY], || Ok(limits().is_empty()))
}

/// A reader in the background, whose reads the agent measures.
fn reader() -> Result<Running> {
    start_on(&format!("/dev/{DISK}"), PROTECTED, &["--rw=randread", "--bs=4k", "--iodepth=1"])
}

/// Ends a load, and waits for its end.
pub(super) fn end(load: Running) -> Result<()> {
    load.stop(libc::SIGINT, END_LIMIT).map(drop)
}

/// Targets for the mean of reads in ms: half-way between the disk without other load and the disk beside the writer, and a
/// quarter of the way.
pub(super) fn targets(alone_ms: f64, beside_ms: f64) -> [f64; 2] {
    [0.5, 0.25].map(|part| alone_ms + part * (beside_ms - alone_ms))
}

/// A target that changes while the agent runs is met, and so is it after the writer's group was made anew.
pub(super) fn target_and_group(plan: &Plan) -> Result<String> {
    let alone = read(SECONDS)?.mean_ms;
    let writer = write()?;
    let beside = read(SECONDS)?.mean_ms;
    let [first, second] = targets(alone, beside);
    let guard = Guard::start(&plan.binary, guard::ONLY, &policy(first))?;
    let mut means = Vec::new();
    for target in [first, second] {
        if target == second {
            guard.reload(&policy(second))?;
        }
        read(SETTLE_S)?;
        let mean = read(SECONDS)?.mean_ms;
        ensure!(mean <= NEAR * target, "mean of reads {mean:.2} ms, target {target:.2} ms");
        means.push(mean);
    }
    ensure!(!limits().is_empty(), "the writer has no limit");
    end(writer)?;
    let group = Path::new(GROUPS).join(BULK);
    process::until("the end of the group", [PATIENCE, LOOK_EVERY], || Ok(std::fs::remove_dir(&group).is_ok()))?;
    std::fs::create_dir(&group)?;
    let writer = write()?;
    // Only reads show that the writer is noisy.
    let background = reader()?;
    let throttled = until_throttled()?;
    end(background)?;
    read(SETTLE_S)?;
    let mean = read(SECONDS)?.mean_ms;
    guard.stop()?;
    until_free()?;
    end(writer)?;
    ensure!(mean <= NEAR * second, "mean of reads {mean:.2} ms after the group was made anew, target {second:.2} ms");
    Ok(format!(
        "targets {first:.2} and {second:.2} ms, means of reads {:.2} and {:.2} ms ({alone:.2} ms alone, {beside:.2} ms beside the writer); a group that is made anew is throttled after {throttled:.1?}, mean {mean:.2} ms",
        means[0], means[1]
    ))
}

/// Limits end with the agent, however often and whenever it is killed.
pub(super) fn kills(plan: &Plan) -> Result<String> {
    let [short, full] = KILLS;
    let kills = plan.either(short, full);
    let alone = read(SECONDS)?.mean_ms;
    let writer = write()?;
    let [_, target] = targets(alone, read(SECONDS)?.mean_ms);
    let background = reader()?;
    let (mut worst, mut late) = (Duration::ZERO, 0);
    for kill in 0..kills {
        let guard = Guard::start(&plan.binary, guard::ONLY, &policy(target))?;
        until_throttled()?;
        thread::sleep(moment(kill));
        let begun = Instant::now();
        guard.kill(false)?;
        until_free()?;
        let took = begun.elapsed();
        worst = worst.max(took);
        late += u64::from(took > RESTORED_WITHIN);
    }
    end(background)?;
    end(writer)?;
    ensure!(late == 0, "{late} of {kills} times limits ended later than {RESTORED_WITHIN:?}, once after {worst:.1?}");
    Ok(format!("{kills} kills, limits ended within {worst:.1?}"))
}

/// A moment within an interval of the agent and those next to it, which differs from kill to kill.
fn moment(kill: u64) -> Duration {
    Duration::from_millis(kill * 37 % 250)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_lie_between_both_means_and_the_second_is_lower() {
        assert_eq!(targets(2.0, 10.0), [6.0, 4.0]);
    }

    #[test]
    fn kills_come_at_many_moments() {
        let moments: std::collections::BTreeSet<Duration> = (0..100).map(moment).collect();
        assert!(moments.len() == 100 && moments.iter().all(|moment| *moment < Duration::from_millis(250)));
    }
}
