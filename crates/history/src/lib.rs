//! The history of a server or agent on disk: figures of pools, tenants and devices, decisions and troubles of the last month.
//!
//! One process records with [`History`]; any number read with [`Reader`] meanwhile. No clock is read: time comes with the data,
//! as Unix time in seconds.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use evenkeel_history::{Bounds, Entry, Figures, Filter, Gauge, History, Reader, Resolution, Sample, Second, Series};
//!
//! let (mut history, notes) = History::open("/var/lib/evenkeel/history", Bounds::default())?;
//! notes.iter().for_each(|note| eprintln!("{note}"));
//! let series = Arc::new(Series { pool: "main".into(), tenant: "shop".into(), device: String::new() });
//! let figures = Figures { requests: 900, bytes: 3_686_400, in_flight: Gauge::at(7), ..Figures::default() };
//! let samples = vec![Sample { series, figures }];
//! history.append(&Second { at: 1_760_000_400, samples, ..Second::default() });
//! history.sync();
//!
//! let reader = Reader::new("/var/lib/evenkeel/history");
//! for entry in reader.range(1_760_000_000, u64::MAX, Resolution::Minute, &Filter::default())? {
//!     match entry? {
//!         Entry::Slice(slice) => println!("{}: {} series", slice.at, slice.samples.len()),
//!         Entry::Gap { from, to } => println!("nothing was recorded from {from} to {to}"),
//!     }
//! }
//! # Ok::<(), evenkeel_history::Error>(())
//! ```
//!
//! # Resolutions
//!
//! Every second is recorded at once, and added to steps of ten seconds, a minute and ten minutes, which are recorded when they
//! are complete. Sums add; of percentiles the largest stays; gauges have mean and maximum. Data become coarser when the file
//! with the finer ones is removed: by age ([`Resolution::kept_s`]), or at the bound, the oldest first. When all older data are
//! at ten minutes, the oldest are removed. After a restart, steps that were not complete are made anew from the finer data.
//!
//! # Files
//!
//! Each resolution, and the marks, have files of their own, named `RESOLUTION-START.evh` (000 for marks), mode 0600 in a folder
//! of mode 0700. A file has a head of 24 bytes: magic, version of the format, resolution, start, CRC-32C. Behind it are blocks,
//! each with length and CRC-32C: a step of time with its samples, or the marks of a second. Names are written once in a file.
//! Figures are differences from a prediction by the previous sample of the series, in seven bits a byte; a figure as predicted
//! takes no byte. A block that was not written to its end is cut off when the folder is opened. A file of another version is set
//! aside under another name, and is the first to be removed at the bound.
//!
//! # Costs
//!
//! A series that is not idle takes 19 to 22 bytes a second (calculated for requests of one size or two, latencies that vary by
//! a fifth, and all but budget and limit changing each second), 28 bytes per ten seconds, 32 per minute, 35 per ten minutes: at
//! 1,000 such series 22 to 26 KB/s, or 80 to 95 MB for the last hour at a resolution of a second. An idle series takes nothing,
//! a second in which all are idle 13 bytes.
//!
//! Processor time at 1,000 series is 0.75 ms a second (measured with `opt-level = 1`): copying and sorting, the dictionary,
//! encoding, coarsening, checksum and system calls. Reading takes 0.2 ms for each such second. Memory is 0.5 KB per series and
//! resolution.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `figures`, `mark` | samples and how they add up; decisions and troubles |
//! | `resolution` | resolutions, and how long data are kept in which files |
//! | `coarsener` | coarsening |
//! | `frame` | heads of files, frames of blocks |
//! | `fields`, `codec` | figures and blocks as bytes |
//! | `content` | the blocks of one file |
//! | `bound` | which data go when the bound is reached |
//! | `error` | errors, and notes for the log |
//! | `folder` | names and modes of files, the lock |
//! | `writer` | one stream on disk: append, continue, cut, remove |
//! | `store` | all streams: coarsening, the bound |
//! | `history` | recording that no fault of the disk stops |
//! | `blocks`, `filter`, `reader` | reading |
//!
//! All down to `error` neither read nor write a file.

mod blocks;
mod bound;
mod coarsener;
mod codec;
mod content;
mod error;
mod fields;
mod figures;
mod filter;
mod folder;
mod frame;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod history;
mod mark;
mod reader;
mod resolution;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use error::{Error, Note};
pub use figures::{Figures, Gauge, Sample, Series, Slice};
pub use filter::Filter;
pub use history::{Bounds, History, Second, Status};
pub use mark::{Event, Mark};
pub use reader::{Entry, Range, Reader};
pub use resolution::Resolution;
