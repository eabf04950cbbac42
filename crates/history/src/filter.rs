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

    /// True if the mark is selected. Starts, stops and reloads always are. A decision is if it has the wanted pool and tenant, or
    /// only the wanted tenant where it is about all the tenant's pools. A trouble is unless it is one of another pool or tenant:
    /// troubles of volumes, of the cluster and of the whole server concern every tenant.
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
