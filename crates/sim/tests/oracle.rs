//! Tests of the oracle's search on a device model whose best budget is known.

use std::ops::ControlFlow;

use evenkeel_control::Duration;
use evenkeel_control::units::Kind;
use evenkeel_model::store::StoreParams;
use evenkeel_sim::experiment::oracle::{self, KEPT};
use evenkeel_sim::workload::{Requests, Spec};
use evenkeel_sim::world::{Failure, Setup};

use crate::parallel::alone;

fn setup(queue_depth: u32) -> Setup {
    let workload = Spec::closed(queue_depth, Requests::random(Kind::Write, 64 << 10, 1 << 30));
    Setup { warmup: Duration::from_millis(500), ..alone(workload, StoreParams::ssd(), 4) }
}

#[test]
fn finds_the_knee_of_the_store() {
    let oracle = oracle::sweep(&setup(64), &[1, 2], &mut |_| ControlFlow::Continue(())).unwrap();
    // The paper's knee, and the model's (docs/algorithms/models.md): between 256 and 512 KiB.
    assert!((256 << 10..600 << 10).contains(&oracle.budget_bytes), "{oracle:?}");
    assert!(oracle.bytes_per_s >= KEPT * oracle.peak_bytes_per_s);
    assert!((95e6..100e6).contains(&oracle.peak_bytes_per_s), "{oracle:?}");
    let below = oracle.points.iter().rfind(|point| point.budget_bytes < oracle.budget_bytes).unwrap();
    assert!(below.bytes_per_s < KEPT * oracle.peak_bytes_per_s, "{oracle:?}");
    assert!(below.budget_bytes as f64 > 0.95 * oracle.budget_bytes as f64, "{oracle:?}");
}

#[test]
fn a_load_that_no_budget_helps_needs_the_smallest() {
    let oracle = oracle::sweep(&setup(1), &[1], &mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(oracle.budget_bytes, 4_000, "{oracle:?}");
}

#[test]
fn a_sweep_can_be_cancelled() {
    let long = Setup { duration: Duration::from_secs(1_000), ..setup(64) };
    let swept = oracle::sweep(&long, &[1], &mut |_| ControlFlow::Break(()));
    assert!(matches!(swept, Err(Failure::Cancelled { .. })), "{swept:?}");
}
