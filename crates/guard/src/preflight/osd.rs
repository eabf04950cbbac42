//! Judges by the settings of an OSD's scheduler whether throttling the OSD's store has an effect for clients.
//!
//! A throttle keeps requests in the scheduler, which can still choose between them. That helps only if the scheduler really
//! chooses: reservations must not be over-committed, and only few threads may take requests out of the scheduler and then
//! wait at the throttle.

use super::{Finding, Presence};
use crate::admin_socket::{AdminSocket, Error};

/// Values of an OSD's options for its scheduler. Options that this version of Ceph does not have are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scheduling {
    /// Name of the scheduler (`osd_op_queue`): `mclock_scheduler`, `wpq` or another.
    pub queue: String,
    /// Name of the mClock profile.
    pub profile: Option<String>,
    /// Number of shards, for hard disks and for other media; the same if one option sets both.
    pub shards: [u64; 2],
    /// Threads of each shard, for hard disks and for other media; the same if one option sets both.
    pub threads: [u64; 2],
    /// Sum of the reservations of clients, recovery and best effort, as a fraction of the capacity (Ceph 17 or later) or in
    /// requests per second.
    pub reserved: Option<f64>,
    /// Requests per second that the OSD is assumed to be capable of, for hard disks and for other media.
    pub capacity_iops: [Option<f64>; 2],
}

/// Names of the options for the reservations of the three classes of requests.
const RESERVATIONS: [&str; 3] = [
    "osd_mclock_scheduler_client_res",
    "osd_mclock_scheduler_background_recovery_res",
    "osd_mclock_scheduler_background_best_effort_res",
];
/// Suffixes of options that have a value for each kind of medium.
const MEDIA: [&str; 2] = ["hdd", "ssd"];

impl Scheduling {
    /// Asks an OSD for the options of its scheduler.
    ///
    /// # Errors
    /// If the OSD does not answer. Options that the OSD does not know become `None`.
    pub fn ask(socket: &AdminSocket) -> Result<Self, Error> {
        let text = |option: &str| match socket.option(option) {
            Ok(value) => Ok(Some(value)),
            Err(Error::Refused { .. } | Error::Odd { .. }) => Ok(None),
            Err(error) => Err(error),
        };
        let number = |option: &str| Ok(text(option)?.and_then(|value| value.parse::<f64>().ok()));
        let by_medium = |option: &str| -> Result<[u64; 2], Error> {
            let all = number(option)?.unwrap_or(0.0) as u64;
            if all > 0 {
                return Ok([all; 2]);
            }
            let [hdd, ssd] = MEDIA.map(|medium| number(&format!("{option}_{medium}")));
            Ok([hdd?, ssd?].map(|value| value.unwrap_or(1.0) as u64))
        };
        let mut reserved = Some(0.0);
        for option in RESERVATIONS {
            reserved = reserved.zip(number(option)?).map(|(sum, each)| sum + each);
        }
        let [hdd, ssd] = MEDIA.map(|medium| number(&format!("osd_mclock_max_capacity_iops_{medium}")));
        Ok(Self {
            queue: text("osd_op_queue")?.unwrap_or_default(),
            profile: text("osd_mclock_profile")?,
            shards: by_medium("osd_op_num_shards")?,
            threads: by_medium("osd_op_num_threads_per_shard")?,
            reserved,
            capacity_iops: [hdd?, ssd?],
        })
    }

    /// Obstacles that keep a throttle of the store from having an effect for clients, each with a cure.
    fn obstacles(&self) -> Vec<(String, String)> {
        let mut obstacles = Vec::new();
        if self.queue != "mclock_scheduler" {
            obstacles.push((
                format!("osd_op_queue is {}, a queue without reservations and limits", self.queue),
                "set osd_op_queue = mclock_scheduler and restart the OSD".to_owned(),
            ));
        } else if self.profile.as_deref() != Some("custom") {
            let profile = self.profile.as_deref().unwrap_or("unknown");
            obstacles.push((
                format!(
                    "the profile {profile} reserves all IOPS that Ceph assumes the OSD to have: where it has fewer, \
                     everything is served by reservation and no weight counts"
                ),
                "measure with `ceph tell osd.N bench` and set osd_mclock_max_capacity_iops_hdd or _ssd to it, or set \
                 osd_mclock_profile = custom with smaller reservations"
                    .to_owned(),
            ));
        } else if let Some(reserved) = self.reserved {
            // The smaller one: which medium it is, the OSD does not tell here. Versions from 17 on reserve shares.
            let capacity = self.capacity_iops.into_iter().flatten().fold(f64::INFINITY, f64::min);
            let all = if reserved <= RESERVATIONS.len() as f64 {
                reserved > 1.0 && self.are_shares()
            } else {
                reserved >= capacity
            };
            if all {
                obstacles.push((
                    format!("the reservations add up to {reserved}, the OSD's capacity or more: no weight counts"),
                    format!("lower {}", RESERVATIONS.join(", ")),
                ));
            }
        }
        let most =
            (0..MEDIA.len()).map(|medium| (self.shards[medium], self.threads[medium])).max_by_key(|(s, t)| s * t);
        if let Some((shards, threads)) = most.filter(|&(shards, _)| shards > 1) {
            obstacles.push((
                format!(
                    "up to {shards} shards with {threads} threads each: {} requests leave the schedulers and wait at \
                     the common throttle in order of arrival",
                    shards * threads
                ),
                "set osd_op_num_shards = 1 and osd_op_num_threads_per_shard = 2 where the OSD's processor time allows it, and \
                 restart it"
                    .to_owned(),
            ));
        }
        obstacles
    }

    /// True if reservations are fractions of the capacity (0 to 1) rather than requests per second, recognised by a sum that
    /// is no whole number.
    fn are_shares(&self) -> bool {
        self.reserved.is_some_and(|reserved| reserved.fract() != 0.0)
    }
}

/// The finding for the OSD called `name`, from its answer `asked`.
pub fn judge(name: &str, asked: &Result<Scheduling, Error>) -> Finding {
    let finding = |presence, evidence, lost, cure| {
        Finding::new(name, "a throttle whose effect clients notice", presence, [evidence, lost, cure])
    };
    let scheduling = match asked {
        Ok(scheduling) => scheduling,
        Err(error) => {
            let lost = "this OSD cannot be controlled".to_owned();
            return finding(Presence::Missing, "its admin socket".into(), lost, error.to_string());
        }
    };
    let obstacles = scheduling.obstacles();
    let evidence = "its options".to_owned();
    if obstacles.is_empty() {
        return finding(Presence::Present, evidence, String::new(), String::new());
    }
    let (lost, cures): (Vec<_>, Vec<_>) = obstacles.into_iter().unzip();
    finding(Presence::Unsuitable, evidence, lost.join("; "), cures.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suitable() -> Scheduling {
        Scheduling {
            queue: "mclock_scheduler".into(),
            profile: Some("custom".into()),
            shards: [1, 1],
            threads: [2, 2],
            reserved: Some(3.0),
            capacity_iops: [Some(315.0), Some(21_500.0)],
        }
    }

    fn lost(scheduling: Scheduling) -> String {
        judge("osd.0", &Ok(scheduling)).lost
    }

    #[test]
    fn one_shard_with_small_reservations_is_suitable() {
        let finding = judge("osd.0", &Ok(suitable()));
        assert_eq!((finding.presence, finding.lost.as_str()), (Presence::Present, ""));
    }

    #[test]
    fn what_hides_the_effect_is_reported_with_a_cure() {
        assert!(lost(Scheduling { queue: "wpq".into(), ..suitable() }).contains("wpq"));
        let profile = Scheduling { profile: Some("high_client_ops".into()), ..suitable() };
        assert!(lost(profile).contains("high_client_ops reserves all"));
        let finding = judge("osd.0", &Ok(Scheduling { shards: [5, 8], threads: [1, 2], ..suitable() }));
        assert!(finding.lost.contains("16 requests"), "{}", finding.lost);
        assert!(finding.cure.contains("osd_op_num_shards = 1"));
        assert_eq!(finding.presence, Presence::Unsuitable);
    }

    #[test]
    fn over_committed_reservations_are_reported_in_either_unit() {
        assert!(lost(Scheduling { reserved: Some(400.0), ..suitable() }).contains("capacity or more"));
        assert!(lost(Scheduling { reserved: Some(1.2), ..suitable() }).contains("capacity or more"));
        assert_eq!(lost(Scheduling { reserved: Some(0.9), ..suitable() }), "");
        assert_eq!(lost(Scheduling { reserved: None, ..suitable() }), "");
    }

    #[test]
    fn an_osd_without_an_answer_is_reported_too() {
        let finding = judge("osd.7", &Err(Error::Absent { path: "/run/ceph/ceph-osd.7.asok".into() }));
        assert_eq!(finding.presence, Presence::Missing);
        assert!(finding.cure.contains("no process listens"), "{}", finding.cure);
    }
}
