//! The packet delay as a whole: planning and making the network settings, changing delays at every tick, restoring.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::netdevice::{index_to_name, name_to_index};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::client_delay::Delays;
use super::departure::Departures;
use super::error::Error;
use super::filter::{Filters, Refused};
use super::only::Only;
use super::qdisc::{self, Qdisc, Qdiscs};
use crate::journal::{Journal, Knob};

/// Largest number of clients whose packets are delayed at one time. Each client is an element of the BPF program's map, which
/// takes some 100 bytes of kernel memory and 1 us to write, and is rewritten after each third of the timeout.
pub const MAX_DELAYS: usize = 131_072;
/// The longest delay of a packet that may be configured.
pub(crate) const LONGEST_DELAY: Duration = Duration::from_secs(1);
/// The shortest timeout of delays that may be configured; with a shorter one, one late tick would end all delays.
pub(crate) const SHORTEST_TIMEOUT: Duration = Duration::from_millis(100);
/// Interval between checks that the agent's queueing disciplines and BPF program are in place; a check takes three netlink
/// messages for each device.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Settings of the packet delay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Network devices by which the clients are reached.
    pub devices: Vec<String>,
    /// Ports of the services on this host whose packets may be delayed (iSCSI: 3260).
    pub ports: Vec<u16>,
    /// Longest delay of a packet; a longer one is cut to this.
    pub maximum: Duration,
    /// Time after which a delay in the kernel expires unless the agent renews it.
    pub timeout: Duration,
    /// True to attach the BPF program by filters (`cls_bpf`) even if the kernel has links (TCX): for tests.
    #[doc(hidden)]
    pub filters: bool,
}

impl Default for Settings {
    /// Delays up to 20 ms, as in the iSCSI paper (section 4), for packets from iSCSI's port 3260.
    fn default() -> Self {
        Self {
            devices: Vec::new(),
            ports: vec![3260],
            maximum: Duration::from_millis(20),
            timeout: Duration::from_secs(3),
            filters: false,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), Error> {
        let wrong = |key, problem: String| Err(Error::Settings { key, problem });
        if self.devices.is_empty() {
            return wrong("devices", "is empty: name the network devices by which the clients are reached".into());
        }
        if self.ports.is_empty() {
            return wrong("ports", "is empty: name the ports of the services, for iSCSI 3260".into());
        }
        if self.maximum.is_zero() || self.maximum > LONGEST_DELAY {
            return wrong("maximum", format!("is {:?}: must be above 0 and at most 1s", self.maximum));
        }
        if self.timeout < SHORTEST_TIMEOUT || self.timeout > Duration::from_secs(3600) {
            return wrong("timeout", format!("is {:?}: must be between 100ms and 1h", self.timeout));
        }
        Ok(())
    }
}

/// The planned changes to network devices, before any of them is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    settings: Settings,
    devices: Vec<DevicePlan>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct DevicePlan {
    name: String,
    index: u32,
    found: String,
    /// True if the device's root queueing discipline is the agent's own, left behind by an earlier run.
    ours: bool,
}

impl Plan {
    /// Reads the queueing disciplines of the devices and plans the changes; changes nothing.
    ///
    /// # Errors
    /// [`Error::ForeignQdisc`] if a device has a queueing discipline that another program configured, [`Error::NoDevice`],
    /// [`Error::Settings`], and errors of the kernel.
    pub fn new(settings: Settings) -> Result<Self, Error> {
        settings.check()?;
        let qdiscs = Qdiscs::open().map_err(no_socket)?;
        let mut devices = Vec::new();
        for name in &settings.devices {
            let index = device_index(name)?;
            let found = qdiscs.list(index).map_err(|e| Error::kernel(LIST_QDISCS, e))?;
            let root = found.iter().find(|q| q.root);
            refuse_foreign(name, root)?;
            devices.push(DevicePlan {
                name: name.clone(),
                index,
                found: root.map_or_else(|| "none".into(), |q| q.kind.clone()),
                ours: root.is_some_and(Qdisc::is_ours),
            });
        }
        Ok(Self { settings, devices })
    }

    /// The steps of the plan in words, for `--dry-run`.
    pub fn steps(&self) -> Vec<String> {
        let step = |DevicePlan { name, found, ours, .. }: &DevicePlan| match ours {
            true => format!("{name}: replace an earlier run's qdisc with htb and fq, and attach a BPF program"),
            false => format!("{name}: replace the default qdisc {found} with htb and fq, and attach a BPF program"),
        };
        self.devices.iter().map(step).collect()
    }

    /// Carries out the plan. Every setting is written to the journal before it is changed.
    ///
    /// # Errors
    /// An error of the kernel; changes made before the error are undone.
    pub fn apply(self, journal: &mut Journal) -> Result<PacketDelay, Error> {
        let qdiscs = Qdiscs::open().map_err(no_socket)?;
        let only = Only::take()?;
        let mut knobs: Vec<Knob> = self.devices.iter().map(|device| Knob::Qdisc(device.name.clone())).collect();
        for knob in &knobs {
            journal.intend(knob, None, None)?;
        }
        let made = self.make(&qdiscs, journal, &mut knobs);
        // In this order they are restored: filters first, so that no more packets come to wait.
        knobs.sort_unstable();
        match made {
            Ok(departures) => {
                let (settings, devices) = (self.settings, self.devices);
                Ok(PacketDelay { settings, devices, departures, qdiscs, knobs, checked: None, _only: only })
            }
            Err(e) => {
                // The refusal is what the caller must see. The journal keeps what cannot be undone now.
                let _ = journal.restore_all();
                Err(e)
            }
        }
    }

    /// Makes the planned changes, and adds to `knobs` the settings that are written to the journal on the way.
    fn make(&self, qdiscs: &Qdiscs, journal: &mut Journal, knobs: &mut Vec<Knob>) -> Result<Departures, Error> {
        for device in &self.devices {
            // Of an agent whose journal is another one, or lost: it delays nothing any more, and every packet pays for it.
            // The journal alone tells whose `clsact` it is; without filters it does nothing.
            remove_filter(&device.name, false)?;
        }
        // Before Linux 5.11 the map counts as locked memory. Where that may not be raised it may be enough already.
        let _ = setrlimit(Resource::Memlock, Rlimit { current: None, maximum: None });
        let mut departures = Departures::load(&self.settings.ports, MAX_DELAYS).map_err(|e| match e {
            Errno::PERM => Error::NotAllowed { doing: "load a BPF program" },
            Errno::ACCESS | Errno::INVAL | Errno::NOSYS => Error::NoProgram,
            e => Error::kernel("load the BPF program", e),
        })?;
        if self.settings.filters || !self.devices.iter().all(|device| departures.has_links(device.index)) {
            let filters = Filters::open().map_err(no_socket)?;
            for device in &self.devices {
                let clsact = filters.has_clsact(device.index).map_err(|e| Error::kernel(LIST_QDISCS, e))?;
                let knob = Knob::Filter(device.name.clone());
                journal.intend(&knob, Some(if clsact { "clsact" } else { "" }), Some("clsact, cls_bpf"))?;
                knobs.push(knob);
            }
            departures.use_filters(filters);
        }
        for device in &self.devices {
            qdiscs.remove(device.index).map_err(|e| Error::kernel("remove an old queueing discipline", e))?;
            // The program first: where the kernel cannot have it nothing has been changed.
            departures.attach(device.index).map_err(|e| not_attached(&device.name, e))?;
            qdiscs.create(device.index).map_err(no_qdisc)?;
        }
        Ok(departures)
    }
}

const LIST_QDISCS: &str = "list queueing disciplines";

fn no_socket(e: Errno) -> Error {
    Error::kernel("open a netlink socket", e)
}

/// An error if another program configured `root`, the root queueing discipline of `device`.
fn refuse_foreign(device: &str, root: Option<&Qdisc>) -> Result<(), Error> {
    match root.filter(|q| !q.is_default() && !q.is_ours()) {
        Some(root) => Err(Error::ForeignQdisc { device: device.to_owned(), found: root.name() }),
        None => Ok(()),
    }
}

fn no_qdisc(refused: qdisc::Refused) -> Error {
    match (refused.error, refused.what) {
        (Errno::NOENT, "fq") => Error::Missing { what: "fq, which delays packets", module: "sch_fq" },
        (Errno::NOENT, _) => Error::Missing { what: "htb, by which packets pass delayed ones", module: "sch_htb" },
        (e, _) => Error::kernel("make a queueing discipline", e),
    }
}

fn not_attached(device: &str, why: Refused) -> Error {
    match why {
        Refused::Missing("cls_bpf") => {
            Error::Missing { what: "cls_bpf, which is needed without TCX (Linux 6.6)", module: "cls_bpf" }
        }
        Refused::Missing(module) => Error::Missing { what: "clsact, which is needed without TCX (Linux 6.6)", module },
        Refused::Ingress => Error::IngressInTheWay { device: device.to_owned() },
        Refused::Other(e) => Error::kernel("attach the BPF program to a network device", e),
    }
}

/// A socket by which the kernel is asked about network devices.
fn socket() -> Result<OwnedFd, Errno> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

fn device_index(name: &str) -> Result<u32, Error> {
    let socket = socket().map_err(|e| Error::kernel("open a socket", e))?;
    name_to_index(&socket, name).map_err(|_| Error::NoDevice { device: name.to_owned() })
}

/// Name of the network device with this index, or `device INDEX` if there is no such device.
fn device_name(index: u32) -> String {
    let name = socket().and_then(|socket| index_to_name(&socket, index));
    name.unwrap_or_else(|_| format!("device {index}"))
}

/// The result of [`PacketDelay::set`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Outcome {
    /// True if the BPF program's map was written; false if all delays were in force already and none was due for renewal.
    pub written: bool,
    /// True if another program had removed the agent's queueing discipline or BPF program, which has been made again.
    pub repaired: bool,
}

/// The packet delay in force. Dropping this value leaves the network settings in place: call [`PacketDelay::restore`], or let
/// the sentinel restore them.
#[derive(Debug)]
pub struct PacketDelay {
    settings: Settings,
    devices: Vec<DevicePlan>,
    departures: Departures,
    qdiscs: Qdiscs,
    knobs: Vec<Knob>,
    /// Time of the latest check that the agent's queueing disciplines and program are in place; `None` before the first.
    checked: Option<Instant>,
    _only: Only,
}

impl PacketDelay {
    /// Puts exactly `delays` in force. Call it at every tick, also if no delay has changed: the call renews delays before
    /// their timeout, and once a second repairs queueing disciplines and programs that were removed. Writes only delays that
    /// differ or are due for renewal.
    ///
    /// # Errors
    /// [`Error::Settings`] for more than [`MAX_DELAYS`] delays. Errors of the kernel: earlier delays stay in force until their
    /// timeout. [`Error::ForeignQdisc`] or [`Error::NoDevice`] while a device has another program's queueing discipline in
    /// place of the agent's, or is gone: the delays have been written all the same.
    pub fn set(&mut self, now: Instant, delays: &Delays) -> Result<Outcome, Error> {
        let count = delays.len();
        if count > MAX_DELAYS {
            let problem = format!(
                "are {count}: an agent can delay the packets of at most {MAX_DELAYS} at one time, and changes no delay while there are more; set throttle = \"never\" for some tenants"
            );
            return Err(Error::Settings { key: "clients to throttle", problem });
        }
        let written = self.departures.set(now, delays, self.settings.maximum, self.settings.timeout);
        let written = written.map_err(|e| Error::kernel("change which clients are throttled", e))?;
        let is_due = self.checked.is_none_or(|at| now.saturating_duration_since(at) >= CHECK_EVERY);
        if !is_due {
            return Ok(Outcome { written, repaired: false });
        }
        self.checked = Some(now);
        Ok(Outcome { written, repaired: self.repair()? })
    }

    /// Makes the agent's queueing disciplines and program again on devices that lack them; true if a device did.
    fn repair(&mut self) -> Result<bool, Error> {
        let (mut repaired, mut failure) = (false, None);
        for place in 0..self.devices.len() {
            match self.repair_one(place) {
                Ok(made) => repaired |= made,
                // One device keeps no other from being mended.
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(repaired), Err)
    }

    fn repair_one(&mut self, place: usize) -> Result<bool, Error> {
        let index = device_index(&self.devices[place].name)?;
        let before = self.devices[place].index;
        let is_alone = self.devices.iter().filter(|known| known.index == before).count() == 1;
        let device = &mut self.devices[place];
        let listed = |e| Error::kernel(LIST_QDISCS, e);
        let root = self.qdiscs.root(index).map_err(listed)?;
        refuse_foreign(&device.name, root.as_ref())?;
        let is_there = root.is_some_and(|root| root.is_ours()) && self.qdiscs.is_whole(index).map_err(listed)?;
        let mut repaired = !is_there;
        if index == device.index {
            repaired |= self.departures.repair(index).map_err(|e| not_attached(&device.name, e))?;
        } else {
            // Where two devices have exchanged their names, what the other one has now stays.
            if is_alone {
                self.departures.forget(before);
                // A device that is gone has nothing left; one that was renamed has.
                remove_by_index(&self.qdiscs, before)?;
            }
            self.departures.attach(index).map_err(|e| not_attached(&device.name, e))?;
            device.index = index;
        }
        if !is_there {
            // A root without what belongs under it is in the way of a new one.
            self.qdiscs.remove(index).map_err(|e| Error::kernel("remove a queueing discipline", e))?;
            self.qdiscs.create(index).map_err(no_qdisc)?;
        }
        Ok(repaired)
    }

    /// The delays in force.
    pub fn delays(&self) -> Delays {
        self.departures.delays()
    }

    /// True if the kernel ends all delays by itself when this process ends; otherwise delays last until their timeout.
    pub fn ends_with_process(&self) -> bool {
        self.departures.ends_with_process()
    }

    /// Number of packets that the agent's queueing disciplines on all devices have dropped since they were made; 0 is
    /// expected.
    ///
    /// # Errors
    /// An error of the kernel.
    pub fn drops(&self) -> Result<u64, Error> {
        let mut drops = 0;
        for device in &self.devices {
            let all = self.qdiscs.list(device.index).map_err(|e| Error::kernel(LIST_QDISCS, e))?;
            // The root counts what its class drops, and what goes past it.
            drops += all.iter().filter(|q| q.root && q.is_ours()).map(|q| q.drops).sum::<u64>();
        }
        Ok(drops)
    }

    /// Removes the BPF program, its filters and the agent's queueing disciplines; the devices get their default queueing
    /// discipline back.
    ///
    /// # Errors
    /// An error of the kernel; settings that were not restored stay in the journal for the next attempt.
    pub fn restore(self, journal: &mut Journal) -> Result<(), Error> {
        let Self { departures, knobs, devices, qdiscs, .. } = self;
        // The program goes with its links.
        drop(departures);
        // The journal finds devices by name, and so not those that were renamed: another device may have the name now.
        let renamed = devices.iter().filter(|device| device_index(&device.name).ok() != Some(device.index));
        let removed = renamed.map(|device| remove_by_index(&qdiscs, device.index));
        let removed = removed.fold(Ok(()), Result::and);
        knobs.iter().try_for_each(|knob| journal.restore(knob).map(|_| ())).and(removed)
    }
}

/// Removes the agent's filter and queueing disciplines from the network device with this index, if the device has them.
fn remove_by_index(qdiscs: &Qdiscs, index: u32) -> Result<(), Error> {
    let filters = Filters::open().map_err(no_socket)?;
    filters.remove(index, false).map_err(|e| Error::kernel("remove a filter", e))?;
    qdiscs.remove(index).map(|_| ()).map_err(|e| Error::kernel("remove a queueing discipline", e))
}

/// Removes the agent's queueing disciplines from a network device; false if the device has none.
pub(crate) fn remove_qdisc(device: &str) -> Result<bool, Error> {
    let Ok(index) = device_index(device) else { return Ok(false) };
    let qdiscs = Qdiscs::open().map_err(no_socket)?;
    qdiscs.remove(index).map_err(|e| Error::kernel("remove a queueing discipline", e))
}

/// Removes the agent's filter from a network device, and `clsact` too if the agent made it (`made_clsact`); false if nothing
/// was removed.
pub(crate) fn remove_filter(device: &str, made_clsact: bool) -> Result<bool, Error> {
    let Ok(index) = device_index(device) else { return Ok(false) };
    let filters = Filters::open().map_err(no_socket)?;
    filters.remove(index, made_clsact).map_err(|e| Error::kernel("remove a filter", e))
}

/// Removes the agent's filters and queueing disciplines from all network devices, in case their journal is lost or another
/// one is used. Returns the removed settings.
///
/// # Errors
/// [`Error::AnotherAgent`] while another agent runs in this network namespace, and errors of the kernel.
pub fn remove_leftovers() -> Result<Vec<Knob>, Error> {
    let mut removed = Vec::new();
    let qdiscs = Qdiscs::open().map_err(no_socket)?;
    let filters = Filters::open().map_err(no_socket)?;
    let roots = qdiscs.ours().map_err(|e| Error::kernel(LIST_QDISCS, e))?;
    let mut filtered = Vec::new();
    for device in qdiscs.of_kind("clsact").map_err(|e| Error::kernel(LIST_QDISCS, e))? {
        if filters.is_attached(device).map_err(|e| Error::kernel("list filters", e))? {
            filtered.push(device);
        }
    }
    // To look takes no privileges, the lock does.
    let _only = if roots.is_empty() && filtered.is_empty() { return Ok(removed) } else { Only::take()? };
    for device in filtered {
        // Without filters `clsact`, of which only the journal tells whose it is, does nothing.
        if filters.remove(device, false).map_err(|e| Error::kernel("remove a filter", e))? {
            removed.push(Knob::Filter(device_name(device)));
        }
    }
    for device in roots {
        if qdiscs.remove(device).map_err(|e| Error::kernel("remove a queueing discipline", e))? {
            removed.push(Knob::Qdisc(device_name(device)));
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::actuator::netlink::{ACK, CREATE, EXCLUSIVE, Request, Socket};
    use crate::apart::{apart, skip};

    const LOOPBACK: u32 = 1;

    /// Makes a network device with this name; false if the kernel has no devices of the kind `dummy`.
    fn made(name: &str) -> bool {
        const NEW_LINK: u16 = 16;
        const NAME: u16 = 3;
        const INFORMATION: u16 = 18;
        const KIND: u16 = 1;
        let request = Request::new(NEW_LINK, ACK | CREATE | EXCLUSIVE, |w| {
            w.raw(&[0; 16]);
            w.text(NAME, name);
            w.nest(INFORMATION, |w| w.text(KIND, "dummy"));
        });
        Socket::open().unwrap().tell(&request).is_ok()
    }

    #[test]
    fn only_who_removes_something_needs_the_lock() {
        apart(UnshareFlags::NEWNET, || {
            let Ok(another) = Only::take() else { return skip("may not make locks in /run/evenkeel") };
            assert_eq!(remove_leftovers().unwrap(), []);
            let qdiscs = Qdiscs::open().unwrap();
            if !qdiscs.halve(LOOPBACK) {
                return skip("the kernel has no htb");
            }
            assert!(matches!(remove_leftovers(), Err(Error::AnotherAgent)));
            drop(another);
            assert_eq!(remove_leftovers().unwrap(), [Knob::Qdisc("lo".into())]);
            assert_eq!(qdiscs.ours(), Ok(vec![]));
        });
    }

    #[test]
    fn a_device_that_is_gone_keeps_no_other_from_being_mended() {
        apart(UnshareFlags::NEWNET, || {
            let folder = crate::folder::folder("mended");
            let mut journal = Journal::open(folder.join("journal")).unwrap();
            let plan = Plan::new(Settings { devices: vec!["lo".into()], ..Settings::default() }).unwrap();
            let mut delay = match plan.apply(&mut journal) {
                Ok(delay) => delay,
                Err(error) => return skip(&error.to_string()),
            };
            let gone = DevicePlan { name: "gone".into(), index: 77, found: "none".into(), ours: false };
            delay.devices.insert(0, gone);
            assert!(delay.qdiscs.remove(LOOPBACK).unwrap());
            let mended = delay.set(Instant::now(), &Delays::default());
            assert!(matches!(&mended, Err(Error::NoDevice { device }) if device == "gone"), "{mended:?}");
            assert_eq!(delay.qdiscs.is_whole(LOOPBACK), Ok(true));
            // A root alone is none.
            delay.devices.remove(0);
            assert!(delay.qdiscs.halve(LOOPBACK));
            assert_eq!(delay.qdiscs.is_whole(LOOPBACK), Ok(false));
            let later = Instant::now() + CHECK_EVERY;
            assert_eq!(delay.set(later, &Delays::default()).unwrap(), Outcome { written: false, repaired: true });
            assert_eq!(delay.qdiscs.is_whole(LOOPBACK), Ok(true));
            delay.restore(&mut journal).unwrap();
        });
    }

    #[test]
    fn a_device_that_was_renamed_since_is_restored_too() {
        apart(UnshareFlags::NEWNET, || {
            let folder = crate::folder::folder("renamed");
            let mut journal = Journal::open(folder.join("journal")).unwrap();
            let plan = Plan::new(Settings { devices: vec!["lo".into()], ..Settings::default() }).unwrap();
            let mut delay = match plan.apply(&mut journal) {
                Ok(delay) => delay,
                Err(error) => return skip(&error.to_string()),
            };
            assert_eq!(delay.qdiscs.ours(), Ok(vec![LOOPBACK]));
            // As if the device had had another name at the start.
            delay.devices[0].name = "before".into();
            delay.knobs = vec![Knob::Qdisc("before".into())];
            delay.restore(&mut journal).unwrap();
            assert_eq!(Qdiscs::open().unwrap().ours(), Ok(vec![]));
        });
    }

    #[test]
    fn a_device_whose_name_another_one_has_now_is_given_up_for_that() {
        apart(UnshareFlags::NEWNET, || {
            if !made("other") {
                return skip("the kernel has no dummy devices");
            }
            let folder = crate::folder::folder("taken");
            let mut journal = Journal::open(folder.join("journal")).unwrap();
            let plan = Plan::new(Settings { devices: vec!["lo".into()], ..Settings::default() }).unwrap();
            let mut delay = match plan.apply(&mut journal) {
                Ok(delay) => delay,
                Err(error) => return skip(&error.to_string()),
            };
            // As if the device had had the name of the other one at the start.
            let knob = Knob::Qdisc("other".into());
            journal.intend(&knob, None, None).unwrap();
            delay.devices[0].name = "other".into();
            delay.knobs = vec![knob];
            assert!(delay.set(Instant::now(), &Delays::default()).unwrap().repaired);
            assert_eq!(delay.qdiscs.ours(), Ok(vec![device_index("other").unwrap()]));
            delay.restore(&mut journal).unwrap();
            assert_eq!(Qdiscs::open().unwrap().ours(), Ok(vec![]));
        });
    }

    #[test]
    fn devices_that_have_exchanged_their_names_both_keep_queue_and_program() {
        apart(UnshareFlags::NEWNET, || {
            if !made("other") {
                return skip("the kernel has no dummy devices");
            }
            let folder = crate::folder::folder("exchanged");
            let mut journal = Journal::open(folder.join("journal")).unwrap();
            let devices = vec!["lo".into(), "other".into()];
            let plan = Plan::new(Settings { devices, ..Settings::default() }).unwrap();
            let mut delay = match plan.apply(&mut journal) {
                Ok(delay) => delay,
                Err(error) => return skip(&error.to_string()),
            };
            // As if each had had the name of the other one at the start.
            delay.devices[0].name = "other".into();
            delay.devices[1].name = "lo".into();
            assert!(delay.set(Instant::now(), &Delays::default()).unwrap().repaired);
            for device in [LOOPBACK, device_index("other").unwrap()] {
                assert_eq!(delay.qdiscs.is_whole(device), Ok(true), "{device}");
                if delay.ends_with_process() {
                    assert_eq!(crate::bpf::programs_at_egress(device), Ok(1), "{device}");
                }
            }
            delay.restore(&mut journal).unwrap();
            assert_eq!(Qdiscs::open().unwrap().ours(), Ok(vec![]));
        });
    }

    #[test]
    fn settings_that_cannot_work_are_refused() {
        let good = Settings { devices: vec!["eth0".into()], ..Settings::default() };
        assert!(good.check().is_ok());
        for bad in [
            Settings { devices: vec![], ..good.clone() },
            Settings { ports: vec![], ..good.clone() },
            Settings { maximum: Duration::ZERO, ..good.clone() },
            Settings { maximum: Duration::from_secs(2), ..good.clone() },
            Settings { timeout: Duration::ZERO, ..good.clone() },
        ] {
            assert!(bad.check().is_err(), "{bad:?}");
        }
    }
}
