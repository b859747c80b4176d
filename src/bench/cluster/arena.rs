//! Whether gradients would be added faster in large pages: an arena of reserved or transparent huge pages,
//! beside the pages that a vector has.
//!
//! The work is that of a sum over TCP without the network: a bucket is copied, as for sending, and another
//! rank's bucket is added. What large pages save of it is said as a share of the processor time of a whole
//! sum over TCP in the same run: an arena of gradients would pay from 5 % on.

use std::hint::black_box;

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::cpu::thread_cpu_seconds;
use crate::median::median;
use crate::row::Row;

/// The numbers of a bucket of the exchange, at most.
const BUCKET: usize = 1 << 20;
/// The size of a large page, and its power of two.
const LARGE: usize = 2 << 20;
const LARGE_BITS: u8 = 21;
const PASSES: usize = 15;

/// What memory consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// 4 KB, on most machines.
    Small,
    /// Large where the kernel finds some.
    Transparent,
    /// Large ones that were reserved (`vm.nr_hugepages`).
    Reserved,
}

impl Pages {
    const ALL: [Self; 3] = [Self::Small, Self::Transparent, Self::Reserved];

    fn name(self) -> &'static str {
        match self {
            Self::Small => "adding numbers in small pages",
            Self::Transparent => "adding numbers in transparent huge pages",
            Self::Reserved => "adding numbers in reserved huge pages",
        }
    }

    fn map(self, numbers: usize) -> std::io::Result<MmapMut> {
        let mut options = MmapOptions::new();
        options.len((numbers * size_of::<f32>()).next_multiple_of(LARGE));
        if self == Self::Reserved {
            options.huge(Some(LARGE_BITS));
        }
        let mut memory = options.map_anon()?;
        match self {
            Self::Small => memory.advise(Advice::NoHugePage)?,
            Self::Transparent => memory.advise(Advice::HugePage)?,
            Self::Reserved => {}
        }
        // Every page is there before anything is measured.
        numbers_of(&mut memory).fill(1.0);
        Ok(memory)
    }
}

fn numbers_of(memory: &mut MmapMut) -> &mut [f32] {
    bytemuck::cast_slice_mut(&mut memory[..])
}

/// The memory of a sum: this rank's numbers, another one's, and what is sent.
struct Arena {
    own: MmapMut,
    other: MmapMut,
    sent: MmapMut,
}

impl Arena {
    fn new(pages: Pages, numbers: usize) -> std::io::Result<Self> {
        Ok(Self { own: pages.map(numbers)?, other: pages.map(numbers)?, sent: pages.map(numbers)? })
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

/// Measures all kinds of pages in turn. A sum over TCP takes so many processor seconds for 10⁹ numbers, if
/// that is known.
pub(super) fn rows(numbers: usize, of_tcp: Option<f64>) -> Vec<Row> {
    let mut arenas = Pages::ALL.map(|pages| (pages, Arena::new(pages, numbers), Vec::new()));
    for _ in 0..PASSES {
        for (_, arena, times) in &mut arenas {
            times.extend(arena.as_mut().ok().map(|arena| arena.add(numbers)));
        }
    }
    let mut small = None;
    let row = |(pages, arena, times): (Pages, std::io::Result<Arena>, Vec<f64>)| match arena {
        Err(error) => {
            let why =
                format!("the system gives no such pages: {error}. `sysctl vm.nr_hugepages=64` reserves some");
            Row::skipped(pages.name(), "MB/s", &why)
        }
        Ok(_) => {
            let seconds = median(times);
            let small = *small.get_or_insert(seconds);
            let saved = (small - seconds) / numbers as f64 * 1e9;
            let of_sum = of_tcp.filter(|_| pages != Pages::Small).map_or_else(String::new, |of_tcp| {
                let share = saved / of_tcp * 100.0;
                format!(", which saves {share:.1} % of a sum over TCP; an arena pays from 5 % on")
            });
            let note = format!("{:.2} × small pages{of_sum}", small / seconds);
            Row::new(pages.name(), (numbers * size_of::<f32>()) as f64 / seconds / 1e6, "MB/s", note)
        }
    };
    arenas.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_the_same_in_all_pages_that_there_are() {
        let numbers = BUCKET + 5;
        for pages in Pages::ALL {
            let Ok(mut arena) = Arena::new(pages, numbers) else {
                assert_ne!(pages, Pages::Small);
                continue;
            };
            arena.add(numbers);
            assert!(numbers_of(&mut arena.own)[..numbers].iter().all(|sum| *sum == 2.0), "{pages:?}");
            assert!(numbers_of(&mut arena.sent)[..numbers].iter().all(|sum| *sum == 1.0), "{pages:?}");
        }
    }
}
