//! A memory-mapped file of weights that is dropped from the page cache piece by piece.
//!
//! The page cache keeps data that was read, which is useless once it was copied: with unified memory, 54 GB
//! of weights would take that much from the GPU, whose allocator uses only free memory, and evict everything
//! else. Therefore every piece is dropped as soon as it was copied. This module owns the mapping and the
//! advice to the system; it must not know the meaning of the bytes.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, UncheckedAdvice};
use rustix::fs::{Advice, fadvise};
use sparktune_base::regular_file::open_regular;

/// An open file of weights.
pub struct WeightFile {
    file: File,
    map: Mmap,
}

impl WeightFile {
    /// Opens and maps a file that is complete.
    ///
    /// # Errors
    /// It is no file, or cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(path)?;
        // SAFETY: the map is read-only; rewriting a checkpoint under a running trainer is not supported, and
        // reads of a truncated file end in a signal instead of wrong numbers.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { file, map })
    }

    /// Returns all of its bytes. They are read from the disk when they are used.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Lets the system drop a piece of [`bytes`](Self::bytes). Other bytes are ignored.
    pub fn forget_piece(&self, piece: &[u8]) {
        let start = (piece.as_ptr() as usize).wrapping_sub(self.map.as_ptr() as usize);
        if start <= self.map.len() && piece.len() <= self.map.len() - start {
            self.forget(start..start + piece.len());
        }
    }

    /// Lets the system drop the pages of bytes that are no longer needed; they are read again on access.
    /// Pages that another process maps are kept.
    pub(crate) fn forget(&self, range: Range<usize>) {
        // SAFETY: dropped clean pages of a read-only file mapping are read again on access.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let unmapped =
            unsafe { self.map.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        // The first call removes the pages from this process, the second one from the page cache, which skips
        // mapped pages. If the advice is ignored, memory is wasted but results stay correct.
        if let (Ok(()), Some(length)) = (unmapped, NonZeroU64::new(range.len() as u64)) {
            let _ = fadvise(&self.file, range.start as u64, Some(length), Advice::DontNeed);
        }
    }
}

/// Flushes a file to the disk, and lets the system drop it from the page cache.
pub(crate) fn sync_and_forget(path: &Path) -> io::Result<()> {
    let file = File::open(path)?;
    file.sync_all()?;
    let _ = fadvise(&file, 0, None, Advice::DontNeed);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;

    use rustix::io::{ReadWriteFlags, preadv2};

    use super::*;

    const PIECE: usize = 1 << 20;

    /// Returns the number of pages of a file in the page cache, by reading those that are available without
    /// waiting for the disk; `None` if the file system does not support this. The query itself loads missing
    /// pages, so a second one finds more.
    fn cached(path: &Path) -> Option<usize> {
        let file = File::open(path).unwrap();
        // Without this, read-ahead after one page would affect the result for the next one.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let mut pages = 0;
        let mut byte = [0];
        for offset in (0..file.metadata().unwrap().len()).step_by(4096) {
            match preadv2(&file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT) {
                Ok(_) => pages += 1,
                Err(rustix::io::Errno::AGAIN) => {}
                Err(_) => return None,
            }
        }
        Some(pages)
    }

    /// Creates a file next to this test's program, which is on a real disk more often than the system's
    /// temporary folder: files in memory are never dropped.
    fn on_disk(pieces: usize) -> Option<(tempfile::TempDir, std::path::PathBuf)> {
        let program = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, vec![7; pieces * PIECE]).unwrap();
        sync_and_forget(&path).unwrap();
        let dropped = cached(&path)? == 0;
        sync_and_forget(&path).unwrap();
        dropped.then_some((folder, path))
    }

    #[test]
    fn what_was_copied_leaves_the_page_cache_and_the_rest_is_still_right() {
        let Some((_folder, path)) = on_disk(8) else {
            eprintln!("skipped: this file system does not drop pages, or does not tell");
            return;
        };
        let file = WeightFile::open(&path).unwrap();
        for piece in 0..8 {
            let range = piece * PIECE..(piece + 1) * PIECE;
            assert!(file.bytes()[range.clone()].iter().all(|byte| *byte == 7));
            match piece % 2 {
                0 => file.forget(range),
                _ => file.forget_piece(&file.bytes()[range]),
            }
        }
        // Of 2,048; a page at a boundary may be kept by the neighbouring piece.
        let left = cached(&path).unwrap();
        assert!(left < 32, "{left} pages are still cached");
        assert!(file.bytes()[..PIECE].iter().all(|byte| *byte == 7), "it is read again");
    }

    #[test]
    fn without_that_the_whole_file_stays() {
        let Some((_folder, path)) = on_disk(8) else { return };
        let file = WeightFile::open(&path).unwrap();
        assert!(file.bytes().iter().all(|byte| *byte == 7));
        assert_eq!(cached(&path), Some(8 * PIECE / 4096), "or the test above proves nothing");
    }

    #[test]
    fn empty_pieces_and_ends_of_files_are_forgotten_without_harm() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w");
        std::fs::write(&path, [1, 2, 3]).unwrap();
        let file = WeightFile::open(&path).unwrap();
        file.forget(3..3);
        file.forget(1..3);
        file.forget_piece(&file.bytes()[1..]);
        file.forget_piece(&[1, 2, 3]);
        assert_eq!(file.bytes(), [1, 2, 3]);
    }
}
