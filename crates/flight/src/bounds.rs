//! Version and bounds of the format. The reader's memory follows from them: a few MiB, whatever the input.

/// Version of the format that this version of the program reads and writes.
pub(crate) const VERSION: u16 = 1;
/// The most bytes of a head: room for the policy of ten thousand tenants.
pub(crate) const MAX_HEAD: usize = 4 << 20;
/// The most requests of a block: its bytes are written at once, and its requests are lost together at a crash.
pub(crate) const BLOCK_REQUESTS: usize = 4096;
/// The most names and losses of a block.
pub(crate) const BLOCK_NOTES: usize = 4096;
/// Bytes of names and losses from which on a block ends.
pub(crate) const BLOCK_NOTE_BYTES: usize = 64 << 10;
/// The most bytes of a name; NBD allows as many for an export.
pub(crate) const MAX_TEXT: usize = 4096;
/// The most bytes of a block. The largest that is written has 71 for each request, and the names: 365 kB.
pub(crate) const MAX_PAYLOAD: usize = 512 << 10;
/// The most requests of a recording that is read as a whole; they take 6.4 GB of memory.
pub(crate) const MAX_REQUESTS: usize = 100_000_000;
