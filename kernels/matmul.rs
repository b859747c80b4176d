//! Matrix products of the CPU ops: strided views into f32 slices, checked once, passed to the `gemm` crate.
//!
//! `gemm` picks its kernel at run time (AVX-512 with its feature `x86-v4`, AVX2+FMA, NEON, plain) and blocks
//! the summed dimension by the caches of the machine, never by the number of threads: a product has the same
//! bits whether one thread computes it or all.

use std::marker::PhantomData;

/// A read-only matrix inside a slice, not necessarily dense.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// `rows` rows of `cols` consecutive values that begin `row_stride` values apart.
    pub(crate) fn new(data: &'a [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(fits(data.len(), rows, cols, row_stride), "matrix {rows}×{cols} reaches past its data");
        Self { data, rows, cols, row_stride, col_stride: 1 }
    }

    /// Number of rows.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub(crate) fn columns(&self) -> usize {
        self.cols
    }

    /// The transposed view.
    pub(crate) fn t(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }
}

/// The destination of a product: rows of consecutive values, `row_stride` apart.
pub(crate) struct MatrixMut<'a> {
    data: *mut f32,
    rows: usize,
    cols: usize,
    row_stride: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

impl<'a> MatrixMut<'a> {
    /// `rows` rows of `cols` consecutive values that begin `row_stride` values apart.
    pub(crate) fn new(data: &'a mut [f32], rows: usize, cols: usize, row_stride: usize) -> Self {
        assert!(fits(data.len(), rows, cols, row_stride), "matrix {rows}×{cols} reaches past its data");
        Self { data: data.as_mut_ptr(), rows, cols, row_stride, borrow: PhantomData }
    }
}

fn fits(len: usize, rows: usize, cols: usize, row_stride: usize) -> bool {
    row_stride >= cols && (rows == 0 || (rows - 1) * row_stride + cols <= len)
}

/// An output that several tasks write at the same time, each its own rows and columns. A tile of `[tokens,
/// heads, head_dim]` is not a sub-slice, so the borrow checker cannot see that the tiles are disjoint.
pub(crate) struct Tiled<'a> {
    data: *mut f32,
    len: usize,
    borrow: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is only reached through the two unsafe functions below, whose callers promise disjoint
// tiles.
#[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
unsafe impl Sync for Tiled<'_> {}

impl<'a> Tiled<'a> {
    /// Takes the exclusive borrow that will be divided into tiles.
    pub(crate) fn new(data: &'a mut [f32]) -> Self {
        Self { data: data.as_mut_ptr(), len: data.len(), borrow: PhantomData }
    }

    /// The tile of `rows` × `cols` values that begins at `offset`.
    ///
    /// # Safety
    /// No two tiles alive at the same time share an element.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    pub(crate) unsafe fn matrix(
        &self,
        offset: usize,
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> MatrixMut<'_> {
        assert!(
            offset <= self.len && fits(self.len - offset, rows, cols, row_stride),
            "tile {rows}×{cols} reaches past its output"
        );
        // SAFETY: `offset` lies inside the borrowed slice.
        let data = unsafe { self.data.add(offset) };
        MatrixMut { data, rows, cols, row_stride, borrow: PhantomData }
    }

    /// The `len` consecutive values that begin at `offset`.
    ///
    /// # Safety
    /// No two tiles alive at the same time share an element.
    #[expect(unsafe_code, clippy::mut_from_ref, reason = "the caller promises that tiles do not overlap")]
    pub(crate) unsafe fn slice(&self, offset: usize, len: usize) -> &mut [f32] {
        assert!(offset <= self.len && len <= self.len - offset, "tile of {len} reaches past its output");
        // SAFETY: inside the borrowed slice; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(offset), len) }
    }
}

/// Whether a product replaces its destination or is added to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write {
    /// dst = product; the previous values are never read.
    Replace,
    /// dst = dst + product.
    Add,
}

impl Write {
    /// Returns `Replace` the first time, and `Add` from then on.
    pub(crate) fn first(first: bool) -> Self {
        if first { Write::Replace } else { Write::Add }
    }
}

/// The number of threads for one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Threads {
    /// The calling thread, when the product is one task of many.
    One,
    /// All of the current rayon pool.
    All,
}

/// `dst (=, +=) scale · a b`.
pub(crate) fn matmul(
    write: Write,
    dst: MatrixMut<'_>,
    scale: f32,
    a: Matrix<'_>,
    b: Matrix<'_>,
    threads: Threads,
) {
    assert!(
        (a.rows, b.cols) == (dst.rows, dst.cols) && a.cols == b.rows,
        "product of {}×{} and {}×{} does not fit {}×{}",
        a.rows,
        a.cols,
        b.rows,
        b.cols,
        dst.rows,
        dst.cols
    );
    let threads = match threads {
        Threads::One => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(0),
    };
    // SAFETY: all three views were checked against their slices when made, the shapes agree, and `dst` is
    // exclusively borrowed, so it overlaps neither operand. A stride is below the length of a slice of
    // f32, which fits isize.
    #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
    unsafe {
        gemm::gemm(
            dst.rows,
            dst.cols,
            a.cols,
            dst.data,
            1,
            dst.row_stride as isize,
            write == Write::Add,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            1.0,
            scale,
            false,
            false,
            false,
            threads,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| ((i * 37 + 11) % 64) as f32 / 32.0 - 1.0).collect()
    }

    #[test]
    fn products_of_strided_and_transposed_views_match_the_definition() {
        let (m, n, k) = (5, 7, 3);
        let (a, b) = (numbers(k * 9), numbers(n * 4));
        let start = numbers(m * 10);
        let mut dst = start.clone();
        // a is stored [k, m] with stride 9, b is stored [n, k] with stride 4, dst has stride 10.
        matmul(
            Write::Add,
            MatrixMut::new(&mut dst, m, n, 10),
            0.5,
            Matrix::new(&a, k, m, 9).t(),
            Matrix::new(&b, n, k, 4).t(),
            Threads::One,
        );
        for r in 0..m {
            for c in 0..10 {
                let product: f32 =
                    if c < n { (0..k).map(|d| a[d * 9 + r] * b[c * 4 + d]).sum() } else { 0.0 };
                assert!((dst[r * 10 + c] - start[r * 10 + c] - 0.5 * product).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        for (m, n, k) in [(1, 300, 2000), (67, 1031, 517), (300, 257, 3001), (512, 2048, 96)] {
            let (a, b) = (numbers(m * k), numbers(n * k));
            let run = |threads: usize| {
                let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                let mut dst = vec![0.0; m * n];
                pool.install(|| {
                    matmul(
                        Write::Replace,
                        MatrixMut::new(&mut dst, m, n, n),
                        1.0,
                        Matrix::new(&a, m, k, k),
                        Matrix::new(&b, n, k, k).t(),
                        Threads::All,
                    );
                });
                dst
            };
            let alone = run(1);
            assert!(alone == run(2) && alone == run(5), "{m}×{k}×{n}");
        }
    }

    #[test]
    fn a_sum_over_nothing_replaces_by_zero_and_adds_nothing() {
        for (write, want) in [(Write::Replace, 0.0), (Write::Add, 7.0)] {
            let mut dst = [7.0; 6];
            let (a, b) = (Matrix::new(&[], 2, 0, 0), Matrix::new(&[], 0, 3, 3));
            matmul(write, MatrixMut::new(&mut dst, 2, 3, 3), 1.0, a, b, Threads::One);
            assert_eq!(dst, [want; 6]);
        }
    }

    #[test]
    #[should_panic(expected = "reaches past")]
    fn a_view_past_its_slice_is_refused() {
        Matrix::new(&[0.0; 11], 3, 4, 4);
    }
}
