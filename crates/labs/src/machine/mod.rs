//! Virtual machines. `vm`, `kernel` and `cpio` run on the host, the other modules inside a machine.

pub(crate) mod cpio;
pub(crate) mod devices;
pub(crate) mod guard;
pub(crate) mod guest;
pub(crate) mod kernel;
pub(crate) mod services;
pub(crate) mod vm;
