//! Many runs, collected by what they are for.

use std::collections::BTreeMap;

use evenkeel_control::admission::Config;

use super::oracle::{self, Oracle, Search};
use super::{Digest, Execute};
use crate::world::Setup;

/// Runs to be made, each under a key; several under one key are told apart by their seeds.
pub(super) struct Batch<K> {
    keys: Vec<K>,
    runs: Vec<(Setup, u64)>,
}

impl<K: Ord + Clone> Batch<K> {
    pub(super) fn new() -> Self {
        Self { keys: Vec::new(), runs: Vec::new() }
    }

    pub(super) fn add(&mut self, key: &K, setup: &Setup, seeds: &[u64]) {
        for &seed in seeds {
            self.keys.push(key.clone());
            self.runs.push((setup.clone(), seed));
        }
    }

    /// The digests of each key, in the order of their seeds.
    pub(super) fn execute<E>(self, name: &str, execute: &mut Execute<'_, E>) -> Result<BTreeMap<K, Vec<Digest>>, E> {
        let digests = execute(name, &self.runs)?;
        let mut collected: BTreeMap<K, Vec<Digest>> = BTreeMap::new();
        for (key, digest) in self.keys.into_iter().zip(digests) {
            collected.entry(key).or_default().push(digest);
        }
        Ok(collected)
    }
}

/// The setup with this admission.
pub(super) fn with(setup: &Setup, admission: Config) -> Setup {
    let mut setup = setup.clone();
    setup.pool.admission = admission;
    setup
}

/// The oracles of all setups, each with the seeds of its runs; each round of the searches is one batch.
pub(super) fn oracles<E>(
    name: &str,
    setups: &[(Setup, &[u64])],
    execute: &mut Execute<'_, E>,
) -> Result<Vec<Oracle>, E> {
    let mut searches: Vec<Search> = setups.iter().map(|(setup, _)| Search::new(setup.pool.base_cost_bytes)).collect();
    loop {
        let mut batch = Batch::new();
        for (place, (search, (setup, seeds))) in searches.iter().zip(setups).enumerate() {
            for (question, &config) in search.wants().iter().enumerate() {
                batch.add(&(place, question), &with(setup, config), seeds);
            }
        }
        let mut answers: BTreeMap<usize, Vec<(f64, bool)>> = BTreeMap::new();
        for ((place, _), digests) in batch.execute(name, execute)? {
            answers.entry(place).or_default().push(oracle::gave(&digests));
        }
        if answers.is_empty() {
            return Ok(searches.iter().filter_map(Search::found).collect());
        }
        for (place, gave) in answers {
            searches[place].learn(&gave);
        }
    }
}
