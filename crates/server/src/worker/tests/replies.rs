//! Tests of replies that clients do not take.

use super::*;

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
