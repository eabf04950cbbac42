//! Runs of an experiment, grouped by key.

use std::collections::BTreeMap;

use super::{Digest, Execute};
use crate::world::Setup;

/// Runs to be made, each under a key; runs under one key differ in their seeds.
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

    /// Makes all runs. Returns the digests of each key's runs, in the order in which the runs were added.
    pub(super) fn execute<E>(self, name: &str, execute: &mut Execute<'_, E>) -> Result<BTreeMap<K, Vec<Digest>>, E> {
        let digests = execute(name, &self.runs)?;
        let mut collected: BTreeMap<K, Vec<Digest>> = BTreeMap::new();
        for (key, digest) in self.keys.into_iter().zip(digests) {
            collected.entry(key).or_default().push(digest);
        }
        Ok(collected)
    }
}
