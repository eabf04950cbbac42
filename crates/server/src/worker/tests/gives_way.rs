//! Tests of stalled clients beside other tenants that wait for buffer memory, at times that the tests choose.

use super::*;

/// Two tenants, each with a volume in memory.
const TENANTS: &str = "[tenants.noise]\n[tenants.light]\n\
    [volumes.noise]\nbackend = \"memory\"\ntenant = \"noise\"\nsize = \"1MiB\"\n\
    [volumes.light]\nbackend = \"memory\"\ntenant = \"light\"\nsize = \"1MiB\"\n";
/// Latest time after which a stalled holder above its share gives way, counted from the first moment when it holds the memory
/// and others wait.
const WITHIN: Duration = Duration::from_secs(2);

/// As [`attach`]; the client has chosen the export `volume`.
fn attach_to(worker: &mut Worker, volume: &str) -> (UnixStream, ConnKey) {
    let (mut client, key) = connect(worker);
    client.write_all(&3u32.to_be_bytes()).unwrap();
    client.write_all(&[b"IHAVEOPT\0\0\0\x01\0\0\0", &[volume.len() as u8][..], volume.as_bytes()].concat()).unwrap();
    worker.waking.round_begins(1, 0);
    worker.on_event(key.to_event(), READ);
    worker.send_replies();
    assert_eq!(at(worker, key).volume().unwrap().name, volume);
    drain(&mut client);
    (client, key)
}

/// Gives a connection a reply that holds `bytes` bytes of buffer memory and that its client does not take.
fn hold(worker: &mut Worker, key: ConnKey, bytes: u64) {
    let account = Arc::clone(at(worker, key).account().unwrap());
    let charge = account.take(0, bytes, None).unwrap();
    at(worker, key).out.push(None, Payload::Owned(vec![0; bytes as usize]), charge);
}

fn is_open(worker: &Worker, key: ConnKey) -> bool {
    worker.connections[key.slot as usize].as_ref().is_some_and(|connection| connection.key == key)
}

/// Time from the first moment when a client of `noise` holds `bytes` bytes and `light` waits, until the client is closed; `None`
/// if it is there after half a minute. The client holds from `holds` on, and the other waits from `waits` on.
fn gives_way_after(bytes: u64, holds: Duration, waits: Duration) -> Option<Duration> {
    const STEP: Duration = Duration::from_millis(50);
    let (mut worker, _registry) = worker_and_registry(TENANTS, 16, 8);
    let (_client, key) = attach_to(&mut worker, "noise");
    let light = worker.shared.budget.account(&"light".into());
    let begun = clock::now();
    let (mut past, mut waiting) = (Duration::ZERO, None);
    while past < Duration::from_secs(30) {
        let now = begun + past;
        if past == holds {
            hold(&mut worker, key, bytes);
        }
        if past == waits {
            waiting = Some(light.wait(now));
        }
        if worker.house.due_at() <= now {
            worker.keep_house(now);
        }
        if !is_open(&worker, key) {
            assert!(waiting.is_some() && past >= holds, "for others");
            assert_eq!(worker.shared.budget.used(), 0, "its memory is for others");
            return Some(past - holds.max(waits));
        }
        past = past + STEP;
    }
    None
}

#[test]
fn a_stalled_holder_above_its_share_gives_way_in_time() {
    let share = MEMORY / 2;
    let ms = Duration::from_millis;
    for phase in (0..1_000).step_by(100) {
        for (holds, waits) in [(0, 3_000 + phase), (phase, phase), (1_000 + phase, 0), (phase, 1_000)] {
            let (holds, waits) = (ms(holds), ms(waits));
            let after = gives_way_after(share + 4096, holds, waits);
            assert!(after.is_some_and(|after| after <= WITHIN), "{after:?}: holds at {holds:?}, waits at {waits:?}");
            if holds >= waits {
                assert!(after.is_some_and(|after| after >= ms(900)), "{after:?}: it had no time to stall");
            }
        }
    }
    assert_eq!(gives_way_after(share, ms(0), ms(0)), None, "what is its share is its own");
}

/// A client that sends 64 KiB in pieces of 8 KiB, with a hole of three seconds, as over a line that loses much.
#[test]
fn a_slow_client_within_its_floor_is_answered_and_the_hoarder_gives_way() {
    const PIECE: usize = 8 << 10;
    let (mut worker, _registry) = worker_and_registry(TENANTS, 16, 8);
    let (_hoarder, hoarder) = attach_to(&mut worker, "noise");
    hold(&mut worker, hoarder, MEMORY - FLOOR);
    let (mut slow, slow_key) = attach_to(&mut worker, "light");
    // Others of both tenants, for whose small writes there is no memory.
    let mut waiting = ["noise", "light"].map(|volume| attach_to(&mut worker, volume));
    let mut write = 0x2560_9513_u32.to_be_bytes().to_vec();
    write.extend([0, 0, 0, 1]);
    write.extend([0; 16]);
    write.extend((FLOOR as u32).to_be_bytes());
    slow.write_all(&write).unwrap();
    let (begun, mut closed_at) = (clock::now(), None);
    let mut pieces = 0;
    for second in 0..=9 {
        let now = begun + Duration::from_secs(second);
        if ![2, 3].contains(&second) {
            slow.write_all(&[7; PIECE]).unwrap();
            pieces += 1;
            worker.on_event(slow_key.to_event(), READ);
            worker.read_in_turn();
        }
        if second == 0 {
            for (client, key) in &mut waiting {
                client.write_all(&writes(1)).unwrap();
                worker.on_event(key.to_event(), READ);
                worker.read_in_turn();
            }
            assert_eq!((worker.hungry.len(), worker.shared.budget.used()), (2, MEMORY));
        }
        if worker.house.due_at() <= now {
            worker.keep_house(now);
        }
        if closed_at.is_none() && !is_open(&worker, hoarder) {
            closed_at = Some(second);
        }
        assert!(pieces * PIECE == FLOOR as usize || at(&mut worker, slow_key).incoming.is_some(), "second {second}");
    }
    assert!(closed_at.is_some_and(|second| second <= 2), "{closed_at:?}");
    (0..4).for_each(|_| round(&mut worker));
    assert_eq!(drain(&mut slow), 16, "the slow one is answered");
    assert!(waiting.iter_mut().all(|(client, _)| drain(client) == 16), "and those who waited");
    drop((slow, waiting));
}

#[test]
fn a_tenant_that_sends_much_ahead_is_read_little_by_little_and_others_as_ever() {
    // One request at a time: the others wait, received and not parsed.
    let (mut worker, _registry) = worker_and_registry(TENANTS, 1, 8);
    let (mut busy, busy_key) = attach_to(&mut worker, "noise");
    let (mut light, light_key) = attach_to(&mut worker, "light");
    // Other connections of the tenant hold more than all may hold beside requests.
    let mut hoard = worker.shared.budget.ahead();
    hoard.belongs_to(at(&mut worker, busy_key).account().unwrap());
    hoard.set(MEMORY as usize / 4 + 1);
    let receive = |worker: &mut Worker, client: &mut UnixStream, key: ConnKey| {
        client.write_all(&writes(8)).unwrap();
        worker.on_event(key.to_event(), READ);
        worker.read_in_turn();
        at(worker, key).leftover.len()
    };
    assert_eq!(receive(&mut worker, &mut busy, busy_key), SCRATCH_UNDER_PRESSURE - writes(1).len());
    assert_eq!(receive(&mut worker, &mut light, light_key), writes(7).len());
    drop(hoard);
    // Both are served to the end, and nothing is left in the counts.
    let mut answered = [0, 0];
    for _ in 0..64 {
        round(&mut worker);
        for (client, bytes) in [&mut busy, &mut light].into_iter().zip(&mut answered) {
            *bytes += drain(client);
        }
    }
    assert_eq!(answered, [8 * 16; 2]);
    assert!([busy_key, light_key].iter().all(|key| at(&mut worker, *key).leftover.is_empty()));
    let mut all = worker.shared.budget.ahead();
    all.set(MEMORY as usize / 4);
    assert!(!all.is_crowded(), "the others hold nothing");
    all.set(MEMORY as usize / 4 + 1);
    assert!(all.is_crowded());
}

/// `transport` under TLS, with a handshake that never ends: the session keeps all that is to be sent.
fn under_tls(transport: Transport) -> Transport {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(rustls::RootCertStore::empty())
        .with_no_client_auth();
    let session = rustls::ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap();
    transport.under(Some(Box::new(crate::transport::tls::Stream::client(session))))
}

#[test]
fn replies_under_tls_of_a_tenant_that_holds_too_much_go_out_little_by_little_and_to_the_end() {
    let (mut worker, _registry) = worker_and_registry(TENANTS, 1, 8);
    let (_client, key) = attach_to(&mut worker, "noise");
    let mut hoard = worker.shared.budget.ahead();
    hoard.belongs_to(at(&mut worker, key).account().unwrap());
    hoard.set(MEMORY as usize / 4 + 1);
    // So little is sent before the replies of connections that have more.
    let mut connection = *worker.connections[key.slot as usize].take().unwrap();
    connection.transport = under_tls(connection.transport);
    connection.out.push(None, Payload::Owned(vec![0; SHORT]), crate::budget::Charge::default());
    assert!(worker.send(&mut connection));
    assert_eq!(connection.out.bytes(), SHORT - SCRATCH_UNDER_PRESSURE);
    connection.dirty = false;
    worker.mark_dirty(&mut connection);
    worker.connections[key.slot as usize] = Some(Box::new(connection));
    (0..16).for_each(|_| worker.send_replies());
    assert_eq!(at(&mut worker, key).out.len(), 0, "no event of the socket asks for the rest");
}

#[test]
fn idle_connections_of_another_tenant_take_nothing_of_what_may_wait_for_the_limit_of_a_volume() {
    let text = "[tenants.busy]\nmatch = [\"uid:1\"]\n[tenants.light]\nmatch = [\"uid:2\"]\n\
                [volumes.disk0]\nbackend = \"memory\"\nsize = 1048576\nlimit = { iops = 1 }\n";
    let (mut worker, _registry) = worker_and_registry(text, 16, 64);
    let peer = |uid| Peer { uid: Some(uid), ..Peer::default() };
    let (_light, key) = attach_as(&mut worker, peer(2));
    // As if its requests held more than a connection may in any case.
    at(&mut worker, key).charged = 2 * FLOOR;
    assert!(!at(&mut worker, key).waits_for_its_own(4096));
    let _idle: Vec<_> = (0..20).map(|_| attach_as(&mut worker, peer(1))).collect();
    assert!(!at(&mut worker, key).waits_for_its_own(4096), "they are another tenant's");
    let _own: Vec<_> = (0..10).map(|_| attach_as(&mut worker, peer(2))).collect();
    assert!(at(&mut worker, key).waits_for_its_own(4096), "these share it");
    at(&mut worker, key).charged = 0;
}
