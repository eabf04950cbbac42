//! Tests of `evenkeel load` with a server that demands TLS. Certificates are made by `openssl`.

use std::process::Command;

use crate::folder::Folder;
use crate::peers::{self, Load, need};

const OPENSSL: &str = "\
[req]\ndistinguished_name = dn\nprompt = no\n[dn]\nCN = unused\n\
[authority]\nbasicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign\nsubjectKeyIdentifier = hash\n\
[server]\nextendedKeyUsage = serverAuth\nsubjectAltName = DNS:localhost,IP:127.0.0.1\n\
[client]\nextendedKeyUsage = clientAuth\n";
const NEW: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config openssl.cnf";
const MEMORY: &str = "[volumes.ram]\nbackend = \"memory\"\nsize = \"16MiB\"\n";

/// A certificate authority, with the files of a server and of a client in its folder.
struct Authority {
    folder: Folder,
}

impl Authority {
    /// Makes all files; `None` if openssl is not installed. `name`: the common name.
    fn new(name: &str) -> Option<Self> {
        if !need("openssl") {
            return None;
        }
        let authority = Self { folder: Folder::new() };
        authority.folder.file("openssl.cnf", OPENSSL);
        authority.openssl(&format!(
            "req -x509 {NEW} -extensions authority -subj /CN={name} -days 2 -keyout ca.key -out ca.pem"
        ));
        for role in ["server", "client"] {
            authority.openssl(&format!("req -new {NEW} -subj /CN={role} -keyout {role}.key -out {role}.csr"));
            authority.openssl(&format!(
                "x509 -req -in {role}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile openssl.cnf \
                 -extensions {role} -out {role}.pem"
            ));
        }
        Some(authority)
    }

    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        let output = command.args(arguments.split_whitespace()).current_dir(self.folder.path()).output().unwrap();
        assert!(output.status.success(), "openssl {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// The configuration of a server that demands TLS of every client, and client certificates of this authority.
    fn server(&self) -> String {
        let [certificate, key, clients] = ["server.pem", "server.key", "ca.pem"].map(|name| self.file(name));
        format!(
            "[server.tls]\ncertificate = \"{certificate}\"\nkey = \"{key}\"\nclients = \"{clients}\"\n\
             required = \"always\"\n{MEMORY}"
        )
    }
}

/// The URI `uri` with TLS.
fn secure(uri: &str) -> String {
    uri.replacen("nbd", "nbds", 1)
}

#[test]
fn a_server_that_demands_tls_passes_verification() {
    let Some(authority) = Authority::new("ours") else { return };
    let server = peers::evenkeel("", &authority.server());
    let uri = secure(&server.export("ram"));
    let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"].map(|name| authority.file(name));
    let files = [uri.as_str(), "--ca", &ca, "--cert", &cert, "--key", &key];
    let requests = ["--op", "mix", "--block-size", "4k:70,16k:20,128k:10", "--requests", "4000", "--trim-percent", "3"];
    let sizes = ["--connections", "3", "--threads", "2", "--queue-depth", "16", "--fill", "--verify"];
    let job = Load::run(&[&files[..], &requests, &sizes].concat()).success();
    // Reading back alone compares most of 16 MiB.
    assert!(job["verified_bytes"].as_u64().unwrap() > 12 << 20, "{job}");
    assert_eq!(job["uri"], uri);
    let misspelt = uri.replacen("/ram?", "/rem?", 1);
    let wrong = [&[misspelt.as_str()][..], &files[1..]].concat();
    Load::run(&wrong).fails_before_start(&["did you mean \"ram\"?"]);
}

#[test]
fn nothing_is_sent_without_tls_that_was_asked_for() {
    let (Some(authority), Some(other)) = (Authority::new("ours"), Authority::new("theirs")) else { return };
    let server = peers::evenkeel("", &authority.server());
    let (clear, uri) = (server.export("ram"), secure(&server.export("ram")));
    let [ca, others] = [&authority, &other].map(|authority| authority.file("ca.pem"));
    Load::run(&[&clear]).fails_before_start(&["requires TLS", "write nbds instead of nbd"]);
    Load::run(&[&clear, "--ca", &ca]).is_misused(&["--ca does nothing here", "nbds://"]);
    Load::run(&[&uri]).is_misused(&["no CA certificate is set", "give --ca FILE"]);
    Load::run(&[&uri, "--ca", &others]).fails_before_start(&["UnknownIssuer", "name the file of the authority"]);
    // The server wants a certificate: it sends an alert, or ends the connection.
    Load::run(&[&uri, "--ca", &ca]).fails_before_start(&["the server", "log"]);
    Load::run(&[&uri, "--ca", "/nowhere/ca.pem"]).fails_before_start(&["--ca: /nowhere/ca.pem cannot be read"]);
    let plain = peers::evenkeel("", MEMORY);
    let uri = secure(&plain.export("ram"));
    Load::run(&[&uri, "--ca", &ca]).fails_before_start(&["TLS cannot start", "set up TLS on that server"]);
}
