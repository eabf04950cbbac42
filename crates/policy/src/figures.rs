//! Formats figures for people in few characters, and aligns tables.

use std::fmt::Write as _;

/// A count or rate as text of at most six characters: `0`, `3.2`, `840`, `12.5k`, `1.20M`.
pub fn count(value: f64) -> String {
    match value {
        v if v < 0.05 => "0".into(),
        v if v < 9.95 => format!("{v:.1}"),
        v if v < 9_999.5 => format!("{v:.0}"),
        v if v < 999_950.0 => format!("{:.1}k", v / 1e3),
        v if v < 9_995_000.0 => format!("{:.2}M", v / 1e6),
        v => format!("{:.0}M", v / 1e6),
    }
}

/// A figure as text for a sentence, with three significant digits; larger numbers are rounded to whole ones: `0`, `0.25`,
/// `12.5`, `10`, `346`, `20000`.
pub fn three(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        // Not the sign of a negative zero.
        return format!("{:.0}", value + 0.0);
    }
    let shift = 10f64.powi(2 - value.abs().log10().floor() as i32);
    let decimals = (shift.log10().round() as i32).clamp(0, 3) as usize;
    let text = format!("{:.decimals$}", (value * shift).round() / shift);
    let text = if decimals == 0 { &text } else { text.trim_end_matches('0').trim_end_matches('.') };
    // A negative value that rounds to nothing.
    if text == "-0" { "0".into() } else { text.to_owned() }
}

/// A figure like [`three`], with a decimal prefix from 100,000 on: `12500`, `133 M`.
pub fn large(value: f64) -> String {
    match value {
        v if v < 99_950.0 || !v.is_finite() => three(v),
        v if v < 999_500.0 => format!("{} k", three(v / 1e3)),
        v if v < 999.5e6 => format!("{} M", three(v / 1e6)),
        v if v < 999.5e9 => format!("{} G", three(v / 1e9)),
        _ => "over 999 G".into(),
    }
}

/// A duration, given in milliseconds, as text for a sentence: `12.5 ms`, `12.5 s`, `20 min`, `3.5 h`, `over 1 day`.
pub fn milliseconds(value: f64) -> String {
    match value / 1e3 {
        s if s < 9.995 => format!("{} ms", three(value)),
        s if s < 599.5 => format!("{} s", three(s)),
        s if s < 7_170.0 => format!("{} min", three(s / 60.0)),
        s if s <= 86_400.0 => format!("{} h", three(s / 3_600.0)),
        _ => "over 1 day".into(),
    }
}

/// A number with the name of the counted thing, in the plural where needed: `1 slot`, `64 slots`, `2 addresses`.
pub fn counted(number: u64, thing: &str) -> String {
    let ending = match number {
        1 => "",
        _ if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {thing}{ending}")
}

/// A mean number, to three digits, with the name of the counted thing: `1 slot`, `3.8 slots`.
pub fn counted_figure(number: f64, thing: &str) -> String {
    let number = large(number);
    format!("{number} {thing}{}", if number == "1" { "" } else { "s" })
}

/// Bytes per second as a text in MB/s (without the unit) of at most six characters.
pub fn megabytes(bytes_per_s: f64) -> String {
    match bytes_per_s / 1e6 {
        v if v < 0.005 => "0".into(),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v => format!("{v:.0}"),
    }
}

/// Milliseconds as text (without the unit), to three digits and of at most six characters.
pub fn ms(value: f64) -> String {
    match value {
        v if v < 0.0005 => "0".into(),
        v if v < 0.9995 => format!("{v:.3}"),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 99_999.5 => format!("{v:.0}"),
        v => format!("{:.0}s", v / 1e3),
    }
}

/// Milliseconds as text (without the unit), as they are written in a setting: `20`, `0.5`.
pub fn short(ms: f64) -> String {
    format!("{}", (ms * 1e3).round() / 1e3)
}

/// A throughput as text with a decimal unit such as MB/s.
pub fn bytes_per_s(rate: f64) -> String {
    match rate {
        rate if rate < 999.5 => format!("{} B/s", three(rate)),
        rate if rate < 999_500.0 => format!("{} kB/s", three(rate / 1e3)),
        rate if rate < 9.995e9 => format!("{} MB/s", three(rate / 1e6)),
        rate => format!("{}B/s", large(rate)),
    }
}

/// A number of bytes, such as a budget, as text with a binary unit such as KiB.
pub fn bytes(value: u64) -> String {
    match value {
        v if v < 1 << 10 => format!("{v} B"),
        v if v < 1 << 20 => format!("{} KiB", v >> 10),
        v if v < 10 << 20 => format!("{:.1} MiB", v as f64 / f64::from(1 << 20)),
        v if v < 1 << 30 => format!("{} MiB", v >> 20),
        v if v < 1 << 40 => format!("{:.1} GiB", v as f64 / f64::from(1 << 30)),
        v if v < 1 << 50 => format!("{:.1} TiB", v as f64 / (1u64 << 40) as f64),
        _ => "over 1024 TiB".into(),
    }
}

/// A running time, given in seconds, as text: `42 s`, `3 min`, `5 h 12 min`, `2 d 3 h`.
pub fn uptime(seconds: f64) -> String {
    let minutes = (seconds / 60.0) as u64;
    match minutes {
        0 | 1 => format!("{seconds:.0} s"),
        2..60 => format!("{minutes} min"),
        60..1440 => format!("{} h {} min", minutes / 60, minutes % 60),
        _ => format!("{} d {} h", minutes / 1440, minutes % 1440 / 60),
    }
}

/// A limit or reservation in words: IOPS, MB/s, both or none.
pub fn rates(iops: Option<u64>, bytes_per_s: Option<u64>) -> String {
    let iops = iops.map(|iops| format!("{} IOPS", count(iops as f64)));
    let bytes = bytes_per_s.map(|rate| format!("{} MB/s", megabytes(rate as f64)));
    match (iops, bytes) {
        (None, None) => "none".into(),
        (Some(one), None) | (None, Some(one)) => one,
        (Some(iops), Some(bytes)) => format!("{iops}, {bytes}"),
    }
}

/// A table as text, with columns as wide as their widest cell. The first `left` columns are aligned to the left, and cut if a
/// line would be longer than `most` characters; further columns are aligned to the right.
pub fn aligned(table: &[Vec<String>], left: usize, most: usize) -> String {
    let columns = table.first().map_or(0, Vec::len);
    let width = |cell: &String| cell.chars().count();
    let mut widths: Vec<usize> =
        (0..columns).map(|column| table.iter().map(|row| width(&row[column])).max().unwrap_or(0)).collect();
    // From the widest, as much as is too much, but no column below the width of a short word.
    while widths.iter().sum::<usize>() + 2 * columns.saturating_sub(1) > most {
        let widest = widths[..left].iter_mut().max().filter(|width| **width > 8);
        let Some(widest) = widest else { break };
        *widest -= 1;
    }
    let mut out = String::new();
    for row in table {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let gap = if column == 0 { "" } else { "  " };
            let _ = match column < left {
                true => write!(line, "{gap}{:<width$}", cut(cell, width)),
                false => write!(line, "{gap}{cell:>width$}"),
            };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

fn cut(text: &str, width: usize) -> String {
    match text.chars().count() > width {
        true => text.chars().take(width - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_the_terminal() {
        let long =
            "{ kind = \"slowfast\", repairs = \"none\", tradeoff_mib_per_s_per_ms = 1.0, target_max = \"50ms\" }";
        let row = |first: &str| {
            let figures = std::iter::repeat_n("123456", 6);
            [first, "light"].into_iter().chain(figures).map(str::to_owned).collect::<Vec<_>>()
        };
        let table = [row("admission"), row(long), row("none")];
        let text = aligned(&table, 2, 100);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(widths, [100; 3], "{text}");
        assert!(text.contains('…') && text.lines().last().unwrap().starts_with("none  "));
    }

    #[test]
    fn a_figure_of_a_sentence_has_three_digits() {
        let values = [0.0, 0.0004, 0.25, 0.9996, 1.0, 9.996, 12.54, 345.6, 1999.0, 19_962.0, -3.456];
        let texts = ["0", "0", "0.25", "1", "1", "10", "12.5", "346", "2000", "20000", "-3.46"];
        assert_eq!(values.map(three), texts);
        assert_eq!([-0.0, -0.0004, -1e-9, -0.0006].map(three), ["0", "0", "0", "-0.001"]);
        assert_eq!([0, 1, 2].map(|number| counted(number, "slot")), ["0 slots", "1 slot", "2 slots"]);
        let values = [99_900.0, 133_332.0, 999_600.0, 133_332_176.0, 5e9, 1e15, f64::INFINITY];
        assert_eq!(values.map(large), ["99900", "133 k", "1 M", "133 M", "5 G", "over 999 G", "inf"]);
        let values = [12.48, 9_990.0, 9_999.0, 599_400.0, 600_000.0, 7.2e6, 86.4e6, 86.5e6];
        let texts = ["12.5 ms", "9990 ms", "10 s", "599 s", "10 min", "2 h", "24 h", "over 1 day"];
        assert_eq!(values.map(milliseconds), texts);
        let values = [0.0, 20_480.0, 133_332_176.0, 9.99e9, 12.34e9, 1e15];
        let texts = ["0 B/s", "20.5 kB/s", "133 MB/s", "9990 MB/s", "12.3 GB/s", "over 999 GB/s"];
        assert_eq!(values.map(bytes_per_s), texts);
        assert_eq!([1, 2].map(|number| counted(number, "address")), ["1 address", "2 addresses"]);
        assert_eq!([0.999_9, 3.84].map(|number| counted_figure(number, "slot")), ["1 slot", "3.84 slots"]);
    }

    #[test]
    fn three_digits_fit_their_columns() {
        for (value, text) in [
            (0.0, "0"),
            (0.04, "0"),
            (9.94, "9.9"),
            (9.96, "10"),
            (9_999.0, "9999"),
            (9_999.6, "10.0k"),
            (999_949.0, "999.9k"),
            (999_960.0, "1.00M"),
            (12e6, "12M"),
        ] {
            assert_eq!(count(value), text);
        }
        assert_eq!([0.0, 1e4, 9.994e6, 9.996e6, 99.96e6].map(megabytes), ["0", "0.01", "9.99", "10.0", "100"]);
        assert_eq!(
            [0.0004, 0.0123, 0.9996, 12.34, 345.6, 99_999.6].map(ms),
            ["0", "0.012", "1.00", "12.3", "346", "100s"]
        );
        assert_eq!(
            [512, 65_536, 3 << 19, 20 << 20, 3 << 29, 3 << 39, u64::MAX].map(bytes),
            ["512 B", "64 KiB", "1.5 MiB", "20 MiB", "1.5 GiB", "1.5 TiB", "over 1024 TiB"]
        );
        assert_eq!(
            [59.0, 119.0, 120.0, 18_720.0, 183_600.0].map(uptime),
            ["59 s", "119 s", "2 min", "5 h 12 min", "2 d 3 h"]
        );
    }
}
