//! Preflight checks of the queues of arrays that hosts share, and of the etcd of these hosts' cluster.

use evenkeel_policy::figures::counted;

use crate::config::Config;
use crate::discovery::roots::{self, Roots};
use crate::sensor::queue::{self, Queue};

use super::{Finding, Presence};

/// One finding for each volume of the arrays of `config`: whether the lengths of the volume's queues can be set.
pub fn judge(config: &Config, roots: &Roots) -> Vec<Finding> {
    let volumes = config.arrays.iter().flat_map(|(array, settings)| {
        settings.volumes.iter().map(move |(name, volume)| (format!("{array}/{name}"), volume.device.as_str()))
    });
    volumes.map(|(part, device)| judge_volume(&part, device, roots)).collect()
}

fn judge_volume(part: &str, device: &str, roots: &Roots) -> Finding {
    let finding = |presence, evidence, lost: &str, cure| {
        let purpose = "slots of an array, by the lengths of its disks' queues";
        Finding::new(part, purpose, presence, [evidence, lost.into(), cure])
    };
    let lost = "requests of the volume cannot be throttled";
    match queue::find(roots, device) {
        Err(why) => finding(Presence::Missing, device.to_owned(), lost, why.to_string()),
        Ok(queues) => {
            let said: Result<Vec<String>, String> = queues.iter().map(length).collect();
            match said {
                Ok(lengths) => finding(Presence::Present, lengths.join("; "), "", String::new()),
                Err(why) => finding(Presence::Unsuitable, device.to_owned(), lost, why),
            }
        }
    }
}

/// A text with the present length of a queue, and the range within which the agent keeps the length; the present length is
/// the upper end of this range. An error says how to make the length readable.
fn length(queue: &Queue) -> Result<String, String> {
    let text = roots::text(&queue.path).map_err(|why| format!("make {} readable: {why}", queue.path.display()))?;
    let now: u32 = text.trim().parse().map_err(|_| {
        format!(
            "{} has {:?} instead of a number: a defect of its driver; report it to its maker",
            queue.path.display(),
            text.trim()
        )
    })?;
    let each = if queue.queues.get() > 1 { format!(" of each of {} queues", queue.queues) } else { String::new() };
    let (disk, knob, least) = (&queue.disk, queue.knob, queue.knob.least().min(now));
    Ok(format!("{disk}: {} {now}{each}, kept within {least} to {now}", knob.name()))
}

/// The finding about one address of etcd. `answer`: the number of members that etcd knows, or the reason why it does not
/// answer.
pub fn judge_etcd(endpoint: &str, answer: &Result<u64, String>) -> Finding {
    let finding = |presence, evidence, lost: &str, cure| {
        let purpose = "slots decided together with other hosts";
        Finding::new(endpoint, purpose, presence, [evidence, lost.into(), cure])
    };
    match answer {
        Ok(members) => finding(
            Presence::Present,
            format!("etcd answers, and knows {}", counted(*members, "member")),
            "",
            String::new(),
        ),
        Err(why) => finding(
            Presence::Missing,
            "the request to etcd failed".into(),
            "without any etcd each host decides alone, by the latency that it measures",
            format!("start etcd or correct cluster.etcd: {why}"),
        ),
    }
}
