//! The packets of sums in the network. Pure, because bytes of strangers are read here.
//!
//! A packet is the payload of one UDP datagram and always has [`PACKET`] bytes:
//!
//! ```text
//!  0  4  magic "SPG1"
//!  4  2  job: a number that tells jobs on one network apart
//!  6  1  worker: the rank that contributes, or 255 in a result
//!  7  1  n_workers: the number of ranks
//!  8  4  round: how often this slot has been used, from 1
//! 12  4  slot
//! 16  4  chunk: (round - 1) · SLOTS + slot, modulo 2³²
//! 20  4  n_values
//! 24  8  tag: SipHash-2-4 of all other bytes
//! 32  8  contributors: bit w is set if rank w is part of the values
//! 40  64 in a result, 4 bytes for each of 16 ranks: the sum of the squares of its values that were added,
//!        without the lowest 8 bits; in a contribution, anything
//! 104 …  the values, 16 bits each, in two's complement
//! ```
//!
//! with all numbers little-endian. Chunk number n of a job has slot `n mod SLOTS` and round `n / SLOTS + 1`.
//!
//! **What the tag guarantees.** Its key follows from the job's token and a random number of rank 0, so it is
//! another one each time that the ranks meet. A packet with a right tag was made by someone who has the key
//! and was not changed since: a guess succeeds once in 2⁶⁴ packets. A packet that was recorded and sent again
//! has a right tag too; its round says that it is old (it is dropped) or that its rank has been counted
//! already (it is not added again), and a round is never used twice with one key. The tag does not hide the
//! values, and it does not say which of the ranks made a packet: they all have the same key.

/// The first bytes of every packet.
pub const MAGIC: u32 = u32::from_le_bytes(*b"SPG1");
/// Where a result says how long each rank's contribution was.
const SQUARES: usize = 40;
/// The lowest bits of a sum of squares, which a result leaves out.
pub const SQUARES_SHIFT: u32 = 8;
/// The bytes before the values.
pub const HEAD: usize = SQUARES + MOST_WORKERS * size_of::<u32>();
/// The values of a packet: as many as fit in an Ethernet frame of 1,500 bytes, in whole groups of 32.
pub const VALUES: usize = 672;
/// The bytes of a packet.
pub const PACKET: usize = HEAD + 2 * VALUES;
/// The slots of a job: the chunks that can be on their way at a time.
pub const SLOTS: u32 = 128;
/// What stands for the worker in a result.
pub const RESULT: u8 = 255;
/// The most ranks: with more, too few of the 16 bits would be left for each.
pub const MOST_WORKERS: usize = 16;
/// The chunks that one key can be used for, as the round has 32 bits.
pub const MOST_CHUNKS: u64 = (u32::MAX as u64) * (SLOTS as u64);

/// The secret of the tags.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u64; 2]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// What a packet says before its values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The number of the job.
    pub job: u16,
    /// The rank that contributes, or [`RESULT`].
    pub worker: u8,
    /// The number of ranks.
    pub workers: u8,
    /// How often the slot has been used.
    pub round: u32,
    /// The slot.
    pub slot: u32,
    /// The ranks that are part of the values.
    pub contributors: u64,
}

/// The reason why bytes are no packet of this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant says what it is")]
pub enum PacketFault {
    #[error("a packet has {0} bytes, and not {PACKET}")]
    Size(usize),
    #[error("a packet of another program came")]
    Alien,
    #[error("the fields of a packet contradict each other")]
    Unfit,
}

impl Header {
    /// Returns the header of a rank's contribution to a chunk; `None` after [`MOST_CHUNKS`].
    pub fn contribution(job: u16, worker: u8, workers: u8, chunk: u64) -> Option<Self> {
        let (round, slot) = place_of(chunk)?;
        Some(Self { job, worker, workers, round, slot, contributors: 1 << (worker % 64) })
    }

    /// Returns the number of the chunk, of which the packet has the lower 32 bits.
    pub fn chunk(&self) -> u64 {
        u64::from(self.round - 1) * u64::from(SLOTS) + u64::from(self.slot)
    }

    /// Reads the header of a packet. Whether it belongs to a job and is signed is not looked at.
    ///
    /// # Errors
    /// The bytes are no packet.
    pub fn parse(packet: &[u8]) -> Result<Self, PacketFault> {
        if packet.len() != PACKET {
            return Err(PacketFault::Size(packet.len()));
        }
        if word(packet, 0) != MAGIC {
            return Err(PacketFault::Alien);
        }
        let header = Self {
            job: u16::from_le_bytes([packet[4], packet[5]]),
            worker: packet[6],
            workers: packet[7],
            round: word(packet, 8),
            slot: word(packet, 12),
            contributors: long(packet, 32),
        };
        let is_place = header.round > 0 && header.slot < SLOTS;
        if !is_place || word(packet, 16) != header.chunk() as u32 || word(packet, 20) != VALUES as u32 {
            return Err(PacketFault::Unfit);
        }
        Ok(header)
    }

    /// Writes the header into a packet, without its tag.
    pub fn write(&self, packet: &mut [u8; PACKET]) {
        packet[..4].copy_from_slice(&MAGIC.to_le_bytes());
        packet[4..6].copy_from_slice(&self.job.to_le_bytes());
        packet[6] = self.worker;
        packet[7] = self.workers;
        packet[8..12].copy_from_slice(&self.round.to_le_bytes());
        packet[12..16].copy_from_slice(&self.slot.to_le_bytes());
        packet[16..20].copy_from_slice(&(self.chunk() as u32).to_le_bytes());
        packet[20..24].copy_from_slice(&(VALUES as u32).to_le_bytes());
        packet[32..40].copy_from_slice(&self.contributors.to_le_bytes());
    }
}

/// Returns the round and the slot of a chunk.
pub fn place_of(chunk: u64) -> Option<(u32, u32)> {
    let slot = (chunk % u64::from(SLOTS)) as u32;
    (chunk < MOST_CHUNKS).then(|| ((chunk / u64::from(SLOTS)) as u32 + 1, slot))
}

/// Writes the tag of a packet into it.
pub fn sign(key: Key, packet: &mut [u8; PACKET]) {
    let tag = tag_of(key, packet);
    packet[24..32].copy_from_slice(&tag.to_le_bytes());
}

/// Returns whether the tag of a packet is right.
pub fn is_signed(key: Key, packet: &[u8; PACKET]) -> bool {
    long(packet, 24) == tag_of(key, packet)
}

/// Returns the values of a packet.
pub fn values(packet: &[u8; PACKET]) -> impl ExactSizeIterator<Item = i16> {
    packet[HEAD..].chunks_exact(2).map(|two| i16::from_le_bytes([two[0], two[1]]))
}

/// What a result says of the ranks' contributions: the sums of their squares, without the lowest bits.
pub type Squares = [u32; MOST_WORKERS];

/// Returns the sums of squares that a result says.
pub fn squares(packet: &[u8; PACKET]) -> Squares {
    std::array::from_fn(|rank| word(packet, SQUARES + rank * size_of::<u32>()))
}

/// Writes the sums of squares into a result.
pub fn write_squares(packet: &mut [u8; PACKET], squares: &Squares) {
    let places = packet[SQUARES..HEAD].chunks_exact_mut(size_of::<u32>());
    places.zip(squares).for_each(|(bytes, squares)| bytes.copy_from_slice(&squares.to_le_bytes()));
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// SipHash-2-4 (Aumasson and Bernstein 2012) of a packet without its tag.
fn tag_of(Key([k0, k1]): Key, packet: &[u8; PACKET]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut add = |word: u64| {
        v[3] ^= word;
        sip_round(&mut v);
        sip_round(&mut v);
        v[0] ^= word;
    };
    for bytes in [&packet[..24], &packet[32..]] {
        bytes.chunks_exact(8).for_each(|eight| add(long(eight, 0)));
    }
    add(((PACKET as u64 - 8) & 0xff) << 56);
    v[2] ^= 0xff;
    (0..4).for_each(|_| sip_round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline]
fn sip_round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher;

    use proptest::prelude::*;

    use super::*;

    const KEY: Key = Key([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);

    fn packet(chunk: u64) -> [u8; PACKET] {
        let mut packet = [0; PACKET];
        packet[HEAD..].iter_mut().enumerate().for_each(|(at, byte)| *byte = (at * 7 + at / 251) as u8);
        Header::contribution(3, 1, 4, chunk).unwrap().write(&mut packet);
        sign(KEY, &mut packet);
        packet
    }

    #[test]
    #[expect(deprecated, reason = "the standard library's SipHash-2-4 with a key, to compare with")]
    fn the_tag_is_siphash_2_4_of_all_bytes_but_itself_and_every_bit_counts() {
        let good = packet(1000);
        let mut hasher = std::hash::SipHasher::new_with_keys(KEY.0[0], KEY.0[1]);
        hasher.write(&good[..24]);
        hasher.write(&good[32..]);
        assert_eq!(hasher.finish(), long(&good, 24));
        for bit in 0..PACKET * 8 {
            let mut changed = good;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_signed(KEY, &changed), "bit {bit}");
        }
        assert!(is_signed(KEY, &good) && !is_signed(Key([KEY.0[0], KEY.0[1] ^ 1]), &good));
        assert_eq!(format!("{KEY:?}"), "[redacted]");
    }

    #[test]
    fn chunks_take_the_slots_in_turn_until_the_rounds_are_used_up() {
        let [slots, last] = [u64::from(SLOTS), MOST_CHUNKS - 1];
        for (chunk, round, slot) in
            [(0, 1, 0), (1, 1, 1), (slots - 1, 1, SLOTS - 1), (slots, 2, 0), (last, u32::MAX, SLOTS - 1)]
        {
            let header = Header::contribution(3, 1, 4, chunk).unwrap();
            assert_eq!((header.round, header.slot, header.chunk()), (round, slot, chunk));
        }
        assert_eq!(Header::contribution(3, 1, 4, MOST_CHUNKS), None);
    }

    #[test]
    fn packets_that_contradict_themselves_are_refused() {
        let change = |at: usize| {
            let mut changed = packet(SLOTS.into());
            changed[at] ^= 0x80;
            Header::parse(&changed)
        };
        assert_eq!(change(0), Err(PacketFault::Alien));
        for at in [8, 12, 16, 20] {
            assert_eq!(change(at), Err(PacketFault::Unfit), "byte {at}");
        }
        assert_eq!(Header::parse(&packet(0)[1..]), Err(PacketFault::Size(PACKET - 1)));
        assert_eq!(Header::parse(&[0; PACKET + 1]), Err(PacketFault::Size(PACKET + 1)));
    }

    proptest! {
        #[test]
        fn a_header_that_is_read_is_written_as_the_same_bytes(chunk in 0..MOST_CHUNKS, job: u16, worker: u8) {
            let header = Header { worker, ..Header::contribution(job, 5, 9, chunk).unwrap() };
            let mut packet = [0; PACKET];
            header.write(&mut packet);
            prop_assert_eq!(Header::parse(&packet), Ok(header));
        }
    }
}
