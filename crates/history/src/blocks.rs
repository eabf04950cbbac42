//! The blocks of a stream's files, one behind the other, also while another process appends to the newest file and removes
//! the oldest.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use crate::codec::Block;
use crate::content::Content;
use crate::error::{Error, failed};
use crate::folder::{Kept, path_of};
use crate::frame::{Tail, Unusable};
use crate::resolution::Stream;

/// Blocks in the order of time. After an error it continues with the next file.
#[derive(Debug)]
pub(crate) struct Blocks {
    folder: PathBuf,
    stream: Stream,
    /// The files still to be read.
    starts: VecDeque<u64>,
    /// The first of them: it is the next that the writer removes.
    first: Option<File>,
    open: Option<(PathBuf, Content)>,
}

impl Blocks {
    /// The blocks of those files that may have data from `from` until before `to`, Unix time in seconds.
    pub(crate) fn new(folder: &Path, stream: Stream, files: &[Kept], from: u64, to: u64) -> Self {
        let ends = files.iter().skip(1).map(|next| next.start).chain([u64::MAX]);
        let wanted = files.iter().zip(ends).filter(|&(kept, end)| end > from && kept.start < to);
        let starts: VecDeque<u64> = wanted.map(|(kept, _)| kept.start).collect();
        let first = starts.front().and_then(|&start| File::open(path_of(folder, stream, start)).ok());
        Self { folder: folder.to_owned(), stream, starts, first, open: None }
    }

    /// Leaves out the files that end at `from` or before, Unix time in seconds.
    pub(crate) fn skip_to(&mut self, from: u64) {
        while self.starts.get(1).is_some_and(|next| *next <= from) {
            self.starts.pop_front();
            self.first = None;
        }
    }
}

impl Iterator for Blocks {
    type Item = Result<Block, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((path, content)) = &mut self.open {
                match content.block() {
                    Ok(Some(block)) => return Some(Ok(block)),
                    // Behind the last whole block of the newest file the writer may be at work.
                    Err(Tail::Damaged) if !self.starts.is_empty() => {
                        let error = Error::Damaged { path: path.clone(), offset: content.read };
                        self.open = None;
                        return Some(Err(error));
                    }
                    Ok(None) | Err(_) => self.open = None,
                }
            }
            let path = path_of(&self.folder, self.stream, self.starts.pop_front()?);
            let mut bytes = Vec::new();
            let file = self.first.take().map_or_else(|| File::open(&path), Ok);
            match file.and_then(|mut file| file.read_to_end(&mut bytes)) {
                Ok(_) => {}
                // The writer has removed it meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Some(Err(failed("read", &path)(error))),
            }
            match Content::new(bytes, self.stream) {
                Ok(content) => self.open = Some((path, content)),
                Err(Unusable::Short) => {}
                Err(Unusable::Version(found)) => return Some(Err(Error::Version { path, found })),
                Err(Unusable::Damaged) => return Some(Err(Error::Damaged { path, offset: 0 })),
            }
        }
    }
}
