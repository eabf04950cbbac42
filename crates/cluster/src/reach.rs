//! Does etcd answer? Asked once, before anything depends on it.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::config;

use crate::error::Error;
use crate::etcd::{Client, Keys, Traffic};
use crate::settings::Settings;
use crate::watcher::MEMBERS;

/// The answer of an address: the number of members of the cluster, or why it did not answer.
pub type Answer = Result<u64, String>;

/// Asks each address for the number of members of the cluster; returns each address with its answer.
///
/// # Errors
/// When this host has no name for the cluster, or no address can be asked at all.
pub fn reach(cluster: &config::Cluster) -> Result<Vec<(String, Answer)>, Error> {
    let settings = Settings::of_this_host(cluster)?;
    let (keys, patience) = (Keys::with(&format!("{}{MEMBERS}", settings.prefix())), settings.patience());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .map_err(Error::Ask)?;
    let ask = async |endpoint: &config::Endpoint| {
        let mut client = Client::open(endpoint, patience, &Arc::new(Traffic::default())).await?;
        client.count(&keys).await
    };
    let answers = cluster.etcd.iter().map(|endpoint| {
        let answer = runtime.block_on(ask(endpoint)).map_err(|error| error.to_string());
        (endpoint.to_string(), answer)
    });
    let answers = answers.collect();
    // A name that is still looked up is not waited for.
    runtime.shutdown_timeout(Duration::ZERO);
    Ok(answers)
}
