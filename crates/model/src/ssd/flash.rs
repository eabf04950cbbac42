//! Dies on channels: the order of their reads, programs and erases.

use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec::Vec;
use core::cmp::Reverse;

use evenkeel_control::rng::SplitMix64;
use evenkeel_control::{Duration, Instant};

use super::params::SsdParams;

/// Reads in a row after which a die does waiting chores before further reads; otherwise reads could delay writes for ever.
const READS_IN_A_ROW: u32 = 16;

/// Work of a die other than reads for the host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Chore {
    /// Programs one unit of the host's data; `fast`: with one bit per cell.
    Program { fast: bool },
    /// Garbage collection: reads one program unit of valid data and programs it elsewhere.
    Move,
    /// Erases a block.
    Erase,
}

/// The read of one page for a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) request: u32,
    /// Bytes of the page that the request asks for.
    pub(super) bytes: u32,
}

/// The result of an event of the flash for the requests of the host.
#[derive(Clone, Copy, Debug)]
pub(super) enum Done {
    /// A page has been read and has crossed its channel.
    Read(Piece),
    /// A program unit of the host's data is in the flash.
    Programmed,
    /// The event concerns no request.
    Nothing,
}

#[derive(Clone, Copy, Debug)]
enum Doing {
    Read(Piece),
    Chore(Chore),
    /// Interrupts a chore, so that the die can read.
    Suspend,
}

#[derive(Default)]
struct Die {
    reads: VecDeque<Piece>,
    chores: VecDeque<Chore>,
    /// The present work, with its end; `None` = idle.
    doing: Option<(Instant, Doing)>,
    /// The interrupted chore, with the time that it still takes.
    suspended: Option<(Duration, Chore)>,
    reads_in_a_row: u32,
    /// Bytes programmed since the die's last erase.
    programmed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The present work of the die with this number ends.
    Die(u32),
    /// A page has been read and has crossed the channel.
    Page { request: u32, bytes: u32 },
}

/// All dies and channels of a drive.
pub(super) struct Flash {
    dies: Vec<Die>,
    channels_free_at: Vec<Instant>,
    /// Events by time, simultaneous ones in the order in which they were scheduled. A die's event is void if the die's present
    /// work has another end.
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    scheduled: u64,
    next_die: usize,
}

impl Flash {
    pub(super) fn new(params: &SsdParams) -> Self {
        let geometry = &params.geometry;
        Self {
            // Erases of different dies do not fall together.
            dies: (0..geometry.dies)
                .map(|die| Die {
                    programmed: geometry.block_bytes * u64::from(die) / u64::from(geometry.dies),
                    ..Die::default()
                })
                .collect(),
            channels_free_at: (0..geometry.channels).map(|_| Instant::ZERO).collect(),
            events: BinaryHeap::new(),
            scheduled: 0,
            next_die: 0,
        }
    }

    pub(super) fn next_event(&self) -> Instant {
        self.events.peek().map_or(Instant::FAR_FUTURE, |&Reverse((at, ..))| at)
    }

    /// True if no event is scheduled.
    pub(super) fn is_idle(&self) -> bool {
        self.events.is_empty()
    }

    /// Reads part of page `place`, counted over all dies; the page is on die `place` modulo the number of dies.
    pub(super) fn read(&mut self, at: Instant, place: u64, piece: Piece, params: &SsdParams, rng: &mut SplitMix64) {
        let index = (place % self.dies.len() as u64) as usize;
        let die = &mut self.dies[index];
        die.reads.push_back(piece);
        match die.doing {
            None => self.start(at, index, params, rng),
            Some((ends, Doing::Chore(chore))) => {
                let latency = params.suspend_latency;
                let worth = latency > Duration::ZERO && ends.since(at) > latency;
                if worth && die.reads_in_a_row < READS_IN_A_ROW {
                    die.suspended = Some((ends.since(at), chore));
                    self.begin(index, at + latency, Doing::Suspend);
                }
            }
            Some(_) => {}
        }
    }

    /// Gives a program or a move to the next die in turn, and an erase as well whenever a block of the die is full.
    pub(super) fn chore(&mut self, at: Instant, chore: Chore, params: &SsdParams, rng: &mut SplitMix64) {
        let index = self.next_die;
        self.next_die = (index + 1) % self.dies.len();
        let die = &mut self.dies[index];
        die.chores.push_back(chore);
        die.programmed += u64::from(params.geometry.program_bytes);
        if die.programmed >= params.geometry.block_bytes {
            die.programmed -= params.geometry.block_bytes;
            die.chores.push_back(Chore::Erase);
        }
        if die.doing.is_none() {
            self.start(at, index, params, rng);
        }
    }

    /// Handles the earliest event and returns its result.
    pub(super) fn step(&mut self, params: &SsdParams, rng: &mut SplitMix64) -> Done {
        let Some(Reverse((at, _, event))) = self.events.pop() else { return Done::Nothing };
        let index = match event {
            Event::Page { request, bytes } => return Done::Read(Piece { request, bytes }),
            Event::Die(index) => index as usize,
        };
        let die = &mut self.dies[index];
        let Some((_, doing)) = die.doing.take_if(|&mut (ends, _)| ends == at) else { return Done::Nothing };
        let done = match doing {
            Doing::Read(piece) => {
                let through = self.send(at, index, piece.bytes, params);
                self.schedule(through, Event::Page { request: piece.request, bytes: piece.bytes });
                Done::Nothing
            }
            Doing::Suspend => Done::Nothing,
            Doing::Chore(chore) => {
                die.reads_in_a_row = 0;
                if matches!(chore, Chore::Program { .. }) { Done::Programmed } else { Done::Nothing }
            }
        };
        self.start(at, index, params, rng);
        done
    }

    /// Begins the next work of an idle die: a read, or a chore if no read waits or [`READS_IN_A_ROW`] reads came before it.
    fn start(&mut self, at: Instant, index: usize, params: &SsdParams, rng: &mut SplitMix64) {
        let die = &mut self.dies[index];
        let chores = die.suspended.is_some() || !die.chores.is_empty();
        if !chores {
            die.reads_in_a_row = 0;
        }
        if (!chores || die.reads_in_a_row < READS_IN_A_ROW)
            && let Some(piece) = die.reads.pop_front()
        {
            die.reads_in_a_row += 1;
            let ends = at + params.jitter.apply(params.page_read_time, rng);
            return self.begin(index, ends, Doing::Read(piece));
        }
        if let Some((left, chore)) = die.suspended.take() {
            return self.begin(index, at + left, Doing::Chore(chore));
        }
        let Some(chore) = die.chores.pop_front() else { return };
        let bytes = params.geometry.program_bytes;
        let ends = match chore {
            Chore::Program { fast } => {
                let time = if fast { params.slc_program_time } else { params.program_time };
                self.send(at, index, bytes, params) + params.jitter.apply(time, rng)
            }
            Chore::Move => {
                let pages = u64::from(bytes.div_ceil(params.geometry.page_bytes));
                let read = Duration::from_nanos(params.page_read_time.as_nanos() * pages);
                // There and back over the channel.
                let through = self.send(at, index, bytes.saturating_mul(2), params);
                through + read + params.jitter.apply(params.program_time, rng)
            }
            Chore::Erase => at + params.jitter.apply(params.erase_time, rng),
        };
        self.begin(index, ends, Doing::Chore(chore));
    }

    /// Sends `bytes` over the die's channel, first come, first served; returns when they have crossed it.
    fn send(&mut self, at: Instant, die: usize, bytes: u32, params: &SsdParams) -> Instant {
        let channels = self.channels_free_at.len();
        let free_at = &mut self.channels_free_at[die % channels];
        *free_at = at.max(*free_at) + params.channel_time(bytes.into());
        *free_at
    }

    fn begin(&mut self, index: usize, ends: Instant, doing: Doing) {
        self.dies[index].doing = Some((ends, doing));
        self.schedule(ends, Event::Die(index as u32));
    }

    fn schedule(&mut self, at: Instant, event: Event) {
        self.events.push(Reverse((at, self.scheduled, event)));
        self.scheduled += 1;
    }
}
