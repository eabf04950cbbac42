//! A recording in memory.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use crate::bounds::MAX_REQUESTS;
use crate::error::Error;
use crate::reader::Reader;
use crate::request::{Head, Item, Name, Request, Table};

/// A whole recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    /// The head.
    pub head: Head,
    /// The names, as recorded. Of two for the same number the later is valid.
    pub names: Vec<Name>,
    /// The requests in the order of arrival; those that arrived at the same time are as recorded.
    pub requests: Vec<Request>,
    /// Number of requests that could not be kept.
    pub lost: u64,
    /// True if the end mark was found, so that nothing is missing at the end.
    pub complete: bool,
}

impl Recording {
    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::File`] with the path and the reason.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let read = File::open(path).map_err(|cause| Error::Io { cause }).and_then(Self::from_input);
        read.map_err(|cause| Error::File { path: path.to_owned(), cause: Box::new(cause) })
    }

    /// Reads all of `input`.
    ///
    /// # Errors
    /// The reason if it cannot be read; [`Error::TooLong`] for more than 100 million requests.
    pub fn from_input(input: impl io::Read) -> Result<Self, Error> {
        let mut reader = Reader::new(input)?;
        let mut recording = Self { head: reader.head().clone(), ..Self::default() };
        while let Some(item) = reader.next()? {
            match item {
                Item::Request(_) if recording.requests.len() >= MAX_REQUESTS => return Err(Error::TooLong),
                Item::Request(request) => recording.requests.push(request),
                Item::Name(name) => recording.names.push(name),
                Item::Lost { requests, .. } => recording.lost = recording.lost.saturating_add(requests),
            }
        }
        recording.requests.sort_by_key(|request| request.arrival_ns);
        recording.complete = reader.is_complete();
        Ok(recording)
    }

    /// The name of a number; `None` if the recording has none. It searches all names; for many numbers see [`Self::by_number`].
    pub fn name(&self, table: Table, number: u32) -> Option<&Name> {
        self.names.iter().rev().find(|name| name.table == table && name.number == number)
    }

    /// All names of a table by their numbers. Of two for the same number it has the later.
    pub fn by_number(&self, table: Table) -> HashMap<u32, &Name> {
        self.names.iter().filter(|name| name.table == table).map(|name| (name.number, name)).collect()
    }
}
