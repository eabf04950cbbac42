//! Tests of files that the server did not create, and of files that it must not change.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use evenkeel_policy::config::{Backend, Engine, Format, Volume};
use evenkeel_policy::units::Bytes;
use evenkeel_policy::{Config, Severity};
use evenkeel_server::{Error, Server, Start};

use crate::support::{Client, Scratch, Stream, TestServer, config};
use evenkeel_nbd::wire::Framing;

const QCOW2: &[u8] = b"QFI\xfb\0\0\0\x03";

/// A file of 1 MiB that begins with `head`.
fn foreign(path: &Path, head: &[u8]) {
    let mut content = vec![0; 1 << 20];
    content[..head.len()].copy_from_slice(head);
    fs::write(path, content).unwrap();
}

fn start(config: &Config) -> Result<Server, Error> {
    Server::start(config.clone(), Start::default())
}

/// The message of the error with which a server with this configuration refuses to start.
#[track_caller]
fn refused(config: &Config) -> String {
    match start(config).map(drop) {
        Err(error @ (Error::NotOurs { .. } | Error::Refused(_))) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn with_path(scratch: &Scratch, path: &Path, more: &str) -> Config {
    config(scratch, Engine::Auto, &format!("[volumes.v]\npath = {:?}\n{more}", path.display().to_string()))
}

#[test]
fn a_foreign_file_is_served_at_its_own_length() {
    let scratch = Scratch::new("foreign-size");
    let path = scratch.path().join("elsewhere.img");
    foreign(&path, b"mine");
    for (more, words) in [("size = \"2MiB\"\n", "grow = true"), ("size = \"1KiB\"\ngrow = true\n", "would hide data")] {
        let why = refused(&with_path(&scratch, &path, more));
        assert!(why.contains(words) && why.contains("elsewhere.img") && why.contains("1048576"), "{why}");
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20, "it was touched");
    }
    for (more, size) in [("", 1 << 20), ("size = \"1MiB\"\n", 1 << 20), ("size = \"2MiB\"\ngrow = true\n", 2 << 20)] {
        let server = start(&with_path(&scratch, &path, more)).unwrap();
        assert_eq!(server.state().volumes[0].size_bytes, size);
        server.shutdown().unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), size);
    }
    // Having been lengthened once, it is no less foreign.
    assert!(refused(&with_path(&scratch, &path, "size = \"3MiB\"\n")).contains("grow = true"));
    assert!(fs::read(&path).unwrap().starts_with(b"mine"));
}

#[test]
fn a_reload_lengthens_a_foreign_file_only_if_it_says_so() {
    let scratch = Scratch::new("foreign-reload");
    let path = scratch.path().join("elsewhere.img");
    foreign(&path, b"");
    let server = start(&with_path(&scratch, &path, "")).unwrap();
    let error = server.reload(with_path(&scratch, &path, "size = \"2MiB\"\n")).unwrap_err();
    assert!(matches!(error, Error::NotOurs { .. }), "{error}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
    server.reload(with_path(&scratch, &path, "size = \"2MiB\"\ngrow = true\n")).unwrap();
    assert_eq!(server.state().volumes[0].size_bytes, 2 << 20);
    // By command it is asked for by name.
    server.grow_volume("v", Bytes(3 << 20)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 3 << 20);
    assert!(server.config().volumes["v"].grow);
    server.shutdown().unwrap();
}

#[test]
fn a_reload_that_would_cut_what_is_served_is_refused_as_a_whole() {
    let scratch = Scratch::new("foreign-cut");
    let path = scratch.path().join("elsewhere.img");
    foreign(&path, b"");
    let server = start(&with_path(&scratch, &path, "")).unwrap();
    for more in ["", "grow = true\n"] {
        let text = format!("size = \"512KiB\"\n{more}[volumes.m]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
        let error = server.reload(with_path(&scratch, &path, &text)).unwrap_err().to_string();
        for words in ["elsewhere.img", "volumes.v.size", "1048576", "524288", "nothing was changed", "Leave size out"] {
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(server.state().volumes.len(), 1, "the rest of it, too");
        assert_eq!(server.config().volumes["v"].size, None);
    }
    assert_eq!(server.state().volumes[0].size_bytes, 1 << 20);
    server.reload(with_path(&scratch, &path, "size = \"1MiB\"\n")).unwrap();
    server.shutdown().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 20);
}

#[test]
fn an_image_of_another_format_is_refused_unless_it_is_meant() {
    let scratch = Scratch::new("foreign-image");
    let path = scratch.path().join("image");
    foreign(&path, QCOW2);
    let why = refused(&with_path(&scratch, &path, ""));
    assert!(why.contains("a qcow2 image") && why.contains("format = \"raw\"") && why.contains("qemu-img"), "{why}");
    assert!(refused(&with_path(&scratch, &path, "read_only = true\n")).contains("a qcow2 image"));
    start(&with_path(&scratch, &path, "format = \"raw\"\n")).unwrap().shutdown().unwrap();
    // It has been examined, and is known.
    start(&with_path(&scratch, &path, "")).unwrap().shutdown().unwrap();
    // Another file in its place is not.
    foreign(&scratch.path().join("next"), b"conectix");
    fs::rename(scratch.path().join("next"), &path).unwrap();
    assert!(refused(&with_path(&scratch, &path, "")).contains("a VHD image"));
}

#[test]
fn what_clients_write_changes_nothing() {
    let text = "[volumes.mine]\nsize = \"1MiB\"\n";
    let test = TestServer::start("foreign-client", Engine::Auto, text);
    let mut client = test.connect("mine");
    client.write(0, QCOW2).unwrap();
    client.flush().unwrap();
    test.server.shutdown().unwrap();
    let socket = test.socket();
    drop(test.server);
    let again = start(&test.config).unwrap();
    let socket = std::os::unix::net::UnixStream::connect(socket).unwrap();
    let mut client = Client::new(Stream::Unix(socket), "mine", Framing::Simple);
    assert_eq!(client.read(0, QCOW2.len() as u64).unwrap(), QCOW2);
    again.shutdown().unwrap();
    drop(again);
    // Without the record it is foreign.
    fs::remove_file(test.scratch.path().join("files.toml")).unwrap();
    assert!(refused(&test.config).contains("a qcow2 image"));
}

#[test]
fn what_a_foreign_file_holds_is_reported_once() {
    let test = TestServer::start("foreign-told", Engine::Auto, "[volumes.m]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let path = test.scratch.path().join("with-fs.img");
    foreign(&path, b"XFSB");
    let volume = Volume { path: Some(path), ..Volume::default() };
    let notes = test.server.create_volume("v", volume.clone()).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("an XFS file system"), "{notes:?}");
    test.server.remove_volume("v").unwrap();
    assert_eq!(test.server.create_volume("v", volume).unwrap(), [""; 0]);
}

#[test]
fn a_file_that_was_not_created_after_all_is_not_the_servers_later() {
    let scratch = Scratch::new("foreign-later");
    let (image, later) = (scratch.path().join("image"), scratch.path().join("later.img"));
    foreign(&image, QCOW2);
    // The first is refused before the second is created.
    let text = format!("[volumes.a]\npath = {:?}\n[volumes.later]\nsize = \"1MiB\"\n", image.display().to_string());
    assert!(refused(&config(&scratch, Engine::Auto, &text)).contains("qcow2"));
    assert!(!later.exists());
    foreign(&later, QCOW2);
    let why = refused(&config(&scratch, Engine::Auto, "[volumes.later]\n"));
    assert!(why.contains("later.img") && why.contains("qcow2"), "{why}");
}

#[test]
fn by_command_volumes_are_where_the_configuration_allows() {
    let scratch = Scratch::new("foreign-places");
    let (data, allowed, outside) =
        (scratch.path().join("data"), scratch.path().join("allowed"), scratch.path().join("outside"));
    for folder in [&data, &allowed, &outside] {
        fs::create_dir_all(folder).unwrap();
    }
    let text = format!(
        "[server]\nvolume_dirs = [{:?}]\n[volumes.m]\nbackend = \"memory\"\nsize = \"1MiB\"\n",
        allowed.display().to_string()
    );
    let mut config = config(&scratch, Engine::Auto, &text);
    config.server.data_dir = data.clone();
    let server = start(&config).unwrap();
    let volume = |path: &Path| Volume { path: Some(path.into()), size: Some(Bytes(1 << 20)), ..Volume::default() };
    symlink(&outside, allowed.join("link")).unwrap();
    symlink(outside.join("new"), data.join("a.img")).unwrap();
    for (name, path) in [
        ("x", outside.join("new")),
        ("x", allowed.join("link/new")),
        ("x", allowed.join("../outside/new")),
        ("x", data.join("a.img")),
        ("x", scratch.path().join("missing/new")),
    ] {
        match server.create_volume(name, volume(&path)) {
            Err(error @ Error::NotOurs { .. }) => assert!(error.to_string().contains("volume_dirs"), "{error}"),
            other => panic!("{}: {other:?}", path.display()),
        }
    }
    assert!(!outside.join("new").exists());
    let by_name = Volume { size: Some(Bytes(1 << 20)), ..Volume::default() };
    assert!(matches!(server.create_volume("a", by_name), Err(Error::NotOurs { .. })), "a link leads out of the folder");
    server.create_volume("b", volume(&allowed.join("new"))).unwrap();
    server.create_volume("c", volume(&data.join("new"))).unwrap();
    assert_eq!(server.state().volumes.len(), 3);
    // The file may name any place.
    let mut config = Config::clone(&server.config());
    config.volumes.insert("d".into(), volume(&outside.join("new")));
    server.reload(config).unwrap();
    assert!(outside.join("new").exists());
    server.shutdown().unwrap();
}

#[test]
fn a_volume_is_on_nothing_that_is_in_use() {
    let scratch = Scratch::new("foreign-own");
    let path = |name: &str| scratch.path().join(name);
    fs::write(path("e.toml"), "settings").unwrap();
    fs::hard_link(path("e.toml"), path("hardlink")).unwrap();
    symlink(path("e.toml"), path("symlink")).unwrap();
    foreign(&path("one.img"), b"");
    fs::hard_link(path("one.img"), path("two.img")).unwrap();
    symlink(path("one.img"), path("three.img")).unwrap();
    let text = format!("[volumes.one]\npath = {:?}\nread_only = true\n", path("one.img").display().to_string());
    let mut config = config(&scratch, Engine::Auto, &text);
    fs::write(path("policy.toml"), "").unwrap();
    config.policy = Some(path("policy.toml"));
    let start = Start { own_files: vec![path("e.toml"), path("not-yet.toml")], ..Start::default() };
    let server = Server::start(config, start).unwrap();
    for (name, words) in [
        ("e.toml", "configuration"),
        ("hardlink", "configuration"),
        ("symlink", "configuration"),
        ("not-yet.toml", "configuration"),
        ("policy.toml", "policy"),
        ("files.toml", "list of this server"),
        ("files.toml.new", "list of this server"),
        ("two.img", "already holds volume \"one\""),
        ("three.img", "already holds volume \"one\""),
    ] {
        // Two that only read would share the lock.
        let read_only = name.ends_with(".img");
        let size = (!read_only).then_some(Bytes(1 << 20));
        let volume = Volume {
            path: Some(path(name)),
            size,
            grow: !read_only,
            read_only,
            format: Some(Format::Raw),
            ..Volume::default()
        };
        match server.create_volume("v", volume) {
            Err(error @ Error::NotOurs { .. }) => assert!(error.to_string().contains(words), "{name}: {error}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(fs::read_to_string(path("e.toml")).unwrap(), "settings");
    assert!(!path("not-yet.toml").exists());
    server.shutdown().unwrap();
}

#[test]
fn a_size_above_the_free_space_is_reported() {
    let test = TestServer::start("foreign-space", Engine::Auto, "[volumes.m]\nbackend = \"memory\"\nsize = \"1MiB\"\n");
    let space = rustix::fs::statvfs(test.scratch.path()).unwrap();
    let size = Bytes((space.f_blocks * space.f_frsize).next_multiple_of(512) + (1 << 40));
    let notes = test.server.create_volume("v", Volume { size: Some(size), ..Volume::default() });
    match notes {
        Ok(notes) => assert!(notes.len() == 1 && notes[0].contains("are free on the file system"), "{notes:?}"),
        // The file system has no files of this size; nothing is there to be told about.
        Err(error) => assert!(matches!(error, Error::Volume { .. } | Error::Opening { .. }), "{error}"),
    }
    let sparse = test.scratch.path().join("v.img");
    assert!(!sparse.exists() || fs::metadata(&sparse).unwrap().blocks() < 1 << 11);
    let notes = test.server.create_volume("small", Volume { size: Some(Bytes(4096)), ..Volume::default() }).unwrap();
    assert_eq!(notes, [""; 0]);
    assert_eq!(test.server.grow_volume("small", Bytes(8192)).unwrap(), [""; 0]);
    match test.server.grow_volume("small", size) {
        Ok(notes) => assert!(notes.len() == 1 && notes[0].contains("are free on the file system"), "{notes:?}"),
        Err(error) => assert!(matches!(error, Error::Volume { .. }), "{error}"),
    }
}

#[test]
fn a_check_goes_on_without_the_record_and_knows_one_new_file_by_two_paths() {
    let scratch = Scratch::new("foreign-check");
    let folder = scratch.path();
    let mut config = with_path(&scratch, &folder.join("v.img"), "size = \"1MiB\"\n");
    let other = Volume {
        path: Some(folder.join("../").join(folder.file_name().unwrap()).join("v.img")),
        size: Some(Bytes(1 << 20)),
        ..Volume::default()
    };
    config.volumes.insert("w".into(), other);
    config.server.volume_dirs = vec![folder.join("none")];
    let found = |config: &Config| -> Vec<(Severity, String, String)> {
        let found = evenkeel_server::inspect(&std::sync::Arc::new(config.clone()), &[]);
        found.into_iter().map(|finding| (finding.severity, finding.path.join("."), finding.message)).collect()
    };
    let has = |found: &[(Severity, String, String)], severity: Severity, key: &str, words: &str| {
        let is = |(s, k, message): &(Severity, String, String)| *s == severity && k == key && message.contains(words);
        assert!(found.iter().any(is), "{key}: {words}: {found:#?}");
    };
    let usual = found(&config);
    has(&usual, Severity::Error, "volumes.w.path", "already holds volume \"v\"");
    has(&usual, Severity::Warning, "server.volume_dirs", "none is not there");
    assert!(!usual.iter().any(|(_, key, _)| key == "server.data_dir"), "{usual:#?}");

    fs::write(folder.join("files.toml"), "garbage").unwrap();
    let damaged = found(&config);
    has(&damaged, Severity::Error, "server.data_dir", "it is damaged");
    has(&damaged, Severity::Error, "volumes.w.path", "already holds volume \"v\"");
    config.server.data_dir = folder.join("files.toml");
    has(&found(&config), Severity::Error, "server.data_dir", "a part of this path is a file");
    config.volumes.values_mut().for_each(|volume| volume.backend = Backend::Memory);
    assert!(!found(&config).iter().any(|(_, key, _)| key == "server.data_dir"), "the server would not read it");
}

#[test]
fn a_file_that_is_missing_is_not_replaced_by_an_empty_one() {
    let scratch = Scratch::new("foreign-gone");
    let path = scratch.path().join("mounted/v.img");
    fs::create_dir(path.parent().unwrap()).unwrap();
    let config = with_path(&scratch, &path, "size = \"1MiB\"\n");
    start(&config).unwrap().shutdown().unwrap();
    // Its file system is not mounted any more.
    fs::rename(&path, scratch.path().join("elsewhere.img")).unwrap();
    let found = evenkeel_server::inspect(&std::sync::Arc::new(config.clone()), &[]);
    assert!(found.iter().any(|finding| finding.message.contains("lists it), but is not there")), "{found:?}");
    for _ in 0..2 {
        let why = refused(&config);
        assert!(why.contains("Mount its file system") && why.contains("v.img"), "{why}");
        assert!(!path.exists(), "a new one was made");
    }
    fs::rename(scratch.path().join("elsewhere.img"), &path).unwrap();
    let server = start(&config).unwrap();
    assert!(server.remove_volume("v").unwrap().is_empty());
    fs::remove_file(&path).unwrap();
    assert!(server.reload(config.clone()).is_err());
    let mine = scratch.path().join("w.img");
    let volume = Volume { path: Some(mine.clone()), size: Some(Bytes(1 << 20)), ..Volume::default() };
    // A command means the volume that it names.
    for _ in 0..2 {
        server.create_volume("w", volume.clone()).unwrap();
        assert!(server.remove_volume("w").unwrap().is_empty());
        fs::remove_file(&mine).unwrap();
    }
    fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
    server.reload(config).unwrap();
    server.shutdown().unwrap();
}
