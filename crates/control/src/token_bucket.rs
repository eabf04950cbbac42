//! Exact pacing (written next).
