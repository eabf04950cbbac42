//! Moments as people write them: `02:40`, `2026-11-28T02:40:00Z`, `-2h`, `now`; and as text.
//!
//! A moment is Unix time in seconds. A zone is a function that returns by how many seconds its clocks are ahead of UTC at a
//! moment.

use crate::units::{Duration, UnitError};

const DAY_S: i64 = 86_400;
/// Days from 1970-01-01 to 9999-12-31.
const LAST_DAY: i64 = 2_932_896;

/// The zone UTC.
pub const fn utc(_: i64) -> i64 {
    0
}

/// The moment that `text` names, not later than the year 9999. A time of day is that of the last 24 hours before `now`; a date
/// without a time begins at midnight. Both are in `zone`, unless the text ends with `Z` or an offset such as `+01:00`. A
/// number of nine digits or more is Unix time.
///
/// # Errors
/// A text of another form; the message names the forms.
pub fn parse(text: &str, now: u64, zone: impl Fn(i64) -> i64) -> Result<u64, UnitError> {
    let wrong = || {
        UnitError::new(format!(
            "{text:?} is not a time; write for example 02:40, 2026-11-28T02:40, 2026-11-28T02:40:00Z, -2h or now"
        ))
    };
    let trimmed = text.trim();
    if trimmed == "now" {
        return Ok(now);
    }
    if let Some(ago) = trimmed.strip_prefix('-') {
        let ago: Duration = ago.parse().map_err(|_| wrong())?;
        return Ok(now.saturating_sub(ago.as_nanos() / 1_000_000_000));
    }
    if trimmed.len() >= 9 && trimmed.bytes().all(|byte| byte.is_ascii_digit()) {
        let moment: Option<u64> = trimmed.parse().ok();
        return moment.filter(|moment| *moment < ((LAST_DAY + 1) * DAY_S) as u64).ok_or_else(wrong);
    }
    let seconds = match date_and_time(trimmed).ok_or_else(wrong)? {
        (Some(date), time, Some(offset)) => date * DAY_S + time - offset,
        (Some(date), time, None) => at(date * DAY_S + time, &zone),
        (None, time, offset) => {
            let now = now as i64;
            let zone = |moment| offset.unwrap_or_else(|| zone(moment));
            let today = (now + zone(now)).div_euclid(DAY_S);
            let local = today * DAY_S + time;
            let same_day = at(local, zone);
            if same_day <= now {
                same_day
            } else {
                // Clocks that are put back show a time twice, of which the first may be over.
                let first = local - zone(same_day - 3 * 3_600);
                let is_over = first <= now && first + zone(first) == local;
                if is_over { first } else { at(local - DAY_S, zone) }
            }
        }
    };
    u64::try_from(seconds).map_err(|_| wrong())
}

/// The moment at which the clocks of `zone` show `local` seconds since 1970.
fn at(local: i64, zone: impl Fn(i64) -> i64) -> i64 {
    // The offset may differ at the first guess, if clocks are put forward or back in between.
    local - zone(local - zone(local))
}

/// The parts of a text: days since 1970, seconds since midnight, and seconds ahead of UTC.
fn date_and_time(text: &str) -> Option<(Option<i64>, i64, Option<i64>)> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (Some(day(date)?), time),
        None if text.contains(':') => (None, text),
        None => return Some((Some(day(text)?), 0, None)),
    };
    let (time, offset) = match (time.strip_suffix('Z'), time.rfind(['+', '-'])) {
        (Some(time), _) => (time, Some(0)),
        (None, Some(sign)) => {
            let ahead = clock_time(&time[sign + 1..])?;
            (&time[..sign], Some(if time[sign..].starts_with('-') { -ahead } else { ahead }))
        }
        (None, None) => (time, None),
    };
    Some((date, clock_time(time)?, offset))
}

/// A part of a date or time: a number of exactly so many digits within a range.
fn number(text: &str, digits: usize, range: std::ops::RangeInclusive<i64>) -> Option<i64> {
    let is_number = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| is_number && range.contains(number))
}

/// Seconds since midnight of `HH:MM` or `HH:MM:SS`.
pub(crate) fn clock_time(text: &str) -> Option<i64> {
    let mut parts = text.split(':');
    let hours = number(parts.next()?, 2, 0..=23)?;
    let minutes = number(parts.next()?, 2, 0..=59)?;
    let seconds = parts.next().map_or(Some(0), |seconds| number(seconds, 2, 0..=59))?;
    parts.next().is_none().then_some(hours * 3_600 + minutes * 60 + seconds)
}

/// Days from 1970-01-01 to `YYYY-MM-DD`, in the Gregorian calendar.
fn day(text: &str) -> Option<i64> {
    let mut parts = text.split('-');
    let year = number(parts.next()?, 4, 1970..=9999)?;
    let month = number(parts.next()?, 2, 1..=12)?;
    let day = number(parts.next()?, 2, 1..=31)?;
    let days = days_until(year, month) + day - 1;
    let exists = date_of(days) == (year, month, day);
    (parts.next().is_none() && exists).then_some(days)
}

/// Days from 1970-01-01 to the first of a month.
fn days_until(year: i64, month: i64) -> i64 {
    // Years that begin with March have the leap day at their end, and months of 153 days in five.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 - 719_468
}

/// Year, month and day of a number of days since 1970.
fn date_of(days: i64) -> (i64, i64, i64) {
    let mut year = 1970 + days / 366;
    while days_until(year + 1, 1) <= days {
        year += 1;
    }
    let month = (1..=12).rev().find(|&month| days_until(year, month) <= days).unwrap_or(1);
    (year, month, days - days_until(year, month) + 1)
}

/// Date and time of `moment` (Unix time in seconds), with the zone's offset: `2026-11-28T02:40:00Z`, `2026-11-28T03:40:00+01:00`.
pub fn text(moment: u64, zone: impl Fn(i64) -> i64) -> String {
    let ahead = zone(moment as i64);
    let sign = if ahead < 0 { '-' } else { '+' };
    let offset = match ahead.abs() / 60 {
        0 => "Z".to_owned(),
        minutes => format!("{sign}{:02}:{:02}", minutes / 60, minutes % 60),
    };
    format!("{}T{}{offset}", date(moment, |_| ahead), time(moment, |_| ahead))
}

/// The date of `moment` (Unix time in seconds) as text: `2026-11-28`.
pub fn date(moment: u64, zone: impl Fn(i64) -> i64) -> String {
    let local = (moment as i64).saturating_add(zone(moment as i64));
    let (year, month, day) = date_of(local.div_euclid(DAY_S).clamp(0, LAST_DAY));
    format!("{year:04}-{month:02}-{day:02}")
}

/// The time of day of `moment` (Unix time in seconds) as text: `02:40:00`.
pub fn time(moment: u64, zone: impl Fn(i64) -> i64) -> String {
    let second = (moment as i64).saturating_add(zone(moment as i64)).rem_euclid(DAY_S);
    format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

/// The minute of the day, 0 to 1439, that the clocks of `zone` show at `moment`, which is Unix time in seconds.
pub fn minute_of_day(moment: u64, zone: impl Fn(i64) -> i64) -> u16 {
    let second = (moment as i64 + zone(moment as i64)).rem_euclid(DAY_S);
    (second / 60) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-28T03:00:00Z.
    const NOW: u64 = 1_795_834_800;

    /// Clocks are one hour ahead, from 2026-03-29T01:00:00Z to 2026-10-25T01:00:00Z two.
    fn berlin(moment: i64) -> i64 {
        if (1_774_746_000..1_792_890_000).contains(&moment) { 7_200 } else { 3_600 }
    }

    #[test]
    fn moments_are_read_as_people_write_them() {
        for (text, expected) in [
            ("now", "2026-11-28T03:00:00Z"),
            ("-2h", "2026-11-28T01:00:00Z"),
            ("02:40", "2026-11-28T02:40:00Z"),
            ("02:40:07", "2026-11-28T02:40:07Z"),
            ("03:01", "2026-11-27T03:01:00Z"),
            ("2026-11-28", "2026-11-28T00:00:00Z"),
            ("2024-02-29T23:59", "2024-02-29T23:59:00Z"),
            ("2026-11-28 02:40", "2026-11-28T02:40:00Z"),
            ("2026-11-28T02:40:00Z", "2026-11-28T02:40:00Z"),
            ("2026-11-28T02:40:00+01:30", "2026-11-28T01:10:00Z"),
            ("1795834800", "2026-11-28T03:00:00Z"),
            ("1970-01-01", "1970-01-01T00:00:00Z"),
        ] {
            let moment = parse(text, NOW, utc).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(super::text(moment, utc), expected, "{text}");
        }
        let last = parse("253402300799", NOW, utc).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(super::text(last, utc), "9999-12-31T23:59:59Z");
        assert!(parse("253402300800", NOW, utc).is_err() && parse("99999999999999999999", NOW, utc).is_err());
        assert_eq!(date(i64::MAX as u64, utc), "9999-12-31", "from a damaged file");
        assert!(super::text(i64::MAX as u64, |_| 3_600).starts_with("9999-12-31T"), "the clock here is ahead");
        for wrong in
            ["", "2:40", "25:00", "2026-02-29", "2026-13-01", "yesterday", "-2", "2026-11-28T", "02:40:00:00", "+2h"]
        {
            let error = parse(wrong, NOW, utc).expect_err(wrong).to_string();
            assert!(error.contains("02:40"), "{error}");
        }
    }

    #[test]
    fn times_without_a_zone_are_those_of_the_clocks_here() {
        for (text, expected) in [
            ("03:40", "2026-11-28T03:40:00+01:00"),
            ("04:01", "2026-11-27T04:01:00+01:00"),
            ("2026-07-01T12:00", "2026-07-01T12:00:00+02:00"),
            ("2026-07-01T12:00Z", "2026-07-01T14:00:00+02:00"),
            // The first hour after clocks were put forward, and the last before they are put back.
            ("2026-03-29T03:00", "2026-03-29T03:00:00+02:00"),
            ("2026-10-25T01:59", "2026-10-25T01:59:00+02:00"),
            ("2026-10-25T03:00", "2026-10-25T03:00:00+01:00"),
        ] {
            let moment = parse(text, NOW, berlin).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(super::text(moment, berlin), expected, "{text}");
        }
        // As clocks are put back, 02:40 comes twice: it is over at the first 02:50, and at the second 02:10.
        for (now, expected) in [
            ("2026-10-25T02:30+02:00", "2026-10-24T02:40:00+02:00"),
            ("2026-10-25T02:50+02:00", "2026-10-25T02:40:00+02:00"),
            ("2026-10-25T02:10+01:00", "2026-10-25T02:40:00+02:00"),
            ("2026-10-25T02:50+01:00", "2026-10-25T02:40:00+01:00"),
        ] {
            let now = parse(now, NOW, berlin).unwrap_or_else(|error| panic!("{error}"));
            let moment = parse("02:40", now, berlin).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(super::text(moment, berlin), expected, "{now}");
        }
        assert_eq!(super::text(NOW, |_| -5_400), "2026-11-28T01:30:00-01:30");
        assert_eq!((minute_of_day(NOW + 119, utc), minute_of_day(NOW, |_| -14_400)), (181, 1_380));
    }
}
