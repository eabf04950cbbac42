//! Judges a controller's default settings on drawn cases and counts the verdicts. Arguments are the controller, the first
//! seed and the number of cases: `cargo run -p evenkeel-sim --example harm -- slots 0 48`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use evenkeel_sim::experiment::Digest;
use evenkeel_sim::experiment::harm::{self, Controller};
use evenkeel_sim::world::{Failure, Setup, run_quietly};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let parsed = match &words[..] {
        [name, first, cases] => {
            let controller = Controller::ALL.into_iter().find(|controller| controller.name() == name);
            controller.zip(first.parse().ok()).zip(cases.parse().ok())
        }
        _ => None,
    };
    let Some(((controller, first), cases)) = parsed else {
        let names = Controller::ALL.map(Controller::name).join(", ");
        eprintln!("three arguments: a controller ({names}), the first case, and how many");
        return ExitCode::FAILURE;
    };
    match counts(controller, first, cases) {
        Ok([judged, harmed, gravely, helped]) => {
            println!("{judged} judged, {harmed} harmed, {gravely} gravely, {helped} helped");
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

/// Judges `cases` drawn cases from seed `first` on; counts the cases judged, harmed, gravely harmed, and helped.
fn counts(controller: Controller, first: u64, cases: u64) -> Result<[usize; 4], Failure> {
    let (next, counts) = (AtomicU64::new(first), Mutex::new(Ok([0; 4])));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + cases {
                return;
            }
            let mut execute = |_: &str, runs: &[(Setup, u64)]| -> Result<Vec<Digest>, Failure> {
                runs.iter().map(|(setup, seed)| run_quietly(setup, *seed).map(Digest::of)).collect()
            };
            let judged = harm::judge(controller, seed, false, &mut execute);
            let mut counts = counts.lock().expect("no thread panics while it counts");
            match (judged, &mut *counts) {
                (Err(failure), _) => *counts = Err(failure),
                (Ok(judged), Ok(counts)) => {
                    if let Some(ours) = judged.first() {
                        let ours = [true, ours.harmed, ours.gravely, ours.helped];
                        counts.iter_mut().zip(ours).for_each(|(count, counts)| *count += usize::from(counts));
                    }
                }
                (Ok(_), Err(_)) => {}
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    counts.into_inner().expect("no thread panics while it counts")
}
