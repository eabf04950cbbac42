//! The trial of one server: all phases of the sync-failure lab.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use super::faults::{unplug, write_back};
use super::requests::{
    BLOCKS, EIO, Flushing, KEPT, LOST, UNTOUCHED, answer, connect, content, flush, keep, lose, read, write,
    write_sector,
};
use super::{CHECKS, Check, FAULTY, GONE, OTHER, Subject};
use crate::base::client::{Client, Command};
use crate::base::process::{self, Running};
use crate::base::servers;
use crate::check::pattern::Content;
use crate::machine::guest::work_dir;

/// Time limit of a graceful stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// Number of connections that flush at the same time.
pub(super) const CROWD: usize = 8;

/// A server with its volumes on all devices.
pub(super) struct Trial {
    pub(super) subject: Subject,
    binary: PathBuf,
    dir: PathBuf,
    address: String,
    running: Option<Running>,
    pub(super) checks: [Check; CHECKS.len()],
    live: Option<Live>,
}

/// The running server and connections of a trial.
struct Live {
    flushing: Flushing,
    fua: Vec<Client>,
    background: Vec<Client>,
    plain: Client,
    gone: Client,
    other: Client,
}

impl Trial {
    pub(super) fn new(subject: Subject, binary: &Path) -> Result<Self> {
        let dir = work_dir(&subject.to_string());
        std::fs::create_dir_all(&dir)?;
        let address = dir.join("nbd.sock").display().to_string();
        let (binary, checks) = (binary.to_owned(), Default::default());
        Ok(Self { subject, binary, dir, address, running: None, checks, live: None })
    }

    fn port(&self) -> u16 {
        9809 + self.subject.index as u16
    }

    fn start(&mut self) -> Result<()> {
        let Self { subject, dir, .. } = &*self;
        let path = |name: &str| format!("{:?}", dir.join(name).display().to_string());
        let mut config = format!(
            "[server]\nlisten = []\nunix = [{}]\ndata_dir = {}\nstatus = \"127.0.0.1:{}\"\nworkers = 2\n",
            path("nbd.sock"),
            path("data"),
            self.port()
        );
        for volume in FAULTY.iter().chain(&[GONE, OTHER]) {
            let device = subject.device(volume);
            config += &format!("[volumes.{volume}]\nbackend = \"block\"\npath = {device:?}\n");
            config += &format!("cache = \"{}\"\n", subject.cache);
        }
        let file = dir.join("evenkeel.toml");
        std::fs::write(&file, config)?;
        let mut command = servers::serve(&self.binary, file);
        command.args(["--engine", subject.engine]);
        self.running =
            Some(servers::start_and_reach(dir, "serve", &mut command, || servers::reach(&self.address, OTHER))?);
        Ok(())
    }

    fn said(&self) -> String {
        let log = std::fs::read_to_string(self.dir.join("serve.log")).unwrap_or_default();
        let last: Vec<&str> = log.lines().rev().take(5).collect();
        format!("the server said last, newest first: {}", last.join(" / "))
    }

    fn check(&mut self, name: &str) -> &mut Check {
        let index = CHECKS.iter().position(|c| *c == name).unwrap_or(0);
        &mut self.checks[index]
    }

    /// The error that `evenkeel state` shows for a volume; `None` without an error.
    fn shown_error(&self, volume: &str) -> Result<Option<String>> {
        let mut command = std::process::Command::new(&self.binary);
        let state = process::json(command.args(["state", "--json", "--data-dir"]).arg(self.dir.join("data")))?;
        let volumes = state["volumes"].as_array().context("the state shows no volumes")?;
        let one = volumes.iter().find(|v| v["name"] == volume).with_context(|| format!("no volume {volume}"))?;
        Ok(one["error"].as_str().map(str::to_owned))
    }

    fn alive(&mut self) -> Result<bool> {
        Ok(self.running.as_mut().context("a server")?.ended()?.is_none())
    }

    /// The phase before the failure: writes the data that must be kept, and the data that will be lost.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.start()?;
        let (address, subject) = (self.address.clone(), self.subject);
        let open = |volume: &str| -> Result<Client> {
            let mut client = connect(&address, volume)?;
            keep(&mut client, subject.generation(volume))?;
            Ok(client)
        };
        let several = |volume: &str, count: usize| -> Result<Vec<Client>> {
            let first = open(volume)?;
            std::iter::once(Ok(first)).chain((1..count).map(|_| connect(&address, volume))).collect()
        };
        let mut live = Live {
            fua: several("fua", 2)?,
            background: several("background", CROWD)?,
            plain: open("plain")?,
            gone: open(GONE)?,
            other: open(OTHER)?,
            flushing: Flushing::begin(&address, "flush", subject.generation("flush"))?,
        };
        if subject.is_direct() {
            Self::lose(&mut live, subject)?;
        }
        self.live = Some(live);
        Ok(())
    }

    /// Writes the data that will be lost. A server that bypasses the page cache gets it while the device works; a server that
    /// uses the page cache gets it when the device has failed, so that no early write-back by the kernel can save the data.
    fn lose(live: &mut Live, subject: Subject) -> Result<()> {
        live.flushing.lose()?;
        lose(&mut live.background[0], subject.generation("background"))
    }

    /// The phase in which the device fails, with its checks.
    pub(super) fn while_failing(&mut self) -> Result<()> {
        let subject = self.subject;
        let mut live = self.live.take().context("connections")?;
        if !subject.is_direct() {
            Self::lose(&mut live, subject)?;
        }
        live.flushing.while_failing()?;
        if subject.is_direct() {
            // Through the page cache plain writes do not meet the device.
            live.flushing.load.as_ref().context("a load")?.wait_until_refused();
        }

        let refused = write(&mut live.fua[0], LOST, subject.generation("fua") + 1, true)?;
        let check = self.check("failed_fua_write_fails_later_flushes");
        check.answer(refused, EIO, "a FUA write to a failing device");

        // What the kernel does by itself after a while, and where no flush of a client meets the failure.
        let written_back = write_back(&subject.device("background"))?;
        let check = self.check("background_write_back_failure_reaches_every_flush");
        check.expect(written_back == subject.is_direct(), format_args!("write-back succeeded: {written_back}"));

        let mut answers = vec![("a read", read(&mut live.plain, UNTOUCHED)?)];
        answers.push(("a write of a sector", write_sector(&mut live.plain, UNTOUCHED + 256, 1)?));
        if subject.is_direct() {
            answers.push(("a write", write(&mut live.plain, UNTOUCHED + 512, 1, false)?));
        }
        for (what, answer) in answers {
            self.check("plain_errors_reach_the_client").answer(answer, EIO, what);
        }
        self.use_other(&mut live.other, "beside a failing device")?;
        self.live = Some(live);
        Ok(())
    }

    /// The phase after the device works again, with its checks.
    pub(super) fn when_repaired(&mut self) -> Result<()> {
        let (subject, address) = (self.subject, self.address.clone());
        let mut live = self.live.take().context("connections")?;

        let (load_refused, load_last) = live.flushing.when_repaired()?;
        let durable = write(&mut live.flushing.clients[1], UNTOUCHED, 1, true)?;
        let readable = read(&mut live.flushing.clients[0], KEPT)?;
        let shown = self.shown_error("flush")?;
        let check = self.check("failed_flush_stays_failed_on_every_connection");
        for answer in &live.flushing.failing {
            check.answer(*answer, EIO, "FLUSH while the device fails");
        }
        for answer in &live.flushing.repaired {
            check.answer(*answer, EIO, "FLUSH when the device works again");
        }
        check.answer(durable, EIO, "a FUA write after a failed FLUSH");
        check.answer(readable, 0, "a read after a failed FLUSH");
        check.answer(load_last, 0, "a plain write when the device works again");
        check.expect((load_refused > 0) == subject.is_direct(), format_args!("{load_refused} writes refused"));
        check.expect(shown.is_some(), "the state shows no error");

        live.fua.push(connect(&address, "fua")?);
        let flushes = live.fua.iter_mut().map(flush).collect::<Result<Vec<_>>>()?;
        let durable = write(&mut live.fua[1], UNTOUCHED, 1, true)?;
        let shown = self.shown_error("fua")?;
        let check = self.check("failed_fua_write_fails_later_flushes");
        flushes.iter().for_each(|a| check.answer(*a, EIO, "FLUSH after a failed FUA write"));
        check.answer(durable, EIO, "a FUA write after a failed one");
        check.expect(shown.is_some(), "the state shows no error");

        // All at the same moment: the kernel tells one of them.
        for client in &mut live.background {
            client.send(Command::Flush, false, 0, 0, 0, &[])?;
        }
        let flushes = live.background.iter_mut().map(|c| answer(c.receive().map(drop))).collect::<Result<Vec<_>>>()?;
        let shown = self.shown_error("background")?;
        let check = self.check("background_write_back_failure_reaches_every_flush");
        // Around the page cache nothing was left to be written back, and nothing is lost.
        let wanted = if subject.is_direct() { 0 } else { EIO };
        flushes.iter().for_each(|a| check.answer(*a, wanted, "one of several FLUSH at the same moment"));
        check.expect(shown.is_some() != subject.is_direct(), format_args!("the state shows {shown:?}"));

        let plain = &mut live.plain;
        let mut answers = vec![("a read", read(plain, UNTOUCHED)?)];
        answers.push(("a write of a sector", write_sector(plain, UNTOUCHED + 256, 1)?));
        answers.push(("a write", write(plain, UNTOUCHED + 512, 1, false)?));
        // Refused writes are not lost ones: the client knows of them.
        answers.push(("FLUSH", flush(plain)?));
        let held = content(plain, UNTOUCHED + 512)?;
        let shown = self.shown_error("plain")?;
        let check = self.check("plain_errors_reach_the_client");
        for (what, answer) in answers {
            check.answer(answer, 0, format_args!("{what} when the device works again"));
        }
        check.expect(held == Content::Generation(1), format_args!("a block holds {held:?}"));
        check.expect(shown.is_none(), format_args!("the state shows {shown:?}"));
        self.live = Some(live);
        Ok(())
    }

    /// Checks that all requests succeed on the volume [`OTHER`], whose device does not fail; `when` names the phase.
    fn use_other(&mut self, client: &mut Client, when: &str) -> Result<()> {
        let mut answers = vec![write(client, LOST, 1, false)?, write(client, LOST + 1, 1, true)?, flush(client)?];
        let mut late = connect(&self.address, OTHER)?;
        answers.push(flush(&mut late)?);
        let held = content(&mut late, LOST + 1)?;
        let shown = self.shown_error(OTHER)?;
        let alive = self.alive()?;
        let check = self.check("vanished_device_hurts_no_other");
        answers.iter().for_each(|a| check.answer(*a, 0, format_args!("the other volume {when}")));
        check.expect(held == Content::Generation(1), format_args!("the other volume {when} holds {held:?}"));
        check.expect(shown.is_none(), format_args!("{when} the state of the other volume shows {shown:?}"));
        check.expect(alive, format_args!("the server ended {when}"));
        Ok(())
    }

    /// The phase in which the device of the volume [`GONE`] vanishes, with its checks.
    pub(super) fn vanish(&mut self) -> Result<()> {
        let (subject, address) = (self.subject, self.address.clone());
        let mut live = self.live.take().context("connections")?;
        lose(&mut live.gone, subject.generation(GONE))?;
        unplug(&subject.device(GONE))?;
        let gone = &mut live.gone;
        let mut answers = vec![("FLUSH", flush(gone)?), ("a read", read(gone, UNTOUCHED)?)];
        answers.push(("FLUSH on a new connection", flush(&mut connect(&address, GONE)?)?));
        let writes = [write(gone, UNTOUCHED, 1, false)?, write(gone, UNTOUCHED, 1, true)?];
        let shown = self.shown_error(GONE)?;
        let check = self.check("vanished_device_hurts_no_other");
        for (what, answer) in answers {
            check.answer(answer, EIO, format_args!("{what} when the device is gone"));
        }
        for answer in writes {
            // The kernel takes a device without capacity for a full one.
            check.expect(answer == EIO, format_args!("a write to no device: answered with {answer}"));
        }
        check.expect(shown.is_some(), "the state shows no error of the volume whose device is gone");
        self.use_other(&mut live.other, "beside a vanished device")
    }

    /// Stops the server, after the connections have ended.
    pub(super) fn stop(&mut self) -> Result<()> {
        let alive = self.alive()?;
        let running = self.running.take().context("a server")?;
        let status = running.stop(libc::SIGTERM, PATIENCE)?;
        let check = self.check("restart_serves_what_was_flushed");
        check.expect(alive, "the server had ended by itself");
        check.expect(
            status.code() == Some(1),
            format_args!("a stop that could not make all durable ended with {status}"),
        );
        Ok(())
    }

    /// The phase with a newly started server on working devices, with its checks.
    pub(super) fn restarted(&mut self) -> Result<()> {
        self.start()?;
        let subject = self.subject;
        for volume in FAULTY.iter().chain(&[GONE, OTHER]) {
            let mut client = connect(&self.address, volume)?;
            let kept = Content::Generation(subject.generation(volume));
            let lost = Content::Generation(subject.generation(volume) + 1);
            let read = |client: &mut Client, from: u64| -> Result<Vec<(u64, Content)>> {
                (from..from + BLOCKS).map(|n| Ok((n, content(client, n)?))).collect()
            };
            let (kept_blocks, lost_blocks) = (read(&mut client, KEPT)?, read(&mut client, LOST)?);
            let mut answers = vec![write(&mut client, UNTOUCHED, 2, false)?, write(&mut client, UNTOUCHED, 3, true)?];
            answers.push(flush(&mut client)?);
            let held = content(&mut client, UNTOUCHED)?;
            let shown = self.shown_error(volume)?;
            let check = self.check("restart_serves_what_was_flushed");
            for (number, holds) in kept_blocks {
                check.expect(holds == kept, format_args!("block {number} of {volume} holds {holds:?}, not {kept:?}"));
            }
            let flushed = *volume == "background" && subject.is_direct();
            for (number, holds) in lost_blocks.into_iter().filter(|_| !["plain", OTHER].contains(volume)) {
                // Whole or not at all; and there for certain if a FLUSH said so.
                let right = holds == lost || !flushed && holds == Content::Zero;
                check.expect(right, format_args!("block {number} of {volume} holds {holds:?}"));
            }
            answers.iter().for_each(|a| check.answer(*a, 0, format_args!("a request to {volume}")));
            check.expect(held == Content::Generation(3), format_args!("{volume} holds {held:?} after a write"));
            check.expect(shown.is_none(), format_args!("the state of {volume} shows {shown:?}"));
        }
        Ok(())
    }

    /// Runs the phase `name`. An error in it fails all checks of this server, and later phases are left out.
    pub(super) fn phase(&mut self, name: &str, body: impl FnOnce(&mut Self) -> Result<()>) {
        if self.checks.iter().any(|c| c.wrong.iter().any(|w| w.starts_with(BROKEN_OFF))) {
            return;
        }
        if let Err(e) = body(self) {
            let why = format!("{BROKEN_OFF} {name}: {e:#}; {}", self.said());
            for check in &mut self.checks {
                check.wrong.insert(0, why.clone());
            }
            // Its devices must not stay in use.
            (self.live, self.running) = (None, None);
        }
    }
}

/// Start of the reason why a phase could not be completed.
const BROKEN_OFF: &str = "broken off";
