//! `io.max` of cgroup v2: the limits of a group on one device.
//!
//! A row is `MAJOR:MINOR rbps=N wbps=N riops=N wiops=N`, each number or `max`; a device without limits has no row. One write
//! changes the row of one device; the limits of other devices stay as other programs set them.

use std::path::{Path, PathBuf};

use super::error::Error;
use super::file::{read as read_file, write as write_file};
use crate::error::Fault;
use crate::journal::{Journal, Knob, Restored};
use crate::sensor::diskstats::DeviceNumber;

/// Limits of a group on a device; `None` is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Limit on bytes read per second.
    pub rbps: Option<u64>,
    /// Limit on bytes written per second.
    pub wbps: Option<u64>,
    /// Limit on reads per second.
    pub riops: Option<u64>,
    /// Limit on writes per second.
    pub wiops: Option<u64>,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Self = Self { rbps: None, wbps: None, riops: None, wiops: None };
    /// Smallest limit that all kernels take: older ones refuse 1, and with it the other limits of the row.
    pub const LEAST: u64 = 2;

    /// The limits on `device` in the text of an `io.max`; [`Self::NONE`] if the device has no row.
    ///
    /// # Errors
    /// If the row of this device is not in the kernel's format.
    pub fn of(text: &str, device: DeviceNumber) -> Result<Self, Fault> {
        for (index, line) in text.lines().enumerate() {
            let mut words = line.split_ascii_whitespace();
            if words.next().and_then(|word| word.parse().ok()) != Some(device) {
                continue;
            }
            return Self::parse(words).map_err(|problem| Fault::new(index + 1, problem));
        }
        Ok(Self::NONE)
    }

    /// These limits, each bounded by that of `bound`.
    #[must_use]
    pub fn at_most(self, bound: Self) -> Self {
        let (ours, bounds) = (self.all(), bound.all());
        Self::from_all(|n| match (ours[n], bounds[n]) {
            (Some(ours), Some(bound)) => Some(ours.min(bound)),
            (ours, bound) => ours.or(bound),
        })
    }

    /// The four limits, in the order in which they are written.
    pub const fn all(&self) -> [Option<u64>; 4] {
        [self.rbps, self.wbps, self.riops, self.wiops]
    }

    /// The limits of which `limit` returns each by its place in [`Self::all`].
    fn from_all(limit: impl FnMut(usize) -> Option<u64>) -> Self {
        let [rbps, wbps, riops, wiops] = std::array::from_fn(limit);
        Self { rbps, wbps, riops, wiops }
    }

    /// True if the same limits are set as in `other`, and each differs from that in `other` by at most the fraction `part`.
    pub fn is_near(&self, other: &Self, part: f64) -> bool {
        self.all().into_iter().zip(other.all()).all(|both| match both {
            (None, None) => true,
            (Some(one), Some(other)) => one.abs_diff(other) as f64 <= part * other as f64,
            _ => false,
        })
    }

    /// These limits; a limit that is `None` is taken from `found`.
    fn over(self, found: Self) -> Self {
        Self::from_all(|n| self.all()[n].or(found.all()[n]))
    }

    /// These limits, except that those equal to `ours` are replaced by `before`.
    fn without(self, ours: &Self, before: &Self) -> Self {
        let [is, ours, before] = [self.all(), ours.all(), before.all()];
        Self::from_all(|n| if is[n] == ours[n] { before[n] } else { is[n] })
    }

    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut limits = Self::NONE;
        for word in words {
            let (key, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is no limit such as rbps=1000"))?;
            let limit = match key {
                "rbps" => &mut limits.rbps,
                "wbps" => &mut limits.wbps,
                "riops" => &mut limits.riops,
                "wiops" => &mut limits.wiops,
                // A later kernel's: never written back, so left alone.
                _ => continue,
            };
            *limit = match value {
                "max" => None,
                value => Some(value.parse().map_err(|_| format!("{word:?} holds no number"))?),
            };
        }
        Ok(limits)
    }
}

impl std::fmt::Display for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let limits = [("rbps", self.rbps), ("wbps", self.wbps), ("riops", self.riops), ("wiops", self.wiops)];
        for (place, (key, limit)) in limits.into_iter().enumerate() {
            let blank = if place > 0 { " " } else { "" };
            match limit {
                Some(limit) => write!(f, "{blank}{key}={limit}")?,
                None => write!(f, "{blank}{key}=max")?,
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for Limits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text.split_ascii_whitespace())
    }
}

/// The result of setting one row with [`set_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The group's row had the wanted limits already; nothing was written.
    Same,
    /// The row has been written.
    Made,
    /// Another program has changed the row since the agent's last write. These limits are in force now: values that were
    /// still the agent's have been restored, and the agent leaves the row alone from now on.
    Foreign(Limits),
    /// The group no longer exists, and neither do its limits.
    Gone,
}

/// The row of one device in the `io.max` of one group.
#[derive(Debug)]
pub struct IoMax {
    path: PathBuf,
    device: DeviceNumber,
    /// The limits before the agent's first change; `None` before that change.
    before: Option<Limits>,
    /// The limits as read after the agent's last write; `None` if no limits of the agent are in force.
    ours: Option<Limits>,
    /// True if another program has changed the row since the agent's last write.
    foreign: bool,
    /// The limits found by the latest [`IoMax::read`]; `None` once [`set_all`] has used them.
    found: Option<Limits>,
}

impl IoMax {
    /// The row of `device` for the group with the folder `group`; the row is left alone until the first [`set_all`].
    pub fn new(group: &Path, device: DeviceNumber) -> Self {
        Self { path: group.join("io.max"), device, before: None, ours: None, foreign: false, found: None }
    }

    /// True if another program has changed the row since the agent's last write; the agent leaves such a row alone.
    pub fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// The limits before the agent's first change; `None` until [`set_all`] has handled the row.
    pub fn before(&self) -> Option<Limits> {
        self.before
    }

    fn knob(&self) -> Knob {
        Knob::IoMax { path: self.path.clone(), device: self.device.to_string() }
    }

    /// True if the latest [`read`](Self::read) has found limits from before the agent's first change, which the program that had
    /// set them has written again: the agent may set its own once more.
    pub fn is_undone(&self) -> bool {
        !self.foreign && self.found.is_some_and(|found| self.ours.is_some_and(|ours| ours != found))
    }

    /// Reads the limits in force; `None` if the group is gone. If another program has changed them,
    /// [`is_foreign`](Self::is_foreign) becomes true. Limits from before that are written again are no change: systemd writes
    /// those of its units at each `daemon-reload`.
    ///
    /// # Errors
    /// [`Error::File`] if `io.max` cannot be read or has an unknown format.
    pub fn read(&mut self) -> Result<Option<Limits>, Error> {
        self.found = current(&self.path, self.device)?;
        // An end of all limits, where there were none before, is a decision of another program.
        let again = self.before.filter(|before| *before != Limits::NONE);
        if self.found.is_some_and(|found| self.ours.is_some_and(|ours| ours != found) && again != Some(found)) {
            self.foreign = true;
        }
        Ok(self.found)
    }

    /// Restores the limits before the agent's first change, unless another program has changed the row since.
    ///
    /// # Errors
    /// [`Error::File`]; on an error the row stays in the journal, and is restored at a reload, at the agent's end, or before
    /// it is set again.
    pub fn restore(mut self, journal: &mut Journal) -> Result<Restored, Error> {
        self.release(journal).inspect_err(|_| journal.leave(&self.knob()))
    }

    /// As [`restore`](Self::restore); the row is then as a new one. On an error it stays as it is. Limits that another point has
    /// set in the same row, as for a guarantee, stay.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    pub fn release(&mut self, journal: &mut Journal) -> Result<Restored, Error> {
        let restored = if self.before.is_some() { journal.restore(&self.knob())? } else { Restored::Nothing };
        (self.before, self.ours, self.foreign, self.found) = (None, None, false, None);
        Ok(restored)
    }
}

/// Sets rows, each to the limits beside it; a limit that is `None` gets its value before the agent's first change. Writes
/// only rows that differ from the limits found by the latest [`IoMax::read`]; a row that has not been read since the previous
/// call is read again. The limits before the agent's first change are written to the journal, all at once, before the first
/// row is written.
///
/// # Errors
/// If the journal cannot be written; if that happens before the first row is written, no row has been changed. Errors of
/// single rows are in the result, which has one entry for each row.
pub fn set_all(journal: &mut Journal, rows: &mut [(&mut IoMax, Limits)]) -> Result<Vec<Result<Change, Error>>, Error> {
    let mut results = Vec::with_capacity(rows.len());
    let mut intended = Vec::new();
    for (row, wanted) in rows.iter_mut() {
        let settled = match journal.left().is_empty() {
            true => Ok(()),
            false => journal.settle(&row.knob()).inspect(|()| row.found = None),
        };
        let found = settled.and_then(|()| match row.found.take() {
            Some(found) => Ok(Some(found)),
            None => row.read().inspect(|_| row.found = None),
        });
        results.push(match found {
            Err(error) => Err(error),
            Ok(None) => Ok(Change::Gone),
            Ok(Some(found)) if row.foreign => Ok(Change::Foreign(found)),
            // What this policy says nothing about is as it was before us, also after a policy that did.
            Ok(Some(found)) if found == wanted.over(row.before.unwrap_or(found)) => {
                row.before.get_or_insert(found);
                row.ours = Some(found);
                Ok(Change::Same)
            }
            Ok(Some(found)) => {
                let before = *row.before.get_or_insert(found);
                *wanted = wanted.over(before);
                intended.push((row.knob(), Some(before.to_string()), Some(wanted.to_string())));
                Ok(Change::Made)
            }
        });
    }
    // What another program has set stays, now and at the end; values beside it that are still ours go.
    let mut ended = Ok(());
    for ((row, _), result) in rows.iter_mut().zip(&mut results) {
        let found = match result {
            Ok(Change::Foreign(found)) => Some(*found),
            Ok(Change::Gone) => None,
            _ => continue,
        };
        let Some(ours) = row.ours.take() else { continue };
        let before = row.before.unwrap_or(Limits::NONE);
        let rest = found.map(|found| found.without(&ours, &before));
        if let Some(rest) = rest.filter(|rest| found != Some(*rest)) {
            match change(row, rest) {
                Ok(Some(seen)) => *result = Ok(Change::Foreign(seen)),
                Ok(None) => *result = Ok(Change::Gone),
                Err(error) => {
                    // The next call tries again.
                    row.ours = Some(ours);
                    *result = Err(error);
                    continue;
                }
            }
        }
        let knob = row.knob();
        if journal.state(&knob).is_some()
            && let Err(error) = journal.restored(&knob)
        {
            // The next call tries again.
            row.ours = Some(ours);
            ended = Err(error);
        }
    }
    if let Err(error) = ended.and_then(|()| journal.intend_all(intended)) {
        // Until the journal can be written, another program may set limits: those are then the limits before.
        for (row, _) in rows.iter_mut().filter(|(row, _)| row.ours.is_none() && journal.state(&row.knob()).is_none()) {
            row.before = None;
        }
        return Err(error);
    }
    let (mut confirmed, mut unchanged) = (Vec::new(), Vec::new());
    for (place, ((row, wanted), result)) in rows.iter_mut().zip(&mut results).enumerate() {
        if !matches!(result, Ok(Change::Made)) {
            continue;
        }
        match change(row, *wanted) {
            Ok(Some(seen)) => {
                row.ours = Some(seen);
                confirmed.push((row.knob(), seen.to_string()));
            }
            Ok(None) => *result = Ok(Change::Gone),
            Err(error) => {
                // It may hold either value.
                let ours = row.ours.take();
                *result = Err(error);
                let Ok(Some(found)) = current(&row.path, row.device) else { continue };
                // The write was refused, or only its result could not be read. Limits of other programs, set meanwhile or from
                // now on, are not the agent's.
                let is_made = found == wanted.over(row.before.unwrap_or(found));
                match if is_made { Some(found) } else { ours } {
                    Some(seen) if row.before != Some(found) => {
                        row.ours = Some(seen);
                        confirmed.push((row.knob(), seen.to_string()));
                    }
                    _ => unchanged.push(place),
                }
            }
        }
    }
    journal.confirm_all(confirmed)?;
    // Until the journal says so, the row has an entry that has to be ended.
    journal.restored_all(unchanged.iter().map(|place| rows[*place].0.knob()).collect())?;
    for place in unchanged {
        rows[place].0.before = None;
    }
    Ok(results)
}

/// Writes the limits `wanted` to a row of `io.max`, and returns the row as read back; `None` if the group is gone.
fn change(row_of: &IoMax, wanted: Limits) -> Result<Option<Limits>, Error> {
    match write_file(&row_of.path, &format!("{} {wanted}", row_of.device)) {
        Err(error) if gone(&error) => Ok(None),
        Err(error) => Err(error),
        Ok(()) => current(&row_of.path, row_of.device),
    }
}

/// The limits of a row; `None` if the group is gone.
fn current(path: &Path, device: DeviceNumber) -> Result<Option<Limits>, Error> {
    let text = match read_file(path) {
        Err(error) if gone(&error) => return Ok(None),
        text => text?,
    };
    Limits::of(&text, device).map(Some).map_err(|fault| Error::odd("understand", path, fault.to_string()))
}

/// True if the error means that the group is gone. The group's file is also missing in a kernel without the io controller,
/// but that is checked at the start. ENODEV also comes if the device is gone, so in this case the path is checked.
fn gone(error: &Error) -> bool {
    let Error::File { path, cause, .. } = error else { return false };
    cause.kind() == std::io::ErrorKind::NotFound || is_no_device(error) && !path.exists()
}

/// True if the kernel knows the device or the group of a row no longer.
fn is_no_device(error: &Error) -> bool {
    matches!(error, Error::File { cause, .. } if cause.raw_os_error() == Some(libc::ENODEV))
}

/// Restores a row of `io.max` by its journal entry: `before` are the limits before the agent's first change, `seen` those
/// read after the agent's last write, both spelled as [`Limits`] are printed.
pub(crate) fn restore(path: &Path, device: &str, before: &str, seen: Option<&str>) -> Result<Restored, Error> {
    let odd = |problem: String| Error::odd("restore", path, problem);
    let device: DeviceNumber = device.parse().map_err(odd)?;
    let before: Limits = before.parse().map_err(odd)?;
    let seen: Option<Limits> = seen.map(str::parse).transpose().map_err(odd)?;
    let Some(found) = current(path, device)? else { return Ok(Restored::Nothing) };
    if found == before {
        return Ok(Restored::Nothing);
    }
    if let Some(seen) = seen.filter(|seen| *seen != found) {
        // Values that are still ours go, also beside another program's.
        let rest = found.without(&seen, &before);
        let written = if rest == found { Ok(()) } else { write_file(path, &format!("{device} {rest}")) };
        return unless_gone(written, Restored::Foreign { found: rest.to_string() });
    }
    unless_gone(write_file(path, &format!("{device} {before}")), Restored::Done)
}

/// The result of restoring a row by a write: `restored`, unless the device or the group is gone, which took its limits along.
fn unless_gone(written: Result<(), Error>, restored: Restored) -> Result<Restored, Error> {
    match written {
        Err(error) if is_no_device(&error) || gone(&error) => Ok(Restored::Nothing),
        written => written.map(|()| restored),
    }
}

#[cfg(test)]
#[path = "io_max_tests.rs"]
mod tests;
