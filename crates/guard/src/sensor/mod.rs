//! What is measured: files read again and again, and pure parsers of what they hold.
//!
//! | module | tells |
//! |---|---|
//! | [`diskstats`] | response time, rate, size and number inside of each block device |
//! | [`initiators`] | what single initiators moved, where LIO counts it |
//! | [`retransmits`] | TCP segments sent again, for the whole host |
//! | [`tracepoints`] | how long single reads take |
//! | [`source`] | a file that stays open |

pub mod diskstats;
pub mod initiators;
pub mod retransmits;
pub mod source;
pub mod tracepoints;

pub use source::Source;
