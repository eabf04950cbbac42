//! Recordings of requests, as `evenkeel record` makes them: format, writer, reader, scrambling, export to other formats.
//!
//! ```no_run
//! use std::fs::File;
//! use std::path::Path;
//!
//! use evenkeel_flight::{Head, Item, Name, Reader, Recording, Request, Table, Writer, to_fio};
//!
//! let head = Head { started_unix_ns: 1_760_000_400_000_000_000, source: "serve".into(), ..Head::default() };
//! let mut writer = Writer::new(File::create("shop.flight")?, &head)?;
//! let volume = Name { table: Table::Volume, number: 0, name: "db".into(), pool: "main".into(), bytes: 1 << 40 };
//! writer.write(&Item::Name(volume))?;
//! writer.write(&Item::Request(Request {
//!     arrival_ns: 1_000,
//!     queue_ns: 200_000,
//!     device_ns: 90_000,
//!     offset: 4_096,
//!     length: 4_096,
//!     ..Request::default()
//! }))?;
//! writer.finish()?;
//!
//! let mut reader = Reader::new(File::open("shop.flight")?)?;
//! while let Some(item) = reader.next()? {
//!     println!("{item:?}");
//! }
//! let recording = Recording::read(Path::new("shop.flight"))?;
//! to_fio(&recording, &mut File::create("shop.iolog")?)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No clock is read: times come with the requests. Offsets and lengths are as the client sent them, so that their sum may exceed
//! 2⁶⁴; arrival, queue latency and device latency add up to less.
//!
//! # Format
//!
//! Numbers of fixed length are little-endian. A *number* otherwise is written in seven bits a byte, the lowest first (LEB128). A
//! *text* is its length as a number, and UTF-8. Checksums are CRC-32C.
//!
//! A file is a head, blocks, and an end mark.
//!
//! | head | bytes |
//! |---|---|
//! | magic `EVENKFLT` | 8 |
//! | version of the format, 1 | 2 |
//! | length of the payload, at most 4 MiB | 4 |
//! | checksum of the bytes above and the payload | 4 |
//! | payload: start (number), source (text), policy (text), anonymised (a byte, 0 or 1) | |
//!
//! | block | bytes |
//! |---|---|
//! | length of the payload, at most 512 KiB | 4 |
//! | number of requests, at most 4,096; 2³² - 1 for the end mark | 4 |
//! | checksum of the payload | 4 |
//! | checksum of the 12 bytes above | 4 |
//! | payload | |
//!
//! The payload of the end mark is the numbers of requests, names and losses in the recording. Nothing but zeros follows it.
//!
//! The payload of another block begins with its names and losses: their number, at most 4,096, and for each the number of
//! requests since the one before and a code. Code 0, 1 or 2 is a name of a tenant, a client or a volume: number, name (text),
//! pool (text), length of the volume. Code 3 is a loss: requests, first time, duration.
//!
//! The requests follow, if there are any, as columns. A block is complete in itself: no column continues that of another block.
//!
//! 1. The unit of offsets and lengths, as a power of two (a byte): the largest that divides all of the block.
//! 2. The number of combinations in the dictionary, and five columns with a value for each: kind (0 to 5, as [`Kind`]), plus 8 if
//!    durable, plus 16 if retried; outcome (0 done, 1 cancelled, otherwise the error number plus 1); tenant; client; volume.
//! 3. A column with each request's number in the dictionary.
//! 4. The completion of the first request in nanoseconds (a number), and a column with the time since the previous completion, 0
//!    for the first. Times may go back: they are written so that small absolute values are small (zigzag).
//! 5. A column of queue latencies, and one of device latencies, in nanoseconds.
//! 6. A column of lengths, in units.
//! 7. A column with the distance of each offset from the end of the previous request of its volume in the block, or from 0, in
//!    units, as zigzag.
//!
//! A column begins with a byte. If it is 65, each value is a number. Up to 64 it is a length in bits; behind it is the smallest
//! value (a number), and each value's distance from it in so many bits, the lowest first, filled up to a byte at the end.
//!
//! # Crashes
//!
//! A block is written at once when it has 4,096 requests, or at [`Writer::flush`]. What a crash leaves is the blocks before the
//! one that was being written: a block that is cut, or that is the last and does not agree with its checksum, or zeros in place
//! of a block, are the end of the recording, and [`Reader::is_complete`] is false. A wrong checksum before other blocks is an
//! error with its offset. No damage of a byte yields other requests.
//!
//! # Costs
//!
//! A request takes 11 to 12 bytes under a load of 300,000 requests a second of 4 KiB, at random in 16 volumes of 1 TiB, with
//! latencies from 0.1 to 0.8 ms (a test calculates it). A sequential stream takes 7 to 9 bytes a request. The worst that can be
//! constructed takes 71. A block that is ended early has a frame and a dictionary, some hundred bytes, for less requests.
//!
//! The writer takes at most 2 MB of memory, the reader 3 MB, and 12 MiB while it reads the head, whatever the input. A
//! [`Recording`] takes 64 bytes a request.
//!
//! # Modules
//!
//! | module | content |
//! |---|---|
//! | `request` | requests and names |
//! | `bounds` | version and bounds of the format |
//! | `error` | errors |
//! | `column` | columns of numbers as bytes |
//! | `frame` | head, frames of blocks, totals |
//! | `notes`, `columns` | names and losses, and requests, of a block as bytes |
//! | `writer`, `reader` | a recording item by item |
//! | `recording` | a recording in memory |
//! | `anonymise` | scrambled offsets and names |
//! | `export` | fio's iolog, blkparse text, CSV of MSR |
//! | `statistics` | figures of a recording |

pub mod anonymise;
mod bounds;
mod column;
mod columns;
mod error;
pub mod export;
mod frame;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod notes;
mod reader;
mod recording;
mod request;
pub mod statistics;
#[cfg(test)]
mod tests;
mod writer;

pub use anonymise::Scrambler;
pub use error::Error;
pub use export::{to_blkparse, to_fio, to_fio_2, to_msr};
pub use reader::Reader;
pub use recording::Recording;
pub use request::{Head, Item, Kind, Name, Outcome, Request, Table};
pub use writer::Writer;
