//! Tests of volumes on another NBD server that demands TLS.

use crate::authority;
use crate::support;

use std::path::Path;

use authority::{Authority, Pair};
use evenkeel_policy::config::Engine;
use evenkeel_policy::state::RemoteState;
use evenkeel_server::{Server, Start};
use support::{ENGINES, Scratch, TestServer, config, pattern};

const MEMORY: &str = "[volumes.disk0]\nbackend = \"memory\"\nsize = \"16MiB\"\n";

/// A server with the volume `disk0` that demands TLS and client certificates of `authority`, also on its Unix socket.
fn far(name: &str, authority: &Authority) -> TestServer {
    let scratch = Scratch::new(name);
    let tls = authority.serve(scratch.path(), "required = \"always\"");
    let config = config(&scratch, Engine::Auto, &format!("[server]\ndrain_timeout = \"1s\"\n{tls}{MEMORY}"));
    TestServer::with_config(scratch, config)
}

/// Writes the files of a client that trusts `authority` and shows `pair`; returns the key `uri_tls` with their paths.
fn files(folder: &Path, authority: &Authority, pair: &Pair) -> String {
    let write = |name: &str, content: &str| {
        std::fs::write(folder.join(name), content).unwrap();
        folder.join(name).display().to_string()
    };
    format!(
        "uri_tls = {{ authorities = \"{}\", certificate = \"{}\", key = \"{}\" }}\n",
        write("trusted.pem", &authority.certificate),
        write("own.pem", &pair.certificate),
        write("own.key", &pair.key)
    )
}

fn volume(uri: &str, keys: &str) -> String {
    format!("[volumes.far]\nbackend = \"nbd\"\nuri = \"{uri}\"\n{keys}")
}

/// URI of the server's volume over TCP, by an address that its certificate does not have.
fn over_tcp(far: &TestServer) -> String {
    let listening = far.server.listening();
    let address = listening.iter().find_map(|uri| uri.strip_prefix("nbd://")).unwrap();
    format!("nbds://{address}/disk0?tls-hostname=localhost")
}

fn over_unix(far: &TestServer) -> String {
    format!("nbds+unix:///disk0?socket={}", far.socket().display())
}

fn wait_for(test: &TestServer, what: &str, mut done: impl FnMut(&RemoteState) -> bool) {
    test.wait_for(what, |state| state.volumes[0].remote.as_ref().is_some_and(&mut done));
}

#[test]
fn content_goes_through_tls_on_both_engines_and_kinds_of_socket() {
    let authority = Authority::new();
    let far = far("remote-tls-far", &authority);
    let folder = Scratch::new("remote-tls-files");
    let keys = files(folder.path(), &authority, &authority.issue("near"));
    for (engine, uri) in ENGINES.into_iter().flat_map(|engine| [(engine, over_tcp(&far)), (engine, over_unix(&far))]) {
        let test = TestServer::start("remote-tls", engine, &volume(&uri, &format!("connections = 2\n{keys}")));
        let remote = test.server.state().volumes.remove(0).remote.expect("a remote volume");
        assert_eq!((remote.uri.as_str(), remote.connected), (uri.as_str(), true));
        let mut client = test.connect("far");
        for (n, length) in [1, 511, 4096, 16_385, 65_537, 1 << 20, 5 << 20].into_iter().enumerate() {
            let (offset, content) = (n as u64 * 4097, pattern(n as u64, 1, length));
            client.write(offset, &content).unwrap();
            assert!(client.read(offset, length as u64).unwrap() == content, "{length} bytes over {uri}");
        }
        client.flush().unwrap();
        client.disconnect();
        test.server.shutdown().unwrap();
    }
    assert_eq!(far.server.state().refused_clients_total.values().sum::<u64>(), 0);
}

#[test]
fn a_new_connection_has_tls_and_reads_the_files_again() {
    let (first, second) = (Authority::new(), Authority::new());
    let folder = Scratch::new("remote-tls-renewed-files");
    let far_of_first = far("remote-tls-renewed-far", &first);
    let keys = files(folder.path(), &first, &first.issue("near"));
    let test = TestServer::start("remote-tls-renewed", Engine::Auto, &volume(&over_unix(&far_of_first), &keys));
    let mut client = test.connect("far");
    client.write(0, &pattern(1, 1, 4096)).unwrap();
    client.flush().unwrap();
    let TestServer { server, scratch, .. } = far_of_first;
    server.shutdown().unwrap();
    drop((server, scratch));

    // Its certificate is of an authority that is not trusted yet.
    let far_of_second = far("remote-tls-renewed-far", &second);
    wait_for(&test, "the refusal", |remote| {
        let refused = |why: &String| why.contains("name the file of the authority");
        !remote.connected && remote.last_error.as_ref().is_some_and(refused)
    });
    files(folder.path(), &second, &second.issue("near"));
    wait_for(&test, "the connection", |remote| remote.connected && remote.reconnects_total == 1);
    let content = pattern(2, 1, 4096);
    client.write(0, &content).unwrap();
    assert_eq!(client.read(0, 4096).unwrap(), content);
    test.server.shutdown().unwrap();
    far_of_second.server.shutdown().unwrap();
}

#[test]
fn a_volume_that_cannot_have_tls_is_refused_by_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let far = far("remote-tls-refusing-far", &authority);
    let plain = TestServer::start("remote-tls-plain-far", Engine::Auto, MEMORY);
    let folder = Scratch::new("remote-tls-refused-files");
    let keys = files(folder.path(), &authority, &authority.issue("near"));
    let strange = Scratch::new("remote-tls-strange-files");
    let untrusting = files(strange.path(), &other, &authority.issue("near"));
    let nameless = format!("uri_tls = {{ authorities = \"{}/trusted.pem\" }}\n", folder.path().display());
    let missing = "uri_tls = { authorities = \"/nowhere/ca.pem\" }\n".to_owned();
    let clear = |test: &TestServer| format!("nbd+unix:///disk0?socket={}", test.socket().display());
    for (uri, keys, words) in [
        (over_unix(&far), &untrusting, "name the file of the authority that signed"),
        (over_tcp(&far).replace("=localhost", "=elsewhere"), &keys, "give one by tls-hostname=NAME"),
        // An alert, or the end of the connection.
        (over_unix(&far), &nameless, "the server"),
        (over_unix(&far), &missing, "uri_tls.authorities: /nowhere/ca.pem cannot be read"),
        (over_unix(&plain), &keys, "set up TLS on that server"),
        (clear(&far), &String::new(), "write nbds instead of nbd"),
    ] {
        let scratch = Scratch::new("remote-tls-refused");
        let config = config(&scratch, Engine::Auto, &volume(&uri, keys));
        let error = Server::start(config, Start::default()).err().expect("it must not start").to_string();
        assert!(error.contains("volume \"far\"") && error.contains(words), "{words}: {error}");
    }
}
