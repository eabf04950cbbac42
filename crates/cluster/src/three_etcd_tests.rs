//! A test with three members of one etcd that have TLS and certificates of clients: another one leads, and one is killed.

use evenkeel_policy::config::{Endpoint, EtcdTls};
use serde_json::Value;

use super::*;

/// Lease of the hosts: an election of etcd's members takes some seconds on a slow machine.
const LONG_LEASE: Time = Time::from_millis(10_000);

/// Three members of one etcd, with data in a folder, which is deleted when the value is dropped. Their ports stay reserved.
struct Three {
    folder: Folder,
    /// Each member's port for clients, and its port for the other members.
    ports: [[Port; 2]; 3],
    children: Vec<Child>,
}

impl Three {
    /// Starts all three and waits until they are healthy; `None` if etcd is not installed, and then the test is reported as
    /// skipped.
    fn start() -> Option<Self> {
        let folder = folder()?;
        certify(&folder);
        let ports = [(); 3].map(|()| [(); 2].map(|()| Port::reserve()));
        let mut three = Self { folder, ports, children: Vec::new() };
        for member in 0..3 {
            let child = three.spawn(member);
            three.children.push(child);
        }
        for member in 0..3 {
            three.await_health(member);
        }
        Some(three)
    }

    fn spawn(&self, member: usize) -> Child {
        Etcd::spawn(&self.folder, member, &self.ports, true, &[])
    }

    fn await_health(&mut self, member: usize) {
        wait("an etcd member is healthy", || {
            let ended = self.children[member].try_wait().expect("a child");
            let log = || fs::read_to_string(self.folder.join("log"));
            assert!(ended.is_none(), "etcd has ended, {ended:?}: {}", log().expect("a log"));
            self.ctl(&[member], &["endpoint", "health"]).is_some()
        });
    }

    fn address(&self, member: usize) -> String {
        format!("https://127.0.0.1:{}", self.ports[member][0].number())
    }

    /// Runs `etcdctl` with the addresses of these members; returns its output, or `None` if it fails.
    fn ctl(&self, members: &[usize], arguments: &[&str]) -> Option<String> {
        let addresses: Vec<String> = members.iter().map(|member| self.address(*member)).collect();
        let mut command = etcdctl(&self.folder, &addresses.join(","), true);
        command.args(arguments);
        output(command)
    }

    /// A member's number in etcd, and the number of the member that leads by its knowledge.
    fn leader(&self, member: usize) -> Option<(u64, u64)> {
        let status = self.ctl(&[member], &["endpoint", "status", "-w", "json"])?;
        let status: Value = serde_json::from_str(&status).ok()?;
        let status = &status[0]["Status"];
        Some((status["header"]["member_id"].as_u64()?, status["leader"].as_u64()?))
    }

    /// Makes this member lead.
    fn lead(&self, member: usize) {
        wait("the member leads", || {
            let Some((own, leader)) = self.leader(member) else { return false };
            if own != leader {
                // Refused while there is no leader.
                let _ = self.ctl(&[0, 1, 2], &["move-leader", &format!("{own:x}")]);
            }
            own == leader
        });
    }

    /// Kills a member with SIGKILL.
    fn kill(&mut self, member: usize) {
        self.children[member].kill().expect("killed");
        self.children[member].wait().expect("gone");
    }

    /// Stalls this member, as a disk does that does not answer, or lets it go on.
    fn signal(&self, member: usize, signal: Signal) {
        let pid = Pid::from_raw(self.children[member].id() as i32).expect("a process");
        kill_process(pid, signal).expect("a signal");
    }

    fn restart(&mut self, member: usize) {
        self.children[member] = self.spawn(member);
        self.await_health(member);
    }

    fn host(&self, name: &str) -> Member {
        let file = |name: &str| self.folder.join(name);
        let (certificate, key) = (Some(file("client.pem")), Some(file("client.key")));
        let mut settings = settings(&self.address(0), name, wall_clock);
        let cluster = &mut settings.cluster;
        cluster.etcd = [0, 1, 2].map(|member| self.address(member).parse::<Endpoint>().expect("an address")).to_vec();
        cluster.tls = Some(EtcdTls { authorities: file("ca.pem"), certificate, key });
        cluster.lease = LONG_LEASE;
        Member::with(settings, 300)
    }
}

impl Drop for Three {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits for some reports of all members to come back, while the busy one keeps its part.
fn go_on(what: &str, busy: &Member, idle: &Member) {
    let decided = || [busy, idle].map(|member| member.handle.state().decided_periods_total);
    let before = decided();
    wait(what, || {
        assert!(busy.part() > 0.6, "{what}: the part of the busy member is {}", busy.part());
        decided().iter().zip(&before).all(|(now, before)| *now > before + 4)
    });
}

#[test]
fn parts_stay_when_another_etcd_member_leads_and_when_the_leader_is_killed() {
    let Some(mut three) = Three::start() else { return };
    let [a, b] = ["a", "b"].map(|name| three.host(name));
    a.ask(4_000);
    wait("the busy one has most", || a.part() > 0.7 && a.contact() == "shared" && b.contact() == "shared");
    let lost = || [&a, &b].map(|member| member.handle.state().lost_total);
    let before = lost();

    let endpoint = || a.handle.state().endpoint.unwrap_or_default();
    let mut used = None;
    wait("the busy host watches a member", || {
        used = (0..3).find(|member| three.address(*member) == endpoint());
        used.is_some()
    });
    let used = used.expect("found");
    three.lead((used + 1) % 3);
    go_on("reports come back with another leader", &a, &b);

    // The one that both leads and is watched dies.
    three.lead(used);
    three.kill(used);
    wait("the host watches another member", || {
        a.handle.state().connected && !endpoint().is_empty() && endpoint() != three.address(used)
    });
    go_on("reports come back from the other two", &a, &b);
    a.ask(300);
    b.ask(4_000);
    wait("demand has moved", || b.part() > 0.7 && a.part() < 0.3);

    three.restart(used);
    go_on("reports come back from all three", &b, &a);
    assert_eq!(lost(), before, "the cluster was never lost");
    assert!([&a, &b].iter().all(|member| member.contact() == "shared"));
}

#[test]
fn decisions_go_on_beside_stalled_members_and_no_part_doubles() {
    let Some(three) = Three::start() else { return };
    let [a, b] = ["a", "b"].map(|name| three.host(name));
    a.ask(4_000);
    wait("the busy one has most", || a.part() > 0.7 && a.contact() == "shared" && b.contact() == "shared");
    let check = || {
        // Between two readings a part may move from one to the other.
        let (before, of_b) = (a.part(), b.part());
        let parts = [before.min(a.part()), of_b];
        assert!(parts.iter().sum::<f64>() <= 1.05, "{parts:?}");
    };
    let decided = || [&a, &b].map(|member| member.handle.state().decided_periods_total);
    let go_on = |what: &str| {
        let before = decided();
        wait(what, || {
            check();
            decided().iter().zip(&before).all(|(now, before)| *now > before + 4)
        });
    };

    // The leader stalls: the others elect another one, and hosts that use it go to another member.
    three.lead(0);
    three.signal(0, Signal::STOP);
    go_on("decisions go on while the leader stalls");
    three.signal(0, Signal::CONT);
    go_on("decisions go on with all three");

    // All stall for longer than a request may take, and for less than the lease.
    let patience = StdDuration::from(LONG_LEASE) / 3;
    [0, 1, 2].into_iter().for_each(|member| three.signal(member, Signal::STOP));
    let begun = StdInstant::now();
    wait("requests have failed", || {
        check();
        begun.elapsed() > patience + StdDuration::from_secs(1)
    });
    [0, 1, 2].into_iter().for_each(|member| three.signal(member, Signal::CONT));
    go_on("decisions go on after the stall");
    wait("demand counts again", || {
        check();
        a.part() > 0.7 && [&a, &b].iter().all(|member| member.contact() == "shared")
    });
}
