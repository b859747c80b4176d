//! How fast packets are written and read on this machine, in memory and on one core: a measurement of a
//! fraction of a second, next to a copy of as many bytes in the same run.

use std::hint::black_box;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::codes::Route;
use crate::token_file::v1;
use crate::token_file::v2::{PacketHeader, encode_packet};
use crate::token_file::{all_but_first, intact_packets};

/// The bytes of payload that are written and read in a round: more than the caches near a core hold.
const ROUND: usize = 16 << 20;

/// A rate that was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rate {
    /// The version of the packets; `None` for the copy.
    pub version: Option<u8>,
    /// What was done.
    pub what: &'static str,
    /// The bytes of payload that went through.
    pub payload_bytes: u64,
    /// The packets that they were in.
    pub packets: u64,
    /// The time that it took.
    pub seconds: f64,
    /// Payload bytes per second.
    pub bytes_per_s: f64,
}

/// Measures each for about `each`: writing and reading packets of `tokens` token ids in both versions, and a
/// copy of memory. Everything is in memory and on one core; reading checks every checksum.
///
/// Panics if version 1 cannot hold so many tokens, or there are none.
pub fn measure(tokens: usize, each: Duration) -> Vec<Rate> {
    assert!(tokens > 0 && tokens <= v1::MAX_TOKENS, "{tokens} tokens");
    let packets = (ROUND / (4 * tokens)).max(1);
    let ids: Vec<u32> = (0..tokens as u32).map(|place| place.wrapping_mul(7919) % 150_000).collect();
    let mask = all_but_first(tokens);
    let route = Route::default();
    let write_v1 = |out: &mut Vec<u8>| {
        out.clear();
        for _ in 0..packets {
            v1::encode(black_box(&ids), route, out).expect("the ids fit");
        }
    };
    let write_v2 = |out: &mut Vec<u8>| {
        out.clear();
        for example in 0..packets as u64 {
            let header = PacketHeader { example, route: Some(route), ..PacketHeader::default() };
            encode_packet(header, black_box(&ids), &mask, out);
        }
    };
    let (mut one, mut two) = (Vec::new(), Vec::new());
    write_v1(&mut one);
    write_v2(&mut two);
    let payload = (packets * 4 * tokens) as u64;
    let rate = |version, what, act: &mut dyn FnMut()| {
        act();
        let (start, mut rounds) = (Instant::now(), 0u64);
        while rounds == 0 || start.elapsed() < each {
            act();
            rounds += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let payload_bytes = rounds * payload;
        let bytes_per_s = payload_bytes as f64 / seconds;
        Rate { version, what, payload_bytes, packets: rounds * packets as u64, seconds, bytes_per_s }
    };
    let source = vec![0x5Au8; payload as usize];
    let mut copy = source.clone();
    let mut out = Vec::with_capacity(one.len().max(two.len()));
    vec![
        rate(None, "copy of memory", &mut || {
            copy.copy_from_slice(black_box(&source));
            black_box(&copy);
        }),
        rate(Some(1), "write", &mut || write_v1(black_box(&mut out))),
        rate(Some(2), "write", &mut || write_v2(black_box(&mut out))),
        rate(Some(1), "read and check", &mut || {
            let mut reader = v1::Reader::new(black_box(one.as_slice()));
            while let Ok(Some(item)) = reader.next_item() {
                if let v1::Item::Packet(packet) = item {
                    drop(black_box(packet.token_ids()));
                }
            }
        }),
        rate(Some(2), "read and check", &mut || {
            let found = intact_packets(black_box(&two));
            assert_eq!(found, packets, "every packet is intact");
        }),
    ]
}
