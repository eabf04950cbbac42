//! Back ends: the stores of volumes' bytes.

pub(crate) mod contents;
pub(crate) mod emulate;
pub(crate) mod file;
pub(crate) mod memory;
pub(crate) mod operation;
pub(crate) mod overlap;
pub(crate) mod rbd;
pub(crate) mod remote;
pub(crate) mod tables;

use std::sync::Arc;

use emulate::Device;
use file::File;
use memory::Memory;
use rbd::Rbd;
use remote::Remote;

/// The back end of a volume: the store that holds its bytes.
pub(crate) enum Backend {
    /// The server's memory; operations complete at once.
    Memory(Memory),
    /// A file or block device.
    File(File),
    /// An export of another NBD server.
    Remote(Remote),
    /// An RBD image of a Ceph cluster.
    Rbd(Rbd),
    /// The server's memory, with the latencies of a modelled device.
    Emulate(Memory, Arc<Device>),
}

impl Backend {
    /// True if the worker itself carries out operations, which complete at once.
    #[inline]
    pub(crate) fn is_memory(&self) -> bool {
        matches!(self, Self::Memory(_))
    }
}
