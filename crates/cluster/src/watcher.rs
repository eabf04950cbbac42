//! Watches the values of the hosts in this host's shard, and the sums of shards: sends the driver first all values, then
//! every change. All values are read anew whenever the watch breaks or the shard changes.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::cluster::shard::{Shard, Sizes, hash};
use evenkeel_policy::config::Endpoint;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep, timeout_at};

use crate::etcd::{Access, Change, Client, Error, Keys};
use crate::event::Event;
use crate::settings::Settings;

/// Pause before the next etcd server is tried.
const PAUSE: Duration = Duration::from_millis(250);

/// The part of the cluster, this host's shard, whose values are to be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// Number of times that the cluster is halved to get this host's shard; `None`: according to the number of members.
    pub(crate) bits: Option<u8>,
    pub(crate) sizes: Sizes,
}

/// Watches, with one etcd server after the other, until the driver has closed `events`.
pub(crate) async fn run(settings: Settings, access: Arc<Access>, events: Sender<Event>, mut wanted: Receiver<Wanted>) {
    let mut endpoints = settings.cluster.etcd.iter().cycle().peekable();
    while let Some(endpoint) = endpoints.peek() {
        let why = match follow(&settings, endpoint, &access, &events, &mut wanted).await {
            Ok(()) => return,
            // Nothing is wrong with that: all values are read anew.
            Err(Stop::Others) => continue,
            Err(Stop::Error(Error::Compacted { .. })) => {
                sleep(PAUSE).await;
                continue;
            }
            Err(Stop::Error(error)) => error.to_string(),
            Err(Stop::Silent(silence, own)) => {
                format!("{endpoint} has reported nothing for {:.1} s, not even {own}", silence.as_secs_f64())
            }
        };
        if events.send(Event::Unwatched { why }).await.is_err() {
            return;
        }
        endpoints.next();
        sleep(PAUSE).await;
    }
}

enum Stop {
    Error(Error),
    /// No changes came for this time, though at least the changes named here were due.
    Silent(Duration, &'static str),
    /// This host's shard has changed, so that the values of other hosts must be watched.
    Others,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Watches with one etcd server until that fails or the shard changes; returns `Ok` only if the driver has closed `events`.
async fn follow(
    settings: &Settings,
    endpoint: &Endpoint,
    access: &Arc<Access>,
    events: &Sender<Event>,
    wanted: &mut Receiver<Wanted>,
) -> Result<(), Stop> {
    let (members, shards) = (settings.prefix() + MEMBERS, settings.prefix() + SHARDS);
    let Wanted { bits, sizes } = *wanted.borrow_and_update();
    let mut client = Client::open(endpoint, settings.patience(), access).await?;
    let bits = match bits {
        Some(bits) => bits,
        None => sizes.bits(client.count(&Keys::with(&members)).await?),
    };
    let shard = Shard::of(&settings.host, bits);
    // Sums first: the values of hosts that are read later are not older.
    let other = Client::open(endpoint, settings.patience(), access).await?;
    let (sums, mut sum_changes) = other.follow(&Keys::with(&shards)).await?;
    let sums = sums.into_iter().map(|(key, value, written)| (name(&key, &shards), value, known(written))).collect();
    let (all, mut changes) = client.follow(&keys_of(&members, shard)).await?;
    let all = all.into_iter().map(|(key, value, _)| (host(&key, &members), value)).collect();
    let read = Event::At { revision: known(changes.known()) };
    if events.send(read).await.is_err() {
        return Ok(());
    }
    if events.send(Event::Watching { endpoint: endpoint.to_string(), shard, all, sums }).await.is_err() {
        return Ok(());
    }
    // We hear at least ourselves once a period; a way that leads nowhere any more is not reported to us.
    let silence = (settings.period() * 2).max(settings.patience() * 2);
    let mut due = Instant::now() + silence;
    // Sums come once a period, too, as soon as the cluster is divided and there is one. Each stream has a connection of its own.
    let mut sum_due = None;
    loop {
        let next_sums = async {
            match sum_due {
                Some(due) => timeout_at(due, sum_changes.next()).await,
                None => Ok(sum_changes.next().await),
            }
        };
        tokio::select! {
            changed = timeout_at(due, changes.next()) => {
                due = Instant::now() + silence;
                for change in changed.map_err(|_| Stop::Silent(silence, "this host's own reports"))?? {
                    let event = match change {
                        Change::Put(key, value, revision) => {
                            let at = Event::At { revision: known(revision) };
                            if events.send(at).await.is_err() {
                                return Ok(());
                            }
                            Event::Reported { host: host(&key, &members), value }
                        }
                        Change::Deleted(key) => Event::Ended { host: host(&key, &members) },
                    };
                    if events.send(event).await.is_err() {
                        return Ok(());
                    }
                }
            }
            changed = next_sums => {
                // Hosts agree on who publishes them only after a while.
                let patience = silence * 2;
                sum_due = (shard != Shard::WHOLE).then(|| Instant::now() + patience);
                for change in changed.map_err(|_| Stop::Silent(patience, "the sum of this host's shard"))?? {
                    // That one is gone says no more than that no host publishes it at present.
                    let Change::Put(key, value, written) = change else { continue };
                    let (shard, written) = (name(&key, &shards), known(written));
                    if events.send(Event::Summed { shard, value, written }).await.is_err() {
                        return Ok(());
                    }
                }
            }
            changed = wanted.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                if wanted.borrow_and_update().bits.is_some_and(|bits| bits != shard.bits()) {
                    return Err(Stop::Others);
                }
            }
        }
    }
}

/// Part of the members' keys between the cluster's prefix and the hash of the host's name.
pub(crate) const MEMBERS: &str = "members/";
/// Part of the shards' keys between the cluster's prefix and the shard's name.
const SHARDS: &str = "shards/";

impl Settings {
    /// The etcd key of this host.
    pub(crate) fn member_key(&self) -> String {
        format!("{}{MEMBERS}{:04x}/{}", self.prefix(), hash(&self.host), self.host)
    }

    /// The etcd key of a shard's sum.
    pub(crate) fn shard_key(&self, shard: Shard) -> String {
        format!("{}{SHARDS}{shard}", self.prefix())
    }
}

/// Range of the keys of a shard's members, whose hashes are adjacent. For the whole cluster, the range includes misplaced
/// keys. `members`: the common prefix of the keys.
fn keys_of(members: &str, shard: Shard) -> Keys {
    if shard == Shard::WHOLE {
        return Keys::with(members);
    }
    let hashes = shard.hashes();
    Keys::between(&format!("{members}{:04x}/", hashes.start()), &format!("{members}{:04x}/", hashes.end()))
}

/// A revision of the store; 0: not known.
fn known(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

fn name(key: &str, prefix: &str) -> String {
    key.strip_prefix(prefix).unwrap_or(key).to_owned()
}

/// Name of the host that a key belongs to; for a misplaced key, the key itself, which is no valid host name. `prefix`: the
/// common prefix of the members' keys.
pub(crate) fn host(key: &str, prefix: &str) -> String {
    let parts = key.strip_prefix(prefix).and_then(|rest| rest.split_once('/'));
    let host = parts.filter(|(at, host)| *at == format!("{:04x}", hash(host))).map(|(_, host)| host);
    host.unwrap_or(key).to_owned()
}
