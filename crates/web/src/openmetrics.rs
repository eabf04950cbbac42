//! Metrics made from records: tables that map a record's figures to metrics, and the two text formats.

use std::borrow::Cow;
use std::fmt;

use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use evenkeel_policy::health::{Health, Level};
use evenkeel_policy::state::{ClusterState, LatencyState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

/// Content type of the format that Prometheus requests and that [`text::encode`] writes.
const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Content type of the older format for other clients: `curl`, `promtool`, older scrapers.
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Exponents of the bounds of histogram buckets: powers of two from 2^13 ns (8 µs) to 2^35 ns (34 s). They are also bounds of
/// the server's own finer histogram, so that the counts are exact.
const BUCKET_EXPONENTS: std::ops::RangeInclusive<u32> = 13..=35;

pub(crate) const BYTES: Option<Unit> = Some(Unit::Bytes);
pub(crate) const SECONDS: Option<Unit> = Some(Unit::Seconds);

/// The metrics of one kind of record, and the labels that distinguish its records.
pub(crate) struct Table<T: 'static> {
    pub(crate) labels: &'static [&'static str],
    pub(crate) metrics: &'static [Metric<T>],
}

/// A metric whose samples are counted one by one.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    pub(crate) unit: Option<Unit>,
    pub(crate) metric_type: MetricType,
    pub(crate) labels: &'static [&'static str],
}

/// The description of a metric, for the manual.
#[derive(Clone, Debug)]
pub struct Description {
    /// Name of the metric in a scrape; it ends with the unit, and for counters with `_total`.
    pub name: String,
    /// Type of the metric: `gauge`, `counter` or `histogram`.
    pub kind: &'static str,
    /// Names of the metric's labels.
    pub labels: &'static [&'static str],
    /// HELP text of the metric.
    pub help: &'static str,
}

/// HELP texts of metrics that both server and agent have.
pub(crate) mod help {
    pub(crate) const SLOTS: &str = "Slots on all hosts; absent: unbounded.";
    pub(crate) const CLUSTERED: &str = "1 if hosts agree on slots.";
    pub(crate) const SCALE: &str =
        "Factor at which all latency targets could be met; up to 1 they are. Absent without targets, or above 10.";
    pub(crate) const UNACHIEVABLE: &str = "1 while the target cannot be met beside others.";
    pub(crate) const NEEDED: &str = "Slots that the latency target needs.";
    pub(crate) const GRANTED: &str = "Slots granted; absent: unbounded.";
    pub(crate) const USED: &str = "Slots used in the last period, mean.";
    pub(crate) const WINDOWS: &str = "Seconds with requests.";
    pub(crate) const VIOLATIONS: &str = "Seconds above the latency target.";
}

/// A metric of records of type `T`. A record without the figure at present has no sample.
pub(crate) struct Metric<T> {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: Read<T>,
}

enum Read<T> {
    Gauge(fn(&T) -> Option<f64>),
    Counter(fn(&T) -> u64),
    /// A counter whose unit is seconds.
    Time(fn(&T) -> f64),
    Histogram(fn(&T) -> &LatencyState),
}

/// A gauge. The sample is left out if `read` returns `None`.
pub(crate) const fn gauge<T>(
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: fn(&T) -> Option<f64>,
) -> Metric<T> {
    Metric { name, help, unit, read: Read::Gauge(read) }
}

/// A counter that counts from the start of the program. Names of its samples end with `_total`.
pub(crate) const fn counter<T>(
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    read: fn(&T) -> u64,
) -> Metric<T> {
    Metric { name, help, unit, read: Read::Counter(read) }
}

/// A counter of the seconds spent since the start of the program.
pub(crate) const fn time<T>(name: &'static str, help: &'static str, read: fn(&T) -> f64) -> Metric<T> {
    Metric { name, help, unit: SECONDS, read: Read::Time(read) }
}

/// A histogram of durations. A histogram without durations is left out, so that configured tenants without requests take no
/// space in a scrape.
pub(crate) const fn histogram<T>(name: &'static str, help: &'static str, read: fn(&T) -> &LatencyState) -> Metric<T> {
    Metric { name, help, unit: SECONDS, read: Read::Histogram(read) }
}

/// A count as the value of a gauge. Counts are exact up to 2^53, which no count reaches within centuries.
pub(crate) fn some(value: u64) -> Option<f64> {
    Some(value as f64)
}

/// The value of a gauge for a condition: 1 if it holds, otherwise 0.
pub(crate) fn whether(holds: bool) -> Option<f64> {
    some(u64::from(holds))
}

/// Converts milliseconds, the unit of records, to seconds, the unit of metrics.
pub(crate) fn ms(value: Option<f64>) -> Option<f64> {
    value.map(|ms| ms / 1e3)
}

/// Values of a sample's labels, in the order of the labels' names.
pub(crate) type Values<'a> = Vec<Cow<'a, str>>;

/// A record with its label values, which distinguish it from other records of the table.
pub(crate) type Row<'a, T> = (Values<'a>, &'a T);

/// One row for each record of `all`. Its label values are those of `outer`, followed by those that the record has itself.
pub(crate) fn rows<'a, T: 'a, const N: usize>(
    outer: &Values<'a>,
    all: impl IntoIterator<Item = &'a T>,
    own: fn(&T) -> [&str; N],
) -> Vec<Row<'a, T>> {
    let values = |one: &'a T| -> Values<'a> { outer.iter().cloned().chain(own(one).map(Cow::Borrowed)).collect() };
    all.into_iter().map(|one| (values(one), one)).collect()
}

fn labelled<'a>(labels: &[&'static str], values: &'a Values<'_>) -> Vec<(&'static str, &'a str)> {
    debug_assert_eq!(labels.len(), values.len(), "{labels:?} of {values:?}");
    labels.iter().copied().zip(values.iter().map(|value| &**value)).collect()
}

fn description(
    prefix: &str,
    name: &str,
    help: &'static str,
    unit: Option<&Unit>,
    metric_type: MetricType,
    labels: &'static [&'static str],
) -> Description {
    let unit = unit.map_or_else(String::new, |unit| format!("_{}", unit.as_str()));
    let (kind, end) = match metric_type {
        MetricType::Counter => ("counter", "_total"),
        MetricType::Histogram => ("histogram", ""),
        _ => ("gauge", ""),
    };
    Description { name: format!("{prefix}_{name}{unit}{end}"), kind, labels, help }
}

impl<T> Table<T> {
    /// The descriptions of the table's metrics.
    pub(crate) fn described(&self, prefix: &str) -> Vec<Description> {
        let described = |metric: &Metric<T>| {
            let (unit, metric_type) = (metric.unit.as_ref(), metric.read.metric_type());
            description(prefix, metric.name, metric.help, unit, metric_type, self.labels)
        };
        self.metrics.iter().map(described).collect()
    }
}

impl Family {
    /// Gauges without a unit.
    pub(crate) const fn gauges(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, help, unit: None, metric_type: MetricType::Gauge, labels }
    }

    /// Counters without a unit.
    pub(crate) const fn counters(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Self {
        Self { name, help, unit: None, metric_type: MetricType::Counter, labels }
    }

    /// The description of the metric.
    pub(crate) fn described(&self, prefix: &str) -> Vec<Description> {
        vec![description(prefix, self.name, self.help, self.unit.as_ref(), self.metric_type, self.labels)]
    }
}

impl<T> Read<T> {
    fn metric_type(&self) -> MetricType {
        match self {
            Self::Gauge(_) => MetricType::Gauge,
            Self::Counter(_) | Self::Time(_) => MetricType::Counter,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }

    fn figure<'a>(&self, record: &'a T) -> Option<Figure<'a>> {
        match self {
            Self::Gauge(read) => read(record).map(Figure::Gauge),
            Self::Counter(read) => Some(Figure::Counter(read(record) as f64)),
            Self::Time(read) => Some(Figure::Counter(read(record))),
            Self::Histogram(read) => Some(read(record)).filter(|latency| latency.count > 0).map(Figure::Histogram),
        }
    }
}

/// Writes every metric of a table for every row. A metric without rows is described as well, so that each scrape has the names
/// of all metrics.
pub(crate) fn each<T>(encoder: &mut DescriptorEncoder<'_>, table: &Table<T>, rows: &[Row<'_, T>]) -> fmt::Result {
    let labelled: Vec<_> = rows.iter().map(|(values, record)| (labelled(table.labels, values), *record)).collect();
    for Metric { name, help, unit, read } in table.metrics {
        let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), read.metric_type())?;
        if table.labels.is_empty() {
            if let Some(figure) = rows.first().and_then(|(_, record)| read.figure(record)) {
                figure.encode(family)?;
            }
            continue;
        }
        for (labels, record) in &labelled {
            if let Some(figure) = read.figure(record) {
                figure.encode(family.encode_family(labels)?)?;
            }
        }
    }
    Ok(())
}

/// The troubles that health names, of a server and of an agent.
pub(crate) const TROUBLES: Family =
    Family::gauges("troubles", &["level"], "Troubles that `evenkeel health` names: `critical`, `warning`.");

/// Writes the number of troubles of each severity.
pub(crate) fn troubles(encoder: &mut DescriptorEncoder<'_>, health: &Health) -> fmt::Result {
    let number = |level: Level| health.troubles.iter().filter(|trouble| trouble.level == level).count() as f64;
    let samples = [("critical", Level::Critical), ("warning", Level::Warning)];
    family(encoder, &TROUBLES, samples.into_iter().map(|(name, level)| (vec![name.into()], number(level))))
}

/// Writes the samples of a metric.
pub(crate) fn family<'a>(
    encoder: &mut DescriptorEncoder<'_>,
    Family { name, help, unit, metric_type, labels }: &Family,
    samples: impl Iterator<Item = (Values<'a>, f64)>,
) -> fmt::Result {
    let mut family = encoder.encode_descriptor(name, help, unit.as_ref(), *metric_type)?;
    for (values, value) in samples {
        let figure =
            if matches!(metric_type, MetricType::Counter) { Figure::Counter(value) } else { Figure::Gauge(value) };
        figure.encode(family.encode_family(&labelled(labels, &values))?)?;
    }
    Ok(())
}

/// The value of a sample that is read from a record instead of being counted by the metrics library.
enum Figure<'a> {
    Counter(f64),
    Gauge(f64),
    Histogram(&'a LatencyState),
}

impl Figure<'_> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        match self {
            Self::Counter(value) => encoder.encode_counter::<NoLabelSet, _, f64>(value, None),
            Self::Gauge(value) => encoder.encode_gauge(value),
            Self::Histogram(latency) => {
                encoder.encode_histogram::<NoLabelSet>(latency.sum_s, latency.count, &buckets(latency), None)
            }
        }
    }
}

/// The buckets of a histogram, each as its upper bound in seconds and its number of durations: one for each of
/// [`BUCKET_EXPONENTS`], and one for durations above the last bound.
fn buckets(latency: &LatencyState) -> Vec<(f64, u64)> {
    let mut fine = latency.buckets.iter().peekable();
    let bounds = BUCKET_EXPONENTS.map(|exponent| (1u64 << exponent) as f64 / 1e9).chain([f64::INFINITY]);
    bounds
        .map(|bound| {
            let mut count = 0;
            while let Some((_, n)) = fine.next_if(|(upper, _)| *upper <= bound) {
                count += n;
            }
            (bound, count)
        })
        .collect()
}

/// The answer to a scrape, in the format that its headers request.
pub(crate) fn answer(asked: &HeaderMap, prefix: &str, collector: impl Collector) -> Response {
    let mut registry = Registry::with_prefix(prefix);
    registry.register_collector(Box::new(collector));
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = text::encode(&mut text, &registry);
    let accepts =
        |header: &header::HeaderValue| header.to_str().is_ok_and(|a| a.contains("application/openmetrics-text"));
    if asked.get_all(header::ACCEPT).iter().any(accepts) {
        ([(header::CONTENT_TYPE, OPENMETRICS)], text).into_response()
    } else {
        ([(header::CONTENT_TYPE, PLAIN)], plain(&text)).into_response()
    }
}

/// Converts a scrape's text to the older format, which describes counters by the names of their samples and has no units.
fn plain(openmetrics: &str) -> String {
    let mut text = String::with_capacity(openmetrics.len());
    // A counter is known by its type, which is told after its help.
    let mut help = "";
    for line in openmetrics.lines() {
        let words = line.strip_prefix("# ").and_then(|line| line.split_once(' '));
        match words {
            Some(("HELP", rest)) => help = rest,
            Some(("TYPE", rest)) => {
                let (name, kind) = rest.split_once(' ').unwrap_or((rest, "untyped"));
                let suffix = if kind == "counter" { "_total" } else { "" };
                let words = help.strip_prefix(name).unwrap_or(help);
                text.extend(["# HELP ", name, suffix, words, "\n# TYPE ", name, suffix, " ", kind, "\n"]);
            }
            Some(("UNIT", _)) => {}
            _ if line == "# EOF" => {}
            _ => text.extend([line, "\n"]),
        }
    }
    text
}

const CLUSTER: Table<ClusterState> = Table {
    labels: &[],
    metrics: &[
        gauge("cluster_connected", "1 while changes come from etcd.", None, |e| whether(e.connected)),
        gauge("cluster_lost", "1 while no reports come back and this host decides alone.", None, |e| {
            whether(e.status == "lost")
        }),
        counter("cluster_losses", "Times that the cluster was lost.", None, |e| e.lost_total),
        gauge("cluster_ramp_ratio", "Part of its share that a new host takes.", None, |e| Some(e.ramp)),
        gauge("cluster_period", "Time between cluster decisions.", SECONDS, |e| Some(e.period_s)),
        gauge("cluster_age", "Time since the last period whose report came back.", SECONDS, |e| e.age_s),
        counter("cluster_decided_periods", "Periods decided.", None, |e| e.decided_periods_total),
        gauge("cluster_counted_members", "Members of the last period, in all shards.", None, |e| {
            some(e.counted_members)
        }),
        counter("cluster_sent", "Bytes to etcd.", BYTES, |e| e.sent_bytes_total),
        counter("cluster_received", "Bytes from etcd.", BYTES, |e| e.received_bytes_total),
    ],
};

const MEMBERS: Family =
    Family::gauges("cluster_members", &["presence"], "Members read individually, this host included.");

const SHARDS: Family = Family::gauges("cluster_shards", &["presence"], "Shards that reported sums.");

const IGNORED: Family = Family::counters("cluster_ignored", &["reason"], "Ignored values of other hosts.");

/// The descriptions of the cluster's metrics.
pub(crate) fn cluster_described(prefix: &str) -> Vec<Description> {
    let families = [MEMBERS, SHARDS, IGNORED].map(|family| family.described(prefix));
    [CLUSTER.described(prefix), families.concat()].concat()
}

/// Writes the metrics of the cluster's state; none if this host is not in a cluster.
pub(crate) fn cluster(encoder: &mut DescriptorEncoder<'_>, state: Option<&ClusterState>) -> fmt::Result {
    each(encoder, &CLUSTER, &state.map(|state| (Vec::new(), state)).into_iter().collect::<Vec<_>>())?;
    let members = state.iter().flat_map(|state| {
        by_presence(|presence| state.members.iter().filter(|member| member.presence == presence).count())
    });
    family(encoder, &MEMBERS, members)?;
    let shards = state.iter().flat_map(|state| {
        by_presence(|presence| state.shards.iter().filter(|shard| shard.presence == presence).count())
    });
    family(encoder, &SHARDS, shards)?;
    let ignored = state.iter().flat_map(|state| {
        state.ignored_total.iter().map(|(reason, &count)| (vec![reason.as_str().into()], count as f64))
    });
    family(encoder, &IGNORED, ignored)
}

fn by_presence(count: impl Fn(&str) -> usize) -> [(Values<'static>, f64); 3] {
    ["present", "suspect", "expired"].map(|presence| (vec![presence.into()], count(presence) as f64))
}

#[cfg(test)]
mod tests {
    use super::plain;

    #[test]
    fn the_older_format_names_counters_as_their_samples() {
        let openmetrics = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1.0\n\
                           # HELP b A.\n# TYPE b gauge\nb{c=\"# EOF\"} 2.0\n# EOF\n";
        let expected = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total 1.0\n\
                        # HELP b A.\n# TYPE b gauge\nb{c=\"# EOF\"} 2.0\n";
        assert_eq!(plain(openmetrics), expected);
    }
}
