//! Steps of the iSCSI lab about clients that are not throttled. In the packet-delay paper (figures 6 and 7) the throughput of
//! such clients dropped for an unknown reason when the throttling of other clients began.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use super::holding::Holding;
use super::observe::{Window, mean, observe};
use super::stage::{self, Server, load_command, quiet};
use crate::base::process::Running;
use crate::check::figures::Figures;
use crate::check::steps::Plan;

/// Checks that a single client loses next to no throughput by the BPF program and queues that throttle other clients. The cost
/// is the work on the client's packets by a processor of 500 million instructions per second.
pub(super) fn alone(plan: &Plan, figures: &mut Figures) -> Result<String> {
    let rounds = plan.either(2, 3);
    const LIMIT: f64 = 1.05;
    let load = || stage::load(Server::Lio, 2, &["--seconds", "1", "--write"]);
    let (mut free, mut beside) = (0.0, 0.0);
    for _ in 0..rounds {
        free += load()?.mean_ms / f64::from(rounds);
        let holding = Holding::start(&plan.binary, &[1], 9_500, "all", &[])?;
        beside += load()?.mean_ms / f64::from(rounds);
        holding.stop()?;
    }
    let detail =
        format!("a client that is not held: {free:.3} ms a write alone, {beside:.3} ms beside a throttled one");
    // A client that is throttled by mistake takes three times as long.
    figures.at_most("write_of_free", beside / free, 1.5, LIMIT);
    Ok(detail)
}

/// Does `work` while another thread observes.
fn observed_during<T>(
    observe: impl Fn() -> Result<Vec<Window>> + Sync,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Vec<Window>, T)> {
    thread::scope(|scope| -> Result<_> {
        let observer = scope.spawn(&observe);
        let done = work()?;
        Ok((observer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the observer panicked")))?, done))
    })
}

/// Repeats the paper's figure 7: four hosts write the same load; three of them are throttled and released. Checks the fourth
/// host in windows that are short enough to show a drop at the moment at which throttling begins or ends.
pub(super) fn beside_held(plan: &Plan, figures: &mut Figures) -> Result<String> {
    const WINDOW: Duration = Duration::from_millis(250);
    // Windows of each of the three parts: free, held, free again.
    let count = plan.either(8, 12);
    let writers: Vec<Running> = (1..=stage::HOSTS)
        .flat_map(|host| [(host, 1), (host, 2)])
        .map(|(host, worker)| {
            let mut command = load_command(Server::Lio, host, worker, &["--write", "--seconds", "20"])?;
            Running::spawn(quiet(&mut command))
        })
        .collect::<Result<_>>()?;
    thread::sleep(Duration::from_secs(1));
    let started = Instant::now();
    let device = Server::Lio.device(1);
    let look = || observe(&device, started, count, WINDOW);
    let windows = look()?;
    // Observed from its first instruction on: making the queues is part of the question.
    let start = || Holding::start(&plan.binary, &[2, 3, 4], 9_500, "all", &[]);
    let (held, holding) = observed_during(look, start)?;
    let (after, dropped) = observed_during(look, || holding.stop())?;
    drop(writers);
    let rates = |windows: &[Window]| -> Vec<f64> { windows.iter().map(|w| w.own_mb_per_s).collect() };
    for (part, windows) in [("free", &windows), ("held", &held), ("free again", &after)] {
        let text: Vec<String> = rates(windows).iter().map(|rate| format!("{rate:.2}")).collect();
        println!("lab: hosts 2 to 4 {part}: host 1 writes {} MB/s", text.join(" "));
    }
    // Of two windows together: one has some twenty requests, whose number varies by chance.
    let least =
        |windows: &[Window]| rates(windows).windows(2).map(|w| (w[0] + w[1]) / 2.0).fold(f64::INFINITY, f64::min);
    let (free_mean, held_mean) = (mean(rates(&windows).into_iter()), mean(rates(&held).into_iter()));
    let detail = format!(
        "host 1 writes {free_mean:.2} MB/s (least quarter second {:.2}), {held_mean:.2} (least {:.2}) while the others \
         are held, {:.2} (least {:.2}) after; {dropped} drops",
        least(&windows),
        least(&held),
        mean(rates(&after).into_iter()),
        least(&after)
    );
    // The device is busy all the time: what the others leave is there for the fourth.
    figures.at_least("held_of_free", held_mean / free_mean, 1.1, 1.5);
    // A drop as the paper's would be half a second with next to nothing.
    figures.at_least("least_held_of_least_free", least(&held) / least(&windows), 0.25, 1.0);
    // Some twenty requests a window, whose number varies by chance. A lost packet stops one of the two writers for 0.2 s.
    let after_mean = mean(rates(&after).into_iter());
    figures.at_least("after_of_free", after_mean / free_mean, 0.5, 0.85);
    figures.at_least("least_after_of_free", least(&after) / free_mean, 0.1, 0.6);
    ensure!(dropped == 0, "packets were lost: {detail}");
    Ok(detail)
}
