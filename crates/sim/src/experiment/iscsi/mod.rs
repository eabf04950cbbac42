//! Response time of a shared iSCSI target: the figures of the packet-delay paper, and control compared.
//!
//! J. Bjørgeengen and H. Haugerud, *Using TCP/IP traffic shaping to achieve iSCSI service predictability*. The paper's
//! appliance is the model [`evenkeel_model::link`] here, with the parameters of another, smaller iSCSI target. Where the
//! paper leaves something open (gains, moving average), a value is chosen and documented.
//!
//! | module | contents |
//! |---|---|
//! | [`world`] | hosts, iSCSI target, sensors and controller in virtual time |
//! | `hosts` | the reader and the writers of all loads |
//! | [`judge`] | how long a run takes to settle, its windows above the response time target, its overshoot |
//! | `delays` | figures 5 to 11: the effect of a delay |
//! | `targets` | figures 12 to 16: response time targets during bursts of writers |
//! | `cases` | loads beyond the paper's: other bursts, other numbers of clients, slow readers |
//! | `tuning` | the published controller's constants, tuned on a training set |

mod cases;
mod delays;
mod hosts;
pub mod judge;
mod targets;
mod tuning;
pub mod world;

pub use tuning::tuned;

use super::{Options, Report};
use world::{Outcome, Setup};

/// Name on the command line and in results.
pub const NAME: &str = "iscsi";

/// The type [`super::Execute`] with this experiment's setup and outcome.
pub type Execute<'a, E> = super::Execute<'a, E, Setup, Outcome>;

/// Runs all sections of the experiment.
///
/// # Errors
/// The errors of `execute`.
pub fn run<E>(options: &Options, execute: &mut Execute<'_, E>) -> Result<Report, E> {
    let mut claims = Vec::new();
    let mut sections =
        vec![delays::request_time(options, execute, &mut claims)?, delays::competition(options, execute, &mut claims)?];
    sections.extend(targets::run(options, execute, &mut claims)?);
    sections.push(cases::run(options, execute)?);
    let intro = [
        "Many hosts share one target; a host that reads a little waits behind hosts that write a lot. No host owns \
         the queue, but packets to a writer can be delayed, and then its next request comes later. This compares ways \
         to choose the delay so that reads stay below a latency target: no delay, the best constant delay, the \
         published PID controller, and Evenkeel's controller.",
        "Everything happens in virtual time on a modelled target; the same seed gives the same figures on every machine.",
    ].map(str::to_owned).to_vec();
    Ok(Report { experiment: NAME, seed: options.seed, intro, sections, claims })
}
