//! The genetic algorithm of the Ceph messenger paper, as a baseline for comparison.

use alloc::vec::Vec;

use crate::rng::SplitMix64;

/// Number of chromosomes (assignments of connections to workers) in a generation (section III.B of the paper).
const CHROMOSOMES: usize = 8;
/// Number of generations of children.
const GENERATIONS: usize = 50;
/// Probability that a child gets one random connection assigned to a random worker.
const MUTATION: f64 = 0.05;
/// α of the fitness: the cost of moving all connections, as a part of the standard deviation of loads.
const ALPHA: f64 = 0.1;

/// Standard deviation of the workers' loads.
fn sigma(fixed: &[u64], loads: &[u64], assignment: &[u32], totals: &mut Vec<f64>) -> f64 {
    totals.clear();
    totals.extend(fixed.iter().map(|&load| load as f64));
    for (&load, &worker) in loads.iter().zip(assignment) {
        totals[worker as usize] += load as f64;
    }
    let workers = totals.len() as f64;
    let mean = totals.iter().sum::<f64>() / workers;
    libm::sqrt(totals.iter().map(|total| (total - mean) * (total - mean)).sum::<f64>() / workers)
}

/// Fitness of the assignment `then`, equation (5) of the paper: 1 / (σ + σ·α·n_mov/n_con), with σ the standard deviation of the
/// workers' loads, n_mov the connections that move from `now`, n_con all connections. Infinite for equal loads.
fn fitness(fixed: &[u64], loads: &[u64], now: &[u32], then: &[u32], totals: &mut Vec<f64>) -> f64 {
    let moved = now.iter().zip(then).filter(|(now, then)| now != then).count() as f64;
    let sigma = sigma(fixed, loads, then, totals);
    1.0 / (sigma + sigma * ALPHA * moved / now.len().max(1) as f64)
}

/// Searches from `assignment` and leaves the fittest assignment there; returns by how much its fitness is higher, as a fraction
/// (0 = unchanged). `fixed`: load that each worker has in any case; `loads`: load of each connection.
///
/// O(400 · (connections + workers)), with an allocation for each child.
///
/// The first chromosome is the present assignment, the others are random; in each generation four pairs are drawn by
/// roulette wheel and cut at one point. Choices where the paper leaves a case open: the best of all generations counts, and
/// chromosomes are drawn with probabilities in proportion to the fitness itself.
pub fn evolve(fixed: &[u64], loads: &[u64], assignment: &mut [u32], rng: &mut SplitMix64) -> f64 {
    let (connections, workers) = (loads.len(), fixed.len() as u64);
    if connections < 2 || workers < 2 {
        return 0.0;
    }
    let now: Vec<u32> = assignment.to_vec();
    let mut totals = Vec::new();
    let random = |rng: &mut SplitMix64| (0..connections).map(|_| rng.next_below(workers) as u32).collect::<Vec<u32>>();
    let mut generation: Vec<Vec<u32>> = core::iter::once(now.clone()).collect();
    generation.extend((1..CHROMOSOMES).map(|_| random(rng)));
    let start = fitness(fixed, loads, &now, &now, &mut totals);
    let mut best = start;
    for last in 0..=GENERATIONS {
        let fit: Vec<f64> = generation.iter().map(|then| fitness(fixed, loads, &now, then, &mut totals)).collect();
        for (then, &fit) in generation.iter().zip(&fit) {
            if fit > best {
                best = fit;
                assignment.copy_from_slice(then);
            }
        }
        if last == GENERATIONS || best.is_infinite() {
            break;
        }
        let mut children = Vec::with_capacity(CHROMOSOMES);
        while children.len() < CHROMOSOMES {
            let mut pair = [(); 2].map(|()| generation[spin(&fit, rng)].clone());
            let cut = 1 + rng.next_below(connections as u64 - 1) as usize;
            let [first, second] = &mut pair;
            first[cut..].swap_with_slice(&mut second[cut..]);
            for mut child in pair {
                if rng.next_f64() < MUTATION {
                    child[rng.next_below(connections as u64) as usize] = rng.next_below(workers) as u32;
                }
                children.push(child);
            }
        }
        generation = children;
    }
    if start.is_infinite() { 0.0 } else { best / start - 1.0 }
}

/// The roulette wheel: the index of a chromosome, each drawn with a probability in proportion to its fitness in `fit`.
fn spin(fit: &[f64], rng: &mut SplitMix64) -> usize {
    let mut point = rng.next_f64() * fit.iter().sum::<f64>();
    fit.iter()
        .position(|fit| {
            point -= fit;
            point <= 0.0
        })
        .unwrap_or(fit.len() - 1)
}
