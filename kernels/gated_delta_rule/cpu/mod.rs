//! The gated delta rule on the CPU: chunked forward and backward, threaded, in fp32.
//!
//! Owns the arithmetic over plain slices. Enters: the convolved `qkv`, the log decay `g`, the gate `beta` and
//! the boundaries of the packed segments. Leaves: outputs, final states and gradients. It must not know
//! tensors, devices or automatic differentiation.
//!
//! Shapes: `T` tokens of all segments, `Nk`/`Nv` key/value heads, `r = Nv / Nk`, `dk`/`dv` their sizes, `C`
//! rows of a chunk (64, fewer in the last chunk of a segment). Value head `m` reads key head `m / r`.
//!
//! # The rule
//!
//! Per value head, with unit keys `k`, unit queries `q` times `dk^-1/2`, and a state `S [dk, dv]` that is
//! zero before each segment:
//!
//! ```text
//! S ← exp(g_t) S     z_t = v_t - Sᵀ k_t     x_t = beta_t z_t     S ← S + k_t x_tᵀ     o_t = Sᵀ q_t
//! ```
//!
//! `z` is the error of the decayed state's prediction, `x` what is written to correct it.
//!
//! # A chunk, forward
//!
//! With `B_i = Σ_{l≤i} g_l` and the incoming state `S`, and the decay factors all at most 1
//!
//! ```text
//! Γ_ij = exp(B_i - B_j), j <= i         between rows        (0 above the diagonal, masked before exp)
//! E    = diag(exp(B_i))                 from S to row i     ("entry")
//! F    = diag(exp(B_last - B_i))        from row i to S'    ("exit")
//! γ    = exp(B_last)                    from S to S'        ("whole")
//! D    = diag(beta)
//! N    = strictly_lower(K Kᵀ ⊙ Γ)       P = lower(Q Kᵀ ⊙ Γ)
//! ```
//!
//! unrolling the rule over the rows gives
//!
//! ```text
//! Z  = V - E K S - N X,   X = D Z       unit lower triangular system, since N is strictly lower
//! O  = E Q S + P X
//! S' = γ S + Kᵀ F X
//! ```
//!
//! This is the usual UT form `Vn = U - W S` with `X = Vn`, solved once for the right-hand side `V - E K S` in
//! place of once for `U` and once for `W`: as the chunks of one head run in order anyway, there is nothing to
//! gain from having `U` and `W` early.
//!
//! # A chunk, backward
//!
//! Given `dO` and `dS'`, each line being the transpose of one above:
//!
//! ```text
//! dX = Pᵀ dO + F K dS' - Nᵀ dZ,   dZ = D dX       unit upper triangular system, the mirror image
//! dV = dZ                                         dbeta_i = dX_i · Z_i
//! dP = lower(dO Xᵀ)                               dN = -strictly_lower(dZ Xᵀ)
//! dQ = E dO Sᵀ + (dP ⊙ Γ) K
//! dK = F X dS'ᵀ - E dZ Sᵀ + (dP ⊙ Γ)ᵀ Q + (dN ⊙ Γ) K + (dN ⊙ Γ)ᵀ K
//! dS = γ dS' + Qᵀ E dO - Kᵀ E dZ
//! ```
//!
//! (`dQ` and `dK` still with respect to the normalised rows.)//! The scores `K Kᵀ` and `Q Kᵀ` belong to the
//! key head, so `dP ⊙ Γ` and `dN ⊙ Γ` are summed over its value heads before they are multiplied.
//!
//! Every decay factor is the exponential of a sum of `g`, so `dg_l` is the sum of (factor times its gradient)
//! over the factors that contain `g_l`, that is over all that flows from before row `l` to row `l` or later:
//!
//! ```text
//! dg_l = γ <S, dS'>
//!      + Σ_{i≥l} [q_i · (E dO Sᵀ)_i - k_i · (E dZ Sᵀ)_i]        ("entering")
//!      + Σ_{j<l} k_j · (F X dS'ᵀ)_j                             ("leaving")
//!      + Σ_{i≥l>j} [P ⊙ dP + N ⊙ dN]_ij                         ("between")
//! ```
//!
//! The shorter `Σ_{i≥l} (dO_i · O_i - dV_i · V_i) + <S', dS'>` is equal, but its large terms cancel where the
//! decay is strong, and only noise is left of a small gradient. In the sum above each term carries the factor
//! `exp(g_l)` itself.
//!
//! # Parallelism
//!
//! One task per segment and key head; no sum crosses tasks. A packed segment gives the same bits as a
//! separate one, on any number of threads.

mod backward;
mod chunk;
mod forward;
mod gradients;
mod inputs;
mod matrix;
mod recurrent;
mod rows;
mod task;
mod triangular;

#[cfg(test)]
mod tests;

use backward::Backward;
use forward::Forward;
pub use inputs::Dims;
use inputs::check_states;
pub(super) use inputs::{Inputs, OutputGradients};
use rayon::prelude::*;
use task::{Task, deal, deal_states, tasks};

/// Chunked forward. `out` is `[T, Nv, dv]`, `final_state` `[segments, Nv, dk, dv]`; both are overwritten.
///
/// # Panics
/// If the length of a slice does not match the dimensions and boundaries.
pub(super) fn forward(inputs: Inputs<'_>, out: &mut [f32], final_state: Option<&mut [f32]>) {
    forward_tasks(inputs, out, final_state)
        .into_par_iter()
        .for_each_init(|| Forward::new(inputs), |forward, (task, results)| forward.run(&task, results));
}

/// Like [`forward`], one token at a time. This is the readable specification, and faster for a few tokens
/// (decoding).
///
/// # Panics
/// If the length of a slice does not match the dimensions and boundaries.
pub(super) fn recurrent(inputs: Inputs<'_>, out: &mut [f32], final_state: Option<&mut [f32]>) {
    forward_tasks(inputs, out, final_state)
        .into_par_iter()
        .for_each(|(task, results)| recurrent::run(&inputs, &task, results));
}

fn forward_tasks<'a>(
    inputs: Inputs<'a>,
    out: &'a mut [f32],
    final_state: Option<&'a mut [f32]>,
) -> Vec<(Task, forward::Results<'a>)> {
    let (dims, cu_seqlens) = (inputs.dims, inputs.cu_seqlens);
    let tokens = inputs.checked_tokens();
    assert_eq!(out.len(), tokens * dims.values_width(), "out is [T, Nv, dv]");
    check_states(&inputs, final_state.as_deref().map(<[f32]>::len));
    let outs = deal(out.chunks_exact_mut(dims.values_width()), dims, cu_seqlens);
    let results = outs
        .zip(deal_states(final_state, dims))
        .map(|(out, final_state)| forward::Results { out, final_state });
    tasks(dims, cu_seqlens).zip(results).collect()
}

/// The gradients of the inputs, which are overwritten.
#[derive(Debug)]
pub(super) struct InputGradients<'a> {
    /// `[T, 2·Nk·dk + Nv·dv]`, with respect to the rows before normalisation
    pub qkv: &'a mut [f32],
    /// `[T, Nv]`
    pub g: &'a mut [f32],
    /// `[T, Nv]`
    pub beta: &'a mut [f32],
    /// `[segments, Nv, dk, dv]`, if wanted
    pub initial_state: Option<&'a mut [f32]>,
}

/// Chunked backward. Keeps nothing from the forward pass: it recomputes the states, and holds those of one
/// segment and key head at a time per thread (`[chunks, r, dk, dv]`).
///
/// # Panics
/// If the length of a slice does not match the dimensions and boundaries.
pub(super) fn backward(inputs: Inputs<'_>, above: OutputGradients<'_>, gradients: InputGradients<'_>) {
    let (dims, cu_seqlens) = (inputs.dims, inputs.cu_seqlens);
    let tokens = inputs.checked_tokens();
    assert_eq!(above.out.len(), tokens * dims.values_width(), "the gradient of out is [T, Nv, dv]");
    assert_eq!(gradients.qkv.len(), inputs.qkv.len(), "the gradient of qkv is [T, 2·Nk·dk + Nv·dv]");
    assert_eq!(gradients.g.len(), inputs.g.len(), "the gradient of g is [T, Nv]");
    assert_eq!(gradients.beta.len(), inputs.beta.len(), "the gradient of beta is [T, Nv]");
    check_states(&inputs, above.final_state.map(<[f32]>::len));
    check_states(&inputs, gradients.initial_state.as_deref().map(<[f32]>::len));

    let (q_rows, k_rows, v_rows): (Vec<_>, Vec<_>, Vec<_>) = gradients
        .qkv
        .chunks_exact_mut(dims.qkv_width())
        .map(|row| {
            let (q, kv) = row.split_at_mut(dims.keys_width());
            let (k, v) = kv.split_at_mut(dims.keys_width());
            (q, k, v)
        })
        .collect();
    let keys = deal(q_rows, dims, cu_seqlens).zip(deal(k_rows, dims, cu_seqlens));
    let gates = deal(gradients.g.chunks_exact_mut(dims.value_heads), dims, cu_seqlens).zip(deal(
        gradients.beta.chunks_exact_mut(dims.value_heads),
        dims,
        cu_seqlens,
    ));
    let results = keys
        .zip(deal(v_rows, dims, cu_seqlens).zip(gates))
        .zip(deal_states(gradients.initial_state, dims))
        .map(|(((d_q, d_k), (d_v, (d_g, d_beta))), d_initial_state)| backward::Results {
            d_q,
            d_k,
            d_v,
            d_g,
            d_beta,
            d_initial_state,
        });
    let work: Vec<_> = tasks(dims, cu_seqlens).zip(results).collect();
    work.into_par_iter().for_each_init(
        || Backward::new(inputs, above),
        |backward, (task, results)| backward.run(&task, results),
    );
}
