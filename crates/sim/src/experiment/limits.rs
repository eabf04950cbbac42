//! Limits of the experiments: what a reader may doubt about their figures. Text and page of every report print them.

use super::{bufferbloat, drg, iscsi, messenger, saat};

/// The limits of an experiment, the most serious first; none for an experiment without a list.
pub(crate) fn of(experiment: &str) -> &'static [&'static str] {
    match experiment {
        bufferbloat::NAME => &[
            "Test set and development are not apart: elastic was developed on the same device models. No device is drawn or \
             real.",
            "No baseline is tuned: adaptive methods run with published values.",
            "Methods warm up for different times in the frontier: elastic and its oracle for up to 300 s, fixed budgets and no \
             control for 10 s or less. Paired figures are of one seed, but not of the same part of the load.",
            "The best fixed budget by p99 is not searched: it is taken to be the smallest that keeps 97 % of the peak.",
            "Without --seeds figures 6 to 9 have one seed, and methods other than elastic at most 4: their intervals are wide \
             or missing.",
        ],
        iscsi::NAME => &[
            "Test set and development are not apart: adaptive was developed on this modelled target and the paper's cases. \
             Only baselines have a training set.",
            "All cases run on one modelled target: its number of servers, TCP windows and service times are those of \
             one device.",
            "In the paper's cases the best constant delay is chosen on the seeds on which it is judged, in its favour.",
            "Gains of the published controller are not published: without tuned values those chosen here stand for them.",
            "There is no HTB, no policing, no bridge in front of a target, and no agent on initiators.",
        ],
        saat::NAME => &[
            "Test set and development are not apart: device and loads were fitted to the paper's figures of the plain limit, \
             and accurate was developed on them.",
            "Phases are steps of 100 ms, the interval at which accurate decides. Jitter within a second is not measured.",
            "The oracle knows the seconds that begin with the controller's own. In other phases its jitter, and with it the \
             bar of 1.1 times the oracle's, is that of limits which were not chosen for these seconds.",
            "The oracle tries at most six sets of limits for each second: it is good, not proven to be the best.",
            "Without --traces all requests are invented.",
        ],
        messenger::NAME => &[
            "The inequality of destinations and the pauses of clients were fitted under the colliding order, then used for the \
             random one.",
            "Test set and development are not apart: waits was developed on this cluster. Its baselines are tuned on a \
             variant of it.",
            "The lower bound for the busiest worker is that of the loads measured under each method itself, known afterwards \
             and not always within reach of a placement; windows are of 5 s, whatever the interval of a method.",
            "No baseline is a descent at each interval, and least connections places as round robin does, because all \
             connections open at the start.",
            "Bars on IOPS are the paper's gains of the genetic algorithm, measured on other hardware.",
        ],
        drg::NAME => &[
            "Test set and development are not apart: rates of the workloads were chosen here, and needs was developed on \
             them. Without --traces all requests are invented.",
            "At the paces of SLO_A and SLO_B no control may meet targets as well: such cases, without a bar of 1 %, show only \
             that needs does no harm. A tie meets a bar of 0, the more easily the fewer the seeds.",
            "Without tuning the published methods have 100 slots and aim at 100 ms, chosen here; the paper has up to 320 slots \
             at 200 ms. They are calculated in one place without delay, not decentralised as DRG is; needs is.",
            "Targets are of means alone: p99 targets, an unmanaged host and a sweep of base slots are missing.",
            "Tuning counts missed seconds and no throughput, so that tuned baselines may trade one for the other.",
        ],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_paper_has_five_limits_that_differ() {
        let all = [bufferbloat::NAME, iscsi::NAME, saat::NAME, messenger::NAME, drg::NAME].map(of);
        assert!(all.iter().all(|limits| limits.len() == 5));
        let mut each = all.concat();
        assert!(each.iter().all(|limit| limit.ends_with('.') && !limit.contains("  ")), "{each:?}");
        each.sort_unstable();
        each.dedup();
        assert_eq!(each.len(), 25);
        assert!(of("another").is_empty());
    }
}
