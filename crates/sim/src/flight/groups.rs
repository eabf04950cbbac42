//! Recordings of a host's block devices, whose tenants are control groups, under a policy that names groups by `match`.

use std::collections::BTreeMap;

use super::load::Load;
use super::policy::Policy;

/// Source of the recordings of block devices.
const HOST: &str = "host";

impl Load {
    /// True if the tenants are control groups: the recording is of the block devices of a host.
    pub fn is_of_groups(&self) -> bool {
        self.head.source == HOST
    }

    /// True if the tenant `name` is the root group of a host, which no `match` can name and no limit can bind.
    pub(super) fn is_root(&self, name: &str) -> bool {
        self.is_of_groups() && name.trim_matches('/').is_empty()
    }

    /// Makes the control groups that a policy's `match` names, with the groups below them, one tenant, or of a tenant with `each`
    /// a tenant each: `TENANT/PATH`. Other groups stay, and so do the tenants of other recordings. O(n log n).
    pub fn join_groups(&mut self, policy: &Policy) {
        if !self.is_of_groups() {
            return;
        }
        let (mut known, mut places): (BTreeMap<String, usize>, Vec<usize>) = (BTreeMap::new(), Vec::new());
        for group in std::mem::take(&mut self.tenants) {
            let own = owner(policy, &group).map(|(tenant, named)| match policy.tenants.get(tenant) {
                Some(settings) if settings.each => format!("{tenant}/{named}"),
                _ => tenant.to_owned(),
            });
            let name = own.unwrap_or(group);
            let next = self.tenants.len();
            let place = *known.entry(name.clone()).or_insert(next);
            if place == next {
                self.tenants.push(name);
            }
            places.push(place);
        }
        for request in &mut self.requests {
            request.tenant = places[request.tenant];
        }
        for client in &mut self.clients {
            client.tenant = places[client.tenant];
        }
    }
}

/// The tenant whose `match` names the group with this path, or else the nearest group around it, and the path of the named group:
/// the kernel counts and limits the requests of a group with those of the groups below it.
fn owner<'p>(policy: &'p Policy, path: &'p str) -> Option<(&'p str, &'p str)> {
    let mut named = path.trim_matches('/');
    loop {
        if let Some(tenant) = policy.of_group(named) {
            return Some((tenant, named));
        }
        named = named.rsplit_once('/')?.0.trim_end_matches('/');
    }
}

#[cfg(test)]
mod tests {
    use super::super::advise::advise;
    use super::super::replay::{Under, compare};
    use super::super::tests::{recording, request};
    use super::*;
    use evenkeel_flight::{Head, Request, Table};
    use evenkeel_model::device::DeviceParams;
    use evenkeel_model::store::StoreParams;

    const DB: [&str; 2] = ["system.slice/db@1.service", "system.slice/db@2.service"];
    const BACKUP: &str = "system.slice/backup job.service";

    /// Two seconds of a host: 500 reads a second of each of two databases, and twice as many of a backup.
    fn load(source: &str) -> Load {
        let one = |n: u64| {
            let tenant = [0, 1, 2, 2][(n % 4) as usize];
            Request { tenant, client: tenant, ..request(n * 500_000, 200_000) }
        };
        let mut recording = recording((0..4_000).map(one).collect());
        recording.head = Head { source: source.into(), ..Head::default() };
        let tenants = recording.names.iter_mut().filter(|name| name.table == Table::Tenant);
        for (tenant, path) in tenants.zip(DB.into_iter().chain([BACKUP])) {
            tenant.name = path.to_owned();
        }
        Load::new(recording, None).unwrap()
    }

    fn policy(text: &str) -> Policy {
        Policy::parse(text, "test", "main", &[]).unwrap()
    }

    #[test]
    fn groups_are_the_tenants_whose_match_names_them() {
        let text = "[tenants.database]\nmatch = [\"cgroup:system.slice/db@*.service\"]\nlatency.target = \"5ms\"\n";
        let database = policy(text);
        let mut host = load("host");
        host.join_groups(&database);
        assert_eq!(host.tenants, ["database", BACKUP]);
        let of = |place: usize| host.requests.iter().filter(|request| request.tenant == place).count();
        assert_eq!((of(0), of(1)), (2_000, 2_000));
        assert!(host.clients.iter().all(|client| client.tenant == host.requests[client.requests[0] as usize].tenant));
        assert!(database.absent(&host).is_empty());
        let mut again = host.clone();
        again.join_groups(&database);
        assert_eq!(again, host, "names of tenants are no groups");
        // The most specific entry decides, and each group of a tenant with `each` is a tenant.
        let each = format!("{text}[tenants.first]\neach = true\nmatch = [\"cgroup:{}\"]\nweight = 7\n", DB[0]);
        let (each, mut host) = (policy(&each), load("host"));
        host.join_groups(&each);
        assert_eq!(host.tenants, [&*format!("first/{}", DB[0]), "database", BACKUP]);
        assert_eq!(each.tenant(&host.tenants[0]).weight, 7);
        let mut serve = load("serve");
        serve.join_groups(&database);
        assert_eq!(serve.tenants, [DB[0], DB[1], BACKUP]);
    }

    #[test]
    fn groups_below_a_named_one_belong_to_its_tenant() {
        let text = format!("match = [\"cgroup:{}\"]\n", DB[0]);
        let below = |text: &str| {
            let mut host = load("host");
            host.tenants[1] = format!("{}/worker/1", DB[0]);
            host.join_groups(&policy(text));
            host.tenants
        };
        assert_eq!(below(&format!("[tenants.database]\n{text}")), ["database", BACKUP]);
        let each = format!("first/{}", DB[0]);
        assert_eq!(below(&format!("[tenants.first]\neach = true\n{text}")), [each.as_str(), BACKUP]);
        // The nearest named group decides.
        let nearest = format!("[tenants.all]\nmatch = [\"cgroup:system.slice\"]\n[tenants.database]\n{text}");
        assert_eq!(below(&nearest), ["database", "all"]);
    }

    #[test]
    fn a_group_at_the_top_is_named_by_match_too() {
        for (path, name) in [("backup.slice", "backup.slice"), ("my jobs", "my_jobs")] {
            let mut policy = policy("");
            policy.adopt_group(path);
            policy.tenant_mut(path).limit.iops = 50;
            assert_eq!((policy.tenants.len(), policy.tenant(path).limit.iops), (2, 50), "{path}");
            assert!(policy.tenants[name].matches.iter().any(|entry| entry.names_group(path)), "{policy:?}");
        }
    }

    #[test]
    fn the_root_group_gets_no_settings() {
        let mut host = load("host");
        host.tenants[2] = "/".to_owned();
        let wish = policy("pools.main.tuning.admission = \"none\"\n[tenants.default]\nlatency.target = \"5ms\"\n");
        let advice = advise(&host, &DeviceParams::Store(StoreParams::ssd()), &wish, 1).unwrap();
        let has = |begin: &str| advice.candidates.iter().any(|candidate| candidate.change.starts_with(begin));
        // It has most load, and the target of the default tenant too.
        assert!(has("reservations of the recorded rates") && has("system.slice/db@") && !has("/ "), "{advice:?}");
    }

    #[test]
    fn a_group_without_a_tenant_becomes_one() {
        let mut policy = policy("[tenants.\"backup_job.service\"]\nweight = 2\n[tenants.default]\nweight = 3\n");
        policy.adopt_group(BACKUP);
        assert_eq!((policy.tenant(BACKUP).weight, policy.tenants.len()), (3, 3));
        policy.adopt_group(BACKUP);
        assert_eq!(policy.tenants.len(), 3, "it is a tenant already");
        policy.tenant_mut(BACKUP).limit.iops = 50;
        assert_eq!(policy.tenant(BACKUP).limit.iops, 50);
        let text = policy.text().unwrap();
        assert!(text.contains("backup_job.service-2") && text.contains(&format!("cgroup:{BACKUP}")), "{text}");
        assert_eq!(Policy::parse(&text, "again", "main", &[]).unwrap(), policy);
        policy.tenant_mut(BACKUP).limit.iops = 60;
        assert_eq!((policy.tenant(BACKUP).limit.iops, policy.tenant("system.slice/x.service").limit.iops), (60, 0));
    }

    #[test]
    fn a_recording_of_a_host_is_replayed_and_advised_on() {
        let text = "pools.main.tuning.admission = \"none\"\n[tenants.database]\n\
                    match = [\"cgroup:system.slice/db@*.service\"]\nlatency.target = \"5ms\"\n";
        let wish = policy(text);
        let mut host = load("host");
        host.join_groups(&wish);
        let device = DeviceParams::Store(StoreParams::ssd());
        let after = Under { device: &device, policy: Some(&wish) };
        let compared = compare(&host, Under { device: &device, policy: None }, Some(after), 1).unwrap();
        let changed = compared.after.unwrap();
        assert_eq!((changed.unfinished, changed.tenants[0].requests, changed.targets.len()), (0, 2_000, 1));
        let advice = advise(&host, &device, &wish, 1).unwrap();
        assert!(advice.chosen.is_some(), "{advice:?}");
        assert!(advice.candidates.iter().any(|candidate| candidate.change.starts_with(BACKUP)), "{advice:?}");
    }
}
