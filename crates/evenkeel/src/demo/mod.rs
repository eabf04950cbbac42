//! `evenkeel demo`: shows an effect live, in under a minute.

/// Options of `evenkeel demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    demo: Demo,
}

#[derive(Debug, clap::Subcommand)]
enum Demo {
    /// A light client behind a bulk writer, under each admission setting.
    Bufferbloat,
}

/// Runs the demonstration asked for.
///
/// # Errors
/// Reports what kept the server or its clients from running.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match args.demo {
        Demo::Bufferbloat => anyhow::bail!("this build has no server to demonstrate"),
    }
}
