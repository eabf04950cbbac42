//! The recordings of a server, for its owner.

use std::sync::Arc;

use evenkeel_policy::Config;

use super::Server;
use crate::error::Error;
use crate::recorder::{Host, Order, Recorded, Settings};
use crate::shared::Shared;

impl Server {
    fn host(&self) -> Arc<dyn Host> {
        Arc::<Shared>::clone(&self.shared)
    }

    /// Begins to record requests in a file. All requests that arrive after the return are in it, with those that had arrived
    /// before left out. [`Self::recorded`] shows the progress.
    ///
    /// # Errors
    /// If a recording is under way, the order's pool is not known, or its file cannot be made.
    pub fn record(&self, order: Order) -> Result<Recorded, Error> {
        self.shared.recorder.begin(&self.host(), order)
    }

    /// The figures of the recording under way, or of the newest one; `None` before the first recording.
    pub fn recorded(&self) -> Option<Recorded> {
        self.shared.recorder.newest()
    }

    /// Ends the recording under way and waits until its file is complete. Every request that was answered before is in the
    /// file. Returns what [`Self::recorded`] does.
    pub fn end_recording(&self) -> Option<Recorded> {
        self.shared.recorder.end()
    }

    /// Saves the requests of the past in a file, as far as they are kept (`record` in `[server]`). Blocks for seconds.
    ///
    /// # Errors
    /// If requests are not kept, the order's pool is not known, or its file cannot be made or written.
    pub fn record_last(&self, order: Order) -> Result<Recorded, Error> {
        self.shared.recorder.last(&self.host(), order)
    }

    /// Keeps the requests of the last minutes as `config` says.
    pub(super) fn keep_requests(&self, config: &Config) {
        if let Err(error) = self.shared.recorder.keep(&self.host(), Settings::of(config)) {
            tracing::warn!("the server keeps no requests of the last minutes (record in [server]): {error}");
        }
    }
}
