//! What requests cost in time, learned from blocks of completions.
//!
//! Where sizes differ, bytes per second scatter by which sizes happened to come, and that has nothing to do with the
//! budget. Work per second does not: a request counts for the time it takes, by its kind and size.

/// Requests and bytes, read and written.
pub(super) const FEATURES: usize = 4;
/// Place of the length of a block beside them.
const LENGTH: usize = FEATURES;
const PLACES: usize = FEATURES + 1;
/// Keeps weights apart that the load does not tell apart, as a fraction of the mean square.
const RIDGE: f64 = 1e-3;

/// What each request and each byte counts.
pub(super) type Weights = [f64; FEATURES];

/// Bytes.
pub(super) const BYTES: Weights = [0.0, 0.0, 1.0, 1.0];
/// Requests.
pub(super) const REQUESTS: Weights = [1.0, 1.0, 0.0, 0.0];

/// A block of completions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Block([f64; PLACES]);

impl Block {
    pub(super) const ZERO: Self = Self([0.0; PLACES]);

    #[inline]
    pub(super) fn add(&mut self, write: bool, bytes: f64) {
        let kind = usize::from(write);
        self.0[kind] += 1.0;
        self.0[2 + kind] += bytes;
    }

    pub(super) fn set_length(&mut self, ns: f64) {
        self.0[LENGTH] = ns;
    }
}

/// Sums over blocks, of what they hold and of its products.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    blocks: f64,
    sums: [f64; PLACES],
    products: [[f64; PLACES]; PLACES],
}

impl Moments {
    pub(super) const ZERO: Self = Self { blocks: 0.0, sums: [0.0; PLACES], products: [[0.0; PLACES]; PLACES] };

    pub(super) fn add(&mut self, block: &Block) {
        self.blocks += 1.0;
        for (i, &x) in block.0.iter().enumerate() {
            self.sums[i] += x;
            for (j, &y) in block.0.iter().enumerate() {
                self.products[i][j] += x * y;
            }
        }
    }

    /// Leaves `keep` of everything.
    pub(super) fn fade(&mut self, keep: f64) {
        self.blocks *= keep;
        self.sums.iter_mut().for_each(|sum| *sum *= keep);
        self.products.iter_mut().flatten().for_each(|product| *product *= keep);
    }

    /// Share of the requests that write.
    pub(super) fn writes(&self) -> f64 {
        self.sums[1] / dot(&REQUESTS, &self.sums).max(1.0)
    }

    /// The amount per nanosecond.
    pub(super) fn mean(&self, weights: &Weights) -> Option<f64> {
        (self.sums[LENGTH] > 0.0).then(|| dot(weights, &self.sums) / self.sums[LENGTH])
    }

    /// The amount per nanosecond, a ratio estimate, and the relative variance of one block of it.
    pub(super) fn ratio(&self, weights: &Weights) -> Option<(f64, f64)> {
        let (amount, length) = (dot(weights, &self.sums), self.sums[LENGTH]);
        if self.blocks < 2.0 || length <= 0.0 || amount <= 0.0 {
            return None;
        }
        let rate = amount / length;
        let squares: f64 = weights.iter().zip(&self.products).map(|(weight, row)| weight * dot(weights, row)).sum();
        let mixed = dot(weights, &self.products[LENGTH]);
        let scatter = (squares - 2.0 * rate * mixed + rate * rate * self.products[LENGTH][LENGTH]).max(0.0);
        Some((rate, scatter * self.blocks * self.blocks / ((self.blocks - 1.0) * amount * amount)))
    }

    /// The time that each request and each byte takes: least squares over the blocks.
    pub(super) fn weights(&self) -> Option<Weights> {
        // In units of each one's root mean square, so that the ridge weighs all alike.
        let scale = |i: usize| libm::sqrt(self.products[i][i]);
        let mut rows = [[0.0; PLACES]; FEATURES];
        for (i, row) in rows.iter_mut().enumerate() {
            for (j, cell) in row.iter_mut().enumerate() {
                let scales = scale(i) * scale(j);
                *cell = if scales > 0.0 { self.products[i][j] / scales } else { 0.0 };
            }
            row[i] += RIDGE;
        }
        // Positive definite by the ridge: no pivoting.
        for i in 0..FEATURES {
            let above = rows[i];
            for row in &mut rows[i + 1..] {
                let factor = row[i] / above[i];
                row.iter_mut().zip(&above).for_each(|(cell, upper)| *cell -= factor * upper);
            }
        }
        let mut weights = [0.0; FEATURES];
        for i in (0..FEATURES).rev() {
            let known: f64 = (i + 1..FEATURES).map(|j| rows[i][j] * weights[j]).sum();
            weights[i] = (rows[i][LENGTH] - known) / rows[i][i];
        }
        for (i, weight) in weights.iter_mut().enumerate() {
            *weight = if scale(i) > 0.0 { weight.max(0.0) * scale(LENGTH) / scale(i) } else { 0.0 };
        }
        weights.iter().any(|&weight| weight > 0.0).then_some(weights)
    }
}

fn dot(weights: &Weights, values: &[f64; PLACES]) -> f64 {
    weights.iter().zip(values).map(|(weight, value)| weight * value).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::SplitMix64;

    fn block(rng: &mut SplitMix64, requests: u32, ns: impl Fn(bool, f64) -> f64, writes: bool) -> Block {
        let (mut block, mut length) = (Block::ZERO, 0.0);
        for _ in 0..requests {
            let write = writes && rng.next_f64() < 0.3;
            let bytes = [4_096.0, 65_536.0, 1_048_576.0][(rng.next_f64() * rng.next_f64() * 3.0) as usize];
            block.add(write, bytes);
            length += ns(write, bytes);
        }
        block.set_length(length);
        block
    }

    fn moments(seed: u64, ns: impl Fn(bool, f64) -> f64 + Copy, writes: bool) -> Moments {
        let (mut rng, mut moments) = (SplitMix64::new(seed), Moments::ZERO);
        (0..200).for_each(|_| moments.add(&block(&mut rng, 16, ns, writes)));
        moments
    }

    #[test]
    fn learns_what_requests_and_bytes_take_and_work_then_hardly_scatters() {
        let ns = |write: bool, bytes: f64| if write { 40_000.0 + 3.0 * bytes } else { 90_000.0 + bytes };
        let moments = moments(1, ns, true);
        let weights = moments.weights().expect("there is load");
        for (learnt, true_one) in weights.iter().zip([90_000.0, 40_000.0, 1.0, 3.0]) {
            assert!((learnt / true_one - 1.0).abs() < 0.1, "{weights:?}");
        }
        let scatter = |weights| moments.ratio(weights).expect("blocks").1;
        assert!(scatter(&weights) < 0.01 * scatter(&BYTES), "{} {}", scatter(&weights), scatter(&BYTES));
    }

    #[test]
    fn what_the_load_does_not_contain_counts_nothing_and_what_it_does_not_tell_apart_shares() {
        let moments = moments(2, |_, bytes| 10_000.0 + bytes, false);
        let weights = moments.weights().expect("there is load");
        assert_eq!((weights[1], weights[3]), (0.0, 0.0));
        let mut same_size = Moments::ZERO;
        for n in 1..50_u32 {
            let mut block = Block::ZERO;
            (0..n).for_each(|_| block.add(false, 4_096.0));
            block.set_length(f64::from(n) * 100.0);
            same_size.add(&block);
        }
        let weights = same_size.weights().expect("there is load");
        let each = weights[0] + weights[2] * 4_096.0;
        assert!((each / 100.0 - 1.0).abs() < 0.01, "{each}");
    }

    #[test]
    fn no_blocks_say_nothing() {
        assert_eq!(Moments::ZERO.weights(), None);
        assert_eq!(Moments::ZERO.ratio(&BYTES), None);
        assert_eq!(Moments::ZERO.mean(&BYTES), None);
    }
}
