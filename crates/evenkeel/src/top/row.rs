//! Rows, and the columns that all views share: rate, latency, target and throttle.

use std::cmp::Ordering;

use evenkeel_policy::verdict::{Target, Verdict};

use super::figures::{count, megabytes, ms};

/// A view: a table of rows of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Tab {
    /// Shared devices of a server.
    Pools,
    /// Tenants of the server's pools.
    Tenants,
    /// Exports of the server.
    Volumes,
    /// Connections of the server.
    Clients,
    /// Pools whose clients an agent throttles for a latency target.
    Guarded,
    /// Clients that reach those pools.
    Initiators,
    /// Control groups with guarantees.
    Groups,
    /// Volumes of arrays, controlled by the queue depths of this host.
    Queues,
    /// OSDs of Ceph.
    Osds,
}

/// Names and columns of a view.
pub(super) struct About {
    /// Heading, and name for `--view`, which ignores case.
    pub(super) title: &'static str,
    /// The word for one of its rows.
    pub(super) one: &'static str,
    /// The word for the owner of a row; `None` if rows have no owner.
    pub(super) owner: Option<&'static str>,
    /// The view with the parts of a row.
    pub(super) below: Option<Tab>,
    /// The columns, from left to right.
    pub(super) columns: &'static [Column],
}

impl Tab {
    pub(super) const fn about(self) -> About {
        use Column::{Bytes, Device, Hold, Iops, Name, Owner, Queue, Response, Target, Tenant};
        const RATED: &[Column] = &[Name, Iops, Bytes, Response, Queue, Device, Target, Hold];
        const USED: &[Column] = &[Name, Iops, Bytes, Owner, Tenant];
        let (title, one, owner, below, columns): (_, _, _, _, &[Column]) = match self {
            Self::Pools => ("Pools", "pool", None, Some(Self::Tenants), RATED),
            Self::Tenants => ("Tenants", "tenant", Some("pool"), Some(Self::Clients), RATED),
            Self::Volumes => ("Volumes", "volume", Some("pool"), Some(Self::Clients), USED),
            Self::Clients => ("Clients", "client", Some("volume"), None, USED),
            Self::Guarded => ("Pools", "pool", None, Some(Self::Initiators), &[Name, Bytes, Response, Target, Hold]),
            Self::Initiators => ("Clients", "client", Some("pool"), None, &[Name, Bytes, Owner, Hold]),
            Self::Groups => ("Groups", "group", Some("pool"), None, &[Name, Iops, Bytes, Target, Hold]),
            Self::Queues => ("Queues", "queue", Some("array"), None, RATED),
            Self::Osds => ("OSDs", "osd", None, None, &[Name, Iops, Bytes, Device, Hold]),
        };
        About { title, one, owner, below, columns }
    }

    /// True if `row` belongs to the row `one` of this view.
    pub(super) fn holds(self, one: &Id, row: &Row) -> bool {
        match self {
            Self::Tenants => row.tenant == one.name,
            Self::Volumes => row.volume == one.name,
            _ => row.of == one.name,
        }
    }
}

/// The throttle of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    /// Owner of the limit that throttles.
    pub(super) by: String,
    /// The limit, for example `400 IOPS`.
    pub(super) how: String,
}

/// One row: a tenant, a client, ...
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: String,
    /// Name of its owner; empty without one.
    pub(super) of: String,
    /// Its tenant, if that is not its name or owner.
    pub(super) tenant: String,
    /// Its volume, if that is not its name or owner.
    pub(super) volume: String,
    /// Requests per second.
    pub(super) iops: Option<f64>,
    /// Payload bytes per second.
    pub(super) bytes_per_s: Option<f64>,
    /// Mean latency, the sum of the two below.
    pub(super) response_ms: Option<f64>,
    /// Mean queue latency, before the device.
    pub(super) queue_ms: Option<f64>,
    /// Mean device latency.
    pub(super) device_ms: Option<f64>,
    /// The target; if there are several, a missed one.
    pub(super) target: Option<Target>,
    /// The throttle; `None` if it is not throttled.
    pub(super) hold: Option<Hold>,
    /// The fault; `None` without one.
    pub(super) trouble: Option<String>,
    /// The newest reason on record for a decision about it, as a sentence.
    pub(super) why: String,
}

impl Row {
    /// The value of a column; `None` if the column has no figures or the row has no value.
    pub(super) const fn figure(&self, column: Column) -> Option<f64> {
        match column {
            Column::Iops => self.iops,
            Column::Bytes => self.bytes_per_s,
            Column::Response => self.response_ms,
            Column::Queue => self.queue_ms,
            Column::Device => self.device_ms,
            Column::Name | Column::Target | Column::Hold | Column::Owner | Column::Tenant => None,
        }
    }

    /// True if `id` names this row among the rows of its view.
    pub(super) fn is(&self, id: &Id) -> bool {
        self.of == id.of && self.name == id.name
    }

    /// The name of this row among the rows of its view.
    pub(super) fn id(&self) -> Id {
        Id { of: self.of.clone(), name: self.name.clone() }
    }
}

/// The name of a row among the rows of its view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Id {
    /// Name of the row's owner.
    pub(super) of: String,
    /// Name of the row.
    pub(super) name: String,
}

/// A column; rows can be sorted by it.
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
    /// The owner's name.
    Owner,
    Tenant,
}

impl Column {
    /// All columns, with their headings and their names for `--sort`.
    pub(super) const ALL: [(Self, &'static str, &'static str); 10] = [
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
    ];

    /// The columns with figures.
    pub(super) const FIGURES: [Self; 5] = [Self::Iops, Self::Bytes, Self::Response, Self::Queue, Self::Device];

    /// Heading of the column.
    pub(super) const fn title(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// A figure of the column in few characters.
    pub(super) fn shown(self, figure: f64) -> String {
        match self {
            Self::Iops => count(figure),
            Self::Bytes => megabytes(figure),
            _ => ms(figure),
        }
    }

    /// The order of two rows by this column: names from A on; missed targets and throttled rows first; figures from the
    /// largest on, rows without a figure last. Equal ones by name.
    pub(super) fn order(self, a: &Row, b: &Row) -> Ordering {
        let figure = |row: &Row| row.figure(self).unwrap_or(-1.0);
        let met = |row: &Row| row.target.as_ref().map_or((1, Verdict::Idle), |target| (0, target.verdict));
        let order = match self {
            Self::Name => Ordering::Equal,
            Self::Iops | Self::Bytes | Self::Response | Self::Queue | Self::Device => figure(b).total_cmp(&figure(a)),
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
    /// Facts about the server or agent, short ones first.
    pub(super) head: Vec<String>,
    /// Running time of the server or agent, in seconds.
    pub(super) uptime_s: f64,
    /// Troubles of the whole server or agent.
    pub(super) troubles: Vec<String>,
    /// The views.
    pub(super) tables: Vec<Table>,
}

/// The content of a view.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    /// The view.
    pub(super) tab: Tab,
    /// Its rows, in no order.
    pub(super) rows: Vec<Row>,
}
