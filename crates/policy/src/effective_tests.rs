//! Tests of the rows about settings that `evenkeel serve` enforces, and of settings that neither program enforces.

use super::*;

/// A row in short: tenant, pool, setting, and rank in the order of precedence.
type Short = (Option<String>, Option<String>, String, Option<usize>);

fn rows(text: &str) -> Vec<Short> {
    let config = Config::parse(text, "test").expect("valid");
    let rows = served(&config).rows.into_iter().filter(|row| row.here == Presence::Present);
    rows.map(|row| (row.tenant, row.pool, row.setting, row.precedence.map(Precedence::rank))).collect()
}

fn row(tenant: &str, pool: &str, setting: &str, rank: usize) -> Short {
    let named = |name: &str| (name != "all").then(|| name.to_owned());
    (named(tenant), named(pool), setting.into(), (rank > 0).then_some(rank))
}

const SERVED: &str = "[pools.main]\nlimit.iops = 20_000\nlatency = { target = \"15ms\", percentile = 99 }\n\
    [pools.idle]\nlimit.iops = 7\n\
    [tenants.database]\nweight = 4\nreservation.iops = 2_000\nlimit.bytes_per_s = \"400MB\"\nthrottle = \"last\"\n\
    [tenants.backup]\nmatch = [\"volume:b*\"]\npriority = \"background\"\nlatency.target = \"9ms\"\n\
    [tenants.away]\nreservation.iops = 5\n\
    [volumes.database]\nsize = \"1MiB\"\n[volumes.b1]\nsize = \"1MiB\"\n[volumes.b2]\nsize = \"1MiB\"\n";

#[test]
fn each_setting_of_a_served_pool_and_tenant_has_a_row() {
    let expected = [
        row("all", "main", "limit 20000 IOPS", 1),
        row("all", "main", "latency p99 of reads < 15ms", 5),
        row("all", "main", "admission elastic", 0),
        row("backup", "main", "weight 1, priority background", 6),
        row("database", "main", "reservation 2000 IOPS", 2),
        row("database", "main", "limit 400MB/s", 3),
        row("database", "main", "weight 4", 6),
    ];
    assert_eq!(rows(SERVED), expected, "neither pools nor tenants without volumes");
    let throttled = &served(&Config::parse(SERVED, "test").expect("valid")).rows[1].throttled;
    assert_eq!(throttled, "requests of backup when noisy; database last");
    // A target of a tenant needs slots.
    let slots = SERVED.replace("[pools.idle]", "tuning.slots = \"needs\"\n[pools.idle]");
    assert!(rows(&slots).contains(&row("backup", "main", "latency mean of all requests < 9ms", 5)));
    let fifo = SERVED.replace("latency = {", "tuning.scheduler = \"none\"\n#").replace("latency.target", "#");
    assert_eq!(rows(&fifo).len(), 2, "without a scheduler settings of tenants have no effect");
}

#[test]
fn a_limit_is_shown_with_its_hours_and_its_rank_at_every_hour() {
    let hours = SERVED
        .replace("limit.bytes_per_s = \"400MB\"", "limit = { bytes_per_s = \"400MB\", when = \"22:00-06:00\" }")
        .replace("limit.iops = 20_000", "limit = { iops = 20_000, when = \"08:00-18:00\" }");
    let rows = rows(&hours);
    assert!(rows.contains(&row("database", "main", "limit 400MB/s at 22:00-06:00", 3)), "{rows:?}");
    assert!(rows.contains(&row("all", "main", "limit 20000 IOPS at 08:00-18:00", 1)), "{rows:?}");
    let mut config = Config::parse(&hours, "test").expect("valid");
    let before = served(&config).rows;
    config.set_time(12 * 60);
    assert_eq!(served(&config).rows, before);
    let weight = "weight_at = { weight = 9, when = \"22:00-06:00\" }\nlimit.bytes_per_s = ";
    let rows = self::rows(&SERVED.replacen("limit.bytes_per_s = ", weight, 1));
    assert!(rows.contains(&row("database", "main", "weight 4, 9 at 22:00-06:00", 6)), "{rows:?}");
}

#[test]
fn a_limit_of_a_volume_has_the_rank_of_the_pools_limit() {
    let text = "[volumes.a]\nsize = 4096\nlimit = { iops = 5, when = \"22:00-06:00\" }\n";
    assert!(rows(text).contains(&row("all", "main", "limit 5 IOPS at 22:00-06:00 of volume a", 1)), "{:?}", rows(text));
}

#[test]
fn clients_bring_their_tenant_to_every_pool() {
    let text = "[tenants.web]\nmatch = [\"address:10.0.0.0/8\"]\nguarantee.read.bytes_per_s = \"5MB\"\n[volumes.a]\nsize = \"1MiB\"\n";
    assert!(rows(text).contains(&row("web", "main", "guarantee read 5MB/s", 4)));
    let two = format!("{text}[pools.fast]\n[volumes.b]\npool = \"fast\"\nsize = \"1MiB\"\n");
    assert!(rows(&two).contains(&row("web", "all", "guarantee read 5MB/s", 4)));
    assert_eq!(rows(&two).iter().filter(|(tenant, ..)| tenant.as_deref() == Some("default")).count(), 2);
}

#[test]
fn a_tenant_that_nothing_belongs_to_is_missing_as_a_whole() {
    let text = "[tenants.database]\nreservation.iops = 9\nweight = 4\n[tenants.b]\nmatch = [\"volume:*1\"]\n\
        [tenants.c]\nmatch = [\"volume:x\"]\n[tenants.d]\nmatch = [\"device:sda\"]\n\
        [tenants.a]\nmatch = [\"volume:db1\"]\n\
        [volumes.db1]\nsize = 4096\n[volumes.db2]\nsize = 4096\n";
    let report = crate::check::check(text, "t");
    let serve = served(&report.config);
    let absent = serve.rows.iter().filter(|row| row.here == Presence::Missing);
    let absent: Vec<String> =
        absent.map(|row| format!("{} {}", row.tenant.as_deref().unwrap_or_default(), row.setting)).collect();
    assert_eq!(absent, ["b weight 1", "c weight 1", "database reservation 9 IOPS", "database weight 4"]);
    let of_guard = ["tenants.database.reservation", "tenants.d.limit"].map(note).into();
    let missing = unenforced((&serve, report.elsewhere), (&Enforced::default(), of_guard));
    let words = |key: &str| {
        let of_key = missing.iter().find(|missing| missing.why.key == key).expect(key);
        (of_key.why.message.as_str(), of_key.lost.as_str(), of_key.cure.as_str())
    };
    let cure = "write tenant = \"database\" in [volumes.db2], or match = [\"volume:db2\"] here, or remove the tenant";
    let lost = "its settings apply to no request";
    assert_eq!(words("tenants.database"), ("no volume and no client belongs to this tenant", lost, cure));
    assert!(
        words("tenants.b").0.starts_with("volume:*1 fits volume \"db1\", which belongs to tenant \"a\" by another")
    );
    assert!(words("tenants.c").0.starts_with("no volume fits volume:x, and"), "{missing:?}");
    assert_eq!(words("tenants.d.limit").0, "elsewhere; no volume here belongs to the tenant");
    assert!(!missing.iter().any(|missing| missing.why.key.starts_with("tenants.database.")), "{missing:?}");
    let checked = Checked { rows: serve.rows, missing, ..Checked::default() };
    assert_eq!(checked.unlisted(), 2, "two notes on the tenant of a device");
}

#[test]
fn volumes_in_memory_have_neither_a_target_nor_a_budget() {
    let memory = SERVED.replace("size =", "backend = \"memory\"\nsize =");
    let rows = rows(&memory);
    assert!(rows.contains(&row("all", "main", "limit 20000 IOPS", 1)), "{rows:?}");
    assert!(!rows.iter().any(|(tenant, _, setting, _)| tenant.is_none() && !setting.starts_with("limit")), "{rows:?}");
    let warnings = crate::check::check(&memory, "t").warnings;
    assert!(warnings.iter().any(|warning| warning.message.contains("in memory, where no latency is controlled")));
}

fn note(key: &str) -> Problem {
    Problem { origin: "test".into(), position: None, key: key.into(), message: "elsewhere".into() }
}

#[test]
fn what_one_program_leaves_to_the_other_is_missing_if_that_does_nothing() {
    let serve = served(&Config::parse(SERVED, "test").expect("valid"));
    let mut guard = Enforced::default();
    guard.push("away", Row::of_pool("vg1", Enforcement::Packets, None, String::new()));
    let of_guard = [
        "pools.main",
        "pools.main.limit",
        "pools.idle",
        "pools.\"main.b\"",
        "tenants.database.limit",
        "tenants.no.limit",
    ];
    let of_serve = ["pools.vg1.devices", "pools.idle.devices", "tenants.away.match", "tenants.no.match"];
    let missing = unenforced((&serve, of_serve.map(note).into()), (&guard, of_guard.map(note).into()));
    let keys: Vec<&str> = missing.iter().map(|missing| missing.why.key.as_str()).collect();
    assert_eq!(keys, ["pools.idle", "pools.\"main.b\"", "tenants.no.limit", "tenants.no.match"]);
    assert_eq!(missing[2].lost, "requests beyond the limit are not throttled");
    assert_eq!(missing[0].lost, "no setting of this table is enforced");
    assert!(missing.iter().all(|missing| missing.here == Presence::Missing));
}

#[test]
fn precedence_is_one_list_which_the_documentation_has() {
    assert!(Precedence::ALL.is_sorted());
    assert_eq!(Precedence::Weight.winner(Precedence::Reservation), "reservation");
    let words = Precedence::in_words();
    assert!(
        words.starts_with("1 pool limit, 2 reservation, 3 tenant limit (never below its reservation), 4 "),
        "{words}"
    );
    let page = include_str!("../../../docs/reference/config.md");
    assert!(page.contains(&words), "docs/reference/config.md lacks {words:?}");
}

#[test]
fn long_lists_are_cut() {
    assert_eq!(listed(&["a", "b", "c"]), "a, b, c");
    assert_eq!(listed(&["a", "b", "c", "d", "e"]), "a, b, c and 2 more");
}
