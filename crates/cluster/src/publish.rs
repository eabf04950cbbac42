//! Publishes this host's reports under its key, which lives as long as the host's lease, and which no second process with the
//! same name can write. Also publishes the sum of the host's shard for a period, unless another host has published it.

use std::sync::Arc;
use std::thread;
use std::time::{Duration as StdDuration, Instant as StdInstant};

use evenkeel_control::cluster::SKEW_PERIODS;
use evenkeel_control::cluster::shard::Shard;
use evenkeel_policy::cluster::Record;
use tokio::sync::mpsc::Sender;
use tokio::sync::oneshot;
use tokio::sync::watch::Receiver;
use tokio::time::timeout;

use crate::clock::since_boot;
use crate::etcd::{Access, Claim, Client, Error};
use crate::event::Event;
use crate::kept;
use crate::rival::Rival;
use crate::settings::Settings;

/// A report of this host that is to be written under its key.
#[derive(Clone, Debug)]
pub(crate) struct Outgoing {
    pub(crate) text: String,
    /// True for the last report, with which this host leaves the cluster.
    pub(crate) leaving: bool,
    /// The file for a restart, which has to be written before the report; `None`: no file.
    pub(crate) kept: Option<Arc<str>>,
    /// When the report was made, since the machine's start.
    pub(crate) made: StdDuration,
}

/// The sum of a shard's reports that is to be written under the shard's key.
#[derive(Clone, Debug)]
pub(crate) struct OutgoingSum {
    pub(crate) shard: Shard,
    pub(crate) period: u64,
    /// Revision of the store up to which this host has read the reports of the shard.
    pub(crate) revision: u64,
    pub(crate) text: String,
}

impl OutgoingSum {
    /// True if this sum is not to be written, as one of this period, with the reports up to this revision of the store, is there:
    /// other shards must not lose later reports. `present`: the present period of this host's clock. A sum that is far ahead of
    /// it is of a clock that differs, and hosts whose clocks are near this host's take no slots from it.
    fn is_published(&self, present: u64, (period, revision): (u64, u64)) -> bool {
        let latest = present.saturating_add(SKEW_PERIODS).max(self.period);
        revision > self.revision || (self.period..=latest).contains(&period)
    }
}

/// Revision up to which a sum that says so has reports, as it was `written` at this revision of the store; 0: not known. A sum is
/// written after the reports in it: one that has later reports was made before the store was restored from an older state.
pub(crate) fn has_up_to(revision: u64, written: u64) -> u64 {
    if revision < written { revision } else { 0 }
}

/// The newest report and sum that are to be published; older ones are skipped.
pub(crate) struct ToPublish {
    pub(crate) own: Receiver<Option<Outgoing>>,
    pub(crate) sum: Receiver<Option<OutgoingSum>>,
}

/// Largest number of attempts to write a sum, which another host may write at the same time.
const ATTEMPTS: usize = 3;
/// Number of lengths of the lease after which a file for a restart counts no longer, at the latest.
const KEPT_LEASES: u32 = 20;

/// Publishes the newest reports and sums until the last report, with which this host leaves.
pub(crate) async fn run(settings: Settings, access: Arc<Access>, events: Sender<Event>, to_publish: ToPublish) {
    let ToPublish { mut own, mut sum } = to_publish;
    let mut publisher = Publisher::new(settings, access);
    loop {
        let written = tokio::select! {
            biased;
            changed = sum.changed() => {
                if changed.is_err() {
                    // The host goes on under another name; this one may have become free meanwhile.
                    return publisher.leave().await;
                }
                let Some(sum) = sum.borrow_and_update().clone() else { continue };
                publisher.publish_sum(&sum).await
            }
            changed = own.changed() => {
                if changed.is_err() {
                    return publisher.leave().await;
                }
                let Some(Outgoing { text, leaving, kept, made }) = own.borrow_and_update().clone() else { continue };
                let written = match publisher.keep(kept, leaving).await {
                    Ok(()) => publisher.publish(&text, made).await,
                    Err(unwritten) => Err(unwritten),
                };
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
            Err(Unwritten::Taken(why) | Unwritten::Unsent(why)) => Event::Unwritten { why },
            Err(Unwritten::Rival) => Event::Rival,
        };
        // It is not heard any more when the last one follows.
        let _ = events.send(event).await;
    }
}

enum Unwritten {
    Error(Error),
    /// Another process owns this host's key; with a message about that.
    Taken(String),
    /// Another process owns this host's key, and runs.
    Rival,
    /// The report must not be written, or no longer; with a message about that.
    Unsent(String),
}

impl From<Error> for Unwritten {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

struct Publisher {
    settings: Settings,
    key: String,
    access: Arc<Access>,
    /// Index, in the configuration, of the etcd server to ask next.
    endpoint: usize,
    client: Option<Client>,
    lease: Option<i64>,
    /// etcd revision of this process's newest write of its key; `None`: this process does not own the key, as far as it knows.
    written_at: Option<i64>,
    /// The other process that owned the key most recently.
    rival: Rival,
    /// The newest sum that this process has written or read.
    summed: Option<Summed>,
    /// [`OutgoingSum::revision`] of the newest sum of this process.
    taken_in: u64,
    /// The content of the file for a restart; `None`: there is no file.
    kept: Option<Arc<str>>,
    /// True if this process has brought the file into this state.
    is_kept: bool,
    /// When the file was written or removed most recently, or this process started.
    kept_at: StdInstant,
    /// True after a failure to write that file, which was logged.
    is_unkept: bool,
}

/// The state of a shard's key when this process wrote or read it most recently.
#[derive(Clone, Copy, Debug)]
struct Summed {
    shard: Shard,
    /// etcd revision of the key's newest write; 0: the key does not exist.
    revision: i64,
    /// The period of the sum in the key, and the revision up to which reports are in it; `None` if the key's value is no sum.
    sum: Option<(u64, u64)>,
}

impl Publisher {
    fn new(settings: Settings, access: Arc<Access>) -> Self {
        let key = settings.member_key();
        Self {
            settings,
            key,
            access,
            endpoint: 0,
            client: None,
            lease: None,
            written_at: None,
            rival: Rival::default(),
            summed: None,
            taken_in: 0,
            kept: None,
            is_kept: false,
            kept_at: StdInstant::now(),
            is_unkept: false,
        }
    }

    /// Writes the file for a restart, if it changes, or removes it when this host leaves. The report must not leave before: the
    /// file may say less than a report claims, never more. A slow disk delays reports, and nothing else.
    ///
    /// # Errors
    /// If an old file can be neither replaced nor removed: the report must not leave while that file counts.
    async fn keep(&mut self, text: Option<Arc<str>>, leaving: bool) -> Result<(), Unwritten> {
        let Some(path) = self.settings.kept.clone() else { return Ok(()) };
        let text = text.filter(|_| !leaving);
        if self.is_kept && text == self.kept && !leaving {
            return Ok(());
        }
        self.kept.clone_from(&text);
        let (done, finished) = oneshot::channel();
        let (to, content) = (path.clone(), text);
        let work = move || {
            let written = match &content {
                Some(text) => kept::write(&to, text),
                None => kept::remove(&to),
            };
            let failed = written.err().map(|error| error.to_string());
            let is_old = failed.is_some() && kept::remove(&to).is_err();
            let _ = done.send((failed, is_old));
        };
        let (failed, is_old) = match thread::Builder::new().name("evenkeel-kept".into()).spawn(work) {
            Ok(_) => finished.await.unwrap_or_else(|_| (Some("the thread that writes the file ended".into()), true)),
            // Without threads an old file goes, at least.
            Err(error) => (Some(error.to_string()), kept::remove(&path).is_err()),
        };
        if let Some(why) = &failed
            && !self.is_unkept
        {
            tracing::warn!(
                "cluster: {} cannot be written: {why}; make room there, or make the folder writable. Until then, a restart without etcd serves almost nothing of the tenants' limits at first (to control groups at least a 16th), and an eighth of them after three leases",
                path.display()
            );
        }
        (self.is_kept, self.is_unkept) = (failed.is_none(), failed.is_some());
        if !is_old {
            self.kept_at = StdInstant::now();
            return Ok(());
        }
        let counts_for = StdDuration::from(self.settings.cluster.lease).saturating_mul(KEPT_LEASES);
        if self.kept_at.elapsed() >= counts_for {
            return Ok(());
        }
        Err(Unwritten::Unsent(format!(
            "{} can be neither written nor removed, so that this host, after a restart, would use more of the tenants' limits than other members know: {}; remove the file, or make its folder writable",
            path.display(),
            failed.unwrap_or_default()
        )))
    }

    /// Writes a report of this host that was `made` at this time, unless it is too old: after a longer time without contact a
    /// host may use more than the report claims.
    async fn publish(&mut self, text: &str, made: StdDuration) -> Result<(), Unwritten> {
        let lease = StdDuration::from_secs(self.settings.cluster.lease_seconds());
        let left = lease.saturating_sub(since_boot().saturating_sub(made));
        if !left.is_zero()
            && let Ok(written) = timeout(left, self.try_servers(text)).await
        {
            return written;
        }
        if !left.is_zero() {
            self.endpoint = (self.endpoint + 1) % self.settings.cluster.etcd.len();
        }
        Err(Unwritten::Unsent(format!(
            "a report of this host was not written to etcd within {lease:?}, and is too old now: etcd or a disk of this host is slow; use a faster disk, or a longer cluster.lease"
        )))
    }

    /// Writes a report of this host; tries each etcd server once.
    async fn try_servers(&mut self, text: &str) -> Result<(), Unwritten> {
        let servers = self.settings.cluster.etcd.len();
        let mut last = None;
        for _ in 0..servers {
            match self.write(text).await {
                Ok(()) => return Ok(()),
                Err(Unwritten::Error(error)) => {
                    self.client = None;
                    self.endpoint = (self.endpoint + 1) % servers;
                    last = Some(error);
                }
                Err(unwritten) => return Err(unwritten),
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
                Client::open(endpoint, self.settings.patience(), &self.access).await?
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
        // A value that cannot be read is of one process of another version.
        Err(self.taken(holder.unwrap_or_default(), written_at))
    }

    /// The consequence of a key that another process with this incarnation has written, most recently at `written_at`.
    fn taken(&mut self, incarnation: u64, written_at: i64) -> Unwritten {
        let may_rename = self.settings.may_rename;
        if self.rival.observe(incarnation, written_at) && may_rename {
            return Unwritten::Rival;
        }
        Unwritten::Taken(format!(
            "another process is host {:?} of cluster {:?}: if that was an earlier run on this host, its key expires within {} s; otherwise this process {}: give one of the two hosts another name with cluster.host",
            self.settings.host,
            self.settings.cluster.name,
            self.settings.cluster.lease_seconds(),
            if may_rename { "takes another name soon" } else { "decides alone" }
        ))
    }

    /// Writes the sum of a shard, unless a sum of the same or a later period is published, or one with later reports. Only a host
    /// that owns its key writes its shard's sum, which lives as long as the lease of the host that wrote it.
    async fn publish_sum(&mut self, sum: &OutgoingSum) -> Result<(), Unwritten> {
        // A store that was restored counts from a lower revision on.
        if sum.revision < self.taken_in {
            self.summed = None;
        }
        self.taken_in = sum.revision;
        let (Some(lease), Some(_), Some(mut client)) = (self.lease, self.written_at, self.client.take()) else {
            return Ok(());
        };
        let key = self.settings.shard_key(sum.shard);
        let present = self.settings.cluster.control().period_at((self.settings.clock)());
        let known = self.summed.filter(|known| known.shard == sum.shard);
        let mut known = known.unwrap_or(Summed { shard: sum.shard, revision: 0, sum: None });
        for _ in 0..ATTEMPTS {
            if known.sum.is_some_and(|known| sum.is_published(present, known)) {
                break;
            }
            let (revision, other) = client.renew(&key, sum.text.as_bytes(), lease, known.revision).await?;
            let written = match other {
                None => Some((sum.period, sum.revision)),
                Some(value) => Record::parse(&value).ok().map(|record| (record.period, record.revision)),
            };
            let written_at = u64::try_from(revision).unwrap_or(0);
            let sum = written.map(|(period, up_to)| (period, has_up_to(up_to, written_at)));
            known = Summed { revision, sum, ..known };
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use evenkeel_policy::config::Cluster;

    use super::*;
    use crate::folder::Folder;
    use crate::settings::wall_clock;

    /// A publisher that no etcd answers, with the file for a restart in `folder`.
    fn publisher(folder: &Path) -> Publisher {
        let etcd = vec!["http://127.0.0.1:1".parse().expect("an address")];
        let cluster = Cluster { etcd, ..Cluster::default() };
        let (host, clock) = ("a".into(), wall_clock);
        let settings = Settings { cluster, host, incarnation: 1, clock, kept: None, may_rename: true };
        Publisher::new(settings.kept_in(folder), Arc::default())
    }

    #[test]
    fn a_dry_run_beside_another_process_of_its_name_stays_alone() {
        let mut publisher = publisher(Path::new("/nowhere"));
        let seen = |publisher: &mut Publisher| {
            (0..9).for_each(|at| drop(publisher.taken(7, at)));
            publisher.taken(7, 9)
        };
        assert!(matches!(seen(&mut publisher), Unwritten::Rival));
        publisher.settings = publisher.settings.clone().alone_beside_another();
        let Unwritten::Taken(why) = seen(&mut publisher) else { panic!("it would take another name") };
        assert!(why.contains("another process is host \"a\"") && !why.contains("takes another name"), "{why}");
    }

    #[test]
    fn a_sum_gives_way_to_later_reports_and_to_its_period_but_to_no_clock_that_is_ahead() {
        let sum = OutgoingSum { shard: Shard::WHOLE, period: 100, revision: 50, text: String::new() };
        for (present, known, is_published) in [
            (101, (99, 50), false),
            (101, (100, 40), true),
            (101, (102, 40), true),
            (101, (103, 40), false),
            (101, (400, 50), false),
            (101, (400, 51), true),
            // This host was late.
            (105, (106, 50), true),
            (101, (20, 51), true),
        ] {
            assert_eq!(sum.is_published(present, known), is_published, "{present}, {known:?}");
        }
    }

    #[test]
    fn a_sum_from_before_the_store_was_restored_has_no_known_reports_and_gives_way() {
        assert_eq!([has_up_to(6, 7), has_up_to(7, 7), has_up_to(1_000, 7), has_up_to(0, 7)], [6, 0, 0, 0]);
        let sum = OutgoingSum { shard: Shard::WHOLE, period: 100, revision: 6, text: String::new() };
        assert!(sum.is_published(101, (99, 1_000)) && !sum.is_published(101, (99, has_up_to(1_000, 7))));
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(work)
    }

    #[test]
    fn no_report_leaves_before_an_old_file_is_gone() {
        let folder = Folder::new();
        let file = folder.join("cluster.json");
        // A folder is neither replaced nor removed as a file, not even by root.
        fs::create_dir_all(&file).expect("a folder");
        let mut publisher = publisher(&folder);
        run(async {
            // The same text is tried again each time, and leaving is no exception.
            for leaving in [false, false, true] {
                let Err(Unwritten::Unsent(why)) = publisher.keep(Some("{}".into()), leaving).await else {
                    panic!("the report would leave")
                };
                assert!(why.contains("cluster.json can be neither written nor removed"), "{why}");
            }
            // A minute later the old file counts no longer.
            let before = publisher.kept_at;
            publisher.kept_at = before.checked_sub(StdDuration::from_secs(60)).expect("a running machine");
            assert!(publisher.keep(Some("{}".into()), false).await.is_ok());
            fs::remove_dir(&file).expect("removed");
            assert!(publisher.keep(Some("{}".into()), false).await.is_ok());
            assert_eq!(fs::read_to_string(&file).expect("it is written"), "{}");
            assert!(publisher.keep(Some("{}".into()), true).await.is_ok() && !file.exists());
        });
    }

    #[test]
    fn without_parts_to_keep_an_old_file_goes() {
        let folder = Folder::new();
        folder.file("cluster.json", "{}");
        assert!(run(publisher(&folder).keep(None, false)).is_ok() && !folder.join("cluster.json").exists());
    }

    #[test]
    fn a_report_that_is_too_old_is_not_written() {
        let mut publisher = publisher(Path::new("/nowhere"));
        run(async {
            let made = since_boot().checked_sub(StdDuration::from_secs(4)).expect("a running machine");
            let Err(Unwritten::Unsent(why)) = publisher.publish("{}", made).await else {
                panic!("it would be written")
            };
            assert!(why.contains("not written to etcd within 3s"), "{why}");
            // A new one is tried.
            assert!(matches!(publisher.publish("{}", since_boot()).await, Err(Unwritten::Error(_))));
        });
    }
}
