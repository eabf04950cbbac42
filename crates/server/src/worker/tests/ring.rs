//! A test of an io_uring whose operations do not complete.

use std::fmt::Write as _;

use evenkeel_nbd::wire::Command;

use super::*;
use crate::engine::uring::MOST_OF_VOLUME;
use crate::faults::{Fault, Injection};
use crate::worker::request::Request;

#[test]
fn volumes_whose_operations_hang_leave_parts_of_the_ring_to_others_and_the_rest_is_for_threads() {
    const VOLUMES: usize = 5;
    const OF_EACH: u32 = MOST_OF_VOLUME + 10;
    let dir = std::env::temp_dir().join(format!("evenkeel-ring-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut text = String::from("[pools.main]\ntuning.admission = { kind = \"none\" }\n");
    for n in 0..VOLUMES {
        let path = dir.join(format!("{n}.img"));
        write!(text, "[volumes.disk{n}]\nsize = 4096\npath = {path:?}\n").unwrap();
    }
    write!(text, "[server]\ndata_dir = {dir:?}\ndefault_export = \"disk0\"\n").unwrap();
    let mut worker = worker_of(&text, VOLUMES * OF_EACH as usize);
    // The kernel takes nothing, as a device that hangs gives nothing back.
    let faults = Faults::table();
    let fault = Fault::Errno(libc::EAGAIN);
    faults.add(Injection { place: String::new(), call: Call::Enter, fault, skip: 0, times: u64::MAX });
    let Ok(ring) = Uring::new(&faults) else { return };
    worker.ring = Some(ring);
    let (_client, key) = attach(&mut worker);

    let snapshot = Arc::clone(&worker.snapshot);
    for n in 0..VOLUMES {
        let volume = snapshot.find(&format!("disk{n}")).unwrap();
        for _ in 0..OF_EACH {
            let request = Request { command: Command::Read, length: 4096, ..Request::of(key, volume.id) };
            let mut connection = worker.connections[key.slot as usize].take().unwrap();
            worker.enqueue(&mut connection, request.work(volume), request);
            worker.connections[key.slot as usize] = Some(connection);
        }
        while !worker.active.is_empty() {
            worker.pump();
        }
    }
    const M: u32 = MOST_OF_VOLUME;
    let in_ring = [M, M, M, M / 2, M / 4];
    assert_eq!(worker.operations.in_ring, in_ring, "each leaves as much as it has");
    let until = std::time::Instant::now() + StdDuration::from_secs(60);
    let ends_with = |worker: &mut Worker, operations: usize| {
        while worker.operations.len() > operations {
            worker.on_mail();
            worker.submit();
            worker.reap();
            worker.pump();
            assert!(std::time::Instant::now() < until, "{} are left", worker.operations.len());
            std::thread::yield_now();
        }
    };
    ends_with(&mut worker, in_ring.iter().sum::<u32>() as usize);
    assert_eq!(faults.clear("").min(1), 1);
    ends_with(&mut worker, 0);
    assert_eq!(worker.operations.in_ring, [0; VOLUMES]);
    std::fs::remove_dir_all(dir).unwrap();
}
