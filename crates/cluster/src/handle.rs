//! Starts, observes, resizes and ends the membership of this host in a cluster.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use evenkeel_control::cluster::shard::Sizes;
use evenkeel_policy::state::ClusterState;
use tokio::sync::{oneshot, watch};

use crate::driver::Driver;
use crate::error::Error;
use crate::etcd::lock;
use crate::participant::Participant;
use crate::settings::Settings;

/// The running membership of this host in a cluster.
pub struct Handle {
    state: Arc<Mutex<ClusterState>>,
    sizes: watch::Sender<Sizes>,
    stop: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Handle {
    /// The present state of the cluster as this host sees it.
    pub fn state(&self) -> ClusterState {
        lock(&self.state).clone()
    }

    /// Sets other sizes of shards, according to which the cluster is divided into shards.
    pub fn resize(&self, sizes: Sizes) {
        self.sizes.send_replace(sizes);
    }

    /// Leaves the cluster and ends its thread. The other hosts take over this host's share without waiting for its lease to
    /// end.
    pub fn stop(&self) {
        if let Some((stop, thread)) = lock(&self.stop).take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// Joins the cluster: starts a thread that reports and decides through `participant`.
///
/// # Errors
/// If a setting is out of range or no thread can be started.
pub fn start(settings: Settings, participant: impl Participant) -> Result<Handle, Error> {
    let state = Arc::new(Mutex::new(ClusterState {
        name: settings.cluster.name.clone(),
        host: settings.host.clone(),
        period_s: settings.period().as_secs_f64(),
        status: "lost".into(),
        because: "nothing has been heard from etcd yet".into(),
        ..ClusterState::default()
    }));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .map_err(Error::Start)?;
    let (stop, stopped) = oneshot::channel();
    let (sizes, resized) = watch::channel(settings.cluster.sizes());
    let driver = Driver::new(settings, participant, Arc::clone(&state))?;
    let run = move || {
        runtime.block_on(driver.run(stopped, resized));
        // A name that is still looked up is not waited for.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name("evenkeel-cluster".into()).spawn(run).map_err(Error::Start)?;
    Ok(Handle { state, sizes, stop: Mutex::new(Some((stop, thread))) })
}
