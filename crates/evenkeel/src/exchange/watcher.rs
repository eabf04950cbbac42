//! What other hosts say, as it comes: all values, then every change, anew whenever the stream breaks.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::config::Endpoint;
use tokio::sync::mpsc::Sender;
use tokio::time::{sleep, timeout};

use super::etcd::{Change, Client, Error, Traffic};
use super::{Event, Settings};

/// Before the next server is tried.
const PAUSE: Duration = Duration::from_millis(250);

/// Watches for as long as somebody listens.
pub(super) async fn run(settings: Settings, traffic: Arc<Traffic>, events: Sender<Event>) {
    for endpoint in settings.exchange.etcd.iter().cycle() {
        let why = match follow(&settings, endpoint, &traffic, &events).await {
            Ok(()) => return,
            // Nothing is wrong with that: all values are read anew.
            Err(Stop::Error(Error::Compacted { .. })) => continue,
            Err(Stop::Error(error)) => error.to_string(),
            Err(Stop::Silent(silence)) => {
                format!("{endpoint} has told nothing for {silence:?}, not even what we say ourselves")
            }
        };
        if events.send(Event::Unwatched { why }).await.is_err() {
            return;
        }
        sleep(PAUSE).await;
    }
}

enum Stop {
    Error(Error),
    Silent(Duration),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// Follows one server; ends well only when nobody listens any more.
async fn follow(
    settings: &Settings,
    endpoint: &Endpoint,
    traffic: &Arc<Traffic>,
    events: &Sender<Event>,
) -> Result<(), Stop> {
    let prefix = settings.prefix();
    let host = |key: &str| key.strip_prefix(&prefix).unwrap_or(key).to_owned();
    let client = Client::open(endpoint, settings.patience(), traffic).await?;
    let (all, mut changes) = client.follow(&prefix).await?;
    let all = all.into_iter().map(|(key, value)| (host(&key), value)).collect();
    if events.send(Event::Watching { endpoint: endpoint.to_string(), all }).await.is_err() {
        return Ok(());
    }
    // We hear at least ourselves once a period; a way that leads nowhere any more is not told to us.
    let silence = (settings.period() * 2).max(settings.patience() * 2);
    loop {
        let changed = timeout(silence, changes.next()).await.map_err(|_| Stop::Silent(silence))??;
        for change in changed {
            let event = match change {
                Change::Put(key, value) => Event::Said { host: host(&key), value },
                Change::Deleted(key) => Event::Ended { host: host(&key) },
            };
            if events.send(event).await.is_err() {
                return Ok(());
            }
        }
    }
}
