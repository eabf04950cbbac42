//! Tests of the spelling of device models, and of the files that show every key.

use std::path::PathBuf;

use evenkeel_model::cached::{CachedParams, Promotion};
use evenkeel_model::device::DeviceParams;
use evenkeel_model::jitter::Jitter;
use evenkeel_model::ssd::SsdParams;
use evenkeel_model::store::StoreParams;

pub(super) fn read(text: &str) -> Result<DeviceParams, String> {
    let params: DeviceParams = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    params.validate().map_err(|error| error.to_string())?;
    Ok(params)
}

pub(super) fn file(name: &str) -> String {
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
}

/// The files set every key: they give the same device with any preset as their base.
#[test]
fn the_files_are_the_presets_key_by_key() {
    let cases = [
        ("sata", "sata", DeviceParams::Ssd(SsdParams::sata()), "nvme"),
        ("nvme", "nvme", DeviceParams::Ssd(SsdParams::nvme()), "sata"),
        ("store", "ssd", DeviceParams::Store(StoreParams::ssd()), "hdd"),
        ("cached", "paper", DeviceParams::Cached(CachedParams::paper()), "lab"),
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
    ];
    for (text, expected) in cases {
        let error = read(text).expect_err(text);
        assert!(error.starts_with(expected) && !error.contains("_bytes"), "{text:?}: {error}");
    }
}

#[test]
fn what_is_written_reads_back() {
    for text in ["kind = 'ssd'\npreset = 'nvme'\nblock = '8MiB'", "kind = 'store'\niops = 7"] {
        let device: DeviceParams = toml::from_str(text).expect(text);
        let written = toml::to_string(&device).expect(text);
        assert_eq!(toml::from_str::<DeviceParams>(&written), Ok(device), "{written}");
    }
}
