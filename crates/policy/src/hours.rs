//! Hours of the day in which a setting applies: `"22:00-06:00"`.

use std::fmt;
use std::str::FromStr;

use crate::moment::clock_time;
use crate::units::{UnitError, as_text};

/// Minutes of a day.
const DAY: u16 = 24 * 60;

/// A part of each day, by the clocks of the host: from one minute until before another one, which is of the next day if it is
/// earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    from: u16,
    until: u16,
}

impl Hours {
    /// True if the minute of the day, 0 to 1439, lies in these hours.
    pub const fn contains(self, minute: u16) -> bool {
        if self.from < self.until {
            self.from <= minute && minute < self.until
        } else {
            self.from <= minute || minute < self.until
        }
    }
}

/// The minute of the day of `HH:MM`.
fn minute(text: &str) -> Option<u16> {
    if text.len() != 5 {
        return None;
    }
    u16::try_from(clock_time(text)? / 60).ok()
}

impl FromStr for Hours {
    type Err = UnitError;

    fn from_str(text: &str) -> Result<Self, UnitError> {
        let read = || {
            let (from, until) = text.split_once('-')?;
            let until = until.trim();
            Some((minute(from.trim())?, if until == "24:00" { DAY } else { minute(until)? }))
        };
        match read() {
            Some((from, until)) if from != until => Ok(Self { from, until }),
            Some(_) => Err(UnitError::new(format!(
                "{text:?} begins when it ends; write for example \"22:00-06:00\", or leave the key out for all hours"
            ))),
            None => Err(UnitError::new(format!("{text:?} names no hours; write for example \"22:00-06:00\""))),
        }
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { from, until } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / 60, from % 60, until / 60, until % 60)
    }
}

as_text!(Hours, "hours of the day such as \"22:00-06:00\"", None, {
    "type": "string",
    "pattern": r"^([01][0-9]|2[0-3]):[0-5][0-9] ?- ?(([01][0-9]|2[0-3]):[0-5][0-9]|24:00)$"
});

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn wrong_hours_are_refused_with_a_cure() {
        for text in ["", "22:00", "22-06", "22:00-6:00", "24:00-06:00", "22:00-24:01", "22:00:00-06:00", "08:00-08:00"]
        {
            let error = text.parse::<Hours>().expect_err(text).to_string();
            assert!(error.contains("write for example \"22:00-06:00\""), "{error}");
        }
        assert_eq!("18:00 - 24:00".parse::<Hours>().expect("valid").to_string(), "18:00-24:00");
    }

    proptest! {
        /// Hours and the rest of the day share no minute and leave none out; they print as they are read.
        #[test]
        fn hours_and_the_other_hours_make_a_day(from in 0..DAY, until in 0..DAY) {
            prop_assume!(from != until);
            let (hours, others) = (Hours { from, until }, Hours { from: until, until: from });
            let within = (0..DAY).filter(|&minute| hours.contains(minute)).count();
            prop_assert_eq!(within, usize::from((until + DAY - from) % DAY));
            prop_assert!((0..DAY).all(|minute| hours.contains(minute) != others.contains(minute)));
            prop_assert!(hours.contains(from) && !hours.contains(until));
            prop_assert_eq!(hours.to_string().parse::<Hours>().expect("as it was written"), hours);
        }
    }
}
