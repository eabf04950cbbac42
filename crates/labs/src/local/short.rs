//! The short comparison of each run: a protected reader beside the bulk writer, without any means and under the agent.
//!
//! The reader makes pauses, so that the machine idles and virtual time passes quickly.

use anyhow::Result;

use super::changes::end;
use super::compare::{Reader, Row, Stage};
use super::load::{DISK, policy, write};
use crate::check::figures::Figures;
use crate::check::steps::Plan;
use crate::machine::guard::{self, Guard};

/// Measured time, and time in which the controller finds its limits, in seconds.
const SECONDS: u64 = 5;
const SETTLE_S: u64 = 20;
/// Largest mean latency under the agent as a part of that without any means: of a single measurement, and of the median. The
/// target is a third, and of the mean: the p99 of so few reads is one or two of them.
const MEAN: [f64; 2] = [0.8, 0.5];
/// Smallest throughput of both groups as a part of that without any means, likewise.
const THROUGHPUT: [f64; 2] = [0.05, 0.3];

static READER: Reader = Reader { title: "a read each 5 ms", arguments: &["--iodepth=1", "--thinktime=5ms"] };

/// Compares the agent with no means.
pub(super) fn nothing_and_the_agent(plan: &Plan, figures: &mut Figures) -> Result<String> {
    let stage = Stage::on(DISK, &READER)?;
    let alone = stage.measure(SECONDS, f64::INFINITY)?;
    let writer = write()?;
    let unmanaged = stage.measure(SECONDS, f64::INFINITY)?;
    let target_ms = (2.0 * alone.mean_ms + unmanaged.mean_ms) / 3.0;
    let guard = Guard::start(&plan.binary, guard::ONLY, &policy(target_ms))?;
    stage.measure(SETTLE_S, target_ms)?;
    let managed = stage.measure(SECONDS, target_ms)?;
    guard.stop()?;
    end(writer)?;
    let [sure, bound] = MEAN;
    figures.at_most("part_of_the_mean", managed.mean_ms / unmanaged.mean_ms, sure, bound);
    let [sure, bound] = THROUGHPUT;
    figures.at_least("part_of_the_throughput", managed.mb_per_s / unmanaged.mb_per_s, sure, bound);
    let shown = |row: &Row| format!("mean {:.2} ms, p99 {:.2} ms, {:.1} MB/s", row.mean_ms, row.p99_ms, row.mb_per_s);
    Ok(format!(
        "alone: {}; beside the writer: {}; under the agent (target of the mean {target_ms:.2} ms): {}",
        shown(&alone),
        shown(&unmanaged),
        shown(&managed)
    ))
}
