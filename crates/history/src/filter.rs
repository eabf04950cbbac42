//! The selection of series and marks that a reader wants.

use crate::figures::Series;
use crate::mark::{Event, Mark};

/// Selects series and marks. A name that is `None` selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The pool.
    pub pool: Option<String>,
    /// The tenant; empty for the series of whole pools alone.
    pub tenant: Option<String>,
    /// The device; empty for the series of all devices together alone.
    pub device: Option<String>,
}

impl Filter {
    /// True if the series is selected.
    pub fn series(&self, series: &Series) -> bool {
        let wanted = |wanted: &Option<String>, name: &String| wanted.as_ref().is_none_or(|wanted| wanted == name);
        wanted(&self.pool, &series.pool) && wanted(&self.tenant, &series.tenant) && wanted(&self.device, &series.device)
    }

    /// True if the mark is selected: a decision by its pool and tenant; a trouble if its object names them, or is the whole
    /// server or agent; starts and stops always.
    pub fn mark(&self, mark: &Mark) -> bool {
        let named = |wanted: &Option<String>, names: &[&str]| {
            wanted.as_ref().is_none_or(|wanted| wanted.is_empty() || names.contains(&wanted.as_str()))
        };
        match &mark.event {
            Event::Decision { pool, tenant, .. } => {
                named(&self.pool, &[pool.as_str()]) && named(&self.tenant, &[tenant.as_str()])
            }
            Event::Trouble { about, .. } => {
                let words: Vec<&str> = about.split_whitespace().collect();
                words.is_empty() || (named(&self.pool, &words) && named(&self.tenant, &words))
            }
            Event::Program { .. } => true,
        }
    }
}
