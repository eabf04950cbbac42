//! The rows and columns of `evenkeel top`: all views have the same kinds of columns, such as rate, latency, target and throttle.

use std::cmp::Ordering;

use evenkeel_policy::health::Trouble;
use evenkeel_policy::verdict::{Target, ThrottledBy, Verdict};
use serde::{Serialize, Serializer};

use super::figures::{count, megabytes, ms};

/// A view: a table of rows of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Tab {
    /// Pools of a server: its devices that tenants share.
    Pools,
    /// Tenants of a server, one row for each pool that a tenant is on.
    Tenants,
    /// Volumes of a server, which are its NBD exports.
    Volumes,
    /// Clients of a server, one row for each connection.
    Clients,
    /// Pools of an agent that have a latency target, for which the agent delays clients' packets.
    Guarded,
    /// Clients of the storage targets on an agent's pools of the kind [`Self::Guarded`].
    Initiators,
    /// Control groups for which an agent enforces guarantees, one row for reads and one for writes.
    Groups,
    /// Volumes of arrays, which an agent controls by queue depths on its host.
    Queues,
    /// OSDs of Ceph that an agent controls.
    Osds,
}

/// Names and columns of a view.
pub(super) struct About {
    /// Heading of the view, and its name for `--view`, where case does not matter.
    pub(super) title: &'static str,
    /// The word for one row of the view, such as `tenant`.
    pub(super) one: &'static str,
    /// The word for the owner of a row, such as `pool` for a tenant; `None` if rows have no owner.
    pub(super) owner: Option<&'static str>,
    /// The view with the parts of a row, such as a pool's tenants; `None` if rows have no parts.
    pub(super) below: Option<Tab>,
    /// The columns of the view, from left to right.
    pub(super) columns: &'static [Column],
}

impl Tab {
    pub(super) const fn about(self) -> About {
        use Column::{Bytes, Device, Errors, Hold, Iops, Name, Owner, P99, Queue, Response, Target, Tenant, Trend};
        const RATED: &[Column] = &[Name, Iops, Bytes, Response, P99, Trend, Queue, Device, Errors, Target, Hold];
        const USED: &[Column] = &[Name, Iops, Bytes, Owner, Tenant];
        const EXPORTED: &[Column] = &[Name, Iops, Bytes, Owner, Tenant, Hold];
        let (title, one, owner, below, columns): (_, _, _, _, &[Column]) = match self {
            Self::Pools => ("Pools", "pool", None, Some(Self::Tenants), RATED),
            Self::Tenants => ("Tenants", "tenant", Some("pool"), Some(Self::Clients), RATED),
            Self::Volumes => ("Volumes", "volume", Some("pool"), Some(Self::Clients), EXPORTED),
            Self::Clients => ("Clients", "client", Some("volume"), None, USED),
            Self::Guarded => ("Pools", "pool", None, Some(Self::Initiators), &[Name, Bytes, Response, Target, Hold]),
            Self::Initiators => ("Clients", "client", Some("pool"), None, &[Name, Bytes, Owner, Hold]),
            Self::Groups => ("Groups", "group", Some("pool"), None, &[Name, Iops, Bytes, Target, Hold]),
            Self::Queues => ("Queues", "queue", Some("array"), None, RATED),
            Self::Osds => ("OSDs", "osd", None, None, &[Name, Iops, Bytes, Device, Hold]),
        };
        About { title, one, owner, below, columns }
    }

    /// True if `row` of another view is a part of the row `one` of this view.
    pub(super) fn holds(self, one: &Id, row: &Row) -> bool {
        match self {
            Self::Tenants => row.tenant == one.name,
            Self::Volumes => row.volume == one.name,
            _ => row.of == one.name,
        }
    }
}

/// The throttle that slows a row's requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Hold {
    /// Owner of the limit that binds: the operator or a controller.
    pub(super) by: String,
    /// The limit that binds as text, for example `400 IOPS`, or the delay; of an agent's pool the number of throttled clients or
    /// groups, and their mean delay.
    pub(super) how: String,
}

impl Hold {
    pub(super) fn of(throttle: &ThrottledBy) -> Self {
        Self { by: throttle.by.clone(), how: throttle.how.clone() }
    }
}

/// One row of a view: a tenant, a client or the like. In JSON its owner is its pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Row {
    /// Name of the row.
    pub(super) name: String,
    /// Name of the row's owner; empty if there is none.
    #[serde(rename = "pool", serialize_with = "or_null")]
    pub(super) of: String,
    /// Name of the row's tenant; empty if there is none.
    #[serde(serialize_with = "or_null")]
    pub(super) tenant: String,
    /// Name of the row's volume; empty if there is none.
    #[serde(skip)]
    pub(super) volume: String,
    /// Requests per second; `None` if unknown or not measured, as for all figures of a row.
    pub(super) iops: Option<f64>,
    /// Payload bytes per second.
    pub(super) bytes_per_s: Option<f64>,
    /// Mean latency of requests in ms, queue and device together.
    #[serde(rename = "latency_ms")]
    pub(super) response_ms: Option<f64>,
    /// 99th percentile of the latencies in ms.
    pub(super) p99_ms: Option<f64>,
    /// Mean queue latency in ms: the wait before a request goes to the device.
    #[serde(rename = "queue_latency_ms")]
    pub(super) queue_ms: Option<f64>,
    /// Mean device latency in ms.
    #[serde(rename = "device_latency_ms")]
    pub(super) device_ms: Option<f64>,
    /// Requests that the device failed.
    pub(super) errors: Option<f64>,
    /// The row's target with its verdict; the one with the worst verdict if there are several.
    pub(super) target: Option<Target>,
    /// The throttle on the row; `None` if the row is not throttled.
    #[serde(rename = "throttled_by")]
    pub(super) hold: Option<Hold>,
    /// The row's trouble as text; `None` if there is none.
    pub(super) trouble: Option<String>,
    /// A sentence about the row's state: the reason of the newest decision about it, or facts if no controller decides about it.
    #[serde(rename = "because")]
    pub(super) why: String,
}

/// Writes a name, or `null` if it is empty.
fn or_null<S: Serializer>(name: &str, serializer: S) -> Result<S::Ok, S::Error> {
    Some(name).filter(|name| !name.is_empty()).serialize(serializer)
}

impl Row {
    /// The row's figure for a column; `None` if the column has no figures or the row's figure is unknown.
    pub(super) const fn figure(&self, column: Column) -> Option<f64> {
        match column {
            Column::Iops => self.iops,
            Column::Bytes => self.bytes_per_s,
            Column::Response => self.response_ms,
            Column::Queue => self.queue_ms,
            Column::Device => self.device_ms,
            Column::P99 => self.p99_ms,
            Column::Errors => self.errors,
            Column::Name | Column::Target | Column::Hold | Column::Owner | Column::Tenant | Column::Trend => None,
        }
    }

    /// Rank of the row among those in trouble: 0 for a trouble, 1 for a missed target, 2 for a row that does well.
    pub(super) fn rank(&self) -> u8 {
        match &self.target {
            _ if self.trouble.is_some() => 0,
            Some(target) if target.verdict.is_missed() => 1,
            _ => 2,
        }
    }

    /// True if `id` is the identity of this row.
    pub(super) fn is(&self, id: &Id) -> bool {
        self.of == id.of && self.name == id.name
    }

    /// The identity of this row among the rows of its view.
    pub(super) fn id(&self) -> Id {
        Id { of: self.of.clone(), name: self.name.clone() }
    }
}

/// The identity of a row among the rows of its view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Id {
    /// Name of the row's owner; empty if there is none.
    pub(super) of: String,
    /// Name of the row.
    pub(super) name: String,
}

/// A column of a view, by which rows can be sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Iops,
    Bytes,
    Response,
    Queue,
    Device,
    Target,
    Hold,
    /// Name of the row's owner.
    Owner,
    Tenant,
    P99,
    Errors,
    /// The 99th percentile over the last minute, as bars.
    Trend,
}

impl Column {
    /// All columns by which rows can be sorted, in the order of the enum, each with its heading and its name for `--sort`.
    pub(super) const ALL: [(Self, &'static str, &'static str); 12] = [
        (Self::Name, "name", "name"),
        (Self::Iops, "IOPS", "iops"),
        (Self::Bytes, "MB/s", "bytes"),
        (Self::Response, "lat ms", "latency"),
        (Self::Queue, "queue", "queue"),
        (Self::Device, "device", "device"),
        (Self::Target, "target", "target"),
        (Self::Hold, "throttled by", "throttled"),
        (Self::Owner, "of", "of"),
        (Self::Tenant, "tenant", "tenant"),
        (Self::P99, "p99 ms", "p99"),
        (Self::Errors, "failed", "errors"),
    ];

    /// The columns with figures.
    pub(super) const FIGURES: [Self; 7] =
        [Self::Iops, Self::Bytes, Self::Response, Self::P99, Self::Queue, Self::Device, Self::Errors];

    /// Heading of the column.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Trend => "p99, last 60 s",
            _ => Self::ALL[self as usize].1,
        }
    }

    /// True for a column that only a wide terminal has room for.
    pub(super) const fn is_wide(self) -> bool {
        matches!(self, Self::P99 | Self::Errors | Self::Trend)
    }

    /// A figure of this column as text of few characters.
    pub(super) fn shown(self, figure: f64) -> String {
        match self {
            Self::Iops | Self::Errors => count(figure),
            Self::Bytes => megabytes(figure),
            _ => ms(figure),
        }
    }

    /// The order of two rows by this column: names from A on; missed targets and throttled rows first; figures from the
    /// largest on, rows without a figure last. Rows that are equal in this column are ordered by name.
    pub(super) fn order(self, a: &Row, b: &Row) -> Ordering {
        let figure = |row: &Row| row.figure(self).unwrap_or(-1.0);
        let met = |row: &Row| row.target.as_ref().map_or((1, Verdict::Idle), |target| (0, target.verdict));
        let order = match self {
            Self::Name | Self::Trend => Ordering::Equal,
            Self::Iops | Self::Bytes | Self::Response | Self::Queue | Self::Device | Self::P99 | Self::Errors => {
                figure(b).total_cmp(&figure(a))
            }
            // Those without a target last.
            Self::Target => met(a).cmp(&met(b)),
            Self::Hold => a.hold.is_none().cmp(&b.hold.is_none()),
            Self::Owner => a.of.cmp(&b.of),
            Self::Tenant => a.tenant.cmp(&b.tenant),
        };
        order.then_with(|| a.name.cmp(&b.name)).then_with(|| a.of.cmp(&b.of))
    }
}

/// All rows of a server or an agent at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Facts about the server or agent for the first line, the most important first.
    pub(super) head: Vec<String>,
    /// Time since the start of the server or agent, in seconds.
    pub(super) uptime_s: f64,
    /// Troubles of the server or agent that do not show in a row, as sentences; empty for the past.
    pub(super) troubles: Vec<String>,
    /// The lack of a record, and behind it all troubles at a moment of the past, worst first, without cures; empty for the
    /// present, whose answer has them.
    pub(super) past: Vec<Trouble>,
    /// The content of each view.
    pub(super) tables: Vec<Table>,
}

/// The content of a view.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    /// The view whose content this is.
    pub(super) tab: Tab,
    /// The rows of the view, in no particular order.
    pub(super) rows: Vec<Row>,
}
