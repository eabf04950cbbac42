//! Tests of the messages of a container runtime, and with a runtime that a thread plays.

use std::os::unix::net::UnixListener;

use proptest::prelude::*;

use super::*;
use crate::folder::folder;

/// A pod of a runtime that is played: its UID, labels and annotations.
type Pod<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [(&'a str, &'a str)]);

/// A field of Protocol Buffers with these bytes.
fn field(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut field = Vec::new();
    for mut value in [number << 3 | 2, bytes.len() as u64] {
        while value >= 0x80 {
            field.push(value as u8 | 0x80);
            value >>= 7;
        }
        field.push(value as u8);
    }
    field.extend(bytes);
    field
}

/// A message `ListPodSandboxResponse`.
fn message(pods: &[Pod<'_>]) -> Vec<u8> {
    let entry = |of: u64, (key, value): &(&str, &str)| {
        field(of, &[field(KEY, key.as_bytes()), field(VALUE, value.as_bytes())].concat())
    };
    let pod = |(uid, labels, annotations): &Pod<'_>| {
        let mut pod = field(1, b"the ID of the sandbox");
        pod.extend(field(METADATA, &[field(1, b"name"), field(UID, uid.as_bytes())].concat()));
        // State and time of creation are numbers.
        pod.extend([3 << 3, 0, 4 << 3, 0xff, 1]);
        labels.iter().for_each(|label| pod.extend(entry(LABELS, label)));
        annotations.iter().for_each(|annotation| pod.extend(entry(ANNOTATIONS, annotation)));
        field(ITEMS, &pod)
    };
    pods.iter().flat_map(pod).collect()
}

/// Plays a runtime with these pods behind the socket at `path`, for one call.
pub(crate) fn play(path: &Path, pods: &[Pod<'_>]) -> std::thread::JoinHandle<()> {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let listener = UnixListener::bind(path).unwrap();
    let answer = framed(&message(pods));
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = vec![0; call().len()];
        stream.read_exact(&mut asked).unwrap();
        assert_eq!(asked, call());
        let (first, rest) = answer.split_at(answer.len() / 2);
        let padded = [&[3][..], first, &[0; 3]].concat();
        let frames = [
            frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]),
            frame(PING, 0, 0, b"12345678"),
            frame(HEADERS, END_HEADERS, STREAM, &[0x88]),
            frame(DATA, PADDED, STREAM, &padded),
            frame(DATA, 0, STREAM, rest),
            frame(HEADERS, END_HEADERS | END_STREAM, STREAM, &[0x88]),
        ];
        stream.write_all(&frames.concat()).unwrap();
        let mut said = Vec::new();
        stream.read_to_end(&mut said).unwrap();
        assert_eq!(said, [frame(SETTINGS, ACKNOWLEDGED, 0, &[]), frame(PING, ACKNOWLEDGED, 0, b"12345678")].concat());
    })
}

#[test]
fn a_runtime_is_asked_for_labels_and_annotations() {
    let root = folder("cri-asked");
    let pods: [Pod<'_>; 2] =
        [("1a2b-3c", &[("app", "postgres"), ("tier", "db")], &[("example.org/class", "gold")]), ("77", &[], &[])];
    let runtime = play(&root.join(SOCKETS[1]), &pods);
    let found = marks(&Roots::under(&root)).unwrap();
    runtime.join().unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["1a2b-3c", "77"]);
    assert_eq!(found["1a2b-3c"].labels["tier"], "db");
    assert_eq!(found["1a2b-3c"].annotations["example.org/class"], "gold");
    assert_eq!(found["77"], Marks::default());
}

#[test]
fn a_runtime_without_pods_hides_no_other_one() {
    let root = folder("cri-two");
    let runtimes = [play(&root.join(SOCKETS[0]), &[]), play(&root.join(SOCKETS[1]), &[("77", &[("app", "db")], &[])])];
    let found = marks(&Roots::under(&root)).unwrap();
    for runtime in runtimes {
        runtime.join().unwrap();
    }
    assert_eq!(found.keys().collect::<Vec<_>>(), ["77"]);
}

#[test]
fn runtimes_of_k0s_and_microk8s_are_asked() {
    let root = folder("cri-others");
    let runtimes = [
        play(&root.join("run/k0s/containerd.sock"), &[("1a", &[], &[])]),
        play(&root.join("var/snap/microk8s/common/run/containerd.sock"), &[("2b", &[], &[])]),
    ];
    let found = marks(&Roots::under(&root)).unwrap();
    assert_eq!(found.keys().collect::<Vec<_>>(), ["1a", "2b"]);
    for runtime in runtimes {
        runtime.join().unwrap();
    }
}

#[test]
fn an_answer_ends_with_the_time_of_the_call() {
    let (mut here, mut runtime) = UnixStream::pair().unwrap();
    runtime.write_all(b"abcd").unwrap();
    let mut bytes = [0; 3];
    fill(&mut here, &mut bytes, Instant::now() + Duration::from_secs(60)).unwrap();
    assert_eq!(&bytes, b"abc");
    let late = fill(&mut here, &mut bytes[..1], Instant::now()).unwrap_err();
    assert_eq!(late.kind(), io::ErrorKind::TimedOut, "although a byte is there");
    drop(runtime);
    let ended = fill(&mut here, &mut bytes, Instant::now() + Duration::from_secs(60)).unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn an_answer_of_too_many_fields_is_refused() {
    let empty = [(ITEMS << 3 | 2) as u8, 0];
    assert_eq!(pods(&empty.repeat(MAX_FIELDS)), Some(BTreeMap::new()));
    assert_eq!(pods(&empty.repeat(MAX_FIELDS + 1)), None);
    let labels = [(LABELS << 3 | 2) as u8, 0].repeat(MAX_FIELDS);
    assert_eq!(pods(&field(ITEMS, &labels)), None, "in all messages together");
}

#[test]
fn a_host_without_a_runtime_and_one_that_hangs_up_are_told_apart() {
    let root = folder("cri-absent");
    assert!(matches!(marks(&Roots::under(&root)), Err(Error::Absent)));
    let path = root.join(SOCKETS[0]);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    drop(UnixListener::bind(&path).unwrap());
    let error = marks(&Roots::under(&root)).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot ask the container runtime at {}: ", path.display())), "{error}");
}

#[test]
fn a_refused_call_and_an_odd_answer_are_errors() {
    let mut answer = Answer::default();
    assert_eq!(answer.take(HEADERS, END_HEADERS | END_STREAM, STREAM, &[]), Ok(Next::End));
    assert_eq!(answer.pods(), Err(REFUSED), "headers alone");
    assert_eq!(answer.take(RESET, 0, STREAM, &[0; 4]), Err(REFUSED));
    assert_eq!(answer.take(GO_AWAY, 0, 0, &[0; 8]), Err(REFUSED));
    assert_eq!(answer.take(DATA, PADDED, STREAM, &[2, 7]), Err(ODD), "more padding than bytes");
    assert_eq!(answer.take(DATA, END_STREAM, 3, &framed(b"")), Ok(Next::More), "of another stream");
    for bytes in [&[1, 0, 0, 0, 0][..], &[0, 0, 0, 0, 1], &[0, 0, 0, 0, 1, 0xff]] {
        assert_eq!(Answer(bytes.to_vec()).pods(), Err(ODD), "{bytes:?}");
    }
    assert_eq!(Answer(framed(&[])).pods(), Ok(BTreeMap::new()));
    let mut long = Answer(vec![0; MAX_ANSWER]);
    assert_eq!(long.take(DATA, 0, STREAM, &[0]), Err(LONG));
}

#[test]
fn headers_fit_the_short_form_of_a_literal() {
    assert!(CALL.iter().all(|(name, value)| name.len() < 127 && value.len() < 127));
    assert!(call().starts_with(PREFACE));
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..200),
        kind in 0_u8..10,
        flags in any::<u8>(),
    ) {
        let _ = pods(&bytes);
        let mut answer = Answer(bytes.clone());
        let _ = answer.pods();
        let _ = answer.take(kind, flags, STREAM, &bytes);
    }

    #[test]
    fn marks_of_any_text_are_read_back(uid in "[a-z0-9-]{1,40}", key in ".{0,200}", value in ".{0,300}") {
        let found = pods(&message(&[(&uid, &[(&key, &value)], &[(&value, &key)])])).unwrap();
        let marks = Marks {
            labels: BTreeMap::from([(key.clone(), value.clone())]),
            annotations: BTreeMap::from([(value, key)]),
        };
        prop_assert_eq!(found, BTreeMap::from([(uid, marks)]));
    }
}
