//! A scenario over swept settings and several seeds: its runs, their results, and how these are shown.
//!
//! | module | subject |
//! |---|---|
//! | `plan` | the scenarios to run, over swept settings |
//! | `outcome` | results, and verdicts on the bounds |
//! | `table` | results on a terminal |
//! | `page` | results as a page with plots |

mod outcome;
mod page;
mod plan;
mod table;

pub use outcome::Outcome;
pub use page::page;
pub use plan::{Choice, Invalid, Kept, Plan, Point, Sweep};
pub use table::text;
