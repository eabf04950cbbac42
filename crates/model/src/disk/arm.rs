//! The arm of a disk: its present motion, and the choice of the next one.

use alloc::vec::Vec;
use core::ops::Range;

use evenkeel_control::Instant;

use super::cache::Content;
use super::geometry::{Geometry, Pass, Place, Track};
use super::{Disk, Scheduling, Task};

/// Times that the arm may serve other work before the oldest waiting command, as a multiple of the queue depth; then that
/// command comes next. Without a bound, a command at the edge could wait for ever.
const PASSED_OVER_MAX: u32 = 8;

/// A command that needs the arm.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub(super) id: u64,
    pub(super) blocks: Range<u64>,
    pub(super) write: bool,
    /// When the electronics are ready to read or write for the command.
    pub(super) ready: Instant,
    /// Position of the first block.
    pub(super) place: Place,
}

/// The arm, with the commands that wait for it.
#[derive(Debug, Default)]
pub(super) struct Arm {
    motion: Option<Motion>,
    /// Track of the head after its last motion.
    track: Track,
    /// The block after those of the last motion.
    position: u64,
    /// Waiting commands, in order of arrival.
    jobs: Vec<Job>,
    /// Motions for other work while the first of `jobs` waited at that place.
    passed_over: u32,
    ahead: Option<Ahead>,
}

/// The place from which the arm reads ahead when it has nothing else to do.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    block: u64,
    /// True if the last read continued an earlier one, so that reading ahead is worth its time even while commands wait.
    in_a_row: bool,
}

/// A motion of the arm, with its run of blocks that passes under the head.
#[derive(Debug)]
struct Motion {
    purpose: Purpose,
    /// The first block of the run.
    block: u64,
    /// When the interface can begin to send data of the command to the host.
    data: Instant,
    pass: Pass,
}

#[derive(Debug)]
enum Purpose {
    Command(Job),
    /// Writes back the cache segment with this id.
    WriteBack(u64),
    /// Reads ahead into the segment with this id. A `firm` motion is finished even if commands arrive.
    Ahead {
        segment: u64,
        firm: bool,
    },
}

/// A possible next motion of the arm.
struct Candidate {
    target: Target,
    blocks: Range<u64>,
    /// When the first of `blocks` begins to pass under the head.
    first: Instant,
    /// When the interface can begin to send data to the host; earlier than `first` if the cache holds the first blocks.
    data: Instant,
}

enum Target {
    /// A command, by its index in `jobs`.
    Command(usize),
    Segment(u64),
}

impl Arm {
    /// When the present motion ends; `Instant::FAR_FUTURE` if there is none.
    pub(super) fn end(&self) -> Instant {
        self.motion.as_ref().map_or(Instant::FAR_FUTURE, |motion| motion.pass.end)
    }

    pub(super) fn push(&mut self, job: Job) {
        self.jobs.push(job);
    }

    /// Finds the positions of the waiting commands anew, for another `geometry`.
    pub(super) fn place_anew(&mut self, geometry: &Geometry) {
        for job in &mut self.jobs {
            job.place = geometry.place(job.blocks.start);
        }
    }

    /// If the motion in progress reads ahead: the id of the segment that it fills, and the motion.
    fn reading_ahead(&mut self) -> Option<(u64, &mut Motion)> {
        let motion = self.motion.as_mut()?;
        match motion.purpose {
            Purpose::Ahead { segment, .. } => Some((segment, motion)),
            Purpose::Command(_) | Purpose::WriteBack(_) => None,
        }
    }
}

impl Disk {
    /// Begins the next motion if the arm is free, or if it reads ahead and other work for it has come.
    pub(super) fn drive(&mut self, at: Instant) {
        match self.arm.motion.as_ref().map(|motion| &motion.purpose) {
            Some(&Purpose::Ahead { segment, firm: false }) => {
                if self.cache.segment(segment).is_some() && self.arm.jobs.is_empty() && !self.must_write_back() {
                    return;
                }
                self.note_read_ahead(at);
            }
            Some(_) => return,
            None => {}
        }
        self.arm.motion = self.next_motion(at);
    }

    pub(super) fn finish_motion(&mut self) {
        let Some(Motion { purpose, block, data, pass }) = self.arm.motion.take() else { return };
        self.arm.track = pass.track;
        self.arm.position = block + pass.blocks;
        match purpose {
            Purpose::Command(job) if job.write => self.complete(job.id),
            Purpose::Command(Job { id, blocks, .. }) => {
                let row = self.cache.find_reaching(blocks.start).map(|segment| segment.id);
                match row {
                    Some(segment) => self.cache.hand_out(segment, blocks.end),
                    None => self.open_segment(blocks.end),
                }
                self.arm.ahead = Some(Ahead { block: blocks.end, in_a_row: row.is_some() });
                self.tasks.push_back(Task::HandOver { id, blocks: blocks.end - blocks.start, first: data });
            }
            Purpose::WriteBack(segment) => {
                self.cache.set_content(segment, Content::Clean);
                self.keep_writes(pass.end);
                self.end_flushes();
            }
            Purpose::Ahead { segment, firm } => {
                self.cache.fill(segment, self.arm.position);
                self.arm.ahead = firm.then_some(Ahead { block: self.arm.position, in_a_row: false });
            }
        }
    }

    /// Records in cache and arm the blocks that were read ahead by `at`.
    pub(super) fn note_read_ahead(&mut self, at: Instant) {
        let Some((segment, motion)) = self.arm.reading_ahead() else { return };
        let passed = self.geometry.pass(motion.pass.first, motion.block, motion.pass.blocks, false, at);
        let next = motion.block + passed.blocks;
        if 0 < passed.blocks && passed.blocks < motion.pass.blocks {
            motion.block = next;
            motion.pass.blocks -= passed.blocks;
            motion.pass.first = self.geometry.reach(passed.end, passed.track, next, false, passed.end);
        }
        self.arm.track = passed.track;
        self.arm.position = next;
        self.cache.fill(segment, next);
    }

    pub(super) fn stop_reading_ahead(&mut self, at: Instant) {
        self.note_read_ahead(at);
        if self.arm.reading_ahead().is_some() {
            self.arm.motion = None;
        }
    }

    /// True if the arm reads ahead into the segment that a read from `block` on continues.
    pub(super) fn is_reading_ahead_at(&mut self, block: u64) -> bool {
        let reaching = self.cache.find_reaching(block).map(|segment| segment.id);
        self.arm.reading_ahead().is_some_and(|(segment, _)| reaching == Some(segment))
    }

    /// Stops reading ahead if it would read any of `blocks`, which were just written.
    pub(super) fn keep_out_of_read_ahead(&mut self, at: Instant, blocks: &Range<u64>) {
        let Some((_, motion)) = self.arm.reading_ahead() else { return };
        if blocks.start < motion.block + motion.pass.blocks && motion.block < blocks.end {
            self.stop_reading_ahead(at);
        }
    }

    /// Records that the blocks of `segment` before `end` were sent to the host, and lets reading ahead go on beyond them.
    pub(super) fn hand_out(&mut self, segment: u64, end: u64) {
        self.cache.hand_out(segment, end);
        let limit = self.read_ahead_limit(end);
        if let Some((_, motion)) = self.arm.reading_ahead().filter(|&(reading, _)| reading == segment) {
            let blocks = limit.max(motion.block + motion.pass.blocks) - motion.block;
            motion.pass = self.geometry.pass(motion.pass.first, motion.block, blocks, false, Instant::FAR_FUTURE);
            return;
        }
        // Half a segment at once: every resumption costs a seek and a rotation.
        let half = u64::from(self.params().cache.read_ahead_blocks / 2);
        let reached = self.cache.segment(segment).filter(|s| s.content == Content::Ahead).map(|s| s.blocks.end);
        if let Some(reached) = reached.filter(|reached| reached - end < half) {
            self.arm.ahead = Some(Ahead { block: reached, in_a_row: false });
        }
    }

    fn read_ahead_limit(&self, handed_out: u64) -> u64 {
        (handed_out + u64::from(self.params().cache.read_ahead_blocks)).min(self.params().blocks())
    }

    /// True if a write or a flush waits for dirty data of the cache to be written back.
    fn must_write_back(&self) -> bool {
        !(self.no_room.is_empty() && self.flushes.is_empty()) && self.cache.dirty().next().is_some()
    }

    fn next_motion(&mut self, at: Instant) -> Option<Motion> {
        if let Some(motion) = self.arm.ahead.take().and_then(|ahead| self.read_ahead(at, ahead)) {
            return Some(motion);
        }
        let Candidate { target, blocks, first, data } = self.choose(at)?;
        if !self.arm.jobs.is_empty() {
            self.arm.passed_over = if matches!(target, Target::Command(0)) { 0 } else { self.arm.passed_over + 1 };
        }
        let purpose = match target {
            Target::Command(index) => Purpose::Command(self.arm.jobs.remove(index)),
            Target::Segment(segment) => {
                self.cache.set_content(segment, Content::Writing);
                Purpose::WriteBack(segment)
            }
        };
        let write = match &purpose {
            Purpose::Command(job) if job.write => {
                self.cache.forget(&job.blocks);
                true
            }
            Purpose::Command(_) | Purpose::Ahead { .. } => false,
            Purpose::WriteBack(_) => true,
        };
        let pass = if blocks.is_empty() {
            Pass { first, end: first, blocks: 0, track: self.arm.track }
        } else {
            self.geometry.pass(first, blocks.start, blocks.end - blocks.start, write, Instant::FAR_FUTURE)
        };
        Some(Motion { purpose, block: blocks.start, data, pass })
    }

    /// Opens a segment for reading ahead from `block` on, by which a read that continues there is found to be sequential.
    fn open_segment(&mut self, block: u64) {
        let params = self.params().cache;
        if params.read_ahead_blocks > 0 {
            self.cache.open(block, &params);
        }
    }

    /// The motion that reads ahead, up to `read_ahead_blocks` beyond the blocks sent to the host. While other work waits: `None`,
    /// or after sequential reads a motion up to `read_ahead_min_blocks` that is not interrupted.
    fn read_ahead(&mut self, at: Instant, Ahead { block, in_a_row }: Ahead) -> Option<Motion> {
        let segment = self.cache.find_reaching(block)?;
        let (segment, from, handed_out) = (segment.id, segment.blocks.end, segment.blocks.start);
        let firm = !self.arm.jobs.is_empty() || self.must_write_back();
        let mut limit = self.read_ahead_limit(handed_out);
        if firm {
            let continued =
                self.arm.jobs.iter().any(|job| !job.write && (handed_out..=from).contains(&job.blocks.start));
            if continued || !in_a_row {
                return None;
            }
            limit = limit.min(handed_out + u64::from(self.params().cache.read_ahead_min_blocks));
        }
        if limit <= from {
            return None;
        }
        let first = self.geometry.reach(at, self.arm.track, from, false, at);
        let pass = self.geometry.pass(first, from, limit - from, false, Instant::FAR_FUTURE);
        Some(Motion { purpose: Purpose::Ahead { segment, firm }, block: from, data: first, pass })
    }

    /// The command or the dirty segment that the arm serves next. O(commands + segments).
    fn choose(&self, at: Instant) -> Option<Candidate> {
        let jobs = &self.arm.jobs;
        if let Some(oldest) = jobs.first()
            && self.arm.passed_over >= PASSED_OVER_MAX.saturating_mul(self.params().queue_depth)
        {
            return Some(self.command(at, 0, oldest));
        }
        let is_by_time = self.params().scheduling == Scheduling::Sptf;
        let nearest = if is_by_time { self.nearest(at) } else { None };
        let all = jobs.iter().enumerate().filter(|_| !is_by_time);
        let commands = nearest.into_iter().chain(all.map(|(index, job)| self.command(at, index, job)));
        let write_back = jobs.is_empty() || self.must_write_back();
        let dirty = self.cache.dirty().filter(|_| write_back).map(|segment| {
            let first = self.geometry.reach(at, self.arm.track, segment.blocks.start, true, at);
            Candidate { target: Target::Segment(segment.id), blocks: segment.blocks.clone(), first, data: first }
        });
        // Of equals the first, and commands come before what is written back.
        commands.chain(dirty).min_by_key(|candidate| match self.params().scheduling {
            Scheduling::Fcfs => (0, 0),
            Scheduling::Elevator => (u64::from(candidate.blocks.start < self.arm.position), candidate.blocks.start),
            Scheduling::Sptf => (candidate.first.as_nanos(), 0),
        })
    }

    /// The waiting command whose blocks begin to pass under the head first, of equals the oldest.
    fn nearest(&self, at: Instant) -> Option<Candidate> {
        let head = self.geometry.head(at, self.arm.track);
        let mut best: Option<(usize, Instant)> = None;
        for (index, job) in self.arm.jobs.iter().enumerate() {
            let limit = best.map(|(_, first)| first);
            let first = if !job.write && self.cache.find_reaching(job.blocks.start).is_some() {
                Some(self.command(at, index, job).first)
            } else {
                self.geometry.reach_within(&head, &job.place, job.write, job.ready, limit)
            };
            if let Some(first) = first.filter(|&first| limit.is_none_or(|limit| first < limit)) {
                best = Some((index, first));
            }
        }
        best.map(|(index, _)| self.command(at, index, &self.arm.jobs[index]))
    }

    fn command(&self, at: Instant, index: usize, job: &Job) -> Candidate {
        let target = Target::Command(index);
        let segment = self.cache.find_reaching(job.blocks.start).filter(|_| !job.write);
        let Some(segment) = segment else {
            let first = self.geometry.reach(at, self.arm.track, job.blocks.start, job.write, job.ready);
            return Candidate { target, blocks: job.blocks.clone(), first, data: first };
        };
        // Part of it may be here already; the rest comes next if the head is reading there, otherwise it has to go back.
        let rest = segment.blocks.end.min(job.blocks.end)..job.blocks.end;
        let first = match &self.arm.motion {
            _ if rest.is_empty() => at,
            Some(Motion { purpose: Purpose::Ahead { segment: id, .. }, pass, .. }) if *id == segment.id => pass.first,
            _ => self.geometry.reach(at, self.arm.track, rest.start, false, job.ready),
        };
        let data = if rest.start > job.blocks.start { at } else { first };
        Candidate { target, blocks: rest, first, data }
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_control::Duration;
    use evenkeel_control::rng::SplitMix64;
    use evenkeel_control::units::Kind;

    use super::*;
    use crate::Io;
    use crate::disk::DiskParams;

    #[test]
    fn the_nearest_command_is_the_first_of_all() {
        let mut params = DiskParams { queue_depth: 64, scheduling: Scheduling::Sptf, ..DiskParams::cheetah9lp() };
        // Writes wait for the arm as well, and leave the cache to reads.
        (params.cache.write_back, params.cache.segments) = (false, 16);
        let (mut disk, mut rng, mut now) = (Disk::new(params.clone(), 5), SplitMix64::new(1), Instant::ZERO);
        let (mut most, mut cached, mut writes, mut alike) = (0, 0, 0, 0);
        for id in 0..3_000 {
            now += Duration::from_nanos(rng.next_below(2_000_000));
            let kind = if rng.next_below(4) == 0 { Kind::Write } else { Kind::Read };
            // Half of them close together, so that the cache holds some.
            let places = if rng.next_below(2) == 0 { 64 } else { 1 << 20 };
            disk.submit(now, id, Io { kind, offset: rng.next_below(places) << 12, bytes: 4 << 10 });
            while disk.poll(now).is_some() {}
            if id == 2_000 {
                // Other tracks: the blocks lie elsewhere.
                disk.set_params(now, DiskParams { rpm: 7_200, ..params.clone() });
            }
            let at = disk.advance(now);
            let jobs = &disk.arm.jobs;
            let all = jobs.iter().enumerate().map(|(index, job)| disk.command(at, index, job));
            let first = all.min_by_key(|candidate| candidate.first.as_nanos());
            let figures = |candidate: Candidate| {
                let index = match candidate.target {
                    Target::Command(index) => Some(index),
                    Target::Segment(_) => None,
                };
                (index, candidate.first, candidate.blocks, candidate.data)
            };
            let nearest = disk.nearest(at).map(figures);
            assert_eq!(nearest, first.map(figures), "request {id}");
            most = most.max(jobs.len());
            let hits = |job: &&Job| !job.write && disk.cache.find_reaching(job.blocks.start).is_some();
            cached += jobs.iter().filter(hits).count();
            writes += jobs.iter().filter(|job| job.write).count();
            if let Some((_, _, blocks, _)) = nearest {
                alike += usize::from(jobs.iter().filter(|job| job.blocks == blocks).count() > 1);
            }
        }
        assert!(most > 16, "at most {most} commands waited");
        assert!(
            cached > 0 && writes > 0 && alike > 0,
            "{cached} reads of the cache, {writes} writes, {alike} times equal blocks among the nearest"
        );
    }
}
