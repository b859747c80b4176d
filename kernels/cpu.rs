//! Functions that the CPU paths share: slices of tensors, new tensors, whole-tensor products, parallel rows.

use burn::tensor::{Bytes, DType, Shape, bf16};
use burn_flex::{FlexTensor, Layout};
use rayon::prelude::*;

use crate::matmul::{Matrix, MatrixMut, Threads, Tiled, Write, matmul};
use crate::simd::{Stored, dispatch};

/// Returns the numbers of a contiguous f32 tensor.
pub(crate) fn slice(tensor: &FlexTensor) -> &[f32] {
    tensor.as_slice::<f32>().expect("ops receive contiguous f32 tensors")
}

/// The numbers of a weight, which a model that only decodes keeps as they were stored.
pub(crate) enum Numbers<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
}

/// Returns the numbers of a contiguous weight.
pub(crate) fn numbers(weight: &FlexTensor) -> Numbers<'_> {
    match weight.as_slice::<bf16>() {
        Some(narrow) => Numbers::Bf16(narrow),
        None => Numbers::F32(slice(weight)),
    }
}

/// Replaces `wide` by numbers as f32.
#[inline(always)]
pub(crate) fn widen(narrow: &[impl Stored], wide: &mut Vec<f32>) {
    wide.clear();
    wide.extend(narrow.iter().map(
        #[inline(always)]
        |number| number.wide(),
    ));
}

/// Creates a `[rows, columns]` tensor that owns `data`.
pub(crate) fn tensor(data: Vec<f32>, rows: usize) -> FlexTensor {
    let columns = data.len() / rows.max(1);
    FlexTensor::new(Bytes::from_elems(data), Layout::contiguous(Shape::new([rows, columns])), DType::F32)
}

/// Returns rows and columns of a 2-D tensor.
pub(crate) fn dims(tensor: &FlexTensor) -> (usize, usize) {
    let shape = tensor.layout().shape();
    (shape[0], shape[1])
}

/// Returns a whole 2-D tensor as a matrix.
pub(crate) fn matrix(tensor: &FlexTensor) -> Matrix<'_> {
    let (rows, columns) = dims(tensor);
    Matrix::new(slice(tensor), rows, columns, columns)
}

/// Returns `scale · lhs · rhs` as a new row-major vector.
pub(crate) fn product(scale: f32, lhs: Matrix, rhs: Matrix) -> Vec<f32> {
    let (rows, columns) = (lhs.rows(), rhs.columns());
    let mut out = vec![0.0; rows * columns];
    matmul(Write::Replace, MatrixMut::new(&mut out, rows, columns, columns), scale, lhs, rhs, Threads::All);
    out
}

/// Returns `x Wᵀ`, `[T, out]`, of `x [T, in]` and a weight `[out, in]`. A narrow weight is widened in pieces
/// that stay in the cache of a processor.
pub(crate) fn product_with(x: &FlexTensor, weight: &FlexTensor) -> Vec<f32> {
    /// The numbers of a piece at least, and at most.
    const PIECE: [usize; 2] = [1 << 17, 1 << 19];
    let Numbers::Bf16(narrow) = numbers(weight) else {
        return product(1.0, matrix(x), matrix(weight).t());
    };
    let ((rows, width), (outputs, columns)) = (dims(x), dims(weight));
    assert_eq!(columns, width, "x is not [T, in]");
    let mut y = vec![0.0; rows * outputs];
    // Each product arranges `x` anew, so pieces are large, but there are enough for all threads.
    let [least, most] = PIECE.map(|numbers| (numbers / width.max(1)).max(32));
    let outputs_of_piece =
        outputs.div_ceil(3 * rayon::current_num_threads()).clamp(least, most).next_multiple_of(16);
    let tiles = Tiled::new(&mut y);
    let pieces = narrow.par_chunks((outputs_of_piece * width).max(1)).enumerate();
    pieces.for_each_init(Vec::new, |wide, (piece, narrow)| {
        dispatch(
            #[inline(always)]
            || widen(narrow, wide),
        );
        let columns = narrow.len() / width;
        // SAFETY: each piece has columns of its own.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let of_piece = unsafe { tiles.matrix(piece * outputs_of_piece, rows, columns, outputs) };
        let weight = Matrix::new(wide, columns, width, width);
        matmul(Write::Replace, of_piece, 1.0, matrix(x), weight.t(), Threads::One);
    });
    y
}

/// Computes `out += scale · lhs · rhs`, where `out` is row-major.
pub(crate) fn add_product(out: &mut [f32], scale: f32, lhs: Matrix, rhs: Matrix) {
    let (rows, columns) = (lhs.rows(), rhs.columns());
    matmul(Write::Add, MatrixMut::new(out, rows, columns, columns), scale, lhs, rhs, Threads::All);
}

/// Returns the number of rows of `width` numbers for one parallel task, so that the work outweighs the cost
/// of a task.
fn rows_per_task(width: usize) -> usize {
    (16_384 / width.max(1)).max(1)
}

/// Fills a new `[rows, width]` vector in parallel: `fill(first_row, chunk)` writes whole consecutive rows.
pub(crate) fn fill_rows(rows: usize, width: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut out = vec![0.0f32; rows * width];
    for_rows(&mut out, width, fill);
    out
}

/// Runs `work(first_row, chunk)` over all rows in parallel.
pub(crate) fn for_rows(out: &mut [f32], width: usize, work: impl Fn(usize, &mut [f32]) + Sync) {
    let step = rows_per_task(width);
    out.par_chunks_mut((step * width).max(1)).enumerate().for_each(|(task, chunk)| {
        dispatch(
            #[inline(always)]
            || work(task * step, chunk),
        )
    });
}

/// Like [`for_rows`] over two outputs with the same number of rows.
pub(crate) fn for_rows2(
    first: &mut [f32],
    first_width: usize,
    second: &mut [f32],
    second_width: usize,
    work: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) {
    let step = rows_per_task(first_width.max(second_width));
    first
        .par_chunks_mut((step * first_width).max(1))
        .zip(second.par_chunks_mut((step * second_width).max(1)))
        .enumerate()
        .for_each(|(task, (a, b))| {
            dispatch(
                #[inline(always)]
                || work(task * step, a, b),
            )
        });
}

/// Sums one vector of `width` numbers per task. Tasks are added in order, so that the result does not depend
/// on the speed of threads. `add(row, total)` adds the contribution of a row.
pub(crate) fn sum_rows(rows: usize, width: usize, add: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let step = rows_per_task(width).max(rows.div_ceil(64));
    let partial: Vec<Vec<f32>> = (0..rows.div_ceil(step.max(1)))
        .into_par_iter()
        .map(|task| {
            let mut total = vec![0.0f32; width];
            dispatch(
                #[inline(always)]
                || {
                    for row in task * step..rows.min((task + 1) * step) {
                        add(row, &mut total);
                    }
                },
            );
            total
        })
        .collect();
    let mut total = vec![0.0f32; width];
    for part in partial {
        for (sum, value) in total.iter_mut().zip(part) {
            *sum += value;
        }
    }
    total
}
