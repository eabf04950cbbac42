//! Events that other tasks send to the driver.

use evenkeel_control::cluster::shard::Shard;

/// Events from the watcher and the publisher to the driver.
pub(crate) enum Event {
    /// This server is watched from now on; `all` are the values of the hosts of `shard`, and `sums` those of shards, at present.
    Watching { endpoint: String, shard: Shard, all: Vec<(String, Vec<u8>)>, sums: Vec<(String, Vec<u8>)> },
    /// A host reported.
    Reported { host: String, value: Vec<u8> },
    /// The sum of a shard was published.
    Summed { shard: String, value: Vec<u8> },
    /// The key of a host is gone: its lease has ended.
    Ended { host: String },
    /// The watch has ended: no changes come any more.
    Unwatched { why: String },
    /// This host's value was written.
    Written,
    /// This host's value was not written.
    Unwritten { why: String },
}
