//! Launches of `forward.cuh` and `backward.cuh`, and the tables that assign work to their blocks.

use std::sync::Arc;

use burn::tensor::DType;

use super::{CachedAttention, Dims, PackedAttention};
use crate::Table;
use crate::cuda::examples::Examples;
use crate::cuda::{CudaTensor, Kernel, OnCuda, Sizes, as_bf16, dims, empty, empty_like, sizes};

const FORWARD: &str = "packed_attention/forward.cuh";
const BACKWARD: &str = "packed_attention/backward.cuh";
const CACHED: &str = "packed_attention/cached.cuh";
const APPEND: &str = "packed_attention/append.cuh";
/// The number of rows that a block holds.
const HELD: usize = 128;
/// The keys of a block of `cached.cuh`, and the number of rows that it holds.
const SPLIT: usize = 128;
const ROWS_OF_SPLIT: usize = 4;

/// The result of an item of work, and the cost of a streamed row.
#[derive(Clone, Copy)]
struct Item {
    kind: u32,
    cost: usize,
}

const MIXED: Item = Item { kind: 0, cost: 1 };
const D_QUERIES: Item = Item { kind: 0, cost: 3 };
const D_KEYS: Item = Item { kind: 1, cost: 3 };
const D_KEYS_AND_VALUES: Item = Item { kind: 1, cost: 4 };
const D_VALUES: Item = Item { kind: 2, cost: 2 };

/// The work of the blocks, the longest first, `[items, 3]`: kind, first token, number of tokens.
#[derive(Default)]
struct Work(Vec<(usize, [u32; 3])>);

impl Work {
    /// Adds items of at most `held` tokens each. `streamed(first, count)` returns the number of rows that are
    /// streamed for them.
    fn add(&mut self, item: Item, cu_seqlens: &[u32], held: usize, streamed: impl Fn(usize, usize) -> usize) {
        for (first, count) in cuts(cu_seqlens, held) {
            self.0.push((item.cost * streamed(first, count), [item.kind, first as u32, count as u32]));
        }
    }

    fn items(&self) -> usize {
        self.0.len()
    }

    fn table(mut self) -> Table {
        self.0.sort_by_key(|(cost, _)| std::cmp::Reverse(*cost));
        self.0.iter().flat_map(|(_, item)| *item).collect()
    }
}

/// Divides the row into runs of at most `held` tokens, each a part of one example or several whole ones,
/// because a block streams all rows that any of its rows attends to.
fn cuts(cu_seqlens: &[u32], held: usize) -> Vec<(usize, usize)> {
    let mut cuts: Vec<(usize, usize)> = Vec::new();
    for border in cu_seqlens.windows(2) {
        let (start, end) = (border[0] as usize, border[1] as usize);
        match cuts.last_mut() {
            Some((_, count)) if *count + end - start <= held => *count += end - start,
            _ => cuts.extend((start..end).step_by(held).map(|first| (first, held.min(end - first)))),
        }
    }
    cuts
}

/// For each token, the first key of its example, and one past the last query of its example.
struct Borders {
    first_keys: Vec<u32>,
    last_queries: Vec<u32>,
}

impl Borders {
    fn new(cu_seqlens: &[u32]) -> Self {
        let (mut first_keys, mut last_queries) = (Vec::new(), Vec::new());
        for border in cu_seqlens.windows(2) {
            let tokens = (border[1] - border[0]) as usize;
            first_keys.extend(std::iter::repeat_n(border[0], tokens));
            last_queries.extend(std::iter::repeat_n(border[1], tokens));
        }
        Self { first_keys, last_queries }
    }

    fn keys_of(&self, first: usize, count: usize) -> usize {
        first + count - self.first_keys[first] as usize
    }

    fn queries_of(&self, first: usize, count: usize) -> usize {
        self.last_queries[first + count - 1] as usize - first
    }

    fn table(self) -> Table {
        self.first_keys.into_iter().chain(self.last_queries).collect()
    }
}

/// The tables that assign work to the blocks of one pass over a packed row.
struct Tables {
    borders: Table,
    work: Table,
    items: usize,
}

impl Tables {
    fn new(borders: Borders, work: Work) -> Self {
        Self { items: work.items(), borders: borders.table(), work: work.table() }
    }

    fn of_forward(dims: Dims, cu_seqlens: &[u32]) -> Self {
        let (borders, mut work) = (Borders::new(cu_seqlens), Work::default());
        work.add(MIXED, cu_seqlens, queries_held(dims), |first, count| borders.keys_of(first, count));
        Self::new(borders, work)
    }

    fn of_backward(dims: Dims, cu_seqlens: &[u32]) -> Self {
        let (borders, mut work) = (Borders::new(cu_seqlens), Work::default());
        work.add(D_QUERIES, cu_seqlens, queries_held(dims), |first, count| borders.keys_of(first, count));
        let keys: &[Item] = if dims.head_dim > 128 { &[D_KEYS, D_VALUES] } else { &[D_KEYS_AND_VALUES] };
        let group = dims.heads / dims.kv_heads;
        for item in keys {
            work.add(*item, cu_seqlens, HELD, |first, count| group * borders.queries_of(first, count));
        }
        Self::new(borders, work)
    }
}

pub(super) fn fits(Dims { heads, kv_heads, head_dim }: Dims) -> bool {
    matches!(head_dim, 16 | 32 | 64 | 128 | 256) && heads / kv_heads <= HELD
}

fn sizes_of(dims: Dims, tokens: usize, past: usize, window: Option<usize>, scale: f32) -> Sizes {
    let window = window.map_or(u32::MAX, |window| window as u32);
    sizes![tokens as u32, dims.heads as u32, dims.kv_heads as u32, past as u32, window, scale]
}

/// Returns the number of queries in a tile, which together with all heads of their group fill a block.
fn queries_held(dims: Dims) -> usize {
    HELD / (dims.heads / dims.kv_heads)
}

impl PackedAttention {
    /// Returns the tables of a pass, which all layers with the same heads share.
    fn tables(&self, pass: usize, make: fn(Dims, &[u32]) -> Tables) -> Arc<Tables> {
        let key = [pass, self.dims.heads / self.dims.kv_heads, self.dims.head_dim];
        self.cu_seqlens.derived(key, |cu_seqlens| make(self.dims, cu_seqlens))
    }
}

impl OnCuda<3> for PackedAttention {
    fn fits(&self, _: [[usize; 2]; 3]) -> bool {
        fits(self.dims)
    }

    fn forward(&self, inputs: [CudaTensor; 3], wanted: [bool; 3]) -> ([CudaTensor; 1], Vec<CudaTensor>) {
        let [q, k, v] = inputs.map(as_bf16);
        let tokens = dims(&q).0;
        let tables = self.tables(0, Tables::of_forward);
        let (o, lse) = (empty_like(&q), empty(&q, [tokens, self.dims.heads], DType::F32));
        Kernel::new(FORWARD, "packed_attention_forward")
            .define("HEAD_DIM", self.dims.head_dim)
            .blocks(tables.items * self.dims.kv_heads)
            .threads(256)
            .read(&q)
            .read(&k)
            .read(&v)
            .read(&tables.borders.on_device(&q))
            .read(&tables.work.on_device(&q))
            .write(&o)
            .write(&lse)
            .launch(sizes_of(self.dims, tokens, 0, self.sliding_window, self.scale));
        let saved = if wanted.contains(&true) { vec![q, k, v, o.clone(), lse] } else { Vec::new() };
        ([o], saved)
    }

    fn backward(
        &self,
        saved: Vec<CudaTensor>,
        [d_output]: [CudaTensor; 1],
        _: [bool; 3],
    ) -> [Option<CudaTensor>; 3] {
        let [q, k, v, o, lse] = &saved[..] else { unreachable!("forward saves five tensors") };
        let (d_o, (tokens, width), head_dim) = (as_bf16(d_output), dims(q), self.dims.head_dim);
        let sizes = || sizes_of(self.dims, tokens, 0, self.sliding_window, self.scale);
        let delta = empty_like(lse);
        Kernel::new(BACKWARD, "packed_attention_delta")
            .define("HEAD_DIM", head_dim)
            .blocks((tokens * width).div_ceil(2048))
            .threads(256)
            .read(&d_o)
            .read(o)
            .write(&delta)
            .launch(sizes());
        let tables = self.tables(1, Tables::of_backward);
        let [d_q, d_k, d_v] = [q, k, v].map(empty_like);
        Kernel::new(BACKWARD, "packed_attention_backward")
            .define("HEAD_DIM", head_dim)
            .blocks(tables.items * self.dims.kv_heads)
            .threads(256)
            .read(q)
            .read(k)
            .read(v)
            .read(&d_o)
            .read(lse)
            .read(&delta)
            .read(&tables.borders.on_device(q))
            .read(&tables.work.on_device(q))
            .write(&d_q)
            .write(&d_k)
            .write(&d_v)
            .launch(sizes());
        [Some(d_q), Some(d_k), Some(d_v)]
    }
}

/// Computes attention of the newest queries over the first `keys` rows of a cache, in blocks of queries.
pub(super) fn in_blocks(
    CachedAttention { dims: heads, scale, sliding_window }: CachedAttention,
    inputs: [CudaTensor; 3],
    keys: usize,
) -> CudaTensor {
    let [q, k, v] = inputs.map(as_bf16);
    let tokens = dims(&q).0;
    let mut work = Work::default();
    let fresh = [0, tokens as u32];
    work.add(MIXED, &fresh, queries_held(heads), |first, count| keys - tokens + first + count);
    let borders = Borders::new(&fresh);
    let (o, lse) = (empty_like(&q), empty(&q, [tokens, heads.heads], DType::F32));
    Kernel::new(FORWARD, "packed_attention_forward")
        .define("HEAD_DIM", heads.head_dim)
        .blocks(work.items() * heads.kv_heads)
        .threads(256)
        .read(&q)
        .read(&k)
        .read(&v)
        .read(&borders.table().on_device(&q))
        .read(&work.table().on_device(&q))
        .write(&o)
        .write(&lse)
        .launch(sizes_of(heads, tokens, keys - tokens, sliding_window, scale));
    o
}

/// Returns a matrix whose first rows are `length` ones of `past` and then the new ones: `past` itself, if it
/// has room and is not shared, otherwise a copy with room for an eighth more.
pub(super) fn appended(past: Option<CudaTensor>, length: usize, new: CudaTensor) -> CudaTensor {
    let new = as_bf16(new);
    let all = with_room(past, length, dims(&new).0, &new);
    append(&new, dims(&new).0, &all, length);
    all
}

/// Returns a matrix whose first rows are `length` ones of `past`, with room for so many `fresh` ones behind
/// them, which are rows of `new`: `past` itself, if it has room and is not shared, otherwise a copy.
fn with_room(past: Option<CudaTensor>, length: usize, fresh: usize, new: &CudaTensor) -> CudaTensor {
    let has_room = |past: &CudaTensor| dims(past).0 >= length + fresh && past.handle.can_mut();
    match past {
        Some(past) if has_room(&past) => past,
        past => {
            let room = (length + fresh + (length + fresh) / 8).next_multiple_of(ROOM);
            let all = empty(new, [room, dims(new).1], DType::BF16);
            if let Some(past) = past.filter(|_| length > 0) {
                append(&past, length, &all, 0);
            }
            all
        }
    }
}

/// Writes the first `count` of `rows` into a matrix, from its row `first` on.
fn append(rows: &CudaTensor, count: usize, to: &CudaTensor, first: usize) {
    let (_, width) = dims(rows);
    let numbers = count * width;
    Kernel::new(APPEND, "append_to_cache")
        .blocks(numbers.div_ceil(2048))
        .threads(256)
        .read(rows)
        .update(to)
        .launch(sizes![(first * width) as u64, numbers as u64]);
}

/// The rows that a cache has room for are a multiple of this.
const ROOM: usize = 64;

/// The keys and values of an example.
pub(super) struct Cached {
    /// Keys and values in the first `length` rows of each, `None` without tokens.
    pub(super) rows: [Option<CudaTensor>; 2],
    pub(super) length: usize,
}

/// Appends rows of keys and values to caches, so many to each. Returns the matrices of the caches, all keys
/// and all values, for which [`appended`] says where they lie.
pub(super) fn appended_to_each(
    caches: Vec<Cached>,
    counts: &[usize],
    new: [CudaTensor; 2],
) -> [Vec<CudaTensor>; 2] {
    let [k, v] = new.map(as_bf16);
    let width = dims(&k).1;
    let lengths: Vec<usize> = caches.iter().map(|cache| cache.length).collect();
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (Cached { rows: [past_k, past_v], length }, count) in caches.into_iter().zip(counts) {
        keys.push(with_room(past_k, length, *count, &k));
        values.push(with_room(past_v, length, *count, &v));
    }
    for examples in Examples::of_launches(counts) {
        let mut sizes = sizes![width as u32];
        examples.push_rows(&mut sizes);
        examples.push_each(&mut sizes, |example| lengths[example]);
        Kernel::new(APPEND, "append_to_caches")
            .grid((examples.most * width).div_ceil(2048), 2, examples.range.len())
            .threads(256)
            .read(&k)
            .read(&v)
            .update_each(&keys[examples.range.clone()])
            .update_each(&values[examples.range.clone()])
            .launch(sizes);
    }
    [keys, values]
}

/// Computes attention of the newest queries of examples, so many of each, over their caches, by runs of keys.
/// `keys` has the number of keys of each.
pub(super) fn by_split(
    CachedAttention { dims: heads, scale, sliding_window }: CachedAttention,
    q: CudaTensor,
    counts: &[usize],
    keys: &[usize],
    [of_keys, of_values]: [&[CudaTensor]; 2],
) -> CudaTensor {
    let (q, Dims { heads: q_heads, kv_heads, head_dim }) = (as_bf16(q), heads);
    let o = empty_like(&q);
    let window = sliding_window.map_or(u32::MAX, |window| window as u32);
    let first_split = |example: usize| {
        let of_first = keys[example] - counts[example] + 1;
        sliding_window.map_or(0, |window| of_first.saturating_sub(window)) / SPLIT
    };
    let splits = |example: usize| keys[example].div_ceil(SPLIT) - first_split(example);
    let parts = |example: usize| splits(example) * counts[example] * q_heads;
    for examples in Examples::of_launches(counts) {
        let all = examples.range.clone();
        let of_all: usize = all.clone().map(parts).sum();
        let mixed = empty(&q, [of_all, head_dim], DType::F32);
        let ends = empty(&q, [of_all, 2], DType::F32);
        let held = (examples.most * q_heads / kv_heads).div_ceil(ROWS_OF_SPLIT);
        let sizes = || {
            let mut sizes = sizes![q_heads as u32, kv_heads as u32, window, held as u32, scale];
            examples.push_rows(&mut sizes);
            examples.push_each(&mut sizes, |example| keys[example]);
            examples.push_each(&mut sizes, first_split);
            examples.push_each(&mut sizes, splits);
            examples.push_each(&mut sizes, |example| (all.start..example).map(parts).sum());
            sizes
        };
        let kernel = |name| Kernel::new(CACHED, name).define("HEAD_DIM", head_dim).threads(256);
        kernel("cached_attention")
            .grid(all.clone().map(splits).max().unwrap_or(0), kv_heads, held * all.len())
            .read(&q)
            .read_each(&of_keys[all.clone()])
            .read_each(&of_values[all.clone()])
            .write(&mixed)
            .write(&ends)
            .launch(sizes());
        kernel("merge_cached_attention")
            .blocks((examples.rows.len() * q_heads * head_dim).div_ceil(256))
            .read(&mixed)
            .read(&ends)
            .update(&o)
            .launch(sizes());
    }
    o
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;

    use super::*;
    use crate::cuda::primitive;
    use crate::testing::cuda_device;

    #[test]
    fn rows_on_device_are_appended_in_place_while_there_is_room_and_nobody_shares_them() {
        let Some(device) = cuda_device() else { return };
        let rows = |count| primitive(Tensor::<2>::ones([count, 16], &device));
        let all = appended(None, 0, rows(100));
        assert_eq!(dims(&all).0, 2 * ROOM);
        // A copy would have less room.
        let all = appended(Some(all), 10, rows(1));
        assert_eq!(dims(&all).0, 2 * ROOM, "in place");
        let shared = all.clone();
        let all = appended(Some(all), 11, rows(1));
        assert_eq!(dims(&all).0, ROOM, "the shared rows are copied");
        drop(shared);
        let all = appended(Some(all), 12, rows(ROOM));
        assert_eq!(dims(&all).0, 2 * ROOM, "there was no room");
        let numbers = crate::cuda::into_tensor(all).narrow(0, 0, 12 + ROOM).into_data();
        assert!(numbers.convert::<f32>().try_to_vec::<f32>().unwrap().iter().all(|x| *x == 1.0));
    }

    #[test]
    fn the_longest_item_comes_first_and_every_token_is_in_one() {
        let borders = Borders::new(&[0, 3, 10]);
        let mut work = Work::default();
        work.add(D_QUERIES, &[0, 3, 10], 4, |first, count| borders.keys_of(first, count));
        work.add(D_VALUES, &[0, 3, 10], 8, |first, count| borders.queries_of(first, count));
        // Queries 0..3 attend to 3 keys, 3..7 to 4 and 7..10 to 7, three each; 3 queries attend to keys 0..3,
        // 7 to keys 3..10, two each.
        assert_eq!(work.table()[..], [0, 7, 3, 2, 3, 7, 0, 3, 4, 0, 0, 3, 2, 0, 3]);
    }

    #[test]
    fn a_run_is_a_part_of_one_example_or_several_whole_ones() {
        assert_eq!(cuts(&[0, 1, 3, 9, 10, 15], 4), [(0, 3), (3, 4), (7, 3), (10, 4), (14, 1)]);
        assert_eq!(cuts(&[0, 0, 4, 4], 4), [(0, 4)]);
    }
}
