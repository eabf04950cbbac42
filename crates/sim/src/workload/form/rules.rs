//! Rules for the form of a workload that no type expresses.

use evenkeel_policy::workload::Pattern;

use super::{Form, Op, Problem, join};

/// The largest queue depth, and the largest number of requests in a burst: far more than any device accepts.
const MAX_QUEUE_DEPTH: u32 = 65_536;
/// The highest rate, in requests per second: one request per nanosecond, the resolution of virtual time.
const MAX_RATE_PER_S: f64 = 1e9;
/// The largest factor by which a trace is replayed faster or slower.
const MAX_SPEED: f64 = 1e6;

/// The kind of workload that is selected by the keys present in a form.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Idle,
    Phases,
    Trace,
    Load,
}

impl Form {
    fn sort(&self) -> Sort {
        match () {
            () if self.idle => Sort::Idle,
            () if !self.phases.is_empty() => Sort::Phases,
            () if self.trace.is_some() => Sort::Trace,
            () => Sort::Load,
        }
    }

    /// Size of the device's part to which requests go, in bytes.
    pub(super) fn span(&self) -> u64 {
        self.size.map_or(1 << 30, |size| size.0)
    }

    /// The largest size of a request, in bytes.
    fn largest(&self) -> u64 {
        self.block_size.as_ref().map_or(4096, |mix| mix.largest())
    }

    /// Share of reads among reads and writes, in per cent.
    pub(super) fn reads(&self) -> f64 {
        match self.op {
            Some(Op::Read) => 100.0,
            Some(Op::Write) => 0.0,
            Some(Op::Mix) => self.read_percent.unwrap_or(70.0),
            None => self.read_percent.unwrap_or(100.0),
        }
    }
}

/// Appends the faults of the form at `path`, and of its phases, to `problems`.
pub(super) fn check(form: &Form, path: &str, in_phase: bool, problems: &mut Vec<Problem>) {
    let mut wrong = |key: &str, message: String| problems.push(Problem { key: join(path, key), message });
    misplaced(form, in_phase, &mut wrong);
    numbers(form, &mut wrong);
    match form.sort() {
        Sort::Load => load(form, &mut wrong),
        Sort::Trace => trace(form, &mut wrong),
        Sort::Idle | Sort::Phases => {}
    }
    for (index, phase) in form.phases.iter().enumerate() {
        let path = join(path, &format!("phases.{index}"));
        check(phase, &path, true, problems);
    }
}

/// Reports, through `wrong`, the keys of a form that have no meaning in its kind of workload.
fn misplaced(form: &Form, in_phase: bool, wrong: &mut impl FnMut(&str, String)) {
    use Sort::{Load, Phases, Trace};
    let keys: [(&str, bool, &[Sort]); 26] = [
        ("queue_depth", form.queue_depth.is_some(), &[Load, Trace]),
        ("think_time", form.think_time.is_some(), &[Load]),
        ("rate", form.rate.is_some(), &[Load, Trace]),
        ("arrivals", form.arrivals.is_some(), &[Load]),
        ("burst", form.burst.is_some(), &[Load]),
        ("burst_requests", form.burst_requests.is_some(), &[Load]),
        ("burst_every", form.burst_every.is_some(), &[Load]),
        ("op", form.op.is_some(), &[Load]),
        ("read_percent", form.read_percent.is_some(), &[Load]),
        ("block_size", form.block_size.is_some(), &[Load]),
        ("pattern", form.pattern.is_some(), &[Load]),
        ("streams", form.streams.is_some(), &[Load]),
        ("flush_every", form.flush_every.is_some(), &[Load]),
        ("offset", form.offset.is_some(), &[Load, Trace]),
        ("size", form.size.is_some(), &[Load, Trace]),
        ("repeat", form.repeat.is_some(), &[Phases, Trace]),
        ("format", form.format.is_some(), &[Trace]),
        ("event", form.event.is_some(), &[Trace]),
        ("bad_lines", form.bad_lines.is_some(), &[Trace]),
        ("devices", form.devices.is_some(), &[Trace]),
        ("from", form.from.is_some(), &[Trace]),
        ("until", form.until.is_some(), &[Trace]),
        ("skip", form.skip.is_some(), &[Trace]),
        ("count", form.count.is_some(), &[Trace]),
        ("speed", form.speed.is_some(), &[Trace]),
        ("align", form.align.is_some(), &[Trace]),
    ];
    let name = |sort| match sort {
        Sort::Idle => "idle",
        Sort::Phases => "phases",
        Sort::Trace => "a trace",
        Sort::Load => "generated requests",
    };
    let here = form.sort();
    let also = [("phases", !form.phases.is_empty(), Sort::Phases), ("trace", form.trace.is_some(), Sort::Trace)];
    for (key, there, sort) in also {
        if there && sort != here {
            wrong(key, format!("cannot be combined with {}; remove one of them, or make each a phase", name(here)));
        }
    }
    for (key, there, where_to) in keys {
        if there && !where_to.contains(&here) {
            let right: Vec<&str> = where_to.iter().map(|&sort| name(sort)).collect();
            wrong(key, format!("means nothing for {}, only for {}; remove this key", name(here), right.join(" and ")));
        }
    }
    match (in_phase, form.length) {
        (true, None) => wrong("for", "is missing; say how long the phase takes, for example for = \"10s\"".into()),
        (true, Some(length)) if length.is_zero() => wrong("for", "must be more than 0s".into()),
        (false, Some(_)) => {
            wrong("for", "is for phases only; a client has from and until, a scenario has a duration".into());
        }
        _ => {}
    }
}

/// Reports, through `wrong`, the numbers of a form that are out of range.
fn numbers(form: &Form, wrong: &mut impl FnMut(&str, String)) {
    let depth = |n: Option<u32>| n.is_some_and(|n| n == 0 || n > MAX_QUEUE_DEPTH);
    for (key, bad) in [
        ("queue_depth", depth(form.queue_depth)),
        ("burst_requests", depth(form.burst_requests)),
        ("streams", depth(form.streams)),
    ] {
        if bad {
            wrong(key, format!("must be 1 to {MAX_QUEUE_DEPTH}"));
        }
    }
    if form.rate.is_some_and(|rate| !(rate > 0.0 && rate <= MAX_RATE_PER_S)) {
        wrong("rate", format!("must be above 0, at most {MAX_RATE_PER_S} requests a second"));
    }
    if form.speed.is_some_and(|speed| !(1.0 / MAX_SPEED..=MAX_SPEED).contains(&speed)) {
        wrong("speed", format!("must be {} to {MAX_SPEED}; 2 is twice as fast", 1.0 / MAX_SPEED));
    }
    if form.read_percent.is_some_and(|percent| !(0.0..=100.0).contains(&percent)) {
        wrong("read_percent", "must be 0 to 100".into());
    }
    if form.burst_every.is_some_and(|every| every.is_zero()) {
        wrong("burst_every", "must be more than 0s".into());
    }
    if form.align.is_some_and(|align| align.0 == 0 || align.0 > 1 << 30) {
        wrong("align", "must be 1 to 1GiB".into());
    }
}

fn load(form: &Form, wrong: &mut impl FnMut(&str, String)) {
    let open = form.rate.is_some();
    let bursts = form.burst_requests.is_some();
    match (form.burst_requests, form.burst_every) {
        (Some(_), None) => {
            wrong("burst_every", "is missing; say how often, for example burst_every = \"100ms\"".into());
        }
        (None, Some(_)) => wrong("burst_requests", "is missing; say how many come at once".into()),
        _ => {}
    }
    if open && bursts {
        wrong("rate", "follows from burst_requests and burst_every; remove this key".into());
    }
    if form.queue_depth.is_some() && (open || bursts) {
        let message = "bounds a closed loop, and rate or burst_requests makes the loop open: remove one of them";
        wrong("queue_depth", message.into());
    }
    if form.think_time.is_some() && (open || bursts) {
        wrong("think_time", "is for a closed loop; remove this key, or rate (burst_requests)".into());
    }
    if form.arrivals.is_some() && !(open || bursts) {
        wrong("arrivals", "is for an open loop; add rate (or burst_requests), or remove this key".into());
    }
    if form.read_percent.is_some() && matches!(form.op, Some(Op::Read | Op::Write)) {
        wrong("read_percent", "is for a mix; write op = \"mix\", or remove this key".into());
    }
    if form.streams.is_some() && form.pattern != Some(Pattern::Sequential) {
        wrong("streams", "is for pattern = \"sequential\"".into());
    }
    if form.flush_every == Some(0) {
        wrong("flush_every", "must be at least 1; remove this key for no flushes".into());
    }
    if form.flush_every.is_some() && form.reads() >= 100.0 {
        wrong("flush_every", "counts writes, and there are none; write op = \"write\" or \"mix\"".into());
    }
    let needed = form.largest().saturating_mul(form.streams.unwrap_or(1).max(1).into());
    if form.span() < needed {
        let message = format!("of {} bytes has no room for a block of each stream; use at least {needed}", form.span());
        wrong("size", message);
    }
    if form.offset.unwrap_or_default().0.checked_add(form.span()).is_none() {
        wrong("offset", "and size together must be below 16EiB".into());
    }
}

fn trace(form: &Form, wrong: &mut impl FnMut(&str, String)) {
    if form.rate.is_some() && form.speed.is_some() {
        wrong("speed", "and rate both set the speed; remove one of them".into());
    }
    if form.queue_depth.is_some() && (form.rate.is_some() || form.speed.is_some()) {
        let key = if form.rate.is_some() { "rate" } else { "speed" };
        wrong(key, "means nothing with queue_depth, which replays as fast as requests complete; remove one".into());
    }
    if form.from.unwrap_or_default() >= form.until.unwrap_or(evenkeel_control::Duration::MAX) {
        wrong("until", "must be later than from".into());
    }
    if form.count == Some(0) {
        wrong("count", "must be at least 1".into());
    }
    if form.devices.as_ref().is_some_and(Vec::is_empty) {
        wrong("devices", "names none; remove this key for all".into());
    }
}
