use std::io::Read as _;

use proptest::prelude::*;
use serde_json::json as value;

use super::*;
use crate::fake_osd::FakeOsd;
use crate::folder::folder;

const DIFF: &str = include_str!("../tests/fixtures/ceph16/config_diff_set.json");
const REFUSED: [&str; 2] = [
    include_str!("../tests/fixtures/ceph16/refused_command.txt"),
    include_str!("../tests/fixtures/ceph16/refused_value.txt"),
];

fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_be_bytes()[..], body].concat()
}

#[test]
fn a_question_ends_with_a_zero_byte_and_holds_its_arguments() {
    let bytes = question("config set", &[("var", "a".into()), ("val", vec!["1"].into())]);
    let (last, body) = bytes.split_last().unwrap();
    assert_eq!(*last, 0);
    let sent: Value = serde_json::from_slice(body).unwrap();
    assert_eq!(sent, value!({ "prefix": "config set", "format": "json", "var": "a", "val": ["1"] }));
}

#[test]
fn an_answer_is_complete_when_all_of_its_length_has_come() {
    let bytes = framed(b"{}");
    assert_eq!(wanted(&bytes[..3]), Ok(None));
    assert_eq!(wanted(&bytes[..4]), Ok(Some(6)));
    assert_eq!(text(&bytes).unwrap(), "{}");
    assert_eq!(text(&bytes[..5]), Err(Malformed::Short { got: 5, wanted: 6 }));
    assert_eq!(text(&[]), Err(Malformed::Short { got: 0, wanted: 4 }));
    assert_eq!(wanted(&u32::MAX.to_be_bytes()), Err(Malformed::Long(u32::MAX as usize)));
}

#[test]
fn what_was_set_in_the_daemon_is_distinguished_from_what_is_stored() {
    let diff = json(DIFF).unwrap();
    assert_eq!(override_of(&diff, "bluestore_throttle_bytes"), Ok(Some("262144".into())));
    // Set in a file, not in the daemon; and not set at all.
    assert_eq!(override_of(&diff, "osd_memory_target"), Ok(None));
    assert_eq!(override_of(&diff, "bluestore_throttle_deferred_bytes"), Ok(None));
    assert_eq!(override_of(&diff, "osd_max_backfills"), Ok(Some("1000".into())));
    assert_eq!(override_of(&value!({}), "a"), Err(Malformed::Lacks("diff".into())));
}

#[test]
fn refusals_are_reported_in_the_daemons_words() {
    for text in REFUSED {
        let answer = refusal(text).unwrap();
        assert!(answer.starts_with("ERROR: (22) Invalid argument: "), "{answer}");
    }
    assert_eq!((refusal("\n"), json("\n")), (None, Ok(Value::Null)));
    assert!(matches!(json("{\"a\":"), Err(Malformed::Json(_))));
}

#[test]
fn options_are_asked_set_and_unset() {
    let folder = folder("options");
    let osd = FakeOsd::start(&folder.join("osd.0.asok"));
    let socket = AdminSocket::new(folder.join("osd.0.asok"), Duration::from_secs(20));
    assert_eq!(socket.option("bluestore_throttle_bytes").unwrap(), "67108864");
    assert_eq!(socket.option_override("bluestore_throttle_bytes").unwrap(), None);
    socket.set_option("bluestore_throttle_bytes", Some("1")).unwrap();
    assert_eq!(socket.option_override("bluestore_throttle_bytes").unwrap(), Some("1".into()));
    socket.set_option("bluestore_throttle_bytes", None).unwrap();
    assert_eq!(osd.set("bluestore_throttle_bytes"), None);
    let (_, pid) = socket.ask("config diff", &[]).unwrap();
    assert_eq!(pid, std::process::id() as i32);
    assert!(matches!(socket.ask("nonsense", &[]), Err(Error::Refused { .. })));
}

#[test]
fn questions_are_answered_at_once_each_in_its_buffer() {
    let folder = folder("at-once");
    let osd = FakeOsd::start(&folder.join("osd.0.asok"));
    let socket = AdminSocket::new(folder.join("osd.0.asok"), Duration::from_secs(20));
    let questions = ["bluestore_throttle_bytes", "bluestore_throttle_deferred_bytes"]
        .map(|option| question("config get", &[("var", option.into())]));
    let mut answers = [vec![1; 1_000], Vec::new()];
    for _ in 0..3 {
        let pid = socket.ask_all([&questions[0], &questions[1]], &mut answers).unwrap();
        assert_eq!(pid, std::process::id() as i32);
        for (answer, wanted) in answers.iter().zip(["67108864", "134217728"]) {
            assert!(text(answer).unwrap().contains(wanted), "{answer:?}");
        }
    }
    osd.inside.lock().unwrap().unanswered = Some("config get");
    let socket = AdminSocket::new(folder.join("osd.0.asok"), Duration::from_millis(100));
    let late = socket.ask_all([&questions[0], &questions[1]], &mut answers);
    assert!(matches!(late, Err(Error::Late { .. })), "{late:?}");
}

/// An answer longer than the system's socket buffer, from a daemon that leaves the connection open.
#[test]
fn a_long_answer_comes_through_and_need_not_end_the_connection() {
    let folder = folder("long");
    let path = folder.join("osd.0.asok");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let body = format!("[{}0]", "0,".repeat(1 << 20));
    let sent = framed(body.as_bytes());
    let daemon = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&sent).unwrap();
        // Until the other side closes.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let mut answers = [Vec::new()];
    AdminSocket::new(&path, Duration::from_secs(20)).ask_all([b"a\0"], &mut answers).unwrap();
    assert_eq!(text(&answers[0]).unwrap(), body);
    daemon.join().unwrap();
}

#[test]
fn absent_late_and_cut_off_are_told_apart() {
    let folder = folder("absent");
    let path = folder.join("osd.0.asok");
    let socket = AdminSocket::new(&path, Duration::from_millis(100));
    assert!(socket.option("a").unwrap_err().is_absent());
    // A socket that no process listens on any more, as an OSD leaves when it is killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(socket.option("a").unwrap_err().is_absent());
    let osd = FakeOsd::start(&path);
    osd.inside.lock().unwrap().unanswered = Some("config get");
    assert!(matches!(socket.option("a"), Err(Error::Late { .. })));
    drop(osd);
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let cut = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut part = [0; 256];
        let _ = stream.read(&mut part);
        stream.write_all(&[0, 0, 0, 9, b'{']).unwrap();
    });
    let error = AdminSocket::new(&path, Duration::from_secs(20)).option("a").unwrap_err();
    assert!(matches!(error, Error::Odd { problem: Malformed::Short { got: 5, wanted: 13 }, .. }), "{error}");
    cut.join().unwrap();
}

proptest! {
    #[test]
    fn whatever_comes_is_an_answer_or_a_complaint(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = wanted(&bytes);
        if let Ok(text) = text(&bytes) {
            prop_assert!(bytes.len() >= 4);
            let _ = (refusal(&text), json(&text).map(|value| override_of(&value, "a").is_ok()));
        }
    }

    #[test]
    fn damaged_answers_do_no_harm(at in 0..DIFF.len(), byte in 0u8..128) {
        let mut bytes = DIFF.as_bytes().to_vec();
        bytes[at] = byte;
        if let Ok(value) = json(&String::from_utf8_lossy(&bytes)) {
            let _ = override_of(&value, "bluestore_throttle_bytes");
        }
    }

    #[test]
    fn any_body_comes_through(body in "[a-z{}\\[\\]\":,0-9 ]{0,200}", cut in 0usize..300) {
        let bytes = framed(body.as_bytes());
        prop_assert_eq!(text(&bytes).unwrap(), body.as_str());
        if cut < bytes.len() {
            prop_assert!(text(&bytes[..cut]).is_err());
        }
    }
}
