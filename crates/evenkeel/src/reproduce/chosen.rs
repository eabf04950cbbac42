//! The experiments that a command line names: one, or all in turn.

use anyhow::Context;
use clap::ValueEnum;
use clap::builder::PossibleValue;

use super::{Experiment, record};
use crate::output;

/// The experiments that a command line names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    /// One experiment.
    One(Experiment),
    /// Every experiment.
    All,
}

impl Chosen {
    /// The experiments, in the order in which they run.
    pub(super) fn experiments(self) -> Vec<Experiment> {
        match self {
            Self::One(experiment) => vec![experiment],
            Self::All => Experiment::value_variants().to_vec(),
        }
    }
}

impl ValueEnum for Chosen {
    fn value_variants<'a>() -> &'a [Self] {
        const VARIANTS: [Chosen; 8] = [
            Chosen::One(Experiment::Bufferbloat),
            Chosen::One(Experiment::Iscsi),
            Chosen::One(Experiment::Saat),
            Chosen::One(Experiment::Messenger),
            Chosen::One(Experiment::Drg),
            Chosen::One(Experiment::Totals),
            Chosen::One(Experiment::Harm),
            Chosen::All,
        ];
        &VARIANTS
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        match self {
            Self::One(experiment) => experiment.to_possible_value(),
            Self::All => Some(PossibleValue::new("all").help("All of these, one after another; harm without --seeds")),
        }
    }
}

/// Calls `work` with each experiment in turn, each after a line of progress if there are several. The first error ends it; of
/// several experiments the error names the failed one.
pub(super) fn in_turn(
    experiments: &[Experiment],
    mut work: impl FnMut(Experiment) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    if let [experiment] = experiments {
        return work(*experiment);
    }
    for (place, &experiment) in experiments.iter().enumerate() {
        let name = record::name(experiment);
        output::complain(&format!("{name}: experiment {} of {}\n", place + 1, experiments.len()));
        work(experiment).context(name)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parallel::Stopped;

    #[test]
    fn each_experiment_can_be_named_and_all_are_all_in_order() {
        let named: Vec<Experiment> = Chosen::value_variants()
            .iter()
            .filter_map(|chosen| match chosen {
                Chosen::One(experiment) => Some(*experiment),
                Chosen::All => None,
            })
            .collect();
        assert_eq!(named, Experiment::value_variants());
        let mut run = Vec::new();
        let all = Chosen::from_str("all", false).expect("a value");
        in_turn(&all.experiments(), |experiment| {
            run.push(experiment);
            Ok(())
        })
        .expect("no error");
        assert_eq!(run, named);
        assert_eq!(Chosen::from_str("saat", false).expect("a value").experiments(), [Experiment::Saat]);
    }

    #[test]
    fn an_interrupt_ends_all_and_names_the_experiment() {
        let mut run = Vec::new();
        let mut work = |experiment: Experiment| -> anyhow::Result<()> {
            run.push(experiment);
            if experiment == Experiment::Iscsi {
                return Err(Stopped::Interrupted { done: 2, of: 9 }.into());
            }
            Ok(())
        };
        let error = in_turn(&Chosen::All.experiments(), &mut work).expect_err("interrupted");
        assert!(matches!(error.downcast_ref(), Some(Stopped::Interrupted { done: 2, of: 9 })), "{error:?}");
        assert_eq!(format!("{error:#}"), "iscsi: interrupted after 2 of 9 runs");
        let alone = in_turn(&[Experiment::Iscsi], &mut work).expect_err("interrupted");
        assert_eq!(format!("{alone:#}"), "interrupted after 2 of 9 runs");
        assert_eq!(run, [Experiment::Bufferbloat, Experiment::Iscsi, Experiment::Iscsi]);
    }
}
