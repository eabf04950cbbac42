//! `/proc/net/snmp`: TCP segments sent again.
//!
//! A delay must not cause retransmits; a count that rises with it says that it does. The count is that of the whole network
//! namespace, because the kernel keeps none for less that can be read cheaply.

use crate::error::Fault;

/// Totals since boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Segments {
    /// Segments sent, those sent again not counted.
    pub sent: u64,
    /// Segments sent again.
    pub retransmitted: u64,
}

/// Finds the two totals in the file.
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
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn arbitrary_text_does_not_panic(text in ".{0,400}") {
            let _ = parse(&text);
        }
    }
}
