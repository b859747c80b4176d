//! Several examples in one launch of a decoding step, each with buffers of its own (`device/examples.cuh`).

use std::ops::Range;

use super::launch::{Kernel, Sizes};
use super::tensor::{CudaTensor, dims, empty, rows};

/// The largest number of examples in one launch.
const EXAMPLES: usize = 8;

/// The examples of one launch.
pub(crate) struct Examples {
    /// Which of all they are.
    pub(crate) range: Range<usize>,
    /// The most rows that one of them has.
    pub(crate) most: usize,
    /// The rows of all of them.
    pub(crate) rows: Range<usize>,
    /// Where the rows of each begin, and for those that are not there, the end.
    borders: [u32; EXAMPLES + 1],
}

impl Examples {
    /// Distributes examples with so many rows each, which lie one after the other, over launches.
    pub(crate) fn of_launches(counts: &[usize]) -> Vec<Self> {
        let (mut launches, mut first_row) = (Vec::new(), 0);
        for (launch, counts) in counts.chunks(EXAMPLES).enumerate() {
            let place = |i: usize| first_row + counts.iter().take(i).sum::<usize>();
            let rows = place(0)..place(EXAMPLES);
            launches.push(Self {
                range: launch * EXAMPLES..launch * EXAMPLES + counts.len(),
                most: counts.iter().copied().max().unwrap_or(0),
                borders: std::array::from_fn(|i| place(i) as u32),
                rows: rows.clone(),
            });
            first_row = rows.end;
        }
        launches
    }

    /// Appends the field `ExampleRows`.
    pub(crate) fn push_rows(&self, sizes: &mut Sizes) {
        self.borders.into_iter().for_each(|border| sizes.push(border));
    }

    /// Appends a field with a number of each example.
    pub(crate) fn push_each(&self, sizes: &mut Sizes, number: impl Fn(usize) -> usize) {
        for i in 0..EXAMPLES {
            let number = self.range.clone().nth(i).map_or(0, &number);
            sizes.push(u32::try_from(number).expect("the tokens of an example are few enough"));
        }
    }
}

impl Kernel {
    /// Adds arguments: a buffer of each example that the kernel only reads.
    pub(crate) fn read_each(self, buffers: &[CudaTensor]) -> Self {
        of_each(buffers).fold(self, |kernel, buffer| kernel.read(buffer))
    }

    /// Adds arguments: a buffer of each example that the kernel writes without reading it.
    pub(crate) fn write_each(self, buffers: &[CudaTensor]) -> Self {
        of_each(buffers).fold(self, |kernel, buffer| kernel.write(buffer))
    }

    /// Adds arguments: a buffer of each example that the kernel writes in part.
    pub(crate) fn update_each(self, buffers: &[CudaTensor]) -> Self {
        of_each(buffers).fold(self, |kernel, buffer| kernel.update(buffer))
    }
}

/// For examples that are not there, any buffer can be passed.
fn of_each(buffers: &[CudaTensor]) -> impl Iterator<Item = &CudaTensor> {
    (0..EXAMPLES).map(|i| &buffers[i.min(buffers.len() - 1)])
}

/// Continues examples with so many rows each from these states. `launch` gets the examples of a launch, their
/// states, and memory for the next ones. Returns for each example the state behind its last row, or with
/// `each` behind each of its rows.
pub(crate) fn continued(
    before: &[CudaTensor],
    counts: &[usize],
    each: bool,
    launch: impl Fn(&Examples, &[CudaTensor], &[CudaTensor]),
) -> Vec<Vec<CudaTensor>> {
    let mut states = Vec::new();
    for examples in Examples::of_launches(counts) {
        let before = &before[examples.range.clone()];
        let kept = counts[examples.range.clone()].iter().map(|count| if each { *count } else { 1 });
        let room = |(before, kept): (&CudaTensor, usize)| {
            empty(before, [kept * dims(before).0, dims(before).1], before.dtype)
        };
        let after: Vec<_> = before.iter().zip(kept).map(room).collect();
        launch(&examples, before, &after);
        states.extend(before.iter().zip(&after).map(|(before, after)| {
            let height = dims(before).0;
            (0..dims(after).0).step_by(height).map(|first| rows(after, first, height)).collect::<Vec<_>>()
        }));
    }
    states
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_distributed_over_launches_in_order() {
        let launches = Examples::of_launches(&[1, 4, 1, 1, 2, 1, 1, 1, 3, 5]);
        let [first, second] = &launches[..] else { panic!("{} launches", launches.len()) };
        assert_eq!((first.range.clone(), first.rows.clone(), first.most), (0..8, 0..12, 4));
        assert_eq!(first.borders, [0, 1, 5, 6, 7, 9, 10, 11, 12]);
        assert_eq!((second.range.clone(), second.rows.clone(), second.most), (8..10, 12..20, 5));
        assert_eq!(second.borders, [12, 15, 20, 20, 20, 20, 20, 20, 20]);
        let mut sizes = Sizes::default();
        second.push_each(&mut sizes, |example| example + 1);
        let mut expected = Sizes::default();
        [9u32, 10, 0, 0, 0, 0, 0, 0].into_iter().for_each(|number| expected.push(number));
        assert_eq!(sizes, expected);
    }
}
