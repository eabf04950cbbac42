//! `/proc/net/snmp`: TCP segments sent again.
//!
//! Delays of packets must not cause retransmits; a count that rises while packets are delayed indicates that they do. The
//! count is that of the whole network namespace, because the kernel has no finer count that is cheap to read.

use crate::error::Fault;

/// Totals of TCP segments of this network namespace since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Segments sent, without retransmits.
    pub sent: u64,
    /// Segments retransmitted.
    pub retransmitted: u64,
}

/// Finds the totals of sent and retransmitted segments in the text of `/proc/net/snmp`.
///
/// # Errors
/// When the file has no pair of `Tcp:` lines with these totals.
pub fn parse(text: &str) -> Result<Segments, Fault> {
    let mut lines = text.lines().enumerate().filter_map(|(index, line)| Some((index + 1, line.strip_prefix("Tcp:")?)));
    let (Some((_, names)), Some((line, values))) = (lines.next(), lines.next()) else {
        return Err(Fault::new(text.lines().count().max(1), "ends without two lines that begin with Tcp:"));
    };
    let value = |wanted: &str| {
        let place = names.split_whitespace().position(|name| name == wanted);
        let value = place.and_then(|place| values.split_whitespace().nth(place));
        value.and_then(|value| value.parse().ok()).ok_or_else(|| Fault::new(line, format!("has no count {wanted}")))
    };
    Ok(Segments { sent: value("OutSegs")?, retransmitted: value("RetransSegs")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../tests/fixtures/snmp");

    #[test]
    fn finds_the_totals_by_name() {
        assert_eq!(parse(TEXT), Ok(Segments { sent: 987_654, retransmitted: 321 }));
    }

    #[test]
    fn says_what_is_missing() {
        assert_eq!(parse("Ip: 1\n").expect_err("no Tcp").line, 1);
        let fault = parse("Tcp: OutSegs\nTcp: 7\n").expect_err("no count");
        assert_eq!((fault.line, fault.problem.as_str()), (2, "has no count RetransSegs"));
    }
}
