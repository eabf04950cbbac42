//! A scenario over swept settings and several seeds: what is run, what came of it, and how that is shown.
//!
//! | module | question |
//! |---|---|
//! | `plan` | which scenarios, over which settings? |
//! | `outcome` | what came of them, and does it meet the bounds? |
//! | `table` | how does that look on a terminal? |
//! | `page` | and as a page with plots? |

mod outcome;
mod page;
mod plan;
mod table;

pub use outcome::Outcome;
pub use page::page;
pub use plan::{Choice, Invalid, Kept, Plan, Point, Sweep};
pub use table::text;
