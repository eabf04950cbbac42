//! Publishes this host's reports under its key, which lives as long as the host's lease, and which no second process with the
//! same name can write. Also publishes the sum of the host's shard for a period, unless another host has published it.

use std::sync::Arc;

use evenkeel_control::cluster::shard::Shard;
use evenkeel_policy::cluster::Record;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch::Receiver;

use crate::etcd::{Claim, Client, Error, Traffic};
use crate::event::Event;
use crate::settings::Settings;

/// A report of this host that is to be written under its key.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) text: String,
    /// True for the last report, with which this host leaves the cluster.
    pub(crate) leaving: bool,
}

/// The sum of a shard's reports that is to be written under the shard's key.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingSum {
    pub(crate) shard: Shard,
    pub(crate) period: u64,
    pub(crate) text: String,
}

/// The newest report and sum that are to be published; older ones are skipped.
pub(crate) struct ToPublish {
    pub(crate) own: Receiver<Option<Outgoing>>,
    pub(crate) sum: Receiver<Option<OutgoingSum>>,
}

/// Largest number of attempts to write a sum, which another host may write at the same time.
const ATTEMPTS: usize = 3;
/// Largest number of periods by which a published sum may be ahead of this host's sum, because clocks differ or this host is
/// late.
const AHEAD: u64 = 8;

/// Publishes the newest reports and sums until the last report, with which this host leaves.
pub(crate) async fn run(settings: Settings, traffic: Arc<Traffic>, events: Sender<Event>, to_publish: ToPublish) {
    let key = settings.member_key();
    let ToPublish { mut own, mut sum } = to_publish;
    let mut publisher =
        Publisher { settings, key, traffic, endpoint: 0, client: None, lease: None, written_at: None, summed: None };
    loop {
        let written = tokio::select! {
            biased;
            changed = sum.changed() => {
                if changed.is_err() {
                    return;
                }
                let Some(sum) = sum.borrow_and_update().clone() else { continue };
                publisher.publish_sum(&sum).await
            }
            changed = own.changed() => {
                if changed.is_err() {
                    return;
                }
                let Some(Outgoing { text, leaving }) = own.borrow_and_update().clone() else { continue };
                let written = publisher.publish(&text).await;
                if leaving {
                    publisher.leave().await;
                    return;
                }
                written
            }
        };
        let event = match written {
            Ok(()) => Event::Written,
            Err(Unwritten::Error(error)) => Event::Unwritten { why: error.to_string() },
            Err(Unwritten::Taken(why)) => Event::Unwritten { why },
        };
        // It is not heard any more when the last one follows.
        let _ = events.send(event).await;
    }
}

enum Unwritten {
    Error(Error),
    /// Another process owns this host's key; with a message about that.
    Taken(String),
}

impl From<Error> for Unwritten {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

struct Publisher {
    settings: Settings,
    key: String,
    traffic: Arc<Traffic>,
    /// Index, in the configuration, of the etcd server to ask next.
    endpoint: usize,
    client: Option<Client>,
    lease: Option<i64>,
    /// etcd revision of this process's newest write of its key; `None`: this process does not own the key, as far as it knows.
    written_at: Option<i64>,
    /// The newest sum that this process has written or read.
    summed: Option<Summed>,
}

/// The state of a shard's key when this process wrote or read it most recently.
#[derive(Clone, Copy, Debug)]
struct Summed {
    shard: Shard,
    /// etcd revision of the key's newest write; 0: the key does not exist.
    revision: i64,
    /// The period of the sum in the key; `None` if the key's value is no sum.
    period: Option<u64>,
}

impl Publisher {
    /// Writes a report of this host; tries each etcd server once.
    async fn publish(&mut self, text: &str) -> Result<(), Unwritten> {
        let servers = self.settings.cluster.etcd.len();
        let mut last = None;
        for _ in 0..servers {
            match self.write(text).await {
                Ok(()) => return Ok(()),
                Err(Unwritten::Taken(why)) => return Err(Unwritten::Taken(why)),
                Err(Unwritten::Error(error)) => {
                    self.client = None;
                    self.endpoint = (self.endpoint + 1) % servers;
                    last = Some(error);
                }
            }
        }
        last.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Writes a report with the present etcd server; creates the host's key or lease anew if they have ended.
    async fn write(&mut self, text: &str) -> Result<(), Unwritten> {
        match self.try_to_write(text).await {
            // The lease has ended since we last looked, and the key with it: both anew.
            Err(Unwritten::Error(error)) if error.is_not_found() => {
                (self.lease, self.written_at) = (None, None);
                self.try_to_write(text).await
            }
            done => done,
        }
    }

    async fn try_to_write(&mut self, text: &str) -> Result<(), Unwritten> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => {
                let endpoint = &self.settings.cluster.etcd[self.endpoint];
                Client::open(endpoint, self.settings.patience(), &self.traffic).await?
            }
        };
        let lease = match self.lease {
            Some(lease) => lease,
            None => client.grant(self.settings.cluster.lease_seconds()).await?,
        };
        self.lease = Some(lease);
        self.written_at = match self.written_at {
            Some(written_at) => client.replace(&self.key, text.as_bytes(), lease, written_at).await?,
            None => None,
        };
        if self.written_at.is_none() {
            match client.claim(&self.key, text.as_bytes(), lease).await? {
                Claim::Ours(written_at) => self.written_at = Some(written_at),
                Claim::Taken(written_at, value) => {
                    self.take_over(&mut client, text, lease, written_at, &value).await?;
                }
            }
        }
        if !client.keep_alive(lease).await? {
            // What was written will go with it; the next value gets a new one.
            self.lease = None;
        }
        self.client = Some(client);
        Ok(())
    }

    /// Handles a key whose newest write, at `written_at`, is none that this process knows of. With this process's incarnation,
    /// only etcd's answer was lost, and the process owns the key; otherwise another process does.
    async fn take_over(
        &mut self,
        client: &mut Client,
        text: &str,
        lease: i64,
        written_at: i64,
        value: &[u8],
    ) -> Result<(), Unwritten> {
        let holder = Record::parse(value).map(|record| record.incarnation);
        if holder == Ok(self.settings.incarnation) {
            self.written_at = client.replace(&self.key, text.as_bytes(), lease, written_at).await?;
            return Ok(());
        }
        // Without this the lease that we hold in reserve would end.
        client.keep_alive(lease).await?;
        Err(Unwritten::Taken(format!(
            "another process is host {:?} of cluster {:?}: its key ends within {} s if it is an earlier life of this one, else give one of the two another name with cluster.host",
            self.settings.host,
            self.settings.cluster.name,
            self.settings.cluster.lease_seconds()
        )))
    }

    /// Writes the sum of a shard, unless a sum of the same or a later period is published. Only a host that owns its key
    /// writes its shard's sum, which lives as long as the lease of the host that wrote it.
    async fn publish_sum(&mut self, sum: &OutgoingSum) -> Result<(), Unwritten> {
        let (Some(lease), Some(_), Some(mut client)) = (self.lease, self.written_at, self.client.take()) else {
            return Ok(());
        };
        let key = self.settings.shard_key(sum.shard);
        // One far ahead of us is of a clock that is wrong, and no host takes it.
        let is_published = |period: u64| (sum.period..=sum.period + AHEAD).contains(&period);
        let known = self.summed.filter(|known| known.shard == sum.shard);
        let mut known = known.unwrap_or(Summed { shard: sum.shard, revision: 0, period: None });
        for _ in 0..ATTEMPTS {
            if known.period.is_some_and(is_published) {
                break;
            }
            let (revision, other) = client.renew(&key, sum.text.as_bytes(), lease, known.revision).await?;
            let period = match other {
                None => Some(sum.period),
                Some(value) => Record::parse(&value).ok().map(|record| record.period),
            };
            known = Summed { revision, period, ..known };
        }
        self.summed = Some(known);
        self.client = Some(client);
        Ok(())
    }

    /// Ends this host's lease, so that etcd deletes its key.
    async fn leave(&mut self) {
        if let (Some(mut client), Some(lease)) = (self.client.take(), self.lease.take()) {
            // If it fails, the lease ends by itself.
            let _ = client.revoke(lease).await;
        }
    }
}
