//! Hosts that share the device. Each host has a pool of its own and receives figures from the other hosts.

use evenkeel_control::Instant;
use evenkeel_control::mclock::Qos;
use evenkeel_control::pool::guarantee::Throughputs;
use evenkeel_control::pool::slots::LatencyTarget;
use evenkeel_control::pool::{Config, Pool, TenantId};
use evenkeel_control::rng::SplitMix64;
use evenkeel_control::slots::Summary;

use super::Tenant;

/// The hosts that share the device: the host of each tenant, and faults between hosts.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// The host of each tenant, counted from 0.
    pub of: Vec<usize>,
    /// Number of the host whose pool is without any control; `None`: all hosts are controlled.
    pub unmanaged: Option<usize>,
    /// Start and end of the time in which hosts receive no figures from each other; `None`: they always do.
    pub partition: Option<(Instant, Instant)>,
}

impl Hosts {
    /// The settings of the pool on `host`.
    fn of_host(&self, config: Config, host: usize) -> Config {
        Config { slots: config.slots.filter(|_| self.unmanaged != Some(host)), ..config }
    }
}

/// The pools of all hosts.
pub(super) struct Pools<R> {
    pub(super) all: Vec<Pool<R>>,
    /// Per tenant: number of its host, and the tenant's number in the host's pool.
    pub(super) tenants: Vec<(usize, TenantId)>,
    hosts: Hosts,
}

impl<R> Pools<R> {
    pub(super) fn new(config: Config, tenants: &[Tenant], hosts: Hosts, seeds: &mut SplitMix64) -> Self {
        let now = Instant::ZERO;
        let count = hosts.of.iter().max().map_or(1, |most| most + 1);
        let all = (0..count).map(|host| Pool::new(hosts.of_host(config, host), now, seeds.next_u64())).collect();
        let mut pools = Self { all, tenants: Vec::new(), hosts };
        pools.share(true);
        for (place, tenant) in tenants.iter().enumerate() {
            let host = pools.hosts.of.get(place).copied().unwrap_or(0);
            let id = pools.all[host].join(now, tenant.qos);
            pools.tenants.push((host, id));
            if pools.hosts.unmanaged != Some(host) {
                pools.all[host].set_throttle(id, tenant.throttle);
                pools.control(now, place, &tenant.guarantee, tenant.latency_target);
            }
        }
        pools
    }

    /// Changes the settings of all pools.
    pub(super) fn reconfigure(&mut self, now: Instant, config: Config) {
        for (host, pool) in self.all.iter_mut().enumerate() {
            pool.reconfigure(now, self.hosts.of_host(config, host));
        }
    }

    /// Changes the policy of the tenant with number `place`.
    pub(super) fn set_tenant(
        &mut self,
        now: Instant,
        place: usize,
        qos: Qos,
        guarantee: &Throughputs,
        target: Option<LatencyTarget>,
    ) {
        let (host, id) = self.tenants[place];
        self.all[host].set_qos(now, id, qos);
        self.control(now, place, guarantee, target);
    }

    /// Sets a tenant's guarantee and latency target in the controllers of the tenant's host, unless the host is without
    /// control.
    fn control(&mut self, now: Instant, place: usize, guarantee: &Throughputs, target: Option<LatencyTarget>) {
        let (host, id) = self.tenants[place];
        if self.hosts.unmanaged != Some(host) {
            self.all[host].set_guarantees(now, id, guarantee);
            self.all[host].set_latency_target(id, target);
        }
    }

    /// The pools of the hosts under control.
    fn managed(&mut self) -> impl Iterator<Item = &mut Pool<R>> {
        let unmanaged = self.hosts.unmanaged;
        self.all.iter_mut().enumerate().filter(move |(host, _)| Some(*host) != unmanaged).map(|(_, pool)| pool)
    }

    /// Makes the pools share slots with each other from now on (`heard`), or work alone; without effect on a single host.
    fn share(&mut self, heard: bool) {
        if self.managed().count() > 1 {
            self.managed().for_each(|pool| pool.share_slots(heard));
        }
    }

    /// Ends a period of the slots: each host sends its figures to the other hosts, unless they are partitioned, and decides.
    pub(super) fn coordinate(&mut self, now: Instant) {
        let heard = !self.hosts.partition.is_some_and(|(from, until)| (from..until).contains(&now));
        self.share(heard);
        let mut cluster = Summary::default();
        for pool in self.managed() {
            pool.tick_controllers(now);
            if let Some(summary) = pool.take_summary(now) {
                cluster.add(&summary);
            }
        }
        if heard && self.managed().count() > 1 {
            self.managed().for_each(|pool| pool.decide_slots(now, &cluster));
        }
    }
}
