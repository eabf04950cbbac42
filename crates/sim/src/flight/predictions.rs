//! Predictions of replays beside runs of the same requests in the simulator, under the settings of the lab `replay`.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::sync::Arc;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind as Work;
use evenkeel_control::{Duration, Instant};
use evenkeel_flight::{Kind, Recording, Request};
use evenkeel_model::device::{Device, DeviceParams};
use evenkeel_model::store::StoreParams;

use super::figures::{Figures, TenantFigures, recorded};
use super::load::Load;
use super::policy::Policy;
use super::replay::simulate;
use super::tests::recording;
use crate::workload::trace::{Record, Trace};
use crate::workload::{Replay, Spec};
use crate::world::{Client, Completion, Setup, run_watched};

/// Names of the tenants: few reads in an open loop, a queue of writes that is always full, and a small queue of both.
const TENANTS: [&str; 3] = ["t0", "t1", "t2"];
/// Numbers of requests of the tenants: some four seconds of work without admission control.
const REQUESTS: [u64; 3] = [800, 3_000, 400];
/// Real figures of two settings whose ratio is closer to 1 than this do not differ.
const DIFFERS: f64 = 0.10;

/// Admission control of the run that is recorded.
const UNBOUNDED: &str = "pools.main.tuning.admission = \"none\"\n";

/// Name and policy of each setting, and the tenant that sends nothing.
const SETTINGS: [(&str, &str, Option<u32>); 13] = [
    ("none", UNBOUNDED, None),
    ("fixed", "pools.main.tuning.admission = { kind = \"fixed\", budget = \"64KiB\" }\n", None),
    ("wide", "pools.main.tuning.admission = { kind = \"fixed\", budget = \"512KiB\" }\n", None),
    ("default", "", None),
    ("limit", "tenants.t1.limit.bytes_per_s = \"40MB\"\n", None),
    ("limit_iops", "tenants.t2.limit.iops = 60\n", None),
    ("reservation", "tenants.t0.reservation.iops = 300\n", None),
    ("reservation_mix", "tenants.t2.reservation.iops = 400\n", None),
    ("weight", "tenants.t2.weight = 8\n", None),
    ("target", "pools.main.latency = { target = \"15ms\", percentile = 99, of = \"reads\" }\n", None),
    ("slots", "pools.main.tuning.slots = \"needs\"\ntenants.t0.latency.target = \"15ms\"\n", None),
    ("removed", UNBOUNDED, Some(1)),
    ("removed_mix", UNBOUNDED, Some(2)),
];

/// The device: the bulk writer alone keeps it busy.
fn device() -> DeviceParams {
    DeviceParams::Store(StoreParams {
        iops: 4_000,
        bandwidth_bytes_per_s: 60_000_000,
        read_latency: Duration::from_millis(2),
        write_latency: Duration::from_millis(2),
        commit_latency: Duration::from_millis(2),
        ..StoreParams::ssd()
    })
}

fn policy(text: &str) -> Policy {
    Policy::parse(text, "a setting", "main", &[]).unwrap()
}

/// The requests of each tenant, in an open loop or a closed one.
fn loads() -> [Spec; 3] {
    let mut rng = SplitMix64::new(11);
    let record = |at_ns: u64, kind: Work, bytes: u32| {
        let at = Instant::from_nanos(at_ns);
        Record { at, kind, offset: 0, bytes, device: 0 }
    };
    let mut at_ns = 0;
    let mut light = Vec::new();
    for _ in 0..REQUESTS[0] {
        at_ns += (-libm::log(rng.next_f64()) * 5e6) as u64;
        light.push(record(at_ns, Work::Read, 4_096));
    }
    let bulk = (0..REQUESTS[1]).map(|_| record(0, Work::Write, 65_536)).collect();
    let mut mix = Vec::new();
    for _ in 0..REQUESTS[2] {
        let kind = if rng.next_below(10) < 7 { Work::Read } else { Work::Write };
        mix.push(record(0, kind, if rng.next_below(5) == 0 { 16_384 } else { 4_096 }));
    }
    [(light, None), (bulk, Some(32)), (mix, Some(4))].map(|(records, queue_depth): (Vec<Record>, Option<u32>)| {
        let trace = Arc::new(Trace::new(records).expect("requests"));
        Spec::Replay(Replay { trace, queue_depth, times: 1 })
    })
}

/// Runs the requests of all tenants but `absent` under a policy, and records them.
fn run(policy: &Policy, absent: Option<u32>) -> Recording {
    let tenants = TENANTS.map(|name| policy.simulated(name)).to_vec();
    let mut clients = Vec::new();
    for (tenant, workload) in loads().into_iter().enumerate() {
        if absent != Some(tenant as u32) {
            clients.push(Client::always(tenant, workload));
        }
    }
    let mut setup = Setup::new(device(), tenants, clients, Duration::from_secs(60));
    setup.divides = true;
    setup.pool = (&policy.pool).into();
    let requests: RefCell<Vec<Request>> = RefCell::new(Vec::new());
    let record = |tenant: usize, completion: &Completion| {
        let tenant = tenant as u32;
        requests.borrow_mut().push(Request {
            arrival_ns: completion.sent_at.as_nanos(),
            queue_ns: completion.admitted_at.since(completion.entered_at).as_nanos(),
            device_ns: completion.left_at.since(completion.admitted_at).as_nanos(),
            tenant,
            client: tenant,
            kind: if completion.kind == Work::Read { Kind::Read } else { Kind::Write },
            length: u64::from(completion.bytes),
            ..Request::default()
        });
    };
    let ran = run_watched(&setup, 1, Device::new, &mut |_, tenant, completion| record(tenant, completion), &mut |_| {
        ControlFlow::Continue(())
    });
    ran.unwrap();
    let mut requests = requests.into_inner();
    let sent = (0..).zip(REQUESTS).filter(|(tenant, _)| absent != Some(*tenant)).map(|(_, count)| count);
    assert_eq!(requests.len() as u64, sent.sum::<u64>(), "all requests complete");
    // Those of one time in the order of their admission.
    requests.sort_by_key(|request| (request.arrival_ns, request.queue_ns));
    recording(requests)
}

/// The figures of a recording.
fn real(recording: Recording) -> Figures {
    recorded(&Load::new(recording, None).unwrap(), &[])
}

/// The figures that a replay of `from` predicts under a policy, if the tenant `absent` sends nothing.
fn predicted(from: &Recording, policy: &Policy, absent: Option<u32>) -> Figures {
    let mut left = from.clone();
    left.requests.retain(|request| absent != Some(request.tenant));
    simulate(&Load::new(left, None).unwrap(), &device(), Some(policy), &[], 1).unwrap()
}

/// Throughput, p50 and p99 of a tenant.
fn figures(tenant: &TenantFigures) -> [f64; 3] {
    [tenant.iops, tenant.p50_ms, tenant.p99_ms]
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
fn the_recorded_setting_is_predicted_as_it_was() {
    let unbounded = policy(UNBOUNDED);
    let recording = run(&unbounded, None);
    let load = Load::new(recording.clone(), None).unwrap();
    let closed = (REQUESTS[1] + REQUESTS[2] - 36) as f64 / REQUESTS.iter().sum::<u64>() as f64;
    assert!((load.dependent() - closed).abs() < 0.02, "{} of {closed}", load.dependent());
    let (predicted, real) = (predicted(&recording, &unbounded, None), real(recording));
    assert_eq!((predicted.tenants.len(), real.tenants.len()), (TENANTS.len(), TENANTS.len()));
    for (predicted, real) in predicted.tenants.iter().zip(&real.tenants) {
        for ((predicted, real), most) in figures(predicted).into_iter().zip(figures(real)).zip([0.01, 0.02, 0.02]) {
            assert!((predicted / real - 1.0).abs() <= most, "{predicted} is not {real}");
        }
    }
}

#[test]
fn other_settings_are_predicted_and_ranked() {
    let recording = run(&policy(UNBOUNDED), None);
    let mut errors: [Vec<f64>; 3] = Default::default();
    let (mut lines, mut pairs) = (String::new(), Vec::new());
    for (name, text, absent) in SETTINGS {
        let policy = policy(text);
        let (predicted, real) = (predicted(&recording, &policy, absent), real(run(&policy, absent)));
        assert_eq!(predicted.tenants.len(), real.tenants.len(), "{name}");
        for (predicted, real) in predicted.tenants.iter().zip(&real.tenants) {
            assert_eq!(predicted.tenant, real.tenant);
            let (predicted, figures) = (figures(predicted), figures(real));
            for ((errors, predicted), real) in errors.iter_mut().zip(predicted).zip(figures) {
                errors.push((predicted / real - 1.0).abs());
            }
            lines += &format!("{name} {}: {predicted:.2?} predicted, {figures:.2?} real\n", real.tenant);
            pairs.push((real.tenant.clone(), predicted, figures));
        }
    }
    let cases = errors[0].len();
    assert!(cases >= 20, "{cases} cases");
    let [throughput, p50, p99] = errors.map(median);
    assert!(throughput <= 0.05 && p50 <= 0.15 && p99 <= 0.15, "{throughput} {p50} {p99}\n{lines}");
    let (mut differ, mut right) = (0_u32, 0_u32);
    for (place, (tenant, predicted, real)) in pairs.iter().enumerate() {
        for (_, other_predicted, other_real) in pairs[place + 1..].iter().filter(|(other, ..)| other == tenant) {
            for figure in 0..3 {
                let (a, b) = (real[figure], other_real[figure]);
                if (a - b).abs() > DIFFERS * a.min(b) {
                    differ += 1;
                    right += u32::from((predicted[figure] < other_predicted[figure]) == (a < b));
                }
            }
        }
    }
    assert!(differ >= 20 && f64::from(right) >= 0.95 * f64::from(differ), "{right} of {differ} in order\n{lines}");
}
