//! Joins the segments of the last minutes into one recording.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufReader, Seek as _};
use std::path::{Path, PathBuf};

use evenkeel_control::Instant;
use evenkeel_flight::{Head, Item, Name, Reader, Request, Table};

use super::file::Sheet;
use super::folder;
use super::order::{Opened, Recorded, is_small, other_policy, refused, without_policy};
use crate::error::Error;

/// Room for head and block that is left below the bound on the size of a file, in bytes.
const SLACK: u64 = 512 << 10;
/// Number of items at the start of a segment among which the earliest arrival is looked for: about a block.
const FIRST_ITEMS: usize = 4096;
/// Number of bytes written between two looks at the free space of the file system.
const LOOKS_EACH: u64 = 4 << 20;
/// Note on a recording out of segments that have no policy.
const KEPT_WITHOUT_POLICY: &str = "the requests were kept without the policy, which is larger than 3 MiB or too large for size of record in \
     [server]; raise size, or keep a copy of the policy for `evenkeel replay --policy`";

/// The requests that a recording takes out of the segments.
struct Wanted {
    /// Name of the only pool; `None` for all.
    pool: Option<String>,
    /// Start of the recording, in nanoseconds since the zero of the segments.
    from_ns: u64,
}

impl Wanted {
    /// True if a request is wanted; `names`: those of its segment.
    fn has(&self, request: &Request, names: &Names) -> bool {
        let in_pool =
            |pool: &String| names.get(&(Table::Volume, request.volume)).is_some_and(|volume| volume.pool == *pool);
        request.arrival_ns >= self.from_ns && self.pool.as_ref().is_none_or(in_pool)
    }
}

/// Names that segments have, by number.
type Names = HashMap<(Table, u32), Name>;

/// A file that is being written, and a note if it has no policy, or one that changed later.
type Begun = (Sheet, Option<String>);

/// Figures of a segment, for a recording.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Size of the segment in bytes.
    bytes: u64,
    /// Number of requests in it, and of those that are wanted.
    requests: u64,
    wanted: u64,
    /// First and last arrival of those that are wanted, in nanoseconds since the zero of the segments.
    from_ns: u64,
    to_ns: u64,
}

/// Saves what the segments in `folder` have of the time that `opened` asks for. `zero`: the time that the segments count from.
///
/// # Errors
/// If a segment cannot be read, or the file cannot be written; it is removed then.
pub(super) fn save(folder: &Path, opened: Opened, zero: Instant) -> Result<Recorded, Error> {
    let file = opened.order.file.clone();
    join(folder, &opened, zero).map_err(|cause| {
        // It would only be in the way of another try.
        let _ = fs::remove_file(&file);
        refused(format!(
            "cannot save the requests of the last minutes in {}: {cause}; make room and repeat the command",
            file.display()
        ))
    })
}

fn join(folder: &Path, opened: &Opened, zero: Instant) -> io::Result<Recorded> {
    let order = &opened.order;
    if let Some(error) = folder::shortage(&order.file) {
        return Err(error);
    }
    let now_ns = opened.start.since(zero).as_nanos();
    let length_ns = u64::try_from(order.length.as_nanos()).unwrap_or(u64::MAX);
    let asked_ns = now_ns.saturating_sub(length_ns);
    let paths = folder::segments(folder)?;
    // Before the first segment there was nothing; before another one there may have been more.
    let kept_ns = match paths.first() {
        Some(first) if *first != folder::segment(folder, 0) => first_arrival(first)?.unwrap_or(0),
        _ => 0,
    };
    let mut wanted = Wanted { pool: order.pool.clone(), from_ns: asked_ns.max(kept_ns) };
    let seconds = |from_ns: u64| now_ns.saturating_sub(from_ns) as f64 / 1e9;
    let mut note = (wanted.from_ns > asked_ns).then(|| {
        format!(
            "only the requests of the newest {:.0} s were kept; raise keep or size of record in [server] for more",
            seconds(wanted.from_ns)
        )
    });
    let bytes: u64 = paths.iter().filter_map(|path| fs::metadata(path).ok()).map(|found| found.len()).sum();
    let mut room = order.max_bytes - SLACK.min(order.max_bytes / 2);
    let mut fits = bytes <= room;
    let (sheet, lack) = loop {
        if !fits && let Some(from_ns) = fitting(&survey(&paths, &wanted)?, room) {
            wanted.from_ns = from_ns.max(wanted.from_ns);
            note = Some(format!(
                "only the requests of the newest {:.0} s fit into the file; raise --max-size for more",
                seconds(wanted.from_ns)
            ));
        }
        match copy(&paths, opened, zero, &wanted, room == 0)? {
            Some(begun) => break begun,
            // Scrambled offsets and more names take more bytes than was estimated.
            None => {
                opened.file.set_len(0)?;
                (&opened.file).rewind()?;
                (room, fits) = (room / 2, false);
            }
        }
    };
    let (requests, lost) = (sheet.requests(), sheet.lost());
    let (file, bytes) = (order.file.clone(), sheet.finish()?);
    let note = note.into_iter().chain(lack).reduce(|all, one| format!("{all}\n{one}"));
    Ok(Recorded { file, requests, lost, bytes, seconds: seconds(wanted.from_ns), note, ended: true, error: None })
}

/// Passes the items of a segment to `each`, with the segment's head, until that returns false; returns false then. A segment that
/// has become too old since the folder was read has none, and damage ends a segment.
///
/// # Errors
/// If the segment cannot be opened; an error of `each`.
fn items(path: &Path, mut each: impl FnMut(&Head, Item) -> io::Result<bool>) -> io::Result<bool> {
    let segment = match File::open(path) {
        Ok(segment) => segment,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        Err(error) => return Err(error),
    };
    let mut reader = match Reader::new(BufReader::new(segment)) {
        Ok(reader) => reader,
        Err(error) => {
            tracing::warn!("{} cannot be read, so the recording lacks its requests: {error}", path.display());
            return Ok(true);
        }
    };
    let head = reader.head().clone();
    loop {
        match reader.next() {
            Ok(Some(item)) => {
                if !each(&head, item)? {
                    return Ok(false);
                }
            }
            Ok(None) => return Ok(true),
            Err(error) => {
                tracing::warn!(
                    "the rest of {} cannot be read, so the recording lacks its requests: {error}",
                    path.display()
                );
                return Ok(true);
            }
        }
    }
}

/// The earliest arrival among the first items of a segment; `None` if they have no request.
fn first_arrival(path: &Path) -> io::Result<Option<u64>> {
    let (mut first, mut count) = (None, 0);
    items(path, |_, item| {
        if let Item::Request(request) = item {
            first = Some(first.map_or(request.arrival_ns, |first: u64| first.min(request.arrival_ns)));
        }
        count += 1;
        Ok(count < FIRST_ITEMS)
    })?;
    Ok(first)
}

/// Counts what the segments have.
fn survey(paths: &[PathBuf], wanted: &Wanted) -> io::Result<Vec<Part>> {
    let (mut parts, mut names) = (Vec::new(), Names::new());
    for path in paths {
        let bytes = fs::metadata(path).map_or(0, |found| found.len());
        let mut part = Part { bytes, requests: 0, wanted: 0, from_ns: u64::MAX, to_ns: 0 };
        items(path, |_, item| {
            match item {
                Item::Name(name) => drop(names.insert((name.table, name.number), name)),
                Item::Request(request) => {
                    part.requests += 1;
                    if wanted.has(&request, &names) {
                        part.wanted += 1;
                        part.from_ns = part.from_ns.min(request.arrival_ns);
                        part.to_ns = part.to_ns.max(request.arrival_ns);
                    }
                }
                Item::Lost { .. } => {}
            }
            Ok(true)
        })?;
        parts.push(part);
    }
    Ok(parts)
}

/// The time from which on the wanted requests of these segments, oldest first, fit into so many bytes; `None` if all do.
fn fitting(parts: &[Part], room: u64) -> Option<u64> {
    let mut left = room;
    for part in parts.iter().rev().filter(|part| part.wanted > 0) {
        let share = |whole: u64, of: u64, among: u64| {
            let share = u128::from(whole) * u128::from(of) / u128::from(among.max(1));
            u64::try_from(share).unwrap_or(u64::MAX)
        };
        let bytes = share(part.bytes, part.wanted, part.requests);
        if bytes > left {
            // As if they had come evenly.
            let cut = share(part.to_ns - part.from_ns, bytes - left, bytes);
            return Some(part.from_ns.saturating_add(cut).saturating_add(1));
        }
        left -= bytes;
    }
    None
}

/// Writes what is wanted to the file; `None` if that is more than the file may have, unless it `must` do.
///
/// # Errors
/// If a segment cannot be read, the file cannot be written, or its file system becomes nearly full.
fn copy(paths: &[PathBuf], opened: &Opened, zero: Instant, wanted: &Wanted, must: bool) -> io::Result<Option<Begun>> {
    let begin = |policy: String, is_kept: bool| -> io::Result<Begun> {
        let head = &opened.head;
        let before_ns = opened.start.since(zero).as_nanos().saturating_sub(wanted.from_ns);
        let started_unix_ns = head.started_unix_ns.saturating_sub(before_ns);
        let has_policy = !head.anonymised && is_small(&policy, opened.order.max_bytes);
        let policy = if has_policy { policy } else { String::new() };
        let head = Head { started_unix_ns, policy, ..head.clone() };
        let lack = if is_kept { without_policy(&head) } else { Some(KEPT_WITHOUT_POLICY.to_owned()) };
        Ok((Sheet::new(opened.file.try_clone()?, &head, zero, None, opened.scrambler())?, lack))
    };
    let (mut begun, mut names): (Option<Begun>, Names) = (None, Names::new());
    // The policy of the first segment, and a note if that of a later one is another.
    let (mut policy, mut other) = (String::new(), None);
    // Size of the file at the newest look at the free space.
    let mut looked = 0_u64;
    for path in paths {
        let mut is_compared = false;
        let goes_on = items(path, |head, item| {
            match &item {
                Item::Name(name) => {
                    names.insert((name.table, name.number), name.clone());
                    return Ok(true);
                }
                Item::Request(request) if !wanted.has(request, &names) => return Ok(true),
                Item::Lost { to_ns, .. } if *to_ns < wanted.from_ns => return Ok(true),
                Item::Request(_) | Item::Lost { .. } => {}
            }
            if begun.is_none() {
                // The policy of that time.
                let is_kept = opened.head.anonymised || !head.policy.is_empty();
                begun = Some(begin(head.policy.clone(), is_kept)?);
                if !opened.head.anonymised {
                    policy.clone_from(&head.policy);
                }
            }
            if !std::mem::replace(&mut is_compared, true) && other.is_none() {
                other = other_policy(&policy, &head.policy);
            }
            let Some((sheet, _)) = &mut begun else { return Ok(true) };
            put(sheet, item, &names, wanted.from_ns)?;
            if sheet.bytes() >= looked + LOOKS_EACH {
                looked = sheet.bytes();
                if let Some(error) = folder::shortage(&opened.order.file) {
                    return Err(error);
                }
            }
            Ok(!sheet.is_full(opened.order.max_bytes))
        })?;
        if !goes_on {
            if must {
                break;
            }
            return Ok(None);
        }
    }
    match begun {
        Some((sheet, lack)) => {
            let other = other.or_else(|| other_policy(&policy, &opened.head.policy));
            Ok(Some((sheet, lack.or(other))))
        }
        // The present policy, which the segments have nothing to do with.
        None => begin(opened.head.policy.clone(), true).map(Some),
    }
}

/// Writes a request, with the names that it needs, or a loss.
fn put(sheet: &mut Sheet, item: Item, names: &Names, begin_ns: u64) -> io::Result<()> {
    let request = match item {
        Item::Request(request) => request,
        Item::Lost { requests, from_ns, to_ns } => {
            return sheet.write_lost(requests, from_ns.saturating_sub(begin_ns), to_ns.saturating_sub(begin_ns));
        }
        Item::Name(_) => return Ok(()),
    };
    let bytes = names.get(&(Table::Volume, request.volume)).map_or(0, |volume| volume.bytes);
    for known in [(Table::Tenant, request.tenant), (Table::Client, request.client), (Table::Volume, request.volume)] {
        if let Some(name) = names.get(&known)
            && !sheet.knows(known.0, known.1)
        {
            sheet.introduce(name.clone())?;
        }
    }
    sheet.write(Request { arrival_ns: request.arrival_ns.saturating_sub(begin_ns), ..request }, bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::order::{Order, create};
    use super::*;

    /// An order for the last hour of all pools, to a file of at most `max_bytes` bytes.
    fn order(file: &std::path::Path, max_bytes: u64) -> Order {
        let length = std::time::Duration::from_secs(3600);
        Order { file: file.to_owned(), pool: None, length, max_bytes, key: None, force: false }
    }

    /// A new, empty folder.
    fn empty_folder(name: &str) -> std::path::PathBuf {
        let folder = std::env::temp_dir().join(format!("evenkeel-last-{name}{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn a_policy_that_would_fill_the_file_is_left_out() {
        let folder = empty_folder("");
        let zero = crate::clock::now();
        for (policy_bytes, max_bytes, cure) in
            [(300 << 10, 2 << 20, None), (300 << 10, 1 << 20, Some("--max-size")), (0, 3 << 20, Some("raise size"))]
        {
            let head = Head { policy: " ".repeat(policy_bytes), ..Head::default() };
            let path = folder::segment(&folder, 0);
            let _ = fs::remove_file(&path);
            let mut segment =
                Sheet::new(create(&path).expect("a file"), &head, zero, None, None).expect("room for the head");
            segment.write_lost(1, 0, 1).expect("not written yet");
            segment.finish().expect("room for a block");
            let file = folder.join(format!("{max_bytes}.evf"));
            let order = order(&file, max_bytes);
            let opened = Opened { file: create(&file).expect("a file"), order, pool: None, head, start: zero };
            let recorded = save(&folder, opened, zero).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(recorded.lost, 1);
            let reader = Reader::new(File::open(&file).expect("a file")).expect("a recording");
            assert_eq!(!reader.head().policy.is_empty(), cure.is_none(), "{max_bytes} bytes");
            let note = recorded.note.unwrap_or_default();
            assert!(cure.map_or(note.is_empty(), |cure| note.contains(cure)), "{max_bytes} bytes: {note:?}");
        }
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn without_segments_the_size_of_the_file_is_why_there_is_no_policy() {
        let folder = empty_folder("none-");
        let zero = crate::clock::now();
        let file = folder.join("none.evf");
        let order = order(&file, 1 << 20);
        // As for a policy of more than a quarter of the file.
        let head = Head::default();
        let opened = Opened { file: create(&file).expect("a file"), order, pool: None, head, start: zero };
        let recorded = save(&folder, opened, zero).unwrap_or_else(|error| panic!("{error}"));
        let note = recorded.note.unwrap_or_default();
        assert!(note.contains("--max-size") && !note.contains("of record in [server]"), "{note:?}");
        let _ = fs::remove_dir_all(&folder);
    }

    #[test]
    fn a_policy_that_changed_between_segments_is_noted() {
        let folder = empty_folder("changed-");
        let zero = crate::clock::now();
        let head = |iops: u32| Head { policy: format!("[tenants.shop.limit]\niops = {iops}\n"), ..Head::default() };
        // The limits of two segments, and that at the time of saving.
        for (limits, is_noted) in [([5, 5, 5], false), ([5, 6, 6], true), ([5, 6, 5], true), ([5, 5, 6], true)] {
            for (number, iops) in (0..).zip(&limits[..2]) {
                let path = folder::segment(&folder, number);
                let _ = fs::remove_file(&path);
                let mut segment =
                    Sheet::new(create(&path).expect("a file"), &head(*iops), zero, None, None).expect("a head");
                segment.write_lost(1, 0, 1).expect("not written yet");
                segment.finish().expect("room for a block");
            }
            let file = folder.join("changed.evf");
            let _ = fs::remove_file(&file);
            let order = order(&file, 1 << 20);
            let (file, head) = (create(&file).expect("a file"), head(limits[2]));
            let recorded = save(&folder, Opened { file, order, pool: None, head, start: zero }, zero);
            let recorded = recorded.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(recorded.lost, 2);
            assert_eq!(recorded.note.is_some_and(|note| note.contains("policy changed")), is_noted, "{limits:?}");
        }
        let _ = fs::remove_dir_all(&folder);
    }

    fn any_part() -> impl Strategy<Value = Part> {
        (1..1_000_u64, 0..50_u64, 0..50_u64, 0..1_000_u64).prop_map(|(bytes, others, wanted, length)| Part {
            bytes,
            requests: wanted + others,
            wanted,
            from_ns: 0,
            to_ns: length,
        })
    }

    /// Bytes of the wanted requests that had arrived at `begin_ns` or later, if they come evenly.
    fn bytes(part: &Part, begin_ns: u64) -> f64 {
        let all = part.bytes as f64 * part.wanted as f64 / part.requests.max(1) as f64;
        let length = (part.to_ns - part.from_ns) as f64;
        let after = part.to_ns.saturating_sub(begin_ns.max(part.from_ns)) as f64;
        if begin_ns > part.to_ns { 0.0 } else { all * if length > 0.0 { after / length } else { 1.0 } }
    }

    proptest! {
        /// The newest requests fit, and one more nanosecond of them, or a part that cannot be cut, would not.
        #[test]
        fn the_newest_requests_fit(mut parts in proptest::collection::vec(any_part(), 0..8), room in 0..4_000_u64) {
            let mut at = 0;
            for part in &mut parts {
                (part.from_ns, part.to_ns) = (at, at + part.to_ns);
                at = part.to_ns + 1;
            }
            let sum = |begin_ns| parts.iter().map(|part| bytes(part, begin_ns)).sum::<f64>();
            match fitting(&parts, room) {
                // Each part's bytes are rounded down.
                None => prop_assert!(sum(0) <= room as f64 + parts.len() as f64),
                Some(begin_ns) => {
                    prop_assert!(sum(begin_ns) <= room as f64 + parts.len() as f64, "{} bytes", sum(begin_ns));
                    let one = parts.iter().map(|part| part.bytes as f64 / (part.to_ns - part.from_ns).max(1) as f64);
                    let most = one.fold(0.0, f64::max);
                    prop_assert!(sum(begin_ns.saturating_sub(2)) + 2.0 * most >= room as f64, "less than fits");
                }
            }
        }
    }
}
