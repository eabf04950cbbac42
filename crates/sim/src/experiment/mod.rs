//! What was measured elsewhere, measured here.
//!
//! | module | what it does |
//! |---|---|
//! | [`oracle`] | the best fixed budget of a setup, found by sweep |

pub mod oracle;
