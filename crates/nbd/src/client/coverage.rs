//! A record of the bytes of a read that have arrived: a server must send each byte exactly once.

use alloc::vec::Vec;

use super::Violation;

/// The most pieces with gaps between them that have arrived of one read. Real servers send
/// pieces in order, so that one suffices; the bound limits the memory that a hostile server can use.
const MAX_PIECES: usize = 1024;

/// Bytes received so far, as sorted disjoint ranges `start..end` that do not touch.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    pieces: Vec<(u64, u64)>,
}

impl Coverage {
    /// Records that `start..end`, which is not empty, has arrived.
    ///
    /// # Errors
    /// When a byte of the range has arrived before, or when there are more than [`MAX_PIECES`] pieces.
    pub(super) fn add(&mut self, start: u64, end: u64) -> Result<(), Violation> {
        let at = self.pieces.partition_point(|piece| piece.1 < start);
        // Pieces before `at` end before `start`; the one at `at` may touch or overlap.
        let joins_left = self.pieces.get(at).is_some_and(|piece| piece.1 == start);
        let right = at + usize::from(joins_left);
        if self.pieces.get(right).is_some_and(|piece| piece.0 < end) {
            return Err(Violation::new("part of a read was sent twice", start));
        }
        let joins_right = self.pieces.get(right).is_some_and(|piece| piece.0 == end);
        match (joins_left, joins_right) {
            (true, true) => {
                self.pieces[at].1 = self.pieces[right].1;
                self.pieces.remove(right);
            }
            (true, false) => self.pieces[at].1 = end,
            (false, true) => self.pieces[right].0 = start,
            (false, false) if self.pieces.len() < MAX_PIECES => self.pieces.insert(at, (start, end)),
            (false, false) => return Err(Violation::new("a read came in too many pieces", start)),
        }
        Ok(())
    }

    /// True if exactly `start..end` has arrived.
    pub(super) fn is(&self, start: u64, end: u64) -> bool {
        self.pieces == [(start, end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_a_bitmap(ranges in proptest::collection::vec((0u64..64, 1u64..16), 1..40)) {
            let mut coverage = Coverage::default();
            let mut bitmap = [false; 80];
            for (start, len) in ranges {
                let cells = &mut bitmap[start as usize..(start + len) as usize];
                let twice = cells.contains(&true);
                prop_assert_eq!(coverage.add(start, start + len).is_err(), twice);
                if !twice {
                    cells.fill(true);
                }
            }
            let first = bitmap.iter().position(|&set| set).unwrap();
            let last = bitmap.iter().rposition(|&set| set).unwrap() + 1;
            let whole = bitmap[first..last].iter().all(|&set| set);
            prop_assert_eq!(coverage.is(first as u64, last as u64), whole);
        }
    }

    #[test]
    fn a_read_in_too_many_pieces_is_refused() {
        let mut coverage = Coverage::default();
        for i in 0..MAX_PIECES as u64 {
            coverage.add(i * 2, i * 2 + 1).unwrap();
        }
        assert!(coverage.add(1 << 40, (1 << 40) + 1).is_err());
        assert!(coverage.add(1, 2).is_ok(), "a piece that joins two others needs no memory");
    }
}
