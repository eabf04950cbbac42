use evenkeel_control::rng::SplitMix64;

use super::*;

const GRAIN: u64 = 1024;

struct Lab {
    model: Model,
}

impl Lab {
    fn new() -> Self {
        Self { model: Model::new(Content::new(1), 0, 16 * GRAIN, GRAIN) }
    }

    fn bytes(&self, offset: u64, generation: u64) -> Vec<u8> {
        let mut bytes = vec![0; GRAIN as usize];
        if generation > 0 {
            self.model.content.fill(offset / SECTOR, generation, &mut bytes);
        }
        bytes
    }

    /// Makes a write and completes it. Returns the write's generation.
    fn write(&mut self, offset: u64) -> u64 {
        let ticket = self.model.begin_write(offset, GRAIN);
        self.model.end_write(offset, GRAIN, ticket, true);
        ticket.generation
    }

    fn read(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Box<Mismatch>> {
        let issued = self.model.begin_read(offset, GRAIN);
        self.model.end_read(offset, GRAIN, issued, Some(bytes))
    }
}

#[test]
fn a_block_at_rest_holds_the_last_write_and_nothing_else() {
    let mut lab = Lab::new();
    lab.read(0, &[9; GRAIN as usize]).expect("nothing is known before the first write");
    let first = lab.write(0);
    let second = lab.write(0);
    lab.read(0, &lab.bytes(0, second)).unwrap();
    let stale = lab.read(0, &lab.bytes(0, first)).unwrap_err();
    assert_eq!((stale.offset, stale.got), (0, Found::Write { sector: 0, generation: first }));
    let misplaced = lab.read(0, &lab.bytes(GRAIN, second)).unwrap_err();
    assert_eq!(misplaced.got, Found::Write { sector: 2, generation: second });
    assert_eq!(lab.read(0, &[0; GRAIN as usize]).unwrap_err().got, Found::Zeroes);
    assert!(lab.model.busy.is_empty(), "nothing is in flight");
}

#[test]
fn a_write_in_flight_may_be_seen_or_not_word_by_word() {
    let mut lab = Lab::new();
    let old = lab.write(0);
    let ticket = lab.model.begin_write(0, GRAIN);
    let (before, after) = (lab.bytes(0, old), lab.bytes(0, ticket.generation));
    lab.read(0, &before).unwrap();
    lab.read(0, &after).unwrap();
    let mut torn = before.clone();
    torn[..96].copy_from_slice(&after[..96]);
    lab.read(0, &torn).unwrap();
    torn[97] ^= 1;
    assert_eq!(lab.read(0, &torn).unwrap_err().offset, 0);
    lab.model.end_write(0, GRAIN, ticket, true);
    lab.read(0, &before).unwrap_err();
    lab.read(0, &after).unwrap();
}

#[test]
fn a_read_may_see_what_was_there_when_it_was_sent() {
    let mut lab = Lab::new();
    let old = lab.write(0);
    let issued = lab.model.begin_read(0, GRAIN);
    lab.write(0);
    let newest = lab.write(0);
    let late = lab.model.begin_read(0, GRAIN);
    lab.model.end_read(0, GRAIN, issued, Some(&lab.bytes(0, old))).expect("sent before the later writes");
    lab.model.end_read(0, GRAIN, late, Some(&lab.bytes(0, old))).expect_err("sent after them");
    assert!(lab.model.busy.is_empty());
    lab.read(0, &lab.bytes(0, newest)).unwrap();
}

#[test]
fn overlapping_writes_land_in_either_order_until_the_next_write() {
    let mut lab = Lab::new();
    lab.write(0);
    let a = lab.model.begin_write(0, GRAIN);
    let b = lab.model.begin_write(0, GRAIN);
    lab.model.end_write(0, GRAIN, b, true);
    lab.model.end_write(0, GRAIN, a, true);
    lab.read(0, &lab.bytes(0, a.generation)).unwrap();
    lab.read(0, &lab.bytes(0, b.generation)).unwrap();
    let mut floors = Vec::new();
    lab.model.floors(0, GRAIN, &mut floors);
    assert_eq!(floors, [Floor { offset: 0, length: GRAIN, generation: a.generation }]);
    let last = lab.write(0);
    lab.read(0, &lab.bytes(0, a.generation)).unwrap_err();
    lab.read(0, &lab.bytes(0, last)).unwrap();
}

#[test]
fn a_failed_write_may_have_landed_and_rules_out_nothing() {
    let mut lab = Lab::new();
    let old = lab.write(0);
    let failed = lab.model.begin_write(0, GRAIN);
    lab.model.end_write(0, GRAIN, failed, false);
    lab.read(0, &lab.bytes(0, old)).unwrap();
    lab.read(0, &lab.bytes(0, failed.generation)).unwrap();
    lab.read(0, &[0; GRAIN as usize]).unwrap_err();
}

#[test]
fn zeroes_read_as_zeroes_and_trimmed_blocks_as_anything() {
    let mut lab = Lab::new();
    let old = lab.write(0);
    let ticket = lab.model.begin_discard(0, GRAIN, Holds::Zeroes);
    lab.model.end_write(0, GRAIN, ticket, true);
    lab.read(0, &[0; GRAIN as usize]).unwrap();
    lab.read(0, &lab.bytes(0, old)).unwrap_err();
    let ticket = lab.model.begin_discard(0, GRAIN, Holds::Unknown);
    lab.model.end_write(0, GRAIN, ticket, true);
    lab.read(0, &lab.bytes(0, old)).unwrap();
}

#[test]
fn after_a_power_cut_later_writes_are_as_good_as_the_recorded_one() {
    let mut lab = Lab::new();
    lab.model.set(0, GRAIN, Holds::AtLeast(5));
    lab.read(0, &lab.bytes(0, 5)).unwrap();
    lab.read(0, &lab.bytes(0, 8)).unwrap();
    lab.read(0, &lab.bytes(0, 4)).unwrap_err();
    let mut torn = lab.bytes(0, 5);
    torn[600..700].fill(0);
    assert_eq!(lab.read(0, &torn).unwrap_err().got, Found::Torn { sector: 1, generation: 5 });
}

#[test]
fn many_failed_writes_need_bounded_memory() {
    let mut lab = Lab::new();
    for _ in 0..10 * MAX_CANDIDATES {
        let ticket = lab.model.begin_write(0, GRAIN);
        lab.model.end_write(0, GRAIN, ticket, false);
        assert!(lab.model.busy.get(&0).is_none_or(|busy| busy.versions.len() <= MAX_CANDIDATES + 1));
    }
    let good = lab.write(0);
    lab.read(0, &[0; GRAIN as usize]).unwrap_err();
    lab.read(0, &lab.bytes(0, good)).unwrap();
}

#[test]
fn floors_join_neighbours_and_leave_out_the_unknown() {
    let mut lab = Lab::new();
    let wide = lab.model.begin_write(GRAIN, 3 * GRAIN);
    lab.model.end_write(GRAIN, 3 * GRAIN, wide, true);
    let narrow = lab.write(4 * GRAIN);
    let mut floors = Vec::new();
    lab.model.floors(0, 6 * GRAIN, &mut floors);
    assert_eq!(
        floors,
        [
            Floor { offset: GRAIN, length: 3 * GRAIN, generation: wide.generation },
            Floor { offset: 4 * GRAIN, length: GRAIN, generation: narrow },
        ]
    );
}

/// A simulated store. It applies each write at a random time between the write's sending and its answer, half a grain at a time,
/// and keeps applied writes in a cache until a flush.
struct Store {
    lab: Lab,
    rng: SplitMix64,
    cache: Vec<u8>,
    flushed: Vec<u8>,
    flying: Vec<Flying>,
    /// Writes completed since the last flush was sent.
    completed: Vec<u64>,
    guaranteed: Vec<Floor>,
}

enum Flying {
    Write { at: u64, ticket: Ticket, data: Vec<u8>, halves: Vec<usize> },
    Read { at: u64, issued: u64, data: Vec<u8>, halves: Vec<usize> },
    Flush { floors: Vec<Floor>, is_applied: bool },
}

impl Store {
    fn new(seed: u64) -> Self {
        let size = (4 * GRAIN) as usize;
        Self {
            lab: Lab { model: Model::new(Content::new(1), 0, 4 * GRAIN, GRAIN) },
            rng: SplitMix64::new(seed),
            cache: vec![0xee; size],
            flushed: vec![0xee; size],
            flying: Vec::new(),
            completed: Vec::new(),
            guaranteed: Vec::new(),
        }
    }

    /// A store after some hundred random steps without a false alarm.
    fn used(seed: u64) -> Self {
        let mut store = Self::new(seed);
        for _ in 0..400 {
            if store.flying.len() < 6 && store.below(3) == 0 {
                store.send();
            }
            store.step().unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
        }
        store
    }

    fn below(&mut self, n: usize) -> usize {
        (self.rng.next_u64() % n as u64) as usize
    }

    fn send(&mut self) {
        let at = self.below(4) as u64 * GRAIN;
        let kind = self.below(5);
        let model = &mut self.lab.model;
        self.flying.push(match kind {
            0 | 1 => {
                let ticket = model.begin_write(at, GRAIN);
                let data = self.lab.bytes(at, ticket.generation);
                Flying::Write { at, ticket, data, halves: vec![0, 1] }
            }
            2 | 3 => {
                let issued = model.begin_read(at, GRAIN);
                Flying::Read { at, issued, data: vec![0; GRAIN as usize], halves: vec![1, 0] }
            }
            _ => {
                let mut floors = Vec::new();
                for at in std::mem::take(&mut self.completed) {
                    model.floors(at, GRAIN, &mut floors);
                }
                Flying::Flush { floors, is_applied: false }
            }
        });
    }

    /// Advances or answers a random request in flight; an error is a false alarm of the model.
    fn step(&mut self) -> Result<(), Box<Mismatch>> {
        if self.flying.is_empty() {
            return Ok(());
        }
        let half = GRAIN as usize / 2;
        let index = self.below(self.flying.len());
        match &mut self.flying[index] {
            Flying::Write { at, data, halves, .. } if !halves.is_empty() => {
                let start = halves.pop().unwrap_or(0) * half;
                let to = *at as usize + start;
                self.cache[to..to + half].copy_from_slice(&data[start..start + half]);
                return Ok(());
            }
            Flying::Read { at, data, halves, .. } if !halves.is_empty() => {
                let start = halves.pop().unwrap_or(0) * half;
                let from = *at as usize + start;
                data[start..start + half].copy_from_slice(&self.cache[from..from + half]);
                return Ok(());
            }
            Flying::Flush { is_applied, .. } if !*is_applied => {
                *is_applied = true;
                self.flushed.copy_from_slice(&self.cache);
                return Ok(());
            }
            _ => {}
        }
        match self.flying.swap_remove(index) {
            Flying::Write { at, ticket, .. } => {
                self.lab.model.end_write(at, GRAIN, ticket, true);
                self.completed.push(at);
            }
            Flying::Read { at, issued, data, .. } => {
                self.lab.model.end_read(at, GRAIN, issued, Some(&data))?;
            }
            Flying::Flush { floors, .. } => self.guaranteed.extend(floors),
        }
        Ok(())
    }

    /// The store's image after a power cut: each sector has, at random, the flushed or the cached content.
    fn power_cut(&mut self) -> Vec<u8> {
        let sector = SECTOR as usize;
        let mut image = self.flushed.clone();
        for start in (0..image.len()).step_by(sector) {
            if self.below(2) == 0 {
                image[start..start + sector].copy_from_slice(&self.cache[start..start + sector]);
            }
        }
        image
    }
}

/// Checks an image against guaranteed generations, as `--check-journal` does.
fn check_guarantees(guaranteed: &[Floor], image: &[u8]) -> Result<(), Box<Mismatch>> {
    let mut lab = Lab { model: Model::new(Content::new(1), 0, 4 * GRAIN, GRAIN) };
    for floor in guaranteed {
        for at in (floor.offset..floor.offset + floor.length).step_by(GRAIN as usize) {
            let before = match lab.model.at_rest(at) {
                Some(Holds::AtLeast(generation)) => generation,
                _ => 0,
            };
            lab.model.set(at, GRAIN, Holds::AtLeast(before.max(floor.generation)));
        }
    }
    for (at, bytes) in (0..).step_by(GRAIN as usize).zip(image.chunks_exact(GRAIN as usize)) {
        lab.read(at, bytes)?;
    }
    Ok(())
}

#[test]
fn a_sound_store_never_raises_an_alarm_and_keeps_its_guarantees() {
    let mut guarantees = 0;
    for seed in 0..300 {
        let mut store = Store::used(seed);
        let image = store.power_cut();
        check_guarantees(&store.guaranteed, &image).unwrap_or_else(|mismatch| panic!("seed {seed}: {mismatch}"));
        guarantees += store.guaranteed.len();
    }
    assert!(guarantees > 1000, "{guarantees} guarantees were put to the test");
}

#[test]
fn a_store_that_flushes_nothing_breaks_its_guarantees() {
    let caught = (0..100).filter(|&seed| {
        let mut store = Store::used(seed);
        store.flushed.fill(0xee);
        let image = store.power_cut();
        !store.guaranteed.is_empty() && check_guarantees(&store.guaranteed, &image).is_err()
    });
    assert!(caught.count() > 90);
}
