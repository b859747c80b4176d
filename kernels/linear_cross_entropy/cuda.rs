//! Launches of `linear_cross_entropy.cuh`, and the order in which parts of the logits are computed.

use burn::backend::Cube;
use burn::tensor::DType;
use cubecl::server::Handle;

use super::slabs::{STRIP, Slabs, TILE};
use super::{LinearCrossEntropy, Targets};
use crate::cuda::{CudaTensor, Kernel, OnCuda, as_bf16, dims, empty, empty_like, scaled, sizes, view};
use crate::linear::cuda::{aligned, device};
use crate::weight::keep;

const SOURCE: &str = "linear_cross_entropy/linear_cross_entropy.cuh";
const ROWS: &str = "linear_cross_entropy/rows.cuh";
/// The number of threads of a block that computes a tile.
const THREADS: usize = 128;
/// The number of rows that share a flag.
const ROWS_OF_FLAG: usize = 32;

fn row_threads(width: usize) -> usize {
    width.div_ceil(8).next_multiple_of(32).min(256)
}

fn group(columns: usize) -> u32 {
    ((8 << 20) / (2 * TILE * columns)).clamp(8, 16) as u32
}

fn tiles(m: usize, n: usize) -> usize {
    m.div_ceil(TILE) * n.div_ceil(TILE)
}

/// One pass over all targets.
struct Pass<'a> {
    hidden: &'a CudaTensor,
    weight: &'a CudaTensor,
    targets: &'a Targets,
    rows: Handle,
    tokens: Handle,
    slabs: Slabs,
    scale: f32,
    losses: CudaTensor,
}

/// The buffers for a chunk of targets.
struct Chunk {
    first: usize,
    rows: usize,
    x: CudaTensor,
    state: CudaTensor,
    flags: CudaTensor,
    statistics: CudaTensor,
}

/// A range of columns of the vocabulary.
#[derive(Clone, Copy)]
struct Slab {
    first: usize,
    width: usize,
}

impl<'a> Pass<'a> {
    fn new(
        hidden: &'a CudaTensor,
        weight: &'a CudaTensor,
        targets: &'a Targets,
        slabs: Slabs,
        scale: f32,
    ) -> Self {
        let (rows, tokens) = (targets.rows.on_device(hidden), targets.tokens.on_device(hidden));
        let losses = empty(hidden, [1, targets.rows.len()], DType::F32);
        Self { hidden, weight, targets, rows, tokens, slabs, scale, losses }
    }

    fn width(&self) -> usize {
        dims(self.hidden).1
    }

    fn vocabulary(&self) -> usize {
        dims(self.weight).0
    }

    fn chunks(&self) -> impl Iterator<Item = (usize, usize)> {
        let (count, rows) = (self.targets.rows.len(), self.slabs.rows);
        (0..count).step_by(rows).map(move |first| (first, rows.min(count - first)))
    }

    fn slabs(&self) -> impl Iterator<Item = Slab> {
        let (vocabulary, width) = (self.vocabulary(), self.slabs.width);
        (0..vocabulary).step_by(width).map(move |first| Slab { first, width: width.min(vocabulary - first) })
    }

    fn start(&self, first: usize, rows: usize) -> Chunk {
        let scratch = |rows, columns, dtype| empty(self.hidden, [rows, columns], dtype);
        let chunk = Chunk {
            first,
            rows,
            x: scratch(rows, self.width(), DType::BF16),
            state: scratch(5, rows, DType::F32),
            flags: scratch(1, rows.div_ceil(ROWS_OF_FLAG), DType::F32),
            statistics: scratch(self.slabs.width.div_ceil(STRIP), 2 * rows, DType::F32),
        };
        Kernel::new(ROWS, "cross_entropy_start")
            .blocks(rows)
            .threads(row_threads(self.width()))
            .read(self.hidden)
            .read(self.weight)
            .read(&self.rows)
            .read(&self.tokens)
            .write(&chunk.x)
            .write(&chunk.state)
            .launch(sizes![rows as u32, self.width() as u32, first as u32]);
        chunk
    }

    fn logits_sizes(&self, chunk: &Chunk, slab: Slab) -> crate::cuda::Sizes {
        let (rows, hidden) = (chunk.rows as u32, self.width() as u32);
        let (first, first_column, width) = (chunk.first as u32, slab.first as u32, slab.width as u32);
        sizes![rows, hidden, first, first_column, width, group(self.width())]
    }

    /// Computes the statistics of a slab's logits, and `e` if it is wanted.
    fn logits(&self, chunk: &Chunk, slab: Slab, e: Option<&CudaTensor>) {
        let name = if e.is_some() { "cross_entropy_logits" } else { "cross_entropy_statistics" };
        let kernel = Kernel::new(SOURCE, name).blocks(tiles(chunk.rows, slab.width)).threads(THREADS);
        let kernel = kernel.read(&chunk.x).read(self.weight).read(&self.tokens);
        let kernel = match e {
            Some(e) => kernel.read(&chunk.state).write(e),
            None => kernel,
        };
        kernel.write(&chunk.statistics).launch(self.logits_sizes(chunk, slab));
        Kernel::new(ROWS, "cross_entropy_rows")
            .blocks(chunk.rows.div_ceil(ROWS_OF_FLAG))
            .threads(256)
            .read(&chunk.statistics)
            .update(&chunk.state)
            .write(&chunk.flags)
            .update(&self.losses)
            .launch(sizes![chunk.rows as u32, slab.width.div_ceil(STRIP) as u32, chunk.first as u32]);
        let Some(e) = e else { return };
        Kernel::new(SOURCE, "cross_entropy_logits_again")
            .blocks(2 * device(self.hidden).multiprocessors)
            .threads(THREADS)
            .read(&chunk.x)
            .read(self.weight)
            .read(&self.tokens)
            .read(&chunk.state)
            .read(&chunk.flags)
            .update(e)
            .launch(self.logits_sizes(chunk, slab));
    }

    /// Returns the number of parts that the columns of a slab are split into for the input's gradient,
    /// because few rows alone would not fill the device.
    fn splits(&self, rows: usize) -> usize {
        let tiles = tiles(rows, self.width());
        device(self.hidden).multiprocessors.div_ceil(tiles).min(self.slabs.width.div_ceil(1024)).clamp(1, 8)
    }

    fn add_to_d_x(&self, chunk: &Chunk, slab: Slab, e: &CudaTensor, d_x: &CudaTensor, splits: usize) {
        let width_of_split = slab.width.div_ceil(splits).next_multiple_of(8);
        let hidden = self.width();
        let [rows, hidden32, first_column, width, width_of_split] =
            [chunk.rows, hidden, slab.first, slab.width, width_of_split].map(|size| size as u32);
        let accumulate = u32::from(slab.first > 0);
        Kernel::new(SOURCE, "cross_entropy_backward_input")
            .grid(tiles(chunk.rows, hidden), splits, 1)
            .threads(THREADS)
            .read(e)
            .read(self.weight)
            .read(&chunk.state)
            .update(d_x)
            .launch(sizes![rows, hidden32, first_column, width, 8u32, width_of_split, accumulate]);
    }

    fn finish(&self, chunk: &Chunk, d_x: &CudaTensor, splits: usize, d_hidden: &CudaTensor) {
        let (all, width) = dims(self.hidden);
        let rows = &self.targets.rows;
        let from = if chunk.first == 0 { 0 } else { rows[chunk.first] as usize };
        let to = rows.get(chunk.first + chunk.rows).map_or(all, |row| *row as usize);
        let threads = row_threads(width);
        let [rows, width32, first, splits, from32] =
            [chunk.rows, width, chunk.first, splits, from].map(|size| size as u32);
        Kernel::new(ROWS, "cross_entropy_finish")
            .grid(to - from, width.div_ceil(8 * threads), 1)
            .threads(threads)
            .read(d_x)
            .read(self.weight)
            .read(&self.rows)
            .read(&self.tokens)
            .read(&chunk.state)
            .read(&self.losses)
            .update(d_hidden)
            .launch(sizes![rows, width32, first, splits, from32, self.scale]);
    }

    fn add_to_d_weight(&self, chunk: &Chunk, e: &CudaTensor, d_weight: &CudaTensor) {
        let (hidden, vocabulary) = (self.width(), self.vocabulary());
        let [rows, hidden32, vocabulary32, first] =
            [chunk.rows, hidden, vocabulary, chunk.first].map(|size| size as u32);
        Kernel::new(ROWS, "cross_entropy_weight_operands")
            .blocks(chunk.rows)
            .threads(row_threads(hidden))
            .read(&self.tokens)
            .read(&chunk.state)
            .read(&self.losses)
            .update(e)
            .update(&chunk.x)
            .launch(sizes![rows, hidden32, vocabulary32, first, self.scale]);
        Kernel::new(SOURCE, "cross_entropy_backward_weight")
            .blocks(tiles(vocabulary, hidden))
            .threads(THREADS)
            .read(e)
            .read(&chunk.x)
            .update(d_weight)
            .launch(sizes![rows, hidden32, vocabulary32, 4u32, u32::from(chunk.first > 0)]);
    }

    /// Returns `scale · Σ losses`, `[1, 1]`.
    fn sum(&self) -> CudaTensor {
        let loss = empty(self.hidden, [1, 2], DType::F32);
        Kernel::new(ROWS, "cross_entropy_sum")
            .blocks(1)
            .threads(256)
            .read(&self.losses)
            .write(&loss)
            .launch(sizes![self.targets.rows.len() as u32, self.scale]);
        // The second number is the difference of the first from the sum in double precision.
        view(loss, [1, 1])
    }
}

impl OnCuda<2> for LinearCrossEntropy {
    fn fits(&self, [hidden, weight]: [[usize; 2]; 2]) -> bool {
        aligned(hidden[1]) && aligned(weight[0]) && !self.targets.rows.is_empty()
    }

    fn forward(&self, inputs: [CudaTensor; 2], wanted: [bool; 2]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let [hidden, weight] = inputs.map(as_bf16);
        let ((_, width), (vocabulary, _)) = (dims(&hidden), dims(&weight));
        let slabs = Slabs::new(self.targets.rows.len(), width, vocabulary, wanted[1]);
        let pass = Pass::new(&hidden, &weight, &self.targets, slabs, self.scale);
        let d_hidden = wanted.contains(&true).then(|| empty_like(&hidden));
        let d_weight = wanted[1].then(|| empty(&weight, [vocabulary, width], DType::F32));
        for (first, rows) in pass.chunks() {
            let chunk = pass.start(first, rows);
            let Some(d_hidden) = &d_hidden else {
                pass.slabs().for_each(|slab| pass.logits(&chunk, slab, None));
                continue;
            };
            let splits = pass.splits(rows);
            let e = empty(&hidden, [rows, slabs.width], DType::BF16);
            let d_x = empty(&hidden, [splits * rows, width], DType::F32);
            for slab in pass.slabs() {
                pass.logits(&chunk, slab, Some(&e));
                pass.add_to_d_x(&chunk, slab, &e, &d_x, splits);
            }
            pass.finish(&chunk, &d_x, splits, d_hidden);
            if let Some(d_weight) = &d_weight {
                pass.add_to_d_weight(&chunk, &e, d_weight);
            }
        }
        let loss = pass.sum();
        ([loss], d_hidden.into_iter().chain(d_weight).collect())
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        wanted: [bool; 2],
    ) -> [Option<CudaTensor>; 2] {
        let [d_hidden, d_weight] = scaled(saved, d_output, wanted);
        [d_hidden, d_weight.and_then(|d_weight| keep::<Cube>(self.sum.as_ref(), d_weight))]
    }
}
