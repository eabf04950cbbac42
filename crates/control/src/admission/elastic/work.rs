//! What a request is worth: so much for being one, so much for each byte.
//!
//! Bytes alone make a mixture of small and large requests look like an unsteady device: the throughput of an interval
//! depends on which sizes happened to come. Time spent, fitted online as `a · requests + b · bytes`, tells how the
//! device itself weighs them.

/// Blocks that the fit remembers.
const MEMORY: f64 = 1.0 - 1.0 / 128.0;
/// Weight of the present shares against one block.
const PRIOR: f64 = 4.0;

/// Weights of a request and of a byte, and the fit that will replace them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Worth of a request, in bytes.
    per_request: f64,
    /// Worth of a byte, in bytes (0 to 1).
    per_byte: f64,
    /// Decayed sums over blocks of requests n, bytes x and time t.
    blocks: f64,
    n: f64,
    x: f64,
    t: f64,
    nn: f64,
    nx: f64,
    xx: f64,
    nt: f64,
    xt: f64,
}

impl Work {
    pub(super) const fn new() -> Self {
        Self {
            per_request: 0.0,
            per_byte: 1.0,
            blocks: 0.0,
            n: 0.0,
            x: 0.0,
            t: 0.0,
            nn: 0.0,
            nx: 0.0,
            xx: 0.0,
            nt: 0.0,
            xt: 0.0,
        }
    }

    /// Worth of so many requests with so many bytes.
    #[inline]
    pub(super) fn of(&self, requests: f64, bytes: f64) -> f64 {
        self.per_request * requests + self.per_byte * bytes
    }

    /// Learns from a block.
    pub(super) fn learn(&mut self, requests: f64, bytes: f64, ns: f64) {
        self.blocks = self.blocks * MEMORY + 1.0;
        self.n = self.n * MEMORY + requests;
        self.x = self.x * MEMORY + bytes;
        self.t = self.t * MEMORY + ns;
        self.nn = self.nn * MEMORY + requests * requests;
        self.nx = self.nx * MEMORY + requests * bytes;
        self.xx = self.xx * MEMORY + bytes * bytes;
        self.nt = self.nt * MEMORY + requests * ns;
        self.xt = self.xt * MEMORY + bytes * ns;
    }

    /// Takes the fit over; what the worth of the same work has been multiplied by.
    pub(super) fn adopt(&mut self) -> f64 {
        let before = self.of(self.n, self.x);
        if self.blocks < 8.0 || self.x <= 0.0 || before <= 0.0 {
            return 1.0;
        }
        // In units of the means, so that the shares a and b of requests and bytes add up to about 1.
        let (n, x, t) = (self.n / self.blocks, self.x / self.blocks, self.t / self.blocks);
        let share = self.per_request * self.n / before;
        let (nn, nx, xx) = (self.nn / (n * n) + PRIOR, self.nx / (n * x), self.xx / (x * x) + PRIOR);
        let (nt, xt) = (self.nt / (n * t) + PRIOR * share, self.xt / (x * t) + PRIOR * (1.0 - share));
        let determinant = nn * xx - nx * nx;
        let a = ((nt * xx - xt * nx) / determinant).max(0.0);
        let b = ((xt * nn - nt * nx) / determinant).max(0.0);
        if !(a + b > 0.0 && determinant > 0.0) {
            return 1.0;
        }
        let share = a / (a + b);
        self.per_request = share * x / n;
        self.per_byte = 1.0 - share;
        self.of(self.n, self.x) / before
    }
}
