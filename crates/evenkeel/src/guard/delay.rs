//! `evenkeel guard delay`: delays packets to named clients by a fixed time, without a controller.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::ensure;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use evenkeel_guard::actuator::{Client, Delay, Delays, Packets, Plan, Settings};
use evenkeel_guard::discovery::sockets::DEFAULT_PORTS;
use evenkeel_guard::host::Acting;
use evenkeel_policy::figures::counted;
use evenkeel_policy::units::Duration;

use super::JOURNAL;
use crate::output::{self, Usage};

/// Interval at which this command renews the delays. The timeout after which the kernel ends a delay must be several times
/// longer.
const TICK: std::time::Duration = std::time::Duration::from_millis(100);

/// Arguments of `evenkeel guard delay`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Address of a client; may be repeated
    #[arg(long = "client", required = true, value_name = "ADDRESS", value_parser = address)]
    clients: Vec<IpAddr>,
    /// Delay of every packet, at most --maximum
    #[arg(long)]
    delay: Duration,
    /// Network device by which the clients are reached; may be repeated
    #[arg(long = "device", required = true)]
    devices: Vec<String>,
    /// Packets to delay: acknowledgements, to slow a client that writes (with a capped receive window); data, to slow
    /// one that reads; or all
    #[arg(long, value_parser = packets(), default_value = "all")]
    packets: Packets,
    /// Port of the service on this host; may be repeated. By default those of iSCSI, NVMe/TCP and NBD
    #[arg(long = "port", default_values_t = DEFAULT_PORTS)]
    ports: Vec<u16>,
    /// Longest delay that --delay may have
    #[arg(long, default_value = "20ms")]
    maximum: Duration,
    /// Time after which the kernel ends the delay by itself if this command no longer renews it
    #[arg(long, default_value = "3s")]
    timeout: Duration,
    /// End after this time; without it, at Ctrl-C
    #[arg(long = "for", value_name = "TIME")]
    time: Option<Duration>,
    /// Attach by filters, as on kernels before 6.6: for tests on kernels that have both
    #[arg(long, hide = true)]
    filters: bool,
    /// The agent's journal, which lists the settings to restore
    #[arg(long, default_value = JOURNAL)]
    journal: PathBuf,
    /// Say what would be done, and do nothing
    #[arg(long)]
    dry_run: bool,
}

/// A parser for the option `--packets`: which packets to a client are delayed.
fn packets() -> impl TypedValueParser<Value = Packets> {
    PossibleValuesParser::new(["acknowledgements", "data", "all"]).map(|name| match name.as_str() {
        "acknowledgements" => Packets::Acknowledgements,
        "data" => Packets::Data,
        _ => Packets::All,
    })
}

/// Parses the IP address of a client.
fn address(text: &str) -> Result<IpAddr, &'static str> {
    text.parse().map_err(|_| "write an address, for example 192.0.2.21")
}

/// Delays the clients' packets until the time is over or a signal stops the command, then removes the delays.
pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let (delay, maximum) = (args.delay, args.maximum);
    ensure!(delay > Duration::ZERO, Usage("--delay 0s delays no packet; give more, for example 5ms".into()));
    ensure!(
        delay <= maximum,
        Usage(format!("--delay {delay} is more than --maximum {maximum}; raise --maximum, which is at most 1s"))
    );
    let settings = Settings {
        devices: args.devices.clone(),
        ports: args.ports.clone(),
        maximum: maximum.into(),
        timeout: args.timeout.into(),
        filters: args.filters,
    };
    let of_each = Delay { packets: args.packets, delay: delay.into() };
    let delays: Delays = args.clients.iter().map(|address| (Client::Address(*address), of_each)).collect();
    if args.dry_run {
        for step in Plan::new(settings)?.steps() {
            output::print(&format!("would {step}\n"))?;
        }
        let packets = match args.packets {
            Packets::Acknowledgements => "acknowledgements",
            Packets::Data => "data",
            Packets::All => "all packets",
        };
        let end = args.time.map_or_else(|| "until Ctrl-C".to_owned(), |time| format!("for {time}"));
        for client in &args.clients {
            output::print(&format!("would delay {packets} to {client} by {delay}, {end}\n"))?;
        }
        return Ok(());
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in crate::signals::STOP {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    let mut acting = Acting::start(Some(settings), &args.journal, output::say)?;
    let started = Instant::now();
    let mut announced = false;
    let outcome = loop {
        let now = Instant::now();
        if let Err(e) = acting.set(now, &delays) {
            break Err(e);
        }
        if !announced {
            announced = true;
            for (client, delay) in acting.delays().iter() {
                let name = match client {
                    Client::Address(address) => address.to_string(),
                    Client::Connection { address, client_port, .. } => format!("{address} port {client_port}"),
                };
                output::say(&format!("delaying {name} by {:?}\n", delay.delay));
            }
        }
        if stop.load(Ordering::Relaxed) || args.time.is_some_and(|time| now.duration_since(started) >= time.into()) {
            break Ok(());
        }
        std::thread::sleep(TICK);
    };
    let drops = acting.stop()?;
    outcome?;
    let drops = drops.map_or_else(|| "an unknown number of packets".to_owned(), |n| counted(n, "packet"));
    output::print(&format!("settings restored; {drops} dropped while delayed\n"))
}
