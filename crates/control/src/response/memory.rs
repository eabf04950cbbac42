//! Which delay held these offenders before?

use alloc::vec::Vec;

use super::ClientId;

/// Sets that are remembered: as many as a resource's clients come in, with room. The one used longest ago is forgotten.
const SETS: usize = 16;
/// Sets that share at least this part of their union count as alike.
const ALIKE: f64 = 0.5;

/// Sets of offenders, each in order, with the mean delay that held them, in ms; the one used last comes last.
#[derive(Debug, Default)]
pub(super) struct Memory(Vec<(Vec<ClientId>, f64)>);

impl Memory {
    /// Notes what held this set.
    pub(super) fn store(&mut self, offenders: &[ClientId], delay_ms: f64) {
        if offenders.is_empty() {
            return;
        }
        let mut set = match self.0.iter().position(|(known, _)| known == offenders) {
            Some(place) => self.0.remove(place).0,
            None if self.0.len() >= SETS => self.0.remove(0).0,
            None => Vec::new(),
        };
        set.clear();
        set.extend_from_slice(offenders);
        self.0.push((set, delay_ms));
    }

    /// What held this set, or else the one most like it, or else the longest that held a set which all of these belong to:
    /// those who came together will come together. Also whether it is this very set.
    pub(super) fn find(&self, offenders: &[ClientId]) -> Option<(f64, bool)> {
        let mut best: Option<(f64, f64)> = None;
        let mut whole: Option<f64> = None;
        for (known, delay_ms) in self.0.iter().rev() {
            if known == offenders {
                return Some((*delay_ms, true));
            }
            let common = known.iter().filter(|client| offenders.binary_search(client).is_ok()).count();
            if common == offenders.len() && common > 0 {
                whole = Some(whole.map_or(*delay_ms, |longest| longest.max(*delay_ms)));
            }
            let alike = common as f64 / (known.len() + offenders.len() - common).max(1) as f64;
            if alike >= ALIKE && best.is_none_or(|(most, _)| alike > most) {
                best = Some((alike, *delay_ms));
            }
        }
        best.map(|(_, delay_ms)| delay_ms).or(whole).map(|delay_ms| (delay_ms, false))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[u64]) -> Vec<ClientId> {
        ids.iter().copied().map(ClientId).collect()
    }

    #[test]
    fn a_set_is_found_by_itself_or_by_its_like() {
        let mut memory = Memory::default();
        memory.store(&set(&[1, 2, 3]), 5.0);
        memory.store(&set(&[7]), 1.0);
        assert_eq!(memory.find(&set(&[1, 2, 3])), Some((5.0, true)));
        assert_eq!(memory.find(&set(&[1, 2])), Some((5.0, false)));
        assert_eq!(memory.find(&set(&[1])), Some((5.0, false)), "the first of three");
        assert_eq!(memory.find(&set(&[1, 8, 9])), None, "a fifth is not alike");
        memory.store(&set(&[1, 2, 3]), 6.0);
        assert_eq!(memory.find(&set(&[1, 2, 3])), Some((6.0, true)));
        memory.store(&[], 9.0);
        assert_eq!(memory.find(&[]), None);
    }

    #[test]
    fn what_was_used_longest_ago_is_forgotten() {
        let mut memory = Memory::default();
        for id in 0..SETS as u64 + 1 {
            memory.store(&set(&[id]), id as f64);
        }
        assert_eq!(memory.find(&set(&[0])), None);
        assert_eq!(memory.find(&set(&[1])), Some((1.0, true)));
        assert_eq!(memory.0.len(), SETS);
    }
}
