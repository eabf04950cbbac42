//! Events beside those of the driver.

use evenkeel_control::cluster::shard::Shard;

/// Events from the tasks beside the driver.
pub(crate) enum Event {
    /// Changes come from this server from now on; these are all values at present, of the hosts of a shard and of shards.
    Watching { endpoint: String, shard: Shard, all: Vec<(String, Vec<u8>)>, sums: Vec<(String, Vec<u8>)> },
    /// A host reported.
    Reported { host: String, value: Vec<u8> },
    /// The sum of a shard was published.
    Summed { shard: String, value: Vec<u8> },
    /// The key of a host is gone: its lease has ended.
    Ended { host: String },
    /// Changes do not come any more.
    Unwatched { why: String },
    /// Our value was written.
    Written,
    /// Our value was not written.
    Unwritten { why: String },
}
