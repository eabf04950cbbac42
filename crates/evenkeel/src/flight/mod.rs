//! `evenkeel fit`, `evenkeel replay` and `evenkeel advise`: recordings in the simulator.

use std::path::Path;

use anyhow::{Context, anyhow};
use evenkeel_flight::Head;
use evenkeel_model::device::DeviceParams;
use evenkeel_policy::check::{Errors, Problem};
use evenkeel_sim::flight::load::Load;
use evenkeel_sim::flight::policy::{self, Policy};

use crate::output;
use crate::trace::sample::{self, Sample, Sampled};
use crate::trace::warn_of_loss;

pub(crate) mod advise;
pub(crate) mod fit;
pub(crate) mod replay;

/// Reads a part of a recording, or of a trace of another program, as the load of a pool. Of a part with too many requests it has
/// a sample.
///
/// # Errors
/// A file that cannot be read, or has no requests of the pool.
fn load(path: &Path, sample: &Sample, pool: Option<&str>) -> anyhow::Result<Load> {
    let Sampled { recording, begins, left } = sample::open(path, sample, pool)?;
    warn_of_loss(&recording, path);
    let mut load = Load::of_runs(recording, &begins, pool).map_err(|cause| match left {
        0 => anyhow::Error::new(cause),
        _ => anyhow!("{}: {cause}, or raise --most: the sample leaves out {left} requests", path.display()),
    })?;
    load.left_out.unsampled = left;
    let (policy, limited) = policy::without_limits_of_volumes(&load.head.policy);
    if !limited.is_empty() {
        warn(&format!(
            "the simulator does not enforce limits of volumes, which the recording's policy has for {}: simulated requests \
             of these volumes do not wait for them",
            limited.join(", ")
        ));
        load.head.policy = policy;
    }
    Ok(load)
}

/// Warns of tenants of a policy that have a target or a guarantee, but no requests in the recording.
fn warn_of_absent(policy: &Policy, load: &Load) {
    for tenant in policy.absent(load) {
        warn(&format!(
            "tenant {tenant} of the policy has a latency target, a reservation or a guarantee, but no requests in {}: \
             {}",
            source_of(load),
            why_absent(load)
        ));
    }
}

/// The reasons why a recording may have no requests of a tenant, with the cure.
fn why_absent(load: &Load) -> &'static str {
    if load.left_out.unsampled > 0 {
        "the tenant's requests may lie between the runs of the sample, so raise --most; or the tenant has another \
         name in the recording: `evenkeel trace info` shows all"
    } else if load.is_of_groups() && !load.head.anonymised {
        "no control group fits the tenant's match; name groups there as evenkeel trace info shows them, such as \
         \"cgroup:system.slice/db.service\""
    } else {
        "the tenant has another name in the recording, as after --anonymise: `evenkeel trace info` shows all"
    }
}

/// Warns of tenants that assignments of a command line name, but that have no requests in the recording.
fn warn_of_mistyped(policy: &Policy, assignments: &[String], load: &Load) {
    for tenant in policy.assigned_in_vain(assignments, load) {
        warn(&mistyped(tenant, load));
    }
}

/// The warning about a tenant that an assignment names.
fn mistyped(tenant: &str, load: &Load) -> String {
    let cure = if load.left_out.unsampled > 0 { "; the sample may leave out others, so raise --most" } else { "" };
    format!(
        "--set names tenant {tenant}, which has no requests in {}, so that nothing changes; name one of {}{cure}",
        source_of(load),
        load.tenants.join(", ")
    )
}

/// The source of the load's requests, in words.
fn source_of(load: &Load) -> &'static str {
    if load.left_out.unsampled > 0 { "the sample of the recording" } else { "the recording" }
}

/// Reads a device from a file.
///
/// # Errors
/// Every problem of the file and of the assignments.
fn device(path: &Path, assignments: &[String]) -> anyhow::Result<DeviceParams> {
    let (text, origin) = text(path, "device")?;
    policy::device(&text, &origin, assignments).map_err(problems)
}

/// Reads a policy from a file.
///
/// # Errors
/// Every problem of the file and of the assignments.
fn policy(path: &Path, pool: &str, assignments: &[String]) -> anyhow::Result<Policy> {
    let (text, origin) = text(path, "policy")?;
    Policy::parse(&text, &origin, pool, assignments).map_err(problems)
}

/// The text of a file, and its name for messages. `what` is in the file, in a word.
fn text(path: &Path, what: &str) -> anyhow::Result<(String, String)> {
    let origin = path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the {what} {origin}"))?;
    Ok((text, origin))
}

/// The policy of the recording. A warning if it has none, or one that cannot be used: then every request is admitted at once.
fn recorded_policy(load: &Load) -> Option<Policy> {
    let text = &load.head.policy;
    if text.trim().is_empty() {
        warn_of_no_policy(load);
        return None;
    }
    let policy = Policy::parse(text, "the recording's policy", &load.pool, &[]);
    policy.map_err(|errors| warn(&format!("{}; the recording's policy is not used", Errors(errors)))).ok()
}

/// Warns that a recording has no policy: it is of block devices or anonymised, or the policy was too large for the file.
fn warn_of_no_policy(load: &Load) {
    if let Some(reason) = no_policy(&load.head) {
        warn(&format!(
            "{reason}: the simulated run admits every request at once, and differs from the recorded one where the \
             policy throttled; --policy gives the changed run a policy"
        ));
    }
}

/// The reason why a recording has no policy; `None` for a trace of another program, which never has one.
fn no_policy(head: &Head) -> Option<&'static str> {
    match (head.source.as_str(), head.anonymised) {
        ("host", _) => Some("a recording of block devices has no policy"),
        ("serve", true) => Some("the recording is anonymised and has no policy"),
        ("serve", false) => {
            Some("the policy is not in the recording, because it is larger than 3 MiB or a quarter of --max-size")
        }
        _ => None,
    }
}

fn warn(message: &str) {
    output::complain(&format!("evenkeel: warning: {}\n", printable_lines(message)));
}

fn problems(problems: Vec<Problem>) -> anyhow::Error {
    anyhow!("{}", printable_lines(&Errors(problems).to_string()))
}

/// The lines of a text that may quote the policy of a foreign recording, without control characters.
fn printable_lines(text: &str) -> String {
    text.split('\n').map(output::printable).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use evenkeel_flight::{Item, Name, Request, Table, Writer};

    use super::*;

    #[test]
    fn a_recording_of_a_server_without_its_policy_says_so() {
        let head = |source: &str, anonymised| Head { source: source.into(), anonymised, ..Head::default() };
        assert!(no_policy(&head("serve", false)).is_some_and(|reason| reason.contains("--max-size")));
        assert!(no_policy(&head("serve", true)).is_some_and(|reason| reason.contains("anonymised")));
        assert!(no_policy(&head("host", false)).is_some_and(|reason| reason.contains("block devices")));
        assert_eq!(no_policy(&head("msr", false)), None);
    }

    #[test]
    fn a_recording_of_a_host_names_its_tenants_by_control_group() {
        let folder = crate::folder::Folder::new();
        let head = Head { source: "host".into(), ..Head::default() };
        let mut writer = Writer::new(Vec::new(), &head).expect("a head");
        let group = "system.slice/db.service";
        for (table, name) in [(Table::Tenant, group), (Table::Client, "cgroup-42"), (Table::Volume, "sda")] {
            let pool = if table == Table::Volume { name.to_owned() } else { String::new() };
            let name = Name { table, number: 0, name: name.to_owned(), pool, bytes: 1 << 30 };
            writer.write(&Item::Name(name)).expect("written");
        }
        for n in 0..100_u64 {
            let request = Request { arrival_ns: n << 20, device_ns: 9_000, length: 4_096, ..Request::default() };
            writer.write(&Item::Request(request)).expect("written");
        }
        let path = folder.file("host.rec", writer.finish().expect("written"));
        let mut load = load(&path, &Sample::default(), None).expect("a load");
        assert_eq!((load.pool.as_str(), &load.tenants[..]), ("sda", &[group.to_owned()][..]));
        assert_eq!(recorded_policy(&load), None);
        let policy = |pattern: &str| {
            let text = format!("[tenants.db]\nmatch = [\"cgroup:{pattern}\"]\nlatency.target = \"5ms\"\n");
            Policy::parse(&text, "test", &load.pool, &[]).expect("a policy")
        };
        let (wrong, right) = (policy("system.slice/bd.service"), policy("system.slice/*.service"));
        assert_eq!(wrong.absent(&load), ["db"]);
        assert!(why_absent(&load).contains("trace info"));
        assert!(mistyped("bd", &load).contains("no requests in the recording, "));
        load.left_out.unsampled = 1;
        assert!(why_absent(&load).contains("--most") && source_of(&load).contains("sample"));
        let warning = mistyped("bd", &load);
        assert!(warning.contains("in the sample of the recording, ") && warning.ends_with("raise --most"), "{warning}");
        load.left_out.unsampled = 0;
        load.join_groups(&right);
        assert_eq!((right.absent(&load).len(), &*load.tenants[0]), (0, "db"));
    }

    #[test]
    fn the_policy_of_a_recording_cannot_drive_the_terminal() {
        let errors = Policy::parse("\u{1b}[2J = 1\n[tenants.\"\\u001b[2J\"]\nno_key = 1\n", "own", "main", &[]);
        let text = format!("{:#}", problems(errors.expect_err("refused")));
        assert!(text.contains("own") && !text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
        assert_eq!(printable_lines("a\n\u{1b}b\n"), "a\n?b\n");
    }
}
