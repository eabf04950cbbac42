//! The nbd-client lab: the kernel's own client uses an export as a disk.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::base::client::Client;
use crate::base::process::{self, daemon};
use crate::base::scratch::Scratch;
use crate::base::servers::{self, Address, EXPORT, Server, Setup, Storage};
use crate::base::spelled::spelled;
use crate::check::run::{Lab, Options};
use crate::check::{policy, steps};
use crate::machine::guest::{tool, work_dir};
use crate::machine::vm::{self, Machine};

const DEVICE: &str = "/dev/nbd0";
const VOLUME_BYTES: u64 = 64 << 20;
const LIMIT: Duration = Duration::from_secs(400);

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "nbd-client")?;
    let mut machine = Machine::new(vm::PLAIN, &options.build, &scratch, options.verbose)?;
    let script = options.lean_guest_script(&scratch, "nbd-client", &["--server".into(), spelled(&options.server)])?;
    let guest = machine.boot(&script, &[])?;
    steps::report(lab, guest, LIMIT, 2 * STEPS.len() + usize::from(options.server == Server::Evenkeel))
}

type Step = fn(&Address) -> Result<()>;
const STEPS: [(&str, Step); 4] = [
    ("file_system_survives_reattach", file_system),
    ("four_connections", four_connections),
    ("discard", discard),
    ("flush_and_fua_are_offered", flags),
];

/// In the guest: runs every step over a Unix socket and over TCP.
pub(crate) fn guest(binary: &Path, server: Server) -> Result<()> {
    for (transport, address) in [("unix", Address::Unix(work_dir("nbd.sock"))), ("tcp", Address::Tcp(10809))] {
        let name = format!("nbd-{transport}");
        let dir = work_dir(&name);
        std::fs::create_dir_all(&dir)?;
        let file = dir.join("disk0.img");
        std::fs::File::create(&file)?.set_len(VOLUME_BYTES)?;
        let setup = Setup { server: &server, binary, storage: &Storage::File(file), address: &address };
        let _server = servers::start(&setup, None, &dir)?;
        for (step, body) in STEPS {
            steps::tell(&format!("{transport}_{step}"), body(&address).map(|()| String::new()));
            // A failed step must not leave the device to the next one.
            let _ = tool("umount", &["/mnt/volume"]);
            let _ = tool("nbd-client", &["-d", DEVICE]);
        }
    }
    if server == Server::Evenkeel {
        steps::tell("the_policy_of_all_labs_is_enforced", shared_policy(binary));
    }
    Ok(())
}

/// Checks the server with the policy file that all labs share, with two of its tenants.
fn shared_policy(binary: &Path) -> Result<String> {
    const READS: u64 = 100;
    let dir = work_dir("policy");
    std::fs::create_dir_all(&dir)?;
    let (file, socket) = (dir.join("evenkeel.toml"), dir.join("policy.sock"));
    let volumes =
        ["database", "backup"].map(|name| format!("[volumes.{name}]\nbackend = \"memory\"\nsize = \"1MiB\"\n"));
    let host = format!("[server]\nstatus = \"off\"\nlisten = []\nunix = [{socket:?}]\ndata_dir = {dir:?}\n");
    policy::write(&file, &(host + &volumes.concat()))?;
    let settings = policy::is_enforced(binary, &file, "main")?;
    let server = daemon(&dir, "serve", &mut servers::serve(binary, &file))?;
    for volume in ["database", "backup"] {
        let mut client = Client::connect(&socket.display().to_string(), volume, LIMIT)?;
        (0..READS).try_for_each(|_| client.read(0, &mut [0; 4096]))?;
        client.disconnect()?;
    }
    let state = process::json(Command::new(binary).args(["state", "--json", "--data-dir"]).arg(&dir))?;
    let pool = state["pools"].as_array().and_then(|pools| pools.iter().find(|pool| pool["name"] == "main"));
    let tenants =
        pool.and_then(|pool| pool["tenants"].as_array()).context("evenkeel state names no tenants of main")?;
    let reads = |name: &str| {
        let tenant = tenants.iter().find(|tenant| tenant["name"] == name);
        tenant.and_then(|tenant| tenant["reads_total"].as_u64()).with_context(|| format!("no tenant {name}"))
    };
    let counted = (reads("database")?, reads("backup")?);
    ensure!(counted == (READS, READS), "reads of the policy's tenants: {counted:?} instead of {READS} each");
    server.kill();
    Ok(settings)
}

fn attach(address: &Address, connections: &str) -> Result<()> {
    let mut args = vec!["-N", EXPORT, "-C", connections, "-b", "4096"];
    let (path, port);
    match address {
        Address::Unix(socket) => {
            path = socket.display().to_string();
            args.extend(["-unix", &path, DEVICE]);
        }
        Address::Tcp(number) => {
            port = number.to_string();
            args.extend(["127.0.0.1", &port, DEVICE]);
        }
    }
    tool("nbd-client", &args)?;
    let bytes = tool("blockdev", &["--getsize64", DEVICE])?;
    ensure!(bytes.trim() == VOLUME_BYTES.to_string(), "the device has {} bytes", bytes.trim());
    Ok(())
}

fn detach() -> Result<()> {
    tool("nbd-client", &["-d", DEVICE])?;
    Ok(())
}

/// Writes a file of incompressible data. Returns the file's checksum.
fn fill_file(path: &str, megabytes: &str) -> Result<String> {
    tool(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={path}"),
            "bs=1M",
            &format!("count={megabytes}"),
            "conv=fsync",
            "status=none",
        ],
    )?;
    checksum(path)
}

fn checksum(path: &str) -> Result<String> {
    let line = tool("sha256sum", &[path])?;
    Ok(line.split_whitespace().next().context("sha256sum said nothing")?.to_owned())
}

fn file_system(address: &Address) -> Result<()> {
    attach(address, "1")?;
    tool("mkfs.ext4", &["-q", "-F", DEVICE])?;
    std::fs::create_dir_all("/mnt/volume")?;
    tool("mount", &["-t", "ext4", DEVICE, "/mnt/volume"])?;
    let mut sums = Vec::new();
    for (file, megabytes) in [("/mnt/volume/a", "1"), ("/mnt/volume/b", "12")] {
        sums.push((file, fill_file(file, megabytes)?));
    }
    tool("umount", &["/mnt/volume"])?;
    detach()?;
    attach(address, "1")?;
    tool("fsck.ext4", &["-f", "-n", DEVICE])?;
    tool("mount", &["-t", "ext4", "-o", "ro", DEVICE, "/mnt/volume"])?;
    for (file, sum) in sums {
        ensure!(checksum(file)? == sum, "{file} changed");
    }
    tool("umount", &["/mnt/volume"])?;
    detach()
}

/// Checks a device with four connections. The kernel spreads requests over them, and sends a FLUSH on one of them.
fn four_connections(address: &Address) -> Result<()> {
    attach(address, "4")?;
    let fio = ["--name=verify", "--filename=/dev/nbd0", "--ioengine=libaio", "--direct=1", "--rw=randwrite", "--bs=4k"];
    let more = ["--iodepth=16", "--size=8m", "--verify=crc32c", "--fsync=64", "--do_verify=1", "--minimal"];
    tool("fio", &[fio, more].concat())?;
    detach()
}

fn discard(address: &Address) -> Result<()> {
    attach(address, "1")?;
    let zeros = |count: &str| {
        let device = std::fs::read_to_string("/sys/block/nbd0/queue/discard_max_bytes")?;
        ensure!(device.trim() != "0", "the server offers no TRIM");
        tool("cmp", &["-n", count, DEVICE, "/dev/zero"])
    };
    fill_file(DEVICE, "8")?;
    ensure!(zeros("8388608").is_err(), "the device is empty before the discard");
    tool("blkdiscard", &[DEVICE])?;
    zeros(&VOLUME_BYTES.to_string()).context("after blkdiscard")?;
    detach()
}

fn flags(address: &Address) -> Result<()> {
    attach(address, "1")?;
    let cache = std::fs::read_to_string("/sys/block/nbd0/queue/write_cache")?;
    let fua = std::fs::read_to_string("/sys/block/nbd0/queue/fua")?;
    ensure!(cache.trim() == "write back" && fua.trim() == "1", "write_cache {}, fua {}", cache.trim(), fua.trim());
    detach()
}
