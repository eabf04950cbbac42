//! Where a volume's bytes are.

pub(crate) mod contents;
pub(crate) mod emulate;
pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod operation;
pub(crate) mod overlap;
pub(crate) mod rbd;
pub(crate) mod remote;

use std::sync::Arc;

use emulate::Device;
use file::File;
use memory::Memory;
use rbd::Rbd;
use remote::Remote;

/// A back end: where a volume's bytes are, and how long it takes to get at them.
pub(crate) enum Backend {
    /// In memory, served at once.
    Memory(Memory),
    /// In a file or on a block device.
    File(File),
    /// On another NBD server.
    Remote(Remote),
    /// In an image of a Ceph cluster.
    Rbd(Rbd),
    /// In memory, with the delays of a modelled device.
    Emulate(Memory, Arc<Device>),
}

impl Backend {
    /// True if the worker itself carries out operations, at once.
    #[inline]
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}
