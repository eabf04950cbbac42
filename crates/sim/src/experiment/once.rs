//! Runs that are made once, however often an experiment asks for them.

use super::Execute;

/// Makes `runs`, each of them once: equal runs share an outcome, and those among `known_runs` have the outcome in `known`, in the
/// same order. Returns the outcomes in the order of `runs`.
pub(super) fn once<S: Clone + PartialEq, O: Clone, E>(
    name: &str,
    runs: &[(S, u64)],
    known_runs: &[(S, u64)],
    known: &[O],
    execute: &mut Execute<'_, E, S, O>,
) -> Result<Vec<O>, E> {
    enum Place {
        Known(usize),
        New(usize),
    }
    let mut new: Vec<(S, u64)> = Vec::new();
    let mut uses: Vec<usize> = Vec::new();
    let mut places: Vec<Place> = Vec::with_capacity(runs.len());
    for run in runs {
        let equals = |other: &(S, u64)| other.1 == run.1 && other.0 == run.0;
        if let Some(place) = known_runs.iter().position(equals) {
            places.push(Place::Known(place));
            continue;
        }
        let place = new.iter().position(equals).unwrap_or(new.len());
        if place == new.len() {
            new.push(run.clone());
            uses.push(0);
        }
        uses[place] += 1;
        places.push(Place::New(place));
    }
    let mut made: Vec<Option<O>> = execute(name, &new)?.into_iter().map(Some).collect();
    assert_eq!((known.len(), made.len()), (known_runs.len(), new.len()), "{name}: an outcome for each run");
    let mut outcome = |place: Place| match place {
        Place::Known(place) => known.get(place).cloned(),
        Place::New(place) => {
            uses[place] -= 1;
            // Outcomes may be large: the last run that needs it gets the original.
            let slot = made.get_mut(place)?;
            if uses[place] == 0 { slot.take() } else { slot.clone() }
        }
    };
    Ok(places.into_iter().filter_map(&mut outcome).collect())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn equal_and_known_runs_are_made_once_and_outcomes_keep_their_order() {
        let mut made = Vec::new();
        let runs = [("a", 1), ("b", 1), ("a", 1), ("a", 2), ("known", 1), ("known", 2), ("b", 1)];
        let outcomes = once("runs", &runs, &[("other", 1), ("known", 1)], &[0, 7], &mut |name, runs| {
            assert_eq!(name, "runs");
            made.extend(runs.iter().copied());
            Ok::<_, Infallible>((100..).take(runs.len()).collect())
        });
        assert_eq!(outcomes, Ok(vec![100, 101, 100, 102, 7, 103, 101]));
        assert_eq!(made, [("a", 1), ("b", 1), ("a", 2), ("known", 2)]);
    }

    #[test]
    fn an_error_is_that_of_the_runs() {
        let failed = once::<u8, u8, &str>("runs", &[(1, 1)], &[], &[], &mut |_, _| Err("no"));
        assert_eq!(failed, Err("no"));
    }
}
