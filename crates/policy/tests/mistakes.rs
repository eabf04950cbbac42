//! Tests of files with several mistakes: all are reported at once, each once, without errors that only follow from another
//! mistake.

use evenkeel_policy::check::{check, check_file};

fn errors(text: &str) -> Vec<String> {
    check(text, "t").errors.iter().map(ToString::to_string).collect()
}

#[test]
fn a_wrong_value_of_a_needed_key_hides_no_other() {
    let text = "[tenants.db]\nweight = -4\nlimit = { iops = -1 }\nreservation = { bytes_per_s = \"-5MB\" }\n\
        [pools.main]\nlatency = { target = \"-20ms\" }\n[pools.slow]\nlatency = {}\n[volumes.db]\nsize = \"-1GiB\"\n\
        [server]\nworkers = -1\nmax_connections = -5\n";
    let found = check(text, "t").errors;
    let lines: Vec<usize> = found.iter().map(|problem| problem.position.expect("a place").0).collect();
    assert_eq!(lines, [2, 3, 4, 6, 8, 10, 12, 13], "{found:#?}");
}

#[test]
fn a_key_that_cannot_be_read_causes_no_second_error() {
    for (text, only) in [
        ("[volumes.a]\nbackend = \"memory\"\nsize = \"1.5\"\n", "t:3:8: volumes.a.size: "),
        ("[volumes.a]\nbackend = \"flie\"\nconnections = 4\n", "t:2:11: volumes.a.backend: "),
        ("[server]\ntls = true\n[volumes.a]\nsize = 4096\ntls = \"tcp\"\n", "t:2:7: server.tls: "),
        ("[tenants.db]\nweight = 4\n[tenants.db]\nweight = 5\n", "t:3:10: [tenants.db] is in line 1 already"),
        ("[volumes.db]\nsize = \"10G\n", "t:2:12: this text has no closing quote"),
    ] {
        let errors = errors(text);
        assert!(errors.len() == 1 && errors[0].starts_with(only), "{text}: {errors:#?}");
    }
    let report = check("[server]\nlisten = [\"0.0.0.0:1\"]\ntls = true\n", "t");
    assert_eq!(report.warnings, [], "there may be TLS");
}

#[test]
fn each_wrong_entry_of_a_list_is_named_at_its_place() {
    let text = "[server]\nlisten = [\"localhost:1\", \"127.0.0.1:2\", \":3\"]\n\
        [tenants.a]\nmatch = [\"vol:x\", \"volume:y\", \"uid:z\"]\n";
    let expected = [
        "t:2:11: server.listen: \"localhost:1\" is not an address with port; write",
        "t:2:41: server.listen: \":3\" is not an address with port; write",
        "t:4:10: tenants.a.match: \"vol:x\" names neither clients nor volumes",
        "t:4:31: tenants.a.match: \"uid:z\" is not a user",
    ];
    let report = check(text, "t");
    assert_eq!(report.errors.len(), expected.len(), "{:#?}", report.errors);
    for (problem, expected) in report.errors.iter().zip(expected) {
        assert!(problem.to_string().starts_with(expected), "{problem} instead of {expected}");
    }
    assert_eq!((report.config.server.listen.len(), report.config.tenants["a"].matches.len()), (1, 1));
}

#[test]
fn addresses_of_which_one_includes_the_other_are_errors() {
    for (listen, status, expected) in [
        (
            "\"0.0.0.0:5\", \"127.0.0.1:5\"",
            "off",
            &["t:2:1: server.listen: 0.0.0.0:5 includes 127.0.0.1:5; remove one"][..],
        ),
        ("\"[::1]:5\", \"[::]:5\"", "off", &["t:2:1: server.listen: [::]:5 includes [::1]:5; remove one"]),
        (
            "\"0.0.0.0:5\"",
            "127.0.0.1:5",
            &[
                "t:3:1: server.status: 0.0.0.0:5 already serves NBD, and 127.0.0.1:5 has the same port; use another port",
            ],
        ),
        ("\"0.0.0.0:0\", \"127.0.0.1:0\", \"[::1]:5\", \"127.0.0.1:5\"", "off", &[]),
    ] {
        assert_eq!(errors(&format!("[server]\nlisten = [{listen}]\nstatus = \"{status}\"\n")), expected);
    }
}

#[test]
fn a_name_without_a_letter_in_common_is_not_what_was_meant() {
    let errors = errors("[tenants.a]\n[volumes.v]\nsize = 4096\ntenant = \"c\"\n");
    assert_eq!(errors, ["t:4:1: volumes.v.tenant: there is no tenant \"c\"; known: a, default"]);
}

#[test]
fn a_file_that_is_no_text_is_probably_another_one() {
    let folder = crate::folder::Folder::new();
    let errors = check_file(&folder.file("e.toml", [0x66, 0xff])).errors;
    assert!(errors[0].message == "is not text in UTF-8; is this the right file?", "{errors:?}");
}
