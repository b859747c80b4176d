//! Whether gradients would be added faster in huge pages: an arena of reserved or transparent huge pages,
//! beside the pages that a vector has.
//!
//! The work is that of a sum over TCP without the network: a bucket is copied, as for sending, and another
//! rank's bucket is added. What huge pages save of it is said as a share of the processor time of a whole
//! sum over TCP in the same run: an arena of gradients would pay from 5 % on. Where the processor counts
//! them, the dTLB misses are beside it.

use std::hint::black_box;
use std::io;

use sparktune_base::pages::{Kind, Pages, Part};
use sparktune_cluster::tlb::Misses;

use crate::cpu::thread_cpu_seconds;
use crate::median::median;
use crate::row::Row;

/// The least numbers of a bucket of the exchange of large gradients. There, a bucket that has a larger matrix
/// is larger.
const BUCKET: usize = 1 << 20;
const PASSES: usize = 15;
/// Small pages come first, because the others are compared with them.
const KINDS: [Kind; 3] = [Kind::Small, Kind::Transparent, Kind::Reserved];

fn name(kind: Kind) -> &'static str {
    match kind {
        Kind::Small => "adding numbers in small pages",
        Kind::Transparent => "adding numbers in transparent huge pages",
        Kind::Reserved => "adding numbers in reserved huge pages",
    }
}

fn numbers_of(part: &mut Part) -> &mut [f32] {
    bytemuck::cast_slice_mut(part.bytes())
}

/// The memory of a sum: this rank's numbers, another one's, and what is sent.
struct Arena {
    own: Part,
    other: Part,
    sent: Part,
}

impl Arena {
    fn new(kind: Kind, numbers: usize) -> io::Result<Self> {
        let mut parts = Pages::in_parts_of(kind, [numbers * size_of::<f32>(); 3])?;
        // Every page is there before anything is measured.
        parts.iter_mut().for_each(|part| numbers_of(part).fill(1.0));
        let [own, other, sent] = parts;
        Ok(Self { own, other, sent })
    }

    /// Adds all numbers in buckets, and returns the processor seconds that it took.
    fn add(&mut self, numbers: usize) -> f64 {
        let began = thread_cpu_seconds().unwrap_or(0.0);
        let (own, other, sent) =
            (numbers_of(&mut self.own), numbers_of(&mut self.other), numbers_of(&mut self.sent));
        for from in (0..numbers).step_by(BUCKET) {
            let bucket = from..numbers.min(from + BUCKET);
            sent[bucket.clone()].copy_from_slice(&own[bucket.clone()]);
            own[bucket.clone()].iter_mut().zip(&other[bucket]).for_each(|(sum, value)| *sum += value);
        }
        black_box(&mut *sent);
        thread_cpu_seconds().map_or(f64::NAN, |now| now - began)
    }
}

/// What adding in pages of one kind took.
struct Measured {
    kind: Kind,
    arena: io::Result<Arena>,
    /// Processor seconds of each pass.
    seconds: Vec<f64>,
    /// dTLB misses of all passes.
    misses: u64,
}

/// Measures all kinds of pages in turn. A sum over TCP takes so many processor seconds per 10⁹ numbers, if
/// that is known.
pub(super) fn rows(numbers: usize, of_tcp: Option<f64>) -> Vec<Row> {
    let mut all =
        KINDS.map(|kind| Measured { kind, arena: Arena::new(kind, numbers), seconds: Vec::new(), misses: 0 });
    let counted = measure(&mut all, numbers);
    let mut small = None;
    let mut rows = Vec::new();
    for Measured { kind, arena, seconds, misses } in all {
        if let Err(error) = arena {
            let why =
                format!("the system gives no such pages: {error}. `sysctl vm.nr_hugepages=64` reserves some");
            rows.push(Row::skipped(name(kind), "MB/s", &why));
            continue;
        }
        let seconds = median(seconds);
        if seconds.is_nan() || seconds <= 0.0 {
            rows.push(Row::skipped(name(kind), "MB/s", "it takes less time than the system counts"));
            continue;
        }
        let small = *small.get_or_insert(seconds);
        let saved = (small - seconds) / numbers as f64 * 1e9;
        let of_sum = of_tcp.filter(|_| kind != Kind::Small).map_or_else(String::new, |of_tcp| {
            let share = saved / of_tcp * 100.0;
            format!(", which saves {share:.1} % of a sum over TCP; an arena pays from 5 % on")
        });
        let note = format!("{:.2} × small pages{of_sum}", small / seconds);
        rows.push(Row::new(name(kind), (numbers * size_of::<f32>()) as f64 / seconds / 1e6, "MB/s", note));
        if counted.is_ok() {
            let per_1000 = misses as f64 / (numbers * PASSES) as f64 * 1e3;
            rows.push(Row::new("  dTLB misses per 1,000 numbers", per_1000, "", "of reads, in user space"));
        }
    }
    rows.extend(counted.err().map(|why| Row::skipped("dTLB misses of adding numbers", "", &why)));
    rows
}

/// Adds the numbers several times. The error says why misses were not counted.
fn measure(all: &mut [Measured], numbers: usize) -> Result<(), String> {
    let mut counter = Misses::count();
    let mut since_last = || counter.as_mut().map_err(|why| why.clone()).and_then(Misses::since_last);
    let mut counted = Ok(());
    for _ in 0..PASSES {
        for Measured { arena, seconds, misses, .. } in &mut *all {
            let Ok(arena) = arena else { continue };
            let before = since_last();
            seconds.push(arena.add(numbers));
            match before.and_then(|_| since_last()) {
                Ok(more) => *misses += more,
                Err(why) => counted = Err(why),
            }
        }
    }
    counted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_same_in_all_pages_that_there_are() {
        let numbers = BUCKET + 5;
        for kind in KINDS {
            let Ok(mut arena) = Arena::new(kind, numbers) else {
                assert_ne!(kind, Kind::Small);
                continue;
            };
            arena.add(numbers);
            assert!(numbers_of(&mut arena.own)[..numbers].iter().all(|sum| *sum == 2.0), "{kind:?}");
            assert!(numbers_of(&mut arena.sent)[..numbers].iter().all(|sum| *sum == 1.0), "{kind:?}");
        }
    }
}
