//! The exchange while it runs: started, watched, resized and stopped.

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use evenkeel_control::exchange::section::Sizes;
use evenkeel_policy::state::ExchangeState;
use tokio::sync::{oneshot, watch};

use crate::driver::{Driver, lock};
use crate::error::Error;
use crate::member::Member;
use crate::settings::Settings;

/// The exchange while it runs.
pub struct Handle {
    state: Arc<Mutex<ExchangeState>>,
    sizes: watch::Sender<Sizes>,
    stop: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Handle {
    /// How it goes.
    pub fn state(&self) -> ExchangeState {
        lock(&self.state).clone()
    }

    /// Divides the group otherwise from now on.
    pub fn resize(&self, sizes: Sizes) {
        self.sizes.send_replace(sizes);
    }

    /// Says good-bye to the others, so that they take over the share of this host at once.
    pub fn stop(&self) {
        if let Some((stop, thread)) = lock(&self.stop).take() {
            let _ = stop.send(());
            let _ = thread.join();
        }
    }
}

/// Takes part from now on.
///
/// # Errors
/// When a setting is out of range or no thread can be started.
pub fn start(settings: Settings, member: impl Member) -> Result<Handle, Error> {
    let state = Arc::new(Mutex::new(ExchangeState {
        group: settings.exchange.group.clone(),
        host: settings.host.clone(),
        period_s: settings.period().as_secs_f64(),
        status: "lost".into(),
        because: "nothing has been heard from etcd yet".into(),
        ..ExchangeState::default()
    }));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .map_err(Error::Start)?;
    let (stop, stopped) = oneshot::channel();
    let (sizes, resized) = watch::channel(settings.exchange.sizes());
    let driver = Driver::new(settings, member, Arc::clone(&state))?;
    let run = move || {
        runtime.block_on(driver.run(stopped, resized));
        // A name that is still looked up is not waited for.
        runtime.shutdown_background();
    };
    let thread = thread::Builder::new().name("evenkeel-exchange".into()).spawn(run).map_err(Error::Start)?;
    Ok(Handle { state, sizes, stop: Mutex::new(Some((stop, thread))) })
}
