//! Which client reaches which device, and which resource they share.
