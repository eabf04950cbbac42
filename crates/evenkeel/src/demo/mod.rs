//! `evenkeel demo`: shows an effect live, in under a minute.

mod bufferbloat;
mod neighbour;

/// Options of `evenkeel demo`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    demo: Demo,
}

#[derive(Debug, clap::Subcommand)]
enum Demo {
    /// A light client behind a bulk writer on one device, under each admission setting
    Bufferbloat(bufferbloat::Args),
    /// A reader beside a bulk writer on one disk: alone, without limits, with io.max by hand, and under `evenkeel guard`
    ///
    /// Needs root. Makes a scratch file, a loop device over it and control groups, and removes them at its end.
    Neighbour(neighbour::Args),
    /// Run the load of `neighbour`, which starts this command
    #[command(hide = true)]
    NeighbourLoad(neighbour::load::Args),
}

/// Runs the demonstration that `args` names.
///
/// # Errors
/// When the demonstration cannot run.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.demo {
        Demo::Bufferbloat(args) => bufferbloat::run(args),
        Demo::Neighbour(args) => neighbour::run(args),
        Demo::NeighbourLoad(args) => neighbour::load::run(args),
    }
}
