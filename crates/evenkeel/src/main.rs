//! The program `evenkeel`: parses the command line and runs the command.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use evenkeel_guard::discovery::mark::Mark;
use log::Log;
use parallel::{INTERRUPTED, Stopped};
use rustix::process::{Resource, getrlimit};
use signal_hook::consts::SIGXFSZ;

mod check;
mod config;
mod control;
mod demo;
mod flight;
#[cfg(test)]
#[path = "../tests/serve/folder.rs"]
mod folder;
mod guard;
mod health;
mod help;
mod history;
mod load;
mod log;
mod manual;
mod output;
mod parallel;
mod record;
#[cfg(test)]
mod reference;
mod reproduce;
mod serve;
mod signals;
mod sim;
mod suggest;
mod top;
mod trace;
mod why;

/// Mark in this program's file by which `evenkeel guard` recognises a running `evenkeel serve`, whatever the file is called.
#[used]
#[unsafe(link_section = ".note.evenkeel")]
static MARK: Mark = Mark::SERVES;

/// Keeps shared block storage on an even keel: many clients share one device, and each gets what it was guaranteed.
#[derive(Parser)]
#[command(version, propagate_version = true, disable_help_subcommand = true)]
struct Cli {
    /// Log to stderr: error, warn, info, debug, trace, or a filter such as evenkeel_server=debug
    #[arg(long, global = true, env = "EVENKEEL_LOG", default_value = "info", value_name = "FILTER")]
    log: String,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve volumes over NBD
    ///
    /// Without options: a sparse volume of 1 GiB, export disk0, kept in ./evenkeel-data, on 127.0.0.1:10809 and on a
    /// Unix socket, with its status at http://127.0.0.1:9809. Needs no privileges.
    Serve(serve::Args),
    /// Load an NBD server and measure it
    Load(load::Args),
    /// Show an effect live
    Demo(demo::Args),
    /// Simulate a scenario: the same controllers against a modelled device, in virtual time
    ///
    /// Exit status: 0 when every bound of the scenario is met, 1 when one is missed, 2 when the scenario cannot be run,
    /// 130 after an interrupt.
    Sim(sim::Args),
    /// Repeat the experiments of a paper in virtual time, beside ours
    Reproduce(reproduce::Args),
    /// Enforce a policy on storage that is already there: the agent
    #[command(subcommand)]
    Guard(guard::Command),
    /// Check a policy and this host: what is enforced here, by which setting, and what is not
    ///
    /// Reads the file as `evenkeel serve` and as `evenkeel guard` do. Prints every error with line, key and cure; then a row
    /// for each setting of a tenant or pool at its enforcement point, with what is measured, what is throttled and which
    /// setting wins; then what this host does not enforce, and what is lost by that. Changes and loads nothing, and asks no
    /// running server; it tries the addresses of `[cluster]` and the admin sockets of OSDs that the file names. Exit status 1 if
    /// the file cannot be used.
    Check(check::Args),
    /// Print the example configuration, or a JSON schema
    #[command(subcommand)]
    Config(config::Command),
    /// Watch a running server or agent: rates, latencies, targets, and what is throttled by whom
    ///
    /// A view of `evenkeel serve` or `evenkeel guard` in a terminal of 80 x 24 or more, refreshed every second.
    Top(top::Args),
    /// Show what is wrong with a running server or agent, with cause and cure
    ///
    /// The worst trouble is the first. Exit status, as plugins of Nagios have it: 0 no trouble, 1 a warning, 2 critical
    /// (requests fail or hang, or data may be lost), 3 neither a server nor an agent answers, or the command line is wrong.
    Health(health::Args),
    /// Show figures, decisions and troubles of the past
    ///
    /// A server or an agent records every second; times without record are named with their reason. The last hour has seconds,
    /// six hours 10 s, three days minutes, a month 10 minutes, within a bound (server.history, agent.history). Of percentiles a
    /// step has the largest of its seconds.
    History(history::Args),
    /// Show decisions about a tenant: now, or at a time of the past
    ///
    /// Verdicts and throttle at present, figures of the moment, troubles that last, and the decisions of the hour before
    /// about the tenant and its pools, from the history.
    Why(why::Args),
    /// Suggest a policy: measure a device by reads alone, or use a history
    ///
    /// Reads blocks of 4 and 128 KiB at random, past the page cache, with 1, 4, 16 and 64 of them in flight. The latency
    /// target lies between the unloaded and the loaded p99; a limit is suggested where throughput falls under load.
    Suggest(suggest::Args),
    /// Record every request of a server or block device in a file: tenant, client, kind, offset, length, times and outcome
    ///
    /// The recording has no data. The server writes it, in a file that only the server's user may read. A recording whose
    /// command is killed goes on until its time is over; --stop ends it. With --device or --status this command itself records
    /// the requests of block devices of this host, by control group.
    Record(record::Args),
    /// Examine recordings, and traces of other programs: figures, plots, conversion
    #[command(subcommand)]
    Trace(trace::Command),
    /// Learn the model of a device from a recording
    ///
    /// The first half of the recording is for the search, the second half for the error: throughput, and by kind of request the
    /// median and the 99th percentile of the device latency. Refuses, with the reason, a recording that does not show the device
    /// under several loads. Parameters that it does not show are named. Takes some 200 bytes of memory a request.
    Fit(flight::fit::Args),
    /// Replay a recording on a modelled device, under its own policy and another
    ///
    /// Clients that waited for answers send sooner if answers come sooner; other arrivals keep their times. The table has each
    /// tenant as recorded, as simulated under the recorded policy, which checks the device, and as simulated with the changes.
    /// Takes some 200 bytes of memory a request.
    Replay(flight::replay::Args),
    /// Find the settings that meet latency targets and guarantees for a recorded load
    ///
    /// Simulates the policy as it is and with changes, prints the one that meets all for the least lost throughput, and how sure
    /// that is. Exit status 1 if none does; then by how much targets are missed, and with how much less load they are met.
    /// Takes some 200 bytes of memory a request.
    Advise(flight::advise::Args),
    /// Show what a running server does
    State(control::StateArgs),
    /// Create, grow and remove volumes of a running server
    #[command(subcommand)]
    Volume(control::VolumeCommand),
    /// List tenants of a running server, and change their QoS policy
    #[command(subcommand)]
    Tenant(control::TenantCommand),
    /// List pools of a running server, and change them
    #[command(subcommand)]
    Pool(control::PoolCommand),
    /// Change settings of a running server itself
    #[command(subcommand)]
    Server(control::ServerCommand),
    /// Make a running server read its configuration again
    Reload(control::Reload),
    /// Print completions for a shell
    ///
    /// For bash: evenkeel completions bash > ~/.local/share/bash-completion/completions/evenkeel
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the names of a running server's pools, tenants or volumes, for completions
    #[command(hide = true)]
    Names(control::Names),
    /// Print the help of a command, or find a term, key or metric in the manual
    ///
    /// Words that name no command are looked up: the glossary's definition comes first, then commands, keys of the
    /// configuration, metrics, and the best sections of the manual's pages. Needs neither network nor files.
    Help(help::Args),
    /// Write the manual pages: one for each command, and evenkeel.toml(5)
    Manual {
        /// The folder for the pages; it must exist
        folder: PathBuf,
    },
}

/// Stack limit (`ulimit -s`) in bytes below which the program runs on a thread with a stack of [`STACK`], to which the limit
/// does not apply; otherwise the program would crash without a message.
const ENOUGH_STACK: u64 = 1 << 20;
/// Stack of the thread on which the program runs under a low stack limit, in bytes: the usual size of a main thread's.
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    if getrlimit(Resource::Stack).current.is_none_or(|bytes| bytes >= ENOUGH_STACK) {
        return run();
    }
    match std::thread::Builder::new().stack_size(STACK).spawn(run) {
        // The panic's message is printed.
        Ok(thread) => thread.join().unwrap_or(ExitCode::from(101)),
        Err(error) => {
            let cure = "raise the limit of the stack: LimitSTACK= of the service, or ulimit -s";
            output::complain(&format!("evenkeel: cannot start a thread: {error}; {cure}\n"));
            ExitCode::from(2)
        }
    }
}

/// The parser of the command line, with examples in its help.
fn program() -> clap::Command {
    manual::with_examples(with_negative_numbers(Cli::command()))
}

/// Makes all options of a command and its subcommands accept negative numbers as values, so that an error message names the
/// wrong value and not an unknown option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let takes = arg.get_action().takes_values();
        if takes { arg.allow_negative_numbers(true) } else { arg }
    });
    command.mut_subcommands(with_negative_numbers)
}

/// The words of a command line, with each negative value joined to its option: `--duration -1s` becomes `--duration=-1s`.
/// So an error message names the wrong value and not an unknown option.
fn joined(words: Vec<OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::with_capacity(words.len());
    for word in words {
        let is_negative = matches!(word.as_encoded_bytes(), [b'-', b'0'..=b'9', ..]);
        let is_option = |word: &[u8]| word.len() > 2 && word.starts_with(b"--") && !word.contains(&b'=');
        match joined.last_mut() {
            Some(option) if is_negative && is_option(option.as_encoded_bytes()) => {
                option.push("=");
                option.push(word);
            }
            _ => joined.push(word),
        }
    }
    joined
}

fn run() -> ExitCode {
    let described = program();
    let words = joined(help::in_front(std::env::args_os().collect(), &described));
    let parsed = described.try_get_matches_from(&words).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => {
            let error = help::hinted(error, &words);
            if error.use_stderr() && health::is_named(&words) {
                return health::unknown(error.to_string().trim_start_matches("error: "));
            }
            error.exit()
        }
    };
    let serves = matches!(cli.command, Command::Serve(_));
    let lasts = serves || matches!(cli.command, Command::Guard(_));
    // A write past RLIMIT_FSIZE is an error of that write and must not end the program.
    let _ = signals::pass([SIGXFSZ]);
    if lasts {
        let _ = signals::pass_strays();
    }
    let log = match Log::start(&cli.log, lasts) {
        Ok(log) => log,
        Err(error) if matches!(cli.command, Command::Health(_)) => return health::unknown(&format!("{error:#}")),
        Err(error) => {
            output::complain(&format!("evenkeel: {error:#}\n"));
            return ExitCode::from(2);
        }
    };
    let done = match cli.command {
        Command::Serve(args) => serve::run(args),
        Command::Load(args) => load::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Sim(args) => return sim::run(&args),
        Command::Reproduce(args) => return reproduce::run(&args),
        Command::Guard(command) => guard::run(command),
        Command::Check(args) => check::run(&args),
        Command::Config(command) => config::run(&command),
        Command::Top(args) => top::run(&args),
        Command::Health(args) => return health::run(&args),
        Command::History(args) => history::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Suggest(args) => suggest::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Trace(command) => trace::run(&command),
        Command::Fit(args) => flight::fit::run(&args),
        Command::Replay(args) => flight::replay::run(&args),
        Command::Advise(args) => flight::advise::run(&args),
        Command::State(args) => control::state(&args),
        Command::Volume(command) => control::volume(command),
        Command::Tenant(command) => control::tenant(command),
        Command::Pool(command) => control::pool(command),
        Command::Server(command) => control::server(command),
        Command::Reload(args) => control::reload(&args),
        Command::Names(args) => control::names(&args),
        Command::Completions { shell } => manual::completions(Cli::command(), shell),
        Command::Help(args) => help::run(&args, program()),
        Command::Manual { folder } => manual::pages(Cli::command(), &folder),
    };
    if let Err(error) = &done {
        log.say(&format!("evenkeel: {error:#}"));
    }
    log.finish();
    let status = match &done {
        Ok(()) => 0,
        Err(error) if error.is::<output::Usage>() => 2,
        Err(error) if error.is::<output::Unusable>() => output::UNUSABLE,
        Err(error) if matches!(error.downcast_ref(), Some(Stopped::Interrupted { .. })) => INTERRUPTED,
        Err(_) => 1,
    };
    if serves {
        evenkeel_server::leave(status);
    }
    ExitCode::from(status)
}
