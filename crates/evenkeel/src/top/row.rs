//! What every view shows of everything: rate, latency, goal, and what throttles it.

use std::cmp::Ordering;

use evenkeel_policy::verdict::Verdict;

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
    /// What an agent keeps goals for.
    Resources,
    /// Who reaches them.
    Initiators,
    /// Control groups with guarantees.
    Groups,
    /// Volumes of arrays, through the queues of this host.
    Queues,
    /// OSDs of Ceph.
    Osds,
}

impl Tab {
    /// As it is headed, and as `--view` takes it, which ignores case.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Pools => "Pools",
            Self::Tenants => "Tenants",
            Self::Volumes => "Volumes",
            Self::Clients | Self::Initiators => "Clients",
            Self::Resources => "Resources",
            Self::Groups => "Groups",
            Self::Queues => "Queues",
            Self::Osds => "OSDs",
        }
    }

    /// What one of them is called.
    pub(super) const fn one(self) -> &'static str {
        match self {
            Self::Pools => "pool",
            Self::Tenants => "tenant",
            Self::Volumes => "volume",
            Self::Clients | Self::Initiators => "client",
            Self::Resources => "resource",
            Self::Groups => "group",
            Self::Queues => "queue",
            Self::Osds => "osd",
        }
    }

    /// What what it belongs to is called; `None` where that is nothing.
    pub(super) const fn owner(self) -> Option<&'static str> {
        match self {
            Self::Tenants | Self::Volumes => Some("pool"),
            Self::Clients => Some("volume"),
            Self::Initiators => Some("resource"),
            Self::Groups => Some("hybrid"),
            Self::Queues => Some("array"),
            Self::Pools | Self::Resources | Self::Osds => None,
        }
    }

    /// Where one comes to by going down from it.
    pub(super) const fn below(self) -> Option<Self> {
        match self {
            Self::Pools => Some(Self::Tenants),
            Self::Tenants | Self::Volumes => Some(Self::Clients),
            Self::Resources => Some(Self::Initiators),
            Self::Clients | Self::Initiators | Self::Groups | Self::Queues | Self::Osds => None,
        }
    }

    /// What it shows, from left to right.
    pub(super) const fn columns(self) -> &'static [Column] {
        use Column::{Bytes, Device, Goal, Hold, Iops, Name, Owner, Queue, Response, Tenant};
        match self {
            Self::Pools | Self::Tenants | Self::Queues => &[Name, Iops, Bytes, Response, Queue, Device, Goal, Hold],
            Self::Volumes => &[Name, Iops, Bytes, Owner, Tenant],
            Self::Clients => &[Name, Iops, Bytes, Owner, Tenant],
            Self::Resources => &[Name, Bytes, Response, Goal, Hold],
            Self::Initiators => &[Name, Bytes, Owner, Hold],
            Self::Groups => &[Name, Iops, Bytes, Goal, Hold],
            Self::Osds => &[Name, Iops, Bytes, Device, Hold],
        }
    }

    /// Whether a row belongs to one of this view.
    pub(super) fn holds(self, one: &Id, row: &Row) -> bool {
        match self {
            Self::Tenants => row.tenant == one.name,
            Self::Volumes => row.volume == one.name,
            _ => row.of == one.name,
        }
    }
}

/// What was guaranteed, and whether it is kept.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Goal {
    /// For example `p99 < 20 ms`.
    pub(super) what: String,
    /// Whether it is kept.
    pub(super) verdict: Verdict,
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
    /// The goal: one that is missed, if there are several.
    pub(super) goal: Option<Goal>,
    /// What throttles it, if anything does.
    pub(super) hold: Option<Hold>,
    /// What is wrong with it.
    pub(super) trouble: Option<String>,
    /// The newest reason on record, as a sentence.
    pub(super) why: String,
}

impl Row {
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
    /// What it belongs to.
    pub(super) of: String,
    /// Its own name.
    pub(super) name: String,
}

/// What rows are sorted by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Column {
    Name,
    Iops,
    Bytes,
    Response,
    Queue,
    Device,
    Goal,
    Hold,
    /// What it belongs to.
    Owner,
    Tenant,
}

impl Column {
    /// All.
    pub(super) const ALL: [Self; 10] = [
        Self::Name,
        Self::Iops,
        Self::Bytes,
        Self::Response,
        Self::Queue,
        Self::Device,
        Self::Goal,
        Self::Hold,
        Self::Owner,
        Self::Tenant,
    ];

    /// As it is headed.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Iops => "IOPS",
            Self::Bytes => "MB/s",
            Self::Response => "resp ms",
            Self::Queue => "queue",
            Self::Device => "device",
            Self::Goal => "goal",
            Self::Hold => "throttled by",
            Self::Owner => "of",
            Self::Tenant => "tenant",
        }
    }

    /// As `--sort` takes it.
    pub(super) const fn key(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Iops => "iops",
            Self::Bytes => "bytes",
            Self::Response => "response",
            Self::Queue => "queue",
            Self::Device => "device",
            Self::Goal => "goal",
            Self::Hold => "throttled",
            Self::Owner => "of",
            Self::Tenant => "tenant",
        }
    }

    /// The order of two rows: names from A on, what is missed and throttled first, figures from the largest on, those
    /// without a figure last. Equal ones by name.
    pub(super) fn order(self, a: &Row, b: &Row) -> Ordering {
        let figure = |figure: Option<f64>| figure.unwrap_or(-1.0);
        let largest = |of: fn(&Row) -> Option<f64>| figure(of(b)).total_cmp(&figure(of(a)));
        let kept = |row: &Row| row.goal.as_ref().map_or((1, Verdict::Idle), |goal| (0, goal.verdict));
        let order = match self {
            Self::Name => Ordering::Equal,
            Self::Iops => largest(|row| row.iops),
            Self::Bytes => largest(|row| row.bytes_per_s),
            Self::Response => largest(|row| row.response_ms),
            Self::Queue => largest(|row| row.queue_ms),
            Self::Device => largest(|row| row.device_ms),
            // Those without a goal last.
            Self::Goal => kept(a).cmp(&kept(b)),
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
    /// What it is and how it does, short ones first.
    pub(super) head: Vec<String>,
    /// For how long it has been running.
    pub(super) uptime_s: f64,
    /// What concerns all of it.
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
