//! The checks that labs make, and the output of their results.

pub(crate) mod figures;
pub(crate) mod journal;
pub(crate) mod pattern;
pub(crate) mod policy;
pub(crate) mod run;
pub(crate) mod steps;
pub(crate) mod writer;
