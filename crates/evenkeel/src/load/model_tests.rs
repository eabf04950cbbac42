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
            self.model.content().fill(offset / SECTOR, generation, &mut bytes);
        }
        bytes
    }

    /// Writes and completes; returns the generation.
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
