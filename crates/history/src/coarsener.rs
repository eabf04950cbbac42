//! Coarsening: the samples of several steps as those of a longer one.
//!
//! Sums add, and of percentiles and maxima the larger stays, so that the result is the same in however many stages it is made.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;

use crate::figures::{Figures, Sample, Series, Slice};
use crate::resolution::Resolution;

/// Collects finer slices until a step of its own resolution is complete.
#[derive(Debug)]
pub(crate) struct Coarsener {
    /// Length of a step, in seconds.
    step: u64,
    /// Start of the step, a multiple of its length.
    at: u64,
    /// Seconds recorded so far; none if there is no slice yet.
    recorded: u64,
    figures: BTreeMap<Arc<Series>, Figures>,
}

impl Coarsener {
    pub(crate) const fn new(resolution: Resolution) -> Self {
        Self { step: resolution.seconds(), at: 0, recorded: 0, figures: BTreeMap::new() }
    }

    /// Adds a finer slice, which begins no sooner than the previous one ended. Appends up to two slices to `done`: the step
    /// before if this slice begins another, and this step if the slice is its last.
    pub(crate) fn push(&mut self, slice: &Slice, done: &mut Vec<Slice>) {
        let at = slice.at - slice.at % self.step;
        if self.at != at {
            done.extend(self.take());
        }
        self.at = at;
        self.recorded += slice.recorded;
        for sample in &slice.samples {
            self.figures.entry(Arc::clone(&sample.series)).or_default().add(&sample.figures);
        }
        if slice.end() >= at.saturating_add(self.step) {
            done.extend(self.take());
        }
    }

    /// The step as far as it was recorded; `None` if nothing was.
    pub(crate) fn take(&mut self) -> Option<Slice> {
        let (recorded, figures) = (mem::take(&mut self.recorded), mem::take(&mut self.figures));
        (recorded > 0).then(|| {
            let samples = figures.into_iter().map(|(series, figures)| Sample { series, figures }).collect();
            Slice { at: self.at, seconds: self.step, recorded, samples }
        })
    }
}
