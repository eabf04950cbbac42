//! Builds a workload from a checked form.

use std::sync::Arc;

use evenkeel_policy::figures::counted;
use evenkeel_policy::workload::Pattern as Written;

use super::{Form, Open, Problem, join};
use crate::workload::spec::{Arrivals, OnOff, Pace, Pattern, Phase, Replay, Requests, SizeShare, Spec};
use crate::workload::trace::{Options, Reader, Selection, Trace};

/// Builds the workload of a form. `path` is the form's place in the workload, for messages; warnings are appended to
/// `warnings`.
pub(super) fn build(form: &Form, path: &str, open: Open<'_>, warnings: &mut Vec<Problem>) -> Result<Spec, Problem> {
    if form.idle {
        return Ok(Spec::Idle);
    }
    if !form.phases.is_empty() {
        let phases = form.phases.iter().enumerate().map(|(index, phase)| {
            let spec = build(phase, &join(path, &format!("phases.{index}")), open, warnings)?;
            Ok(Phase { length: phase.length.unwrap_or_default(), spec })
        });
        return Ok(Spec::Phases { phases: phases.collect::<Result<_, _>>()?, times: form.repeat.unwrap_or(1) });
    }
    match &form.trace {
        Some(name) => {
            let trace = Arc::new(read(form, name, path, open, warnings)?);
            Ok(Spec::Replay(Replay { trace, queue_depth: form.queue_depth, times: form.repeat.unwrap_or(1) }))
        }
        None => Ok(Spec::Load { pace: pace(form), requests: requests(form) }),
    }
}

fn pace(form: &Form) -> Pace {
    let on_off = form.burst.map(|burst| OnOff {
        on: evenkeel_control::Duration::from_nanos(burst.on_ns),
        off: evenkeel_control::Duration::from_nanos(burst.off_ns),
    });
    let bursts = form.burst_requests.zip(form.burst_every);
    if let Some((batch, every)) = bursts {
        let rate_per_s = f64::from(batch) / every.as_secs_f64();
        return Pace::Open { rate_per_s, arrivals: form.arrivals.unwrap_or(Arrivals::Constant), batch, on_off };
    }
    match form.rate {
        Some(rate_per_s) => Pace::Open { rate_per_s, arrivals: form.arrivals.unwrap_or_default(), batch: 1, on_off },
        None => Pace::Closed {
            queue_depth: form.queue_depth.unwrap_or(1),
            think_time: form.think_time.unwrap_or_default(),
            on_off,
        },
    }
}

fn requests(form: &Form) -> Requests {
    let usual = || vec![SizeShare { bytes: 4096, weight: 1 }];
    Requests {
        read_percent: form.reads(),
        sizes: form.block_size.as_ref().map_or_else(usual, SizeShare::all),
        pattern: Pattern::of(form.pattern.unwrap_or(Written::Random), form.streams.unwrap_or(1)),
        offset: form.offset.unwrap_or_default().0,
        span: form.span(),
        flush_every: form.flush_every.unwrap_or(0),
    }
}

fn read(form: &Form, name: &str, path: &str, open: Open<'_>, warnings: &mut Vec<Problem>) -> Result<Trace, Problem> {
    let problem = |key: &str, message: String| Problem { key: join(path, key), message };
    let input = open(name).map_err(|error| problem("trace", format!("{name:?} cannot be opened: {error}")))?;
    let options = Options {
        format: form.format,
        event: form.event.unwrap_or_default(),
        bad_lines: form.bad_lines.unwrap_or_default(),
    };
    let all = Selection::default();
    let selection = Selection {
        devices: form.devices.clone().unwrap_or_default(),
        from: form.from.map_or(all.from, Into::into),
        until: form.until.map_or(all.until, Into::into),
        skip: form.skip.unwrap_or(all.skip),
        count: form.count.unwrap_or(all.count),
    };
    let mut reader = Reader::new(input, name, options);
    let kept = Trace::read(&mut reader, &selection, name).map_err(|error| problem("trace", error.to_string()))?;
    let mut bad = String::new();
    if let (lines, Some(first)) = reader.skipped() {
        bad = format!("left out {}; the first: {first}", counted(lines, "bad line"));
        warnings.push(problem("trace", bad.clone()));
    }
    let Some(mut trace) = kept else {
        let mut message = format!(
            "{name:?} has no request that is wanted; look at devices, from, until and skip, and for blkparse at event"
        );
        if !bad.is_empty() {
            message = format!("{message}; {bad}");
        }
        return Err(problem("trace", message));
    };
    let timed = trace.rate_per_s();
    match (form.rate, timed) {
        (Some(wanted), Some(rate)) => trace.speed_up(wanted / rate),
        (Some(_), None) => {
            let message = "cannot be met: all requests have the same time; replay them with queue_depth";
            return Err(problem("rate", message.into()));
        }
        (None, _) => {
            if let Some(speed) = form.speed {
                trace.speed_up(speed);
            }
        }
    }
    if form.queue_depth.is_none() && form.repeat.unwrap_or(1) != 1 && timed.is_none() {
        let message = "cannot be done: all requests have the same time; replay them with queue_depth";
        return Err(problem("repeat", message.into()));
    }
    let (offset, align) = (form.offset.unwrap_or_default().0, form.align.map_or(1, |align| align.0));
    trace.remap(offset, form.size.map(|size| size.0), align).map_err(|error| problem("size", error.to_string()))?;
    Ok(trace)
}
