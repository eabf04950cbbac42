//! A test of a watch through an etcd server that stops sending changes on one stream and goes on sending on the other.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use base64::prelude::{BASE64_STANDARD as BASE64, Engine as _};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::*;
use crate::watcher::Wanted;

/// Reads an HTTP request; returns its path and body, or `None` if the client has closed the connection.
fn question(stream: &mut TcpStream) -> Option<(String, Value)> {
    let (mut text, mut part) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut part).ok().filter(|&read| read > 0)?;
        text.extend_from_slice(&part[..read]);
        let whole = String::from_utf8_lossy(&text);
        let Some((head, body)) = whole.split_once("\r\n\r\n") else { continue };
        let Ok(body) = serde_json::from_str(body) else { continue };
        return Some((head.split(' ').nth(1)?.to_owned(), body));
    }
}

/// Answers requests as etcd's gateway does. A watch of keys that begin with `silent` reports one change and then nothing
/// more; any other watch reports a change every 20 ms.
fn serve(mut stream: TcpStream, silent: &str) -> Option<()> {
    loop {
        let (path, asked) = question(&mut stream)?;
        if path != "/v3/watch" {
            let answer = json!({ "header": { "revision": "7" }, "count": "1" }).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", answer.len());
            stream.write_all((head + &answer).as_bytes()).ok()?;
            continue;
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok()?;
        let key = asked["create_request"]["key"].as_str()?;
        let is_silent = BASE64.decode(key).ok()?.starts_with(silent.as_bytes());
        loop {
            let event = json!({ "result": { "events": [{ "kv": { "key": key, "value": "" } }] } }).to_string() + "\n";
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).ok()?;
            if is_silent {
                // Until the client hangs up.
                question(&mut stream)?;
            }
            thread::sleep(StdDuration::from_millis(20));
        }
    }
}

/// The reason with which a watch ends if keys that begin with `silent` do not change, in a cluster that is halved `bits`
/// times.
fn ends(bits: u8, silent: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || serve(stream, silent));
        }
    });
    let settings = settings(&address, "a", wall_clock);
    let (events, mut happened) = mpsc::channel(16);
    let (_wanted, to_watch) = watch::channel(Wanted { bits: Some(bits), sizes: settings.cluster.sizes() });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let watcher = tokio::spawn(watcher::run(settings, Arc::default(), events, to_watch));
        let why = timeout(PATIENCE, async {
            loop {
                if let Some(Event::Unwatched { why }) = happened.recv().await {
                    return why;
                }
            }
        });
        let why = why.await.expect("the silence is noticed");
        watcher.abort();
        why
    })
}

#[test]
fn a_stream_that_falls_silent_is_noticed_while_another_goes_on() {
    for (bits, silent, expected) in [
        (0, "evenkeel/main/members/", "not even this host's own reports"),
        (1, "evenkeel/main/shards/", "not even the sum of this host's shard"),
    ] {
        let why = ends(bits, silent);
        assert!(why.contains(expected), "{why}");
    }
}
