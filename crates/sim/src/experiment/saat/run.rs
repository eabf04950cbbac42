//! One run: the world under a controller, or under the oracle.

use evenkeel_control::Instant;
use evenkeel_control::throughput::{Bounds, Config, Controller, Guarantee, Rate, TenantId, TenantSample};
use evenkeel_control::units::Kind;

use super::oracle;
use super::world::{Control, Meter, Outcome, Setup, World};

/// Runs a setup. The same setup and seed give the same outcome on every machine.
///
/// # Errors
/// A message that names the setting of the controller or of the device that is out of range.
pub fn simulate(setup: &Setup, seed: u64) -> Result<Outcome, String> {
    setup.device.validate().map_err(|error| error.to_string())?;
    let mut world = World::new(setup, seed);
    let end = Instant::ZERO + setup.lead + setup.duration;
    let mut meter = Meter::new(setup);
    match &setup.control {
        Control::Oracle => oracle::run(setup, &mut world, end, &mut meter),
        Control::Controller(config) => controlled(setup, config, &mut world, end, &mut meter)?,
    }
    Ok(meter.outcome)
}

fn controlled(
    setup: &Setup,
    config: &Config,
    world: &mut World,
    end: Instant,
    meter: &mut Meter,
) -> Result<(), String> {
    let mut controller = Controller::new(config).map_err(|error| error.to_string())?;
    let mut ids: Vec<TenantId> = Vec::new();
    for tenant in &setup.tenants {
        let bounds = |kind| Some(Bounds::new(Rate::BytesPerS(tenant.guaranteed_of(kind) as u64)));
        let guarantee = Guarantee { read: bounds(Kind::Read), write: bounds(Kind::Write), weight: 1.0 };
        ids.push(controller.join(&guarantee).map_err(|error| error.to_string())?);
    }
    let mut now = Instant::ZERO;
    while now < end {
        let known = ids.iter().zip(world.cached.iter().zip(&world.slow));
        let samples: Vec<TenantSample> = known
            .map(|(&id, (&cached, &slow))| TenantSample { cached, slow: Some(slow), ..TenantSample::new(id) })
            .collect();
        controller.observe(now, Some(world.slow_device()), &samples);
        let decision = controller.tick(now);
        let both = decision.assignments.iter().flat_map(|assignment| [assignment.read, assignment.write]);
        let limits: Vec<f64> = both.flatten().map(|limit| limit.limit.value() as f64).collect();
        world.set_limits(&limits);
        now += config.interval;
        meter.run(world, now.min(end));
    }
    Ok(())
}
