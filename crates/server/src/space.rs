//! Space of volumes in files: the bytes allocated to each file, and the free bytes of its file system.
//!
//! A file system that does not answer blocks the measurement, so a thread of its own measures, and readers of the state have
//! the latest figures.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_policy::space::SpaceState;

use crate::backend::Backend;
use crate::places::Target;
use crate::snapshot::Snapshot;

/// Time after which a measurement is repeated, if the state is read.
const EVERY: Duration = Duration::from_secs(5);

/// The latest measurement of all volumes.
#[derive(Clone, Default)]
pub(crate) struct Spaces(Arc<Mutex<Measured>>);

#[derive(Default)]
struct Measured {
    /// Space by id of the volume.
    of: HashMap<u32, SpaceState>,
    /// Ids of the volumes whose file was no longer at its path; the log has each once.
    displaced: HashSet<u32>,
    /// Start of the latest measurement.
    begun: Option<Instant>,
    /// True while a thread measures.
    runs: bool,
}

impl Spaces {
    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The space of the volume with this id; `None` if it is in no file, or was not measured yet.
    pub(crate) fn of(&self, id: u32) -> Option<SpaceState> {
        self.lock().of.get(&id).cloned()
    }

    /// True if the file of the volume with this id was no longer at its path at the latest measurement.
    pub(crate) fn is_displaced(&self, id: u32) -> bool {
        self.lock().displaced.contains(&id)
    }

    /// Begins a measurement, unless one is under way or the latest is new. Does not wait for it.
    pub(crate) fn refresh(&self, snapshot: &Snapshot) {
        {
            let mut measured = self.lock();
            if measured.runs || measured.begun.is_some_and(|begun| begun.elapsed() < EVERY) {
                return;
            }
            (measured.runs, measured.begun) = (true, Some(Instant::now()));
        }
        // Paths and not volumes: a removed volume's file is closed at once.
        let paths: Vec<Place> = snapshot
            .volumes
            .iter()
            .flatten()
            .filter_map(|volume| match &volume.backend {
                Backend::File(file) => {
                    let (path, target) = (file.path().to_owned(), file.target());
                    Some(Place { id: volume.id, volume: volume.name.clone(), path, target })
                }
                _ => None,
            })
            .collect();
        let spaces = self.clone();
        let run = move || {
            let displaced: HashSet<u32> = paths.iter().filter(|place| place.is_left()).map(|place| place.id).collect();
            let known = spaces.lock().displaced.clone();
            let is_new = |place: &&Place| displaced.contains(&place.id) && !known.contains(&place.id);
            paths.iter().filter(is_new).for_each(Place::complain);
            // The path of a displaced file leads to another file, or to none.
            let present = paths.iter().filter(|place| !displaced.contains(&place.id));
            let of: HashMap<u32, SpaceState> =
                present.filter_map(|place| Some((place.id, measure(&place.path).ok()??))).collect();
            let mut measured = spaces.lock();
            (measured.of, measured.displaced, measured.runs) = (of, displaced, false);
        };
        if std::thread::Builder::new().name("evenkeel-space".into()).spawn(run).is_err() {
            self.lock().runs = false;
        }
    }
}

/// The place of a served volume.
struct Place {
    id: u32,
    volume: String,
    path: PathBuf,
    /// The file that is open.
    target: Target,
}

impl Place {
    /// True if the open file is no longer at its path: it was deleted, moved, or another file has replaced it.
    fn is_left(&self) -> bool {
        // Nodes of devices come and go.
        matches!(self.target, Target::File(..))
            && match std::fs::metadata(&self.path) {
                Ok(metadata) => Target::of(&metadata) != self.target,
                Err(error) => error.kind() == io::ErrorKind::NotFound,
            }
    }

    fn complain(&self) {
        let (path, pid) = (self.path.display(), std::process::id());
        tracing::error!(
            volume = self.volume,
            "its file {path} was deleted, moved or replaced while it is served: clients still use the old file, which the server will not find when it starts again. If it was deleted, its content ends with this process: stop the clients, and copy it from /proc/{pid}/fd (`ls -l` shows the descriptor) before the server stops"
        );
    }
}

/// The space of a regular file; `None` for a device.
fn measure(path: &Path) -> io::Result<Option<SpaceState>> {
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    let (free_bytes, capacity_bytes) = free_and_capacity(path)?;
    Ok(Some(SpaceState {
        allocated_bytes: metadata.blocks().saturating_mul(512),
        file_system: format!("{}:{}", rustix::fs::major(metadata.dev()), rustix::fs::minor(metadata.dev())),
        free_bytes,
        capacity_bytes,
    }))
}

/// Free bytes and size of the file system at `path`. Blocks for as long as the file system does not answer.
///
/// # Errors
/// The system's error.
pub fn free_and_capacity(path: &Path) -> io::Result<(u64, u64)> {
    let space = rustix::fs::statvfs(path)?;
    Ok((space.f_bavail.saturating_mul(space.f_frsize), space.f_blocks.saturating_mul(space.f_frsize)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_that_is_gone_from_its_path_is_noticed() {
        let path = std::env::temp_dir().join(format!("evenkeel-displaced-{}", std::process::id()));
        let aside = path.with_extension("aside");
        let file = std::fs::File::create(&path).expect("a file");
        let target = Target::of(&file.metadata().expect("it is open"));
        let place = Place { id: 0, volume: "v".to_owned(), path: path.clone(), target };
        assert!(!place.is_left());
        std::fs::rename(&path, &aside).expect("moved");
        assert!(place.is_left(), "nothing is there");
        std::fs::write(&path, "another").expect("a file");
        assert!(place.is_left(), "another file is there");
        std::fs::rename(&aside, &path).expect("moved back");
        assert!(!place.is_left());
        std::fs::remove_file(path).expect("removed");
        let device = Place { target: Target::Device(1), path: aside, ..place };
        assert!(!device.is_left(), "the node of a device may be made anew");
    }

    #[test]
    fn a_sparse_file_has_what_was_written() {
        let path = std::env::temp_dir().join(format!("evenkeel-space-{}", std::process::id()));
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(64 << 20).expect("longer");
        // As random as it takes not to be compressed, which some file systems do.
        let mut state = 1_u64;
        let noise = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state as u8
        });
        let noise: Vec<u8> = noise.take(1 << 20).collect();
        file.write_all_at(&noise, 8 << 20).expect("written");
        file.sync_all().expect("durable");
        let space = measure(&path).expect("there").expect("a file");
        std::fs::remove_file(&path).expect("removed");
        assert!((1 << 20..32 << 20).contains(&space.allocated_bytes), "{space:?}");
        assert!(space.free_bytes > 0 && space.free_bytes <= space.capacity_bytes, "{space:?}");
        assert!(measure(&path).is_err() && measure(Path::new("/dev/null")).expect("there").is_none());
    }
}
