//! The server's HTTP interface: state and metrics for all clients, and changes on the control socket.

use std::sync::Arc;

use axum::Router;

pub(crate) mod api;
pub(crate) mod audit;
pub(crate) mod body;
pub(crate) mod edit;
mod history;
mod manager;
pub(crate) mod metrics;
mod recent;
pub(crate) mod recording;
pub(crate) mod source;

pub use api::{CHANGES, READS};
pub use edit::{Consent, with_pool, with_server, with_tenant, with_volume_patch};
pub use history::record;
pub use manager::Manager;
pub use source::{Loaded, Recorded, Source, lock_of, own_files, record_of};

use crate::request::router;
use crate::{dashboard, rules};

/// The router of the status address; the caller is to add [`rules::read_only`].
pub(crate) fn status_router(manager: Arc<Manager>) -> Router {
    dashboard::router().merge(router(READS)).with_state(manager)
}

/// The router of the control socket.
pub(crate) fn control_router(manager: Arc<Manager>) -> Router {
    rules::control(router(READS).merge(router(CHANGES)).with_state(manager))
}
