//! One shared device.
