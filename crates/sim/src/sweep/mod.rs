//! A scenario run with swept settings and several seeds: the plan of the runs, and the presentation of their results.
//!
//! | module | contents |
//! |---|---|
//! | `plan` | the scenarios to run, one for each combination of swept settings |
//! | `outcome` | the results, and verdicts on the bounds |
//! | `table` | the results as text for a terminal |
//! | `page` | the results as a page with plots |

mod outcome;
mod page;
mod plan;
mod table;

pub use outcome::Outcome;
pub use page::page;
pub use plan::{Choice, Invalid, Kept, Plan, Point, Sweep};
pub use table::text;
