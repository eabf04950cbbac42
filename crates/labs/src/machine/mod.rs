//! Virtual machines: seen from the host (`vm` and the modules it boots with), and from inside (the other modules).

pub(crate) mod cpio;
pub(crate) mod devices;
pub(crate) mod guard;
pub(crate) mod guest;
pub(crate) mod kernel;
pub(crate) mod services;
pub(crate) mod vm;
