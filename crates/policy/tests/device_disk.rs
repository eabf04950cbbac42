//! Tests of the spelling of models of disks and of arrays of disks, and of the files that show every key.

use evenkeel_model::device::DeviceParams;
use evenkeel_model::disk::{DiskParams, Scheduling};
use evenkeel_model::raid::Raid0Params;

use super::device::{file, read};

#[test]
fn presets_are_the_models() {
    assert_eq!(read("kind = 'disk'"), Ok(DeviceParams::Disk(DiskParams::nearline())));
    assert_eq!(read("kind = 'disk'\npreset = 'cheetah9lp'"), Ok(DeviceParams::Disk(DiskParams::cheetah9lp())));
    let member = Box::new(DeviceParams::Disk(DiskParams::nearline()));
    let raid = Raid0Params { members: 4, stripe_bytes: 65_536, member };
    assert_eq!(read("kind = 'raid0'"), Ok(DeviceParams::Raid0(raid.clone())));
    assert_eq!(read(&file("raid0.toml")), Ok(DeviceParams::Raid0(raid)));
}

/// The file sets every key: it gives the same disk with any preset as its base.
#[test]
fn the_file_is_the_preset_key_by_key() {
    let text = file("cheetah9lp.toml");
    assert_eq!(read(&text), Ok(DeviceParams::Disk(DiskParams::cheetah9lp())));
    let other = text.replace("preset = \"cheetah9lp\"", "preset = \"nearline\"");
    assert_ne!(text, other);
    assert_eq!(read(&other), Ok(DeviceParams::Disk(DiskParams::cheetah9lp())));
}

#[test]
fn keys_replace_what_the_preset_says() {
    let text = "kind = 'disk'\nrpm = 5400\nscheduling = 'elevator'\nwrite_back = false\nbus_bandwidth = '300MB'";
    let Ok(DeviceParams::Disk(disk)) = read(text) else { panic!("{:?}", read(text)) };
    assert_eq!((disk.rpm, disk.scheduling, disk.cache.write_back), (5_400, Scheduling::Elevator, false));
    assert_eq!(disk.bus_bandwidth_bytes_per_s, 300_000_000);
    assert_eq!(disk.zones, DiskParams::nearline().zones);
    let text = "kind = 'raid0'\nmembers = 2\nstripe = '1MiB'\nmember = { kind = 'disk', queue_depth = 4 }";
    let Ok(DeviceParams::Raid0(raid)) = read(text) else { panic!("{:?}", read(text)) };
    assert_eq!((raid.members, raid.stripe_bytes), (2, 1 << 20));
    assert_eq!(*raid.member, DeviceParams::Disk(DiskParams { queue_depth: 4, ..DiskParams::nearline() }));
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    let zone = "zones = [{ first_cylinder = 5, last_cylinder = 2, blocks_per_track = 100 }]";
    let cases = [
        ("kind = 'disk'\npreset = 'ssd'", "preset: unknown variant `ssd`, expected `nearline` or `cheetah9lp`"),
        ("kind = 'disk'\ndies = 5", "unknown field `dies`"),
        ("kind = 'disk'\nrpm = 0", "rpm must be 1 to 100000"),
        ("kind = 'disk'\nrpm = -1", "rpm: "),
        ("kind = 'disk'\nrpm = nan", "rpm: "),
        ("kind = 'disk'\nzones = []", "zones must be at least one"),
        (&format!("kind = 'disk'\n{zone}"), "zones must be in rising order of cylinders"),
        ("kind = 'disk'\nzones = [{ first_cylinder = 5 }]", "zones: missing field `last_cylinder`"),
        ("kind = 'disk'\ncapacity = '1PiB'", "capacity must be at least 512 and at most what the zones hold"),
        ("kind = 'disk'\nseek = []", "seek must be at least one pair"),
        ("kind = 'disk'\nseek = [[5, '2ms'], [1, '3ms']]", "seek must be pairs of rising distance"),
        ("kind = 'disk'\nseek = [[1, 2]]", "seek: "),
        ("kind = 'disk'\nscheduling = 'noop'", "scheduling: unknown variant `noop`"),
        ("kind = 'disk'\nqueue_depth = 0", "queue_depth must be 1 to 1024"),
        ("kind = 'disk'\nsegments = 1", "segments must be 2 to 4096"),
        ("kind = 'disk'\nread_ahead_blocks = 100000", "read_ahead_blocks must be at most segment_blocks"),
        ("kind = 'disk'\nbus_bandwidth = 0", "bus_bandwidth must be greater than 0"),
        ("kind = 'raid0'\nmembers = 0", "members must be 1 to 1024"),
        ("kind = 'raid0'\nstripe = 100", "stripe must be 512 B to 1 TiB"),
        ("kind = 'raid0'\nmember = { kind = 'disk', rpm = 0 }", "member.rpm must be"),
        ("kind = 'raid0'\nmember = { rpm = 5 }", "member: missing field `kind`"),
    ];
    for (text, expected) in cases {
        let error = read(text).expect_err(text);
        assert!(error.starts_with(expected), "{text:?}: {error}");
    }
}

#[test]
fn what_is_written_reads_back() {
    let texts = [file("cheetah9lp.toml"), file("raid0.toml"), "kind = 'raid0'\nmember = { kind = 'raid0' }".to_owned()];
    for text in texts {
        let device: DeviceParams = toml::from_str(&text).unwrap();
        let written = toml::to_string(&device).unwrap();
        assert_eq!(toml::from_str::<DeviceParams>(&written), Ok(device), "{written}");
    }
}
