//! Tests of hosts in a cluster with a real etcd that has TLS, certificates of clients, and users with passwords.

use evenkeel_policy::config::EtcdTls;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

use super::authority::Pair;
use super::*;
use crate::{Answer, reach};

/// A certificate of a client, without a common name: while etcd has users, its gateway refuses certificates with one.
pub(super) fn nameless() -> Pair {
    let mut params = CertificateParams::new(vec!["client".to_owned()]).expect("a name");
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "evenkeel");
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("signed").pem();
    Pair { certificate, key: key.serialize_pem() }
}

/// Settings with the certificate of a client, and the user `evenkeel` with its password in a file.
fn settings_for(etcd: &Etcd, host: &str) -> Settings {
    let file = |name: &str| etcd.folder.join(name);
    let (certificate, key) = (Some(file("client.pem")), Some(file("client.key")));
    let mut settings = etcd.settings(host, wall_clock);
    settings.cluster.tls = Some(EtcdTls { authorities: file("ca.pem"), certificate, key });
    (settings.cluster.user, settings.cluster.password_file) = (Some("evenkeel".into()), Some(file("password")));
    settings
}

/// Makes etcd ask for users and passwords. The user of the hosts may write the keys of clusters, and nothing else.
fn enable_auth(etcd: &mut Etcd, password: &str) {
    // Some versions of etcdctl make this role of their own.
    let _ = etcd.ctl(&["role", "add", "root"]);
    for arguments in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", &format!("evenkeel:{password}")],
        &["role", "add", "evenkeel"],
        &["role", "grant-permission", "--prefix=true", "evenkeel", "readwrite", "evenkeel/"],
        &["user", "grant-role", "evenkeel", "evenkeel"],
        &["auth", "enable"],
    ] {
        etcd.ctl(arguments).unwrap_or_else(|| panic!("etcdctl {arguments:?} fails"));
    }
    etcd.login = Some("root:secret");
}

fn go_on(hosts: &[&Host]) {
    let before: Vec<u64> = hosts.iter().map(|host| host.last_period()).collect();
    wait("they go on", || hosts.iter().zip(&before).all(|(host, before)| host.last_period() > before + 6));
    all_see(hosts, &["a", "b"]);
    wait("nothing is wrong", || hosts.iter().all(|host| host.error().is_empty() && host.status() == "shared"));
}

#[test]
fn hosts_take_part_with_certificates_and_passwords_and_get_new_tokens() {
    let Some(mut etcd) = Etcd::start_secure() else { return };
    let password = etcd.folder.join("password");
    fs::write(&password, "first\n").expect("written");
    let hosts = ["a", "b"].map(|name| Etcd::host_with(settings_for(&etcd, name)));
    let [a, b] = &hosts;
    // etcd has users only later.
    all_see(&[a, b], &["a", "b"]);
    enable_auth(&mut etcd, "first");
    go_on(&[a, b]);

    // Another password makes etcd forget the tokens of the user.
    fs::write(&password, "second\n").expect("written");
    fs::write(etcd.folder.join("input"), "second\n").expect("written");
    let input = fs::File::open(etcd.folder.join("input")).expect("the password");
    let changed = etcd.etcdctl(&["user", "passwd", "evenkeel", "--interactive=false"]).stdin(input).output();
    let changed = changed.expect("etcdctl runs");
    assert!(changed.status.success(), "{changed:?}");
    go_on(&[a, b]);

    // A new process of etcd knows no token.
    etcd.kill();
    etcd.restart();
    etcd.await_health();
    go_on(&[a, b]);

    let answers = reach(&settings_for(&etcd, "a").cluster).expect("an answer");
    let expected: [(String, Answer); 1] = [(etcd.address(), Ok(2))];
    assert_eq!(answers, expected);
    let mut nameless = settings_for(&etcd, "a").cluster;
    (nameless.user, nameless.password_file) = (None, None);
    let answers = reach(&nameless).expect("an answer");
    assert!(matches!(&answers[..], [(_, Err(why))] if why.contains("set cluster.user")), "{answers:?}");
}

#[test]
fn a_host_that_etcd_refuses_says_why() {
    let Some(mut etcd) = Etcd::start_secure() else { return };
    fs::write(etcd.folder.join("password"), "first\n").expect("written");
    enable_auth(&mut etcd, "first");
    let wrong = etcd.folder.join("wrong");
    fs::write(&wrong, "other\n").expect("written");
    let foreign = etcd.folder.join("foreign.pem");
    fs::write(&foreign, Authority::new().certificate).expect("written");

    let mut settings = settings_for(&etcd, "password");
    settings.cluster.password_file = Some(wrong);
    let with_password = Etcd::host_with(settings);
    let mut settings = settings_for(&etcd, "authority");
    settings.cluster.tls.as_mut().expect("TLS").authorities = foreign;
    let with_authority = Etcd::host_with(settings);
    let mut settings = settings_for(&etcd, "certificate");
    let tls = settings.cluster.tls.as_mut().expect("TLS");
    (tls.certificate, tls.key) = (None, None);
    let without_certificate = Etcd::host_with(settings);
    let mut settings = settings_for(&etcd, "named");
    let tls = settings.cluster.tls.as_mut().expect("TLS");
    (tls.certificate, tls.key) = (Some(etcd.folder.join("named.pem")), Some(etcd.folder.join("named.key")));
    let with_name = Etcd::host_with(settings);
    let good = Etcd::host_with(settings_for(&etcd, "good"));

    wait("the password is named", || with_password.error().contains("correct cluster.user, and the password"));
    wait("the authority is named", || with_authority.error().contains("compare the files of cluster.tls"));
    wait("the connection is refused", || !without_certificate.error().is_empty());
    wait("the common name is named", || with_name.error().contains("without a common name (CN)"));
    all_see(&[&good], &["good"]);
    for host in [&with_password, &with_authority, &without_certificate, &with_name] {
        assert!(host.is_alone() && host.status() == "lost", "{}", host.error());
    }
}

#[test]
fn files_that_cannot_be_used_are_named_at_the_start() {
    let mut cluster = settings("https://127.0.0.1:1", "a", wall_clock).cluster;
    assert!(Settings::of_this_host(&cluster).is_ok());
    cluster.tls = Some(EtcdTls { authorities: "/nowhere/ca.pem".into(), certificate: None, key: None });
    let why = Settings::of_this_host(&cluster).expect_err("no file").to_string();
    assert!(why.starts_with("cluster.tls.authorities: /nowhere/ca.pem"), "{why}");
    let answers = reach(&cluster).expect("an answer");
    assert!(matches!(&answers[..], [(_, Err(why))] if why.contains("/nowhere/ca.pem")), "{answers:?}");
}
