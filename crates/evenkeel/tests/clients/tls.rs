//! Tests of TLS with common NBD clients. Their certificates, made by `openssl`, are good, expired, revoked, or of another
//! authority; some clients have none.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use rustix::process::Signal;

use crate::harness::{Case, Process, SIZE, Server, assert_same, until};

on_both_engines! {
    nbdinfo_and_nbdcopy_work_under_tls: "openssl" "nbdinfo" "nbdcopy";
    qemu_works_under_tls: "openssl" "qemu-img" "nbdcopy";
    openssl_speaks_1_2_and_1_3_and_nothing_older: "openssl";
    who_has_no_good_certificate_is_refused: "openssl" "nbdinfo";
    what_needs_tls_is_not_shown_without: "openssl" "nbdinfo";
    certificates_choose_tenants: "openssl" "nbdinfo" "qemu-io";
    a_reload_revokes_and_renews: "openssl" "nbdinfo" "qemu-io";
}

const OPENSSL: &str = "\
[req]\ndistinguished_name = dn\nprompt = no\n[dn]\nCN = unused\n\
[authority]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign\nsubjectKeyIdentifier = hash\n\
[server]\nextendedKeyUsage = serverAuth\nsubjectAltName = DNS:localhost,IP:127.0.0.1\n\
[client]\nextendedKeyUsage = clientAuth\n\
[ca]\ndefault_ca = files\n\
[files]\ndatabase = index.txt\ncrlnumber = crlnumber\ndefault_md = sha256\ndefault_crl_days = 2\ncrl_extensions = list\n\
[list]\nauthorityKeyIdentifier = keyid\n";
const NEW: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf";
const CA: &str = "openssl ca -config openssl.cnf -keyfile ca-key.pem -cert ca-cert.pem";

/// A certificate authority whose files are in the case's folder. The files of each certificate begin with its owner's name.
pub(crate) struct Authority<'a>(&'a Case);

impl<'a> Authority<'a> {
    pub(crate) fn new(case: &'a Case) -> Self {
        fs::write(case.path("openssl.cnf"), OPENSSL).unwrap();
        fs::write(case.path("index.txt"), "").unwrap();
        fs::write(case.path("crlnumber"), "01\n").unwrap();
        let (authority, folder) = (Self(case), case.path(""));
        // Not the same for two of them, or they would be taken for one with a wrong signature.
        let name = folder.iter().next_back().unwrap_or_default().display();
        authority.make(&format!(
            "openssl req -x509 {NEW} -extensions authority -subj /CN={name} -days 2 -keyout ca-key.pem -out ca-cert.pem"
        ));
        authority.issue("server", "server", 2);
        authority
    }

    fn make(&self, command: &str) {
        self.0.succeed(&command.split(' ').collect::<Vec<_>>());
    }

    /// Makes a key and a certificate for the owner `name`, valid for `days` from now (expired if negative). `role`: `client` or
    /// `server`. Returns the path of a folder that has them under the names that NBD clients expect.
    pub(crate) fn issue(&self, name: &str, role: &str, days: i32) -> String {
        self.make(&format!("openssl req -new {NEW} -subj /CN={name} -keyout {name}-key.pem -out {name}.csr"));
        self.make(&format!(
            "openssl x509 -req -in {name}.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days {days} \
             -extfile openssl.cnf -extensions {role} -out {name}-cert.pem"
        ));
        let folder = self.0.path(name);
        fs::create_dir_all(&folder).unwrap();
        for (from, to) in [
            ("ca-cert.pem".to_owned(), "ca-cert.pem"),
            (format!("{name}-cert.pem"), "client-cert.pem"),
            (format!("{name}-key.pem"), "client-key.pem"),
        ] {
            fs::copy(self.0.path(&from), folder.join(to)).unwrap();
        }
        self.0.file(name)
    }

    /// Folders of four clients, in this order: with a good, a revoked and an expired certificate of this authority, and with a
    /// certificate of another authority, whose files are in `beside`.
    pub(crate) fn good_and_bad(&self, beside: &Case) -> [String; 4] {
        let [alice, bob] = ["alice", "bob"].map(|name| self.issue(name, "client", 2));
        let old = self.issue("old", "client", -1);
        self.revoke(&["bob"]);
        [alice, bob, old, Authority::new(beside).issue("stranger", "client", 2)]
    }

    /// Revokes the certificates of the owners `names`, and writes the list of all revoked certificates; `names` may be empty.
    pub(crate) fn revoke(&self, names: &[&str]) {
        for name in names {
            self.make(&format!("{CA} -revoke {name}-cert.pem"));
        }
        self.make(&format!("{CA} -gencrl -out crl.pem"));
    }

    /// Starts a server with a certificate of this authority and a volume in memory. `keys`: further keys of `[server.tls]`;
    /// `tables`: further tables of the configuration.
    fn serve(&self, keys: &str, tables: &str) -> Server {
        let file = |name| self.0.file(name);
        let (certificate, key, clients) = (file("server-cert.pem"), file("server-key.pem"), file("ca-cert.pem"));
        self.0.serve_with(
            &[],
            &format!(
                "[server.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclients = \"{clients}\"\n{keys}\n\
                 [volumes.memory]\nbackend = \"memory\"\nsize = \"32MiB\"\n{tables}"
            ),
        )
    }
}

fn port(server: &Server) -> String {
    server.tcp().rsplit(':').next().unwrap().to_owned()
}

fn secure(server: &Server, volume: &str, folder: &str) -> String {
    format!("nbds://localhost:{}/{volume}?tls-certificates={folder}", port(server))
}

/// Options of qemu's programs for TLS: the one for the client's credentials in `folder`, and the one for the image.
fn qemu(server: &Server, folder: &str) -> (String, String) {
    let image = format!("driver=nbd,host=localhost,port={},export=memory,tls-creds=me", port(server));
    (format!("tls-creds-x509,id=me,dir={folder},endpoint=client"), image)
}

fn nbdinfo_and_nbdcopy_work_under_tls(case: &Case) {
    let authority = Authority::new(case);
    let alice = authority.issue("alice", "client", 2);
    let server = authority.serve("", "[volumes.direct]\nsize = \"32MiB\"\n");
    let (image, content) = case.image();
    for volume in ["memory", "direct"] {
        let uri = secure(&server, volume, &alice);
        assert_eq!(case.succeed(&["nbdinfo", "--size", &uri]).trim(), SIZE.to_string());
        assert_eq!(case.json(&["nbdinfo", "--json", &uri])["TLS"], true);
        case.succeed(&["nbdcopy", &image, &uri]);
        assert_same(&case.content(&uri), &content, volume);
        // What came in encrypted is there in the clear, too.
        assert_same(&case.content(&server.unix(volume)), &content, volume);
    }
    server.stop();
}

fn qemu_works_under_tls(case: &Case) {
    let authority = Authority::new(case);
    let alice = authority.issue("alice", "client", 2);
    let server = authority.serve("", "");
    let (image, content) = case.image();
    let (credentials, target) = qemu(&server, &alice);
    case.succeed(&[
        "qemu-img",
        "convert",
        "-n",
        "--object",
        &credentials,
        "-f",
        "raw",
        &image,
        "--target-image-opts",
        &target,
    ]);
    assert_same(&case.content(&server.unix("memory")), &content, "written by qemu-img");
    let copy = case.file("copy.img");
    case.succeed(&["qemu-img", "convert", "--object", &credentials, "--image-opts", &target, "-O", "raw", &copy]);
    assert_same(&fs::read(copy).unwrap(), &content, "read by qemu-img");
    server.stop();
}

/// Starts a relay between `openssl` and the server. It sends STARTTLS, which openssl cannot do for NBD, and the bytes `behind` to
/// the server; afterwards it relays all bytes. Returns the address to which openssl must connect.
fn relay(server: &Server, behind: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, server) = (listener.local_addr().unwrap().to_string(), server.tcp());
    thread::spawn(move || -> io::Result<()> {
        let (client, _) = listener.accept()?;
        let mut stream = TcpStream::connect(server)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        let starttls = b"IHAVEOPT\0\0\0\x05\0\0\0\0";
        stream.write_all(&[&[0, 0, 0, 1], &starttls[..], behind].concat())?;
        let mut answer = [0; 20];
        stream.read_exact(&mut answer)?;
        assert_eq!(answer[8..], [0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0]);
        let (mut from, mut to) = (client.try_clone()?, stream.try_clone()?);
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
        let (mut from, mut to) = (stream, client);
        let _ = io::copy(&mut from, &mut to);
        to.shutdown(Shutdown::Both)
    });
    address
}

/// Runs `openssl s_client` against the server through a relay that inserts the bytes `behind` after STARTTLS, as an attacker
/// could. Returns true if openssl succeeds, and its output.
fn openssl(case: &Case, server: &Server, options: &str, behind: &'static [u8]) -> (bool, String) {
    let address = relay(server, behind);
    let words = format!("openssl s_client -connect {address} -CAfile ca-cert.pem -verify_return_error {options}");
    let output = case.run(&words.split(' ').collect::<Vec<_>>());
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

fn openssl_speaks_1_2_and_1_3_and_nothing_older(case: &Case) {
    let authority = Authority::new(case);
    authority.issue("alice", "client", 2);
    let server = authority.serve("", "");
    let client = |version: &str, behind| {
        openssl(case, &server, &format!("-cert alice-cert.pem -key alice-key.pem {version}"), behind)
    };
    for (version, said) in [("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")] {
        let (success, text) = client(version, b"");
        assert!(success && text.contains(said) && text.contains("Verify return code: 0 (ok)"), "{text}");
    }
    let (success, text) = client("-tls1_1 -cipher ALL:@SECLEVEL=0", b"");
    assert!(!success, "{text}");
    server.until_logged("TLS failed");
    // Options that somebody put behind STARTTLS: neither understood nor passed over.
    let (success, text) = client("-tls1_3", b"IHAVEOPT\0\0\0\x03\0\0\0\0");
    assert!(!success, "{text}");
    server.until_logged("the client sent unencrypted bytes behind STARTTLS");
    server.stop();
}

fn who_has_no_good_certificate_is_refused(case: &Case) {
    let authority = Authority::new(case);
    let beside = case.beside();
    let [alice, bob, old, stranger] = authority.good_and_bad(&beside);
    let server = authority.serve(&format!("revoked = \"{}\"", case.file("crl.pem")), "");
    case.succeed(&["nbdinfo", "--size", &secure(&server, "memory", &alice)]);

    // Each believes in the server, so that it is the server that refuses.
    let nobody = case.path("nobody");
    fs::create_dir_all(&nobody).unwrap();
    fs::copy(case.path("ca-cert.pem"), nobody.join("ca-cert.pem")).unwrap();
    for (folder, reason) in [(bob, "Revoked"), (old, "xpired"), (nobody.display().to_string(), "no certificates")] {
        case.fail(&["nbdinfo", "--size", &secure(&server, "memory", &folder)]);
        server.until_logged(reason);
    }
    let refused = server.state()["refused_clients_total"].clone();
    for reason in ["tls_revoked", "tls_expired", "tls_no_certificate"] {
        assert!(refused[reason].as_u64() >= Some(1), "{reason}: {refused}");
    }
    assert!(server.state()["tls_handshakes_total"].as_u64() >= Some(1));
    // The other clients do not even show a certificate of an authority that the server does not name.
    let shown = format!("-cert {stranger}/client-cert.pem -key {stranger}/client-key.pem");
    openssl(case, &server, &shown, b"");
    server.until_logged("UnknownIssuer");
    // The other way round: the client does not believe in the server.
    fs::copy(beside.path("ca-cert.pem"), case.path("alice/ca-cert.pem")).unwrap();
    case.fail(&["nbdinfo", "--size", &secure(&server, "memory", &alice)]);
    for secret in ["server-key.pem", "ca-key.pem"] {
        let key = fs::read_to_string(case.path(secret)).unwrap();
        let line = key.lines().nth(1).unwrap();
        assert!(!server.log().contains(line), "a secret in the log");
    }
    server.stop();
}

fn what_needs_tls_is_not_shown_without(case: &Case) {
    let authority = Authority::new(case);
    let alice = authority.issue("alice", "client", 2);
    let more = "[volumes.open]\nbackend = \"memory\"\nsize = \"1MiB\"\ntls = \"no\"\n\
                [volumes.vault]\nbackend = \"memory\"\nsize = \"1MiB\"\ntls = \"always\"\n";
    let server = authority.serve("", more);
    let clear = |volume: &str| format!("nbd://{}/{volume}", server.tcp());
    assert_eq!(case.exports(&clear("")), ["open"]);
    case.succeed(&["nbdinfo", "--size", &clear("open")]);
    for volume in ["memory", "vault"] {
        let complaint = case.fail(&["nbdinfo", "--size", &clear(volume)]);
        assert!(complaint.contains("TLS") || complaint.contains("tls"), "{complaint}");
    }
    assert_eq!(case.exports(&server.unix("")), ["memory", "open"]);
    case.fail(&["nbdinfo", "--size", &server.unix("vault")]);
    assert_eq!(case.exports(&secure(&server, "", &alice)), ["memory", "open", "vault"]);
    case.succeed(&["nbdinfo", "--size", &secure(&server, "vault", &alice)]);
    server.stop();

    // Where everything needs it, not even whether there is such a volume is told.
    let server = authority.serve("required = \"always\"", "");
    for volume in ["", "memory", "none"] {
        for uri in server.uris(volume) {
            case.fail(&["nbdinfo", "--size", &uri]);
        }
    }
    case.succeed(&["nbdinfo", "--size", &secure(&server, "memory", &alice)]);
    server.stop();
}

/// Starts `qemu-io` with the certificate in `folder`; it reads 4 KiB and stays connected.
fn stay(case: &Case, server: &Server, folder: &str) -> Process {
    let (credentials, image) = qemu(server, folder);
    let options = ["--object", &credentials, "--image-opts", &image, "-r"];
    case.start(&[&["qemu-io"], &options[..], &["-c", "read 0 4k", "-c", "sleep 50000"]].concat())
}

/// Number of reads that the server has answered to a tenant since its start; 0 if there is no such tenant.
fn reads(server: &Server, tenant: &str) -> u64 {
    let state = server.state();
    let tenants = state["pools"][0]["tenants"].as_array().unwrap();
    let found = tenants.iter().find(|found| found["name"] == tenant);
    found.map_or(0, |tenant| tenant["reads_total"].as_u64().unwrap())
}

fn certificates_choose_tenants(case: &Case) {
    let authority = Authority::new(case);
    let [alice, bob, carol] = ["alice", "bob", "carol"].map(|name| authority.issue(name, "client", 2));
    let shown = case.succeed(&["openssl", "x509", "-noout", "-fingerprint", "-sha256", "-in", "bob-cert.pem"]);
    let fingerprint = shown.trim().split('=').nth(1).unwrap();
    let tenants = format!(
        "[tenants.first]\nmatch = [\"certificate:ALICE\"]\n[tenants.second]\nmatch = [\"certificate:sha256:{fingerprint}\"]\n"
    );
    let server = authority.serve("named_only = true", &tenants);
    for (folder, tenant) in [(&alice, "first"), (&bob, "second")] {
        let _client = stay(case, &server, folder);
        until(tenant, || (reads(&server, tenant) > 0).then_some(()));
    }
    case.fail(&["nbdinfo", "--size", &secure(&server, "memory", &carol)]);
    server.until_logged("no tenant names this client's certificate");
    server.until_logged("(carol)");
    server.stop();
}

fn a_reload_revokes_and_renews(case: &Case) {
    let authority = Authority::new(case);
    let [alice, bob] = ["alice", "bob"].map(|name| authority.issue(name, "client", 2));
    authority.revoke(&[]);
    let tenants = "[tenants.first]\nmatch = [\"certificate:alice\"]\n[tenants.second]\nmatch = [\"certificate:bob\"]\n";
    let server = authority.serve(&format!("revoked = \"{}\"", case.file("crl.pem")), tenants);
    let (_first, _second) = (stay(case, &server, &alice), stay(case, &server, &bob));
    for tenant in ["first", "second"] {
        until(tenant, || (reads(&server, tenant) > 0).then_some(()));
    }
    authority.revoke(&["bob"]);
    authority.issue("server", "server", 2);
    server.signal(Signal::HUP);
    server.until_logged("certificates changed");
    server.until_logged("the client's certificate is no longer accepted");
    until("the revoked one gone, and no other", || (server.state()["connections"] == 1).then_some(()));
    case.fail(&["nbdinfo", "--size", &secure(&server, "memory", &bob)]);
    case.succeed(&["nbdinfo", "--size", &secure(&server, "memory", &alice)]);

    // What cannot be used changes nothing.
    fs::copy(case.path("alice-key.pem"), case.path("server-key.pem")).unwrap();
    server.signal(Signal::HUP);
    server.until_logged("does not belong to");
    case.succeed(&["nbdinfo", "--size", &secure(&server, "memory", &alice)]);
    until("nbdinfo gone", || (server.state()["connections"] == 1).then_some(()));
    server.stop();
}
