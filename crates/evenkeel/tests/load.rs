//! Tests of `evenkeel load` with real servers (nbdkit, qemu-nbd, evenkeel), and with the test server [`fake`], which misbehaves
//! on demand.

#[path = "load/fake.rs"]
mod fake;
#[path = "serve/folder.rs"]
mod folder;
#[path = "load/peers.rs"]
mod peers;
#[allow(dead_code, reason = "the server's tests use the rest")]
#[path = "../../server/tests/support/fake.rs"]
mod server;
#[path = "../../xtask/src/test/skip.rs"]
mod skip;
#[path = "load/tls.rs"]
mod tls;

use evenkeel_nbd::wire::Framing;
use fake::Fault;
use peers::{Load, Peer, need, scratch};

#[test]
fn counts_every_request_and_reports_it() {
    let Some(server) = Peer::start(&["memory", "64M"]) else { return };
    let run = Load::run(&[&server.uri(), "--requests", "5000", "--queue-depth", "16", "--connections", "3"]);
    let job = run.success();
    assert_eq!((job["requests"].as_u64(), job["bytes"].as_u64()), (Some(5000), Some(5000 * 4096)));
    assert_eq!(job["by_kind"]["read"]["requests"], 5000);
    assert_eq!((&job["framing"], &job["size_bytes"]), (&"structured".into(), &(64 << 20).into()));
    let latency = |key: &str| job["latency_us"][key].as_f64().unwrap();
    assert!(latency("min") > 0.0 && latency("min") <= latency("mean"));
    for pair in ["min", "p50", "p90", "p99", "p999", "max"].windows(2) {
        assert!(latency(pair[0]) <= latency(pair[1]), "{pair:?}: {}", job["latency_us"]);
    }
    let elapsed = job["elapsed_s"].as_f64().unwrap();
    assert!((job["iops"].as_f64().unwrap() * elapsed - 5000.0).abs() < 1.0);
}

#[test]
fn the_same_seed_sends_the_same_requests() {
    let requests = |seed: &str| {
        let (_dir, log) = scratch("log");
        let logfile = format!("logfile={}", log.display());
        let arguments = ["--filter=log", "memory", "64M", &logfile];
        let server = Peer::start(&arguments)?;
        let uri = server.uri();
        let mix = ["--op", "mix", "--block-size", "4k:80,64k:20", "--pattern", "zipf:1.1", "--trim-percent", "5"];
        let fixed = [&uri, "--requests", "300", "--flush-every", "10", "--seed", seed];
        Load::run(&[&fixed[..], &mix[..]].concat()).success();
        let text = std::fs::read_to_string(&log).unwrap();
        // Without time and request number, which differ.
        let line = |line: &str| {
            let call = ["Read", "Write", "Flush", "Trim"].iter().find_map(|name| line.find(&format!(" {name} ")))?;
            let ends = line.contains("..Read") || line.contains("..Write") || line.contains("return=");
            (!ends).then(|| {
                let words = line[call..].split_whitespace();
                words.filter(|word| !word.starts_with("id=")).collect::<Vec<_>>().join(" ")
            })
        };
        Some(text.lines().filter_map(line).collect::<Vec<_>>())
    };
    let (Some(first), Some(second), Some(other)) = (requests("7"), requests("7"), requests("8")) else { return };
    assert_eq!(first.len(), 300, "{first:?}");
    assert_eq!(first, second);
    assert_ne!(first, other);
}

#[test]
fn sound_servers_pass_verification() {
    let Some(server) = Peer::start(&["memory", "64M"]) else { return };
    let run = Load::run(&[
        &server.uri(),
        "--op",
        "mix",
        "--read-percent",
        "50",
        "--trim-percent",
        "2",
        "--zero-percent",
        "3",
        "--block-size",
        "4k:80,64k:20",
        "--queue-depth",
        "32",
        "--connections",
        "4",
        "--flush-every",
        "100",
        "--size",
        "16M",
        "--fill",
        "--verify",
        "--requests",
        "20000",
    ]);
    let job = run.success();
    // Reading back alone compares most of 16 MiB.
    assert!(job["verified_bytes"].as_u64().unwrap() > 12 << 20, "{job}");
}

#[test]
fn our_own_server_passes_verification_with_each_engine_and_back_end() {
    for engine in ["auto", "epoll"] {
        let volumes = "[volumes.ram]\nbackend = \"memory\"\nsize = \"16MiB\"\n[volumes.file]\nsize = \"16MiB\"\n";
        let server = peers::evenkeel(&format!("engine = \"{engine}\"\n"), volumes);
        for (volume, connections) in [("ram", "4"), ("file", "1"), ("file", "4")] {
            let journal = server.path(&format!("journal-{volume}-{connections}"));
            let journal = journal.to_str().unwrap();
            let uri = server.export(volume);
            let fixed = [&uri, "--op", "mix", "--read-percent", "50", "--block-size", "4k:70,16k:20,128k:10"];
            let sizes = ["--connections", connections, "--queue-depth", "16", "--requests", "4000", "--verify"];
            Load::run(&[&fixed[..], &sizes, &["--fill", "--trim-percent", "3", "--zero-percent", "3"]].concat())
                .success();
            let durable = ["--flush-every", "20", "--journal", journal, "--pattern", "zipf:1.1"];
            Load::run(&[&fixed[..], &sizes, &durable].concat()).success();
            let check = Load::run(&[&uri, "--check-journal", journal]);
            assert!(check.success()["verified_bytes"].as_u64().unwrap() > 0);
        }
    }
}

#[test]
fn a_server_that_forgets_is_found_out() {
    let Some(server) = Peer::start(&["null", "64M"]) else { return };
    let run = Load::run(&[&server.uri(), "--op", "mix", "--size", "1M", "--verify", "--requests", "5000"]);
    run.fails_with(&["the content is wrong at offset", "expected write", "got zeroes"]);
}

#[test]
fn errors_are_counted_by_their_number() {
    let faults = ["--filter=error", "memory", "16M", "error-pread=EIO", "error-pread-rate=100%", "error-pwrite=ENOSPC"];
    let arguments = [&faults[..], &["error-pwrite-rate=100%"]].concat();
    let Some(server) = Peer::start(&arguments) else { return };
    let uri = server.uri();
    let run = Load::run(&[&uri, "--op", "mix", "--requests", "200", "--queue-depth", "4"]);
    let report = run.fails_with(&["requests failed", "EIO", "ENOSPC", "the first: ", "at offset"]);
    let errors = &report["jobs"][0]["errors"];
    assert_eq!(errors["EIO"].as_u64().unwrap() + errors["ENOSPC"].as_u64().unwrap(), 200);
    assert_eq!(report["jobs"][0]["requests"], 0);
    let run = Load::run(&[&uri, "--op", "write", "--fill", "--verify", "--requests", "10"]);
    run.fails_with(&["filling the volume failed", "no space left"]);
}

#[test]
fn tcp_and_qemu_nbd_are_served_too() {
    if let Some(server) = Peer::start_tcp(&["memory", "16M"]) {
        Load::run(&[&server.uri(), "--requests", "500", "--queue-depth", "8"]).success();
    }
    if let Some(server) = peers::qemu_nbd() {
        let run = Load::run(&[&server.uri(), "--requests", "500", "--queue-depth", "8", "--headers", "simple"]);
        assert_eq!(run.success()["framing"], "simple");
    }
}

#[test]
fn a_read_only_export_is_read_and_not_written() {
    let Some(server) = Peer::start(&["-r", "memory", "16M"]) else { return };
    Load::run(&[&server.uri(), "--requests", "10"]).success();
    Load::run(&[&server.uri(), "--op", "write"]).fails_before_start(&["the export is read-only"]);
}

#[test]
fn a_lost_server_leaves_the_results_so_far() {
    let Some(mut server) = Peer::start(&["memory", "16M"]) else { return };
    let (_dir, journal) = scratch("journal");
    let path = journal.to_str().unwrap();
    let uri = server.uri();
    let load = Load::start(&[&uri, "--op", "write", "--fua", "--journal", path, "--duration", "10m"]);
    peers::wait_for_lines(&journal, 100);
    server.kill();
    let report = load.finish().fails_with(&["connection"]);
    assert!(report["jobs"][0]["requests"].as_u64().unwrap() >= 99);
}

#[test]
fn an_interrupt_prints_the_results_so_far() {
    let Some(server) = Peer::start(&["memory", "16M"]) else { return };
    let (_dir, journal) = scratch("journal");
    let path = journal.to_str().unwrap();
    let uri = server.uri();
    let load = Load::start(&[&uri, "--op", "write", "--fua", "--journal", path, "--duration", "10m"]);
    peers::wait_for_lines(&journal, 100);
    load.interrupt();
    let run = load.finish();
    assert!(run.success()["requests"].as_u64().unwrap() >= 99);
}

#[test]
fn durable_writes_are_recorded_and_their_loss_is_found() {
    if !need("nbdkit") {
        return;
    }
    let (dir, image) = scratch("image");
    let journal = dir.path().join("journal");
    let (image, journal) = (image.to_str().unwrap(), journal.to_str().unwrap());
    for durable in [&["--fua"][..], &["--flush-every", "7"]] {
        std::fs::write(image, vec![0; 4 << 20]).unwrap();
        let server = Peer::start(&["file", image]).unwrap();
        let uri = server.uri();
        let writes = [&uri, "--op", "write", "--block-size", "4k,16k", "--queue-depth", "16", "--requests", "2000"];
        Load::run(&[&writes[..], durable, &["--journal", journal]].concat()).success();
        assert!(std::fs::read_to_string(journal).unwrap().lines().count() > 500);
        let check = Load::run(&[&uri, "--check-journal", journal]);
        assert!(check.success()["verified_bytes"].as_u64().unwrap() > 1 << 20);
        drop(server);

        // One lost sector in the middle of something durable.
        let first = std::fs::read_to_string(journal).unwrap().lines().nth(1).unwrap().to_owned();
        let at: usize = first.split(' ').next().unwrap().parse().unwrap();
        let mut bytes = std::fs::read(image).unwrap();
        bytes[at + 512..at + 1024].fill(0);
        std::fs::write(image, &bytes).unwrap();
        let server = Peer::start(&["file", image]).unwrap();
        let words = format!("offset {}: expected write", at + 512);
        Load::run(&[&server.uri(), "--check-journal", journal]).fails_with(&[&words, "got zeroes"]);
    }
}

#[test]
fn a_rate_sends_what_is_due_and_no_more() {
    let Some(server) = Peer::start(&["memory", "16M"]) else { return };
    let uri = server.uri();
    let fixed = [&uri, "--rate", "2000", "--duration", "500ms", "--connections", "2", "--queue-depth", "64"];
    let run = Load::run(&[&fixed[..], &["--arrivals", "constant"]].concat());
    let job = run.success();
    // However slow the machine: each of the 1000 arrivals is either sent or counted as not sent.
    assert_eq!(job["requests"].as_u64().unwrap() + job["unsent"].as_u64().unwrap(), 1000, "{job}");
    let bursts = Load::run(&[&fixed[..], &["--arrivals", "constant", "--burst", "100ms:150ms"]].concat());
    let job = bursts.success();
    assert_eq!(job["requests"].as_u64().unwrap() + job["unsent"].as_u64().unwrap(), 400, "{job}");
}

#[test]
fn a_job_file_runs_several_tenants_at_once() {
    let Some(server) = Peer::start(&["memory", "16M"]) else { return };
    let (_dir, jobs) = scratch("jobs.toml");
    let text = "[[job]]\nname = \"bulk\"\nop = \"write\"\nblock_size = \"64k\"\nqueue_depth = 16\nrequests = 500\n\
                [[job]]\nname = \"light\"\nrequests = 50\n";
    std::fs::write(&jobs, text).unwrap();
    let run = Load::run(&[&server.uri(), "--jobs", jobs.to_str().unwrap()]);
    let report = run.report();
    let result =
        |index: usize| (report["jobs"][index]["name"].as_str().unwrap(), report["jobs"][index]["bytes"].as_u64());
    assert_eq!(result(0), ("bulk", Some(500 << 16)));
    assert_eq!(result(1), ("light", Some(50 << 12)));
}

#[test]
fn every_framing_is_spoken() {
    let framings = [(Framing::Extended, "extended"), (Framing::Structured, "structured"), (Framing::Simple, "simple")];
    for (offer, framing) in framings {
        let server = fake::Server::start(offer, Fault::None);
        let run = Load::run(&[
            &server.uri(),
            "--op",
            "mix",
            "--verify",
            "--fill",
            "--queue-depth",
            "8",
            "--connections",
            "2",
            "--requests",
            "3000",
        ]);
        assert_eq!(run.success()["framing"], framing);
    }
}

#[test]
fn what_a_bad_server_does_is_named() {
    for (fault, words) in [
        (Fault::Silence, "answered nothing on a connection with"),
        (Fault::WrongCookie, "not outstanding"),
        (Fault::Garbage, "magic number"),
        (Fault::HangUp, "closed the connection"),
        (Fault::WrongByte, "the content is wrong at offset"),
    ] {
        let server = fake::Server::start(Framing::Extended, fault);
        let fixed = [&server.uri(), "--op", "mix", "--verify", "--requests", "10000"];
        // Only silence is waited for. Elsewhere a slow moment would be taken for it.
        let patience = if fault == Fault::Silence { &["--timeout", "300ms"][..] } else { &[] };
        Load::run(&[&fixed[..], patience].concat()).fails_with(&[words]);
    }
}

#[test]
fn what_cannot_work_is_refused_before_it_starts() {
    let server = fake::Server::start(Framing::Extended, Fault::None);
    let uri = server.uri();
    for (arguments, words) in [
        (&["--verify"][..], "add --fill"),
        (&["--op", "write", "--journal", "x"], "add --fua or --flush-every"),
        (&["--op", "write", "--fua", "--journal", "-"], "give the journal a file"),
        (&["--block-size", "1000", "--op", "write", "--verify"], "multiples of 512"),
    ] {
        Load::run(&[&[uri.as_str()], arguments].concat()).is_misused(&[words]);
    }
    for (arguments, words) in [
        (&["--offset", "1t"][..], "beyond the end"),
        (&["--size", "1t"], "beyond the end"),
        (&["--connections", "8", "--threads", "8", "--op", "write", "--verify", "--size", "8k"], "too small"),
        (&["--block-size", "32m"], "smaller than a block"),
    ] {
        Load::run(&[&[uri.as_str()], arguments].concat()).fails_before_start(&[words]);
    }
    Load::run(&[]).is_misused(&["give a URI or --jobs FILE"]);
    let warm = Load::run(&[&uri, "--requests", "10", "--warmup", "60s"]);
    warm.fails_with(&["no request was measured: all fell into --warmup"]);
    Load::run(&["nbd+unix:///?socket=/nonexistent/socket"]).fails_before_start(&["cannot use", "No such file"]);
}
