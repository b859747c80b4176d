//! What `silu_mul` and `gelu_mul` have in common: `activation(gate) ⊙ up` for an activation of the form
//! `x · share(x)`. Both inputs and the result are `[T, I]`.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;

use burn_flex::FlexTensor;

use crate::cpu::{dims, fill_rows, for_rows2, slice, tensor};

/// An activation. Its functions are `#[inline(always)]`, for they run inside `dispatch`.
pub(crate) trait Activation {
    /// `activation(x) / x`.
    fn share(x: f32) -> f32;

    /// The derivative at `x`, divided by `share(x)`, which is given.
    fn slope(x: f32, share: f32) -> f32;
}

/// The result on the CPU, and what the backward pass needs.
pub(crate) fn forward<A: Activation>(
    [gate, up]: [FlexTensor; 2],
    wanted: [bool; 2],
) -> ([FlexTensor; 1], Vec<FlexTensor>) {
    let (rows, width) = dims(&gate);
    let (g, u) = (slice(&gate), slice(&up));
    let out = fill_rows(
        rows,
        width,
        #[inline(always)]
        |row, chunk| {
            let from = row * width;
            let (g, u) = (&g[from..from + chunk.len()], &u[from..from + chunk.len()]);
            for ((out, g), u) in chunk.iter_mut().zip(g).zip(u) {
                *out = g * A::share(*g) * u;
            }
        },
    );
    let saved = if wanted.contains(&true) { vec![gate, up] } else { Vec::new() };
    ([tensor(out, rows)], saved)
}

/// The gradients of gate and up on the CPU.
pub(crate) fn backward<A: Activation>(
    saved: Vec<FlexTensor>,
    d_output: FlexTensor,
) -> [Option<FlexTensor>; 2] {
    let (rows, width) = dims(&d_output);
    let (g, u, dy) = (slice(&saved[0]), slice(&saved[1]), slice(&d_output));
    let (mut d_gate, mut d_up) = (vec![0.0; rows * width], vec![0.0; rows * width]);
    for_rows2(
        &mut d_gate,
        width,
        &mut d_up,
        width,
        #[inline(always)]
        |row, d_gate, d_up| {
            let range = row * width..row * width + d_gate.len();
            let (g, u, dy) = (&g[range.clone()], &u[range.clone()], &dy[range]);
            for ((((d_gate, d_up), g), u), dy) in d_gate.iter_mut().zip(d_up).zip(g).zip(u).zip(dy) {
                let s = A::share(*g);
                *d_gate = dy * u * s * A::slope(*g, s);
                *d_up = dy * g * s;
            }
        },
    );
    [Some(tensor(d_gate, rows)), Some(tensor(d_up, rows))]
}
