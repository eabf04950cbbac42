//! A check if etcd answers, to be made before anything depends on etcd.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::config;

use crate::error::Error;
use crate::etcd::{Access, Client, Keys};
use crate::settings::Settings;
use crate::watcher::MEMBERS;

/// The result of asking an etcd server: the number of the cluster's members, or the reason why the server did not answer.
pub type Answer = Result<u64, String>;

/// The reason why the file with the password of etcd's user cannot be used, with the cure; `None` if it can be used, or there is
/// no user.
pub fn password_fault(cluster: &config::Cluster) -> Option<String> {
    Access::of(cluster).password_fault()
}

/// Asks each etcd server of the configuration for the number of the cluster's members; returns each server's address with its
/// answer.
///
/// # Errors
/// If this host has no name for the cluster, or if the system cannot start what a request needs.
pub fn reach(cluster: &config::Cluster) -> Result<Vec<(String, Answer)>, Error> {
    // Files that cannot be used are shown as the reason why no address answers.
    let settings = Settings::unchecked(cluster)?;
    let access = Arc::new(Access::of(cluster));
    let (keys, patience) = (Keys::with(&format!("{}{MEMBERS}", settings.prefix())), settings.patience());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .map_err(Error::Ask)?;
    let ask = async |endpoint: &config::Endpoint| {
        let mut client = Client::open(endpoint, patience, &access).await?;
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
