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
//! | [`oracle`] | the best fixed budget of a setup, found by a sweep |
//!
//! An experiment decides which setups to run, and draws the conclusions. Threads, progress and interrupts belong to the
//! caller, which [executes](Execute) the runs.

mod batch;
pub mod bufferbloat;
mod digest;
pub mod drg;
pub mod harm;
pub mod iscsi;
pub mod messenger;
pub mod oracle;
mod report;
pub mod saat;

pub use digest::{Digest, LatencyDigest, TenantDigest};
pub use report::{Better, Claim, Report, Row, Section};

use crate::world::Setup;

/// A function that runs each setup with its seed and returns the outcomes in the order of the setups. The `&str` names the
/// purpose of the runs.
pub type Execute<'a, E, S = Setup, O = Digest> = dyn FnMut(&str, &[(S, u64)]) -> Result<Vec<O>, E> + 'a;

/// Options of all experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed from which all random numbers of the experiment follow.
    pub seed: u64,
    /// True for a quick run with about a tenth of the work: fewer seeds and shorter runs, but nearly the same cases.
    pub quick: bool,
}
