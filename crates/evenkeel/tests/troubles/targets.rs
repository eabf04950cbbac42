//! Troubles of targets: a pool's limit that binds, a noisy tenant, and a latency target below the device's latency.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::server::{Folder, Load, Server, run, succeed, until};
use super::stage::{PATIENCE, Trouble, event, state, with_words};

/// Requests of a tenant that writes as much as it can, and of one that reads now and then.
const WRITES: [&str; 6] = ["--op", "write", "--block-size", "32KiB", "--queue-depth", "64"];
const READS: [&str; 2] = ["--op", "read"];
/// Longest time until a target that cannot be met is called unachievable.
const UNACHIEVABLE_WITHIN: Duration = Duration::from_secs(30);

/// A modelled device on which the writes of the tenant `backup` make each read of the tenant `database` wait for 100 ms, without
/// tables of tenants. `target`: latency target of the reads; `device`: further keys of the device.
fn device(target: &str, device: &str) -> String {
    format!(
        "[pools.main]\nlatency.target = \"{target}\"\ntuning.admission = \"none\"\n\
         [pools.main.emulate]\nbandwidth = \"20MB\"\n{device}\
         [volumes.backup]\nbackend = \"emulate\"\nsize = \"8MiB\"\n\
         [volumes.database]\nbackend = \"emulate\"\nsize = \"8MiB\"\n[tenants.database]\n"
    )
}

#[test]
fn a_limit_of_a_pool_that_binds() {
    let folder = Folder::new();
    let text = "[pools.main]\nlimit = { iops = 100 }\n[tenants.shop]\nreservation = { iops = 1000 }\n\
                [volumes.shop]\nbackend = \"memory\"\nsize = \"16MiB\"\n";
    let server = Server::configured(&folder, text);
    let load = Load::start(&folder, "shop", &["--op", "write", "--queue-depth", "8"]);
    let trouble = Trouble::new("target_missed", "tenant shop in pool main", "100 IOPS", "raise pools.main.limit");
    trouble.outlives(&folder, server, text, || drop(load));
}

#[test]
fn a_noisy_tenant() {
    let folder = Folder::new();
    let text = device("20ms", "") + "[tenants.backup]\nthrottle = \"never\"\n";
    let server = Server::configured(&folder, &text);
    let loads = [Load::start(&folder, "backup", &WRITES), Load::start(&folder, "database", &READS)];
    let trouble = Trouble {
        kind: "target_missed",
        about: "pool main",
        cause: "no tenant that may be throttled has enough load to be the cause",
        cure: "`evenkeel top --view tenants` shows the load of each",
        recorded: "read mean",
    };
    let status = server.status().to_owned();
    let at = trouble.is_named(&folder, &status);
    // The view that the cure names has the noisy tenant first.
    until("top --view tenants", PATIENCE, || {
        let frame = succeed(&folder, &["top", "--once", "--view", "tenants", "--status", &status]);
        let first = frame.lines().nth(5).unwrap_or_default().trim_start().to_owned();
        if first.starts_with("backup") { Ok(()) } else { Err(frame) }
    });
    // The other part of the cure: once it may be throttled, it is, and `why` has the reason.
    succeed(&folder, &["tenant", "set", "backup", "--throttle", "normal"]);
    until("why", PATIENCE, || {
        let output = run(&folder, &["why", "backup", "--status", &status]);
        with_words(&output, &["main backup:", "throttled by the latency target"])
    });
    let is_throttled = |event: &&Value| {
        let reason = event["reason"].as_str().unwrap_or_default();
        event["kind"] == "decision" && event["tenant"] == "backup" && reason.starts_with("throttled_by_")
    };
    let throttled = event(&folder, &["--status", &status], is_throttled);
    drop((loads, server));
    let server = Server::configured(&folder, &text);
    trouble.is_explained(&folder, server.status(), at);
    let then = throttled["at_s"].as_u64().expect("a time").to_string();
    let because = throttled["because"].as_str().expect("a sentence");
    let because = because.split_whitespace().collect::<Vec<_>>().join(" ");
    until("why", PATIENCE, || {
        let output = run(&folder, &["why", "backup", "-n", "100", "--at", &then, "--status", server.status()]);
        with_words(&output, &["main backup:", &because])
    });
}

#[test]
fn a_target_below_the_latency_of_the_device() {
    let folder = Folder::new();
    let text = device("2ms", "read_latency = \"5ms\"\n") + "[tenants.backup]\n";
    let server = Server::configured(&folder, &text);
    let loads = [Load::start(&folder, "backup", &WRITES), Load::start(&folder, "database", &READS)];
    let found = |kinds: &[&str]| {
        let troubles = state(server.status())["health"]["troubles"].take();
        let is_it = |one: &Value| one["about"] == "pool main" && kinds.iter().any(|kind| one["kind"] == *kind);
        let is_found = troubles.as_array().is_some_and(|all| all.iter().any(is_it));
        if is_found { Ok(()) } else { Err(format!("{troubles:#}")) }
    };
    let begun = Instant::now();
    until("a missed target", PATIENCE, || found(&["target_missed", "target_unachievable"]));
    println!("the target is missed after {:.1} s", begun.elapsed().as_secs_f64());
    until("an unachievable target", UNACHIEVABLE_WITHIN, || found(&["target_unachievable"]));
    println!("the target is unachievable after {:.1} s", begun.elapsed().as_secs_f64());
    assert!(begun.elapsed() <= UNACHIEVABLE_WITHIN, "unachievable after {:?}", begun.elapsed());
    let trouble = Trouble::new("target_unachievable", "pool main", "as far as allowed", "raise the target");
    trouble.outlives(&folder, server, &text, || drop(loads));
}
