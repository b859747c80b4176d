//! Estimates the best tile for a product of matrices from its sizes.

use std::fmt;

/// The rows, columns and depth of a block's tile, its warps along rows and columns, its stages of shared
/// memory, and the bytes that L2 fetches ahead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tile {
    pub(crate) m: usize,
    pub(crate) n: usize,
    k: usize,
    warps_m: usize,
    warps_n: usize,
    stages: usize,
    /// The bytes around each copy that L2 fetches with it; 0 leaves it to L2.
    ahead: usize,
    /// The share of the tensor cores' rate that the tile's own memory traffic leaves.
    share: f64,
}

const fn tile(
    m: usize,
    n: usize,
    k: usize,
    warps_m: usize,
    warps_n: usize,
    stages: usize,
    share: f64,
) -> Tile {
    Tile { m, n, k, warps_m, warps_n, stages, ahead: 0, share }
}

/// The tiles that both `linear.cuh` and `lora_linear.cuh` are compiled with. The last two are the first in
/// other ways, which only a device can tell apart: the estimate takes them to be as fast.
pub(crate) const WIDE: [Tile; 5] = [
    tile(128, 128, 32, 2, 2, 3, 1.0),
    tile(128, 256, 32, 2, 4, 4, 1.0),
    tile(64, 64, 64, 2, 2, 3, 0.75),
    tile(128, 128, 32, 2, 2, 2, 1.0),
    Tile { ahead: 128, ..tile(128, 128, 32, 2, 2, 3, 1.0) },
];

/// All tiles `linear.cuh` is compiled with: [`WIDE`], and two for products with a short side.
pub(crate) const ALL: [Tile; 7] = [
    WIDE[0],
    WIDE[1],
    WIDE[2],
    tile(64, 16, 64, 4, 1, 4, 0.25),
    tile(16, 64, 64, 1, 4, 4, 0.25),
    WIDE[3],
    WIDE[4],
];

/// No tile: the product in a launch of its own, and what comes after it in another.
pub(crate) const APART: Tile = tile(0, 0, 0, 0, 0, 0, 0.0);

/// The ways of a product that ends with `silu(gate) ⊙ up`, or with the gradients of gate and up: [`WIDE`],
/// and two launches.
pub(crate) const GATED: [Tile; 6] = [WIDE[0], WIDE[1], WIDE[2], WIDE[3], WIDE[4], APART];

/// The tiles that `fp8.cuh` is compiled with. On sm_90a, where e4m3 products use f16 ones, more sums per
/// thread would spill registers.
pub(crate) const FP8: [Tile; 2] = [tile(128, 128, 32, 2, 4, 3, 1.0), WIDE[2]];

impl Tile {
    /// Threads of a block.
    pub(crate) fn threads(&self) -> usize {
        self.warps_m * self.warps_n * 32
    }

    /// Blocks that cover `m × n`.
    pub(crate) fn blocks(&self, m: usize, n: usize) -> usize {
        m.div_ceil(self.m) * n.div_ceil(self.n)
    }

    /// Returns the number of tiles of a column that neighbouring blocks compute, such that L2 keeps their
    /// rows while the other operand is streamed.
    pub(crate) fn group(&self, k: usize) -> u32 {
        ((8 << 20) / (2 * self.m * k.max(1))).clamp(8, 16) as u32
    }
}

/// Formats the value of `#define TILE`.
impl fmt::Display for Tile {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        if *self == APART {
            return f.write_str("apart");
        }
        let Self { m, n, k, warps_m, warps_n, stages, ahead, .. } = self;
        write!(f, "{m},{n},{k},{warps_m},{warps_n},{stages}")?;
        if *ahead > 0 { write!(f, ",{ahead}") } else { Ok(()) }
    }
}

/// The facts about a device that the estimate uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Device {
    pub(crate) multiprocessors: usize,
    /// The bf16 multiply-adds of a multiprocessor per cycle with `mma.sync`.
    products_per_cycle: f64,
    /// The bytes of memory that all multiprocessors move per cycle.
    bytes_per_cycle: f64,
}

impl Device {
    /// Returns the figures of GB10 (48 multiprocessors) or H200 (132), whichever is more similar.
    pub(crate) fn with(multiprocessors: usize) -> Self {
        let (products_per_cycle, bytes_per_cycle) =
            if multiprocessors > 100 { (1300.0, 2500.0) } else { (512.0, 90.0) };
        Self { multiprocessors, products_per_cycle, bytes_per_cycle }
    }

    /// Returns the estimated cycles of a product: the blocks of one multiprocessor times the cost of each,
    /// including its fill of 128 of `k`, and the traffic of the parts if `k` is split. This is a calculation,
    /// not a measurement.
    fn cycles(&self, tile: &Tile, [m, n, k]: [usize; 3], splits: usize) -> f64 {
        let blocks = (tile.blocks(m, n) * splits).div_ceil(self.multiprocessors) as f64;
        let each = (tile.m * tile.n) as f64 * (k.div_ceil(splits) + 128) as f64;
        let parts = if splits > 1 { 8.0 * (splits * m * n) as f64 / self.bytes_per_cycle } else { 0.0 };
        blocks * each / (tile.share * self.products_per_cycle) + parts
    }

    /// Returns the best of `tiles` for a product `[m, n, k]`, and the number of parts that `k` is split into,
    /// at most `most_splits`.
    pub(crate) fn choose(&self, tiles: &[Tile], size: [usize; 3], most_splits: usize) -> (Tile, usize) {
        // A part shorter than 512 would mostly be fill.
        let most_splits = most_splits.min(size[2].div_ceil(512)).max(1);
        let choices = tiles.iter().flat_map(|tile| (1..=most_splits).map(move |splits| (*tile, splits)));
        let best = choices.min_by(|(a, a_splits), (b, b_splits)| {
            self.cycles(a, size, *a_splits).total_cmp(&self.cycles(b, size, *b_splits))
        });
        best.expect("there are tiles")
    }

    /// Returns those of `tiles` that may be the fastest for a product `[m, n, k]` with `k` in this many
    /// parts, the best first. The estimate is assumed to be wrong by less than a factor of three.
    pub(crate) fn worth_trying(&self, tiles: &[Tile], size: [usize; 3], splits: usize) -> Vec<Tile> {
        let mut timed: Vec<_> = tiles.iter().map(|tile| (self.cycles(tile, size, splits), *tile)).collect();
        timed.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        let most = 3.0 * timed[0].0;
        timed.into_iter().take_while(|(cycles, _)| *cycles <= most).map(|(_, tile)| tile).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_products_take_wide_tiles_and_short_sides_short_ones() {
        let gb10 = Device::with(48);
        let (tile, splits) = gb10.choose(&ALL, [5376, 6144, 2048], 1);
        assert!(tile.m == 128 && tile.n >= 128 && splits == 1, "{tile:?}");
        assert_eq!(gb10.choose(&ALL, [5376, 16, 2048], 1).0.n, 16);
        assert_eq!(gb10.choose(&ALL, [1, 2048, 2048], 1).0.m, 16);
    }

    #[test]
    fn what_is_worth_trying_begins_with_the_best_and_leaves_out_the_absurd() {
        let gb10 = Device::with(48);
        for size in [[5376, 6144, 2048], [5376, 16, 2048], [1, 2048, 2048], [67, 72, 40]] {
            let tiles = gb10.worth_trying(&ALL, size, 1);
            assert_eq!(tiles[0], gb10.choose(&ALL, size, 1).0);
            assert!(tiles.len() > 1, "{size:?}: {tiles:?}");
        }
        assert_eq!(gb10.worth_trying(&ALL, [5376, 6144, 2048], 1).len(), 5);
    }

    #[test]
    fn the_tokens_are_split_where_tiles_are_too_few_to_fill_the_device() {
        let (_, splits) = Device::with(48).choose(&ALL, [128, 512, 5376], 16);
        assert!(splits > 1);
        assert_eq!(Device::with(48).choose(&ALL, [6144, 2048, 5376], 16).1, 1);
    }
}
