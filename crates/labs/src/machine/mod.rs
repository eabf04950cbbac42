//! Virtual machines, seen from the host (`vm`, and what it boots) and from inside (the rest).

pub(crate) mod cpio;
pub(crate) mod devices;
pub(crate) mod guard;
pub(crate) mod guest;
pub(crate) mod kernel;
pub(crate) mod services;
pub(crate) mod vm;
