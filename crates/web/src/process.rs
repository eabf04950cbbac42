//! Troubles of the process itself, of a server and of an agent: lines that its log lacks, and a certificate that expires.

use std::io;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use evenkeel_policy::figures::{counted, uptime};
use evenkeel_policy::health::{Level, Trouble};

/// Time for which the trouble about dropped log lines lasts after the last of these lines, in seconds.
const LASTS_S: u64 = 600;

/// Number of lines that the log lacks.
static LOST_LINES: AtomicU64 = AtomicU64::new(0);
/// When the last of them was lost, Unix time in seconds.
static LOST_AT_S: AtomicU64 = AtomicU64::new(0);
/// The errno with which it could not be written; 0 if stderr is read too slowly.
static LOST_ERRNO: AtomicI32 = AtomicI32::new(0);

/// Counts a line that the log lacks, because stderr is read too slowly. Does not block.
pub fn lost_a_line() {
    lost(0);
}

/// Counts a line that the log lacks, because it could not be written to stderr. Does not block.
pub fn failed_to_log(error: &io::Error) {
    lost(error.raw_os_error().unwrap_or_default());
}

fn lost(errno: i32) {
    LOST_AT_S.store(now_s(), Ordering::Relaxed);
    LOST_ERRNO.store(errno, Ordering::Relaxed);
    LOST_LINES.fetch_add(1, Ordering::Relaxed);
}

/// The troubles of this process: its TLS certificate and dropped log lines. `table`: the table of the configuration that names
/// the certificate. `doubt`: true if the certificate has expired, and a clause about its expiry.
pub fn troubles(table: &str, doubt: Option<(bool, String)>) -> Vec<Trouble> {
    let certificate = doubt.map(|(is_expired, why)| {
        let level = if is_expired { Level::Critical } else { Level::Warning };
        Trouble::new(level, "certificate", "", format!("the certificate of [{table}.tls] {why}"), "")
    });
    let (lines, last_s) = (LOST_LINES.load(Ordering::Relaxed), LOST_AT_S.load(Ordering::Relaxed));
    let log = of_log(lines, last_s, now_s(), LOST_ERRNO.load(Ordering::Relaxed));
    certificate.into_iter().chain(log).collect()
}

/// The trouble about `lines` lines that the log lacks, the last of them lost at `last_s` for the errno `errno`, or 0.
fn of_log(lines: u64, last_s: u64, now_s: u64, errno: i32) -> Option<Trouble> {
    let ago_s = now_s.saturating_sub(last_s);
    (lines > 0 && ago_s < LASTS_S).then(|| {
        let when = if ago_s == 0 { "just now".to_owned() } else { format!("{} ago", uptime(ago_s as f64)) };
        let (why, cure) = match errno {
            0 => (
                "stderr is read too slowly".to_owned(),
                "look at the program that reads stderr, such as systemd-journald or a stopped terminal, or log less: --log warn",
            ),
            errno => (
                format!("stderr cannot be written ({})", io::Error::from_raw_os_error(errno)),
                "make room on the file system of the log, or restart with a stderr that another program reads",
            ),
        };
        Trouble::warning(
            "log_lost",
            "",
            format!("the log lacks {}, the last of them lost {when}: {why}", counted(lines, "line")),
            cure,
        )
    })
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_lines_are_a_trouble_for_ten_minutes() {
        assert_eq!(of_log(0, 0, 5, 0), None);
        let trouble = of_log(12, 1_000, 1_030, 0).expect("a trouble");
        assert_eq!((trouble.level, trouble.kind.as_str()), (Level::Warning, "log_lost"));
        assert!(trouble.because.starts_with("the log lacks 12 lines, the last of them lost 30 s ago"), "{trouble:?}");
        assert!(trouble.because.ends_with("read too slowly"), "{trouble:?}");
        assert!(of_log(12, 1_000, 1_000, 0).is_some_and(|trouble| trouble.because.contains("just now")));
        assert_eq!(of_log(12, 1_000, 1_000 + LASTS_S, 0), None);
        let full = of_log(12, 1_000, 1_030, 28).expect("a trouble");
        assert!(full.because.contains("No space left") && full.cure.contains("make room"), "{full:?}");
    }

    #[test]
    fn a_certificate_that_has_expired_is_critical() {
        let level = |is_expired| troubles("agent", Some((is_expired, "expires".into())))[0].level;
        assert_eq!((level(true), level(false)), (Level::Critical, Level::Warning));
        assert!(troubles("agent", Some((true, "expired".into())))[0].because.contains("[agent.tls] expired"));
    }
}
