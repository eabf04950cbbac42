//! The columns that every view shows: rate, latency, target, and the throttle.

use std::cmp::Ordering;

use evenkeel_policy::verdict::{Target, Verdict};

use super::figures::{count, megabytes, ms};

/// A view: a table of things of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Tab {
    /// Shared devices of a server.
    Pools,
    /// Tenants of its pools.
    Tenants,
    /// Its exports.
    Volumes,
    /// Its connections.
    Clients,
    /// Pools whose clients an agent throttles for a latency target.
    Guarded,
    /// Clients that reach them.
    Initiators,
    /// Control groups with guarantees.
    Groups,
    /// Volumes of arrays, through the queues of this host.
    Queues,
    /// OSDs of Ceph.
    Osds,
}

/// The words of a view.
pub(super) struct About {
    /// As it is headed, and as `--view` takes it, which ignores case.
    pub(super) title: &'static str,
    /// The name of one of its rows.
    pub(super) one: &'static str,
    /// The name of a row's owner; `None` where a row has none.
    pub(super) owner: Option<&'static str>,
    /// The view of what belongs to a row.
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

    /// True if a row belongs to one of this view.
    pub(super) fn holds(self, one: &Id, row: &Row) -> bool {
        match self {
            Self::Tenants => row.tenant == one.name,
            Self::Volumes => row.volume == one.name,
            _ => row.of == one.name,
        }
    }
}

/// How something is throttled.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    /// By whom: the owner of the limit that binds.
    pub(super) by: String,
    /// By how much, for example `400 IOPS`.
    pub(super) how: String,
}

/// One thing: a tenant, a client, ...
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    /// Its name.
    pub(super) name: String,
    /// The name of what it belongs to; empty where that is nothing.
    pub(super) of: String,
    /// The tenant whose it is, where that is another name.
    pub(super) tenant: String,
    /// The volume that it uses, likewise.
    pub(super) volume: String,
    /// Requests per second.
    pub(super) iops: Option<f64>,
    /// Payload bytes per second.
    pub(super) bytes_per_s: Option<f64>,
    /// Mean latency; the two below together.
    pub(super) response_ms: Option<f64>,
    /// The part of it before the device.
    pub(super) queue_ms: Option<f64>,
    /// The part of it inside.
    pub(super) device_ms: Option<f64>,
    /// The target: one that is missed, if there are several.
    pub(super) target: Option<Target>,
    /// The throttle, if there is one.
    pub(super) hold: Option<Hold>,
    /// The fault.
    pub(super) trouble: Option<String>,
    /// The newest reason on record, as a sentence.
    pub(super) why: String,
}

impl Row {
    /// The figure of a column, where that is one and the row has it.
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

    /// Names it among those of its view.
    pub(super) fn is(&self, id: &Id) -> bool {
        self.of == id.of && self.name == id.name
    }

    /// Its name among those of its view.
    pub(super) fn id(&self) -> Id {
        Id { of: self.of.clone(), name: self.name.clone() }
    }
}

/// Names a row among those of its view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Id {
    /// Its owner.
    pub(super) of: String,
    /// Its own name.
    pub(super) name: String,
}

/// The order of rows.
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
    /// Its owner.
    Owner,
    Tenant,
}

impl Column {
    /// All, as they are headed and as `--sort` takes them.
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

    /// Those of figures.
    pub(super) const FIGURES: [Self; 5] = [Self::Iops, Self::Bytes, Self::Response, Self::Queue, Self::Device];

    /// As it is headed.
    pub(super) const fn title(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// A figure of it in few characters.
    pub(super) fn shown(self, figure: f64) -> String {
        match self {
            Self::Iops => count(figure),
            Self::Bytes => megabytes(figure),
            _ => ms(figure),
        }
    }

    /// The order of two rows: names from A on, what is missed and throttled first, figures from the largest on, those
    /// without a figure last. Equal ones by name.
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

/// Everything that was shown of a server or an agent at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Sample {
    /// Facts about it, short ones first.
    pub(super) head: Vec<String>,
    /// For how long it has been running.
    pub(super) uptime_s: f64,
    /// Troubles of all of it.
    pub(super) troubles: Vec<String>,
    /// The views.
    pub(super) tables: Vec<Table>,
}

/// The content of a view.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    /// Which.
    pub(super) tab: Tab,
    /// Its rows, in no order.
    pub(super) rows: Vec<Row>,
}
