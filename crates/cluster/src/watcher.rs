//! The values of other hosts as they come: all of them, then every change, anew whenever the stream breaks or those of
//! other hosts are wanted.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::exchange::section::{Section, Sizes, place};
use evenkeel_policy::config::Endpoint;
use tokio::sync::mpsc::Sender;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use crate::etcd::{Change, Client, Error, Keys, Traffic};
use crate::event::Event;
use crate::settings::Settings;

/// Before the next server is tried.
const PAUSE: Duration = Duration::from_millis(250);

/// The hosts whose values are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// How often the group is halved; `None`: as often as the number of hosts that there are asks for.
    pub(crate) bits: Option<u8>,
    pub(crate) sizes: Sizes,
}

/// Watches for as long as the driver listens.
pub(crate) async fn run(
    settings: Settings,
    traffic: Arc<Traffic>,
    events: Sender<Event>,
    mut wanted: Receiver<Wanted>,
) {
    let mut endpoints = settings.exchange.etcd.iter().cycle().peekable();
    while let Some(endpoint) = endpoints.peek() {
        let why = match follow(&settings, endpoint, &traffic, &events, &mut wanted).await {
            Ok(()) => return,
            // Nothing is wrong with that: all values are read anew.
            Err(Stop::Others) => continue,
            Err(Stop::Error(Error::Compacted { .. })) => continue,
            Err(Stop::Error(error)) => error.to_string(),
            Err(Stop::Silent(silence)) => {
                format!("{endpoint} has reported nothing for {silence:?}, not even our own reports")
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
    Silent(Duration),
    /// Values of other hosts are wanted.
    Others,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Follows one server; ends well only when the driver no longer listens.
async fn follow(
    settings: &Settings,
    endpoint: &Endpoint,
    traffic: &Arc<Traffic>,
    events: &Sender<Event>,
    wanted: &mut Receiver<Wanted>,
) -> Result<(), Stop> {
    let (hosts, sections) = (settings.prefix() + HOSTS, settings.prefix() + SECTIONS);
    let Wanted { bits, sizes } = *wanted.borrow_and_update();
    let mut client = Client::open(endpoint, settings.patience(), traffic).await?;
    let bits = match bits {
        Some(bits) => bits,
        None => sizes.bits(client.count(&Keys::with(&hosts)).await?),
    };
    let section = Section::of(&settings.host, bits);
    // Sums first: what is told of hosts that are read later is not older.
    let other = Client::open(endpoint, settings.patience(), traffic).await?;
    let (sums, mut sum_changes) = other.follow(&Keys::with(&sections)).await?;
    let sums = sums.into_iter().map(|(key, value)| (name(&key, &sections), value)).collect();
    let (all, mut changes) = client.follow(&keys_of(&hosts, section)).await?;
    let all = all.into_iter().map(|(key, value)| (host(&key, &hosts), value)).collect();
    if events.send(Event::Watching { endpoint: endpoint.to_string(), section, all, sums }).await.is_err() {
        return Ok(());
    }
    // We hear at least ourselves once a period; a way that leads nowhere any more is not told to us.
    let silence = (settings.period() * 2).max(settings.patience() * 2);
    loop {
        tokio::select! {
            changed = timeout(silence, changes.next()) => {
                for change in changed.map_err(|_| Stop::Silent(silence))?? {
                    let event = match change {
                        Change::Put(key, value) => Event::Said { host: host(&key, &hosts), value },
                        Change::Deleted(key) => Event::Ended { host: host(&key, &hosts) },
                    };
                    if events.send(event).await.is_err() {
                        return Ok(());
                    }
                }
            }
            changed = sum_changes.next() => {
                for change in changed? {
                    // That one is gone says no more than that no host tells it at present.
                    let Change::Put(key, value) = change else { continue };
                    if events.send(Event::Summed { section: name(&key, &sections), value }).await.is_err() {
                        return Ok(());
                    }
                }
            }
            changed = wanted.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                if wanted.borrow_and_update().bits.is_some_and(|bits| bits != section.bits()) {
                    return Err(Stop::Others);
                }
            }
        }
    }
}

/// Where hosts of a group have their keys, by place.
const HOSTS: &str = "hosts/";
/// Where sections have theirs.
const SECTIONS: &str = "sections/";

impl Settings {
    /// The key of this host.
    pub(crate) fn host_key(&self) -> String {
        format!("{}{HOSTS}{:04x}/{}", self.prefix(), place(&self.host), self.host)
    }

    /// The key of a section.
    pub(crate) fn section_key(&self, section: Section) -> String {
        format!("{}{SECTIONS}{section}", self.prefix())
    }
}

/// Keys of the hosts of a section: their places are next to each other. Of the whole group also those that are of no host.
fn keys_of(hosts: &str, section: Section) -> Keys {
    if section == Section::WHOLE {
        return Keys::with(hosts);
    }
    let places = section.places();
    Keys::between(&format!("{hosts}{:04x}/", places.start()), &format!("{hosts}{:04x}/", places.end()))
}

fn name(key: &str, prefix: &str) -> String {
    key.strip_prefix(prefix).unwrap_or(key).to_owned()
}

/// The host of a key; of a key where none belongs the key itself, which is no name of a host.
pub(crate) fn host(key: &str, prefix: &str) -> String {
    let placed = key.strip_prefix(prefix).and_then(|rest| rest.split_once('/'));
    let host = placed.filter(|(at, host)| *at == format!("{:04x}", place(host))).map(|(_, host)| host);
    host.unwrap_or(key).to_owned()
}
