//! Chooses the tile of each matrix product: the fastest one if it was measured, otherwise the estimated one.
//!
//! The tile does not change any bit of a result, which `linear.test.cpp` and `lora_linear.test.cpp` check, so
//! the known tiles may change between two launches. The number of parts that `k` is split into does change
//! bits; it always comes from the estimate, and a tile is measured for that number of parts.
//!
//! **By whom.** A product may also be left to the vendor's library (`cublaslt`), where it was measured to be
//! faster than the best tile. That does change bits. So it happens only where [`use_library`] allows it, by a
//! [`Decision`] that is recorded with the run ([`decisions`], [`decide`]).
//!
//! What is known belongs to a thread, like the device's queue. This module must not know files; it reads and
//! writes lines of text.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::tile::{ALL, Tile, WIDE};
use crate::cublaslt::{Algorithm, Form};

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
    /// The version of the library that products may be left to.
    library: Option<usize>,
    /// Whether nothing more is decided: a product without a decision is computed by our kernel.
    is_settled: bool,
    /// The products that were computed in an estimated tile, or without a decision, while they are recorded.
    missed: Option<BTreeSet<Problem>>,
}

thread_local! {
    static KNOWN: RefCell<Known> = RefCell::default();
}

/// Returns the tile for a product.
pub(crate) fn tile(problem: Problem, estimated: Tile) -> Tile {
    KNOWN.with_borrow_mut(|known| {
        let measured = nearest(&known.measured, &problem).copied();
        let is_undecided = !known.is_settled
            && known.library.is_some_and(|version| {
                !nearest(&known.decided, &problem).is_some_and(|decision| decision.is_of(version))
            });
        if let (true, Some(missed)) = (measured.is_none() || is_undecided, &mut known.missed) {
            missed.insert(problem);
        }
        measured.unwrap_or(estimated)
    })
}

/// Returns the algorithms by which the library computes a product; `None` if our kernel does.
pub(crate) fn algorithms(problem: &Problem) -> Option<Vec<Algorithm>> {
    KNOWN.with_borrow(|known| {
        let version = known.library?;
        match nearest(&known.decided, problem)? {
            decision @ Decision::Library(algorithms) if decision.is_of(version) => Some(algorithms.clone()),
            _ => None,
        }
    })
}

/// Says which version of the library products may be left to from now on; `None` allows none.
pub fn use_library(version: Option<usize>) {
    KNOWN.with_borrow_mut(|known| (known.library, known.is_settled) = (version, false));
}

/// Leaves it at what has been decided, until the next [`use_library`].
pub fn settle_decisions() {
    KNOWN.with_borrow_mut(|known| known.is_settled = true);
}

/// Returns the version of the library that products may newly be left to.
pub(super) fn library() -> Option<usize> {
    KNOWN.with_borrow(|known| known.library.filter(|_| !known.is_settled))
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
    KNOWN.with_borrow_mut(|known| known.decided.insert(problem.clone(), decision));
}

/// Returns the decisions that hold with the library in use, one line for each: what makes the bits of a run
/// differ from those of another.
pub fn decisions() -> String {
    KNOWN.with_borrow(|known| {
        let holds = |decision: &Decision| known.library.is_some_and(|version| decision.is_of(version));
        let held = known.decided.iter().filter(|(_, decision)| holds(decision));
        held.map(|(problem, decision)| format!("{problem} {decision}\n")).collect()
    })
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
/// The number of a line that is no decision. Nothing is changed then.
pub fn decide_as(lines: &str) -> Result<(), usize> {
    let decided = lines.lines().zip(1usize..).map(|(line, number)| match parse(line) {
        Some((problem, Line::By(decision))) => Ok((problem, decision)),
        _ => Err(number),
    });
    let decided = decided.collect::<Result<_, _>>()?;
    KNOWN.with_borrow_mut(|known| known.decided = decided);
    Ok(())
}

/// Sets the tile of a product from now on.
pub fn remember(problem: &Problem, tile: Tile) {
    KNOWN.with_borrow_mut(|known| known.measured.insert(problem.clone(), tile));
}

/// Replaces all tiles and decisions by those in the output of [`learned`].
///
/// # Errors
/// The number of a line that does not name a product, or whose tile the kernel is not compiled with. Nothing
/// is known then.
pub fn learn(lines: &str) -> Result<(), usize> {
    let (mut measured, mut decided) = (BTreeMap::new(), BTreeMap::new());
    let read = lines.lines().zip(1usize..).try_for_each(|(line, number)| {
        match parse(line).ok_or(number)? {
            (problem, Line::Tile(tile)) => drop(measured.insert(problem, tile)),
            (problem, Line::By(decision)) => drop(decided.insert(problem, decision)),
        }
        Ok(())
    });
    if read.is_err() {
        measured.clear();
        decided.clear();
    }
    KNOWN.with_borrow_mut(|known| (known.measured, known.decided) = (measured, decided));
    read
}

/// Returns all measured tiles and all decisions, one line for each.
pub fn learned() -> String {
    KNOWN.with_borrow(|known| {
        let tiles = known.measured.iter().map(|(problem, tile)| format!("{problem} {tile}\n"));
        let decided = known.decided.iter().map(|(problem, decision)| format!("{problem} {decision}\n"));
        tiles.chain(decided).collect()
    })
}

/// Starts to record the products that are computed in an estimated tile, or for which it is not decided by
/// whom they are computed.
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

/// What a line of [`learned`] says about a product.
enum Line {
    Tile(Tile),
    By(Decision),
}

/// Parses a line of [`learned`].
fn parse(line: &str) -> Option<(Problem, Line)> {
    let fields: Vec<&str> = line.split(' ').collect();
    let (product, by) = match fields[..] {
        [kernel, sizes, splits, tokens, tile] => ([kernel, sizes, splits, tokens], Err(tile)),
        [kernel, sizes, splits, tokens, BY, decision] => ([kernel, sizes, splits, tokens], Ok(decision)),
        _ => return None,
    };
    let [kernel, sizes, splits, tokens] = product;
    let (kernel, tiles) = *KERNELS.iter().find(|(name, _)| *name == kernel)?;
    let sizes = sizes.split(',').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    let said = match by {
        Ok(decision) => Line::By(Decision::parse(decision)?),
        Err(tile) => Line::Tile(*tiles.iter().find(|compiled| compiled.to_string() == tile)?),
    };
    Some((Problem { kernel, sizes, splits: splits.parse().ok()?, tokens: tokens.parse().ok()? }, said))
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

    /// The products of two matrices of which this one is the sum: their forms, and the places of their
    /// operands. What an adapter adds is not among them; our kernel computes it first.
    pub(super) fn parts(&self) -> Vec<(Form, [usize; 2])> {
        let t = self.tokens;
        match (self.kernel, &self.sizes[..]) {
            ("linear_forward", &[n, k]) => vec![(Form::forward([t, n, k]), [0, 1])],
            ("linear_backward_input", &[n, k]) => vec![(Form::input([t, n, k]), [0, 1])],
            ("linear_backward_weight", &[m, n]) => vec![(Form::weight([m, n, t]), [0, 1])],
            ("lora_linear_forward", &[n, k, _]) => vec![(Form::forward([t, n, k]), [0, 1])],
            ("lora_linears_backward_input", &[n, rank, ref outputs @ ..]) => {
                let first = if rank > 0 { 2 } else { 0 };
                let part = |(i, k): (usize, &usize)| {
                    (Form::input([t, n, *k]), [first + i, first + outputs.len() + i])
                };
                outputs.iter().enumerate().map(part).collect()
            }
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
        learn(&format!("{tile}{of_then}{of_now}{own}")).unwrap();
        assert_eq!(learned(), format!("{tile}{own}{of_then}{of_now}"));
        let asked = |sizes: &[usize]| algorithms(&problem("linear_forward", sizes, 1, 60));
        use_library(None);
        assert_eq!((asked(&[72, 40]), decisions()), (None, String::new()));
        use_library(Some(130_002));
        assert_eq!(asked(&[72, 40]).map(|found| found.len()), Some(1));
        assert_eq!((asked(&[40, 72]), asked(&[8, 8]), asked(&[9, 9])), (None, None, None));
        assert_eq!(decisions(), format!("{own}{of_now}"));
        for bad in ["linear_forward 8,8 1 9 by", "linear_forward 8,8 1 9 by me", tile.trim_end()] {
            assert_eq!(decide_as(&format!("{own}{bad}")), Err(2), "{bad}");
        }
        assert_eq!(decisions(), format!("{own}{of_now}"));
        decide_as(own).unwrap();
        assert_eq!((decisions(), super::by_library()), (own.to_owned(), (0, 1)));
        use_library(None);
    }

    #[test]
    fn a_product_without_a_decision_is_missed_only_where_the_library_may_be_used() {
        learn("linear_forward 72,40 1 100 64,64,64,2,2,3\n").unwrap();
        let missed_with = |version| {
            use_library(version);
            listen();
            tile(problem("linear_forward", &[72, 40], 1, 100), ALL[4]);
            use_library(None);
            missed().len()
        };
        assert_eq!([missed_with(None), missed_with(Some(130_002))], [0, 1]);
        decide(&problem("linear_forward", &[72, 40], 1, 100), Decision::Own(130_002));
        assert_eq!(missed_with(Some(130_002)), 0);
        // Another version may be faster.
        assert_eq!(missed_with(Some(130_100)), 1);
        // Nobody decides any more.
        use_library(Some(130_100));
        settle_decisions();
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
