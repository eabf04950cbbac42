//! Tests of replies that clients do not take.

use super::*;
use crate::backend::Backend;
use crate::backend::tables::tests::is_mapped;
use crate::ram::PIECE;

#[test]
fn a_read_of_holes_beside_data_adds_no_page_tables() {
    const LENGTH: usize = 5 * PIECE as usize;
    let mut worker = worker_with(64 << 20, 16);
    let (mut client, key) = attach(&mut worker);
    let snapshot = Arc::clone(&worker.snapshot);
    let Backend::Memory(memory) = &snapshot.find("disk0").unwrap().backend else { panic!("a volume in memory") };
    let data: Vec<u8> = (0..3_000_u32).map(|n| (n % 251) as u8 + 1).collect();
    memory.write(3 * PIECE + 777, &data).unwrap();
    let offset = PIECE + 500;
    let mut read = 0x2560_9513_u32.to_be_bytes().to_vec();
    read.extend([0; 12]);
    read.extend(offset.to_be_bytes());
    read.extend((LENGTH as u32).to_be_bytes());
    client.write_all(&read).unwrap();
    worker.on_event(key.to_event(), READ);
    let (mut got, mut some, mut rounds) = (Vec::new(), vec![0; 1 << 20], 0);
    while got.len() < 16 + LENGTH {
        round(&mut worker);
        while let Ok(n @ 1..) = client.read(&mut some) {
            got.extend_from_slice(&some[..n]);
        }
        rounds += 1;
        assert!(rounds < 100_000, "{} bytes", got.len());
    }
    let mut wanted = vec![0; LENGTH];
    let from = (3 * PIECE + 777 - offset) as usize;
    wanted[from..from + data.len()].copy_from_slice(&data);
    assert!(got.len() == 16 + LENGTH && got[16..] == wanted[..]);
    let mapped = [1, 2, 3, 4, 5].map(|piece| is_mapped(memory, piece * PIECE + 777));
    assert_eq!(mapped, [false, false, true, false, false]);
}

#[test]
fn a_reply_that_is_partly_sent_goes_on_with_what_the_volume_holds() {
    const LENGTH: usize = 5 * PIECE as usize;
    const SENT: usize = 3 * PIECE as usize - 500;
    let mut worker = worker_with(64 << 20, 16);
    let (mut client, key) = attach(&mut worker);
    let snapshot = Arc::clone(&worker.snapshot);
    let Backend::Memory(memory) = &snapshot.find("disk0").unwrap().backend else { panic!("a volume in memory") };
    let data = vec![7_u8; PIECE as usize];
    memory.write(4 * PIECE, &data).unwrap();
    let mut read = 0x2560_9513_u32.to_be_bytes().to_vec();
    read.extend([0; 12]);
    read.extend(500_u64.to_be_bytes());
    read.extend((LENGTH as u32).to_be_bytes());
    client.write_all(&read).unwrap();
    worker.on_event(key.to_event(), READ);
    round(&mut worker);
    let left = at(&mut worker, key).out.bytes();
    assert!(left < LENGTH && left > LENGTH - SENT, "the socket has taken a part of the holes: {left} bytes are left");
    // Behind that part, a hole is written and data becomes a hole.
    memory.write(3 * PIECE, &data).unwrap();
    memory.zero(4 * PIECE, PIECE, true).unwrap();
    let (mut got, mut some, mut rounds) = (Vec::new(), vec![0; 1 << 20], 0);
    while got.len() < 16 + LENGTH {
        while let Ok(n @ 1..) = client.read(&mut some) {
            got.extend_from_slice(&some[..n]);
        }
        round(&mut worker);
        rounds += 1;
        assert!(rounds < 100_000, "{} bytes", got.len());
    }
    let mut wanted = vec![0; LENGTH];
    wanted[SENT..SENT + data.len()].copy_from_slice(&data);
    assert!(got.len() == 16 + LENGTH && got[16..] == wanted[..]);
}

#[test]
fn tenants_take_turns_at_long_replies_whatever_connections_they_have() {
    let text = "[tenants.busy]\nmatch = [\"uid:1\"]\n[tenants.light]\nmatch = [\"uid:2\"]\n\
                [volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n";
    let (mut worker, _registry) = worker_and_registry(text, 16, 64);
    let clients = [1, 1, 1, 2].map(|uid| attach_as(&mut worker, Peer { uid: Some(uid), ..Peer::default() }));
    let [first, second, third, light] = clients.each_ref().map(|(_, key)| key.slot);
    let (_client, negotiates) = connect(&mut worker);
    for slot in [first, second, third, negotiates.slot, light] {
        worker.send_later(slot);
    }
    let turns: Vec<u32> = std::iter::from_fn(|| worker.long.pop()).collect();
    assert_eq!(turns, [first, negotiates.slot, light, second, third]);
    let connection = worker.connections[light as usize].take().unwrap();
    worker.close(connection);
    worker.send_later(light);
    assert!(worker.long.is_empty(), "one that is closed has no turn");
}

#[test]
fn a_tenant_with_many_connections_leaves_few_replies_on_each() {
    const READS: usize = 200;
    let dir = std::env::temp_dir().join(format!("evenkeel-replies-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let path = dir.join("disk0.img");
    let text = format!("[volumes.disk0]\nsize = 4096\npath = {path:?}\n[server]\ndata_dir = {dir:?}\n");
    let mut worker = worker_of(&text, 256);
    let (mut client, key) = attach(&mut worker);
    // Reads beyond the end, which are refused and hold no buffer memory.
    let mut read = 0x2560_9513_u32.to_be_bytes().to_vec();
    read.extend([0; 12]);
    read.extend((1u64 << 40).to_be_bytes());
    read.extend(4096u32.to_be_bytes());
    let mut unsent = |worker: &mut Worker| {
        client.write_all(&read.repeat(READS)).unwrap();
        worker.on_event(key.to_event(), READ);
        worker.read_in_turn();
        let connection = at(worker, key);
        let seen = (connection.out.len(), connection.paused);
        (0..32).for_each(|_| round(worker));
        assert_eq!(drain(&mut client), READS * 16, "all are answered");
        seen
    };
    assert_eq!(unsent(&mut worker), (READS, Paused::No));
    let account = Arc::clone(at(&mut worker, key).account().unwrap());
    // As of so many further connections.
    let others: Vec<_> = (1..2_048).map(|_| account.join()).collect();
    assert_eq!(unsent(&mut worker), (32, Paused::Full));
    drop(others);
    std::fs::remove_dir_all(dir).unwrap();
}
