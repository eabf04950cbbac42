//! The events that the watcher and the publisher send to the driver.

use evenkeel_control::cluster::shard::Shard;

/// An event for the driver, from the watcher or the publisher.
pub(crate) enum Event {
    /// The watcher watches the etcd server `endpoint` from now on. `all`: present values of the hosts in `shard`, by host;
    /// `sums`: present values of the shards' keys, by shard, with the revisions of the store at which they were written.
    Watching { endpoint: String, shard: Shard, all: Vec<(String, Vec<u8>)>, sums: Vec<(String, Vec<u8>, u64)> },
    /// The following event, [`Self::Watching`] or [`Self::Reported`], is of this revision of the store.
    At { revision: u64 },
    /// The host's key has a new value, its report.
    Reported { host: String, value: Vec<u8> },
    /// The shard's key has a new value, the sum of its hosts' reports, `written` at this revision of the store.
    Summed { shard: String, value: Vec<u8>, written: u64 },
    /// The host's key is gone, because its lease has ended.
    Ended { host: String },
    /// The watch has ended, for the reason `why`: no changes are reported until the next [`Event::Watching`].
    Unwatched { why: String },
    /// This host's report or sum was written to etcd.
    Written,
    /// This host's report or sum could not be written to etcd.
    Unwritten { why: String },
    /// Another running process writes the key of this host.
    Rival,
}
