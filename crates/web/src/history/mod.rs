//! The history of a server or an agent: recording once a second, and answers about any time of it.
//!
//! One thread records, apart from all that serves requests. No fault of the disk stops the program: it is logged once, with its
//! cure, and recording is tried again.

mod answer;
mod ledger;
mod marks;
mod place;
mod recorder;
mod request;
mod room;

pub use answer::{Error, Query, answer};
pub(crate) use ledger::Sense;
pub(crate) use marks::{BY_COMMAND, ByCommand, Held, Reason, Topic};
pub use place::Place;
pub(crate) use place::Program;
pub(crate) use recorder::HISTORY_LOST;
pub use recorder::{NO_THREAD_CURE, Recorder};
pub(crate) use request::{Wanted, answered};
