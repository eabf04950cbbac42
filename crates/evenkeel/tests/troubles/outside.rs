//! Troubles from outside: an OSD that an agent no longer hears, an etcd that refuses, and a certificate that has expired.

use std::fs;
use std::process::Command;

use super::agent::Agent;
use super::fake_osd::FakeOsd;
use super::port::Port;
use super::server::{EVENKEEL, Folder, Server, until};
use super::stage::{PATIENCE, Trouble, state};

#[test]
fn the_lost_signal_of_an_agent() {
    let folder = Folder::new();
    let (socket, data, file) = (folder.join("osd.3.asok"), folder.join("data"), folder.join("guard.toml"));
    let osd = FakeOsd::start(&socket);
    let text = format!(
        "[agent]\nstatus = \"127.0.0.1:0\"\ndiscover_every = \"1h\"\ndata_dir = {data:?}\nhistory = \"8MiB\"\n\
         [agent.ceph]\nsockets = [{socket:?}]\n[pools.ceph]\ndevices = [\"osd:osd.3\"]\n"
    );
    fs::write(&file, text).expect("written");
    let agent = Agent::spawn(&mut Command::new(EVENKEEL), &file);
    until("the OSD's signal", PATIENCE, || {
        let state = state(&agent.status);
        if state["pools"][0]["condition"] == "watched" { Ok(()) } else { Err(format!("{:#}", state["pools"])) }
    });
    drop(osd);
    let trouble = Trouble::new("osd", "osd.3", "no process listens on ", "start the OSD, or take it out of the policy");
    let at = trouble.is_named(&folder, &agent.status);
    drop(agent);
    let agent = Agent::spawn(&mut Command::new(EVENKEEL), &file);
    trouble.is_explained(&folder, &agent.status, at);
}

#[test]
fn an_etcd_that_is_lost() {
    let folder = Folder::new();
    // Nothing listens there.
    let port = Port::reserve();
    let text = format!(
        "[pools.main]\ntuning.admission = \"none\"\ntuning.slots = \"needs\"\n[pools.main.emulate]\niops = 500\n\
         [tenants.a]\nlatency.target = \"200ms\"\n[volumes.a]\nbackend = \"emulate\"\nsize = \"8MiB\"\n\
         [cluster]\netcd = [\"http://127.0.0.1:{}\"]\nhost = \"a\"\nperiod = \"500ms\"\nlease = \"2s\"\n",
        port.number()
    );
    let server = Server::configured(&folder, &text);
    let address = format!("127.0.0.1:{}", port.number());
    let trouble = Trouble {
        kind: "cluster_lost",
        about: "cluster lost",
        cause: &address,
        cure: "check that the addresses in cluster.etcd answer from this host",
        // The error of etcd comes a moment later.
        recorded: "",
    };
    trouble.outlives(&folder, server, &text, || ());
}

#[test]
fn an_expired_certificate() {
    let folder = Folder::new();
    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    params.not_after = rcgen::date_time_ymd(2001, 1, 1);
    let pair = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&pair).expect("a certificate").pem();
    let (certificate_file, key_file) = (folder.join("server.pem"), folder.join("server.key"));
    fs::write(&certificate_file, certificate).expect("written");
    fs::write(&key_file, pair.serialize_pem()).expect("written");
    let text = format!(
        "[server.tls]\ncertificate = {certificate_file:?}\nkey = {key_file:?}\n\
         [volumes.a]\nbackend = \"memory\"\nsize = \"1MiB\"\n"
    );
    let server = Server::configured(&folder, &text);
    let trouble = Trouble::new("certificate", "", "the certificate of [server.tls] has expired", "renew it and reload");
    trouble.outlives(&folder, server, &text, || ());
}
