//! The selection of series and marks that a reader wants.

use crate::figures::Series;
use crate::mark::{Event, Mark};

/// Selects series and marks. A name that is `None` selects all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Name of the pool to select.
    pub pool: Option<String>,
    /// Name of the tenant to select; empty to select only the series of whole pools.
    pub tenant: Option<String>,
    /// Name of the device to select; empty to select only the series of all devices together.
    pub device: Option<String>,
}

impl Filter {
    /// True if the series is selected.
    pub fn series(&self, series: &Series) -> bool {
        let wanted = |wanted: &Option<String>, name: &String| wanted.as_ref().is_none_or(|wanted| wanted == name);
        wanted(&self.pool, &series.pool) && wanted(&self.tenant, &series.tenant) && wanted(&self.device, &series.device)
    }

    /// True if the mark is selected: a decision by its pool and tenant, by its tenant alone if it is about all pools of the
    /// tenant, and always if it has neither, as a reload; a trouble unless its object is another pool or tenant, as one of a
    /// pool, a volume, the cluster or the whole server concerns its tenants; starts and stops always.
    pub fn mark(&self, mark: &Mark) -> bool {
        let named = |wanted: &Option<String>, names: &[&str]| {
            wanted.as_ref().is_none_or(|wanted| wanted.is_empty() || names.contains(&wanted.as_str()))
        };
        match &mark.event {
            Event::Decision { pool, tenant, .. } => {
                let is_of_all = pool.is_empty() && tenant.is_empty();
                let is_of_pool = pool.is_empty() || named(&self.pool, &[pool.as_str()]);
                is_of_all || (is_of_pool && named(&self.tenant, &[tenant.as_str()]))
            }
            Event::Trouble { about, .. } => match about.split_once(' ') {
                Some(("tenant", of)) => {
                    let (tenant, pool) = of.rsplit_once(" in pool ").unwrap_or((of, ""));
                    named(&self.pool, &[pool]) && named(&self.tenant, &[tenant])
                }
                // A device may be in several.
                Some(("pool", pools)) => named(&self.pool, &pools.split(", ").collect::<Vec<_>>()),
                // An OSD is a pool.
                None if about.starts_with("osd.") => named(&self.pool, &[about.as_str()]),
                _ => true,
            },
            Event::Program { .. } => true,
        }
    }
}
