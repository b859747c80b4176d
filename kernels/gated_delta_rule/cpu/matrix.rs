//! Small dense matrices for one chunk: storage, and a product for sizes of 16 to 128.
//!
//! Every matrix lives in the first- or second-level cache, so nothing is packed: a tile of the result stays
//! in registers while one element of the left operand is broadcast against vectors of a row of the right one.
//! Therefore the left operand can be read transposed at no cost, but not the right one. Rows are padded to
//! [`LANES`] floats and start on a cache line; row and column counts are multiples of [`LANES`], so there are
//! no edge cases. Padding holds zeros and stays zero under every operation of the delta rule.

use std::array;
use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

/// Widest vector of any supported machine, in floats; also one cache line.
pub(super) const LANES: usize = 16;

/// Rows that a panel of the product or a block of the triangular solve handles at once. Divides [`LANES`].
pub(super) const PANEL: usize = 8;

/// `n` rounded up to whole vectors.
pub(super) fn padded(n: usize) -> usize {
    n.next_multiple_of(LANES)
}

/// Row-major matrix with padded, cache-line-aligned rows.
pub(super) struct Matrix {
    store: Vec<f32>,
    start: usize,
    rows: usize,
    stride: usize,
}

impl Matrix {
    /// Zeros; both counts are rounded up to [`LANES`].
    pub(super) fn zeros(rows: usize, cols: usize) -> Self {
        let (rows, stride) = (padded(rows), padded(cols));
        let store = vec![0.0_f32; rows * stride + LANES];
        // Loads across two cache lines cost double. If this alignment is not possible (Miri), it only costs
        // time.
        let start = store.as_ptr().align_offset(LANES * size_of::<f32>()).min(LANES);
        Self { store, start, rows, stride }
    }

    /// Grows the matrix to at least `rows`; the contents are lost.
    pub(super) fn ensure_rows(&mut self, rows: usize) {
        if self.rows < rows {
            *self = Self::zeros(rows, self.stride);
        }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    pub(super) fn floats(&self) -> &[f32] {
        &self.store[self.start..][..self.rows * self.stride]
    }

    pub(super) fn floats_mut(&mut self) -> &mut [f32] {
        &mut self.store[self.start..][..self.rows * self.stride]
    }

    pub(super) fn row(&self, i: usize) -> &[f32] {
        &self.floats()[i * self.stride..][..self.stride]
    }

    pub(super) fn row_mut(&mut self, i: usize) -> &mut [f32] {
        let stride = self.stride;
        &mut self.floats_mut()[i * stride..][..stride]
    }

    pub(super) fn all(&self) -> View<'_> {
        self.top(self.rows)
    }

    /// The first `rows` rows.
    pub(super) fn top(&self, rows: usize) -> View<'_> {
        self.corner(rows, self.stride)
    }

    /// `count` whole rows from `first` on.
    pub(super) fn band(&self, first: usize, count: usize) -> View<'_> {
        View::of(&self.floats()[first * self.stride..(first + count) * self.stride], self.stride)
    }

    /// `count` whole rows from `first` on.
    pub(super) fn band_mut(&mut self, first: usize, count: usize) -> &mut [f32] {
        let stride = self.stride;
        &mut self.floats_mut()[first * stride..(first + count) * stride]
    }

    /// The upper left `rows` × `cols`.
    pub(super) fn corner(&self, rows: usize, cols: usize) -> View<'_> {
        View {
            floats: &self.floats()[..rows * self.stride],
            rows,
            cols,
            stride: self.stride,
            transposed: false,
        }
    }

    /// Copies `row` to row `i` and clears the padding after it.
    #[inline(always)]
    pub(super) fn load_row(&mut self, i: usize, row: &[f32]) {
        let (values, padding) = self.row_mut(i).split_at_mut(row.len());
        values.copy_from_slice(row);
        padding.fill(0.0);
    }

    /// Fills the matrix from dense rows of `width`, or with zeros.
    pub(super) fn load(&mut self, dense: Option<&[f32]>, width: usize) {
        self.floats_mut().fill(0.0);
        for (i, row) in dense.into_iter().flat_map(|dense| dense.chunks_exact(width)).enumerate() {
            self.load_row(i, row);
        }
    }

    /// Writes the matrix as dense rows of `width`.
    pub(super) fn store(&self, dense: &mut [f32], width: usize) {
        for (i, row) in dense.chunks_exact_mut(width).enumerate() {
            row.copy_from_slice(&self.row(i)[..width]);
        }
    }

    /// Clears rows `rows`, which pad a ragged chunk.
    pub(super) fn clear_rows(&mut self, rows: Range<usize>) {
        let stride = self.stride;
        self.floats_mut()[rows.start * stride..rows.end * stride].fill(0.0);
    }
}

/// A borrowed matrix, which may be read transposed.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    floats: &'a [f32],
    rows: usize,
    cols: usize,
    stride: usize,
    transposed: bool,
}

impl<'a> View<'a> {
    /// Whole rows of `stride` floats.
    pub(super) fn of(floats: &'a [f32], stride: usize) -> Self {
        Self { floats, rows: floats.len() / stride, cols: stride, stride, transposed: false }
    }

    /// The transpose; as a left operand only.
    pub(super) fn t(self) -> Self {
        Self { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn floats(&self) -> &'a [f32] {
        self.floats
    }

    #[inline(always)]
    pub(super) fn at(&self, i: usize, j: usize) -> f32 {
        let (i, j) = if self.transposed { (j, i) } else { (i, j) };
        self.floats[i * self.stride + j]
    }
}

/// The effect of a product on its result.
#[derive(Clone, Copy)]
pub(super) enum Write {
    Set,
    Add,
    Sub,
}

/// The part of a product that is known to be zero or is not needed. Known zeros of the left operand must be
/// stored as zeros.
#[derive(Clone, Copy)]
pub(super) enum Shape {
    Full,
    /// `a[i, k] = 0` for `k > i`
    LowerLeft,
    /// `a[i, k] = 0` for `k < i`
    UpperLeft,
    /// Only `out[i, j]` with `j <= i` is needed; values above the diagonal may or may not be written.
    LowerOut,
}

/// `out (= | += | -=) a b` on the upper left corner of `out`.
pub(super) fn multiply(arch: Arch, out: &mut Matrix, write: Write, a: View<'_>, b: View<'_>, shape: Shape) {
    assert!(a.cols == b.rows && a.rows <= out.rows && b.cols <= out.stride && !b.transposed, "operands fit");
    arch.dispatch(Multiply { out, write, a, b, shape });
}

struct Multiply<'a> {
    out: &'a mut Matrix,
    write: Write,
    a: View<'a>,
    b: View<'a>,
    shape: Shape,
}

impl WithSimd for Multiply<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { out, write, a, b, shape } = self;
        let stride = out.stride;
        for (index, rows) in out.floats_mut()[..a.rows * stride].chunks_exact_mut(PANEL * stride).enumerate()
        {
            let first = index * PANEL;
            let diagonal = first + PANEL;
            let (depth, cols) = match shape {
                Shape::Full => (0..a.cols, b.cols),
                Shape::LowerLeft => (0..diagonal, b.cols),
                Shape::UpperLeft => (first..a.cols, b.cols),
                Shape::LowerOut => (0..a.cols, padded(diagonal)),
            };
            panel(simd, rows, stride, write, Left { a, first, depth: depth.clone() }, b, cols);
        }
    }
}

/// The rows `first..first + PANEL` and the columns `depth` of a left operand.
#[derive(Clone)]
pub(super) struct Left<'a> {
    pub(super) a: View<'a>,
    pub(super) first: usize,
    pub(super) depth: Range<usize>,
}

/// One panel of [`PANEL`] result rows: `out[.., ..cols] (= | += | -=) left · b[left.depth, ..cols]`.
#[inline(always)]
pub(super) fn panel<S: Simd>(
    simd: S,
    out: &mut [f32],
    stride: usize,
    write: Write,
    left: Left<'_>,
    b: View<'_>,
    cols: usize,
) {
    let out = S::as_mut_simd_f32s(out).0;
    let stride = stride / S::F32_LANES;
    let right = Right::<S> {
        rows: S::as_simd_f32s(&b.floats[left.depth.start * b.stride..left.depth.end * b.stride]).0,
        stride: b.stride / S::F32_LANES,
    };
    let cols = cols / S::F32_LANES;
    for j in (0..cols / 2).map(|pair| 2 * pair) {
        tiles::<S, 2>(simd, out, stride, write, &left, right, j);
    }
    if cols % 2 == 1 {
        tiles::<S, 1>(simd, out, stride, write, &left, right, cols - 1);
    }
}

/// The rows of the right operand that a panel needs, as vectors.
#[derive(Clone, Copy)]
struct Right<'a, S: Simd> {
    rows: &'a [S::f32s],
    stride: usize,
}

/// Computes `NR` vectors of columns of a panel, in as many tiles as the number of registers requires.
#[inline(always)]
fn tiles<S: Simd, const NR: usize>(
    simd: S,
    out: &mut [S::f32s],
    stride: usize,
    write: Write,
    left: &Left<'_>,
    right: Right<'_, S>,
    j: usize,
) {
    // 8 × 2 accumulators of 32 registers, 4 × 2 of 16: enough independent sums to hide the latency of the
    // multiply-add.
    if S::REGISTER_COUNT >= 32 {
        let tile = tile::<S, 8, NR>(simd, left, 0, right, j);
        store(simd, out, stride, write, tile, j);
    } else {
        for half in 0..PANEL / 4 {
            let tile = tile::<S, 4, NR>(simd, left, 4 * half, right, j);
            store(simd, &mut out[4 * half * stride..], stride, write, tile, j);
        }
    }
}

/// `MR` × `NR` vectors of the product, kept in registers.
#[inline(always)]
#[expect(clippy::needless_range_loop, reason = "the compiler leaves calls of `zip` in the innermost loop")]
fn tile<S: Simd, const MR: usize, const NR: usize>(
    simd: S,
    left: &Left<'_>,
    offset: usize,
    right: Right<'_, S>,
    j: usize,
) -> [[S::f32s; NR]; MR] {
    let Left { a, first, depth } = left;
    let (first, length) = (first + offset, depth.len());
    let mut sums = [[simd.splat_f32s(0.0); NR]; MR];
    let a_rows: [&[f32]; MR] = if a.transposed {
        [&[]; MR]
    } else {
        array::from_fn(|i| &a.floats[(first + i) * a.stride + depth.start..][..length])
    };
    for k in 0..length {
        let b_row = &right.rows[k * right.stride + j..][..NR];
        let a_col: [f32; MR] = if a.transposed {
            let a_col = &a.floats[(depth.start + k) * a.stride + first..][..MR];
            array::from_fn(|i| a_col[i])
        } else {
            array::from_fn(|i| a_rows[i][k])
        };
        for i in 0..MR {
            let x = simd.splat_f32s(a_col[i]);
            for c in 0..NR {
                sums[i][c] = simd.mul_add_e_f32s(x, b_row[c], sums[i][c]);
            }
        }
    }
    sums
}

#[inline(always)]
fn store<S: Simd, const MR: usize, const NR: usize>(
    simd: S,
    out: &mut [S::f32s],
    stride: usize,
    write: Write,
    tile: [[S::f32s; NR]; MR],
    j: usize,
) {
    for i in 0..MR {
        let row = &mut out[i * stride + j..][..NR];
        for c in 0..NR {
            row[c] = match write {
                Write::Set => tile[i][c],
                Write::Add => simd.add_f32s(row[c], tile[i][c]),
                Write::Sub => simd.sub_f32s(row[c], tile[i][c]),
            };
        }
    }
}

/// `out = aᵀ` for an untransposed `a`.
pub(super) fn transpose(arch: Arch, out: &mut Matrix, a: View<'_>) {
    assert!(a.cols <= out.rows && a.rows <= out.stride && !a.transposed, "the transpose fits");
    let stride = out.stride;
    arch.dispatch(
        #[inline(always)]
        || {
            for (i, rows) in a.floats.chunks_exact(PANEL * a.stride).enumerate() {
                for (j, cols) in
                    out.floats_mut()[..a.cols * stride].chunks_exact_mut(PANEL * stride).enumerate()
                {
                    let block: [[f32; PANEL]; PANEL] =
                        array::from_fn(|row| array::from_fn(|col| rows[row * a.stride + j * PANEL + col]));
                    for (col, out_row) in cols.chunks_exact_mut(stride).enumerate() {
                        for (row, to) in out_row[i * PANEL..][..PANEL].iter_mut().enumerate() {
                            *to = block[row][col];
                        }
                    }
                }
            }
        },
    );
}
