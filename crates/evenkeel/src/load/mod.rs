//! `evenkeel load URI`: a batching load generator for NBD servers.

/// Options of `evenkeel load`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Export to load: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH
    uri: Option<String>,
}

/// Runs the load and prints its result.
///
/// # Errors
/// Reports a server that cannot be reached or is lost, request errors and content mismatches.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    anyhow::bail!("no load for {:?} in this build", args.uri)
}
