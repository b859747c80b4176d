//! The unit of parallel work: one segment of one key head with the value heads that share it.
//!
//! Nothing is summed across tasks, so results depend neither on the number of threads nor on their timing.
//! Every task owns its parts of the result rows, which [`deal`] distributes.

use std::ops::Range;

use super::inputs::Dims;

/// One segment of one key head.
pub(super) struct Task {
    pub(super) tokens: Range<usize>,
    pub(super) key_head: usize,
    segment: usize,
}

impl Task {
    pub(super) fn value_head(&self, dims: Dims, member: usize) -> usize {
        self.key_head * dims.group().len() + member
    }

    /// This segment's state of a member of the group, `[dk, dv]` of `[segments, Nv, dk, dv]`.
    pub(super) fn state_of<'a>(
        &self,
        states: Option<&'a [f32]>,
        dims: Dims,
        member: usize,
    ) -> Option<&'a [f32]> {
        let index = self.segment * dims.value_heads + self.value_head(dims, member);
        states.map(|states| &states[index * dims.state_len()..][..dims.state_len()])
    }
}

/// All tasks, by segment, then key head.
pub(super) fn tasks(dims: Dims, cu_seqlens: &[u32]) -> impl Iterator<Item = Task> {
    segments(cu_seqlens).enumerate().flat_map(move |(segment, tokens)| {
        (0..dims.key_heads).map(move |key_head| Task { tokens: tokens.clone(), key_head, segment })
    })
}

fn segments(cu_seqlens: &[u32]) -> impl Iterator<Item = Range<usize>> {
    cu_seqlens.array_windows().map(|&[start, end]| start as usize..end as usize)
}

/// Splits each token's row into one part per key head and gives each task the parts of its tokens.
pub(super) fn deal<'a>(
    rows: impl IntoIterator<Item = &'a mut [f32]>,
    dims: Dims,
    cu_seqlens: &[u32],
) -> impl Iterator<Item = Vec<&'a mut [f32]>> {
    let mut rows = rows.into_iter();
    let mut hands = Vec::new();
    for tokens in segments(cu_seqlens) {
        let dealt = hands.len();
        hands.extend((0..dims.key_heads).map(|_| Vec::with_capacity(tokens.len())));
        for row in rows.by_ref().take(tokens.len()) {
            let width = row.len() / dims.key_heads;
            for (hand, piece) in hands[dealt..].iter_mut().zip(row.chunks_exact_mut(width)) {
                hand.push(piece);
            }
        }
    }
    hands.into_iter()
}

/// Returns each task's part of a `[segments, Nv, dk, dv]` tensor, or `None` for each.
pub(super) fn deal_states(
    states: Option<&mut [f32]>,
    dims: Dims,
) -> impl Iterator<Item = Option<&mut [f32]>> {
    let group_states = dims.group().len() * dims.state_len();
    let mut pieces = states.map(|states| states.chunks_exact_mut(group_states));
    std::iter::from_fn(move || match &mut pieces {
        Some(pieces) => pieces.next().map(Some),
        None => Some(None),
    })
}
