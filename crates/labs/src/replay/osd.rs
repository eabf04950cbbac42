//! The trial on a Ceph OSD: images of a cluster on this machine, through librbd.

use std::time::Duration;

use anyhow::Result;

use super::stage::{Device, POOL, Stage, VOLUME_BYTES, image};
use super::{RECORDED_S, Round, Setting, TENANTS, all_measured};
use crate::base::packages;
use crate::base::scratch::Scratch;
use crate::ceph::cluster::{self, Cluster, FLASH, Plan};
use crate::ceph::pace;
use crate::check::run::Options;

/// Speed at which the OSD's device writes, in bytes per second: that of the emulated device, and above the bulk writer's limit.
const SPEED: u64 = 60_000_000;

/// The reason why the trial cannot run here; `None` if it can.
pub(super) fn missing() -> Option<String> {
    let programs = [&cluster::PROGRAMS[..], &["rbd", "cc"]].concat();
    packages::missing_text(&programs).or_else(cluster::missing)
}

/// Measures so many rounds on a cluster that runs for as long.
pub(super) fn rounds(options: &Options, scratch: &Scratch, settings: &[&Setting], count: u64) -> Vec<Result<Round>> {
    match start(options) {
        Ok(cluster) => {
            let stage = Stage::new(scratch.path(), &options.binary, RECORDED_S[1]).on_cluster(cluster.conf());
            all_measured(&stage, Device::Rbd, settings, count)
        }
        Err(error) => vec![Err(error)],
    }
}

/// Starts a cluster of one OSD with the images, which are full of data, and paces the OSD's device.
fn start(options: &Options) -> Result<Cluster> {
    let cluster = Cluster::start(Plan { name: "replay", osds: 1, settings: FLASH }, options, pace::prepare)?;
    cluster.create_pool(POOL, 1)?;
    cluster.rbd(&["pool", "init", POOL])?;
    for command in TENANTS.into_iter().flat_map(commands) {
        cluster.rbd(&command.split(' ').collect::<Vec<_>>())?;
    }
    pace::set(cluster.folder(), SPEED, Duration::ZERO)?;
    Ok(cluster)
}

/// Arguments of `rbd`: the first command makes the image of a tenant, the second writes each of its blocks once.
fn commands(tenant: &str) -> [String; 2] {
    let (image, mib) = (image(tenant), VOLUME_BYTES >> 20);
    [
        format!("create {image} --size {mib}M"),
        format!("bench {image} --io-type write --io-pattern seq --io-threads 1 --io-size 4M --io-total {mib}M"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_the_size_of_the_volume_and_is_full() {
        let value = |command: &str, key: &str| {
            let mut words = command.split(' ').skip_while(|word| *word != key);
            words.nth(1).and_then(|size| size.strip_suffix('M')?.parse::<u64>().ok()).unwrap() << 20
        };
        for tenant in TENANTS {
            let [create, fill] = commands(tenant);
            assert!(create.starts_with(&format!("create rbd/{tenant} ")), "{create}");
            assert!(fill.starts_with(&format!("bench rbd/{tenant} ")), "{fill}");
            assert_eq!(value(&create, "--size"), VOLUME_BYTES);
            assert_eq!(value(&fill, "--io-total"), VOLUME_BYTES);
            // Otherwise the end of the image would stay empty.
            assert!(VOLUME_BYTES.is_multiple_of(value(&fill, "--io-size")), "{fill}");
        }
    }
}
