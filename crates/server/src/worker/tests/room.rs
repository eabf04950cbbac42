//! Tests of volumes in memory that are larger than the memory that they may take.

use super::*;
use crate::ram::{CHUNK, Room};

/// Sends a request of 4 KiB at `offset`, runs the worker until it is answered, and returns the error code in the reply (0:
/// none).
fn ask(worker: &mut Worker, client: &mut UnixStream, command: u8, offset: u64) -> u32 {
    let mut request = 0x2560_9513_u32.to_be_bytes().to_vec();
    request.extend([0, 0, 0, command]);
    request.extend([0; 8]);
    request.extend(offset.to_be_bytes());
    request.extend(4096u32.to_be_bytes());
    if command == 1 {
        request.resize(28 + 4096, 7);
    }
    client.write_all(&request).unwrap();
    let (mut reply, mut rounds) = ([0; 16], 0);
    while client.read_exact(&mut reply).is_err() {
        round(worker);
        rounds += 1;
        assert!(rounds < 100, "no reply");
    }
    u32::from_be_bytes([reply[4], reply[5], reply[6], reply[7]])
}

#[test]
fn writes_to_holes_fail_beyond_the_room_of_all_volumes_and_others_go_on() {
    const WRITE: u8 = 1;
    const TRIM: u8 = 4;
    const ZERO: u8 = 6;
    const ENOSPC: u32 = 28;
    let (mut worker, mut registry) = worker_and_registry("[volumes.old]\nbackend = \"memory\"\nsize = 4096\n", 16, 4);
    registry.room = Room::new(Some(3 * CHUNK));
    let volumes = "[pools.device.emulate]\n[volumes.disk0]\nbackend = \"memory\"\nsize = \"1MiB\"\n\
                   [volumes.disk1]\nbackend = \"emulate\"\npool = \"device\"\nsize = \"1MiB\"\n";
    let (config, present) = (Config::parse(volumes, "test").unwrap(), worker.shared.snapshot());
    let mut snapshot = registry.plan(&present, &config, true).unwrap();
    registry.apply(&present, &mut snapshot);
    worker.shared.publish(snapshot);
    drop(present);
    worker.refresh();
    let warned = registry.notes.iter().any(|note| note.starts_with("warning: volumes in memory have 2.0 MiB together"));
    assert!(warned, "{:?}", registry.notes);

    // The other volume has one chunk of the three.
    let snapshot = worker.shared.snapshot();
    let crate::backend::Backend::Emulate(other, _) = &snapshot.find("disk1").unwrap().backend else { panic!("memory") };
    other.write(0, &[1]).unwrap();
    let (mut client, _) = connect(&mut worker);
    client.write_all(&3u32.to_be_bytes()).unwrap();
    client.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x05disk0").unwrap();
    (0..3).for_each(|_| round(&mut worker));
    drain(&mut client);
    let mut ask = |command, offset| ask(&mut worker, &mut client, command, offset);
    assert_eq!([0, CHUNK, 2 * CHUNK].map(|offset| ask(WRITE, offset)), [0, 0, ENOSPC]);
    assert_eq!([8192, CHUNK - 2048].map(|offset| ask(WRITE, offset)), [0, 0], "there is memory for these");
    assert_eq!(ask(ZERO, 2 * CHUNK), 0, "a hole is zero");
    assert_eq!(ask(WRITE, 2 * CHUNK), ENOSPC);
    // A page of a chunk gives no room, the whole chunk does.
    assert_eq!(ask(TRIM, 0), 0);
    assert_eq!(ask(WRITE, 2 * CHUNK), ENOSPC);
    assert_eq!(registry.room.used(), 3);
    other.zero(0, CHUNK, true).unwrap();
    assert_eq!(ask(WRITE, 2 * CHUNK), 0);
    let failed = snapshot.find("disk0").unwrap().failures();
    assert!(failed.len() == 1 && failed[0].errno == libc::ENOSPC && failed[0].requests == 3, "{failed:?}");
}
