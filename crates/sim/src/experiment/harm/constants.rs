//! The constants of the controllers as one number: which set of cases is drawn follows from it.
//!
//! A controller must not be fitted to the cases that judge it. So a set belongs to a hash, and a controller with other
//! constants is judged on another set. The hash is made of the source of `evenkeel-control` without its tests, comments and
//! white space, because a list of constants could miss one, and of the settings that configurations and the judged methods
//! give their controllers. It also changes with what is no constant; that costs a set, not the truth.

use evenkeel_control::pool::goal::{Load, Statistic};
use evenkeel_control::response;
use evenkeel_control::{Duration, placement, slots};

use super::fnv::{BASIS, fnv1a};

/// The least seed that follows from a hash, and how many there are: far above what people choose.
const SEEDS: (u64, u64) = (1_000_000_000, 1_000_000_000);
/// A scenario without any setting: its pool has the defaults of configurations.
const PLAIN: &str = "[device]\nkind = \"store\"\n[tenants.one]\n[[client]]\ntenant = \"one\"\nworkload = {}\n";

/// The hash of all constants.
pub fn hash() -> u64 {
    let source = fnv1a(BASIS, env!("EVENKEEL_CONTROL_SOURCE").as_bytes());
    fnv1a(source, settings().as_bytes())
}

/// The seed of the set that belongs to a hash.
pub fn seed(hash: u64) -> u64 {
    SEEDS.0 + hash % SEEDS.1
}

/// The settings of the judged controllers, as text.
fn settings() -> String {
    let time = Duration::from_secs(1);
    let setup = super::setup(PLAIN, time, time).unwrap_or_else(|why| panic!("{why}"));
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        super::methods()[0],
        setup.pool,
        setup.tenants[0].qos,
        response::Config::adaptive(time),
        placement::Config::default(),
        (slots::Config::NEEDS, Load::Writes, Statistic::Mean),
    )
}

#[cfg(test)]
mod tests {
    use super::super::source;
    use super::*;

    fn of(text: &str) -> u64 {
        source::hash(vec![("lib.rs".into(), text.into())])
    }

    const PLAINLY: &str = "const STEP: f64 = 0.5;\nfn f<'a>(x: &'a str) -> char { g(x, '\"') }\n";

    #[test]
    fn what_is_no_code_does_not_count() {
        for same in [
            "// STEP\nconst STEP : f64=0.5; /* a /* nested */ one */\n\
             fn f<'a>(\n    x: &'a str,\n) -> char {\n    g(x, '\"',)\n}",
            "const STEP: f64 = 0.5;\nfn f<'a>(x: &'a str) -> char { g(x, '\"') }\n\
             #[cfg(test)]\nmod tests { const STEP: u8 = 1; }",
            "#[cfg(test)]\nfn g() -> [u8; 2] { [1, 2] }\n\
             const STEP: f64 = 0.5;\nfn f<'a>(x: &'a str) -> char { g(x, '\"') }",
        ] {
            assert_eq!(of(same), of(PLAINLY), "{same}");
        }
    }

    #[test]
    fn every_constant_counts() {
        for (from, to) in
            [("0.5", "0.50001"), ("'\"'", "'\\''"), ("f64", "f32"), ("x, ", ""), ("const STEP", "constSTEP")]
        {
            let other = PLAINLY.replacen(from, to, 1);
            assert_ne!(of(&other), of(PLAINLY), "{other}");
        }
        assert_ne!(of("f(\"a // b\")"), of("f(\"a // c\")"), "a string is no comment");
        assert_ne!(of("f(r#\"a \" b\"#, 1)"), of("f(r#\"a \" b\"#, 2)"), "a raw string ends where it ends");
        assert_ne!(of("#[cfg(test)] mod tests; const A: u8 = 1;"), of("#[cfg(test)] mod tests; const A: u8 = 2;"));
    }

    #[test]
    fn files_of_tests_do_not_count_and_all_others_do() {
        let files = |test: &str, other: &str| {
            let files = [
                ("a/mod.rs", "#[cfg(test)]\nmod tests;\nmod b;"),
                ("a/tests.rs", test),
                ("a/tests/more.rs", test),
                ("a/b.rs", "#[cfg(test)]\npub(crate) mod inner;"),
                ("a/b/inner.rs", test),
                ("tests.rs", other),
            ];
            source::hash(files.map(|(path, text)| (path.into(), text.into())).to_vec())
        };
        assert_eq!(files("const A: u8 = 1;", ""), files("const A: u8 = 2;", ""));
        assert_ne!(files("", "const A: u8 = 1;"), files("", "const A: u8 = 2;"));
    }

    /// The files that are hashed hold every controller: a constant of each is found in what counts of them.
    #[test]
    fn what_counts_of_a_controller_holds_its_constants() {
        let elastic = include_str!("../../../../control/src/admission/elastic/mod.rs");
        let essence = source::essence(elastic).text;
        let constants = elastic.lines().filter(|line| line.trim_start().starts_with("const ")).count();
        assert!(constants >= 8 && essence.matches("const ").count() >= constants, "{constants}");
        assert!(!essence.contains("//"), "no comments");
    }

    #[test]
    fn the_settings_hold_those_of_every_controller_and_make_the_seed() {
        let settings = settings();
        for part in ["Elastic", "base_cost", "reservation", "interval", "Waits", "Needs"] {
            assert!(settings.contains(part), "{part}: {settings}");
        }
        assert_eq!(hash(), hash());
        assert!((SEEDS.0..SEEDS.0 + SEEDS.1).contains(&seed(hash())));
        assert_ne!(seed(hash()), seed(hash() ^ 1));
    }
}
