//! The constants of the controllers as one hash, from which the seed of the drawn set of cases follows.
//!
//! A controller must not be fitted to the cases that judge it. So each hash has its own set of cases, and a controller
//! with changed constants is judged on another set. The hash covers the source of `evenkeel-control` without comments and
//! test files (a list of constants could miss one), and the settings that configurations and the judged methods give
//! their controllers. The hash also changes with code that holds no constant, which only means a new set.

use evenkeel_control::pool::target::{Load, Statistic};
use evenkeel_control::response;
use evenkeel_control::{Duration, placement, slots};

use super::fnv::{BASIS, fnv1a};

/// The range of set seeds that hashes give: lowest seed, and number of seeds. It lies far above the seeds that users choose.
const SEEDS: (u64, u64) = (1_000_000_000, 1_000_000_000);
/// A scenario that sets nothing of the pool, so that its pool has the defaults of configurations.
const PLAIN: &str = "[device]\nkind = \"store\"\n[tenants.one]\n[[client]]\ntenant = \"one\"\nworkload = {}\n";

/// The hash of all constants.
pub fn hash() -> u64 {
    let source = fnv1a(BASIS, env!("EVENKEEL_CONTROL_SOURCE").as_bytes());
    fnv1a(source, settings().as_bytes())
}

/// The seed of the set of cases that belongs to a hash; set `n` consists of the cases from `n` times [`super::SET`] on.
pub fn seed(hash: u64) -> u64 {
    SEEDS.0 + hash % SEEDS.1
}

/// The settings of the judged controllers and the defaults of a pool, as text to be hashed.
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

    #[test]
    fn comments_and_files_of_tests_do_not_count_and_all_else_does() {
        let plain = "const STEP: f64 = 0.5;\nfn f() {}\n";
        assert_eq!(of("//! A.\n\n/// B.\n  const STEP: f64 = 0.5;\n// C.\nfn f() {}"), of(plain));
        for other in ["const STEP: f64 = 0.50001;\nfn f() {}", "const STEP: f64 = 0.5; fn f() {}", "fn f() {}", ""] {
            assert_ne!(of(other), of(plain), "{other}");
        }
        let files =
            |place: &str, text: &str| source::hash(vec![("lib.rs".into(), plain.into()), (place.into(), text.into())]);
        for place in ["tests.rs", "a/tests.rs", "a/tests/more.rs"] {
            assert_eq!(files(place, "const A: u8 = 1;"), of(plain), "{place}");
        }
        assert_ne!(files("a.rs", ""), of(plain));
        assert_ne!(files("a.rs", ""), files("b.rs", ""));
    }

    /// The hashed text contains every constant of every controller.
    #[test]
    fn what_counts_of_a_controller_holds_its_constants() {
        let elastic = include_str!("../../../../control/src/admission/elastic/mod.rs");
        let constants = source::code(elastic).filter(|line| line.starts_with("const ")).count();
        assert!(constants >= 7, "{constants}");
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
