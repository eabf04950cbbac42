//! Tests of the conclusions that preflight draws from evidence.

use proptest::prelude::*;

use super::*;

fn complete() -> Evidence {
    Evidence {
        symbols: parts::SYMBOLS.iter().map(|&symbol| symbol.to_owned()).collect(),
        diskstats: true,
        configfs: true,
        tracepoints: true,
        capabilities: Some(1 << 12 | 1 << 38 | 1 << 39),
        tcp_rmem_max: Some(32_768),
        tcp_early_retrans: Some(0),
        io_controller: true,
        ..Evidence::default()
    }
}

fn finding(evidence: &Evidence, part: &str) -> Finding {
    let findings = judge(evidence).findings;
    findings.into_iter().find(|finding| finding.part == part).unwrap_or_else(|| panic!("{part} is not judged"))
}

#[test]
fn with_everything_nothing_is_lost() {
    let preflight = judge(&complete());
    assert!(preflight.can_act && preflight.can_measure);
    for finding in &preflight.findings {
        assert_eq!((finding.presence, finding.lost.as_str()), (Presence::Present, ""), "{}", finding.part);
    }
}

#[test]
fn what_is_missing_says_what_is_lost_and_what_to_do() {
    let preflight = judge(&Evidence { tcp_rmem_max: Some(6 << 20), tcp_early_retrans: Some(3), ..Evidence::default() });
    assert!(!preflight.can_act && !preflight.can_measure);
    for finding in &preflight.findings {
        assert!(!finding.lost.is_empty() && !finding.cure.is_empty(), "{}", finding.part);
    }
}

#[test]
fn one_missing_part_is_enough_not_to_act() {
    for symbol in ["fq_enqueue", "htb_enqueue"] {
        let mut evidence = complete();
        evidence.symbols.remove(symbol);
        assert!(!judge(&evidence).can_act, "{symbol}");
    }
    for capabilities in [!(1 << 12), !(1 << 39 | 1 << 21)] {
        assert!(!judge(&Evidence { capabilities: Some(capabilities), ..complete() }).can_act);
    }
}

#[test]
fn departure_times_are_set_by_links_or_else_by_filters() {
    let without = |without: &[&str]| {
        let mut evidence = complete();
        evidence.symbols.retain(|symbol| !without.contains(&symbol.as_str()));
        evidence
    };
    let lost = |missing: &[&str], part: &str| finding(&without(missing), part).lost;
    assert!(lost(&["tcx_link_attach"], "tcx").contains("by filters"));
    assert!(judge(&without(&["tcx_link_attach"])).can_act && judge(&without(&["cls_bpf_classify"])).can_act);
    for (other, part) in [("cls_bpf_classify", "tcx"), ("clsact_init", "clsact")] {
        assert!(lost(&["tcx_link_attach", other], part).starts_with("no client"));
        assert!(!judge(&without(&["tcx_link_attach", other])).can_act, "{other}");
    }
    assert!(lost(&["clsact_init"], "clsact").starts_with("nothing"));
    assert!(lost(&["cls_bpf_classify"], "cls_bpf").starts_with("nothing"));
}

#[test]
fn percentiles_need_tracepoints_and_the_right_to_count_by_them() {
    assert_eq!(finding(&complete(), "perfmon").presence, Presence::Present);
    assert_eq!(finding(&Evidence { capabilities: Some(1 << 21), ..complete() }, "perfmon").presence, Presence::Present);
    for capabilities in [1 << 38, 1 << 39] {
        let evidence = Evidence { capabilities: Some(capabilities), ..complete() };
        assert_eq!(finding(&evidence, "perfmon").presence, Presence::Missing);
    }
    assert_eq!(finding(&Evidence { tracepoints: false, ..complete() }, "tracepoints").presence, Presence::Missing);
}

#[test]
fn an_installed_module_can_be_loaded() {
    let mut evidence = complete();
    evidence.symbols.remove("fq_enqueue");
    evidence.installed = installed("kernel/net/sched/sch_htb.ko.xz:\nkernel/net/sched/sch-fq.ko: kernel/lib/crc.ko\n");
    assert!(evidence.installed.contains("sch_htb"));
    let fq = finding(&evidence, "fq");
    assert_eq!((fq.presence, fq.cure.as_str()), (Presence::Loadable, "modprobe sch_fq"));
    assert!(judge(&evidence).can_act);
}

#[test]
fn devices_without_statistics_are_named() {
    let evidence = Evidence { uncounted_devices: vec!["sda".into(), "dm-0".into()], ..complete() };
    assert!(finding(&evidence, "iostats").evidence.contains("sda, dm-0"));
}

#[test]
fn symbols_and_capabilities_are_read_from_the_kernels_formats() {
    let text = b"0000000000000000 t fq_codel_enqueue\t[sch_fq_codel]\n0000000000000000 T htb_enqueue\n" as &[u8];
    assert_eq!(symbols(text).into_iter().collect::<Vec<_>>(), ["htb_enqueue"]);
    assert_eq!(capabilities("Name:\tx\nCapEff:\t0000000000001000\n"), Some(1 << 12));
    assert_eq!(capabilities(""), None);
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), text in ".{0,200}") {
        let _ = (symbols(bytes.as_slice()), installed(&text), capabilities(&text));
    }
}
