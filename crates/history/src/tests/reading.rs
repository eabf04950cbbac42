//! Readers: what they select, and beside a writer.

use std::fs;
use std::thread;

use super::{AMPLE, Scratch, T0, decision, open, recorded, second, series, slices, totals};
use crate::content::Content;
use crate::error::Error;
use crate::folder::path_of;
use crate::resolution::{Resolution, Stream};
use crate::{Entry, Event, Filter, Mark, Reader, Sample, Second};

#[test]
fn a_reader_beside_a_writer_sees_whole_seconds_in_order() {
    let scratch = Scratch::new();
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Small, so that files are removed meanwhile.
            let (mut history, _) = open(scratch.path(), 256 << 10);
            (T0..T0 + 3_000).for_each(|at| history.append(&second(at, 5)));
        });
        let mut newest = 0;
        let mut last = false;
        while !last {
            last = writer.is_finished();
            for resolution in Resolution::ALL {
                for slice in slices(scratch.path(), resolution) {
                    assert_eq!(slice.samples.len(), 5);
                    let seconds = |sample: &Sample| sample.figures.in_flight.seconds;
                    assert!(slice.samples.iter().all(|sample| seconds(sample) == slice.recorded), "{slice:?}");
                    newest = newest.max(slice.at);
                }
            }
        }
        assert_eq!(newest, T0 + 2_999);
    });
}

#[test]
fn a_range_has_the_steps_of_its_time_and_the_series_of_its_filter() {
    let scratch = Scratch::new();
    drop(recorded(scratch.path(), 1_000));
    let reader = Reader::new(scratch.path());
    let filter = Filter { tenant: Some("tenant-1".into()), ..Filter::default() };
    let read = |from: u64, to: u64, resolution: Resolution| {
        let range = reader.range(T0 + from, T0 + to, resolution, &filter).expect("a folder");
        let slice = |entry: Result<Entry, Error>| match entry.expect("no error") {
            Entry::Slice(slice) => Some(slice),
            Entry::Gap { .. } => None,
        };
        range.filter_map(slice).collect::<Vec<_>>()
    };
    let seconds = read(100, 400, Resolution::Second);
    assert_eq!((seconds[0].at, totals(&seconds)[0]), (T0 + 100, 300));
    assert!(seconds.iter().all(|slice| slice.samples.len() == 1 && slice.samples[0].series == series(1)));
    assert_eq!(seconds[7].samples[0].figures, second(T0 + 107, 2).samples[1].figures);
    let minutes = read(90, 190, Resolution::Minute);
    assert_eq!(minutes.iter().map(|slice| slice.at - T0).collect::<Vec<_>>(), [60, 120, 180]);
    let coarse = read(0, 10_000, Resolution::TenMinutes);
    assert_eq!(coarse.iter().map(|slice| slice.recorded).collect::<Vec<_>>(), [600, 400]);
    let (p99, most) = (coarse[0].samples[0].figures.p99_us, read(0, 600, Resolution::Second));
    assert_eq!(Some(p99), most.iter().map(|slice| slice.samples[0].figures.p99_us).max());
    assert_eq!(reader.oldest().expect("a folder"), Some(T0));
}

#[test]
fn a_coarse_range_reads_no_fine_data_that_it_has_already() {
    let scratch = Scratch::new();
    drop(recorded(scratch.path(), 1_000));
    let read = || {
        let range = Reader::new(scratch.path()).range(0, u64::MAX, Resolution::TenMinutes, &Filter::default());
        range.expect("a folder").map(|entry| entry.expect("no error")).collect::<Vec<_>>()
    };
    let before = read();
    fs::write(path_of(scratch.path(), Stream::of(Resolution::Second), T0), [0; 64]).expect("written");
    assert_eq!(read(), before);
}

/// A minute that begins before the first second was recorded does not take the place of its seconds.
#[test]
fn a_range_within_the_seconds_has_seconds_alone() {
    let scratch = Scratch::new();
    let (mut history, _) = open(scratch.path(), AMPLE);
    (T0 + 17..T0 + 200).for_each(|at| history.append(&second(at, 1)));
    let range = Reader::new(scratch.path()).range(T0 + 40, T0 + 70, Resolution::Second, &Filter::default());
    let steps = range.expect("a folder").map(|entry| match entry.expect("no error") {
        Entry::Slice(slice) => (slice.at - T0, slice.seconds),
        gap @ Entry::Gap { .. } => panic!("{gap:?}"),
    });
    assert_eq!(steps.collect::<Vec<_>>(), (40..70).map(|at| (at, 1)).collect::<Vec<_>>());
}

#[test]
fn marks_are_selected_by_time_and_name() {
    let scratch = Scratch::new();
    let mut history = recorded(scratch.path(), 60);
    let trouble = |begins, about: &str| {
        let (level, kind, sentence) = ("critical".into(), "io_errors".into(), "requests fail".into());
        Event::Trouble { begins, level, kind, about: about.into(), sentence }
    };
    let begins = Mark { at: T0 + 58, event: trouble(true, "tenant tenant-1 in pool main") };
    // A mark is not later than its second.
    let ends = Mark { at: T0 + 900, event: trouble(false, "") };
    history.append(&Second { at: T0 + 61, samples: Vec::new(), marks: vec![begins.clone(), ends.clone()] });
    let ends = Mark { at: T0 + 61, ..ends };
    let reader = Reader::new(scratch.path());
    let read = |from: u64, tenant: Option<&str>| {
        let filter = Filter { tenant: tenant.map(str::to_owned), ..Filter::default() };
        let marks = reader.marks(T0 + from, u64::MAX, &filter).expect("a folder");
        marks.map(|mark| mark.expect("no error")).collect::<Vec<_>>()
    };
    assert_eq!(read(0, None).len(), 8);
    assert_eq!(read(45, None), [decision(T0 + 50), begins.clone(), ends.clone()]);
    assert_eq!(read(45, Some("tenant-0")), [decision(T0 + 50), ends.clone()]);
    assert_eq!(read(45, Some("tenant-1")), [begins, ends.clone()]);
    assert_eq!(read(45, Some("other")), [ends]);
}

#[test]
fn a_change_of_the_whole_server_concerns_each_tenant() {
    let selects = |pool: &str, tenant: &str| {
        let (reason, sentence) = ("changed_by_command".into(), "changed by SIGHUP".into());
        let event = Event::Decision { pool: pool.into(), tenant: tenant.into(), reason, sentence };
        let filter = Filter { pool: Some("main".into()), tenant: Some("shop".into()), device: None };
        filter.mark(&Mark { at: T0, event })
    };
    assert!(selects("", "") && selects("main", "shop"));
    assert!(!selects("main", "web") && !selects("main", "") && !selects("", "web"));
    // A change of a tenant by command names no pool.
    assert!(selects("", "shop") && !selects("fast", "shop"));
}

#[test]
fn a_trouble_of_a_pool_or_volume_concerns_each_tenant() {
    let selects = |about: &str, pool: Option<&str>, tenant: Option<&str>| {
        let filter = Filter { pool: pool.map(str::to_owned), tenant: tenant.map(str::to_owned), device: None };
        let (level, kind, sentence) = ("critical".into(), "stalled".into(), "a read hangs".into());
        let event = Event::Trouble { begins: true, level, kind, about: about.into(), sentence };
        filter.mark(&Mark { at: T0, event })
    };
    for about in ["pool main", "pool fast, main", "volume db", "cluster lost", "totals of tenants", ""] {
        assert!(selects(about, Some("main"), Some("shop")), "{about}");
    }
    assert!(selects("osd.3", Some("osd.3"), Some("shop")) && !selects("osd.3", Some("main"), None), "an OSD is a pool");
    assert!(!selects("pool fast", Some("main"), Some("shop")) && selects("pool fast", None, Some("shop")));
    for tenant in ["shop", "main", "in"] {
        assert!(!selects("tenant web in pool main", None, Some(tenant)), "{tenant}: of another tenant");
    }
    assert!(selects("tenant web in pool main", Some("main"), Some("web")) && !selects("pool main", Some("pool"), None));
}

#[test]
fn what_is_damaged_is_an_error_and_the_rest_is_read() {
    let scratch = Scratch::new();
    drop(recorded(scratch.path(), 700));
    let stream = Stream::of(Resolution::Second);
    let path = path_of(scratch.path(), stream, T0);
    let mut bytes = fs::read(&path).expect("a file");
    let mut content = Content::new(bytes.clone(), stream).expect("a file");
    while content.read < bytes.len() / 2 {
        assert!(content.block().expect("a block").is_some());
    }
    // In the payload of a block.
    let whole = content.read;
    bytes[whole + 10] ^= 1;
    fs::write(&path, bytes).expect("written");
    let range = Reader::new(scratch.path()).range(0, u64::MAX, Resolution::Second, &Filter::default());
    let (read, errors): (Vec<_>, Vec<_>) = range.expect("a folder").partition(Result::is_ok);
    assert!(matches!(&errors[..], [Err(Error::Damaged { offset, .. })] if *offset == whole), "{errors:?}");
    let gaps = read.iter().filter(|entry| matches!(entry, Ok(Entry::Gap { .. }))).count();
    assert!(gaps == 1 && read.len() > 500, "{gaps} gaps, {} entries", read.len());
    assert!(matches!(read.last(), Some(Ok(Entry::Slice(slice))) if slice.at == T0 + 699));
}
