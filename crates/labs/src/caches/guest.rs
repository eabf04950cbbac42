//! The steps of the caches lab, inside the virtual machine.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::stage::{self, Cached, Kept, Kind, Tenant, measure};
use crate::base::process;
use crate::base::spelled::spelled;
use crate::check::figures::Figures;
use crate::check::steps::{self, Plan};
use crate::machine::guard::{self, Guard};
use crate::machine::guest::{follow_tutorial, keep_in_memory, until};

/// Guarantee of a tenant that has the device alone, in bytes per second: more than three times the slow device's rate, so
/// that after a burst of misses the kernel's throttle does not allow the tenant to catch up.
const GUARANTEED: u64 = 35_000_000;
/// Guarantees of two tenants that share the device, in bytes per second.
const GUARANTEED_TO_TWO: [u64; 2] = [26_000_000, 8_000_000];
/// Guarantee on dm-writecache, in bytes per second: twice the slow device's rate. Every write that the cache takes in is also
/// written to the slow device, so a burst of misses loads the slow device twice.
const GUARANTEED_WRITES: u64 = 20_000_000;
/// Measured time of a tenant in seconds: in a short run, and in a full run.
const SECONDS: [usize; 2] = [20, 40];
/// Seconds before a measurement in which the controller finds its limits: in a short run, and in a full run.
const SETTLE: [usize; 2] = [20, 30];
/// Seconds before a measurement with a static limit: in a short run, and in a full run.
const SETTLE_STATIC: [usize; 2] = [5, 30];
/// Longest load of a tenant during the tutorial, in seconds.
const LOAD_SECONDS: u64 = 120;
/// Bar: the smallest shortage against the guarantee under a static limit, in per cent.
const STATIC_ABOVE_PERCENT: f64 = 10.0;
/// Bar: the largest shortage against the guarantee under the agent, in per cent.
const OURS_BELOW_PERCENT: f64 = 2.0;

type Step = fn(&Plan, &mut Figures) -> Result<String>;

const STEPS: [(&str, Step); 9] = [
    ("the_guarantee_of_one_tenant_is_kept_on_dm_cache", |plan, figures| {
        compare(plan, figures, Kind::DmCache, &[GUARANTEED])
    }),
    ("the_guarantees_of_two_tenants_are_kept_on_dm_cache", |plan, figures| {
        compare(plan, figures, Kind::DmCache, &GUARANTEED_TO_TWO)
    }),
    ("the_guarantee_of_writes_is_kept_on_dm_writecache", |plan, figures| {
        compare(plan, figures, Kind::DmWritecache, &[GUARANTEED_WRITES])
    }),
    ("a_killed_agent_leaves_no_limit", |plan, _| killed(&plan.binary, false)),
    ("agent_and_sentinel_killed_leave_limits_until_the_reset", |plan, _| killed(&plan.binary, true)),
    ("a_limit_of_another_program_stays", |plan, _| foreign(&plan.binary)),
    ("the_policy_of_all_labs_is_enforced", |plan, _| shared_policy(&plan.binary)),
    // Before bcache, whose devices stay and would be discovered, too.
    ("the_tutorial_works_as_written", |plan, _| tutorial(&plan.binary)),
    ("the_guarantee_of_one_tenant_is_kept_on_bcache", |plan, figures| {
        compare(plan, figures, Kind::Bcache, &[GUARANTEED])
    }),
];

/// Number of steps that the plan contains, for the report on the host.
pub(super) fn steps(plan: &Plan) -> usize {
    plan.wanted(&STEPS).count()
}

/// Builds the stage and does the steps; runs inside the virtual machine.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    stage::build()?;
    let programs = ["fio", "dmsetup", "sh", "bash", "cat", "grep", "timeout", "sleep"]
        .into_iter()
        .filter_map(process::find_program);
    keep_in_memory(programs.chain([plan.binary.clone()]).collect())?;
    println!("lab: ready");
    for (name, step) in plan.wanted(&STEPS) {
        steps::take(plan, name, |figures| step(plan, figures));
    }
    Ok(())
}

/// The running agent, `evenkeel guard`.
struct Agent {
    guard: Guard,
    /// The direction of the guarantees that the agent keeps: `read` or `write`.
    direction: &'static str,
}

impl Agent {
    /// Starts the agent with guarantees for `tenants`, and waits until it controls their limits.
    fn start(binary: &Path, cached: &Cached, tenants: &[Tenant]) -> Result<Self> {
        let mut config = format!("[pools.pool]\ndevices = [\"{}\"]\n", cached.path.display());
        for (tenant, number) in tenants.iter().zip(1..) {
            let (group, guaranteed) = (tenant.name(), tenant.guaranteed);
            config += &format!(
                "[tenants.t{number}]\nmatch = [\"cgroup:{group}\"]\nguarantee.{} = {{ bytes_per_s = {guaranteed} }}\n",
                cached.kind.direction()
            );
        }
        let guard = Guard::start(binary, guard::ONLY, &config)?;
        Ok(Self { guard, direction: cached.kind.direction() })
    }

    fn state(&self) -> Result<Value> {
        Ok(self.guard.state()?["pools"][0].take())
    }

    /// The limits of `tenants` as the agent reports them, in bytes per second and in the order of `tenants`.
    fn limits(&self, tenants: &[Tenant]) -> Result<Vec<u64>> {
        let state = self.state()?;
        let known = state["groups"].as_array().context("guard status names no groups")?;
        let limit = |tenant: &Tenant| {
            let known = known.iter().find(|known| known["group"] == tenant.name().as_str());
            let limit = known.and_then(|known| known[self.direction]["limit_per_s"].as_u64());
            limit.with_context(|| format!("guard status has no limit for {}", tenant.name()))
        };
        tenants.iter().map(limit).collect()
    }

    /// Checks that the limits that the agent reports equal those in the kernel.
    fn says_what_holds(&self, tenants: &[Tenant]) -> Result<()> {
        // Between two questions it may have decided anew.
        let mut last = None;
        for _ in 0..10 {
            let before = tenants.iter().map(Tenant::limit).collect::<Result<Vec<_>>>()?;
            let recorded = self.limits(tenants)?;
            let after = tenants.iter().map(Tenant::limit).collect::<Result<Vec<_>>>()?;
            if before == after {
                let recorded: Vec<Option<u64>> = recorded.into_iter().map(Some).collect();
                ensure!(recorded == after, "the agent says {recorded:?}, io.max has {after:?}");
                return Ok(());
            }
            last = Some(after);
        }
        bail!("limits never stayed the same while they were looked at: {last:?}")
    }
}

/// Compares one load under static limits equal to the guarantees with the same load under the agent.
fn compare(plan: &Plan, figures: &mut Figures, kind: Kind, guaranteed: &[u64]) -> Result<String> {
    let cached = Cached::make(kind)?;
    let seconds = plan.either(SECONDS[0], SECONDS[1]);
    let settle = plan.either(SETTLE_STATIC[0], SETTLE_STATIC[1]);
    let fixed = watch(&cached, guaranteed, None, [settle, seconds]).context("with static limits")?;
    // A cache in the state in which the first run found it.
    cached.remove()?;
    let cached = Cached::make(kind)?;
    let settle = plan.either(SETTLE[0], SETTLE[1]);
    let ours = watch(&cached, guaranteed, Some(&plan.binary), [settle, seconds]).context("with the agent")?;
    cached.remove()?;
    let mut detail = String::new();
    for ((fixed, ours), guaranteed) in fixed.iter().zip(&ours).zip(guaranteed) {
        let guaranteed = *guaranteed as f64 / 1e6;
        detail += &format!("[{guaranteed} MB/s guaranteed; static: {fixed}; agent: {ours}] ");
    }
    for (number, (fixed, ours)) in fixed.iter().zip(&ours).enumerate() {
        let name = |figure: &str| format!("{figure}_of_tenant_{}_percent", number + 1);
        // What a limit misses that nothing corrects.
        figures.at_most(&name("distance"), ours.dat_percent, STATIC_ABOVE_PERCENT, OURS_BELOW_PERCENT);
        // Of several tenants each alone may be slow enough to catch up within the kernel's slices, and a cache of writes
        // takes most as fast as they come. If the limit alone is as near as the agent has to be, there is nothing to correct.
        if guaranteed.len() == 1 && kind != Kind::DmWritecache {
            figures.at_least(&name("static_distance"), fixed.dat_percent, OURS_BELOW_PERCENT, STATIC_ABOVE_PERCENT);
        }
    }
    // All together: who runs short beside others has its share in what they have back. Where the limit alone misses little
    // there is little to correct, and the part that is left of it is chance: then it is a figure, which breaks nothing.
    let mut part = |name: &str, of: fn(&Kept) -> f64, sure: f64, bound: f64| {
        let sum = |kept: &[Kept]| kept.iter().map(of).sum::<f64>();
        let of_static = sum(&fixed);
        let sure = if of_static >= STATIC_ABOVE_PERCENT { sure } else { f64::INFINITY };
        figures.at_most(name, sum(&ours) / of_static.max(f64::MIN_POSITIVE), sure, bound);
    };
    // A controller that is further from its target than no controller is broken.
    part("distance_of_static", |kept| kept.dat_percent, 1.0, 0.5);
    // One that goes up and down between its limits doubles the jitter at least.
    part("jitter_of_static", |kept| kept.jitter_percent, 2.0, 1.0);
    Ok(detail)
}

/// Makes a tenant for each guarantee, runs its load, and measures it for `seconds` after `settle` seconds. `agent` is the path
/// of Evenkeel's program; `None`: static limits equal to the guarantees.
fn watch(
    cached: &Cached,
    guaranteed: &[u64],
    agent: Option<&Path>,
    [settle, seconds]: [usize; 2],
) -> Result<Vec<Kept>> {
    /// Seconds for which the load continues after the measurement, for further checks.
    const MORE_SECONDS: usize = 20;
    let mut tenants = guaranteed.iter().map(|&rate| Tenant::make(cached, rate)).collect::<Result<Vec<_>>>()?;
    for tenant in &tenants {
        tenant.set_limit(Some(tenant.guaranteed))?;
    }
    let agent = agent.map(|binary| Agent::start(binary, cached, &tenants)).transpose()?;
    let of = tenants.len() as u64;
    for (tenant, index) in tenants.iter_mut().zip(0..) {
        tenant.load(cached, index, of, (settle + seconds + MORE_SECONDS) as u64)?;
    }
    measure(&mut tenants, settle)?;
    let before = cached.moved()?;
    let kept = measure(&mut tenants, seconds)?;
    if let (Some(before), Some(after)) = (before, cached.moved()?) {
        println!(
            "lab: while measured, the cache demoted {} blocks and promoted {}",
            after[0] - before[0],
            after[1] - before[1]
        );
    }
    if let Some(agent) = agent {
        agent.says_what_holds(&tenants)?;
        let limits = agent.limits(&tenants)?;
        println!("lab: limits at the end: {limits:?}");
        knows_what_it_is(&agent, cached)?;
        agent.guard.stop()?;
        for tenant in &tenants {
            let limit = tenant.limit()?;
            ensure!(limit == Some(tenant.guaranteed), "after the agent's end io.max has {limit:?}");
        }
    }
    tenants.into_iter().try_for_each(Tenant::remove)?;
    Ok(kept)
}

/// Checks that the agent reports the kind of the cached device and the cache's work in the direction of the tenants' requests,
/// and that `guard discover` finds the device.
fn knows_what_it_is(agent: &Agent, cached: &Cached) -> Result<()> {
    let (state, kind) = (agent.state()?, spelled(&cached.kind));
    // bcache does not tell reads and writes apart.
    let counter = if agent.direction == "write" { "write_hits_total" } else { "read_hits_total" };
    let hits = state["cache"][counter].as_u64();
    ensure!(state["kind"] == kind && hits.is_some_and(|hits| hits > 0), "the agent says {state}");
    let discovered = process::json(Command::new(&agent.guard.binary).args(["guard", "discover", "--json"]))?;
    let entries = discovered["cached"].as_array().map_or(&[][..], Vec::as_slice);
    let found = entries.iter().any(|entry| {
        let name = entry["name"].as_str().unwrap_or_default();
        entry["kind"] == kind
            && std::fs::read_to_string(format!("/sys/class/block/{name}/dev"))
                .is_ok_and(|number| number.trim() == cached.number)
    });
    ensure!(found, "guard discover found {entries:?}");
    println!("lab: {counter} of {kind}: {hits:?}");
    Ok(())
}

/// Checks that limits are removed after the agent is killed; with `both`, after the agent and its sentinel are killed.
fn killed(binary: &Path, both: bool) -> Result<String> {
    let cached = Cached::make(Kind::DmCache)?;
    let mut tenants = vec![Tenant::make(&cached, GUARANTEED)?, Tenant::make(&cached, GUARANTEED)?];
    // One had a limit before, the other none.
    let before = [Some(5_000_000), None];
    for (tenant, before) in tenants.iter().zip(before) {
        tenant.set_limit(before)?;
    }
    let agent = Agent::start(binary, &cached, &tenants)?;
    let limits = |tenants: &[Tenant]| tenants.iter().map(|tenant| tenant.limit().ok()).collect::<Option<Vec<_>>>();
    until("limits", || (limits(&tenants)? == [Some(GUARANTEED); 2]).then_some(()))?;
    let killed_at = Instant::now();
    agent.guard.kill(both)?;
    let detail = if both {
        std::thread::sleep(Duration::from_secs(2));
        ensure!(limits(&tenants) == Some(vec![Some(GUARANTEED); 2]), "who restored {:?}?", limits(&tenants));
        let said = guard::reset(binary, guard::ONLY)?;
        ensure!(said.matches("io.max").count() == 2, "guard reset said {said}");
        ensure!(limits(&tenants) == Some(before.to_vec()), "guard reset left {:?}", limits(&tenants));
        // The next start does the same.
        let agent = Agent::start(binary, &cached, &tenants)?;
        until("limits", || (limits(&tenants)? == [Some(GUARANTEED); 2]).then_some(()))?;
        agent.guard.kill(true)?;
        let idle = Tenant::make(&cached, GUARANTEED)?;
        let agent = Agent::start(binary, &cached, std::slice::from_ref(&idle))?;
        ensure!(limits(&tenants) == Some(before.to_vec()), "the next agent left {:?}", limits(&tenants));
        agent.guard.stop()?;
        tenants.push(idle);
        "limits stayed until `guard reset`, and until the next start".to_owned()
    } else {
        until("end of the limits", || (limits(&tenants)? == before).then_some(()))?;
        format!("the sentinel restored both within {:.2} s", killed_at.elapsed().as_secs_f64())
    };
    tenants.into_iter().try_for_each(Tenant::remove)?;
    cached.remove()?;
    Ok(detail)
}

/// Checks the agent with the policy file that all labs share, which has a guarantee for one tenant of the cached device.
fn shared_policy(binary: &Path) -> Result<String> {
    let cached = Cached::make(Kind::DmCache)?;
    let tenants = ["lab-database", "lab-backup"].map(|name| Tenant::named(&cached, name, GUARANTEED));
    let tenants = tenants.into_iter().collect::<Result<Vec<_>>>()?;
    let (guard, settings) = Guard::enforce(binary, guard::ONLY, "", "cached")?;
    until("limit", || (tenants[0].limit().ok()? == Some(GUARANTEED)).then_some(()))?;
    ensure!(tenants[1].limit()?.is_none(), "the backup, without a guarantee, has a limit: {:?}", tenants[1].limit());
    guard.stop()?;
    ensure!(tenants[0].limit()?.is_none(), "at its end the agent left {:?}", tenants[0].limit());
    tenants.into_iter().try_for_each(Tenant::remove)?;
    cached.remove()?;
    Ok(settings)
}

/// Does the tutorial about a volume cached by LVM; its tenant has a static limit equal to the guarantee at first.
fn tutorial(binary: &Path) -> Result<String> {
    let cached = Cached::make_by_lvm("vg0", "data")?;
    let mut tenant = Tenant::named(&cached, "system.slice/database.service", GUARANTEED)?;
    tenant.set_limit(Some(GUARANTEED))?;
    tenant.load(&cached, 0, 1, LOAD_SECONDS)?;
    let told = follow_tutorial("tutorial-lvm", binary);
    tenant.remove()?;
    told
}

/// Checks how the agent treats a limit that another program sets while the agent runs.
fn foreign(binary: &Path) -> Result<String> {
    const THEIRS: u64 = 7_000_000;
    let cached = Cached::make(Kind::DmCache)?;
    let mut tenants = vec![Tenant::make(&cached, GUARANTEED)?, Tenant::make(&cached, GUARANTEED / 2)?];
    let agent = Agent::start(binary, &cached, &tenants)?;
    until("limits", || (tenants[0].limit().ok()? == Some(GUARANTEED)).then_some(()))?;
    tenants[0].set_limit(Some(THEIRS))?;
    for (tenant, index) in tenants.iter_mut().zip(0..) {
        tenant.load(&cached, index, 2, 30)?;
    }
    measure(&mut tenants, 4)?;
    ensure!(tenants[0].limit()? == Some(THEIRS), "the foreign limit became {:?}", tenants[0].limit());
    let state = agent.state()?;
    let left_alone = |tenant: &Tenant| {
        let known =
            state["groups"].as_array().into_iter().flatten().find(|known| known["group"] == tenant.name().as_str());
        known.is_some_and(|known| known["foreign_limit"].is_string())
    };
    ensure!(left_alone(&tenants[0]) && !left_alone(&tenants[1]), "the agent says {state}");
    let why = agent.guard.ask(&["why", "pool"])?;
    ensure!(why.contains(&tenants[1].name()), "guard why said {why}");
    agent.guard.stop()?;
    ensure!(tenants[0].limit()? == Some(THEIRS), "at its end the agent set {:?}", tenants[0].limit());
    ensure!(tenants[1].limit()?.is_none(), "at its end the agent left {:?}", tenants[1].limit());
    tenants.into_iter().try_for_each(Tenant::remove)?;
    cached.remove()?;
    Ok(format!("the agent left another program's limit of {THEIRS} bytes/s in force"))
}
