//! Tests of a client with many connections, and of many connections that are closed.

use std::net::{TcpListener, TcpStream};

use super::*;
use crate::worker::connection::Ending;

#[test]
fn the_kernel_takes_less_memory_for_each_further_connection_of_a_client_with_many() {
    let (mut worker, _registry) = worker_and_registry("[volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n", 16, 1024);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    worker.listeners = vec![Listener::Tcp(listener.into())];
    let peer = Peer { address: Some(address.ip()), ..Peer::default() };
    let _held: Vec<_> = (0..63).map(|_| worker.shared.handshakes.begin(&peer, clock::now()).ok().unwrap().1).collect();
    let _clients = [(); 2].map(|()| TcpStream::connect(address).unwrap());
    worker.on_event(LISTENER_EVENTS, READ);
    let open = worker.connections.iter().flatten();
    let mut bounds: Vec<_> = open.map(|connection| connection.transport.unsent_bound()).collect();
    bounds.sort_unstable();
    assert_eq!(bounds, [0, 512 << 10], "of the 64th and of the 65th connection");
}

#[test]
fn of_many_connections_that_are_over_few_are_closed_in_a_round() {
    const FEW: usize = ENDS_IN_A_ROUND as usize;
    let (mut worker, _registry) = worker_and_registry("[volumes.disk0]\nbackend = \"memory\"\nsize = 4096\n", 16, 1024);
    let clients: Vec<_> = (0..3 * FEW).map(|_| attach(&mut worker)).collect();
    for (_, key) in &clients {
        let connection = at(&mut worker, *key);
        (connection.ending, connection.gone) = (Ending::Lingering, true);
    }
    let now = clock::now() + Duration::from_secs(2);
    for left in [2 * FEW, FEW, 0] {
        worker.keep_house(now);
        assert_eq!(worker.count, left);
        assert!(worker.house.due_at() <= now, "the next round goes on at once");
    }
}
