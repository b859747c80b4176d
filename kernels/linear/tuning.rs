//! Chooses the tile of each matrix product: the fastest one if it was measured, otherwise the estimated one.
//!
//! The tile does not change any bit of a result, which `linear.test.cpp` and `lora_linear.test.cpp` check, so
//! the known tiles may change between two launches. The number of parts that `k` is split into does change
//! bits; it always comes from the estimate, and a tile is measured for that number of parts.
//!
//! The known tiles belong to a thread, like the device's queue. This module must not know files; it reads and
//! writes lines of text.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::tile::{ALL, Tile, WIDE};

/// The kernels that compute products, and the tiles each is compiled with.
pub(super) const KERNELS: [(&str, &[Tile]); 5] = [
    ("linear_forward", &ALL),
    ("linear_backward_input", &ALL),
    ("linear_backward_weight", &ALL),
    ("lora_linear_forward", &WIDE),
    ("lora_linears_backward_input", &WIDE),
];

/// A product to be computed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// One of [`KERNELS`].
    pub(crate) kernel: &'static str,
    /// All sizes except the number of tokens, in the order of [`shapes`](Self::shapes).
    pub(crate) sizes: Vec<usize>,
    /// The number of parts that `k` is split into.
    pub(crate) splits: usize,
    pub(crate) tokens: usize,
}

/// The tiles that a thread knows.
#[derive(Default)]
struct Known {
    measured: BTreeMap<Problem, Tile>,
    /// The products that were computed in an estimated tile, while they are recorded.
    missed: Option<BTreeSet<Problem>>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Returns the tile for a product.
pub(crate) fn tile(problem: Problem, estimated: Tile) -> Tile {
    KNOWN.with_borrow_mut(|known| {
        let measured = known.measured_for(&problem);
        if let (None, Some(missed)) = (measured, &mut known.missed) {
            missed.insert(problem);
        }
        measured.unwrap_or(estimated)
    })
}

/// Sets the tile of a product from now on.
pub fn remember(problem: &Problem, tile: Tile) {
    KNOWN.with_borrow_mut(|known| known.measured.insert(problem.clone(), tile));
}

/// Replaces all tiles by those in the output of [`learned`].
///
/// # Errors
/// The number of a line that does not name a product, or whose tile the kernel is not compiled with. No tiles
/// are known then.
pub fn learn(lines: &str) -> Result<(), usize> {
    let measured = lines.lines().zip(1..).map(|(line, number)| measured(line).ok_or(number));
    let measured = measured.collect::<Result<_, _>>();
    KNOWN.with_borrow_mut(|known| known.measured = measured.clone().unwrap_or_default());
    measured.map(drop)
}

/// Returns all measured tiles, one line for each.
pub fn learned() -> String {
    KNOWN.with_borrow(|known| {
        known.measured.iter().map(|(problem, tile)| format!("{problem} {tile}\n")).collect()
    })
}

/// Starts to record the products that are computed in an estimated tile.
pub fn listen() {
    KNOWN.with_borrow_mut(|known| known.missed = Some(BTreeSet::new()));
}

/// Returns the products recorded since [`listen`], and stops recording. One product represents all those with
/// a similar number of tokens.
pub fn missed() -> Vec<Problem> {
    let missed = KNOWN.with_borrow_mut(|known| known.missed.take()).unwrap_or_default();
    let mut different: Vec<Problem> = Vec::new();
    for problem in missed.into_iter().rev() {
        let is_near = |last: &Problem| last.near().contains(&problem);
        if !different.last().is_some_and(is_near) {
            different.push(problem);
        }
    }
    different
}

impl Known {
    fn measured_for(&self, problem: &Problem) -> Option<Tile> {
        let near = self.measured.range(problem.near());
        near.min_by_key(|(of, _)| of.tokens.abs_diff(problem.tokens)).map(|(_, tile)| *tile)
    }
}

/// Parses a line of [`learned`].
fn measured(line: &str) -> Option<(Problem, Tile)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [kernel, sizes, splits, tokens, tile] = fields[..] else { return None };
    let (kernel, tiles) = *KERNELS.iter().find(|(name, _)| *name == kernel)?;
    let sizes = sizes.split(',').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let tile = tiles.iter().find(|compiled| compiled.to_string() == tile)?;
    Some((Problem { kernel, sizes, splits: splits.parse().ok()?, tokens: tokens.parse().ok()? }, *tile))
}

/// Formats a line without its tile.
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Self { kernel, sizes, splits, tokens } = self;
        let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
        write!(f, "{kernel} {} {splits} {tokens}", sizes.join(","))
    }
}

impl Problem {
    /// Returns the range of the same product with half to twice as many tokens, for which the same tile is
    /// used.
    fn near(&self) -> std::ops::RangeInclusive<Self> {
        let with = |tokens| Self { tokens, ..self.clone() };
        with(self.tokens.div_ceil(2))..=with(self.tokens.saturating_mul(2))
    }

    /// `m`, `n` and `k`, and its operands in the order in which a launch takes them.
    pub(super) fn shapes(&self) -> ([usize; 3], Vec<[usize; 2]>) {
        let t = self.tokens;
        match (self.kernel, &self.sizes[..]) {
            ("linear_forward", &[n, k]) => ([t, n, k], vec![[t, k], [n, k]]),
            ("linear_backward_input", &[n, k]) => ([t, n, k], vec![[t, k], [k, n]]),
            ("linear_backward_weight", &[m, n]) => ([m, n, t], vec![[t, m], [t, n]]),
            ("lora_linear_forward", &[n, k, rank]) => {
                ([t, n, k + rank], vec![[t, k], [n, k], [t, rank], [n, rank]])
            }
            ("lora_linears_backward_input", &[n, rank, ref outputs @ ..]) => {
                let adapters = (rank > 0).then_some([[t, rank], [rank, n]]);
                let d_y = outputs.iter().map(|outputs| [t, *outputs]);
                let weights = outputs.iter().map(|outputs| [*outputs, n]);
                let operands = adapters.into_iter().flatten().chain(d_y).chain(weights).collect();
                ([t, n, outputs.iter().sum::<usize>() + rank], operands)
            }
            other => unreachable!("{other:?} is no product"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::linear) fn problem(
        kernel: &'static str,
        sizes: &[usize],
        splits: usize,
        tokens: usize,
    ) -> Problem {
        Problem { kernel, sizes: sizes.to_vec(), splits, tokens }
    }

    /// Returns a problem for every kernel, with odd numbers of tokens.
    pub(in crate::linear) fn problems() -> Vec<Problem> {
        vec![
            problem("linear_forward", &[72, 40], 1, 67),
            problem("linear_backward_input", &[40, 72], 1, 67),
            problem("linear_backward_input", &[40, 12], 1, 67),
            problem("linear_backward_weight", &[72, 40], 1, 67),
            problem("linear_backward_weight", &[8, 16], 2, 700),
            problem("linear_backward_weight", &[4, 16], 1, 67),
            problem("lora_linear_forward", &[72, 40, 24], 1, 67),
            problem("lora_linears_backward_input", &[40, 24, 72, 12, 16], 1, 67),
            problem("lora_linears_backward_input", &[40, 0, 72, 16], 1, 67),
        ]
    }

    #[test]
    fn what_was_learned_is_read_back_and_nothing_else() {
        learn("").unwrap();
        for (problem, tile) in problems().iter().zip(WIDE.iter().cycle()) {
            remember(problem, *tile);
        }
        let lines = learned();
        assert_eq!(lines.lines().count(), problems().len());
        assert!(
            lines.contains("lora_linears_backward_input 40,24,72,12,16 1 67 128,256,32,2,4,4\n"),
            "{lines}"
        );
        learn("").unwrap();
        assert_eq!(learned(), "");
        learn(&lines).unwrap();
        assert_eq!(learned(), lines);
        let good = "linear_forward 72,40 1 67 16,64,64,1,4,4\n";
        for bad in [
            "",
            "linear_forward",
            "linear_sideways 72,40 1 67 16,64,64,1,4,4",
            "linear_forward 72,forty 1 67 16,64,64,1,4,4",
            "linear_forward 72,40 -1 67 16,64,64,1,4,4",
            // Not compiled, or not with this kernel.
            "linear_forward 72,40 1 67 512,512,32,2,2,3",
            "lora_linear_forward 72,40,24 1 67 16,64,64,1,4,4",
        ] {
            assert_eq!(learn(&format!("{good}{bad}\n{good}")), Err(2), "{bad}");
            assert_eq!(learned(), "", "{bad}");
        }
    }

    #[test]
    fn a_tile_is_taken_for_half_to_twice_as_many_tokens_of_the_same_product() {
        learn("linear_forward 72,40 1 100 64,64,64,2,2,3\nlinear_forward 72,40 1 300 128,128,32,2,2,3\n")
            .unwrap();
        listen();
        let of = |tokens, sizes: &[usize]| tile(problem("linear_forward", sizes, 1, tokens), ALL[4]);
        for (tokens, expected) in [(49, 4), (50, 2), (100, 2), (180, 2), (240, 0), (600, 0), (601, 4)] {
            assert_eq!(of(tokens, &[72, 40]), ALL[expected], "{tokens}");
        }
        assert_eq!(of(100, &[40, 72]), ALL[4]);
        assert_eq!(tile(problem("linear_backward_weight", &[72, 40], 1, 100), ALL[4]), ALL[4]);
        // The product with 601 tokens represents the one with 400.
        learn("").unwrap();
        assert_eq!(of(400, &[72, 40]), ALL[4]);
        let missed_ones: Vec<String> = missed().iter().map(Problem::to_string).collect();
        let expected = [
            "linear_forward 72,40 1 601",
            "linear_forward 72,40 1 49",
            "linear_forward 40,72 1 100",
            "linear_backward_weight 72,40 1 100",
        ];
        assert_eq!(missed_ones, expected);
        of(1, &[8, 8]);
        assert_eq!(missed(), [], "nobody listens");
    }
}
