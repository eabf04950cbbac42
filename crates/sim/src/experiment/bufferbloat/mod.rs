//! Admission control against bufferbloat: the figures of the SlowFast CoDel paper, and a comparison of methods.
//!
//! S. E. Mirvakili, S. Just and C. Maltzahn, *Managing Bufferbloat in Cloud Storage Systems*. The paper's cluster is a
//! model of a batching store here. Where the paper leaves something open (the size and depth of recovery, the shape of
//! the bursts), a value is chosen and documented. Its figures are compared by shape, since the paper prints no numbers.
//!
//! | module | contents |
//! |---|---|
//! | `paper` | figures 4 to 9 of the paper and the claims about them |
//! | `frontier` | four devices under three workloads, each case compared with its oracle, the best fixed budget |
//! | `steps` | a change of load or device in mid-run |
//! | [`live`] | conclusions about admission control from figures that a running server measured |

mod frontier;
pub mod live;
mod paper;
mod scene;
mod steps;

use super::{Execute, Options, Report};

/// Name on the command line and in results.
pub const NAME: &str = "bufferbloat";

/// Runs all sections of the experiment.
///
/// # Errors
/// The errors of `execute`.
pub fn run<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Report, E> {
    let mut claims = Vec::new();
    let recovery = paper::recovery(options, execute, &mut claims)?;
    let [continuous, tradeoff] = paper::continuous(options, execute, &mut claims)?;
    let frontier = frontier::run(options, execute)?;
    let steps = steps::run(options, execute)?;
    let intro = [
        "A scheduler can only reorder what still waits in front of it. A back end that accepts everything at once takes \
         that away: a request that matters waits behind all that was handed over before it. Admission control bounds what \
         is in flight. This compares ways to choose the bound: fixed ones, those of the literature, and Evenkeel's.",
        "Everything happens in virtual time on modelled devices; the same seed gives the same figures on every machine.",
    ].map(str::to_owned).to_vec();
    Ok(Report {
        experiment: NAME,
        seed: options.seed,
        intro,
        sections: vec![recovery, continuous, tradeoff, frontier, steps],
        claims,
    })
}
