//! `evenkeel demo`: shows an effect live, in under a minute.

mod bufferbloat;

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
}

/// Runs the demonstration that `args` names.
///
/// # Errors
/// When the server or its clients cannot run.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    match &args.demo {
        Demo::Bufferbloat(args) => bufferbloat::run(args),
    }
}
