//! Tests of TLS files that cannot be used, and of the admission of clients by usable files.

use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use evenkeel_policy::config::Http;
use rustls::ClientConnection;

use super::*;

use super::authority::{Authority, Pair};
use super::bounded::MOST_BESIDE;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-tls-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, content).unwrap();
        path
    }

    fn settings(&self, authority: &Authority, server: &Pair) -> Files {
        Files {
            certificate: self.file("certificate", &server.certificate),
            key: self.file("key", &server.key),
            clients: Some(self.file("clients", &authority.certificate)),
            revoked: None,
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn load(table: &'static str, files: &Files) -> Result<Acceptor, Error> {
    let terms = Terms { table, http: Http::default(), files: Some(files.clone()) };
    Acceptor::load(&terms).map(|read| read.expect("files are named"))
}

fn chain(pair: &Pair) -> [CertificateDer<'static>; 1] {
    [CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap()]
}

fn identity(pair: &Pair) -> Identity {
    Identity::of(&chain(pair)[0])
}

#[test]
fn what_cannot_be_used_is_named_with_its_key_and_without_its_content() {
    let (folder, authority) = (Folder::new("bad"), Authority::new());
    let (server, other) = (authority.issue("localhost"), authority.issue("other"));
    let good = folder.settings(&authority, &server);
    assert!(load("server", &good).is_ok());
    let none = Terms { table: "server", http: Http::default(), files: None };
    assert!(Acceptor::load(&none).is_ok_and(|read| read.is_none()));
    let bad = |name: &str, content: &str| folder.file(name, content);
    let base64 = "c2VjcmV0IHNlY3JldCBzZWNyZXQ=";
    let damaged = format!("-----BEGIN PRIVATE KEY-----\n{base64}\n-----END PRIVATE KEY-----\n");
    let cases = [
        (Files { certificate: "/nowhere".into(), ..good.clone() }, "certificate: /nowhere cannot be read"),
        (Files { certificate: bad("empty", ""), ..good.clone() }, "has no certificate"),
        (Files { key: bad("none", &server.certificate), ..good.clone() }, "has no private key"),
        (Files { key: bad("damaged", &damaged), ..good.clone() }, "server.tls."),
        (Files { key: bad("other", &other.key), ..good.clone() }, "does not belong to"),
        (Files { clients: Some(bad("nobody", "")), ..good.clone() }, "server.tls.clients: "),
        (Files { revoked: Some(bad("list", "")), ..good.clone() }, "server.tls.revoked: "),
    ];
    for (settings, wanted) in cases {
        let error = load("server", &settings).err().expect(wanted).to_string();
        assert!(error.contains(wanted), "{error}");
        assert_eq!(load("guard", &settings).err().expect(wanted).to_string(), error.replacen("server", "guard", 1));
        assert!(!error.contains(base64) && !error.contains("secret"), "{error}");
    }
}

#[test]
fn a_check_finds_the_faults_of_all_files_and_what_is_doubtful() {
    let (folder, authority) = (Folder::new("check"), Authority::new());
    let good = folder.settings(&authority, &authority.issue("localhost"));
    let mode = |mode| fs::set_permissions(&good.key, fs::Permissions::from_mode(mode)).unwrap();
    let terms = |files: &Files| Terms { table: "server", http: Http::default(), files: Some(files.clone()) };
    let said = |found: Vec<Error>| found.iter().map(ToString::to_string).collect::<Vec<_>>();
    mode(0o600);
    assert_eq!((said(faults(&terms(&good))), said(doubts(&terms(&good)))), (vec![], vec![]));
    mode(0o644);
    let open = said(doubts(&terms(&good)));
    assert!(open.len() == 1 && open[0].starts_with("server.tls.key: ") && open[0].contains("mode 0644"), "{open:?}");

    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let pair = rcgen::KeyPair::generate().unwrap();
    let old = params.self_signed(&pair).unwrap().pem();
    let (certificate, key) = (folder.file("old", &old), folder.file("key of another", &authority.issue("other").key));
    let other = Files { certificate, ..good.clone() };
    let old = said(doubts(&terms(&other)));
    assert!(old[0].starts_with("server.tls.certificate: ") && old[0].contains("has expired"), "{old:?}");
    // The same while they are in use.
    let used = Files { key: folder.file("key of old", &pair.serialize_pem()), ..other.clone() };
    let doubt = |files: &Files| Acceptor::load(&terms(files)).unwrap().unwrap().doubt();
    assert!(doubt(&used).is_some_and(|(is_expired, why)| is_expired && why.contains("has expired")));
    assert_eq!(doubt(&good), None);
    // A fault of two files together.
    let apart = said(faults(&terms(&Files { key, ..good.clone() })));
    assert!(apart.len() == 1 && apart[0].contains("does not belong to"), "{apart:?}");
    let none = |name: &str| folder.0.join("none").join(name);
    let files = Files { certificate: none("c"), key: none("k"), clients: Some(none("a")), revoked: Some(none("r")) };
    let all = said(faults(&terms(&files)));
    let keys = ["certificate", "key", "clients", "revoked"].map(|key| format!("server.tls.{key}: "));
    assert!(all.len() == 4 && all.iter().zip(&keys).all(|(said, key)| said.starts_with(key)), "{all:?}");
    assert!(all.iter().all(|said| said.ends_with("put it there, or correct the path")), "{all:?}");
}

#[test]
fn a_client_names_the_option_of_a_file_that_cannot_be_used() {
    let (folder, authority) = (Folder::new("client"), Authority::new());
    let pair = authority.issue("client");
    let [ca, cert, key, other] = [
        ("ca", &authority.certificate),
        ("cert", &pair.certificate),
        ("key", &pair.key),
        ("other", &authority.issue("other").key),
    ]
    .map(|(name, content)| folder.file(name, content));
    let load = |ca: &Path, cert: &Path, key: &Path| client(("--ca", ca), Some((("--cert", cert), ("--key", key))));
    assert!(load(&ca, &cert, &key).is_ok() && client(("--ca", &ca), None).is_ok());
    for (read, wanted) in [
        (load(Path::new("/nowhere"), &cert, &key), "--ca: /nowhere cannot be read"),
        (load(&key, &cert, &key), "has no certificate; give a PEM file"),
        (load(&ca, &key, &key), "--cert: "),
        (load(&ca, &cert, &cert), "has no private key"),
        (load(&ca, &cert, &other), "does not belong to"),
    ] {
        let error = read.unwrap_err().to_string();
        assert!(error.contains(wanted), "{error}");
    }
}

#[test]
fn every_file_of_a_client_that_cannot_be_used_is_named() {
    let (folder, authority) = (Folder::new("own"), Authority::new());
    let pair = authority.issue("near");
    let (certificate, key) = (folder.file("cert", &pair.certificate), folder.file("key", &pair.key));
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    let authorities = folder.file("ca", &authority.certificate);
    let files = EtcdTls { authorities, certificate: Some(certificate), key: Some(key) };
    assert!(client_of("uri_tls", &files).is_ok());
    assert!(client_faults(&files).is_empty() && client_doubts(&files).is_empty());
    let path = |name: &str| PathBuf::from(format!("/nowhere/{name}"));
    let none = EtcdTls { authorities: path("a"), certificate: Some(path("c")), key: Some(path("k")) };
    let names: Vec<String> = client_faults(&none).into_iter().map(|fault| fault.name).collect();
    assert_eq!(names, ["authorities", "certificate", "key"]);
    let error = client_of("uri_tls", &none).unwrap_err().to_string();
    assert!(error.starts_with("uri_tls.authorities: /nowhere/a cannot be read"), "{error}");
    let other = folder.file("other", &authority.issue("other").key);
    fs::set_permissions(&other, fs::Permissions::from_mode(0o644)).unwrap();
    let apart = EtcdTls { key: Some(other), ..files };
    let (faults, doubts) = (client_faults(&apart), client_doubts(&apart));
    assert!(faults.len() == 1 && faults[0].to_string().contains("does not belong to"), "{faults:?}");
    assert!(doubts.len() == 1 && doubts[0].to_string().starts_with("key: "), "{doubts:?}");
}

#[test]
fn the_end_of_a_stream_that_comes_with_its_last_data_is_reported() {
    let (folder, authority) = (Folder::new("end"), Authority::new());
    let acceptor = load("server", &folder.settings(&authority, &authority.issue("localhost"))).unwrap();
    let config = authority.client(&authority.issue("near"));
    let mut session = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut server = Stream::server(Arc::new(acceptor)).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let (mut room, mut into) = (Scratch::default(), [0; 16]);
    for _ in 0..8 {
        while session.wants_write() {
            session.write_tls(&mut &near).unwrap();
        }
        let none = server.receive(&far.as_fd(), &mut [], &mut into, &mut room).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::WouldBlock, "{none}");
        assert!(server.push(&far.as_fd()).unwrap());
        // There may be nothing.
        let _ = session.read_tls(&mut &near);
        session.process_new_packets().unwrap();
    }
    assert!(server.cipher().is_some() && !server.has_received());

    // Both come at once, and the sockets stay open.
    session.writer().write_all(b"last").unwrap();
    session.send_close_notify();
    while session.wants_write() {
        session.write_tls(&mut &near).unwrap();
    }
    assert_eq!(server.receive(&far.as_fd(), &mut [], &mut into, &mut room).unwrap(), 4);
    assert!(server.has_received(), "the socket reports no event");
    assert_eq!(server.receive(&far.as_fd(), &mut [], &mut into, &mut room).unwrap(), 0);
    assert!(!server.has_received(), "once is enough");

    // An end that comes during the negotiation of a client.
    server.end(&far.as_fd());
    session.read_tls(&mut &near).unwrap();
    session.process_new_packets().unwrap();
    let mut client = Stream::client(session);
    assert!(client.has_received());
    assert_eq!(client.receive(&near.as_fd(), &mut [], &mut into, &mut room).unwrap(), 0);
}

#[test]
fn bytes_that_a_stream_holds_are_counted_in_both_directions() {
    let (folder, authority) = (Folder::new("held"), Authority::new());
    let acceptor = load("server", &folder.settings(&authority, &authority.issue("localhost"))).unwrap();
    let config = authority.client(&authority.issue("near"));
    let mut session = ClientConnection::new(config, "localhost".try_into().unwrap()).unwrap();
    let mut server = Stream::server(Arc::new(acceptor)).unwrap();
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    far.set_nonblocking(true).unwrap();
    let (mut room, mut into) = (Scratch::default(), vec![0_u8; 64 << 10]);
    for _ in 0..8 {
        while session.wants_write() {
            session.write_tls(&mut &near).unwrap();
        }
        let _ = server.receive(&far.as_fd(), &mut [], &mut into, &mut room);
        assert!(server.push(&far.as_fd()).unwrap());
        // There may be nothing.
        let _ = session.read_tls(&mut &near);
        session.process_new_packets().unwrap();
    }
    assert!(server.cipher().is_some());
    assert_eq!(server.held(), 0);

    // Four records, which the kernel gives in one piece or in several; the caller has room for one byte.
    session.set_buffer_limit(None);
    session.writer().write_all(&[7; 64 << 10]).unwrap();
    while session.wants_write() {
        session.write_tls(&mut &near).unwrap();
    }
    let (mut taken, mut most) = (0, 0);
    while taken < 8 << 10 {
        match server.receive(&far.as_fd(), &mut [], &mut into[..1], &mut room) {
            Ok(bytes) => taken += bytes,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
        most = most.max(server.held());
    }
    assert!((8 << 10..64 << 10).contains(&most), "{most} bytes");
    while taken < 64 << 10 {
        match server.receive(&far.as_fd(), &mut [], &mut into, &mut room) {
            Ok(bytes) => taken += bytes,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
    }
    assert_eq!((taken, server.held()), (64 << 10, 0));

    // The client takes nothing: what the socket does not take is held.
    let mut sent = 0;
    loop {
        match server.send(&far.as_fd(), &mut room, |bytes| bytes.len()) {
            Ok(bytes) => sent += bytes,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}");
                break;
            }
        }
    }
    assert!(sent > 0 && server.wants_send());
    assert!((1..=65 << 10).contains(&server.held()), "{} bytes", server.held());
    while !server.push(&far.as_fd()).unwrap() {
        session.read_tls(&mut &near).unwrap();
        session.process_new_packets().unwrap();
        let mut taken = 0;
        while let Ok(bytes @ 1..) = session.reader().read(&mut into) {
            taken += bytes;
        }
        assert!(taken <= into.len());
    }
    assert_eq!(server.held(), 0);
}

#[test]
fn an_admitted_client_is_judged_anew_by_new_settings() {
    let (folder, authority) = (Folder::new("anew"), Authority::new());
    let settings = folder.settings(&authority, &authority.issue("localhost"));
    let before = load("server", &settings).unwrap();
    assert!(before.is_same(&load("server", &settings).unwrap()));
    let alice = chain(&authority.issue("alice"));
    assert!(before.admits(&alice) && !before.admits(&[]));
    folder.file("clients", &Authority::new().certificate);
    let after = load("server", &settings).unwrap();
    assert!(!after.is_same(&before) && !after.admits(&alice));
    let anybody = load("server", &Files { clients: None, ..settings }).unwrap();
    assert!(anybody.admits(&[]) && anybody.admits(&alice));
}

#[test]
fn a_client_with_more_certificates_than_a_chain_needs_is_refused() {
    let (folder, authority) = (Folder::new("long"), Authority::new());
    let acceptor = load("server", &folder.settings(&authority, &authority.issue("localhost"))).unwrap();
    let alice = authority.issue("alice");
    let with = |others: usize| vec![chain(&alice)[0].clone(); 1 + others];
    assert!(acceptor.admits(&with(MOST_BESIDE)), "what belongs to no chain does no harm");
    assert!(!acceptor.admits(&with(MOST_BESIDE + 1)));
}

#[test]
fn a_certificate_is_known_by_its_names_and_its_fingerprint() {
    let (one, two) =
        (identity(&Authority::new().issue("web.example.org")), identity(&Authority::new().issue("web.example.org")));
    assert_eq!(one.names, ["web.example.org", "web.example.org"]);
    assert_ne!(one.fingerprint, two.fingerprint);
    assert_eq!(one.to_string(), "web.example.org");
    let nameless = Identity { names: Vec::new(), ..one };
    assert!(nameless.to_string().starts_with("sha256:"));
    // What is no certificate has a fingerprint and no name.
    assert!(Identity::of(&CertificateDer::from(vec![1, 2, 3])).names.is_empty());
}
