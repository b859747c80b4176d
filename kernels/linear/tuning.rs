//! Chooses the tile of each matrix product: the fastest one if it was measured, otherwise the estimated one.
//!
//! The tile does not change any bit of a result, which `linear.test.cpp` and `lora_linear.test.cpp` check, so
//! the known tiles may change between two launches. The number of parts that `k` is split into does change
//! bits; it always comes from the estimate, and a tile is measured for that number of parts.
//!
//! **By whom.** A product may also be left to the vendor's library (`cublaslt`), where it was measured to be
//! faster than the best tile. That does change bits. So it happens only where [`use_library`] allows it, by a
//! [`Decision`] that is recorded with the run ([`decisions`], [`decide_as`]). A decision holds for half to
//! twice as many tokens too, where the library says that its algorithm computes them; where it says that it
//! does not, our kernel does, and that is recorded as well. So who computes a product follows from the
//! record, the device and the library alone, and not from what was computed before.
//!
//! What is known belongs to a thread, like the device's queue. This module must not know files; it reads and
//! writes lines of text.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::product::Product;
use super::tile::{ALL, GATED, Tile, WIDE};
use crate::cublaslt::{self, Algorithm};
use crate::cuda::{CudaTensor, LAYERS};

/// The kernels that compute products, and the tiles each is compiled with.
pub(super) const KERNELS: [(&str, &[Tile]); 7] = [
    ("linear_forward", &ALL),
    ("linear_backward_input", &ALL),
    ("linear_backward_weight", &ALL),
    ("lora_linear_forward", &WIDE),
    ("lora_linears_backward_input", &WIDE),
    (GATED_OUTPUT, &GATED),
    (GATED_INPUT, &GATED),
];

/// The kernel that computes up and ends with `silu(gate) ⊙ up`.
pub(crate) const GATED_OUTPUT: &str = "gated_linear_forward";

/// The kernel that ends with the gradients of gate and up.
pub(crate) const GATED_INPUT: &str = "gated_linear_backward_input";

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

/// A product of two matrices that the library can compute.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) which: Product,
    /// `m`, `n` and `k`.
    pub(super) size: [usize; 3],
    /// The places of the two matrices among the operands of the whole product.
    pub(super) operands: [usize; 2],
}

/// Who computes a product, measured with one version of the library.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Our kernel, beside this version of the library.
    Own(usize),
    /// The library: an algorithm for each product of two matrices of which this one is the sum.
    Library(Vec<Algorithm>),
}

/// The word before a decision in a line of text.
const BY: &str = "by";
/// The last word of a line about a product that the library refuses to compute as was decided for another
/// number of tokens.
const REFUSED: &str = "refused";

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Self::Own(version) => write!(f, "{BY} own:{version}"),
            Self::Library(algorithms) => {
                let words: Vec<String> = algorithms.iter().map(Algorithm::to_string).collect();
                write!(f, "{BY} {}", words.join("+"))
            }
        }
    }
}

impl Decision {
    fn parse(word: &str) -> Option<Self> {
        if let Some(version) = word.strip_prefix("own:") {
            return version.parse().ok().map(Self::Own);
        }
        word.split('+').map(|one| one.parse().ok()).collect::<Option<_>>().map(Self::Library)
    }

    /// Whether it was measured with this version of the library.
    fn is_of(&self, version: usize) -> bool {
        match self {
            Self::Own(of) => *of == version,
            Self::Library(algorithms) => algorithms.iter().all(|one| one.version() == version),
        }
    }
}

/// What a thread knows.
#[derive(Default)]
struct Known {
    measured: BTreeMap<Problem, Tile>,
    decided: BTreeMap<Problem, Decision>,
    /// What the library has said about the products that were to be computed: the algorithms; `None` where it
    /// refuses one.
    asked: BTreeMap<Problem, Option<Vec<Algorithm>>>,
    /// The version of the library that products may be left to.
    library: Option<usize>,
    /// Whether products without a decision get one when they are measured. Otherwise our kernels compute
    /// them.
    is_deciding: bool,
    /// The products that were computed in an estimated tile, or without a decision while there are to be
    /// some, while they are recorded.
    missed: Option<BTreeSet<Problem>>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Returns the tile for a product.
pub(crate) fn tile(problem: Problem, estimated: Tile) -> Tile {
    KNOWN.with_borrow_mut(|known| {
        let measured = nearest(&known.measured, &problem).copied();
        let is_undecided = known.is_deciding
            && known.library.is_some_and(|version| {
                !nearest(&known.decided, &problem).is_some_and(|decision| decision.is_of(version))
            });
        if let (true, Some(missed)) = (measured.is_none() || is_undecided, &mut known.missed) {
            missed.insert(problem);
        }
        measured.unwrap_or(estimated)
    })
}

/// Returns the algorithms by which the library computes a product on the device of a tensor, one for each of
/// its [`parts`](Problem::parts); `None` if our kernel computes it.
pub(crate) fn algorithms(problem: &Problem, like: &CudaTensor) -> Option<Vec<Algorithm>> {
    by_decision(problem, |decided| {
        let forms = problem.parts().into_iter().map(|part| part.which.form(part.size));
        cublaslt::fitting(forms.zip(decided.iter().copied()).collect(), like)
    })
}

/// Returns the algorithms by which the library computes a product: those that were decided, as `fits` returns
/// them for its number of tokens. It is asked once for a product, and never about one that it has refused
/// before, also in an earlier process if that is recorded.
fn by_decision(
    problem: &Problem,
    fits: impl FnOnce(&[Algorithm]) -> Option<Vec<Algorithm>>,
) -> Option<Vec<Algorithm>> {
    let decided = KNOWN.with_borrow(|known| {
        let version = known.library?;
        match nearest(&known.decided, problem)? {
            decision @ Decision::Library(algorithms) if decision.is_of(version) => {
                Some(known.asked.get(problem).cloned().ok_or_else(|| algorithms.clone()))
            }
            _ => None,
        }
    });
    decided?.unwrap_or_else(|decided| {
        let found = fits(&decided);
        KNOWN.with_borrow_mut(|known| known.asked.insert(problem.clone(), found.clone()));
        found
    })
}

/// Says which version of the library products may be left to from now on, where that is decided; `None`
/// allows none.
pub fn use_library(version: Option<usize>) {
    KNOWN.with_borrow_mut(|known| {
        (known.library, known.is_deciding) = (version, false);
        known.asked.clear();
    });
}

/// Lets products that are measured from now on be decided about, as far as the library may be used.
pub fn begin_deciding() {
    KNOWN.with_borrow_mut(|known| known.is_deciding = true);
}

/// Leaves it at what has been decided, until the next [`begin_deciding`].
pub fn settle_decisions() {
    KNOWN.with_borrow_mut(|known| known.is_deciding = false);
}

/// Returns whether products may be left to the library. Then none of them is computed together with what
/// comes after it, because who computes it has to follow from the record.
pub(crate) fn may_use_library() -> bool {
    KNOWN.with_borrow(|known| known.library.is_some())
}

/// Returns the version of the library that products may newly be left to.
pub(super) fn library() -> Option<usize> {
    KNOWN.with_borrow(|known| known.library.filter(|_| known.is_deciding))
}

/// Calls `f` while our kernels compute all products.
pub(super) fn by_own_kernels<T>(f: impl FnOnce() -> T) -> T {
    let library = KNOWN.with_borrow_mut(|known| known.library.take());
    let result = f();
    KNOWN.with_borrow_mut(|known| known.library = library);
    result
}

/// Decides by whom a product is computed from now on.
pub fn decide(problem: &Problem, decision: Decision) {
    KNOWN.with_borrow_mut(|known| {
        known.decided.insert(problem.clone(), decision);
        known.asked.clear();
    });
}

/// Returns the decisions that hold with the library in use, and the products that it refused to compute by
/// them, one line for each: what makes the bits of a run differ from those of another.
pub fn decisions() -> String {
    KNOWN.with_borrow(|known| {
        let holds = |decision: &Decision| known.library.is_some_and(|version| decision.is_of(version));
        let held = known.decided.iter().filter(|(_, decision)| holds(decision));
        let held = held.map(|(problem, decision)| format!("{problem} {decision}\n"));
        let refused = refused(known).map(|problem| format!("{problem} {REFUSED}\n"));
        held.chain(refused).collect()
    })
}

/// Returns how many products the library has refused to compute as was decided, for their number of tokens.
pub fn refusals() -> usize {
    KNOWN.with_borrow(|known| refused(known).count())
}

fn refused(known: &Known) -> impl Iterator<Item = &Problem> {
    known.asked.iter().filter(|(_, found)| found.is_none()).map(|(problem, _)| problem)
}

/// Returns how many products the library computes, and how many have been decided.
pub fn by_library() -> (usize, usize) {
    KNOWN.with_borrow(|known| {
        let of_library = |decision: &&Decision| matches!(decision, Decision::Library(_));
        (known.decided.values().filter(of_library).count(), known.decided.len())
    })
}

/// Replaces all decisions by those in the output of [`decisions`].
///
/// # Errors
/// The number of a line that is neither a decision nor a refused product. Nothing is changed then.
pub fn decide_as(lines: &str) -> Result<(), usize> {
    let (mut decided, mut asked) = (BTreeMap::new(), BTreeMap::new());
    for (line, number) in lines.lines().zip(1usize..) {
        match parse(line) {
            Some((problem, Line::By(decision))) => drop(decided.insert(problem, decision)),
            Some((problem, Line::Refused)) => drop(asked.insert(problem, None)),
            _ => return Err(number),
        }
    }
    KNOWN.with_borrow_mut(|known| (known.decided, known.asked) = (decided, asked));
    Ok(())
}

/// Sets the tile of a product from now on.
pub fn remember(problem: &Problem, tile: Tile) {
    KNOWN.with_borrow_mut(|known| known.measured.insert(problem.clone(), tile));
}

/// Replaces all tiles by those in the output of [`learned`].
///
/// # Errors
/// The number of a line that does not name a product, or whose tile the kernel is not compiled with. No tile
/// is known then.
pub fn learn(lines: &str) -> Result<(), usize> {
    let measured = lines.lines().zip(1usize..).map(|(line, number)| match parse(line) {
        Some((problem, Line::Tile(tile))) => Ok((problem, tile)),
        _ => Err(number),
    });
    let measured = measured.collect::<Result<_, _>>();
    let read = measured.as_ref().map(|_| ()).map_err(|number| *number);
    KNOWN.with_borrow_mut(|known| known.measured = measured.unwrap_or_default());
    read
}

/// Returns all measured tiles, one line for each.
pub fn learned() -> String {
    KNOWN.with_borrow(|known| {
        known.measured.iter().map(|(problem, tile)| format!("{problem} {tile}\n")).collect()
    })
}

/// Starts to record the products that are computed in an estimated tile, and between [`begin_deciding`] and
/// [`settle_decisions`] those for which it is not decided by whom they are computed.
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

/// Returns what is known of the same product with the most similar number of tokens.
fn nearest<'a, T>(known: &'a BTreeMap<Problem, T>, problem: &Problem) -> Option<&'a T> {
    let near = known.range(problem.near());
    near.min_by_key(|(of, _)| of.tokens.abs_diff(problem.tokens)).map(|(_, found)| found)
}

/// What a line of [`learned`] or [`decisions`] says about a product.
enum Line {
    Tile(Tile),
    By(Decision),
    Refused,
}

/// Parses a line of [`learned`] or [`decisions`].
fn parse(line: &str) -> Option<(Problem, Line)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let [kernel, sizes, splits, tokens, said @ ..] = &fields[..] else { return None };
    let (kernel, tiles) = *KERNELS.iter().find(|(name, _)| name == kernel)?;
    let sizes: Vec<usize> = sizes.split(',').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let numbers = match kernel {
        "lora_linear_forward" | GATED_OUTPUT | GATED_INPUT => 3..=3,
        "lora_linears_backward_input" => 3..=2 + LAYERS,
        _ => 2..=2,
    };
    if !numbers.contains(&sizes.len()) {
        return None;
    }
    let problem = Problem { kernel, sizes, splits: splits.parse().ok()?, tokens: tokens.parse().ok()? };
    let said = match *said {
        [BY, decision] => {
            let decision = Decision::parse(decision)?;
            let count = problem.parts().len();
            if matches!(&decision, Decision::Library(algorithms) if algorithms.len() != count) {
                return None;
            }
            Line::By(decision)
        }
        [REFUSED] => Line::Refused,
        [tile] => Line::Tile(*tiles.iter().find(|compiled| compiled.to_string() == tile)?),
        _ => return None,
    };
    Some((problem, said))
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
            (GATED_OUTPUT, &[n, k, rank]) => {
                let adapter = (rank > 0).then_some([[t, rank], [n, rank]]);
                let others = [[t, k], [n, k], [t, n]];
                ([t, n, k + rank], others.into_iter().chain(adapter.into_iter().flatten()).collect())
            }
            (GATED_INPUT, &[n, k, rank]) => {
                let adapter = (rank > 0).then_some([[t, rank], [rank, n]]);
                let others = [[t, k], [k, n], [t, n], [t, n]];
                ([t, n, k + rank], others.into_iter().chain(adapter.into_iter().flatten()).collect())
            }
            other => unreachable!("{other:?} is no product"),
        }
    }

    /// Returns the product alone, if what comes after it may be computed in the same launch.
    pub(super) fn apart(&self) -> Option<Self> {
        let (kernel, sizes) = match (self.kernel, &self.sizes[..]) {
            (GATED_OUTPUT, &[n, k, 0]) => ("linear_forward", vec![n, k]),
            (GATED_OUTPUT, sizes) => ("lora_linear_forward", sizes.to_vec()),
            (GATED_INPUT, &[n, k, 0]) => ("linear_backward_input", vec![n, k]),
            (GATED_INPUT, &[n, k, rank]) => ("lora_linears_backward_input", vec![n, rank, k]),
            _ => return None,
        };
        Some(Self { kernel, sizes, ..self.clone() })
    }

    /// The products of two matrices of which this one is the sum. What an adapter adds is not among them; our
    /// kernel computes it first. There are none where the library cannot compute what comes after the
    /// product.
    pub(super) fn parts(&self) -> Vec<Part> {
        let t = self.tokens;
        let one = |which, size| vec![Part { which, size, operands: [0, 1] }];
        match (self.kernel, &self.sizes[..]) {
            ("linear_forward", &[n, k]) => one(Product::Forward, [t, n, k]),
            ("linear_backward_input", &[n, k]) => one(Product::Input, [t, n, k]),
            ("linear_backward_weight", &[m, n]) => one(Product::Weight, [m, n, t]),
            ("lora_linear_forward", &[n, k, _]) => one(Product::Forward, [t, n, k]),
            ("lora_linears_backward_input", &[n, rank, ref outputs @ ..]) => {
                let first = if rank > 0 { 2 } else { 0 };
                let part = |(i, k): (usize, &usize)| {
                    let operands = [first + i, first + outputs.len() + i];
                    Part { which: Product::Input, size: [t, n, *k], operands }
                };
                outputs.iter().enumerate().map(part).collect()
            }
            (GATED_OUTPUT | GATED_INPUT, _) => Vec::new(),
            other => unreachable!("{other:?} is no product"),
        }
    }

    /// Whether what the library computes is added to what our kernel computed first.
    pub(super) fn begins_with_adapter(&self) -> bool {
        match self.kernel {
            "lora_linear_forward" => true,
            "lora_linears_backward_input" => self.sizes[1] > 0,
            _ => false,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use proptest::prelude::*;

    use super::*;

    pub(crate) fn problem(kernel: &'static str, sizes: &[usize], splits: usize, tokens: usize) -> Problem {
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
            problem(GATED_OUTPUT, &[72, 40, 24], 1, 67),
            problem(GATED_OUTPUT, &[72, 40, 0], 1, 67),
            problem(GATED_INPUT, &[136, 72, 24], 1, 67),
            problem(GATED_INPUT, &[40, 12, 0], 1, 67),
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
            lines.contains("lora_linears_backward_input 40,24,72,12,16 1 67 64,64,64,2,2,3\n"),
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

    /// Returns a line by which the library, in this version, computes a product with 100 tokens.
    fn by_library(sizes: &str, version: usize) -> String {
        format!("linear_forward {sizes} 1 100 by {version}:0:{}\n", "0123456789abcdef".repeat(8))
    }

    #[test]
    fn decisions_are_read_back_and_hold_only_for_the_version_in_use() {
        let (tile, own) =
            ("linear_forward 72,40 1 100 64,64,64,2,2,3\n", "linear_forward 8,8 1 9 by own:130002\n");
        let (of_now, of_then) = (by_library("72,40", 130_002), by_library("40,72", 120_804));
        learn(tile).unwrap();
        use_library(None);
        decide_as(&format!("{of_then}{of_now}{own}")).unwrap();
        assert_eq!(learned(), tile);
        let fits = |decided: &[Algorithm]| Some(decided.to_vec());
        let asked = |sizes: &[usize]| by_decision(&problem("linear_forward", sizes, 1, 60), fits);
        assert_eq!((asked(&[72, 40]), decisions()), (None, String::new()));
        use_library(Some(130_002));
        assert_eq!(asked(&[72, 40]).map(|found| found.len()), Some(1));
        assert_eq!((asked(&[40, 72]), asked(&[8, 8]), asked(&[9, 9])), (None, None, None));
        assert_eq!(decisions(), format!("{own}{of_now}"));
        let algorithm = of_now.trim_end().rsplit(' ').next().unwrap();
        for bad in [
            "linear_forward 8,8 1 9 by",
            "linear_forward 8,8 1 9 by me",
            "linear_forward 8,8 1 9 refused by",
            "linear_forward 8 1 9 by own:130002",
            "linear_forward 8,8,8 1 9 refused",
            "lora_linears_backward_input 8,8 1 9 refused",
            "lora_linears_backward_input 8,8,1,1,1,1,1 1 9 refused",
            // One algorithm too many, and one too few.
            &format!("linear_forward 8,8 1 9 by {algorithm}+{algorithm}"),
            &format!("lora_linears_backward_input 8,8,8,8 1 9 by {algorithm}"),
            tile.trim_end(),
        ] {
            assert_eq!(decide_as(&format!("{own}{bad}")), Err(2), "{bad}");
            assert_eq!(learn(&format!("{tile}{bad}")).is_err(), bad != tile.trim_end(), "{bad}");
        }
        assert_eq!(decisions(), format!("{own}{of_now}"));
        decide_as(own).unwrap();
        assert_eq!((decisions(), super::by_library()), (own.to_owned(), (0, 1)));
        use_library(None);
    }

    proptest! {
        /// Whatever was computed before, in this process or in those whose record it follows.
        #[test]
        fn who_computes_a_product_follows_from_the_record_and_the_library_alone(
            decided in prop::collection::btree_map(1usize..400, any::<bool>(), 1..5),
            first in prop::collection::vec(1usize..900, 0..30),
            then in prop::collection::vec(1usize..900, 1..30),
            refuses in 2usize..5,
        ) {
            let of = |tokens| problem("linear_forward", &[72, 40], 1, tokens);
            let line = |(tokens, by): (&usize, &bool)| if *by {
                by_library("72,40", 130_002).replace(" 100 ", &format!(" {tokens} "))
            } else {
                format!("{} by own:130002\n", of(*tokens))
            };
            let lines: String = decided.iter().map(line).collect();
            let questions = Cell::new(0);
            let ask = |tokens: usize| {
                let fits = |found: &[Algorithm]| {
                    questions.set(questions.get() + 1);
                    (!tokens.is_multiple_of(refuses)).then(|| found.to_vec())
                };
                by_decision(&of(tokens), fits).is_some()
            };
            let expected = |tokens: usize| {
                let near = decided.keys().filter(|of| (tokens.div_ceil(2)..=2 * tokens).contains(*of));
                let nearest = near.min_by_key(|of| of.abs_diff(tokens));
                nearest.is_some_and(|of| decided[of]) && !tokens.is_multiple_of(refuses)
            };
            use_library(Some(130_002));
            decide_as(&lines).unwrap();
            for tokens in first.iter().chain(&then) {
                prop_assert_eq!(ask(*tokens), expected(*tokens), "{} tokens", tokens);
            }
            let record = decisions();
            use_library(Some(130_002));
            decide_as(&record).unwrap();
            prop_assert_eq!(decisions(), record.clone());
            questions.set(0);
            for tokens in &then {
                prop_assert_eq!(ask(*tokens), expected(*tokens), "{} tokens, continued", tokens);
            }
            // Nothing new was refused, and what was is not asked again.
            prop_assert_eq!(decisions(), record);
            let once: BTreeSet<&usize> = then.iter().filter(|tokens| expected(**tokens)).collect();
            prop_assert_eq!(questions.get(), once.len());
            use_library(None);
        }
    }

    #[test]
    fn a_product_without_a_decision_is_missed_only_while_there_are_to_be_some() {
        learn("linear_forward 72,40 1 100 64,64,64,2,2,3\n").unwrap();
        decide_as("").unwrap();
        let missed_with = |version| {
            use_library(version);
            begin_deciding();
            listen();
            tile(problem("linear_forward", &[72, 40], 1, 100), ALL[4]);
            settle_decisions();
            use_library(None);
            missed().len()
        };
        assert_eq!([missed_with(None), missed_with(Some(130_002))], [0, 1]);
        decide(&problem("linear_forward", &[72, 40], 1, 100), Decision::Own(130_002));
        assert_eq!(missed_with(Some(130_002)), 0);
        // Another version may be faster.
        assert_eq!(missed_with(Some(130_100)), 1);
        // Nobody decides.
        use_library(Some(130_100));
        listen();
        tile(problem("linear_forward", &[72, 40], 1, 100), ALL[4]);
        assert_eq!(missed(), []);
        use_library(None);
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
