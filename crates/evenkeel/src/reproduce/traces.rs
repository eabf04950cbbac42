//! Recorded traces for `evenkeel reproduce saat`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use evenkeel_sim::experiment::saat::Traces;
use evenkeel_sim::experiment::saat::recorded::{MAX_REQUESTS, Recorded, name_of};
use evenkeel_sim::workload::trace::{Format, Options, Reader};

/// Reads files and folders of the MSR Cambridge format; of a folder the files that are called like a trace of the paper.
///
/// # Errors
/// What cannot be read, or is none of the paper's traces.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Traces> {
    let mut files: BTreeMap<&'static str, Vec<PathBuf>> = BTreeMap::new();
    for path in paths {
        let cannot_read = || format!("cannot read {}", path.display());
        let name = |path: &Path| path.file_name().and_then(|name| name_of(name.to_str()?));
        if !path.is_dir() {
            let Some(name) = name(path) else {
                bail!(
                    "{} is called like none of the paper's traces; name it for example usr_0.csv, prn_1.csv or web_0.csv",
                    path.display()
                );
            };
            files.entry(name).or_default().push(path.clone());
            continue;
        }
        let mut found = false;
        for entry in std::fs::read_dir(path).with_context(cannot_read)? {
            let path = entry.with_context(cannot_read)?.path();
            let is_csv = path.extension().is_some_and(|extension| extension == "csv");
            if let Some(name) = name(&path).filter(|_| is_csv && path.is_file()) {
                files.entry(name).or_default().push(path);
                found = true;
            }
        }
        ensure!(found, "{} has no file that is called like usr_0.csv", path.display());
    }
    files.into_iter().map(|(name, paths)| Ok((name, trace(name, paths)?))).collect()
}

/// The files of one trace, in the order of their names.
fn trace(name: &str, mut paths: Vec<PathBuf>) -> anyhow::Result<Arc<Recorded>> {
    paths.sort();
    paths.dedup();
    let mut recorded = Recorded::default();
    for path in &paths {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let options = Options { format: Some(Format::Msr), ..Options::default() };
        recorded.add(Reader::new(BufReader::new(file), path.display().to_string(), options))?;
    }
    if recorded.requests() == MAX_REQUESTS {
        tracing::warn!("of trace {name} the first {MAX_REQUESTS} requests are replayed, over and over");
    }
    ensure!(recorded.reads().is_some(), "trace {name} must have reads and writes: each is promised its part");
    Ok(Arc::new(recorded))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_folders_become_traces() {
        let folder = std::env::temp_dir().join(format!("evenkeel-traces-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("made");
        let text = "128166372003061629,usr,0,Read,7014609920,24576,41286\n128166372016382155,usr,0,Write,1317441536,8192,1963\n";
        for name in ["usr_0.csv", "usr_1.csv", "web_0.csv", "prxy_0.csv", "readme.txt"] {
            std::fs::write(folder.join(name), text).expect("written");
        }
        let traces = read(&[folder.clone(), folder.join("usr_0.csv")]).expect("traces");
        let found: Vec<_> = traces.iter().map(|(name, trace)| (*name, trace.requests(), trace.reads())).collect();
        assert_eq!(found, [("usr", 4, Some(0.75)), ("web", 2, Some(0.75))]);
        assert!(read(&[]).expect("nothing").is_empty());

        let error = |path: PathBuf| format!("{:#}", read(&[path]).expect_err("refused"));
        assert!(error(folder.join("prxy_0.csv")).contains("usr_0.csv"));
        assert!(error(folder.join("web_9.csv")).contains("cannot read"));
        std::fs::write(folder.join("hm_0.csv"), "128166372003061629,hm,0,Write,0,512,1\n").expect("written");
        assert!(error(folder.join("hm_0.csv")).contains("reads and writes"));
        std::fs::write(folder.join("hm_0.csv"), "128166372003061629,hm,0,Write,zero,512,1\n").expect("written");
        assert!(error(folder.join("hm_0.csv")).contains("hm_0.csv"));
        std::fs::remove_dir_all(&folder).expect("removed");
    }
}
