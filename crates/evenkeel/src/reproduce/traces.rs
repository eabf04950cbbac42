//! Recorded traces for `evenkeel reproduce saat` and `evenkeel reproduce drg`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use evenkeel_sim::experiment::drg;
use evenkeel_sim::experiment::saat::Traces;
use evenkeel_sim::experiment::saat::recorded::{MAX_REQUESTS, Recorded, name_of};
use evenkeel_sim::workload::trace::{Format, Options, Reader, Record};

/// Reads the traces for saat from files in the MSR Cambridge format. Of a folder only those files count whose names are like
/// those of the paper's traces.
///
/// # Errors
/// A file that cannot be read, or that is none of the paper's traces.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Traces> {
    let files = files(paths, name_of, ".csv", "usr_0.csv, prn_1.csv or web_0.csv")?;
    files.into_iter().map(|(name, paths)| Ok((name, trace(name, paths)?))).collect()
}

/// The files of each trace, in the order of `paths`. Of a folder only files whose names end with `end` count, sorted by name.
/// `name_of`: the trace to which a file's name belongs, if any. `example`: a valid name, for error messages.
fn files(
    paths: &[PathBuf],
    name_of: fn(&str) -> Option<&'static str>,
    end: &str,
    example: &str,
) -> anyhow::Result<BTreeMap<&'static str, Vec<PathBuf>>> {
    let name = |path: &Path| path.file_name().and_then(|name| name_of(name.to_str()?));
    let mut files: BTreeMap<&'static str, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        let cannot_read = || format!("cannot read {}", path.display());
        std::fs::metadata(path).with_context(cannot_read)?;
        let mut found = vec![path.clone()];
        if path.is_dir() {
            let entries = std::fs::read_dir(path).with_context(cannot_read)?;
            found = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>().with_context(cannot_read)?;
            found.retain(|file| name(file).is_some() && file.to_string_lossy().ends_with(end) && file.is_file());
            found.sort();
            ensure!(!found.is_empty(), "{} has no file with a name like {example}", path.display());
        }
        for file in found {
            let Some(name) = name(&file) else {
                bail!(
                    "the name of {} is like none of the paper's traces; rename the file, for example to {example}",
                    file.display()
                );
            };
            files.entry(name).or_default().push(file);
        }
    }
    Ok(files)
}

fn reader(path: &Path, format: Option<Format>) -> anyhow::Result<Reader<BufReader<File>>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Reader::new(BufReader::new(file), path.display().to_string(), Options { format, ..Options::default() }))
}

/// Reads the files of the trace `name` as one recording, in the order of the files' names.
fn trace(name: &str, mut paths: Vec<PathBuf>) -> anyhow::Result<Arc<Recorded>> {
    paths.sort();
    paths.dedup();
    let mut recorded = Recorded::default();
    for path in &paths {
        recorded.add(reader(path, Some(Format::Msr))?)?;
    }
    if recorded.requests() == MAX_REQUESTS {
        tracing::warn!("of trace {name} the first {MAX_REQUESTS} requests are replayed, over and over");
    }
    ensure!(recorded.reads().is_some(), "trace {name} must have reads and writes: each is guaranteed its part");
    Ok(Arc::new(recorded))
}

/// Reads the traces for drg from files in any format that `evenkeel sim` knows. Of a folder only those files count whose names
/// are like those of the paper's traces. Of several files for one trace the last one counts.
///
/// # Errors
/// A file that cannot be read, or whose name fits no trace.
pub(super) fn of_drg(paths: &[PathBuf]) -> anyhow::Result<drg::Traces> {
    let name_of = |name: &str| {
        let starts = [("web", "web"), ("wsrch", "web"), ("tpcc", "tpcc")];
        starts.into_iter().find(|(start, _)| name.to_ascii_lowercase().starts_with(start)).map(|(_, name)| name)
    };
    let mut traces = drg::Traces::default();
    for (name, paths) in files(paths, name_of, "", "web1.csv, wsrch1.csv or tpcc1.csv")? {
        for file in paths {
            let records: Vec<Record> = reader(&file, None)?.take(MAX_REQUESTS).collect::<Result<_, _>>()?;
            ensure!(!records.is_empty(), "{} has no requests", file.display());
            *(if name == "web" { &mut traces.web } else { &mut traces.tpcc }) = Some(records.into());
        }
    }
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Folder;

    #[test]
    fn files_and_folders_become_traces() {
        let folder = Folder::new();
        let text = "128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372016382155,usr,0,Write,1317441536,8192,1963\n";
        for name in ["usr_0.csv", "usr_1.csv", "web_0.csv", "prxy_0.csv", "readme.txt"] {
            folder.file(name, text);
        }
        let traces = read(&[folder.to_path_buf(), folder.join("usr_0.csv")]).expect("traces");
        let found: Vec<_> = traces.iter().map(|(name, trace)| (*name, trace.requests(), trace.reads())).collect();
        assert_eq!(found, [("usr", 4, Some(0.75)), ("web", 2, Some(0.75))]);
        assert!(read(&[]).expect("nothing").is_empty());

        let error = |path: PathBuf| format!("{:#}", read(&[path]).expect_err("refused"));
        assert!(error(folder.join("prxy_0.csv")).contains("usr_0.csv"));
        assert!(error(folder.join("web_9.csv")).contains("cannot read"));
        assert!(error(folder.join("nosuch")).contains("cannot read"));
        let writes = folder.file("hm_0.csv", "128166372003061629,hm,0,Write,0,512,1\n");
        assert!(error(writes).contains("reads and writes"));
        let wrong = folder.file("hm_0.csv", "128166372003061629,hm,0,Write,zero,512,1\n");
        assert!(error(wrong).contains("hm_0.csv"));
    }

    #[test]
    fn of_two_traces_of_drg_the_last_given_counts() {
        let folder = Folder::new();
        let one = folder.file("web1.spc", "0,8,4096,r,0.5\n0,16,4096,w,0.6\n");
        let two = folder.file("web2.spc", "0,8,4096,r,0.5\n");
        let requests = |paths: &[PathBuf]| of_drg(paths).expect("traces").web.map(|records| records.len());
        assert_eq!(requests(&[one.clone(), two.clone()]), Some(1));
        assert_eq!(requests(&[two, one]), Some(2));
        assert_eq!(requests(&[folder.to_path_buf()]), Some(1), "of a folder by name");
    }
}
