//! Tests of a policy in a file of its own, which hosts share.

use std::path::PathBuf;

use evenkeel_policy::Config;
use evenkeel_policy::check::check_file;

use crate::folder::Folder;

/// Writes a host's file and a policy file into a folder of their own.
fn beside(host: &str, policy: &str) -> (Folder, PathBuf, PathBuf) {
    let folder = Folder::new();
    let (host, policy) = (folder.file("evenkeel.toml", host), folder.file("policy.toml", policy));
    (folder, host, policy)
}

#[test]
fn a_policy_that_hosts_share_is_part_of_the_configuration() {
    let policy = "[tenants.gold]\nweight = 4\n[pools.fast]\nlimit = { iops = 9 }\n";
    let (_folder, file, policy) =
        beside("policy = \"policy.toml\"\n[tenants.own]\n[volumes.a]\npool = \"fast\"\nsize = \"1MiB\"\n", policy);
    let report = check_file(&file);
    assert_eq!((&report.errors, &report.warnings), (&vec![], &vec![]));
    let config = report.config;
    assert_eq!((config.tenants["gold"].weight, config.pools["fast"].limit.iops), (4, 9));
    assert!(config.tenants.contains_key("own") && config.volumes["a"].pool == "fast");
    assert_eq!(config.policy, Some(policy), "wherever the working directory is");
    // What was read is complete: it is not read a second time.
    assert!(!toml::to_string(&config).unwrap().contains("policy ="));
}

#[test]
fn faults_of_a_policy_beside_are_found_in_its_file() {
    for (host, policy, expected) in [
        ("", "[tenants.a]\nweigth = 4\n", "policy.toml:2:1: tenants.a.weigth: unknown key"),
        ("", "[tenants.a]\nweight = 0\n", "policy.toml:2:1: tenants.a.weight: 0 is out of range"),
        ("", "[pools.p]\nlimit.iops = \"x\"\n", "policy.toml:2:"),
        ("", "[server]\nlisten = []\n", "policy.toml:1:2: server: belongs in the configuration of each host"),
        ("[tenants.a]\n", "[tenants.a]\n", "policy.toml:1:10: tenants.a: is in "),
        (
            "[volumes.v]\nsize = \"1MiB\"\npool = \"x\"\n",
            "[pools.y]\n",
            "evenkeel.toml:4:1: volumes.v.pool: there is no pool",
        ),
        ("", "tenants = 5\n", "policy.toml:1:"),
        ("", "[tenants.a\n", "policy.toml:1:"),
    ] {
        let (_folder, file, _) = beside(&format!("policy = \"policy.toml\"\n{host}"), policy);
        let errors: Vec<String> = check_file(&file).errors.iter().map(ToString::to_string).collect();
        assert!(errors.iter().any(|error| error.contains(expected)), "{host} {policy}: {errors:?}");
    }
    let (_folder, file, policy) = beside("policy = \"policy.toml\"\n", "");
    std::fs::remove_file(policy).unwrap();
    let errors = check_file(&file).errors;
    assert!(
        errors.len() == 1 && errors[0].to_string().contains("evenkeel.toml:1:1: policy: cannot read"),
        "{errors:?}"
    );
    let alone = Config::parse("policy = \"policy.toml\"\n", "test").unwrap_err().to_string();
    assert!(alone.contains("test:1:1: policy: names a policy file"), "{alone}");
}
