//! An arena: memory that this process shares with a device or the kernel, divided into parts. It is in huge
//! pages if enough of them are reserved.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// The size of a huge page in bytes, and its logarithm to base 2.
const HUGE: usize = 2 << 20;
const HUGE_BITS: u8 = 21;

/// What memory consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Pages of 4 KB, on most machines.
    Small,
    /// Huge pages where the system finds some.
    Transparent,
    /// Huge pages that were reserved (`vm.nr_hugepages`).
    Reserved,
}

/// Memory that stays mapped at one address until the last [`Part`] and the last `Arc` of it are dropped.
#[derive(Debug)]
pub struct Pages {
    memory: MmapRaw,
    kind: Kind,
}

impl Pages {
    /// Makes room for parts of so many bytes each, in this order, in the largest pages that there are. All
    /// are zeros.
    ///
    /// # Errors
    /// The system does not give so much memory.
    pub fn in_parts<const N: usize>(bytes: [usize; N]) -> io::Result<[Part; N]> {
        Self::in_parts_of(Kind::Reserved, bytes)
            .or_else(|_| Self::in_parts_of(Kind::Transparent, bytes))
            .or_else(|_| Self::in_parts_of(Kind::Small, bytes))
    }

    /// Makes room for parts of so many bytes each, in this order, in pages of one kind. All are zeros.
    ///
    /// # Errors
    /// The system does not give so much memory, or has no such pages.
    pub fn in_parts_of<const N: usize>(kind: Kind, bytes: [usize; N]) -> io::Result<[Part; N]> {
        let pages = Arc::new(Self::map(kind, bytes.iter().sum())?);
        let mut next = 0;
        Ok(bytes.map(|length| {
            let start = next;
            next += length;
            Part { pages: Arc::clone(&pages), start, length }
        }))
    }

    fn map(kind: Kind, bytes: usize) -> io::Result<Self> {
        let mut options = MmapOptions::new();
        options.len(bytes.next_multiple_of(HUGE));
        if kind == Kind::Reserved {
            // Reserved pages are in memory at once.
            options.huge(Some(HUGE_BITS)).populate();
        }
        let memory = options.map_anon()?;
        match kind {
            // A system that has no huge pages refuses the advice, which does no harm.
            Kind::Small => drop(memory.advise(Advice::NoHugePage)),
            Kind::Transparent => memory.advise(Advice::HugePage)?,
            Kind::Reserved => {}
        }
        Ok(Self { memory: memory.into(), kind })
    }

    /// Returns the address of the first byte.
    pub fn address(&self) -> NonNull<u8> {
        NonNull::new(self.memory.as_mut_ptr()).expect("memory is never mapped at 0")
    }

    /// Returns the number of bytes, whole huge pages.
    #[expect(clippy::len_without_is_empty, reason = "pages of no bytes cannot be mapped")]
    pub fn len(&self) -> usize {
        self.memory.len()
    }

    /// Says in words which pages they are.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Small => "ordinary pages",
            Kind::Transparent => "ordinary pages, which the system may make huge",
            Kind::Reserved => "reserved huge pages",
        }
    }
}

/// A part of [`Pages`], which belongs to nobody else.
#[derive(Debug)]
pub struct Part {
    pages: Arc<Pages>,
    start: usize,
    length: usize,
}

impl Part {
    /// Returns the pages that this is a part of.
    pub fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }

    /// Returns the position of the first byte in the pages.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the address of the first byte, for a device or the kernel.
    pub fn address(&self) -> NonNull<u8> {
        // SAFETY: parts lie inside the pages.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            self.pages.address().add(self.start)
        }
    }

    /// Returns the bytes. As long as they are borrowed, a device or the kernel that was given the
    /// [address](Self::address) must not write them.
    pub fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the part is mapped as long as it exists, no other part has its bytes, the borrow of this
        // one is exclusive, and the doc forbids a device or the kernel to write them meanwhile.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        unsafe {
            std::slice::from_raw_parts_mut(self.address().as_ptr(), self.length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_one_behind_the_other_and_outlive_each_other() {
        let [mut first, empty, mut second] = Pages::in_parts([5000, 0, HUGE]).unwrap();
        assert_eq!((first.start(), empty.start(), second.start()), (0, 5000, 5000));
        assert!(empty.is_empty() && first.pages().len() == 2 * HUGE);
        assert!(first.bytes().iter().chain(second.bytes().iter()).all(|byte| *byte == 0));
        first.bytes().fill(1);
        second.bytes().fill(2);
        assert_eq!(second.address().as_ptr() as usize - first.address().as_ptr() as usize, 5000);
        assert!(first.bytes().iter().all(|byte| *byte == 1));
        drop(first);
        assert!(second.len() == HUGE && second.bytes().iter().all(|byte| *byte == 2));
    }
}
