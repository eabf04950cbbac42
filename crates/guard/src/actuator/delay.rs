//! The packet delay as a whole: plan, apply, change at every tick, restore.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::edt::{Edt, NotAttached};
use super::error::Error;
use super::filter::{Filters, Refused};
use super::hold::{Actuator, Attach, Client, Hold, Holds};
use super::only::Only;
use super::qdisc::{self, Qdiscs};
use super::table::{self, Class, Classes, Found, ThrottleTable};
use crate::journal::{Journal, Knob};

/// More classes would still work, but each is a queue of its own, and listing them gets slow.
const MAX_STEPS: u128 = 1_000;
/// Clients held at one time. An element takes some 200 bytes of kernel memory and 3 us to write; all of them are renewed
/// once in a third of the timeout.
pub const MAX_HOLDS: usize = 131_072;
/// The kernel closes the files of a killed process within milliseconds.
const OWNER_LIMIT: Duration = Duration::from_secs(1);
const OWNER_POLL: Duration = Duration::from_millis(5);
/// How often it is looked whether our queueing disciplines are still there: one message for each device.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How packets are delayed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Network devices by which the clients are reached.
    pub devices: Vec<String>,
    /// Ports of the services on this host whose packets may be held (iSCSI: 3260).
    pub ports: Vec<u16>,
    /// Difference between neighbouring delay classes.
    pub step: Duration,
    /// Longest delay; rounded up to a multiple of the step.
    pub maximum: Duration,
    /// A hold that nobody renews ends by itself after this time.
    pub timeout: Duration,
    /// Let the kernel remove all holds at once when this process ends, and keep others from changing them, where it
    /// can do that (Linux 5.12). Without it, holds last until their timeout.
    pub owned: bool,
    /// What lets packets wait.
    pub actuator: Actuator,
    /// How the program of departure times comes to see packets.
    pub attach: Attach,
}

impl Default for Settings {
    /// Steps of 0.5 ms up to 20 ms, after the paper's classes (iSCSI paper, section 4), for iSCSI's port.
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            ports: vec![3260],
            step: Duration::from_micros(500),
            maximum: Duration::from_millis(20),
            timeout: Duration::from_secs(3),
            owned: true,
            actuator: Actuator::default(),
            attach: Attach::default(),
        }
    }
}

impl Settings {
    /// Number of delay classes.
    fn classes(&self) -> u32 {
        (self.maximum.as_nanos().div_ceil(self.step.as_nanos().max(1))).min(MAX_STEPS) as u32
    }

    /// Class for a delay: rounded up, as a delay that is too short does not do what was decided; at most the longest.
    /// Class 0 is none.
    fn class(&self, delay: Duration) -> u32 {
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        nanoseconds(delay).div_ceil(nanoseconds(self.step).max(1)).min(self.classes().into()) as u32
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |key, problem: String| Err(Error::Settings { key, problem });
        if self.devices.is_empty() {
            return wrong("devices", "is empty: name the network devices by which the clients are reached".into());
        }
        if self.ports.is_empty() {
            return wrong("ports", "is empty: name the ports of the services, for iSCSI 3260".into());
        }
        if self.step < Duration::from_micros(10) {
            return wrong("step", format!("is {:?}: the kernel's timers need at least 10us", self.step));
        }
        if self.maximum < self.step || self.maximum > Duration::from_secs(1) {
            return wrong("maximum", format!("is {:?}: must be between the step and 1s", self.maximum));
        }
        if self.maximum.as_nanos().div_ceil(self.step.as_nanos()) > MAX_STEPS {
            return wrong("step", format!("gives more than {MAX_STEPS} classes: choose a longer one"));
        }
        if self.timeout < Duration::from_millis(100) || self.timeout > Duration::from_secs(3600) {
            return wrong("timeout", format!("is {:?}: must be between 100ms and 1h", self.timeout));
        }
        Ok(())
    }
}

/// What would be done, before anything is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    settings: Settings,
    devices: Vec<DevicePlan>,
    replaces_table: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DevicePlan {
    name: String,
    index: u32,
    found: String,
    /// An earlier run left ours behind.
    ours: bool,
}

impl Plan {
    /// Looks at the devices and decides; changes nothing.
    ///
    /// # Errors
    /// [`Error::ForeignQdisc`] if a device has a queueing discipline that somebody configured, [`Error::NoDevice`],
    /// [`Error::Settings`], and what the kernel refuses.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        settings.check()?;
        let qdiscs = Qdiscs::open().map_err(|e| Error::kernel("open a netlink socket", e))?;
        let mut devices = Vec::new();
        for name in &settings.devices {
            let index = device_index(name)?;
            let found = qdiscs.list(index).map_err(|e| Error::kernel("list queueing disciplines", e))?;
            let root = found.iter().find(|q| q.root);
            if let Some(root) = root.filter(|q| !q.is_default() && !q.is_ours()) {
                return Err(Error::ForeignQdisc { device: name.clone(), found: root.name() });
            }
            devices.push(DevicePlan {
                name: name.clone(),
                index,
                found: root.map_or_else(|| "none".into(), |q| q.kind.clone()),
                ours: root.is_some_and(super::qdisc::Qdisc::is_ours),
            });
        }
        let replaces_table = match table::exists() {
            Ok(exists) => exists,
            Err(e) => return Err(Error::kernel("list nftables tables", e)),
        };
        Ok(Self { settings, devices, replaces_table })
    }

    /// The steps of the plan in words, for `--dry-run`.
    pub fn steps(&self) -> Vec<String> {
        let classes = self.settings.classes();
        let mut steps = Vec::new();
        for device in &self.devices {
            let (name, found) = (&device.name, &device.found);
            let what = match self.settings.actuator {
                Actuator::Netem => format!("htb with {classes} delay classes"),
                Actuator::Edt => "htb with a class of fq and a BPF program".to_owned(),
                Actuator::Auto => {
                    format!("htb with a class of fq and a BPF program, or else with {classes} delay classes,")
                }
            };
            steps.push(match device.ours {
                true => format!("{name}: replace what an earlier run left by {what}"),
                false => format!("{name}: put {what} in place of the default {found}"),
            });
        }
        if self.settings.actuator == Actuator::Edt {
            return steps;
        }
        let verb = if self.replaces_table { "replace" } else { "create" };
        steps.push(format!("{verb} the nftables table inet {}, with nobody in it", table::TABLE));
        steps
    }

    /// Does it. Everything is written to the journal first.
    ///
    /// # Errors
    /// What the kernel refuses. What had been made before the refusal is removed again.
    pub fn apply(self, journal: &mut Journal) -> Result<PacketDelay, Error> {
        let qdiscs = Qdiscs::open().map_err(|e| Error::kernel("open a netlink socket", e))?;
        let only = Only::take()?;
        wait_for_owner()?;
        // In this order they are put back: when nobody's packets come any more.
        let mut knobs: Vec<Knob> =
            [Knob::Table].into_iter().chain(self.devices.iter().map(|d| Knob::Qdisc(d.name.clone()))).collect();
        for knob in &knobs {
            journal.intend(knob, None, None)?;
        }
        let made = self.remove_old_filters().and_then(|()| self.make(&qdiscs, journal, &mut knobs));
        knobs.sort_unstable();
        match made {
            Ok(means) => {
                let (settings, devices) = (self.settings, self.devices);
                Ok(PacketDelay { settings, devices, means, qdiscs, knobs, looked: None, _only: only })
            }
            Err(e) => {
                // The refusal is what the caller must see. The journal keeps what cannot be undone now.
                let _ = journal.restore_all();
                Err(e)
            }
        }
    }

    /// Those of an agent whose journal is another one, or lost: they hold nobody any more, and every packet pays for them.
    fn remove_old_filters(&self) -> Result<(), Error> {
        for device in &self.devices {
            // Whose `clsact` it is nobody knows; without filters it does nothing.
            remove_filter(&device.name, false)?;
        }
        Ok(())
    }

    /// What is noted in the journal on the way comes to `knobs`.
    fn make(&self, qdiscs: &Qdiscs, journal: &mut Journal, knobs: &mut Vec<Knob>) -> Result<Means, Error> {
        match self.settings.actuator {
            Actuator::Netem => self.make_netem(qdiscs),
            Actuator::Edt => self.make_edt(qdiscs, journal, knobs),
            Actuator::Auto => match self.make_edt(qdiscs, journal, knobs) {
                // Not allowed: before 5.11 locked memory is limited too, before 5.8 it takes CAP_SYS_ADMIN.
                Err(
                    why @ (Error::Missing { .. }
                    | Error::TooOld { .. }
                    | Error::IngressInTheWay { .. }
                    | Error::NotAllowed { .. }),
                ) => {
                    tracing::info!("{why}: delay classes are used");
                    for knob in knobs.extract_if(.., |knob| matches!(knob, Knob::Filter(_))) {
                        journal.restore(&knob)?;
                    }
                    self.make_netem(qdiscs)
                }
                other => other,
            },
        }
    }

    fn make_netem(&self, qdiscs: &Qdiscs) -> Result<Means, Error> {
        // First, so that nothing comes into old classes any more.
        let table = ThrottleTable::create(&self.settings.ports, self.settings.owned).map_err(table_error)?;
        for device in &self.devices {
            qdiscs.remove(device.index).map_err(|e| Error::kernel("remove old delay classes", e))?;
            make_classes(qdiscs, device.index, &self.settings)?;
        }
        Ok(Means::Netem { table, classes: Classes::new() })
    }

    fn make_edt(&self, qdiscs: &Qdiscs, journal: &mut Journal, knobs: &mut Vec<Knob>) -> Result<Means, Error> {
        let mut edt = Edt::load(&self.settings.ports, MAX_HOLDS).map_err(|e| match e {
            Errno::PERM | Errno::ACCESS => Error::NotAllowed { doing: "load a BPF program" },
            Errno::NOSYS => Error::TooOld { what: "BPF programs", since: "4.4" },
            e => Error::kernel("load the BPF program", e),
        })?;
        let mut filters = self.settings.attach == Attach::Filter;
        if let Some(device) = self.devices.first().filter(|_| !filters) {
            match edt.attach(device.index) {
                Err(NotAttached::NoLinks) => filters = true,
                other => other.map_err(|e| not_attached(&device.name, e))?,
            }
        }
        if filters {
            let made = edt.use_filters().map_err(|e| Error::kernel("open a netlink socket", e))?;
            for device in &self.devices {
                let clsact = made.has_clsact(device.index);
                let clsact = clsact.map_err(|e| Error::kernel("list queueing disciplines", e))?;
                let knob = Knob::Filter(device.name.clone());
                journal.intend(&knob, Some(if clsact { "clsact" } else { "" }), Some("clsact, cls_bpf"))?;
                knobs.push(knob);
            }
            tracing::info!("the program of departure times is attached by filters, not by links (TCX)");
        }
        for device in &self.devices {
            qdiscs.remove(device.index).map_err(|e| Error::kernel("remove old delay classes", e))?;
            make_departures(qdiscs, device, &mut edt)?;
        }
        Ok(Means::Edt(edt))
    }
}

fn make_classes(qdiscs: &Qdiscs, device: u32, settings: &Settings) -> Result<(), Error> {
    qdiscs.create(device, settings.step, settings.classes()).map_err(no_classes)
}

fn no_classes(refused: qdisc::Refused) -> Error {
    match (refused.error, refused.what) {
        (Errno::NOENT, "netem") => Error::Missing { what: "netem", module: "sch_netem" },
        (Errno::NOENT, "fq") => Error::Missing { what: "fq", module: "sch_fq" },
        (Errno::NOENT, _) => Error::Missing { what: "htb", module: "sch_htb" },
        (e, _) => Error::kernel("make delay classes", e),
    }
}

/// The program first: where the kernel cannot have it nothing has been changed.
fn make_departures(qdiscs: &Qdiscs, device: &DevicePlan, edt: &mut Edt) -> Result<(), Error> {
    edt.attach(device.index).map_err(|e| not_attached(&device.name, e))?;
    qdiscs.create_departures(device.index).map_err(no_classes)
}

fn not_attached(device: &str, why: NotAttached) -> Error {
    let doing = "attach the BPF program to a network device";
    match why {
        NotAttached::NoLinks => {
            Error::TooOld { what: "BPF links at the egress of network devices (TCX)", since: "6.6" }
        }
        NotAttached::Filter(Refused::Missing("cls_bpf")) => Error::Missing { what: "cls_bpf", module: "cls_bpf" },
        NotAttached::Filter(Refused::Missing(module)) => Error::Missing { what: "clsact", module },
        NotAttached::Filter(Refused::Ingress) => Error::IngressInTheWay { device: device.to_owned() },
        NotAttached::Filter(Refused::Other(e)) | NotAttached::Other(e) => Error::kernel(doing, e),
    }
}

fn table_error(error: Errno) -> Error {
    match error {
        Errno::PERM => Error::AnotherAgent,
        Errno::OPNOTSUPP | Errno::AFNOSUPPORT => Error::Missing { what: "nf_tables", module: "nf_tables" },
        e => Error::kernel("change the nftables table inet evenkeel", e),
    }
}

fn device_index(name: &str) -> Result<u32, Error> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let missing = || Error::NoDevice { device: name.to_owned() };
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| Error::kernel("open a socket", e))?;
    rustix::net::netdevice::name_to_index(&socket, name).map_err(|_| missing())
}

/// Name of a device, or its number if it is gone meanwhile.
fn device_name(index: u32) -> String {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None);
    let name = socket.and_then(|socket| rustix::net::netdevice::index_to_name(&socket, index));
    name.unwrap_or_else(|_| format!("device {index}"))
}

/// What a call of [`PacketDelay::set`] did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The holds were written; otherwise they were as wanted and not yet due for renewal.
    pub written: bool,
    /// Somebody had changed our rules (for example by `nft flush ruleset`), and they were made again.
    pub repaired: bool,
}

/// The packet delay in force. Dropping it leaves everything as it is: call [`PacketDelay::restore`], or let the
/// sentinel do it.
#[derive(Debug)]
pub struct PacketDelay {
    settings: Settings,
    devices: Vec<DevicePlan>,
    means: Means,
    qdiscs: Qdiscs,
    knobs: Vec<Knob>,
    /// When the queueing disciplines were looked at last.
    looked: Option<Instant>,
    _only: Only,
}

/// What lets packets wait.
#[derive(Debug)]
enum Means {
    Netem {
        table: ThrottleTable,
        /// Scratch space.
        classes: Classes,
    },
    Edt(Edt),
}

impl PacketDelay {
    /// Makes exactly `holds` be in force. Call it at every tick, also when nothing changed: it renews the timeouts,
    /// and it mends what others changed, within a second while nobody is held. Writes only what differs or is due.
    ///
    /// # Errors
    /// [`Error::Settings`] for more than [`MAX_HOLDS`]; what the kernel refuses, and then the earlier holds are still
    /// in force until their timeout; [`Error::ForeignQdisc`] or [`Error::NoDevice`] while a device has lost our queueing
    /// discipline to somebody else's, or is gone: the holds have been written then.
    pub fn set(&mut self, now: Instant, holds: &Holds) -> Result<Outcome, Error> {
        let count = holds.len();
        if count > MAX_HOLDS {
            let problem = format!("are {count}: at most {MAX_HOLDS} clients can be held at one time");
            return Err(Error::Settings { key: "holds", problem });
        }
        let settings = &self.settings;
        let timeout = settings.timeout;
        let look = self.looked.is_none_or(|at| now.saturating_duration_since(at) >= LOOK_EVERY);
        let mut outcome = match &mut self.means {
            Means::Netem { table, classes } => {
                let class = |(client, hold): (&Client, &Hold)| {
                    let class = qdisc::class_id(settings.class(hold.delay));
                    Class { client: *client, packets: hold.packets, class }
                };
                classes.clear();
                classes.extend(holds.iter().map(class));
                // Where nobody is held there is nothing that others could change to anybody's harm.
                if classes.is_empty() && table.is_idle() && !look {
                    return Ok(Outcome::default());
                }
                let found = table.repair(now, timeout).map_err(table_error)?;
                let repaired = matches!(found, Found::StructureRepaired | Found::ElementsRepaired);
                Outcome { written: table.write(now, classes, timeout).map_err(table_error)?, repaired }
            }
            Means::Edt(edt) => {
                let written = edt.set(now, holds, timeout);
                Outcome { written: written.map_err(|e| Error::kernel("change who is held", e))?, repaired: false }
            }
        };
        if look {
            self.looked = Some(now);
            outcome.repaired |= self.look_after_devices()?;
        }
        Ok(outcome)
    }

    /// Makes our queueing disciplines anew where they are gone; tells whether any was.
    fn look_after_devices(&mut self) -> Result<bool, Error> {
        let mut repaired = false;
        for device in &mut self.devices {
            let index = device_index(&device.name)?;
            let root = self.qdiscs.root(index).map_err(|e| Error::kernel("look at a queueing discipline", e))?;
            let root = root.as_ref();
            if root.is_some_and(super::qdisc::Qdisc::is_ours) && index == device.index {
                if let Means::Edt(edt) = &mut self.means {
                    repaired |= edt.repair(index).map_err(|e| not_attached(&device.name, e))?;
                }
                continue;
            }
            if let Some(root) = root.filter(|q| !q.is_default() && !q.is_ours()) {
                return Err(Error::ForeignQdisc { device: device.name.clone(), found: root.name() });
            }
            match &mut self.means {
                Means::Netem { .. } => make_classes(&self.qdiscs, index, &self.settings)?,
                Means::Edt(_) if index == device.index => {
                    self.qdiscs.create_departures(index).map_err(no_classes)?;
                }
                Means::Edt(edt) => {
                    edt.forget(device.index);
                    device.index = index;
                    make_departures(&self.qdiscs, device, edt)?;
                }
            }
            device.index = index;
            repaired = true;
        }
        Ok(repaired)
    }

    /// The delays in force, as rounded to classes where there are any.
    pub fn held(&self) -> Holds {
        match &self.means {
            Means::Edt(edt) => edt.held(),
            Means::Netem { table, .. } => {
                let hold = |Class { client, packets, class }: &Class| {
                    let delay = self.settings.step * (class & 0xffff);
                    (*client, Hold { packets: *packets, delay })
                };
                table.held().iter().map(hold).collect()
            }
        }
    }

    /// What lets packets wait: never [`Actuator::Auto`].
    pub fn actuator(&self) -> Actuator {
        match self.means {
            Means::Netem { .. } => Actuator::Netem,
            Means::Edt(_) => Actuator::Edt,
        }
    }

    /// Whether the kernel ends all holds by itself when this process ends; otherwise they last until their timeout.
    pub fn ends_with_process(&self) -> bool {
        match &self.means {
            Means::Netem { table, .. } => table.is_owned(),
            Means::Edt(edt) => edt.ends_with_process(),
        }
    }

    /// Packets dropped so far in the delay classes of all devices: not one is expected.
    ///
    /// # Errors
    /// What the kernel refuses.
    pub fn drops(&self) -> Result<u64, Error> {
        let mut drops = 0;
        for device in &self.devices {
            let all = self.qdiscs.list(device.index).map_err(|e| Error::kernel("list queueing disciplines", e))?;
            drops += all.iter().filter(|q| q.keeps_packets()).map(|q| q.drops).sum::<u64>();
        }
        Ok(drops)
    }

    /// Removes everything that was made; the devices get their default queueing discipline back.
    ///
    /// # Errors
    /// What the kernel refuses; the journal keeps it for the next attempt.
    pub fn restore(self, journal: &mut Journal) -> Result<(), Error> {
        let Self { means, knobs, .. } = self;
        // An owned table can be removed by its owner alone, and goes with the socket; a program goes with its links.
        drop(means);
        knobs.iter().try_for_each(|knob| journal.restore(knob).map(|_| ()))
    }
}

/// Removes our delay classes from a device, if there are any.
pub(crate) fn remove_classes(device: &str) -> Result<bool, Error> {
    let Ok(index) = device_index(device) else { return Ok(false) };
    let qdiscs = Qdiscs::open().map_err(|e| Error::kernel("open a netlink socket", e))?;
    qdiscs.remove(index).map_err(|e| Error::kernel("remove delay classes", e))
}

/// Removes our filter from a device, if it is there, and `clsact` if we made that.
pub(crate) fn remove_filter(device: &str, made_clsact: bool) -> Result<bool, Error> {
    let Ok(index) = device_index(device) else { return Ok(false) };
    let filters = Filters::open().map_err(|e| Error::kernel("open a netlink socket", e))?;
    filters.remove(index, made_clsact).map_err(|e| Error::kernel("remove a filter", e))
}

/// Removes our table, if it is there.
pub(crate) fn remove_table() -> Result<(), Error> {
    let started = Instant::now();
    loop {
        match table::remove() {
            // Owned by a process that is dying: its lock on the journal may be gone before its netlink socket is.
            Err(Errno::PERM) if started.elapsed() < OWNER_LIMIT => std::thread::sleep(OWNER_POLL),
            result => return result.map_err(table_error),
        }
    }
}

/// Makes sure that nobody has the table. Only an agent that sees another `/run`, and so another lock, can have it here.
fn wait_for_owner() -> Result<(), Error> {
    let started = Instant::now();
    while table::has_owner().map_err(|e| Error::kernel("list nftables tables", e))? {
        // Of a process that is dying the lock may be gone before its netlink socket is.
        if started.elapsed() >= OWNER_LIMIT {
            return Err(Error::AnotherAgent);
        }
        std::thread::sleep(OWNER_POLL);
    }
    Ok(())
}

/// Removes table and classes that no journal knows: it was another one, or is lost. The result is what there was.
///
/// # Errors
/// [`Error::AnotherAgent`] while their owner lives, and what the kernel refuses.
pub fn remove_leftovers() -> Result<Vec<Knob>, Error> {
    let _only = Only::take()?;
    let mut removed = Vec::new();
    match table::exists() {
        Ok(true) => {
            remove_table()?;
            removed.push(Knob::Table);
        }
        Ok(false) | Err(Errno::OPNOTSUPP | Errno::AFNOSUPPORT | Errno::PROTONOSUPPORT) => {}
        Err(e) => return Err(Error::kernel("list nftables tables", e)),
    }
    let qdiscs = Qdiscs::open().map_err(|e| Error::kernel("open a netlink socket", e))?;
    let filters = Filters::open().map_err(|e| Error::kernel("open a netlink socket", e))?;
    let clsact = qdiscs.of_kind("clsact").map_err(|e| Error::kernel("list queueing disciplines", e))?;
    for device in clsact {
        // Whose `clsact` it is nobody knows; without filters it does nothing.
        if filters.remove(device, false).map_err(|e| Error::kernel("remove a filter", e))? {
            removed.push(Knob::Filter(device_name(device)));
        }
    }
    for device in qdiscs.ours().map_err(|e| Error::kernel("list queueing disciplines", e))? {
        if qdiscs.remove(device).map_err(|e| Error::kernel("remove delay classes", e))? {
            removed.push(Knob::Qdisc(device_name(device)));
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_are_rounded_up_and_bounded() {
        let settings = Settings { devices: vec!["eth0".into()], ..Settings::default() };
        let class = |us| settings.class(Duration::from_micros(us));
        assert_eq!([0, 1, 500, 501, 19_999, 20_000, 99_000].map(class), [0, 1, 1, 2, 40, 40, 40]);
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let good = Settings { devices: vec!["eth0".into()], ..Settings::default() };
        assert!(good.check().is_ok());
        for bad in [
            Settings { devices: vec![], ..good.clone() },
            Settings { ports: vec![], ..good.clone() },
            Settings { step: Duration::ZERO, ..good.clone() },
            Settings { maximum: Duration::from_micros(100), ..good.clone() },
            Settings { step: Duration::from_micros(10), maximum: Duration::from_secs(1), ..good.clone() },
            Settings { timeout: Duration::ZERO, ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
