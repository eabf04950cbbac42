//! Publishes this host's key, which lives as long as its lease, and which no second process of the same name can write; and,
//! for its shard, the sum of a period that no host has published yet.

use std::sync::Arc;

use evenkeel_control::cluster::shard::Shard;
use evenkeel_policy::cluster::Record;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch::Receiver;

use crate::etcd::{Claim, Client, Error, Traffic};
use crate::event::Event;
use crate::settings::Settings;

/// A value of this host that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) text: String,
    /// True for the last value, when this host leaves.
    pub(crate) leaving: bool,
}

/// The sum of a shard that is to be written.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingSum {
    pub(crate) shard: Shard,
    pub(crate) period: u64,
    pub(crate) text: String,
}

/// The newest values to publish.
pub(crate) struct ToPublish {
    pub(crate) own: Receiver<Option<Outgoing>>,
    pub(crate) sum: Receiver<Option<OutgoingSum>>,
}

/// Attempts to write a sum that another host may have written first.
const ATTEMPTS: usize = 3;
/// Periods by which a published sum may be ahead of this host's: clocks may differ, and this host may be late.
const AHEAD: u64 = 8;

/// Publishes the newest values until the last one, with which this host leaves.
pub(crate) async fn run(settings: Settings, traffic: Arc<Traffic>, events: Sender<Event>, to_publish: ToPublish) {
    let key = settings.member_key();
    let ToPublish { mut own, mut sum } = to_publish;
    let mut publisher =
        Publisher { settings, key, traffic, endpoint: 0, client: None, lease: None, made_at: None, summed: None };
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
    /// Another process has this host's key.
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
    /// Index of the server to ask next.
    endpoint: usize,
    client: Option<Client>,
    lease: Option<i64>,
    /// The revision at which this process made its key; `None`: the key is not this process's.
    made_at: Option<i64>,
    /// The sum that this process wrote or read last.
    summed: Option<Summed>,
}

/// The state of a shard's key when it was last written or read.
#[derive(Clone, Copy, Debug)]
struct Summed {
    shard: Shard,
    /// The revision at which it was last written; 0: it does not exist.
    revision: i64,
    /// The period of its sum; `None` if its value is no sum.
    period: Option<u64>,
}

impl Publisher {
    /// Writes this host's value; tries each server once.
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

    /// Writes this host's value with one server, and makes its key or lease anew if they have ended.
    async fn write(&mut self, text: &str) -> Result<(), Unwritten> {
        match self.try_to_write(text).await {
            // The lease has ended since we last looked, and the key with it: both anew.
            Err(Unwritten::Error(error)) if error.is_not_found() => {
                (self.lease, self.made_at) = (None, None);
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
        let written = match self.made_at {
            Some(made_at) => client.replace(&self.key, text.as_bytes(), lease, made_at).await?,
            None => false,
        };
        if !written {
            self.made_at = None;
            match client.claim(&self.key, text.as_bytes(), lease).await? {
                Claim::Ours(made_at) => self.made_at = Some(made_at),
                Claim::Taken(made_at, value) => self.take_over(&mut client, text, lease, made_at, &value).await?,
            }
        }
        if !client.keep_alive(lease).await? {
            // What was written will go with it; the next value gets a new one.
            self.lease = None;
        }
        self.client = Some(client);
        Ok(())
    }

    /// Handles a key that exists although this process has not made it: its own if only the answer was lost, else another's.
    async fn take_over(
        &mut self,
        client: &mut Client,
        text: &str,
        lease: i64,
        made_at: i64,
        value: &[u8],
    ) -> Result<(), Unwritten> {
        let holder = Record::parse(value).map(|record| record.incarnation);
        if holder == Ok(self.settings.incarnation) {
            if client.replace(&self.key, text.as_bytes(), lease, made_at).await? {
                self.made_at = Some(made_at);
            }
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

    /// Writes a sum, unless one of the same period or a later one is published. Only a host that has its own key writes for
    /// its shard; the sum lives as long as that host's lease.
    async fn publish_sum(&mut self, sum: &OutgoingSum) -> Result<(), Unwritten> {
        let (Some(lease), Some(_), Some(mut client)) = (self.lease, self.made_at, self.client.take()) else {
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

    /// Ends the lease, and this host's key with it.
    async fn leave(&mut self) {
        if let (Some(mut client), Some(lease)) = (self.client.take(), self.lease.take()) {
            // If it fails, the lease ends by itself.
            let _ = client.revoke(lease).await;
        }
    }
}
