//! Hosts that share the device: each has a pool of its own and hears what the others do.

use evenkeel_control::Instant;
use evenkeel_control::pool::{Config, Pool, TenantId};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::Summary;

use super::Tenant;

/// Who is where.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// The host of each tenant, counted from 0.
    pub of: Vec<usize>,
    /// The host whose tenants meet no control of ours, if there is one.
    pub unmanaged: Option<usize>,
    /// When hosts do not hear of each other, if there is such a time.
    pub silence: Option<(Instant, Instant)>,
}

/// The pools of all hosts.
pub(super) struct Pools<R> {
    pub(super) all: Vec<Pool<R>>,
    /// Host and number of each tenant.
    pub(super) tenants: Vec<(usize, TenantId)>,
    hosts: Hosts,
}

impl<R> Pools<R> {
    pub(super) fn new(config: Config, tenants: &[Tenant], hosts: Hosts, seeds: &mut SplitMix64) -> Self {
        let now = Instant::ZERO;
        let count = hosts.of.iter().max().map_or(1, |most| most + 1);
        let config = |host| Config { slots: config.slots.filter(|_| hosts.unmanaged != Some(host)), ..config };
        let all = (0..count).map(|host| Pool::new(config(host), now, seeds.next_u64())).collect();
        let mut pools = Self { all, tenants: Vec::new(), hosts };
        pools.share(true);
        for (place, tenant) in tenants.iter().enumerate() {
            let host = pools.hosts.of.get(place).copied().unwrap_or(0);
            let pool = &mut pools.all[host];
            let id = pool.join(now, tenant.qos);
            if pools.hosts.unmanaged != Some(host) {
                pool.set_throttle(id, tenant.throttle);
                pool.set_guarantees(now, id, &tenant.guarantee);
                pool.set_latency_target(id, tenant.latency_target);
            }
            pools.tenants.push((host, id));
        }
        pools
    }

    /// The pools that are controlled.
    fn managed(&mut self) -> impl Iterator<Item = &mut Pool<R>> {
        let unmanaged = self.hosts.unmanaged;
        self.all.iter_mut().enumerate().filter(move |(host, _)| Some(*host) != unmanaged).map(|(_, pool)| pool)
    }

    /// Tells the pools of several hosts whether they hear of each other.
    fn share(&mut self, heard: bool) {
        if self.managed().count() > 1 {
            self.managed().for_each(|pool| pool.share_slots(heard));
        }
    }

    /// A period of the slots is over: hosts tell each other what they did, and each decides.
    pub(super) fn exchange(&mut self, now: Instant) {
        let heard = !self.hosts.silence.is_some_and(|(from, until)| (from..until).contains(&now));
        self.share(heard);
        let mut group = Summary::default();
        for pool in self.managed() {
            pool.tick_controllers(now);
            if let Some(summary) = pool.take_summary(now) {
                group.add(&summary);
            }
        }
        if heard && self.managed().count() > 1 {
            self.managed().for_each(|pool| pool.decide_slots(now, &group));
        }
    }
}
