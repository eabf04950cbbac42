//! Methods that the packet-delay paper tried first, compared with packet delay, with twelve writers and a reader: HTB rate
//! limits on packets from the iSCSI target, and policing of packets to it.

use anyhow::{Context, Result, ensure};

use super::holding::Holding;
use super::observe::beside_writers;
use super::stage::{Segments, Server, address};
use crate::check::figures::Figures;
use crate::check::steps::Plan;
use crate::machine::guest::tool;

/// Numbers of the throttled hosts.
const HELD: [usize; 3] = [2, 3, 4];
/// Constant delays in a full run, in microseconds.
const DELAYS_US: [u64; 4] = [0, 2_000, 4_500, 9_500];
/// Constant delays in a short run, in microseconds.
const SHORT_DELAYS_US: [u64; 3] = [0, 4_500, 9_500];
/// HTB limits on all packets to the writers together, in kilobytes per second: the device's rate, and the rate of the target's
/// acknowledgements and responses to the writers.
const LIMITED: [u32; 2] = [18_000, 100];
/// Policing limits on packets from each host of writers, in kilobytes per second: two thirds of the host's rate without a
/// limit, and nearly the whole rate.
const POLICED: [u32; 2] = [4_000, 5_500];
/// Bytes that a policer passes in a burst: a few of the largest packets.
const BURST: &str = "256k";

/// A method of throttling the twelve writers, with its results.
struct Row {
    name: String,
    read_ms: f64,
    written: f64,
    segments: Segments,
    drops: u64,
}

impl Row {
    fn measure(plan: &Plan, name: String, drops: impl FnOnce() -> Result<u64>) -> Result<Self> {
        let before = Segments::count()?;
        let (read_ms, written) = beside_writers(Server::Lio, plan.either(2, 3))?;
        let row = Self { name, read_ms, written, segments: before.since_start()?, drops: drops()? };
        println!(
            "lab: {}: reads {:.1} ms, writes {:.1} MB/s, {}, {} drops",
            row.name, row.read_ms, row.written, row.segments, row.drops
        );
        Ok(row)
    }
}

fn tc(arguments: &str) -> Result<String> {
    tool("tc", &arguments.split(' ').collect::<Vec<_>>())
}

fn delayed(plan: &Plan, delay_us: u64) -> Result<Row> {
    let name = format!("delay of {:.1} ms", delay_us as f64 / 1e3);
    if delay_us == 0 {
        return Row::measure(plan, name, || Ok(0));
    }
    let holding = Holding::start(&plan.binary, &HELD, delay_us, "acknowledgements", &[])?;
    let row = Row::measure(plan, name, || Ok(0))?;
    Ok(Row { drops: holding.stop()?, ..row })
}

/// Measures HTB with all packets to the throttled hosts in one class of the rate `kbytes_per_s`.
fn limited(plan: &Plan, kbytes_per_s: u32) -> Result<Row> {
    tc("qdisc add dev br0 root handle 1: htb default 1")?;
    let measured = limit(kbytes_per_s).and_then(|()| {
        Row::measure(plan, format!("HTB, {kbytes_per_s} kB/s to the writers"), || {
            dropped(&tc("-s class show dev br0")?)
        })
    });
    tc("qdisc del dev br0 root")?;
    measured
}

fn limit(kbytes_per_s: u32) -> Result<()> {
    tc("class add dev br0 parent 1: classid 1:1 htb rate 10gbit")?;
    tc(&format!("class add dev br0 parent 1: classid 1:2 htb rate {kbytes_per_s}kbps burst 64k"))?;
    for host in HELD {
        tc(&format!(
            "filter add dev br0 parent 1: protocol ip prio 1 u32 match ip dst {}/32 flowid 1:2",
            address(host)
        ))?;
    }
    Ok(())
}

/// Measures policing of the packets from each throttled host to the rate `kbytes_per_s`.
fn policed(plan: &Plan, kbytes_per_s: u32) -> Result<Row> {
    for host in HELD {
        tc(&format!("qdisc add dev v{host} handle ffff: ingress"))?;
    }
    let measured = police(kbytes_per_s).and_then(|()| {
        Row::measure(plan, format!("policing, {kbytes_per_s} kB/s from each host"), || {
            HELD.iter()
                .try_fold(0, |sum, host| Ok(sum + dropped(&tc(&format!("-s filter show dev v{host} ingress"))?)?))
        })
    });
    for host in HELD {
        tc(&format!("qdisc del dev v{host} ingress"))?;
    }
    measured
}

fn police(kbytes_per_s: u32) -> Result<()> {
    for host in HELD {
        tc(&format!(
            "filter add dev v{host} parent ffff: protocol all matchall action police rate {kbytes_per_s}kbps burst \
             {BURST} mtu 128k drop"
        ))?;
    }
    Ok(())
}

/// Sum of all `dropped N` in the output of `tc -s`.
fn dropped(text: &str) -> Result<u64> {
    let mut words = text.split(|c: char| c.is_whitespace() || "(),".contains(c)).filter(|w| !w.is_empty());
    let (mut sum, mut found) = (0, false);
    while let Some(word) = words.next() {
        if word == "dropped" {
            found = true;
            sum += words.next().and_then(|n| n.parse::<u64>().ok()).context("a number after `dropped`")?;
        }
    }
    ensure!(found, "no count of drops in {text:?}");
    Ok(sum)
}

/// The writers' throughput under the delay with which reads have the mean latency `read_ms`, interpolated between two measured
/// delays; `None` if `read_ms` is outside of the measured range.
fn written_at(delays: &[Row], read_ms: f64) -> Option<f64> {
    let mut pairs = delays.windows(2);
    let pair = pairs.find(|p| (p[1].read_ms..=p[0].read_ms).contains(&read_ms))?;
    let part = (read_ms - pair[1].read_ms) / (pair[0].read_ms - pair[1].read_ms).max(f64::MIN_POSITIVE);
    Some(pair[1].written + part * (pair[0].written - pair[1].written))
}

/// Measures all methods in turn.
pub(super) fn compare(plan: &Plan, figures: &mut Figures) -> Result<String> {
    /// For each limit of [`POLICED`]: name of the figure, and the fewest packets that policing must drop. With nearly the whole
    /// rate a few seconds may pass without a loss.
    const LOST: [(&str, f64); 2] = [("lost_by_policing", 1.0), ("lost_by_policing_a_little", 0.0)];
    let delays = plan.either(&SHORT_DELAYS_US[..], &DELAYS_US);
    let delays = delays.iter().map(|&delay_us| delayed(plan, delay_us)).collect::<Result<Vec<_>>>()?;
    let rates = plan.either(1, 2);
    let htb = LIMITED[..rates].iter().map(|&rate| limited(plan, rate)).collect::<Result<Vec<_>>>()?;
    let policing = POLICED[..rates].iter().map(|&rate| policed(plan, rate)).collect::<Result<Vec<_>>>()?;
    let mut detail = Vec::new();
    for row in &policing {
        let equal = written_at(&delays, row.read_ms)
            .map_or_else(|| "no measured delay gives that".into(), |w| format!("delay leaves {w:.1} MB/s there"));
        detail.push(format!(
            "{}: reads {:.1} ms, writes {:.1} MB/s, {}; {equal}",
            row.name, row.read_ms, row.written, row.segments
        ));
    }
    let detail = detail.join("; ");
    let (free, half, longest) = (&delays[0], &delays[delays.len() - 2], &delays[delays.len() - 1]);
    // Each write meets the longest delay at least twice, for as long as the device needs for six writes: half of the
    // twelve writers are out of the queue.
    figures.at_most("reads_of_free_at_longest_delay", longest.read_ms / free.read_ms, 0.75, 0.25);
    figures.at_most("reads_of_free_at_half_of_it", half.read_ms / free.read_ms, 1.1, 1.0);
    let mut delayed = Segments::default();
    for row in &delays {
        ensure!(row.drops == 0, "{}: {} drops", row.name, row.drops);
        delayed.sent += row.segments.sent;
        delayed.resent += row.segments.resent;
    }
    delayed.judge(figures, "retransmits_by_delay");
    // Writers send; what is limited is what they receive.
    figures.at_least("writes_of_free_by_htb", htb[0].written / free.written, 0.5, 0.9);
    for (row, (name, sure)) in policing.iter().zip(LOST) {
        figures.at_least(name, row.drops.min(row.segments.resent) as f64, sure, 1.0);
    }
    Ok(detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_summed() {
        let text =
            "class htb 1:1\n Sent 1 bytes 1 pkt (dropped 3, overlimits 0 requeues 0)\n (dropped 4, overlimits 1)";
        assert_eq!(dropped(text).unwrap(), 7);
        assert!(dropped("Sent 1 bytes").is_err());
    }

    #[test]
    fn the_line_between_two_delays() {
        let row =
            |read_ms, written| Row { name: String::new(), read_ms, written, segments: Segments::default(), drops: 0 };
        let delays = [row(40.0, 18.0), row(20.0, 16.0), row(5.0, 10.0)];
        assert_eq!(written_at(&delays, 30.0), Some(17.0));
        assert_eq!(written_at(&delays, 12.5), Some(13.0));
        assert_eq!(written_at(&delays, 50.0), None);
    }
}
