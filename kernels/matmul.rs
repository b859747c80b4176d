//! Matrix products of the CPU ops: strided views into f32 slices, checked once, passed to the `gemm` crate.
//!
//! `gemm` picks its kernel at run time (AVX-512 with its feature `x86-v4`, AVX2+FMA, NEON, plain) and blocks
//! the summed dimension by the caches of the machine, never by the number of threads: a product has the same
//! bits whether one thread computes it or all.
//!
//! `gemm` is slow with a transposed right factor, which is what every linear layer has: it arranges the
//! factor number by number, and small ones on one thread while the others wait. So a product on all threads
//! is divided into panels of columns here, and each task transposes the part of the factor that it needs.
//! `src/bench/README.md` says what that gains.

use std::marker::PhantomData;

use rayon::prelude::*;

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

    /// The `count` rows from `first` on.
    fn some_rows(self, first: usize, count: usize) -> Self {
        Self { data: &self.data[first * self.row_stride..], rows: count, ..self }
    }

    /// The `count` columns from `first` on.
    fn some_columns(self, first: usize, count: usize) -> Self {
        Self { data: &self.data[first * self.col_stride..], cols: count, ..self }
    }

    /// Copies a transposed view, whose columns are consecutive values, so that its rows are: `out` gets
    /// `[rows, cols]`.
    fn copy_transposed(self, out: &mut [f32]) {
        /// The numbers of rows and columns that are in registers together.
        const BLOCK: usize = 4;
        let Self { data, rows, cols, row_stride, col_stride } = self;
        assert!(row_stride == 1 && out.len() == rows * cols);
        let (whole_rows, whole_cols) = (rows / BLOCK * BLOCK, cols / BLOCK * BLOCK);
        for col in (0..whole_cols).step_by(BLOCK) {
            for row in (0..whole_rows).step_by(BLOCK) {
                let column = |i: usize| &data[(col + i) * col_stride + row..][..BLOCK];
                let block: [[f32; BLOCK]; BLOCK] =
                    std::array::from_fn(|i| column(i).try_into().expect("so many values"));
                for i in 0..BLOCK {
                    let line: [f32; BLOCK] = std::array::from_fn(|j| block[j][i]);
                    out[(row + i) * cols + col..][..BLOCK].copy_from_slice(&line);
                }
            }
        }
        for col in 0..cols {
            for row in if col < whole_cols { whole_rows } else { 0 }..rows {
                out[row * cols + col] = data[col * col_stride + row];
            }
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

    /// The same destination, to be written by several tasks.
    fn into_tiled(self) -> Tiled<'a> {
        let len = self.rows.saturating_sub(1) * self.row_stride + self.cols;
        Tiled { data: self.data, len, borrow: PhantomData }
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
    let numbers = a.rows.saturating_mul(b.cols).saturating_mul(a.cols);
    let is_transposed = b.row_stride == 1 && b.col_stride > 1;
    if threads == Threads::All && is_transposed && b.cols >= 2 * panel(a.rows) && numbers >= FEWEST {
        in_panels(write, dst, scale, a, b);
    } else {
        undivided(write, dst, scale, a, b, threads);
    }
}

/// The number of multiplications from which on a product is divided among threads: `gemm`'s own.
const FEWEST: usize = 48 * 48 * 256;
/// The number of rows for which a panel is transposed once. Rows are divided too, because with more threads
/// than panels there would be too few tasks.
const ROWS: usize = 512;

/// The number of columns of a panel: as many as AVX-512's kernel computes at a time, and more where `gemm`
/// would sum the panel in another order than the undivided product: up to 256 numbers, and up to 64 × 64.
fn panel(rows: usize) -> usize {
    match rows {
        0..=1 => 512,
        2..=64 => 128,
        _ => 64,
    }
}

/// The product with a transposed `b`, on all threads. How it is divided follows from the shape alone. The
/// last panel also has the columns that are left, because a panel of few would be summed in another order.
fn in_panels(write: Write, dst: MatrixMut<'_>, scale: f32, a: Matrix<'_>, b: Matrix<'_>) {
    let panel = panel(a.rows);
    let panels = b.cols / panel;
    let rows_of_block = a.rows.div_ceil((a.rows / ROWS).max(1));
    let blocks = a.rows.div_ceil(rows_of_block);
    let row_stride = dst.row_stride;
    let tiles = dst.into_tiled();
    let tasks = (0..blocks * panels).into_par_iter();
    tasks.for_each_init(Vec::new, |arranged, task| {
        let (row, col) = (task % blocks * rows_of_block, task / blocks * panel);
        let is_last = task / blocks + 1 == panels;
        let (rows, cols) = (rows_of_block.min(a.rows - row), if is_last { b.cols - col } else { panel });
        let mut b = b.some_columns(col, cols);
        // For one row, `gemm` reads each number of `b` once, as it lies there.
        if a.rows > 1 {
            arranged.resize(b.rows * cols, 0.0);
            b.copy_transposed(arranged);
            b = Matrix::new(arranged, b.rows, cols, cols);
        }
        // SAFETY: each task has rows or columns of its own.
        #[expect(unsafe_code, reason = "the SAFETY comment says why this is sound")]
        let tile = unsafe { tiles.matrix(row * row_stride + col, rows, cols, row_stride) };
        undivided(write, tile, scale, a.some_rows(row, rows), b, Threads::One);
    });
}

/// The product as `gemm` computes it.
fn undivided(write: Write, dst: MatrixMut<'_>, scale: f32, a: Matrix<'_>, b: Matrix<'_>, threads: Threads) {
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

    /// Numbers whose sums are rounded, so that another order of adding gives other bits.
    fn numbers(n: usize) -> Vec<f32> {
        (0..n).map(|i| (i as f32 * 0.37).sin()).collect()
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
    fn panels_have_the_bits_of_the_undivided_product() {
        let few = [(1, 1200, 3001), (2, 300, 2400), (30, 257, 3001), (64, 320, 800)];
        let many = [(65, 193, 700), (300, 129, 3001), (513, 128, 1030), (1100, 190, 33), (1537, 130, 65)];
        for (m, n, k) in few.into_iter().chain(many) {
            let (a, b) = (numbers(m * k), numbers(n * (k + 3)));
            let (a, b) = (Matrix::new(&a, m, k, k), Matrix::new(&b, n, k, k + 3).t());
            for write in [Write::Replace, Write::Add] {
                let run = |product: &dyn Fn(MatrixMut<'_>)| {
                    let mut dst = numbers(m * (n + 5));
                    product(MatrixMut::new(&mut dst, m, n, n + 5));
                    dst
                };
                let whole = run(&|dst| undivided(write, dst, 0.5, a, b, Threads::One));
                let divided = run(&|dst| in_panels(write, dst, 0.5, a, b));
                assert!(whole == divided, "{write:?} {m}×{k}×{n}");
            }
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
