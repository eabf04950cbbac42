//! `evenkeel check`: checks a policy and this host in one command.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::bail;
use evenkeel_cluster::{password_fault, reach};
use evenkeel_guard::admin_socket::AdminSocket;
use evenkeel_guard::discovery::{Map, Roots, Survey, osds, resolved};
use evenkeel_guard::preflight::{self, osd::Scheduling};
use evenkeel_guard::sensor::cgroup;
use evenkeel_net::tls;
use evenkeel_policy::check::{Errors, Problem, check_with};
use evenkeel_policy::config::{Cluster, EtcdTls, Terms};
use evenkeel_policy::document::Document;
use evenkeel_policy::effective::{
    Checked, Enforced, Missing, Precedence, Preflight, Presence, Row, served, unenforced,
};
use evenkeel_policy::figures::counted;
use evenkeel_policy::source::Source;
use evenkeel_policy::{Finding, Severity};
use evenkeel_web::serve::{Recorded, own_files, record_of};

use crate::control::words;
use crate::guard::{IDLE, abilities, is_idle, judged};
use crate::output;

/// Time limit for one answer of an OSD on its admin socket.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// Arguments of `check`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// A file of `evenkeel serve`, `evenkeel guard` or both; "-" reads standard input. Without it: what this kernel offers
    file: Option<PathBuf>,
    /// Fail on warnings, and on what is not enforced on this host
    #[arg(long)]
    strict: bool,
    /// Print the findings as JSON
    #[arg(long)]
    json: bool,
}

/// Runs `evenkeel check` and prints its findings.
///
/// # Errors
/// A configuration that cannot be used. With `--strict` also a warning, or a setting that this host does not enforce.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let mut checked = Checked { precedence: Precedence::ALL.into(), host: judged(), ..Checked::default() };
    match &args.file {
        Some(file) => of_file(file, &mut checked)?,
        None => {
            let mut config = evenkeel_guard::Config { ceph: Some(Default::default()), ..Default::default() };
            on_this_host(&mut config, &mut checked.host, |_, _| unreachable!("there is no row"))?;
        }
    }
    if !args.json {
        checked.errors.iter().for_each(|error| output::complain(&format!("error: {error}\n")));
        checked.warnings.iter().for_each(|warning| output::complain(&format!("warning: {warning}\n")));
    }
    output::show(args.json, &checked, |checked| match &args.file {
        None => parts(&checked.host),
        Some(_) if checked.errors.is_empty() => policy(checked),
        Some(_) => String::new(),
    })?;
    let absent = checked.missing.iter().filter(|missing| missing.here == Presence::Missing).count();
    let absent = absent + usize::from(args.file.is_none() && !checked.host.can_act);
    let (errors, warnings) = (checked.errors.len() as u64, checked.warnings.len() as u64);
    if errors > 0 {
        let (errors, warnings) = (counted(errors, "error"), counted(warnings, "warning"));
        bail!("the configuration cannot be used as it is ({errors}, {warnings})");
    }
    if args.strict && absent as u64 + warnings > 0 {
        let (settings, warnings) = (counted(absent as u64, "setting"), counted(warnings, "warning"));
        if absent == 0 {
            bail!("--strict: {warnings}");
        }
        bail!("--strict: this host does not enforce everything ({settings} not enforced, {warnings}); see above");
    }
    Ok(())
}

/// Reads a file as `evenkeel serve` and as `evenkeel guard` read it. Adds its errors, its warnings, its effective policy, and the
/// settings that this host does not enforce to `checked`.
fn of_file(file: &Path, checked: &mut Checked) -> anyhow::Result<()> {
    let source = match Source::read(file) {
        Ok(source) => source,
        Err(Errors(errors)) => {
            checked.errors = errors;
            return Ok(());
        }
    };
    let (document, _) = Document::of(&source);
    let guard = evenkeel_guard::Config::check(&source, abilities());
    let (mut queue, mut elsewhere) = (Enforced::default(), Vec::new());
    // Without volumes and settings of a server it is the agent's alone, if that has settings or something to enforce.
    let has = |table| document.has(&[table]);
    let is_guarded = has("agent") || guard.as_ref().map_or(true, |(config, _)| !config.enforced.rows.is_empty());
    let is_served = has("server") || has("volumes") || !is_guarded;
    if is_served {
        let named = Some(file).filter(|file| file.as_os_str() != "-");
        let (mut recorded, mut unusable) = (Recorded::default(), Vec::new());
        let report = check_with(&source, |config| {
            // Another user's record cannot be read: nothing is said of it.
            if File::open(record_of(&config.server.data_dir)).is_ok() {
                match Recorded::add_to(config, has("volumes")) {
                    Ok(volumes) => recorded = volumes,
                    Err(Errors(errors)) => unusable = errors,
                }
            }
            let of_files =
                evenkeel_server::inspect(&Arc::new(config.clone()), &own_files(named, &config.server.data_dir));
            let remote = config.volumes.iter().filter_map(|(name, volume)| Some((name, volume.uri_tls.as_ref()?)));
            let of_remote = remote.flat_map(|(name, files)| own_certificates(&["volumes", name, "uri_tls"], files));
            let of_etcd = config.cluster.tls.iter().flat_map(|files| own_certificates(&["cluster", "tls"], files));
            let of_server = certificates(&config.server.terms());
            let of_etcd = of_etcd.chain(password(&config.cluster));
            of_server.into_iter().chain(of_files).chain(of_remote).chain(of_etcd).collect()
        });
        queue = served(&report.config);
        (checked.errors, checked.warnings, elsewhere) =
            (recorded.place(report.errors), recorded.place(report.warnings), report.elsewhere);
        // A server reads its file for itself first.
        add(&mut checked.errors, check_with(&source, |_| Vec::new()).errors);
        checked.errors.extend(unusable);
    }
    match guard {
        Err(Errors(errors)) => add(&mut checked.errors, errors),
        Ok((mut config, doubts)) => {
            add(&mut checked.warnings, doubts);
            if !is_served && is_idle(&config) {
                let idle = document.complain(&["agent"], format!("the agent would not run: {IDLE}"));
                add(&mut checked.warnings, vec![idle]);
            }
            let etcd = config.cluster.tls.iter().filter(|_| !is_served);
            let of_etcd = etcd.flat_map(|files| own_certificates(&["cluster", "tls"], files));
            let of_etcd = of_etcd.chain(password(&config.cluster).filter(|_| !is_served));
            let findings: Vec<Finding> = certificates(&config.agent.terms()).into_iter().chain(of_etcd).collect();
            for Finding { severity, path, message } in findings {
                let path: Vec<&str> = path.iter().map(String::as_str).collect();
                let to = if severity == Severity::Error { &mut checked.errors } else { &mut checked.warnings };
                to.push(document.complain(&path, message));
            }
            let notes = std::mem::take(&mut config.notes);
            checked.missing = unenforced((&queue, elsewhere), (&config.enforced, notes));
            let complain = |key: &[&str], message| document.complain(key, message);
            checked.missing.extend(on_this_host(&mut config, &mut checked.host, complain)?);
            if is_served {
                let etcd = config.cluster.etcd.iter().map(ToString::to_string).collect();
                let unheard = silent(etcd, &checked.host, complain);
                checked.missing.extend(unheard);
            }
            checked.missing.sort_by_key(|missing| (Reverse(missing.here), missing.why.position));
            checked.rows = [queue.rows, config.enforced.rows].concat();
        }
    }
    Ok(())
}

/// Findings about the TLS files that `terms` names: an error for each file that a server or an agent would refuse, and
/// warnings about doubtful files. A file that this process may not read gives a warning.
fn certificates(terms: &Terms) -> Vec<Finding> {
    let path = |name: &str| -> Vec<String> { name.split('.').map(str::to_owned).collect() };
    of_certificates(tls::faults(terms), tls::doubts(terms), path)
}

/// Findings about the files with which this host reaches another server by TLS, and which the table `table` names, as of
/// [`certificates`].
fn own_certificates(table: &[&str], files: &EtcdTls) -> Vec<Finding> {
    let path = |name: &str| -> Vec<String> { table.iter().copied().chain([name]).map(str::to_owned).collect() };
    of_certificates(tls::client_faults(files), tls::client_doubts(files), path)
}

/// The finding about a file with the password of etcd's user that cannot be used, as of [`certificates`].
fn password(cluster: &Cluster) -> Option<Finding> {
    let file = cluster.password_file.as_ref().filter(|_| !cluster.etcd.is_empty())?;
    let message = password_fault(cluster)?;
    let unreadable = File::open(file).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
    let severity = if unreadable { Severity::Warning } else { Severity::Error };
    Some(Finding { severity, path: vec!["cluster".to_owned(), "password_file".to_owned()], message })
}

/// Findings about files that cannot be used (`faults`) or are doubtful (`doubts`). `path`: the path of the key that an error names.
fn of_certificates(
    faults: Vec<tls::Error>,
    doubts: Vec<tls::Error>,
    path: impl Fn(&str) -> Vec<String>,
) -> Vec<Finding> {
    let finding = |severity, tls::Error { name, path: file, why }: tls::Error| Finding {
        severity,
        path: path(&name),
        message: format!("{} {why}", file.display()),
    };
    let faults = faults.into_iter().map(|fault| {
        let unreadable = File::open(&fault.path).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
        finding(if unreadable { Severity::Warning } else { Severity::Error }, fault)
    });
    let doubts = doubts.into_iter().map(|doubt| finding(Severity::Warning, doubt));
    faults.chain(doubts).collect()
}

/// The addresses in `etcd` that do not answer, as findings about the key `cluster.etcd`. If none answers, the setting counts
/// as not enforced, since hosts cannot share slots; else as enforced with less.
fn silent(etcd: BTreeSet<String>, host: &Preflight, complain: impl Fn(&[&str], String) -> Problem) -> Vec<Missing> {
    let is_silent =
        |finding: &&preflight::Finding| finding.presence == Presence::Missing && etcd.contains(&finding.part);
    let silent: Vec<_> = host.findings.iter().filter(is_silent).collect();
    let here = if silent.len() < etcd.len() { Presence::Unsuitable } else { Presence::Missing };
    let lack = |finding: &&preflight::Finding| Missing {
        why: complain(&["cluster", "etcd"], format!("{} does not answer", finding.part)),
        lost: finding.lost.clone(),
        cure: finding.cure.clone(),
        here,
    };
    silent.iter().map(lack).collect()
}

/// Adds the problems in `more` to `known`, except for keys and positions that have a problem in `known` already; sorts
/// `known` by position in the file.
fn add(known: &mut Vec<Problem>, more: Vec<Problem>) {
    let keys: BTreeSet<_> = known.iter().map(|problem| (problem.position, problem.key.clone())).collect();
    known.extend(more.into_iter().filter(|problem| !keys.contains(&(problem.position, problem.key.clone()))));
    known.sort_by_key(|problem| problem.position);
}

/// The parts of the agent's policy that this host does not enforce, judged by its kernel, devices, OSDs and etcd. Adds the
/// findings about arrays, OSDs and etcd to `host`.
fn on_this_host(
    config: &mut evenkeel_guard::Config,
    host: &mut Preflight,
    complain: impl Fn(&[&str], String) -> Problem,
) -> anyhow::Result<Vec<Missing>> {
    let roots = Roots::default();
    host.findings.extend(preflight::arrays::judge(config, &roots));
    host.findings.extend(preflight::local::judge(config, &roots, Path::new(cgroup::ROOT)));
    if !config.cluster.etcd.is_empty() {
        let answers = reach(&config.cluster)?;
        let findings = answers.iter().map(|(endpoint, answer)| preflight::arrays::judge_etcd(endpoint, answer));
        host.findings.extend(findings);
    }
    let map = (!config.packets.is_empty()).then(|| Map::of(&Survey::of_this_machine(), &config.configured(), resolved));
    let mut map = map.unwrap_or_default();
    if config.ceph.is_some() {
        map.osds = osds::find(Path::new("/"), &config.agent.ceph.sockets);
    }
    host.findings.extend(map.osds.iter().map(|entry| {
        let socket = AdminSocket::new(entry.socket.clone(), ANSWER_WITHIN);
        preflight::osd::judge(&entry.name, &Scheduling::ask(&socket))
    }));
    Ok(preflight::lacks(config, host, &map, (&roots, Path::new(cgroup::ROOT)), complain))
}

/// Text with the effective policy as a table, the parts that this host does not enforce, and a line with the totals.
fn policy(checked: &Checked) -> String {
    let row = |row: &Row| {
        let all = || "all".to_owned();
        let rank = row.precedence.map_or_else(|| "-".into(), |precedence| precedence.rank().to_string());
        let (tenant, pool) = (row.tenant.clone().unwrap_or_else(all), row.pool.clone().unwrap_or_else(all));
        let (point, here) = (row.point.name().to_owned(), row.here.name().to_owned());
        vec![tenant, pool, point, row.setting.clone(), here, rank, row.measured.clone(), row.throttled.clone()]
    };
    let rows: Vec<_> = checked.rows.iter().map(row).collect();
    let mut text = String::new();
    if !rows.is_empty() {
        let head = ["tenant", "pool", "point", "setting", "here", "rank", "measured", "throttled"];
        let table = words(&head, &rows);
        let _ = write!(text, "{table}\nA lower rank wins: {}.\n", Precedence::in_words());
    }
    for Missing { why, lost, cure, here } in &checked.missing {
        let how = if *here == Presence::Missing { "not enforced here" } else { "enforced with less" };
        let _ = write!(text, "\n{how}: {why}\n  lost: {lost}\n");
        if !cure.is_empty() {
            let _ = writeln!(text, "  what to do: {cure}");
        }
    }
    let enforced = checked.rows.iter().filter(|row| row.here != Presence::Missing).count();
    let (all, warnings) = ((rows.len() + checked.unlisted()) as u64, checked.warnings.len() as u64);
    let (all, warnings) = (counted(all, "setting"), counted(warnings, "warning"));
    let _ = writeln!(text, "\nusable: {enforced} of {all} enforced here, {warnings}");
    text
}

/// Text with the kernel's features as a table, and below it the loss and the remedy for each missing feature.
fn parts(host: &Preflight) -> String {
    let row = |finding: &preflight::Finding| {
        let presence = finding.presence.name().to_owned();
        vec![finding.part.clone(), presence, finding.purpose.clone()]
    };
    let rows: Vec<_> = host.findings.iter().map(row).collect();
    let mut text = "for `evenkeel guard`:\n".to_owned() + &words(&["part", "there", "purpose"], &rows);
    for finding in host.findings.iter().filter(|finding| !finding.lost.is_empty()) {
        let _ = writeln!(text, "\n{}: {}\n  what to do: {}", finding.part, finding.lost, finding.cure);
    }
    let yes_no = |answer| if answer { "yes" } else { "no" };
    let _ = writeln!(
        text,
        "\nlatencies can be measured: {}\nclients can be throttled: {}\n\nThis is about the present network namespace: targets that listen in another one, in a container for example, need an agent there.",
        yes_no(host.can_measure),
        yes_no(host.can_act)
    );
    text
}
