//! The slots in which contributions are added: what a switch does with each packet. Pure.
//!
//! The program in the kernel (`sum.bpf.c`) does the same, verdict for verdict; so these lines are its
//! specification, and what runs where there is no such kernel.
//!
//! A slot has two versions, for odd and for even rounds. A rank starts a round of a slot only when it has the
//! result of the round before. So once all ranks have contributed to round r, all have the result of r - 1,
//! and its version can be used for r + 1; until then a rank that has lost a result can ask for it by sending
//! its contribution again. Sums wrap around at 16 bits; what quantises the values sees to it that they do
//! not.
//!
//! A slot also keeps the sum of squares of each contribution as it was added, and the result says it. The
//! contributions of ranks that were muted count as zeros.

use std::ops::Index;

use crate::xdp::wire::{
    HEAD, Header, Key, MOST_WORKERS, PACKET, PacketFault, RESULT, SLOTS, SQUARES_SHIFT, Squares, VALUES,
    is_signed, sign, values, write_squares,
};

/// What became of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is not for this job's port. Only the kernel's program sees such packets.
    Passed,
    /// It is shorter or longer than a packet.
    WrongSize,
    /// It belongs to another program.
    Alien,
    /// It contradicts itself, or belongs to another job.
    Unfit,
    /// Its tag is wrong.
    Unsigned,
    /// Its round is over: it is late, or was recorded and sent again.
    Stale,
    /// The round before is not complete.
    Early,
    /// Its rank has been counted already, and others are missing.
    Duplicate,
    /// The sum was complete already, and was sent again to the packet's sender.
    Resent,
    /// It was added.
    Added,
    /// It was added, and the sum is complete: it was sent to all ranks.
    Completed,
}

impl Verdict {
    /// All verdicts, in the order of the kernel's counters.
    pub const ALL: [Self; 11] = [
        Self::Passed,
        Self::WrongSize,
        Self::Alien,
        Self::Unfit,
        Self::Unsigned,
        Self::Stale,
        Self::Early,
        Self::Duplicate,
        Self::Resent,
        Self::Added,
        Self::Completed,
    ];
}

/// How many packets had which verdict.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts(pub [u64; Verdict::ALL.len()]);

impl Counts {
    /// Counts a packet.
    pub fn add(&mut self, verdict: Verdict) {
        self.0[verdict as usize] += 1;
    }
}

impl Index<Verdict> for Counts {
    type Output = u64;

    fn index(&self, verdict: Verdict) -> &u64 {
        &self.0[verdict as usize]
    }
}

/// One version of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    /// The round that it is used for; 0 before the first.
    pub round: u32,
    /// The ranks that are part of the sums.
    pub contributors: u64,
    /// The sum of squares of each contribution, without the lowest bits. Those of ranks that are not part of
    /// the sums are of an earlier round.
    pub squares: Squares,
    /// The sums.
    pub sums: [i16; VALUES],
}

impl Slot {
    const EMPTY: Self = Self { round: 0, contributors: 0, squares: [0; MOST_WORKERS], sums: [0; VALUES] };
}

/// Who adds here.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// The number of the job.
    pub number: u16,
    /// The number of ranks.
    pub workers: u8,
    /// The ranks whose contributions count as zeros, a bit for each.
    pub muted: u16,
    /// The secret of the tags.
    pub key: Key,
}

/// The slots of a job.
#[derive(Debug, Clone)]
pub struct Slots {
    job: Job,
    slots: Vec<Slot>,
    counts: Counts,
}

impl Slots {
    /// Returns the empty slots of a job.
    pub fn new(job: Job) -> Self {
        Self { job, slots: vec![Slot::EMPTY; SLOTS as usize * 2], counts: Counts::default() }
    }

    /// Deals with a packet. When the verdict is [`Verdict::Completed`] or [`Verdict::Resent`], the packet has
    /// become the signed result.
    pub fn receive(&mut self, packet: &mut [u8]) -> Verdict {
        let verdict = self.judge(packet);
        self.counts.add(verdict);
        verdict
    }

    /// Counts a packet that was not for this job's port.
    pub fn pass(&mut self) -> Verdict {
        self.counts.add(Verdict::Passed);
        Verdict::Passed
    }

    fn judge(&mut self, packet: &mut [u8]) -> Verdict {
        let header = match Header::parse(packet) {
            Ok(header) => header,
            Err(PacketFault::Size(_)) => return Verdict::WrongSize,
            Err(PacketFault::Alien) => return Verdict::Alien,
            Err(PacketFault::Unfit) => return Verdict::Unfit,
        };
        let packet: &mut [u8; PACKET] = packet.try_into().expect("the header was read");
        let Job { number, workers, muted, key } = self.job;
        let is_of_job = header.job == number && header.workers == workers && header.worker < workers;
        if !is_of_job || header.contributors != 1 << header.worker {
            return Verdict::Unfit;
        }
        if !is_signed(key, packet) {
            return Verdict::Unsigned;
        }
        if muted >> header.worker & 1 == 1 {
            packet[HEAD..].fill(0);
        }
        let slot = &mut self.slots[version(header.slot, header.round)];
        let is_complete = |slot: &Slot| slot.contributors.count_ones() == u32::from(workers);
        if slot.round != header.round {
            let first = 2 - (header.round & 1);
            let next = if slot.round == 0 { first } else { slot.round.wrapping_add(2) };
            if header.round != next || (slot.round != 0 && !is_complete(slot)) {
                let is_older = (header.round.wrapping_sub(slot.round) as i32) < 0;
                return if is_older { Verdict::Stale } else { Verdict::Early };
            }
            (slot.round, slot.contributors) = (header.round, 0);
        }
        let verdict = if slot.contributors & header.contributors != 0 {
            if !is_complete(slot) {
                return Verdict::Duplicate;
            }
            Verdict::Resent
        } else {
            add(slot, &packet[HEAD..]);
            slot.squares[usize::from(header.worker)] = (squares_of(packet) >> SQUARES_SHIFT) as u32;
            slot.contributors |= header.contributors;
            if !is_complete(slot) {
                return Verdict::Added;
            }
            Verdict::Completed
        };
        let result = Header { worker: RESULT, contributors: slot.contributors, ..header };
        result.write(packet);
        write_squares(packet, &slot.squares);
        packet[HEAD..].chunks_exact_mut(2).zip(slot.sums).for_each(|(bytes, sum)| {
            bytes.copy_from_slice(&sum.to_le_bytes());
        });
        sign(key, packet);
        verdict
    }

    /// Returns what became of the packets so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns both versions of all slots, in the order of the kernel's map.
    pub fn versions(&self) -> &[Slot] {
        &self.slots
    }
}

fn version(slot: u32, round: u32) -> usize {
    slot as usize * 2 + (round & 1) as usize
}

/// Returns the sum of squares of a packet's values, which has at most 40 bits.
fn squares_of(packet: &[u8; PACKET]) -> u64 {
    values(packet).map(|value| u64::from(value.unsigned_abs()).pow(2)).sum()
}

fn add(slot: &mut Slot, values: &[u8]) {
    let is_first = slot.contributors == 0;
    let values = values.chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]]));
    if is_first {
        slot.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = value);
    } else {
        slot.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum = sum.wrapping_add(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::xdp::wire::squares;

    const JOB: Job = Job { number: 9, workers: 3, muted: 0, key: Key([1, 2]) };

    fn packet(worker: u8, chunk: u64, value: i16) -> [u8; PACKET] {
        let mut packet = [0; PACKET];
        packet[HEAD..].chunks_exact_mut(2).for_each(|two| two.copy_from_slice(&value.to_le_bytes()));
        Header::contribution(JOB.number, worker, JOB.workers, chunk).unwrap().write(&mut packet);
        sign(JOB.key, &mut packet);
        packet
    }

    #[test]
    fn a_sum_is_complete_when_all_have_contributed_and_is_sent_again_to_who_asks() {
        let mut slots = Slots::new(JOB);
        let mut receive = |worker, chunk, value| {
            let mut packet = packet(worker, chunk, value);
            let verdict = slots.receive(&mut packet);
            (verdict, packet)
        };
        assert_eq!(receive(2, 5, -7).0, Verdict::Added);
        assert_eq!(receive(2, 5, 100).0, Verdict::Duplicate);
        assert_eq!(receive(0, 5, 1000).0, Verdict::Added);
        let (verdict, result) = receive(1, 5, 30);
        assert_eq!(verdict, Verdict::Completed);
        assert!(values(&result).all(|sum| sum == 1023), "the duplicate was not added");
        let header = Header::parse(&result).unwrap();
        assert_eq!((header.worker, header.contributors, header.chunk()), (RESULT, 0b111, 5));
        assert!(is_signed(JOB.key, &result));
        let of = |value: u32| (VALUES as u32 * value * value) >> SQUARES_SHIFT;
        assert_eq!(squares(&result)[..4], [of(1000), of(30), of(7), 0], "who asks twice is measured once");
        assert_eq!(receive(1, 5, 30), (Verdict::Resent, result));
    }

    #[test]
    fn what_a_muted_rank_sends_counts_as_zeros_and_the_longest_contribution_is_measured() {
        let mut slots = Slots::new(Job { muted: 0b010, ..JOB });
        for round in 0..3 {
            let mut result = packet(1, 5 + round * 128, 30);
            assert_eq!(slots.receive(&mut result), Verdict::Added);
            assert_eq!(slots.receive(&mut packet(0, 5 + round * 128, i16::MIN)), Verdict::Added);
            result = packet(2, 5 + round * 128, 7);
            assert_eq!(slots.receive(&mut result), Verdict::Completed);
            assert!(values(&result).all(|sum| sum == i16::MIN + 7));
            let longest = (VALUES as u64) << (30 - SQUARES_SHIFT);
            assert_eq!(
                squares(&result)[..3].iter().map(|of| u64::from(*of)).collect::<Vec<_>>(),
                [longest, 0, (VALUES as u64 * 49) >> SQUARES_SHIFT]
            );
        }
    }

    #[test]
    fn a_version_is_used_again_when_it_is_complete_and_old_packets_do_nothing() {
        let mut slots = Slots::new(JOB);
        let mut verdict = |worker, round: u64| slots.receive(&mut packet(worker, round * 128, 1));
        assert_eq!(verdict(0, 2), Verdict::Early, "a round that is not the first of its version");
        for round in 0..4 {
            assert_eq!(
                [0, 1, 2].map(|worker| verdict(worker, round)),
                [Verdict::Added, Verdict::Added, Verdict::Completed]
            );
        }
        assert_eq!(verdict(1, 2), Verdict::Resent, "the round before the last is still there");
        assert_eq!(verdict(1, 1), Verdict::Stale);
        assert_eq!(verdict(1, 4), Verdict::Added);
        assert_eq!(verdict(1, 2), Verdict::Stale);
        assert_eq!(verdict(0, 6), Verdict::Early, "a round is missing");
    }

    #[test]
    fn packets_of_other_jobs_and_without_the_key_are_not_added() {
        let mut slots = Slots::new(JOB);
        let mut received = |job: Job, worker: u8| {
            let mut other = [0; PACKET];
            Header::contribution(job.number, worker, job.workers, 0).unwrap().write(&mut other);
            sign(job.key, &mut other);
            slots.receive(&mut other)
        };
        assert_eq!(received(Job { number: 8, ..JOB }, 0), Verdict::Unfit);
        assert_eq!(received(Job { workers: 4, ..JOB }, 0), Verdict::Unfit);
        assert_eq!(received(JOB, 3), Verdict::Unfit);
        assert_eq!(received(JOB, RESULT), Verdict::Unfit);
        assert_eq!(received(Job { key: Key([1, 3]), ..JOB }, 0), Verdict::Unsigned);
        assert_eq!(received(JOB, 0), Verdict::Added);
        assert_eq!(slots.receive(&mut [0; 3]), Verdict::WrongSize);
        assert_eq!(slots.receive(&mut [0; PACKET]), Verdict::Alien);
        let counts = slots.counts();
        assert_eq!((counts[Verdict::Unfit], counts[Verdict::Unsigned], counts[Verdict::Added]), (4, 1, 1));
    }
}
