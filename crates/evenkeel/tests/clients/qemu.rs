//! Tests of content and holes with the NBD clients `qemu-img` and `qemu-io`.

use std::fs;

use serde_json::Value;

use crate::harness::{Case, DATA, MIB, SIZE, VOLUMES, assert_same, assert_sparse};

on_both_engines! {
    qemu_img_converts_compares_and_maps: "qemu-img" "qemu-io";
    qemu_img_bench_writes_what_it_says: "qemu-img" "nbdcopy";
    qemu_io_finds_the_patterns_it_wrote: "qemu-io" "nbdcopy";
    qemu_io_discards_and_writes_zeros: "qemu-io" "qemu-img" "nbdcopy";
    qemu_io_writes_with_many_requests_in_flight: "qemu-io";
    qemu_io_cannot_write_a_read_only_volume: "qemu-io";
}

/// Runs `qemu-io` on the volume at `uri` with these commands, asserts that it succeeds, and returns its output.
#[track_caller]
fn io(case: &Case, uri: &str, commands: &[&str]) -> String {
    let mut words = vec!["qemu-io", "-f", "raw"];
    words.extend(commands.iter().flat_map(|&command| ["-c", command]));
    words.push(uri);
    case.succeed(&words)
}

/// Start and end, in bytes, of each range of a volume that is data and no hole, as `qemu-img map` prints them.
fn data_ranges(case: &Case, uri: &str) -> Vec<(u64, u64)> {
    let map = case.json(&["qemu-img", "map", "--output=json", "-f", "raw", uri]);
    let extents = map.as_array().expect("a list");
    let number = |extent: &Value, key: &str| extent[key].as_u64().expect("a number");
    let mut at = 0;
    let mut ranges = Vec::new();
    for extent in extents {
        let (start, length) = (number(extent, "start"), number(extent, "length"));
        assert_eq!(start, at, "a gap in {map}");
        at = start + length;
        if extent["data"] == true {
            ranges.push((start, at));
        } else {
            assert_eq!(extent["zero"], true, "{map}");
        }
    }
    assert_eq!(at, SIZE, "{map}");
    ranges
}

fn qemu_img_converts_compares_and_maps(case: &Case) {
    let server = case.serve();
    let (image, content) = case.image();
    let (qcow, raw) = (case.file("copy.qcow2"), case.file("copy.img"));
    for volume in VOLUMES {
        for (uri, options) in server.uris(volume).into_iter().zip([&["-m", "1"][..], &["-m", "8", "-W"]]) {
            io(case, &uri, &[&format!("write -P 0x5a 0 {SIZE}")]);
            let to = [&["qemu-img", "convert"][..], options, &["-n", "-f", "raw", "-O", "raw", &image, &uri]].concat();
            case.succeed(&to);
            assert_eq!(data_ranges(case, &uri), DATA, "{uri}");
            case.succeed(&["qemu-img", "convert", "-f", "raw", "-O", "qcow2", &uri, &qcow]);
            let compare = ["qemu-img", "compare", "-f", "raw", "-F", "qcow2", &uri, &qcow];
            assert!(case.succeed(&compare).contains("identical"));
            case.succeed(&["qemu-img", "convert", "-f", "qcow2", "-O", "raw", &qcow, &raw]);
            assert_same(&fs::read(&raw).expect("the copy"), &content, &uri);
            assert_sparse(&case.path("copy.img"));
            // One byte is enough for a difference.
            io(case, &uri, &["write -P 0x77 20000001 1"]);
            let differing = case.run(&compare);
            assert_eq!(differing.status.code(), Some(1), "{uri}");
            assert_eq!(case.json(&["qemu-img", "info", "--output=json", "-f", "raw", &uri])["virtual-size"], SIZE);
        }
    }
    server.stop();
}

fn qemu_img_bench_writes_what_it_says(case: &Case) {
    let server = case.serve();
    for volume in VOLUMES {
        for (uri, pattern) in server.uris(volume).into_iter().zip([0x21_u8, 0x43]) {
            let written = 4 * MIB as usize;
            let pattern_option = format!("--pattern={pattern}");
            let bench = ["qemu-img", "bench", "-f", "raw", "-d", "32", "-s", "4096", "-c"];
            let write = [&bench[..], &["1024", "-w", &pattern_option]].concat();
            let said = case.succeed(&[&write[..], &["--flush-interval=128", &uri]].concat());
            assert!(said.contains("Run completed"), "{said}");
            let content = case.content(&uri);
            assert_same(&content[..written], &vec![pattern; written], &uri);
            assert_same(&content[written..], &vec![0; content.len() - written], &uri);
            let before = server.requests();
            case.succeed(&[&bench[..], &["2000", &uri]].concat());
            assert!(server.requests() - before >= 2000, "{uri}");
        }
    }
    server.stop();
}

fn qemu_io_finds_the_patterns_it_wrote(case: &Case) {
    let server = case.serve();
    for volume in VOLUMES {
        for (n, uri) in server.uris(volume).into_iter().enumerate() {
            // Aligned, with FUA, at odd offsets and lengths, across the edges of pages and chunks, and at the very end.
            let writes = [
                ("", 0, 1 << 20),
                ("-f", 4 << 20, 65536),
                ("", 8_388_607, 2),
                ("-f", 10_000_001, 99_999),
                ("", SIZE - 1, 1),
            ];
            let mut expected = if n == 0 { vec![0; SIZE as usize] } else { case.content(&uri) };
            let mut commands = Vec::new();
            for (i, (flags, offset, length)) in writes.into_iter().enumerate() {
                let pattern = 1 + n * writes.len() + i;
                commands.push(format!("write {flags} -P {pattern} {offset} {length}"));
                commands.push(format!("read -P {pattern} {offset} {length}"));
                expected[offset as usize..offset as usize + length].fill(pattern as u8);
            }
            commands.push("flush".into());
            io(case, &uri, &commands.iter().map(String::as_str).collect::<Vec<_>>());
            assert_same(&case.content(&uri), &expected, &uri);
            if volume != "memory" {
                let stored = fs::read(case.path(&format!("{volume}.img"))).expect("the volume's file");
                assert_same(&stored, &expected, volume);
            }
            // That the client would have told.
            let wrong = case.run(&["qemu-io", "-f", "raw", "-c", "read -P 0xee 0 4096", &uri]);
            assert_eq!(wrong.status.code(), Some(1), "{uri}");
        }
    }
    server.stop();
}

fn qemu_io_discards_and_writes_zeros(case: &Case) {
    let server = case.serve();
    for volume in VOLUMES {
        for uri in server.uris(volume) {
            io(
                case,
                &uri,
                &[
                    "write -P 0x5a 0 8M",
                    // Keeps its room; gives it back; as a discard; inside of pages.
                    "write -z 1M 1M",
                    "write -z -u 3M 1M",
                    "discard 5M 1M",
                    "write -z -f 7000001 1001",
                    "flush",
                    "read -P 0 1M 1M",
                    "read -P 0 3M 1M",
                    "read -P 0 5M 1M",
                    "read -P 0 7000001 1001",
                ],
            );
            let mut expected = vec![0; SIZE as usize];
            expected[..8 << 20].fill(0x5a);
            for (offset, length) in [(1 << 20, 1 << 20), (3 << 20, 1 << 20), (5 << 20, 1 << 20), (7_000_001, 1001)] {
                expected[offset..offset + length].fill(0);
            }
            assert_same(&case.content(&uri), &expected, &uri);
            let data = data_ranges(case, &uri);
            for freed in [3 * MIB, 5 * MIB] {
                let inside = |&(start, end): &(u64, u64)| start < freed + MIB && end > freed;
                assert!(!data.iter().any(inside), "{freed} is not a hole of {uri}: {data:?}");
            }
        }
    }
    server.stop();
}

fn qemu_io_writes_with_many_requests_in_flight(case: &Case) {
    let server = case.serve();
    for volume in VOLUMES {
        for uri in server.uris(volume) {
            let mut commands: Vec<String> =
                (0..64).map(|n| format!("aio_write -P {} {} 128k", n + 1, n * 131_072)).collect();
            commands.push("aio_flush".into());
            commands.extend((0..64).map(|n| format!("aio_read -P {} {} 128k", n + 1, n * 131_072)));
            commands.push("aio_flush".into());
            let said = io(case, &uri, &commands.iter().map(String::as_str).collect::<Vec<_>>());
            assert_eq!(said.matches("wrote 131072/131072").count(), 64, "{said}");
            assert_eq!(said.matches("read 131072/131072").count(), 64, "{said}");
            assert!(!said.contains("failed"), "{said}");
        }
    }
    server.stop();
}

fn qemu_io_cannot_write_a_read_only_volume(case: &Case) {
    let server = case.serve_with(&[], "[volumes.v]\nbackend = \"memory\"\nsize = \"1MiB\"\nread_only = true\n");
    for uri in server.uris("v") {
        let complaint = case.fail(&["qemu-io", "-f", "raw", "-c", "write 0 4096", &uri]);
        assert!(complaint.contains("Permission denied"), "{complaint}");
        let said = case.succeed(&["qemu-io", "-r", "-f", "raw", "-c", "read -P 0 0 1M", &uri]);
        assert!(said.contains("read 1048576/1048576"), "{said}");
    }
    server.stop();
}
