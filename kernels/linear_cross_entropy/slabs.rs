//! Decides how the logits are divided on a CUDA device, so that the memory for them is bounded.

/// The number of rows and of columns in a block's tile.
pub(crate) const TILE: usize = 128;
/// The number of columns that share one entry of the statistics.
pub(crate) const STRIP: usize = 64;
/// The most bytes for logits, statistics and gradients of a chunk of rows together: with a frozen weight, and
/// with a trained one. Every chunk reads and writes the trained weight's whole gradient, which has to take
/// less time than its arithmetic; see NOTES.md.
const SCRATCH: usize = 480_000_000;
const SCRATCH_TRAINED: usize = 1_456_000_000;

/// The size of the part of the logits `[rows, vocabulary]` that is held at a time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Slabs {
    /// Rows of a chunk.
    pub(crate) rows: usize,
    /// Columns of a slab: all of them when the weight is trained.
    pub(crate) width: usize,
}

impl Slabs {
    /// Chooses the sizes for `targets` rows of `hidden` numbers over a vocabulary; `whole` requires chunks
    /// that are one slab.
    pub(crate) fn new(targets: usize, hidden: usize, vocabulary: usize, whole: bool) -> Self {
        // Two bytes of `e` and eight of statistics for every strip; x in bf16 and its gradient in f32.
        let of_column = |rows: usize| 2 * rows + rows * 8 / STRIP;
        let of_row = 6 * hidden;
        if whole {
            let rows = SCRATCH_TRAINED / (of_column(TILE) * vocabulary + TILE * of_row) * TILE;
            return Self { rows: rows.clamp(TILE.min(targets), targets), width: vocabulary };
        }
        let rows = targets.min(SCRATCH / 2 / of_row);
        let width = (SCRATCH - rows * of_row) / of_column(rows) / TILE * TILE;
        Self { rows, width: width.min(vocabulary).max(TILE.min(vocabulary)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the size of a chunk's scratch memory in bytes, for one split.
    fn bytes(slabs: Slabs, hidden: usize) -> usize {
        let Slabs { rows, width } = slabs;
        rows * (2 * width + 8 * width.div_ceil(STRIP) + 6 * hidden)
    }

    #[test]
    fn a_full_pack_of_the_2b_head_is_one_chunk_of_half_a_gigabyte_or_two_of_one_and_a_half() {
        let frozen = Slabs::new(5376, 2048, 248_320, false);
        assert_eq!(frozen.rows, 5376);
        assert!(frozen.width >= 32_768 && bytes(frozen, 2048) <= 512_000_000, "{frozen:?}");
        let trained = Slabs::new(5376, 2048, 248_320, true);
        assert_eq!(trained, Slabs { rows: 2688, width: 248_320 });
        assert!(bytes(trained, 2048) <= 1_500_000_000, "{trained:?}");
    }

    #[test]
    fn a_few_targets_of_a_small_vocabulary_are_one_slab() {
        assert_eq!(Slabs::new(3, 64, 512, false), Slabs { rows: 3, width: 512 });
        assert_eq!(Slabs::new(3, 64, 72, true), Slabs { rows: 3, width: 72 });
    }
}
