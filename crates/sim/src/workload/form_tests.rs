//! Tests of forms, valid and invalid.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use evenkeel_control::{Duration, Instant};

use super::form::{Form, Problem};
use super::tests::play;
use super::*;

fn form(text: &str) -> Form {
    toml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn with(files: &[(&str, &str)], text: &str) -> Result<form::Built, Vec<Problem>> {
    let files: BTreeMap<String, Vec<u8>> =
        files.iter().map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec())).collect();
    let mut open = |name: &str| -> io::Result<Box<dyn BufRead>> {
        let bytes = files.get(name).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Box::new(io::Cursor::new(bytes)))
    };
    form(text).build(&mut open)
}

fn spec(text: &str) -> Spec {
    with(&[], text).unwrap_or_else(|problems| panic!("{text}: {problems:?}")).spec
}

#[test]
fn an_empty_form_reads_4_kib_one_at_a_time() {
    assert_eq!(spec(""), Spec::closed(1, Requests::random(evenkeel_control::units::Kind::Read, 4096, 1 << 30)));
}

#[test]
fn keys_become_what_they_say() {
    let Spec::Load { pace, requests } = spec(
        r#"
        queue_depth = 16
        think_time = "2ms"
        burst = "200ms:800ms"
        op = "mix"
        block_size = "4k:80,64k:20"
        pattern = "zipf:1.1"
        flush_every = 8
        offset = "1GiB"
        size = "10GiB"
        "#,
    ) else {
        panic!("generated requests")
    };
    let on_off = Some(OnOff { on: Duration::from_millis(200), off: Duration::from_millis(800) });
    assert_eq!(pace, Pace::Closed { queue_depth: 16, think_time: Duration::from_millis(2), on_off });
    let sizes = vec![SizeShare { bytes: 4096, weight: 80 }, SizeShare { bytes: 65536, weight: 20 }];
    let pattern = Pattern::Zipf { exponent: 1.1 };
    let expected = Requests { read_percent: 70.0, sizes, pattern, offset: 1 << 30, span: 10 << 30, flush_every: 8 };
    assert_eq!(requests, expected);

    let Spec::Load { pace, requests } = spec("rate = 1500.5\narrivals = \"constant\"\nread_percent = 99.98") else {
        panic!("generated requests")
    };
    assert_eq!(pace, Pace::Open { rate_per_s: 1500.5, arrivals: Arrivals::Constant, batch: 1, on_off: None });
    assert!((requests.read_percent - 99.98).abs() < 1e-12);

    let streams = spec("pattern = \"sequential\"\nstreams = 4\nop = \"write\"");
    let Spec::Load { requests, .. } = streams else { panic!("generated requests") };
    assert_eq!((requests.pattern, requests.read_percent), (Pattern::Sequential { streams: 4 }, 0.0));

    let bursts = spec("burst_requests = 64\nburst_every = \"100ms\"\nop = \"write\"");
    let requests = Requests::random(evenkeel_control::units::Kind::Write, 4096, 1 << 30);
    assert_eq!(bursts, Spec::bursts(64, Duration::from_millis(100), requests));
    assert_eq!(spec("idle = true"), Spec::Idle);
}

#[test]
fn phases_hold_workloads() {
    let text = r#"
        repeat = 0
        phases = [
            { for = "10s", queue_depth = 4 },
            { for = "5s", idle = true },
            { for = "1s", repeat = 2, phases = [{ for = "100ms", rate = 10 }] },
        ]
    "#;
    let Spec::Phases { phases, times: 0 } = spec(text) else { panic!("phases") };
    let seconds: Vec<f64> = phases.iter().map(|phase| phase.length.as_secs_f64()).collect();
    assert_eq!(seconds, [10.0, 5.0, 1.0]);
    assert!(matches!(phases[2].spec, Spec::Phases { times: 2, .. }));
}

#[test]
fn a_form_is_written_as_it_is_read() {
    let text = "queue_depth = 4\nblock_size = \"4k:80,64k:20\"\npattern = \"zipf:1.1\"\nburst = \"200ms:800ms\"\n";
    let form = form(text);
    let written = toml::to_string(&form).unwrap();
    assert_eq!(toml::from_str::<Form>(&written).unwrap(), form);
    assert_eq!(written.lines().count(), 4, "what was not said is not written: {written}");
}

#[test]
fn wrong_forms_name_the_key_and_the_cure() {
    for (text, key, words) in [
        ("queue_depth = 0", "queue_depth", "1 to 65536"),
        ("queue_depth = 4\nrate = 10", "queue_depth", "remove one of them"),
        ("rate = 0", "rate", "above 0"),
        ("rate = nan", "rate", "above 0"),
        ("rate = 10\nthink_time = \"1ms\"", "think_time", "closed loop"),
        ("arrivals = \"poisson\"", "arrivals", "add rate"),
        ("burst_requests = 4", "burst_every", "for example"),
        ("burst_every = \"1s\"", "burst_requests", "missing"),
        ("burst_requests = 4\nburst_every = \"0s\"", "burst_every", "more than 0s"),
        ("op = \"read\"\nread_percent = 50", "read_percent", "op = \"mix\""),
        ("read_percent = 101", "read_percent", "0 to 100"),
        ("streams = 2", "streams", "sequential"),
        ("flush_every = 4", "flush_every", "op = \"write\""),
        ("op = \"write\"\nflush_every = 0", "flush_every", "at least 1"),
        ("size = \"32K\"\nblock_size = \"64K\"", "size", "at least 65536"),
        ("size = \"64K\"\nblock_size = \"64K\"\npattern = \"sequential\"\nstreams = 2", "size", "at least 131072"),
        ("offset = 18446744073709551615", "offset", "16EiB"),
        ("idle = true\nqueue_depth = 2", "queue_depth", "means nothing for idle"),
        ("idle = true\ntrace = \"a\"", "trace", "cannot be combined with idle"),
        ("for = \"1s\"", "for", "phases only"),
        ("repeat = 2", "repeat", "phases and a trace"),
        ("speed = 2", "speed", "only for a trace"),
        ("phases = [{ queue_depth = 1 }]", "phases.0.for", "for = \"10s\""),
        ("phases = [{ for = \"0s\" }]", "phases.0.for", "more than 0s"),
        ("phases = [{ for = \"1s\" }, { for = \"1s\", rate = -1 }]", "phases.1.rate", "above 0"),
        ("trace = \"a\"\nop = \"read\"", "op", "only for generated requests"),
        ("trace = \"a\"\nrate = 5\nspeed = 2", "speed", "remove one of them"),
        ("trace = \"a\"\nqueue_depth = 5\nspeed = 2", "speed", "as fast as requests complete"),
        ("trace = \"a\"\nfrom = \"2s\"\nuntil = \"1s\"", "until", "later than from"),
        ("trace = \"a\"\ncount = 0", "count", "at least 1"),
        ("trace = \"a\"\nspeed = 0", "speed", "twice as fast"),
        ("trace = \"a\"\nalign = 0", "align", "1GiB"),
        ("trace = \"a\"\ndevices = []", "devices", "for all"),
    ] {
        let problems = form(text).check();
        let found = problems.iter().find(|problem| problem.key == key);
        let problem = found.unwrap_or_else(|| panic!("{text:?} has no problem with {key}: {problems:?}"));
        assert!(problem.message.contains(words), "{text:?}: {problem}");
    }
    for text in ["depth = 4", "op = \"append\"", "pattern = \"zipf:0\"", "block_size = \"64M\"", "burst = \"1s\""] {
        assert!(toml::from_str::<Form>(text).is_err(), "{text}");
    }
}

/// A trace of four requests to two devices within 300 ms.
const TRACE: &str = "1000000000 0 8 8 1\n1100000000 1 16 8 0\n1200000000 0 16 8 1\n1300000000 1 24 8 1\n";

fn times(spec: &Spec, latency: Duration) -> Vec<u64> {
    let sent = play(spec, 1, latency, Instant::ZERO + Duration::from_secs(10));
    sent.iter().map(|(at, _)| at.as_nanos() / 1_000_000).collect()
}

#[test]
fn a_trace_is_replayed_at_its_times_or_as_fast_as_the_depth_allows() {
    let replay = |keys: &str| with(&[("t", TRACE)], &format!("trace = \"t\"\n{keys}")).unwrap().spec;
    let slow = Duration::from_secs(5);
    let fast = Duration::from_millis(1);
    assert_eq!(times(&replay(""), slow), [0, 100, 200, 300]);
    assert_eq!(times(&replay("speed = 2"), slow), [0, 50, 100, 150]);
    assert_eq!(times(&replay("rate = 5"), slow), [0, 200, 400, 600]);
    assert_eq!(times(&replay("repeat = 2"), slow), [0, 100, 200, 300, 400, 500, 600, 700]);
    assert_eq!(times(&replay("repeat = 0"), slow).len(), 101);
    assert_eq!(times(&replay("queue_depth = 2"), fast), [0, 0, 1, 1]);
    assert_eq!(times(&replay("queue_depth = 3\nrepeat = 2"), fast), [0, 0, 0, 1, 1, 1, 2, 2]);
    assert_eq!(times(&replay("devices = [1]\nspeed = 0.5"), slow), [0, 400]);
    assert_eq!(times(&replay("from = \"100ms\"\nuntil = \"250ms\""), slow), [0, 100]);
    assert_eq!(times(&replay("skip = 1\ncount = 2"), slow), [0, 100]);
    let phases = with(
        &[("t", TRACE)],
        "repeat = 2\nphases = [{ for = \"250ms\", trace = \"t\" }, { for = \"1s\", idle = true }]",
    );
    assert_eq!(times(&phases.unwrap().spec, slow), [0, 100, 200, 1250, 1350, 1450]);
}

#[test]
fn a_trace_keeps_kind_size_and_place_and_moves_where_it_is_sent() {
    let replay = |keys: &str| with(&[("t", TRACE)], &format!("trace = \"t\"\n{keys}")).unwrap().spec;
    let sent = play(
        &replay("size = \"32K\"\noffset = \"1M\"\nalign = \"8K\""),
        1,
        Duration::ZERO + Duration::from_millis(1),
        Instant::ZERO + Duration::from_secs(1),
    );
    let seen: Vec<_> = sent.iter().map(|(_, io)| (io.kind, io.offset - (1 << 20), io.bytes)).collect();
    use evenkeel_control::units::Kind::{Read, Write};
    assert_eq!(seen, [(Read, 0, 8192), (Write, 16384 + 8192, 8192), (Read, 8192, 8192), (Read, 16384 + 8192, 8192)]);
}

#[test]
fn a_trace_that_cannot_be_used_says_why() {
    let same_time = "5 0 8 8 1\n5 0 16 8 1\n";
    let bad = "5 0 8 8 1\n6 0 8\n7 0 16 8 1\n";
    for (file, keys, key, words) in [
        (TRACE, "trace = \"other\"", "trace", "cannot be opened"),
        (TRACE, "trace = \"t\"\ndevices = [5]", "trace", "no request that is wanted"),
        ("", "trace = \"t\"", "trace", "no request that is wanted"),
        ("dear diary", "trace = \"t\"", "trace", "t:1: looks like no known trace"),
        (bad, "trace = \"t\"", "trace", "t:2: has 3 fields"),
        (same_time, "trace = \"t\"\nrate = 5", "rate", "queue_depth"),
        (same_time, "trace = \"t\"\nrepeat = 2", "repeat", "queue_depth"),
        (TRACE, "trace = \"t\"\nsize = 4096", "size", "at least 8192 bytes"),
    ] {
        let problems = with(&[("t", file)], keys).unwrap_err();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].key == key && problems[0].message.contains(words), "{keys:?}: {}", problems[0]);
    }
    let built = with(&[("t", bad)], "trace = \"t\"\nbad_lines = \"skip\"").unwrap();
    assert!(built.warnings[0].message.contains("left out 1 bad line; the first: t:2:"), "{:?}", built.warnings);
}
