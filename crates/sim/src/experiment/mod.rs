//! Experiments of publications, repeated in virtual time.
//!
//! | module | what it does |
//! |---|---|
//! | [`harm`] | admission control against none, on cases drawn at random |
//! | [`bufferbloat`] | the SlowFast CoDel paper, and admission control compared |
//! | [`iscsi`] | the packet-delay paper: latency targets on a shared iSCSI target |
//! | [`messenger`] | the Ceph messenger paper: connections placed on workers |
//! | [`saat`] | the SAAT paper: guaranteed throughput on a cached device |
//! | [`oracle`] | the best fixed budget of a setup, found by a sweep |
//!
//! An experiment decides what to run and what to make of it. Threads, progress and interrupts belong to the caller that
//! [executes](Execute) the runs.

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

/// Runs each setup with its seed and answers with the outcomes in the same order. The `&str` names the purpose of the runs.
pub type Execute<'a, E, S = Setup, O = Digest> = dyn FnMut(&str, &[(S, u64)]) -> Result<Vec<O>, E> + 'a;

/// Options of all experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Seed of everything random.
    pub seed: u64,
    /// True for a tenth of the work: fewer seeds and shorter runs, but nearly the same cases.
    pub quick: bool,
}
