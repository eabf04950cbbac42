//! The agent's control loops, one module for each enforcement point: they turn samples into settings and reasons, without
//! access to files or the clock.
//!
//! | point | sample | controller | setting |
//! |---|---|---|---|
//! | [`packets`] | diskstats, block tracepoints | `control::response` | delay of packets |
//! | [`cgroup`] | `io.stat` of groups, diskstats of the slow device | `control::throughput` | `io.max` |
//! | [`local`] | block tracepoints, `io.stat` of groups, diskstats | `control::response` | `io.max` |
//! | [`queue_depth`] | diskstats | `control::slots` | queue lengths |
//! | [`osd`] | `perf dump` | `control::admission` | BlueStore's throttles |
//!
//! The files of each point are in [`crate::points`]; [`crate::Agent`] drives them all.

use evenkeel_policy::config::Enforcement;
use evenkeel_policy::figures::counted;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub mod cgroup;
mod due;
pub mod health;
pub mod local;
pub mod meter;
pub mod osd;
mod osd_order;
pub mod owed;
pub mod packets;
pub mod queue_depth;
pub mod record;
mod totals;

pub use due::Due;
use record::{CgroupState, OsdState, PacketsState, Part, PoolState, QueueDepthState, State};

/// Largest number of decisions that are kept of each pool. A decision that stays the same is one entry: with a new decision
/// every second the entries reach back ten minutes, in most cases hours.
pub const MAX_RECORDS: usize = 600;

/// An enforcement point's figures of a pool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "point", rename_all = "snake_case")]
pub enum At {
    /// Packets of clients wait for a latency target.
    Packets(PacketsState),
    /// Control groups are limited for throughput guarantees, or for a latency target.
    Cgroup(CgroupState),
    /// Queues of shared disks are shortened.
    QueueDepth(QueueDepthState),
    /// The throttle of an OSD is set.
    Osd(OsdState),
}

impl Default for At {
    fn default() -> Self {
        Self::Packets(PacketsState::default())
    }
}

macro_rules! at_point {
    ($($name:ident $variant:ident $state:ty),*) => {
        impl State {
            $(
                #[doc = concat!("The pools at the point `", stringify!($name), "`, with what is known of them there.")]
                pub fn $name(&self) -> impl Iterator<Item = (&PoolState, &$state)> {
                    self.pools.iter().filter_map(|pool| if let At::$variant(at) = &pool.at { Some((pool, at)) } else { None })
                }
            )*
        }
    };
}
at_point!(packets Packets PacketsState, cgroups Cgroup CgroupState, queue_depths QueueDepth QueueDepthState, osds Osd OsdState);

impl PoolState {
    /// The enforcement point.
    pub const fn point(&self) -> Enforcement {
        match self.at {
            At::Packets(_) => Enforcement::Packets,
            At::Cgroup(_) => Enforcement::Cgroup,
            At::QueueDepth(_) => Enforcement::QueueDepth,
            At::Osd(_) => Enforcement::Osd,
        }
    }

    /// The clients, control groups or volumes of the pool.
    pub fn parts(&self) -> Vec<Part<'_>> {
        match &self.at {
            At::Packets(at) => at.clients.iter().map(Part::of_client).collect(),
            At::Cgroup(at) => at.groups.iter().map(Part::of_group).collect(),
            At::QueueDepth(at) => at.volumes.iter().map(Part::of_volume).collect(),
            At::Osd(_) => Vec::new(),
        }
    }
}

impl At {
    /// The setting that the point changes, as text.
    pub fn acts_on(&self) -> String {
        match self {
            Self::Packets(at) if at.packets == "all" => "departure time of packets".to_owned(),
            Self::Packets(at) => format!("departure time of {}", at.packets),
            Self::Cgroup(at) => format!("io.max of {}", counted(at.groups.len() as u64, "group")),
            Self::QueueDepth(at) => {
                let queues: usize = at.volumes.iter().map(|volume| volume.queues.len()).sum();
                format!("length of {}", counted(queues as u64, "queue"))
            }
            Self::Osd(_) => "throttle of BlueStore".to_owned(),
        }
    }
}
