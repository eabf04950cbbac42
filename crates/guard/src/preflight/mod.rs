//! What the kernel offers, what is missing, and what is lost by it: as data.
