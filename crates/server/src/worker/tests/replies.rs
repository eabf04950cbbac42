//! Tests of replies that clients do not take.

use super::*;

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
