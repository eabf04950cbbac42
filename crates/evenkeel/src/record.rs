//! `evenkeel record`: records the requests of a running server, or of block devices of this host, in a file; the devices may be
//! those of an agent's pool.

use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use evenkeel_net::http::Method;
use evenkeel_policy::figures::counted;
use evenkeel_policy::units::{Bytes, Duration as Length};
use evenkeel_server::Recorded;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::control::{Certificates, Connect, PATIENCE, Site};
use crate::output::{self, Usage};
use crate::parallel::interrupts;

mod agent;
mod device;

/// Path of the API.
const RECORD: &str = "/api/v1/record";
/// Longest wait until the server has joined the requests of an hour.
const SAVED_WITHIN: Duration = Duration::from_secs(600);
/// Interval at which progress is asked for.
const ASKED_EVERY: Duration = Duration::from_millis(200);
/// Smallest and largest key file, in bytes: a shorter key can be guessed, and one more byte than the largest is no key.
const KEY_BYTES: [usize; 2] = [16, 4096];

/// Arguments of `record`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The file; without --device and --status on the server's machine, in a folder where the server's user may write
    #[arg(required_unless_present = "stop")]
    file: Option<PathBuf>,

    /// Record a block device of this host instead of a server, as root; may be given several times
    ///
    /// Each bio is a request, from its submission to its completion; admission is its issue to the disk. Its tenant is the
    /// control group of the task that submits it, for buffered writes mostly the root group `/`, and `cgroup-ID` of a group
    /// that is gone. Its pool and volume are the device. Needs Linux 5.8 and tracefs. Of a partition, name the partition.
    #[arg(
        long,
        value_name = "PATH",
        conflicts_with_all = ["pool", "last", "stop", "control", "config", "data_dir"]
    )]
    device: Vec<PathBuf>,

    /// Record only requests of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,

    /// Record the devices of --pool of the agent with this status address, on the agent's host and as root
    ///
    /// As --device, with the pool's name and the tenants that the agent's policy gives to volumes, and to control groups with
    /// those below them; other requests have the path of their control group, also of groups that the agent finds later.
    #[arg(
        long,
        value_name = "ADDR:PORT|https://HOST:PORT",
        requires = "pool",
        conflicts_with_all = ["device", "last", "stop", "control", "config", "data_dir"]
    )]
    status: Option<Site>,

    #[command(flatten)]
    certificates: Certificates,

    /// Length of a recording that begins now; an interrupt ends it early, and keeps the file
    #[arg(long = "for", value_name = "TIME", default_value = "1m")]
    length: Length,

    /// Save the past requests of this time instead, as far as the server keeps them (key `server.record`)
    #[arg(long, value_name = "TIME", conflicts_with = "length")]
    last: Option<Length>,

    /// End the recording when its file would become larger, at least 1MiB
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    max_size: Bytes,

    /// Scramble offsets and names with the key in this file, of 16 bytes or more; the policy is left out
    #[arg(long, value_name = "KEYFILE")]
    anonymise: Option<PathBuf>,

    /// Replace FILE if it is a recording
    #[arg(long)]
    force: bool,

    /// End the recording that is under way, and keep its file
    #[arg(long, conflicts_with_all = ["file", "pool", "length", "last", "max_size", "anonymise", "force"])]
    stop: bool,

    /// Print the figures of the recording as JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connect: Connect,
}

/// Records requests, and prints the figures of the recording at its end.
///
/// # Errors
/// When no server answers, the kernel refuses to show requests, the file cannot be made, or cannot be written to the end or has
/// not been by now.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let recorded = match &args.file {
        _ if args.stop => end(args)?,
        None => bail!(Usage("FILE is missing: name the file for the recording".into())),
        Some(file) => {
            let file =
                absolute(file).with_context(|| format!("{file:?} is no file name; name one for the recording"))?;
            match (&args.status, &args.pool) {
                (Some(site), Some(pool)) => {
                    device::record(args, &file, agent::subject(site, &args.certificates, pool)?)?
                }
                _ if args.device.is_empty() => record(args, &file)?,
                _ => device::record(args, &file, device::Subject::of(&args.device)?)?,
            }
        }
    };
    output::show(args.json, &recorded, text)?;
    outcome(recorded)
}

/// An error if the recording has failed, or has not ended although the server was asked to end it.
fn outcome(recorded: Recorded) -> anyhow::Result<()> {
    match recorded.error {
        Some(error) => Err(anyhow!("{error}")),
        None if !recorded.ended => Err(anyhow!(
            "the recording into {} has not ended: its file system does not answer; look again with `evenkeel record \
             --stop`",
            recorded.file.display()
        )),
        None => Ok(()),
    }
}

/// Begins a recording and waits for its end, or saves the requests of the past.
fn record(args: &Args, file: &Path) -> anyhow::Result<Recorded> {
    let body = order(args, file)?;
    let stop = interrupts()?;
    let patience = if args.last.is_some() { SAVED_WITHIN } else { PATIENCE };
    let begun = args.connect.send(Method::POST, RECORD, Some(&body), patience)?;
    let mut recorded: Recorded = read(&begun)?;
    let progress = output::spinner("{elapsed:>4} {msg}");
    while !recorded.ended {
        // Without the note, which is for the end.
        progress.set_message(text(&recorded).lines().next().unwrap_or_default().to_owned());
        thread::sleep(ASKED_EVERY);
        if stop.load(Ordering::Relaxed) {
            recorded = end(args)?;
            break;
        }
        let newest = args.connect.send(Method::GET, RECORD, None, PATIENCE).with_context(|| {
            format!("the server has ended; what was recorded before is in {}", recorded.file.display())
        })?;
        let newest: Option<Recorded> = read(&newest)?;
        recorded = newest.filter(|newest| newest.file == recorded.file).with_context(|| {
            format!(
                "the server has begun another recording since, and {} is complete: look at it with `evenkeel trace info`",
                recorded.file.display()
            )
        })?;
    }
    progress.finish_and_clear();
    Ok(recorded)
}

/// Ends the recording under way.
fn end(args: &Args) -> anyhow::Result<Recorded> {
    read(&args.connect.send(Method::DELETE, RECORD, None, PATIENCE)?)
}

fn read<T: for<'a> Deserialize<'a>>(answer: &str) -> anyhow::Result<T> {
    serde_json::from_str(answer)
        .context("the server speaks another version of the API: use the server's version of evenkeel")
}

/// The body of the request that orders the recording.
fn order(args: &Args, file: &Path) -> anyhow::Result<Value> {
    let file = file.to_str().context("the name of the file is not UTF-8: choose another one")?;
    let mut body = json!({ "file": file, "max_bytes": args.max_size.0, "force": args.force });
    match args.last {
        Some(last) => body["last_s"] = last.as_secs_f64().into(),
        None => body["for_s"] = args.length.as_secs_f64().into(),
    }
    if let Some(pool) = &args.pool {
        body["pool"] = pool.as_str().into();
    }
    if let Some(path) = &args.anonymise {
        body["anonymise"] = key(path)?.into();
    }
    Ok(body)
}

/// The key in a file, in hexadecimal digits.
///
/// # Errors
/// A file that cannot be read, or whose length is not that of a key.
pub(crate) fn key(path: &Path) -> anyhow::Result<String> {
    let key = fs::read(path).with_context(|| format!("cannot read the key file {}", path.display()))?;
    let [least, most] = KEY_BYTES;
    ensure!(
        (least..=most).contains(&key.len()),
        Usage(format!(
            "the key file {} has {} bytes, and a key has {least} to {most}; make one with `head -c 32 /dev/urandom > KEYFILE`",
            path.display(),
            key.len()
        ))
    );
    Ok(key.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn text(recorded: &Recorded) -> String {
    let Recorded { file, requests, lost, bytes, seconds, note, .. } = recorded;
    let lost = if *lost > 0 { format!(", {lost} more were not recorded") } else { String::new() };
    let size = *bytes as f64 / f64::from(1 << 20);
    let note = note.as_ref().map_or_else(String::new, |note| format!("{note}\n"));
    let requests = counted(*requests, "request");
    format!("{}: {requests} in {seconds:.1} s{lost}, {size:.1} MiB\n{note}", file.display())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn args(words: &[&str]) -> Result<Args, String> {
        let parsed = Line::try_parse_from([&["record"], words].concat());
        parsed.map(|line| line.args).map_err(|error| error.to_string())
    }

    #[test]
    fn a_command_is_an_order() {
        let body = |words: &[&str]| order(&args(words).unwrap(), Path::new("/f")).unwrap();
        let usual = json!({ "file": "/f", "max_bytes": 1_u64 << 30, "force": false, "for_s": 60.0 });
        assert_eq!(body(&["f"]), usual);
        let all = body(&["f", "--last", "5m", "--pool", "p", "--force", "--max-size", "2MiB"]);
        let wanted = json!({ "file": "/f", "max_bytes": 2 << 20, "force": true, "last_s": 300.0, "pool": "p" });
        assert_eq!(all, wanted);
        for wrong in [&["f", "--for", "1m", "--last", "1m"][..], &[], &["--stop", "f"]] {
            assert!(args(wrong).is_err(), "{wrong:?}");
        }
        assert!(args(&["--stop"]).unwrap().file.is_none());
    }

    #[test]
    fn devices_are_recorded_without_a_server() {
        let two = args(&["f", "--device", "/dev/a", "--device", "/dev/b", "--for", "5m", "--force"]).unwrap();
        assert_eq!(two.device, ["/dev/a", "/dev/b"].map(PathBuf::from));
        for option in [&["--pool", "p"][..], &["--last", "1m"], &["--control", "s"], &["--data-dir", "d"]] {
            let refused = args(&[&["f", "--device", "/dev/a"][..], option].concat()).map(drop).unwrap_err();
            assert!(refused.contains("--device <PATH>") && refused.contains(option[0]), "{refused}");
        }
        let stop = args(&["--stop", "--device", "/dev/a"]).map(drop).unwrap_err();
        assert!(stop.contains("cannot be used with"), "{stop}");
    }

    #[test]
    fn a_pool_of_an_agent_is_recorded_without_a_server() {
        let pool = args(&["f", "--pool", "vg1", "--status", "127.0.0.1:9810", "--for", "5m"]).unwrap();
        assert_eq!(pool.status, Some("127.0.0.1:9810".parse().unwrap()));
        let alone = args(&["f", "--status", "127.0.0.1:9810"]).map(drop).unwrap_err();
        assert!(alone.contains("--pool <NAME>"), "{alone}");
        for option in [&["--device", "/dev/a"][..], &["--last", "1m"], &["--control", "s"], &["--config", "c"]] {
            let words = [&["f", "--pool", "vg1", "--status", "127.0.0.1:9810"][..], option].concat();
            let refused = args(&words).map(drop).unwrap_err();
            assert!(refused.contains("cannot be used with"), "{refused}");
        }
    }

    #[test]
    fn a_key_that_can_be_guessed_is_refused() {
        let folder = crate::folder::Folder::new();
        let file = folder.file("key", [0xab; 16]);
        assert_eq!(key(&file).unwrap(), "ab".repeat(16));
        fs::write(&file, "secret").unwrap();
        let refused = key(&file).unwrap_err();
        assert!(refused.is::<Usage>() && refused.to_string().contains("6 bytes"), "{refused}");
    }

    fn recorded(lost: u64) -> Recorded {
        Recorded {
            file: "/f".into(),
            requests: 9,
            lost,
            bytes: 1 << 20,
            seconds: 2.0,
            ended: true,
            ..Recorded::default()
        }
    }

    #[test]
    fn a_recording_that_has_failed_or_not_ended_is_no_success() {
        outcome(recorded(3)).unwrap();
        let hangs = outcome(Recorded { ended: false, ..recorded(0) }).unwrap_err().to_string();
        assert!(hangs.contains("/f has not ended") && hangs.contains("`evenkeel record --stop`"), "{hangs}");
        let failed = Recorded { error: Some("no room".into()), ..recorded(0) };
        assert_eq!(outcome(failed).unwrap_err().to_string(), "no room");
    }

    #[test]
    fn what_was_lost_is_named() {
        assert_eq!(text(&recorded(0)), "/f: 9 requests in 2.0 s, 1.0 MiB\n");
        assert_eq!(text(&recorded(3)), "/f: 9 requests in 2.0 s, 3 more were not recorded, 1.0 MiB\n");
        let short = Recorded { note: Some("only the newest".into()), ..recorded(0) };
        assert_eq!(text(&short), "/f: 9 requests in 2.0 s, 1.0 MiB\nonly the newest\n");
    }
}
