//! Experiments of publications, repeated in virtual time.
//!
//! | module | contents |
//! |---|---|
//! | [`harm`] | controllers compared with no control, on cases drawn at random |
//! | [`bufferbloat`] | the SlowFast CoDel paper, and a comparison of methods of admission control |
//! | [`iscsi`] | the packet-delay paper: latency targets on a shared iSCSI target |
//! | [`messenger`] | the Ceph messenger paper: placement of connections on workers |
//! | [`saat`] | the SAAT paper: guaranteed throughput on a cached device |
//! | [`drg`] | the DRG paper: latency targets of hosts that share an array |
//! | [`totals`] | one reservation and limit of a tenant over a cluster, against a central scheduler |
//! | [`oracle`] | the best fixed budget of a setup, found by a sweep |
//! | [`tune`] | one automated search for the parameters of every baseline |
//! | `limits` | weaknesses of the experiments, which every report prints |
//! | `once` | runs that are made once, however often they are asked for |
//! | `paired` | confidence intervals of differences between methods, paired by seed |
//!
//! An experiment decides which setups to run, and draws the conclusions. Threads, progress and interrupts belong to the
//! caller, which [executes](Execute) the runs.

mod batch;
pub mod bufferbloat;
mod digest;
pub mod drg;
pub mod harm;
pub mod iscsi;
pub(crate) mod limits;
pub mod messenger;
mod once;
pub mod oracle;
mod paired;
mod report;
pub mod saat;
pub mod totals;
pub mod tune;

pub use digest::{Digest, LatencyDigest, TenantDigest};
pub use report::{Better, Claim, End, Report, Row, Section};

use crate::world::Setup;
use tune::Tuned;

/// A function that runs each setup with its seed and returns the outcomes in the order of the setups. The `&str` names the
/// purpose of the runs.
pub type Execute<'a, E, S = Setup, O = Digest> = dyn FnMut(&str, &[(S, u64)]) -> Result<Vec<O>, E> + 'a;

/// Options of all experiments.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Seed from which all random numbers of the experiment follow.
    pub seed: u64,
    /// True for a quick run with about a tenth of the work: fewer seeds and shorter runs, but nearly the same cases.
    pub quick: bool,
    /// Number of seeds, 1 or more; `None`: the experiment's own number.
    pub seeds: Option<usize>,
    /// Tuned parameters of the experiment's baselines; without baselines: none were tuned.
    pub tuned: Tuned,
}

impl Options {
    /// Number of seeds: [`Self::seeds`] if given, otherwise `full`, or `quick` in a quick run.
    pub fn count(&self, full: usize, quick: usize) -> usize {
        self.seeds.unwrap_or(if self.quick { quick } else { full }).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::Options;

    #[test]
    fn the_number_of_seeds_is_the_given_one_or_that_of_the_experiment() {
        let of = |quick, seeds| Options { quick, seeds, ..Options::default() }.count(30, 2);
        assert_eq!([of(false, None), of(true, None), of(false, Some(7)), of(true, Some(7))], [30, 2, 7, 7]);
    }
}
