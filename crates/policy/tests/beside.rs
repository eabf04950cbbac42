//! Tests of a policy in a file of its own, which hosts share.

use evenkeel_policy::Config;
use evenkeel_policy::check::check_file;

/// Writes a host's file and a policy file into a folder of their own.
fn beside(host: &str, policy: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("evenkeel-policy-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (host_file, policy_file) = (folder.join("evenkeel.toml"), folder.join("policy.toml"));
    std::fs::write(&host_file, host).unwrap();
    std::fs::write(&policy_file, policy).unwrap();
    (host_file, policy_file)
}

#[test]
fn a_policy_that_hosts_share_is_part_of_the_configuration() {
    let policy = "[tenants.gold]\nweight = 4\n[pools.fast]\nlimit = { iops = 9 }\n";
    let (file, policy) =
        beside("policy = \"policy.toml\"\n[tenants.own]\n[volumes.a]\npool = \"fast\"\nsize = \"1MiB\"\n", policy);
    let report = check_file(&file);
    assert_eq!((&report.errors, &report.warnings), (&vec![], &vec![]));
    let config = report.config;
    assert_eq!((config.tenants["gold"].weight, config.pools["fast"].limit.iops), (4, 9));
    assert!(config.tenants.contains_key("own") && config.volumes["a"].pool == "fast");
    assert_eq!(config.policy, Some(policy), "wherever the working directory is");
    // What was read is complete: it is not read a second time.
    assert!(!toml::to_string(&config).unwrap().contains("policy ="));
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
}

#[test]
fn faults_of_a_policy_beside_are_found_in_its_file() {
    for (host, policy, expected) in [
        ("", "[tenants.a]\nweigth = 4\n", "policy.toml:2:1: tenants.a.weigth: unknown key"),
        ("", "[tenants.a]\nweight = 0\n", "policy.toml:2:1: tenants.a.weight: 0 is out of range"),
        ("", "[pools.p]\nlimit.iops = \"x\"\n", "policy.toml:2:"),
        ("", "[server]\nlisten = []\n", "policy.toml:1:2: server: belongs to the file of a host"),
        ("[tenants.a]\n", "[tenants.a]\n", "policy.toml:1:10: tenants.a: stands in "),
        (
            "[volumes.v]\nsize = \"1MiB\"\npool = \"x\"\n",
            "[pools.y]\n",
            "evenkeel.toml:4:1: volumes.v.pool: there is no pool",
        ),
        ("", "tenants = 5\n", "policy.toml:1:"),
        ("", "[tenants.a\n", "policy.toml:1:"),
    ] {
        let (file, _) = beside(&format!("policy = \"policy.toml\"\n{host}"), policy);
        let errors: Vec<String> = check_file(&file).errors.iter().map(ToString::to_string).collect();
        assert!(errors.iter().any(|error| error.contains(expected)), "{host} {policy}: {errors:?}");
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    }
    let (file, policy) = beside("policy = \"policy.toml\"\n", "");
    std::fs::remove_file(policy).unwrap();
    let errors = check_file(&file).errors;
    assert!(
        errors.len() == 1 && errors[0].to_string().contains("evenkeel.toml:1:1: policy: cannot read"),
        "{errors:?}"
    );
    let alone = Config::parse("policy = \"policy.toml\"\n", "test").unwrap_err().to_string();
    assert!(alone.contains("test:1:1: policy: names a file"), "{alone}");
    std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
}
