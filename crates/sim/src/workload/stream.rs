//! Generated requests: kinds, sizes and offsets, which depend on the seed alone.

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::units::Kind;
use evenkeel_model::Io;

use super::spec::{Pattern, Requests};
use super::zipf::{Scatter, Zipf};

/// The endless request stream of one client.
#[derive(Debug)]
pub struct Stream {
    rng: SplitMix64,
    read_percent: f64,
    /// Request sizes in bytes, each with the sum of the weights up to and including its own.
    sizes: Vec<(u32, u64)>,
    place: Place,
    offset: u64,
    span: u64,
    flush_every: u32,
    writes_since_flush: u32,
}

#[derive(Debug)]
enum Place {
    Random,
    Sequential {
        /// Per sequential stream: its next offset, in bytes from the start of the stream's part.
        cursors: Vec<u64>,
        /// Length of each stream's part, in bytes.
        part: u64,
        /// Number of the sequential stream from which the next request is taken.
        turn: usize,
    },
    Zipf {
        ranks: Zipf,
        scatter: Scatter,
        /// Size of the blocks that have ranks, in bytes: the size of the smallest request.
        block: u64,
    },
}

impl Stream {
    /// The stream of requests with this seed. A span smaller than the largest request is extended to that request's size.
    pub fn new(requests: &Requests, seed: u64) -> Self {
        let mut sum = 0;
        let mut sizes: Vec<(u32, u64)> = Vec::with_capacity(requests.sizes.len());
        for share in &requests.sizes {
            sum += u64::from(share.weight);
            sizes.push((share.bytes.max(1), sum));
        }
        if sum == 0 {
            sizes = vec![(sizes.first().map_or(4096, |&(bytes, _)| bytes), 1)];
        }
        let all = || sizes.iter().map(|&(bytes, _)| u64::from(bytes));
        let (smallest, largest) = (all().min().unwrap_or(1), all().max().unwrap_or(1));
        let span = requests.span.max(largest);
        let place = match requests.pattern {
            Pattern::Random => Place::Random,
            Pattern::Sequential { streams } => {
                // Every stream needs room for the largest request.
                let streams = u64::from(streams).clamp(1, span / largest);
                // Streams start at multiples of the largest size, so that aligned sizes stay aligned.
                Place::Sequential {
                    cursors: vec![0; streams as usize],
                    part: span / streams / largest * largest,
                    turn: 0,
                }
            }
            Pattern::Zipf { exponent } => {
                let blocks = span / smallest;
                Place::Zipf { ranks: Zipf::new(blocks, exponent), scatter: Scatter::new(blocks), block: smallest }
            }
        };
        Self {
            rng: SplitMix64::new(seed),
            read_percent: requests.read_percent,
            sizes,
            place,
            offset: requests.offset,
            span,
            flush_every: requests.flush_every,
            writes_since_flush: 0,
        }
    }

    /// Starts sequential streams at the fraction `phase` (from 0, below 1) of their parts; other requests have no start.
    pub fn start_at(&mut self, phase: f64) {
        let largest = self.sizes.iter().map(|&(bytes, _)| u64::from(bytes)).max().unwrap_or(1);
        if let Place::Sequential { cursors, part, .. } = &mut self.place {
            cursors.fill((*part as f64 * phase) as u64 / largest * largest);
        }
    }

    /// The next request.
    pub fn request(&mut self) -> Io {
        if self.flush_every > 0 && self.writes_since_flush >= self.flush_every {
            self.writes_since_flush = 0;
            return Io { kind: Kind::Flush, offset: 0, bytes: 0 };
        }
        let kind = self.kind();
        if kind == Kind::Write {
            self.writes_since_flush = self.writes_since_flush.saturating_add(1);
        }
        let bytes = self.size();
        let within = self.place(u64::from(bytes));
        Io { kind, offset: self.offset.saturating_add(within), bytes }
    }

    fn kind(&mut self) -> Kind {
        // Streams of one kind spend no draw on it.
        let read = if self.read_percent >= 100.0 {
            true
        } else {
            self.read_percent > 0.0 && self.rng.next_f64() * 100.0 < self.read_percent
        };
        if read { Kind::Read } else { Kind::Write }
    }

    fn size(&mut self) -> u32 {
        match self.sizes[..] {
            [(bytes, _)] => bytes,
            [.., (_, sum)] => {
                let draw = self.rng.next_below(sum);
                self.sizes[self.sizes.partition_point(|&(_, upto)| upto <= draw)].0
            }
            [] => 0,
        }
    }

    /// An offset for a request of `bytes` bytes, counted from the start of the device's part to which requests go.
    fn place(&mut self, bytes: u64) -> u64 {
        match &mut self.place {
            Place::Random => self.rng.next_below(self.span / bytes) * bytes,
            Place::Sequential { cursors, part, turn } => {
                let stream = *turn;
                *turn = (stream + 1) % cursors.len();
                let cursor = &mut cursors[stream];
                if *cursor + bytes > *part {
                    *cursor = 0;
                }
                let at = stream as u64 * *part + *cursor;
                *cursor += bytes;
                at
            }
            Place::Zipf { ranks, scatter, block } => {
                let at = scatter.place(ranks.draw(&mut self.rng)) * *block;
                // The hot block lies within the request, whatever its size.
                (at / bytes).min(self.span / bytes - 1) * bytes
            }
        }
    }
}
