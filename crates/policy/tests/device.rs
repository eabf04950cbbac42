//! Tests of the spelling of device models, and of the files that show every key.

use std::path::PathBuf;

use evenkeel_control::Duration;
use evenkeel_control::units::Kind;
use evenkeel_model::cached::{CachedParams, Promotion};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::disk::{DiskParams, Scheduling};
use evenkeel_model::jitter::Jitter;
use evenkeel_model::raid::Raid0Params;
use evenkeel_model::ssd::SsdParams;
use evenkeel_model::store::StoreParams;
use evenkeel_model::surface::SurfaceParams;

fn read(text: &str) -> Result<DeviceParams, String> {
    let params: DeviceParams = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    params.validate().map_err(|error| error.to_string())?;
    Ok(params)
}

fn file(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/devices").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn presets_are_the_models() {
    assert_eq!(read("kind = 'store'"), Ok(DeviceParams::Store(StoreParams::ssd())));
    assert_eq!(read("kind = 'store'\npreset = 'hdd'"), Ok(DeviceParams::Store(StoreParams::hdd())));
    assert_eq!(read("kind = 'ssd'"), Ok(DeviceParams::Ssd(SsdParams::sata())));
    assert_eq!(read("kind = 'ssd'\npreset = 'nvme'"), Ok(DeviceParams::Ssd(SsdParams::nvme())));
    assert_eq!(read("kind = 'cached'"), Ok(DeviceParams::Cached(CachedParams::paper())));
    assert_eq!(read("kind = 'cached'\npreset = 'lab'"), Ok(DeviceParams::Cached(CachedParams::lab())));
    assert_eq!(read("kind = 'disk'"), Ok(DeviceParams::Disk(DiskParams::nearline())));
    assert_eq!(read("kind = 'disk'\npreset = 'cheetah9lp'"), Ok(DeviceParams::Disk(DiskParams::cheetah9lp())));
    assert_eq!(read("kind = 'surface'"), Ok(DeviceParams::Surface(SurfaceParams::default())));
    let member = Box::new(DeviceParams::Disk(DiskParams::nearline()));
    let raid = Raid0Params { members: 4, stripe_bytes: 65_536, member };
    assert_eq!(read("kind = 'raid0'"), Ok(DeviceParams::Raid0(raid.clone())));
    assert_eq!(read(&file("raid0.toml")), Ok(DeviceParams::Raid0(raid)));
}

/// The files set every key: they give the same device with any preset as their base.
#[test]
fn the_files_are_the_presets_key_by_key() {
    let cases = [
        ("sata", "sata", DeviceParams::Ssd(SsdParams::sata()), "nvme"),
        ("nvme", "nvme", DeviceParams::Ssd(SsdParams::nvme()), "sata"),
        ("store", "ssd", DeviceParams::Store(StoreParams::ssd()), "hdd"),
        ("cached", "paper", DeviceParams::Cached(CachedParams::paper()), "lab"),
        ("cheetah9lp", "cheetah9lp", DeviceParams::Disk(DiskParams::cheetah9lp()), "nearline"),
    ];
    for (name, preset, params, other) in cases {
        let text = file(&format!("{name}.toml"));
        assert_eq!(read(&text), Ok(params.clone()), "{name}");
        let (own, others) = (format!("preset = \"{preset}\""), format!("preset = \"{other}\""));
        assert!(text.contains(&own));
        assert_eq!(read(&text.replace(&own, &others)), Ok(params), "{name} from {other}");
    }
}

#[test]
fn keys_replace_what_the_preset_says() {
    let text =
        "kind = 'ssd'\nqueue_depth = 8\nlink_bandwidth = '300MB'\npage = '4KiB'\nslc = 0\njitter = 0.0\nused = 0.9";
    let Ok(DeviceParams::Ssd(params)) = read(text) else { panic!("{:?}", read(text)) };
    assert_eq!((params.queue_depth, params.link_bandwidth_bytes_per_s), (8, 300_000_000));
    assert_eq!((params.geometry.page_bytes, params.slc_bytes, params.geometry.used), (4_096, 0, 0.9));
    assert_eq!(params.jitter, Jitter::None);
    assert_eq!(params.program_time, SsdParams::sata().program_time);
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
fn a_cached_device_takes_its_keys_and_names_those_at_fault() {
    let text = "kind = 'cached'\nfast_size = '1GB'\nslow_bandwidth = '80MB'\npromote_after = 3\nwrite_back = '5MB'\ndirty_above = 0.2";
    let expected = CachedParams {
        fast_bytes: 1_000_000_000,
        slow_bytes_per_s: 80_000_000,
        promotion: Promotion::Reused { misses: 3 },
        write_back_bytes_per_s: 5_000_000,
        dirty_above: 0.2,
        ..CachedParams::paper()
    };
    assert_eq!(read(text), Ok(DeviceParams::Cached(expected)));
    for (keys, complaint) in [
        ("block = '5GiB'", "block: must be less than 4GiB"),
        ("block = '32MiB'", "block must be 512 B to 16 MiB"),
        ("fast_size = '1KiB'", "fast_size must be 1 to 1000000 blocks"),
        ("slow_bandwidth = 5", "slow_bandwidth must be"),
        ("write_back = '1GB'", "write_back must be at most slow_bandwidth"),
        ("dirty_above = 2.0", "dirty_above must be 0 to 1"),
        ("promote_after = 256", "promote_after"),
        ("jitter = 0.1", "unknown field `jitter`"),
    ] {
        let told = read(&format!("kind = 'cached'\n{keys}")).expect_err(keys);
        assert!(told.contains(complaint), "{keys}: {told}");
    }
}

#[test]
fn what_is_wrong_is_named_with_what_would_be_right() {
    let zone = "zones = [{ first_cylinder = 5, last_cylinder = 2, blocks_per_track = 100 }]";
    let cases = [
        ("preset = 'sata'", "missing field `kind`"),
        ("kind = 'sdd'", "unknown variant `sdd`, expected one of `store`, `ssd`, `disk`, `raid0`, `cached`"),
        ("kind = 'ssd'\npreset = 'sas'", "preset: unknown variant `sas`, expected `sata` or `nvme`"),
        ("kind = 'ssd'\niops = 5", "unknown field `iops`"),
        ("kind = 'store'\ndies = 5", "unknown field `dies`"),
        ("kind = 'ssd'\nprogram_time = 5", "program_time: "),
        (
            "kind = 'ssd'\nprogram_time = '5 parsecs'",
            "program_time: \"5 parsecs\" is not a length of time; write a number",
        ),
        ("kind = 'ssd'\nblock = '64Kxb'", "block: \"64Kxb\" is not a number of whole bytes"),
        ("kind = 'ssd'\nlink_bandwidth = 0", "link_bandwidth must be greater than 0"),
        ("kind = 'ssd'\nchannels = 99", "dies must be at least as many as channels"),
        ("kind = 'ssd'\npage = 5000", "page must be a multiple of 4 KiB up to 16 MiB"),
        ("kind = 'ssd'\nprogram = '5GiB'", "program: must be less than 4GiB"),
        ("kind = 'ssd'\ncapacity = '1MiB'", "capacity must be 1 GiB to 1 PiB"),
        ("kind = 'ssd'\nused = 1.5", "used must be 0 to 1"),
        ("kind = 'ssd'\nused = nan", "used must be 0 to 1"),
        ("kind = 'ssd'\nspare_percent = 0.0", "spare_percent must be 1 to 100"),
        ("kind = 'ssd'\njitter = 3.0", "jitter must be 0 to 2"),
        ("kind = 'ssd'\nbuffer = '4KiB'", "buffer must be at least program"),
        ("kind = 'ssd'\nblock = '4KiB'", "block must be at least program"),
        ("kind = 'ssd'\nqueue_depth = 0", "queue_depth must be 1 to 65536"),
        ("kind = 'store'\nbandwidth = 0", "bandwidth must be greater than 0"),
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
        assert!(error.starts_with(expected) && !error.contains("_bytes"), "{text:?}: {error}");
    }
}

/// A point of a table in TOML, with these keys beside the latencies.
fn point(keys: &str) -> String {
    let latency = (1..=12).map(|n| format!("'{n}0us'")).collect::<Vec<_>>().join(", ");
    format!("kind = 'surface'\npoints = [{{ {keys}, latency = [{latency}] }}]")
}

#[test]
fn a_table_of_latencies_takes_its_keys_and_names_those_at_fault() {
    let text = point("kind = 'write', sequential = true, bytes = '64KiB', in_flight = 8");
    let Ok(DeviceParams::Surface(table)) = read(&text) else { panic!("{:?}", read(&text)) };
    let [point_read] = &table.points[..] else { panic!("{table:?}") };
    assert_eq!((point_read.kind, point_read.sequential), (Kind::Write, true));
    assert_eq!((point_read.bytes, point_read.in_flight), (65_536, 8));
    assert_eq!(point_read.latency[11], Duration::from_micros(120));
    let written = toml::to_string(&DeviceParams::Surface(table.clone())).expect("written");
    assert_eq!(read(&written), Ok(DeviceParams::Surface(table)), "{written}");
    for (keys, complaint) in [
        ("kind = 'trim', bytes = 0, in_flight = 1", "use read, write, flush or meta as kind of a point"),
        ("kind = 'read', bytes = 0, in_flight = 0", "in_flight must be at least 1"),
        ("kind = 'read', bytes = 0, in_flight = 1, depth = 1", "unknown field `depth`"),
        ("kind = 'read', in_flight = 1", "missing field `bytes`"),
    ] {
        let said = read(&point(keys)).expect_err(keys);
        assert!(said.contains(complaint), "{keys}: {said}");
    }
    let Ok(DeviceParams::Surface(shown)) = read(&file("surface.toml")) else { panic!("no table") };
    assert_eq!(shown.points.iter().map(|point| point.in_flight).collect::<Vec<_>>(), [1, 32]);
    assert!(read("kind = 'surface'\npoints = []").expect_err("empty").contains("points must be 1 to 10000 points"));
}

#[test]
fn what_is_written_reads_back() {
    let member = "kind = 'raid0'\nmember = { kind = 'raid0' }".to_owned();
    let disks = [file("cheetah9lp.toml"), file("raid0.toml"), file("surface.toml"), member];
    let others = ["kind = 'ssd'\npreset = 'nvme'\nblock = '8MiB'", "kind = 'store'\niops = 7"];
    for text in disks.into_iter().chain(others.map(str::to_owned)) {
        let device: DeviceParams = toml::from_str(&text).expect(&text);
        let written = toml::to_string(&device).expect(&text);
        assert_eq!(toml::from_str::<DeviceParams>(&written), Ok(device), "{written}");
    }
}
