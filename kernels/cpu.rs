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

/// The number of values in a piece of a narrow weight: as f32, they stay in the cache of a processor.
const PIECE: usize = 1 << 17;

/// Returns the number of outputs that one task computes from a narrow weight with so many inputs, a multiple
/// of 16. It follows from the shape alone, and is large enough: `gemm` sums products of up to 256 numbers, or
/// of up to 64 × 64, in another order, so with fewer outputs the bits would depend on the number of threads.
fn outputs_of_piece(rows: usize, inputs: usize) -> usize {
    let least = if rows <= 64 { (256 / rows.max(1)).max(64) + 1 } else { 64 };
    (PIECE / inputs.max(1)).max(least).next_multiple_of(16)
}

/// Returns `x Wᵀ`, `[T, out]`, of `x [T, in]` and a weight `[out, in]`. A narrow weight is widened in pieces,
/// and the last one also has the outputs that are left.
pub(crate) fn product_with(x: &FlexTensor, weight: &FlexTensor) -> Vec<f32> {
    let Numbers::Bf16(narrow) = numbers(weight) else {
        return product(1.0, matrix(x), matrix(weight).t());
    };
    let ((rows, width), (outputs, columns)) = (dims(x), dims(weight));
    assert_eq!(columns, width, "x is not [T, in]");
    let mut y = vec![0.0; rows * outputs];
    let of_piece = outputs_of_piece(rows, width);
    let pieces = (outputs / of_piece).max(1);
    let tiles = Tiled::new(&mut y);
    (0..pieces).into_par_iter().for_each_init(Vec::new, |wide, piece| {
        let first = piece * of_piece;
        let count = if piece + 1 == pieces { outputs - first } else { of_piece };
        dispatch(
            #[inline(always)]
            || widen(&narrow[first * width..][..count * width], wide),
        );
        // SAFETY: each piece has columns of its own.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let of_piece = unsafe { tiles.matrix(first, rows, count, outputs) };
        let weight = Matrix::new(wide, count, width, width);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose sums are rounded, so that another order of adding gives other bits.
    fn uneven(n: usize) -> impl Iterator<Item = f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin())
    }

    #[test]
    fn the_number_of_threads_changes_no_bit_of_a_product_with_a_narrow_weight() {
        for (inputs, outputs) in [(896, 4864), (4864, 896), (1024, 1024)] {
            let narrow: Vec<bf16> = uneven(outputs * inputs).map(bf16::from_f32).collect();
            let shape = Layout::contiguous(Shape::new([outputs, inputs]));
            let weight = FlexTensor::new(Bytes::from_elems(narrow), shape, DType::BF16);
            for rows in [1, 2, 20, 64, 65] {
                let x = tensor(uneven(rows * inputs).collect(), rows);
                let on = |threads: usize| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    pool.install(|| product_with(&x, &weight))
                };
                let alone = on(1);
                for threads in [2, 8, 16] {
                    assert!(on(threads) == alone, "{rows} rows of {inputs} → {outputs}, {threads} threads");
                }
            }
        }
    }

    #[test]
    fn a_narrow_weight_is_summed_like_a_wide_one_and_has_work_for_many_threads() {
        for (rows, inputs, outputs) in
            [(1, 3000, 700), (2, 896, 700), (20, 3000, 190), (64, 33, 1000), (130, 72, 40)]
        {
            let x = tensor(uneven(rows * inputs).collect(), rows);
            let narrow: Vec<bf16> = uneven(outputs * inputs).map(bf16::from_f32).collect();
            let wide = narrow.iter().map(|number| number.to_f32()).collect();
            let shape = Layout::contiguous(Shape::new([outputs, inputs]));
            let narrow = FlexTensor::new(Bytes::from_elems(narrow), shape, DType::BF16);
            let found = product_with(&x, &narrow);
            assert!(found == product_with(&x, &tensor(wide, outputs)), "{rows} rows of {inputs} → {outputs}");
        }
        for rows in [1, 2, 20, 64, 1000] {
            assert!(4096 / outputs_of_piece(rows, 4096) >= 15, "{rows} rows");
        }
    }
}
