//! The checks of labs, and their output.

pub(crate) mod figures;
pub(crate) mod journal;
pub(crate) mod pattern;
pub(crate) mod policy;
pub(crate) mod run;
pub(crate) mod steps;
pub(crate) mod writer;
