//! The lab of totals: one tenant's reservation and limit over three servers, with a real etcd of three members.
//!
//! The lab needs no virtual machine: all processes run on this machine, as root in a network namespace of their own. Each server
//! reaches etcd at an address of its own, so that a packet filter can cut one server off.

use std::time::Duration;

use anyhow::{Context, Result};

use crate::base::scratch::Scratch;
use crate::check::run::{Lab, Options};

use judge::Reading;
use stage::{Course, Stage};

mod judge;
mod stage;

/// Limit of the tenant over all servers, in IOPS.
const LIMIT: u32 = 4_000;
/// Reservation of the tenant over all servers, in IOPS. With it, the safe part of each of three servers is a quarter of the
/// limit, so that two servers serve the reservation while the safe part of a dead one stays free.
const RESERVATION: u32 = 3_000;
const SERVERS: [&str; 3] = ["a", "b", "c"];
/// The server that is cut off from etcd, and the one that is killed.
const CUT_OFF: usize = 0;
const KILLED: usize = 2;
/// Loads of a client: as fast as possible, a little, and none.
const BUSY: Load = &["--iodepth=64"];
const LIGHT: Load = &["--iodepth=16", "--rate_iops=150", "--rate_process=poisson"];
const NONE: Load = &[];
/// The most that a window may exceed the limit by.
const EXCESS: f64 = 1.05;
/// The part of the reservation that windows must reach, and the part of the windows that must; judged with `--full`.
const RESERVED: f64 = 0.95;
const OF_WINDOWS: f64 = 0.99;
/// The part of the reservation that all windows together must reach on a busy machine, too.
const SURE: f64 = 0.85;
/// Period and lease of the cluster: shorter than by default, which keeps the lab short.
const PERIOD: Duration = Duration::from_millis(500);
const LEASE: Duration = Duration::from_secs(2);
/// Longest time in which parts follow demand that has moved.
const MOVED_WITHIN: Duration = Duration::from_secs(3);
/// Lease, period, and two seconds: the longest time until the others have the part of a server that died or was cut off, and
/// until a server has its part again that came back. It also bounds the time after a failure of a member of etcd.
const SETTLED_WITHIN: Duration = LEASE.saturating_add(PERIOD).saturating_add(Duration::from_secs(2));
/// Number of cycles of events, and of windows after each event has settled: by default, and with `--full`.
const BRIEF: [usize; 2] = [1, 1];
const FULL: [usize; 2] = [3, 24];

/// Options of a client for its load; none: no client.
type Load = &'static [&'static str];

/// An event, and the loads of the clients from then on: demand moves with each event.
struct Event {
    /// End of the names of its checks.
    name: &'static str,
    happens: fn(&mut Stage) -> Result<()>,
    loads: [Load; SERVERS.len()],
    /// Longest time until the reservation holds.
    within: Duration,
    /// The server that has lost the cluster then.
    lost: Option<usize>,
}

impl Event {
    /// An event that cuts no server off.
    const fn of(name: &'static str, happens: fn(&mut Stage) -> Result<()>, loads: [Load; SERVERS.len()]) -> Self {
        Self { name, happens, loads, within: SETTLED_WITHIN, lost: None }
    }
}

/// Events in their order. Each begins in the state in which its predecessor ends; the first one begins in the state in which the
/// last one ends.
static EVENTS: [Event; 7] = [
    Event { within: MOVED_WITHIN, ..Event::of("demand_moves", Stage::nothing, [LIGHT, LIGHT, BUSY]) },
    Event::of("the_leader_of_etcd_is_killed", Stage::leader_is_killed, [LIGHT, BUSY, LIGHT]),
    Event::of("the_leader_of_etcd_is_paused", Stage::leader_is_paused, [LIGHT, LIGHT, BUSY]),
    // The busy one.
    Event::of("a_server_is_killed", Stage::server_is_killed, [BUSY, BUSY, NONE]),
    Event::of("it_is_back", Stage::server_is_back, [BUSY, LIGHT, LIGHT]),
    // The busy one again.
    Event { lost: Some(CUT_OFF), ..Event::of("a_server_is_cut_off", Stage::server_is_cut_off, [BUSY, BUSY, LIGHT]) },
    Event::of("it_is_found_again", Stage::server_is_found_again, [BUSY, LIGHT, LIGHT]),
];
/// Index of the first event that needs a network namespace.
const FIRST_CUT: usize = 5;

/// Runs the lab and reports each step.
pub(crate) fn run(lab: &mut Lab, options: &Options) -> Result<()> {
    let scratch = Scratch::kept_if(options.keep, "totals")?;
    let mut stage = Stage::new(&scratch, options)?;
    stage.load([BUSY, LIGHT, LIGHT])?;
    stage.wait_for("the busy server has most of the limit", |stage| stage.part(0) > 0.7)?;

    let [cycles, windows] = if options.full { FULL } else { BRIEF };
    // The last event takes the lab beyond a minute.
    let wanted = if options.full { &EVENTS[..] } else { &EVENTS[..=FIRST_CUT] };
    let possible = if stage.space.is_ok() { wanted.len() } else { FIRST_CUT };
    let (events, skipped) = wanted.split_at(possible);
    let mut all: Vec<Vec<Course>> = events.iter().map(|_| Vec::new()).collect();
    for _ in 0..cycles {
        for (event, courses) in events.iter().zip(&mut all) {
            let course = stage.course(event, windows).with_context(|| format!("{}: the event", event.name))?;
            println!("lab: {}: {}", event.name, judge::told(&course));
            courses.push(course);
        }
    }
    for (event, courses) in events.iter().zip(&all) {
        check_limit(lab, event.name, courses);
        check_reservation(lab, options, event, courses);
    }
    if let Err(reason) = &stage.space {
        for event in skipped {
            lab.skipped(&limit_check(event.name), reason)?;
            lab.skipped(&reservation_check(event.name), reason)?;
        }
    }
    stage.end_etcd();
    // A server that does not answer in time may still share.
    let is_lost =
        |stage: &Stage| (0..SERVERS.len()).all(|server| ["lost", "alone"].contains(&stage.contact(server).as_str()));
    stage.wait_for("the servers know that etcd is gone", is_lost)?;
    stage.load([BUSY, BUSY, BUSY])?;
    let course = stage.readings(Duration::ZERO, windows)?;
    check_limit(lab, "etcd_is_gone", &[course]);
    Ok(())
}

fn limit_check(event: &str) -> String {
    format!("the_limit_holds_when_{event}")
}

fn reservation_check(event: &str) -> String {
    format!("the_reservation_holds_when_{event}")
}

/// Checks all windows after an event, in all courses, for the limit.
fn check_limit(lab: &mut Lab, event: &str, courses: &[Course]) {
    let most = courses.iter().map(|course| judge::largest(course)).fold(0.0, f64::max);
    let bar = EXCESS * f64::from(LIMIT);
    let [value, limit] = [most, bar].map(|rate| format!("{rate:.0} IOPS"));
    lab.figure(&format!("largest_window_when_{event}"), &value, &limit, most <= bar);
    lab.check(&limit_check(event), most <= bar, &all_told(courses));
}

/// Checks the windows from the time on by which an event has settled, in all courses, for the reservation.
fn check_reservation(lab: &mut Lab, options: &Options, event: &Event, courses: &[Course]) {
    let settled: Vec<&[Reading]> = courses.iter().map(|course| judge::since(course, event.within)).collect();
    let least = settled.iter().map(|course| judge::rate(course, None)).fold(f64::INFINITY, f64::min);
    let bar = SURE * f64::from(RESERVATION);
    let detail = format!("{least:.0} IOPS (bar {bar:.0}), {:?} after the event; {}", event.within, all_told(courses));
    lab.check(&reservation_check(event.name), least >= bar, &detail);

    let windows: Vec<f64> = settled.iter().flat_map(|course| judge::windows(course)).collect();
    let bar = RESERVED * f64::from(RESERVATION);
    let with = judge::part_with(&windows, bar);
    let value = format!("{:.0} % of the windows with {bar:.0} IOPS", 100.0 * with);
    let name = format!("windows_reach_the_reservation_when_{}", event.name);
    lab.judge(options, &name, &value, &format!("{:.0} %", 100.0 * OF_WINDOWS), with >= OF_WINDOWS);
}

fn all_told(courses: &[Course]) -> String {
    courses.iter().map(|course| judge::told(course)).collect::<Vec<_>>().join(" | ")
}
