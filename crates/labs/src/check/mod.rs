//! What labs look at, and how they tell what they saw.

pub(crate) mod figures;
pub(crate) mod journal;
pub(crate) mod pattern;
pub(crate) mod policy;
pub(crate) mod run;
pub(crate) mod steps;
pub(crate) mod writer;
